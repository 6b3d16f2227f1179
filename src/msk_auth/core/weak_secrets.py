"""Refuses secrets that an attacker knows or can guess: published ones, those that are not random, and public keys.

A secret is examined as it is and as what it decodes to, from hex and base64, a few times over. It is refused if one of these

1. is a public key: others know it, and can make an HMAC with it (RFC 8725, section 2.1);
2. is printed in a standard, a tutorial or a default configuration;
3. compresses to less than three quarters of 32 bytes, as it is or by the differences between its bytes: it repeats or counts.

It has at least 32 bytes, and at most 127, or 128 of text: 64 random bytes in hexadecimal. HMAC-SHA256 hashes what is longer
than 64 bytes down to 32, so more adds nothing; and an RSA modulus, which looks random, is longer in every encoding.

The odds that 32 random bytes, or their hex or base64, are refused are below one in 10^12. A public key that has the form of
random bytes is not recognized: one of Ed25519 without its wrapping, a compressed point. The two coordinates of a point are:
they fit on its curve, which random bytes do not.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Final, cast

from .errors import ConfigurationError

_MIN_SECRET: Final = 32
# Of text. Other bytes are one less: 128 bytes may be a modulus.
_MAX_SECRET: Final = 128
_HOW_TO_MAKE: Final = 'Make one with: python -c "import secrets; print(secrets.token_urlsafe(48))"'
_DECODINGS: Final = 3
_WRAPPING: Final = b"\0 \t\r\n'\""
# Compiled when they are used: few programs make a key, and importing the library should be fast.
_HEX: Final = rb"(?:[0-9A-Fa-f]{2})+"
_BASE64: Final = rb"[0-9A-Za-z+/_-]+={0,2}"
_KEY_AS_TEXT: Final = rb'---- ?BEGIN |ssh-(?:rsa|dss|ed25519)|ecdsa-sha2-|"kty"'


def check_secret(name: str, secret: bytes) -> None:
    """Refuse a secret that an attacker knows or can guess.

    Args:
        name: What it is, for the message, such as `secret of the key 'k1'`.
        secret: What it is made of.

    Raises:
        ConfigurationError: It is weak. The message says how and never quotes it.
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
    """The secret, and what it decodes to, over and over."""
    level = {secret}
    for _ in range(_DECODINGS):
        # With and without, because a key in DER may end with what looks like wrapping.
        level |= {view.strip(_WRAPPING) for view in level}
        yield from level
        level = {decoded for view in level for decoded in _decoded(view)}
    yield from level


def _decoded(view: bytes) -> Iterator[bytes]:
    # Line ends of `base64` and `openssl`, and the colons with which the latter prints bytes.
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
    from .published_secrets import PUBLISHED

    return frozenset(view for secret in PUBLISHED for view in _views(secret))


def _is_random(view: bytes) -> bool:
    """Whether neither the bytes nor the differences between neighbours are fewer than they look."""
    differences = bytes((after - before) % 256 for before, after in pairwise(view))
    least = 3 * min(len(view), _MIN_SECRET) // 4
    return min(_compressed(view), _compressed(differences)) >= least


def _compressed(view: bytes) -> int:
    import zlib

    # No header and no checksum: of a short text they would be a third.
    compressor = zlib.compressobj(level=9, wbits=-15)
    return len(compressor.compress(view)) + len(compressor.flush())


def _is_public_key(view: bytes) -> bool:
    return re.search(_KEY_AS_TEXT, view) is not None or _is_der(view) or _is_point(view)


def _is_der(view: bytes) -> bool:
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


def _is_point(view: bytes) -> bool:
    # An uncompressed point (SEC 1, section 2.3.3) or a hybrid one, whose first byte differs, or without that byte.
    coordinates = view[len(view) % 2 :]
    # Text is none, such as the usual secret of 64 characters, for which the curves need not be loaded.
    if len(coordinates) not in {64, 96} or coordinates.isascii():
        return False
    from cryptography.hazmat.primitives.asymmetric import ec

    for curve in (ec.SECP256R1(), ec.SECP256K1(), ec.SECP384R1()):
        try:
            ec.EllipticCurvePublicKey.from_encoded_point(curve, b"\x04" + coordinates)
        except ValueError:
            continue
        return True
    return False
