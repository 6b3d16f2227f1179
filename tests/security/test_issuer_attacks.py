"""The attacks of `test_jwt_attacks.py`, against every identity provider. Each is refused with `token_invalid`."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import get_default_algorithms
from tests.cases import case, refused_with
from tests.core.support import NOW, b64, parsed
from tests.tokens.shapes import EC_KEY, RSA_KEY, SHAPES, Shape, T, jwks, sign

from msk_auth import ExternalIdentity
from msk_auth.errors import CredentialRefused
from msk_auth.tokens.issuers import ExternalIssuer

NAMES = pytest.mark.parametrize("name", SHAPES)
ATTACKER = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def accepts(text: str, issuer: ExternalIssuer) -> bool:
    return issuer.authenticate(parsed(text), NOW) is not None


def verify_or_refuse(text: str, issuer: ExternalIssuer) -> None:
    if not accepts(text, issuer):
        raise CredentialRefused("token_invalid")


def assert_refused(text: str, issuer: ExternalIssuer) -> None:
    """Refused; or, where the issuer cannot be read any more, not taken for the issuer's, which ends in the same error."""
    with refused_with("token_invalid") as refused:
        verify_or_refuse(text, issuer)
    assert refused.value.code == "token_invalid"
    assert refused.value.detail == CredentialRefused("token_invalid").detail


def segment(members: object) -> str:
    return b64(json.dumps(members).encode())


def key_of(shape: Shape) -> Any:
    return EC_KEY if shape.header["alg"] == "ES256" else RSA_KEY


@NAMES
def test_the_unchanged_token_is_accepted(name: str) -> None:
    assert accepts(SHAPES[name].token(), SHAPES[name].issuer)


# RFC 8725, sections 2.1, 3.1 and 3.2: the algorithm is the key's.


@NAMES
def test_no_algorithm_is_no_algorithm(name: str) -> None:
    shape = SHAPES[name]
    for alg in ("none", "None", "nOnE", "none ", "", None, False, 0, [], {}, ["RS256"]):
        header = {**shape.header, "alg": alg}
        for signature in ("", "AA", "bm9uZQ"):
            assert_refused(f"{segment(header)}.{segment(shape.claims)}.{signature}", shape.issuer)
        assert_refused(sign(header, shape.claims), shape.issuer)


@NAMES
def test_a_token_without_its_signature_is_refused(name: str) -> None:
    header, claims, _ = SHAPES[name].token().split(".")
    for text in (f"{header}.{claims}.", f"{header}.{claims}", f"{header}..", f".{claims}.", ".."):
        assert_refused(text, SHAPES[name].issuer)


@NAMES
def test_the_public_key_is_no_hmac_secret_in_any_encoding(name: str) -> None:
    shape = SHAPES[name]
    public = key_of(shape).public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    (jwk,) = jwks(str(shape.header["kid"]), str(shape.header["alg"]))["keys"]
    secrets = [pem, pem.strip(), pem.replace(b"\n", b"\r\n"), der, base64.b64encode(der), b"",
               json.dumps(jwk).encode(), *(str(value).encode() for value in jwk.values())]  # fmt: skip
    for claimed in ("HS256", "HS384", "HS512"):
        for header in (shape.header, {**shape.header, "alg": claimed}):
            message = f"{segment(header)}.{segment(shape.claims)}"
            for secret in secrets:
                with case(claimed, header, secret):
                    tag = hmac.digest(secret, message.encode(), "sha" + claimed[2:])
                    assert_refused(f"{message}.{b64(tag)}", shape.issuer)
            assert_refused(f"{message}.{b64(hashlib.sha512(pem).digest())}", shape.issuer)


