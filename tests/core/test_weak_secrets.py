"""Secrets that others know or can guess are refused while starting, for tokens and for peppers alike."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa, x25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)
from tests.core.support import signing_key
from tests.tokens.test_signing import certificate

from msk_auth import PepperRing, SigningKey
from msk_auth.core.weak_secrets import PUBLISHED
from msk_auth.errors import ConfigurationError


def in_lines(raw: bytes) -> bytes:
    return b"\n".join(raw[at : at + 64] for at in range(0, len(raw), 64)) + b"\n"


ENCODINGS: dict[str, Callable[[bytes], bytes]] = {
    "raw": bytes,
    "hex": lambda raw: raw.hex().encode(),
    "hex in capitals": lambda raw: raw.hex().upper().encode(),
    "hex with colons": lambda raw: raw.hex(":").encode(),
    "base64": base64.b64encode,
    "base64 in lines": base64.encodebytes,
    "base64url": lambda raw: base64.urlsafe_b64encode(raw).rstrip(b"="),
    "hex in lines": lambda raw: in_lines(raw.hex().encode()),
    "in quotes": lambda raw: b'"' + base64.b64encode(raw) + b'"\n',
}


def weakness(secret: bytes) -> str:
    """The message about a secret, which is the same for both kinds of secret and never quotes it."""
    messages = []
    for make in (
        lambda: SigningKey("k", "HS256", secret),
        lambda: PepperRing({"k": secret}, current="k"),
    ):
        with pytest.raises(ConfigurationError) as refused:
            make()
        message = str(refused.value)
        if len(secret) > 2:
            assert secret.decode("latin-1") not in message
            assert repr(secret)[2:-1] not in message
        assert message.endswith(
            'Make one with: python -c "import secrets; print(secrets.token_urlsafe(48))"'
        )
        messages.append(message.split("'k' ", 1)[1])
    assert messages[0] == messages[1]
    return messages[0]


# Published.


@pytest.mark.parametrize("encode", ENCODINGS.values(), ids=ENCODINGS)
def test_published_secrets_are_refused_in_any_encoding(encode: Callable[[bytes], bytes]) -> None:
    for secret in PUBLISHED:
        if 32 <= len(encode(secret)) <= 128:
            assert weakness(encode(secret)).startswith("is an example that is published")


@pytest.mark.parametrize(
    "secret",
    [
        # FastAPI's tutorial, and what it decodes to.
        b"09d25e094faa6ca2556c818166b7a9563b93f7099f6f0f4caa6cf63b88e8d3e7",
        bytes.fromhex("09d25e094faa6ca2556c818166b7a9563b93f7099f6f0f4caa6cf63b88e8d3e7"),
        # RFC 7515, appendix A.1, decoded.
        base64.urlsafe_b64decode(
            b"AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow=="
        ),
        b"django-insecure-" + secrets.token_urlsafe(40).encode(),
        # Flask-Security's quick start: the secret key and the salt.
        b"pf9Wkove4IKEAXvy-cQkeDPhv9Cb3Ag-wyJILbq_dFw",
        b"146585145368132386173505678016728509634",
    ],
    ids=["FastAPI", "FastAPI decoded", "RFC 7515", "Django", "Flask-Security", "its salt"],
)
def test_what_a_framework_or_a_standard_prints_is_refused(secret: bytes) -> None:
    assert weakness(secret).startswith("is an example that is published")


# Not random.


@pytest.mark.parametrize(
    "secret",
    [
        *(bytes([value]) * 32 for value in (0, 1, 0x41, 0xFF)),
        bytes(64),
        b"ab" * 16,
        b"\xde\xad\xbe\xef" * 8,
        bytes(range(32)),
        bytes(range(255, 191, -1)),
        bytes(range(0, 128, 4)),
        bytes((250 + step) % 256 for step in range(32)),
        b"abcdefghijklmnopqrstuvwxyzABCDEF",
        b"12345678901234567890123456789012",
        b"0aZ9xQ" * 6,
        b"secret" * 6,
        secrets.token_bytes(12) * 3,
        secrets.token_bytes(5) + bytes(27),
        secrets.token_bytes(16) + b" " * 16,
        secrets.token_bytes(12).rjust(32, b"\0"),
    ],
    ids=range(19),
)
def test_a_pattern_is_refused_in_any_encoding(secret: bytes) -> None:
    for encode in ENCODINGS.values():
        if 32 <= len(encode(secret)) <= 128:
            assert weakness(encode(secret)).startswith("has a pattern")


# Keys of other algorithms (RFC 8725, section 2.1).

CURVES = {
    "P-256": ec.SECP256R1(),
    "P-384": ec.SECP384R1(),
    "P-521": ec.SECP521R1(),
    "secp256k1": ec.SECP256K1(),
}
RSA: Any = load_pem_private_key(signing_key("RS256").export(), None)
PRIVATE = {
    "RSA": RSA,
    "Ed25519": ed25519.Ed25519PrivateKey.generate(),
    "Ed448": ed448.Ed448PrivateKey.generate(),
    "X25519": x25519.X25519PrivateKey.generate(),
    **{name: ec.generate_private_key(curve) for name, curve in CURVES.items()},
}
FORMS = {"DER": Encoding.DER, "PEM": Encoding.PEM}
SPKI = PublicFormat.SubjectPublicKeyInfo
SPKI_OF_ED25519 = PRIVATE["Ed25519"].public_key().public_bytes(Encoding.DER, SPKI)
OID_OF_ED25519, OID_OF_NO_KEY = bytes.fromhex("06032b6570"), bytes.fromhex("06032b6563")
KEYS: dict[str, bytes] = {
    **{
        f"{name}, public, {form}": key.public_key().public_bytes(encoding, SPKI)
        for name, key in PRIVATE.items()
        for form, encoding in FORMS.items()
    },
    **{
        f"{name}, OpenSSH": PRIVATE[name]
        .public_key()
        .public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        for name in ("RSA", "Ed25519", "P-256")
    },
    "RSA, PKCS #1": RSA.public_key().public_bytes(Encoding.DER, PublicFormat.PKCS1),
    "OpenSSH, wire": base64.b64decode(
        PRIVATE["Ed25519"]
        .public_key()
        .public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        .split()[1]
    ),
    "certificate, PEM": certificate(Encoding.PEM),
    "private, PEM": signing_key("ES256").export(),
    "JWK": json.dumps(signing_key("ES256").jwk()).encode(),
    "JWK, minimal": b'{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}',
    "JWK set": json.dumps({"keys": [signing_key("RS256").jwk()]}).encode(),
    "another kind, public": SPKI_OF_ED25519.replace(OID_OF_ED25519, OID_OF_NO_KEY),
}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_a_key_is_no_secret_in_any_encoding(key: bytes) -> None:
    for encode in ENCODINGS.values():
        assert weakness(encode(key)).startswith("is a key of another algorithm")


def test_a_modulus_is_no_secret_in_any_encoding() -> None:
    number = RSA.public_key().public_numbers().n
    for raw in (number.to_bytes(256), number.to_bytes(257)):
        for name, encode in ENCODINGS.items():
            most = 127 if name == "raw" else 128
            assert f"and may have {most}: more add nothing" in weakness(encode(raw))
    assert "and may have 128" in weakness(str(number).encode())


def test_a_modulus_of_1024_bits_is_no_secret_in_any_encoding() -> None:
    raw = rsa.generate_private_key(65537, 1024).public_key().public_numbers().n.to_bytes(128)
    assert "has 128 bytes and may have 127: more add nothing" in weakness(raw)
    for name, encode in ENCODINGS.items():
        if name != "raw":
            assert "and may have 128: more add nothing" in weakness(encode(raw))


def test_bytes_that_only_begin_like_a_key_are_a_secret() -> None:
    for begin in (b"\x30\x1e", b"\x30\x2a", b"\x04", b"{", b"[", b"\0\0\0\x0b"):
        for length in (32, 44, 65, 97):
            secret = begin + secrets.token_bytes(length - len(begin))
            assert SigningKey("k", "HS256", secret).export() == secret


# What must never be refused. The odds that this fails are below 10^-9 in a run, for the shortest of these: 16 random bytes as
# 32 digits of hex.


def test_random_secrets_are_never_refused() -> None:
    for length in [32] * 40 + list(range(32, 97, 3)):
        raw = secrets.token_bytes(length)
        for encode in ("raw", "hex", "base64", "base64url"):
            secret = ENCODINGS[encode](raw)
            if len(secret) <= 128:
                assert SigningKey("k", "HS256", secret).can_sign
                assert PepperRing({"k": secret}, current="k")["k"] == secret
    for secret in (secrets.token_urlsafe(48).encode(), secrets.token_hex(16).encode()):
        assert SigningKey("k", "HS256", secret).can_sign


@pytest.mark.parametrize(
    ("secret", "accepted"),
    [
        (secrets.token_bytes(31), False),
        (secrets.token_bytes(32), True),
        (secrets.token_bytes(127), True),
        (b"\xff" + secrets.token_bytes(127), False),
        # Text has no more than 64 random bytes in hexadecimal.
        (secrets.token_hex(64).encode(), True),
        (secrets.token_hex(64).encode() + b"x", False),
    ],
    ids=["31", "32", "127", "128", "128 of text", "129 of text"],
)
def test_a_secret_has_32_to_127_bytes_or_128_of_text(secret: bytes, accepted: bool) -> None:
    if accepted:
        assert SigningKey("k", "HS256", secret).can_sign
    else:
        assert weakness(secret).startswith(f"has {len(secret)} bytes")


def test_a_secret_of_another_type_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="is not of type bytes"):
        PepperRing({"k": secrets.token_hex()}, current="k")  # type: ignore[dict-item]
    with pytest.raises(ConfigurationError, match=r"is not of type bytes: use text\.encode\(\)"):
        SigningKey("k", "HS256", secrets.token_hex())  # type: ignore[arg-type]


def test_words_are_accepted() -> None:
    # A phrase of random words is the operator's decision.
    assert SigningKey("k", "HS256", b"correct horse battery staple violet anchor").can_sign


# Where the lines are drawn, on what is decoded.


@pytest.mark.parametrize(("new", "accepted"), [(16, False), (24, True), (32, True)])
def test_three_quarters_of_a_secret_are_new(new: int, accepted: bool) -> None:
    secret = (bytes((17 * n * n + 3 * n) % 251 for n in range(new)) * 2)[:32]
    if accepted:
        assert SigningKey("k", "HS256", secret).can_sign
    else:
        assert weakness(secret).startswith("has a pattern")
