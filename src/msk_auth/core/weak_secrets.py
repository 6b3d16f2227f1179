"""Refuses secrets that an attacker knows or can guess: published secrets, patterns, and public keys.

A secret is examined as given, and decoded from hex and base64. It is refused if one of these

1. is a public key: others know it, and can make an HMAC with it (RFC 8725, section 2.1);
2. is printed in a standard, a tutorial or a default configuration;
3. compresses to less than three quarters of 32 bytes, as given or by the differences between its bytes: it repeats or counts.

A secret has at least 32 bytes, and at most 127, or 128 of text: 64 random bytes in hexadecimal. HMAC-SHA256 hashes secrets of
more than 64 bytes to 32, so more adds nothing; and an RSA modulus, which looks random, is longer in every encoding.

32 random bytes, or their hex or base64, are refused with a probability below one in 10^12. A public key that looks like
random bytes is not recognized: Ed25519 without its wrapping, or a point of a curve.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Final, cast

from .errors import ConfigurationError

# As printed: an application that decodes a published secret first is refused too. Those of fewer than 32 bytes are too short anyway.
PUBLISHED: Final = (
    # RFC 7515, appendix A.1, and RFC 7517, appendix A.3.
    b"AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow",
    # RFC 7520, sections 3.5 and 3.6.
    b"hJtXIZ2uSN5kbQfbtTNWbpdmhkV8FJG-Onbc6mxCcYg",
    b"AAPapAv4LbFbiVawEjagUBluYqN5rhna-8nuldDvOx8",
    # jwt.io, for HS256, HS384 and HS512.
    b"a-string-secret-at-least-256-bits-long",
    b"a-valid-string-secret-that-is-at-least-384-bits-long",
    b"a-valid-string-secret-that-is-at-least-512-bits-long-which-is-very-long",
    # FastAPI, tutorial "OAuth2 with Password (and hashing), Bearer with JWT tokens".
    b"09d25e094faa6ca2556c818166b7a9563b93f7099f6f0f4caa6cf63b88e8d3e7",
    # Flask, "Configuration Handling", SECRET_KEY.
    b"192b9bdd22ab9ed4d12e236c78afcb9a393ec15f71bbf5dc987d54727823bcbf",
    # Flask-Security, "Quick Start", SECRET_KEY and SECURITY_PASSWORD_SALT.
    b"pf9Wkove4IKEAXvy-cQkeDPhv9Cb3Ag-wyJILbq_dFw",
    b"146585145368132386173505678016728509634",
    # aiohttp-session, README.
    b"Thirty  two  length  bytes  key.",
    # NestJS, "Authentication".
    b"DO NOT USE THIS VALUE. INSTEAD, CREATE A COMPLEX SECRET AND KEEP IT SAFE OUTSIDE OF THE SOURCE CODE.",
    # Supabase, command line and self-hosting.
    b"super-secret-jwt-token-with-at-least-32-characters-long",
    b"your-super-secret-jwt-token-with-at-least-32-characters-long",
    # PostgREST, tutorial and tests.
    b"reallyreallyreallyreallyverysafe",
    # Hasura, "Authentication using JWT".
    b"3EK6FD+o0+c7tzBNVfjpMkNDi2yARAAKzQlk8O2IKoxQu4nF7EdAh8s3TwpHwrdWT6R",
    # Nacos, default configuration and documentation.
    b"SecretKey012345678901234567890123456789012345678901234567890123456789",
    b"VGhpc0lzTXlDdXN0b21TZWNyZXRLZXkwMTIzNDU2Nzg=",
    # Dify, default configuration.
    b"sk-9f73s3ljTXVcMT3Blb3ljTqtsKiGHXVcMT3BlbkFJLK7U",
    # Tutorials of JWTs with Spring Boot, copied into thousands of repositories.
    b"404E635266556A586E3272357538782F413F4428472B4B6250645367566B5970",
    b"5367566B59703373367639792F423F4528482B4D6251655468576D5A71347437",
    b"3cfa76ef14937c1c0ea519f8fc057a80fcd04a7420f8e8bcd0a7567c272e007b",
    b"9a4f2c8d3b7a1e6f45c8a0b3f267d8b1d4e6f3c8a9d2b5f8e3a9c8b5f6v8a3d9",
    # Tutorials of JWTs with ASP.NET, likewise.
    b"db3OIsj+BXE9NZDy0t8W3TcNekrF+2d/1sFnWG4HnV8TZY30iTOdtVWJG8abWvB1GlOgJuQZdcF2Luqm/hccMw==",
    (
        b"401b09eab3c013d4ca54922bb802bec8fd5318192b0a75f201d8b3727429090f"
        b"b337591abd3e44453b954555b7a0812e1081c39b740293f765eae731f5a65ed1"
    ),
    b"856FECBA3B06519C8DDDBC80BB080553",
)


_MIN_SECRET: Final = 32
# For text. For other bytes one less: 128 bytes may be a modulus.
_MAX_SECRET: Final = 128
_HOW_TO_MAKE: Final = 'Make one with: python -c "import secrets; print(secrets.token_urlsafe(48))"'
_WRAPPING: Final = b"\0 \t\r\n'\""
# Compiled when they are used: few programs make a key, and importing the library should be fast.
_HEX: Final = rb"(?:[0-9A-Fa-f]{2})+"
_BASE64: Final = rb"[0-9A-Za-z+/_-]+={0,2}"
_KEY_AS_TEXT: Final = rb'---- ?BEGIN |ssh-(?:rsa|dss|ed25519)|ecdsa-sha2-|"kty"'


def check_secret(name: str, secret: bytes) -> None:
    """Refuse a secret that an attacker knows or can guess.

    Args:
        name: The secret's name in the message, such as `secret of the key 'k1'`.
        secret: The secret.

    Raises:
        ConfigurationError: The secret is weak. The message names the weakness and never quotes the secret.
    """
    weakness = _weakness(secret)
    if weakness is not None:
        raise ConfigurationError(f"The {name} {weakness}. {_HOW_TO_MAKE}")


def _weakness(secret: bytes) -> str | None:
    if not isinstance(cast("object", secret), bytes):
        return "is not of type bytes"
    views = set(_views(secret))
    if any(map(_is_public_key, views)):
        return "is a key of another algorithm, and not random bytes"
    if len(secret) < _MIN_SECRET:
        return f"has {len(secret)} bytes and needs {_MIN_SECRET} (RFC 7518, section 3.2)"
    most = _MAX_SECRET if secret.isascii() else _MAX_SECRET - 1
    if len(secret) > most:
        return (
            f"has {len(secret)} bytes and may have {most}: more add nothing, and public keys"
            " have that size"
        )
    if not views.isdisjoint(_published()) or secret.startswith(b"django-insecure-"):
        return "is an example that is published"
    if not all(map(_is_random, views)):
        return "has a pattern, and not random bytes: it repeats or counts"
    return None


def _views(secret: bytes) -> Iterator[bytes]:
    """The secret as given and decoded."""
    # Stripped and unstripped, because a key in DER may end with bytes that look like wrapping.
    for view in {secret, secret.strip(_WRAPPING)}:
        yield view
        yield from _decoded(view)


def _decoded(view: bytes) -> Iterator[bytes]:
    # Line ends of `base64` and `openssl`, and the colons in `openssl`'s output.
    compact = b"".join(view.split())
    if re.fullmatch(_HEX, plain := compact.replace(b":", b"")):
        yield bytes.fromhex(plain.decode())
    if re.fullmatch(_BASE64, compact):
        text = compact.rstrip(b"=").replace(b"-", b"+").replace(b"_", b"/")
        try:
            yield binascii.a2b_base64(text + b"=" * (-len(text) % 4))
        except binascii.Error:
            return


@cache
def _published() -> frozenset[bytes]:
    return frozenset(view for secret in PUBLISHED for view in _views(secret))


def _is_random(view: bytes) -> bool:
    """True if neither the bytes nor the differences between neighbours compress well."""
    import zlib

    differences = bytes((after - before) % 256 for before, after in pairwise(view))
    least = 3 * min(len(view), _MIN_SECRET) // 4
    # No header and no checksum: for a short text they would be a third.
    return all(len(zlib.compress(each, 9, -15)) >= least for each in (view, differences))


def _is_public_key(view: bytes) -> bool:
    if re.search(_KEY_AS_TEXT, view) is not None:
        return True
    if not view.startswith(b"\x30"):
        return False
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    try:
        load_der_public_key(view)
    except UnsupportedAlgorithm:
        return True
    except ValueError:
        return False
    return True