@NAMES
def test_a_foreign_key_under_the_same_id_is_refused(name: str) -> None:
    shape = SHAPES[name]
    keys: dict[str, Any] = {
        "RS256": ATTACKER,
        "PS256": ATTACKER,
        "ES256": ec.generate_private_key(ec.SECP256R1()),
        "ES384": ec.generate_private_key(ec.SECP384R1()),
        "EdDSA": ed25519.Ed25519PrivateKey.generate(),
    }
    for algorithm, key in keys.items():
        for alg in (algorithm, shape.header["alg"]):
            for more in ({}, {"jwk": {"kty": "RSA"}}, {"jku": "https://attacker.example/keys"}):
                message = f"{segment({**shape.header, 'alg': alg, **more})}.{segment(shape.claims)}"
                signature = get_default_algorithms()[algorithm].sign(message.encode(), key)
                assert_refused(f"{message}.{b64(signature)}", shape.issuer)


@NAMES
def test_the_right_key_under_another_algorithms_name_is_refused(name: str) -> None:
    shape = SHAPES[name]
    # The signed header names it, and the signature is of another algorithm.
    for alg in ("RS384", "PS256", "PS512", "ES384", "EdDSA", "Ed448", "rs256", "es256", "RSA"):
        message = f"{segment({**shape.header, 'alg': alg})}.{segment(shape.claims)}"
        scheme = get_default_algorithms()[str(shape.header["alg"])]
        assert_refused(
            f"{message}.{b64(scheme.sign(message.encode(), key_of(shape)))}", shape.issuer
        )


def test_trivial_ecdsa_signatures_are_refused() -> None:
    # CVE-2022-21449: r = s = 0 and its relatives.
    shape = SHAPES["Supabase"]
    message = shape.token().rpartition(".")[0]
    n = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    for r, s in ((0, 0), (1, 0), (0, 1), (1, 1), (n, n), (n, 0), (n - 1, n - 1)):
        raw = r.to_bytes(32, "big") + s.to_bytes(32, "big")
        assert_refused(f"{message}.{b64(raw)}", shape.issuer)


# RFC 8725, sections 3.8 to 3.10: keys come from the set, never from the token.


READ_OTHERWISE: list[dict[str, object]] = [
    {"crit": []}, {"crit": ["exp"]}, {"crit": None}, {"b64": True}, {"b64": False, "crit": ["b64"]},
    {"zip": "DEF"}, {"enc": "A128GCM"},
]  # fmt: skip


@NAMES
def test_a_header_that_changes_how_the_token_is_read_is_refused(name: str) -> None:
    for member in READ_OTHERWISE:
        with case(member):
            assert_refused(SHAPES[name].token(header=member), SHAPES[name].issuer)


@NAMES
def test_header_members_that_are_not_critical_are_ignored(name: str) -> None:
    # RFC 7515, section 4. None of them is a key that is used: see the foreign key above.
    members = {"x5t": "AA", "jku": "https://attacker.example/keys", "cat": "cl_B7", "": ""}
    assert accepts(SHAPES[name].token(header=members), SHAPES[name].issuer)


KIDS: list[object] = [
    "", "k1 ", "k1\x00", "../../../../dev/null", "file:///etc/passwd", "https://attacker.example/k1",
    "x' UNION SELECT 'secret' --", "%00", "\ud800", "ｋ1", "k" * 5000, None, 0, 1, 1.5, True, [], ["k1"], {"k": 1},
]  # fmt: skip


@NAMES
def test_a_hostile_key_id_finds_nothing(name: str) -> None:
    for kid in KIDS:
        assert_refused(SHAPES[name].token(header={"kid": kid}), SHAPES[name].issuer)
    header = {member: value for member, value in SHAPES[name].header.items() if member != "kid"}
    assert_refused(sign(header, SHAPES[name].claims), SHAPES[name].issuer)


# RFC 8725, section 3.11: explicit typing.


OTHER_TYPES: list[object] = [
    "at+jwt ", " at+jwt", "at jwt", "", "JWT ", "dpop+jwt", "logout+jwt", "id+jwt", "JOSE", "SAML", None, 1,
    True, ["JWT"], {"JWT": 1},
]  # fmt: skip


@NAMES
def test_every_other_type_is_refused(name: str) -> None:
    for typ in OTHER_TYPES:
        with case(typ):
            assert_refused(SHAPES[name].token(header={"typ": typ}), SHAPES[name].issuer)


