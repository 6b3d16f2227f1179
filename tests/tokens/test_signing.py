"""The keys that sign tokens: what is accepted while starting, and what each does (RFC 8725, section 3)."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed448, ed25519, rsa, x25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from tests.core.support import SECRET, profile, signing_key

from msk_auth import SigningKey
from msk_auth.errors import ConfigurationError
from msk_auth.tokens import AlgorithmName

ALGORITHMS: tuple[AlgorithmName, ...] = get_args(AlgorithmName)
ASYMMETRIC: tuple[AlgorithmName, ...] = ("ES256", "Ed25519", "RS256")


def private_pem(key: Any, form: PrivateFormat = PrivateFormat.PKCS8, password: Any = None) -> bytes:
    encryption = NoEncryption() if password is None else BestAvailableEncryption(password)
    return key.private_bytes(Encoding.PEM, form, encryption)


def public_bytes(key: SigningKey, encoding: Encoding = Encoding.PEM) -> bytes:
    form = (
        PublicFormat.OpenSSH if encoding is Encoding.OpenSSH else PublicFormat.SubjectPublicKeyInfo
    )
    public = load_pem_private_key(key.export(), None).public_key()
    return public.public_bytes(encoding, form)


def certificate(encoding: Encoding) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tasks.example")])
    start = datetime(2026, 1, 1, tzinfo=UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=999))
        .sign(key, hashes.SHA256())
        .public_bytes(encoding)
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_key_verifies_what_it_signed_and_nothing_else(algorithm: AlgorithmName) -> None:
    key = signing_key(algorithm)
    signature = key.sign(b"message")
    assert key.verify(b"message", signature) is True
    assert key.verify(b"Message", signature) is False
    for wrong in (b"", signature[:-1], signature + b"\x00", bytes(len(signature)), b"\xff" * 64):
        assert key.verify(b"message", wrong) is False
    assert signing_key(algorithm, "k2").verify(b"message", signature) is False


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_key_that_was_kept_signs_for_the_one_it_came_from(algorithm: AlgorithmName) -> None:
    key = signing_key(algorithm)
    kept = SigningKey("later", algorithm, key.export())
    assert key.verify(b"message", kept.sign(b"message"))
    assert (kept.kid, kept.algorithm, kept.can_sign) == ("later", algorithm, True)


@pytest.mark.parametrize("algorithm", ASYMMETRIC)
def test_a_public_key_verifies_and_cannot_sign(algorithm: AlgorithmName) -> None:
    key = signing_key(algorithm)
    public = SigningKey("public", algorithm, public_bytes(key))
    assert public.verify(b"message", key.sign(b"message"))
    assert public.can_sign is False
    with pytest.raises(ConfigurationError, match="'public' is a public key and has nothing"):
        public.export()
    with pytest.raises(ConfigurationError, match="'public' is a public key and cannot sign"):
        public.sign(b"message")


@pytest.mark.parametrize("form", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
def test_both_usual_forms_of_a_private_pem_are_read(form: PrivateFormat) -> None:
    key = rsa.generate_private_key(65537, 2048)
    assert SigningKey("k", "RS256", private_pem(key, form)).can_sign


def refusal(algorithm: Any, key: bytes, kid: str = "k") -> str:
    with pytest.raises(ConfigurationError) as refused:
        SigningKey(kid, algorithm, key)
    # A chained exception could quote what it could not read.
    assert refused.value.__cause__ is None
    assert refused.value.__context__ is None or refused.value.__suppress_context__
    return str(refused.value)


def test_a_small_rsa_key_is_refused() -> None:
    small = rsa.generate_private_key(65537, 1024)
    for pem in (
        private_pem(small),
        small.public_key().public_bytes(Encoding.PEM, PublicFormat.PKCS1),
    ):
        assert refusal("RS256", pem) == "The RSA key 'k' has 1024 bits and needs 2048."


@pytest.mark.parametrize(
    ("algorithm", "pem"),
    [
        ("RS256", signing_key("ES256").export()),
        ("RS256", signing_key("Ed25519").export()),
        ("RS256", private_pem(dsa.generate_private_key(1024))),
        ("ES256", signing_key("RS256").export()),
        ("ES256", signing_key("Ed25519").export()),
        ("ES256", private_pem(ec.generate_private_key(ec.SECP384R1()))),
        ("ES256", private_pem(ec.generate_private_key(ec.SECP256K1()))),
        ("Ed25519", signing_key("RS256").export()),
        ("Ed25519", signing_key("ES256").export()),
        ("Ed25519", private_pem(ed448.Ed448PrivateKey.generate())),
        ("Ed25519", private_pem(x25519.X25519PrivateKey.generate())),
        ("ES256", public_bytes(signing_key("RS256"))),
        ("Ed25519", public_bytes(signing_key("ES256"))),
    ],
    ids=range(13),
)
def test_a_key_of_another_kind_than_the_algorithms_is_refused(
    algorithm: AlgorithmName, pem: bytes
) -> None:
    # RFC 8725, section 3.1: one algorithm for each key.
    assert refusal(algorithm, pem) == f"The key 'k' is not of the kind that {algorithm} needs."


SECRET_TEXT = b"c2VjcmV0IHRleHQ="


@pytest.mark.parametrize(
    "pem",
    [
        b"",
        b"not a pem at all " * 4,
        b"\x00" * 64,
        b"-----BEGIN PRIVATE KEY-----\n" + SECRET_TEXT + b"\n-----END PRIVATE KEY-----\n",
        b"-----BEGIN PUBLIC KEY-----\n" + SECRET_TEXT + b"\n-----END PUBLIC KEY-----\n",
        b"-----BEGIN PRIVATE KEY-----\n",
        private_pem(ed25519.Ed25519PrivateKey.generate(), password=b"pass phrase"),
        private_pem(rsa.generate_private_key(65537, 2048), PrivateFormat.TraditionalOpenSSL, b"x"),
        certificate(Encoding.PEM),
        json.dumps(signing_key("ES256").jwk()).encode(),
    ],
    ids=range(10),
)
def test_a_pem_that_cannot_be_read_is_refused_without_quoting_it(pem: bytes) -> None:
    message = "The key 'k' is not a PEM that can be read without a password."
    assert refusal("ES256", pem) == message


@pytest.mark.parametrize(
    "algorithm", ["none", "None", "NONE", "", "HS384", "HS512", "PS256", "ES512", "EdDSA", "hs256"]
)
def test_an_algorithm_outside_the_profile_is_refused(algorithm: Any) -> None:
    message = f"The algorithm '{algorithm}' is not supported. Use one of "
    assert refusal(algorithm, b"s" * 64).startswith(message)


def test_no_key_is_generated_for_such_an_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    # It would be slow.
    monkeypatch.delattr(rsa, "generate_private_key")
    with pytest.raises(ConfigurationError, match="The algorithm 'RS512' is not supported"):
        SigningKey.generate("k", "RS512")  # type: ignore[arg-type]


@pytest.mark.parametrize("kid", ["", "a b", "a/b", "../k", "k\n", "k\x00", "é", "k" * 65, "k'--"])
def test_a_key_id_of_another_form_is_refused(kid: str) -> None:
    assert "needs 1 to 64 characters" in refusal("HS256", SECRET, kid)


def test_the_longest_key_id_works() -> None:
    assert SigningKey("k" * 64, "HS256", SECRET).kid == "k" * 64


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_signing_key_shows_no_secret(algorithm: AlgorithmName) -> None:
    assert repr(signing_key(algorithm)) == f"<SigningKey 'k1' {algorithm}>"


# JWKS (RFC 7517): public members only.


@pytest.mark.parametrize(
    ("algorithm", "members"),
    [
        ("ES256", {"kty", "crv", "x", "y"}),
        ("Ed25519", {"kty", "crv", "x"}),
        ("RS256", {"kty", "n", "e"}),
    ],
)
def test_a_jwk_has_the_public_members_and_no_others(
    algorithm: AlgorithmName, members: set[str]
) -> None:
    key = signing_key(algorithm)
    jwk = key.jwk()
    assert jwk is not None
    assert jwk.keys() == members | {"kid", "alg", "use"}
    assert (jwk["kid"], jwk["alg"], jwk["use"]) == ("k1", signing_key(algorithm).header_name, "sig")


def test_a_published_coordinate_has_the_zeros_in_front_that_belong_to_it() -> None:
    # The y of this key begins with a zero byte (RFC 7518, section 6.2.1.3).
    key = ec.derive_private_key(43, ec.SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    jwk = SigningKey("k1", "ES256", pem).jwk()
    assert jwk is not None
    decoded = [base64.urlsafe_b64decode(f"{jwk[name]}=") for name in ("x", "y")]
    assert [len(each) for each in decoded] == [32, 32]
    assert decoded[1][0] == 0
    assert [int.from_bytes(each, "big") for each in decoded] == [
        getattr(key.public_key().public_numbers(), name) for name in ("x", "y")
    ]


def test_secret_keys_are_never_published() -> None:
    both = profile(signing_key("HS256"), signing_key("ES256", "k2"))
    assert signing_key("HS256").jwk() is None
    assert [jwk["kid"] for jwk in both.jwks()["keys"]] == ["k2"]


# The two names of Ed25519 (RFC 8037, RFC 9864).


def test_ed25519_has_the_older_of_its_names_and_both_are_read() -> None:
    # All libraries read the older one: `test_interoperability.py`.
    key = SigningKey.generate("k1", "Ed25519")
    assert (key.algorithm, key.header_name) == ("Ed25519", "EdDSA")
    assert (key.jwk() or {})["alg"] == "EdDSA"
    assert SigningKey.generate("k1", "ES256").header_name == "ES256"


# Generating.


def test_a_generated_key_has_the_size_of_its_algorithm() -> None:
    assert len(SigningKey.generate("k", "HS256").export()) == 32
    elliptic = load_pem_private_key(SigningKey.generate("k", "ES256").export(), None)
    assert elliptic.curve.name == "secp256r1"
    signing = SigningKey.generate("k", "Ed25519")
    assert isinstance(load_pem_private_key(signing.export(), None), ed25519.Ed25519PrivateKey)
    rsa_key = load_pem_private_key(SigningKey.generate("k", "RS256").export(), None)
    assert rsa_key.key_size == 2048
    assert rsa_key.public_key().public_numbers().e == 65537


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_key_is_named_by_its_own_algorithm_alone(algorithm: AlgorithmName) -> None:
    key = signing_key(algorithm)
    names = (*ALGORITHMS, "EdDSA", "Ed448", "none", None, [])
    named = {name for name in names if key.is_named(name)}
    assert named == ({"Ed25519", "EdDSA"} if algorithm == "Ed25519" else {algorithm})
