"""Refuses secrets that are no secrets: published ones, degenerate ones, and public keys, each in any usual encoding.

A secret is looked at as it is and as what it decodes to, from hex and base64, a few times over. It is refused if one of
these

1. is a key of another algorithm, a certificate or any JSON document: a public key is known to others, and an HMAC with
   it can be made by them (RFC 8725, section 2.1);
2. is printed in a standard, a tutorial or a default configuration, or consists of the words of a placeholder;
3. has a pattern: repetition, counting, fewer than six different bytes, one byte in half of its places.

It may have 127 bytes at most, or 128 of text: 64 random bytes in hexadecimal. HMAC-SHA256 hashes what is longer than 64
bytes down to 32, so more adds nothing; and an RSA modulus of 1024 bits or more, which looks random, is longer in every
encoding.

The odds that 32 random bytes, or their hex or base64, are refused are below 2 to the power of -60. What cannot be
recognised is a public key that has the form of random bytes: one of Ed25519 without its wrapping, a compressed point.
The two coordinates of a point are recognised: they fit on its curve, which random bytes do not.
"""

from __future__ import annotations

import binascii
import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Final, cast

from .errors import ConfigurationError

MIN_SECRET: Final = 32
"""How many bytes a secret needs (RFC 7518, section 3.2)."""

MAX_SECRET: Final = 128
"""How many bytes a secret may have if it is text; any other may have one less."""

HOW_TO_MAKE: Final = 'Make one with: python -c "import secrets; print(secrets.token_urlsafe(48))"'
"""What a message about a secret ends with."""

_DECODINGS: Final = 3
_MIN_PATTERN: Final = 16
_WRAPPING: Final = b"\0 \t\r\n'\""
# Compiled when they are used: few programs make a key, and importing the library should be fast.
_HEX: Final = rb"(?:[0-9A-Fa-f]{2})+"
_BASE64: Final = rb"[0-9A-Za-z+/_-]+={0,2}"
_ARMOUR: Final = rb"-----BEGIN |---- BEGIN "
_SSH_KIND: Final = rb"(?:ssh-|ecdsa-sha2-|sk-ssh-|sk-ecdsa-)"
_SSH: Final = _SSH_KIND + rb"\S+ +AAAA|\0\0\0." + _SSH_KIND


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
        raise ConfigurationError(f"The {name} {weakness}. {HOW_TO_MAKE}")


def _weakness(secret: bytes) -> str | None:
    if not isinstance(cast("object", secret), bytes):
        return "is not of type bytes"
    views = list(_views(secret))
    if any(_is_key(view) for view in views):
        return "is a public or private key, a certificate or a JSON document, and not random bytes"
    if len(secret) < MIN_SECRET:
        return f"has {len(secret)} bytes and needs {MIN_SECRET} (RFC 7518, section 3.2)"
    # 128 bytes that are no text may be a modulus.
    most = MAX_SECRET if secret.isascii() else MAX_SECRET - 1
    if len(secret) > most:
        return (
            f"has {len(secret)} bytes and may have {most}: more add nothing, and public keys"
            " have that size"
        )
    if any(_is_published(view) for view in views):
        return "is an example that is published, or consists of the words of one"
    if any(_has_pattern(view) for view in views):
        return "has a pattern, and not random bytes: it repeats, counts or has few different bytes"
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


def _is_key(view: bytes) -> bool:
    return (
        re.search(_ARMOUR, view) is not None
        or re.match(_SSH, view, re.DOTALL) is not None
        or _is_json(view)
        or _is_der(view)
        or _is_point(view)
    )


def _is_json(view: bytes) -> bool:
    if not view.startswith((b"{", b"[")):
        return False
    try:
        json.loads(view)
    except ValueError:
        return False
    except RecursionError:
        return True
    return True


def _is_der(view: bytes) -> bool:
    if not view.startswith(b"\x30"):
        return False
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.x509 import load_der_x509_certificate

    try:
        serialization.load_der_public_key(view)
    except ValueError:
        pass
    except UnsupportedAlgorithm:
        return True
    else:
        return True
    try:
        serialization.load_der_private_key(view, password=None, unsafe_skip_rsa_key_validation=True)
    except ValueError:
        pass
    except (TypeError, UnsupportedAlgorithm):
        return True  # encrypted, or of a kind that is not supported
    else:
        return True
    try:
        load_der_x509_certificate(view)
    except ValueError:
        return False
    return True


def _is_point(view: bytes) -> bool:
    # An uncompressed point (SEC 1, section 2.3.3) or a hybrid one, whose first byte differs, or without that byte.
    coordinates = view[len(view) % 2 :]
    # Text is none, such as the usual secret of 64 characters, for which the curves need not be loaded.
    if len(coordinates) not in {64, 96, 132} or coordinates.isascii():
        return False
    from cryptography.hazmat.primitives.asymmetric import ec

    for curve in (ec.SECP256R1(), ec.SECP256K1(), ec.SECP384R1(), ec.SECP521R1()):
        try:
            ec.EllipticCurvePublicKey.from_encoded_point(curve, b"\x04" + coordinates)
        except ValueError:
            continue
        return True
    return False


def _is_published(view: bytes) -> bool:
    from .published_secrets import COMMITTED_PREFIX

    if view in _published() or view.startswith(COMMITTED_PREFIX):
        return True
    words = _words().findall(view.lower())
    return len(view) >= _MIN_PATTERN and 2 * sum(map(len, words)) >= len(view)


@cache
def _published() -> frozenset[bytes]:
    from .published_secrets import PUBLISHED

    views = (view for secret in PUBLISHED for view in _views(secret))
    return frozenset(view for view in views if len(view) >= _MIN_PATTERN)


@cache
def _words() -> re.Pattern[bytes]:
    from .published_secrets import PLACEHOLDER_WORDS

    # The longest first: "changeme" before "change".
    return re.compile("|".join(sorted(PLACEHOLDER_WORDS, key=len, reverse=True)).encode())


def _has_pattern(view: bytes) -> bool:
    length = len(view)
    if length < _MIN_PATTERN:
        return False
    counts = Counter(view).most_common()
    if len(counts) < 6 or 2 * counts[0][1] >= length:
        return True
    steps = Counter((after - before) % 256 for before, after in pairwise(view))
    if 4 * steps.most_common(1)[0][1] >= 3 * (length - 1):
        return True
    # Two copies with a separator in between count as well.
    return any(view[period:] == view[:-period] for period in range(1, 2 * length // 3 + 1))