# RFC 8725, section 2.4 and RFC 7515, section 4: duplicate members.


@NAMES
def test_a_member_given_twice_is_refused(name: str) -> None:
    shape = SHAPES[name]
    header, claims = json.dumps(shape.header), json.dumps(shape.claims)
    for member, value in shape.claims.items():
        for again in (value, "bob"):
            twice = f"{claims[:-1]}, {json.dumps(member)}: {json.dumps(again)}}}"
            assert_refused(sign(shape.header, twice), shape.issuer)
    for member, value in shape.header.items():
        twice = f"{header[:-1]}, {json.dumps(member)}: {json.dumps(value)}}}"
        assert_refused(sign(twice, shape.claims), shape.issuer)


# RFC 7519, section 4.1: odd types and sizes in every claim that is read.

ODD: list[object] = [
    None, True, False, -1, 1e300, 253_402_300_800, 2**64, -(2**63), 10**400, float("nan"), math.inf, "", "0",
    str(T), "2026-05-01T12:00:00Z", "ann\x00", "ann\n", "\ud800", "\u202eann", "\u200b", "a" * 256,
    [], [T], ["ann"], {}, {"ann": "ann"}, [[]], [None],
]  # fmt: skip
HARMLESS = {"0", str(T), "2026-05-01T12:00:00Z"}


@NAMES
def test_odd_values_of_claims_are_refused(name: str) -> None:
    shape = SHAPES[name]
    for claim in ("iss", "sub", "iat", "exp", shape.audience):
        for value in ODD:
            if claim == "sub" and (value in HARMLESS if isinstance(value, str) else False):
                continue
            if claim == "sub" and name == "Okta, access":
                continue  # Its subject is `uid`.
            assert_refused(sign(shape.header, {**shape.claims, claim: value}), shape.issuer)


@NAMES
def test_claims_that_are_no_object_are_refused(name: str) -> None:
    for claims in ["[]", '"ann"', "1", "null", "", "{", "{}", "[{}]", "{'sub': 'x'}"]:
        with case(claims):
            assert_refused(sign(SHAPES[name].header, claims), SHAPES[name].issuer)
            assert_refused(sign(claims, SHAPES[name].claims), SHAPES[name].issuer)


# RFC 7515, section 2 and RFC 4648, section 3.5: one token has one spelling.


@NAMES
def test_a_segment_spelt_otherwise_is_refused(name: str) -> None:
    for index in [0, 1, 2]:
        with case(index):
            segments = SHAPES[name].token().split(".")
            part = segments[index]
            for other in (part + "=", part + "A", part[:-1], "", part + "\n", part[:4] + " " + part[4:],
                          part[:4] + "=" + part[4:], part + "\x00", part.upper(), "Ａ" + part[1:]):  # fmt: skip
                assert_refused(
                    ".".join([*segments[:index], other, *segments[index + 1 :]]),
                    SHAPES[name].issuer,
                )


@NAMES
def test_a_flipped_character_anywhere_is_refused(name: str) -> None:
    text, issuer = SHAPES[name].token(), SHAPES[name].issuer
    for position in range(0, len(text), 7):
        other = "A" if text[position] != "A" else "B"
        assert_refused(text[:position] + other + text[position + 1 :], issuer)
        assert_refused(text[:position], issuer)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(list(SHAPES)), st.data(), json_values)
def test_any_json_in_a_claim_is_refused_or_taken_literally(
    name: str, data: st.DataObject, value: object
) -> None:
    shape = SHAPES[name]
    claim = data.draw(st.sampled_from(list(shape.claims)))
    text = sign(shape.header, {**shape.claims, claim: value})
    try:
        verified = shape.issuer.authenticate(parsed(text), NOW)
    except CredentialRefused:
        return
    if verified is None:
        assert claim == "iss"
        return
    assert isinstance(verified.subject, ExternalIdentity)
    assert verified.subject.issuer in shape.issuer.names
    assert NOW.timestamp() < verified.expires_at.timestamp()
