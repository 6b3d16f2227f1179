"""Attacks on login tokens, by the sections of RFC 8725 (JWT Best Current Practices) and RFC 7519 they are about.

Every one of them is refused with the same `token_invalid`, whichever check it fails, and raises nothing else. Attacks on what a
verifier decides meet the application's own profile with each algorithm, and the tokens of identity providers that differ in what
is attacked. Those on the format of a token meet one profile: a token is parsed before any issuer gets it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import string
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import get_default_algorithms
from tests.cases import case, refused_with
from tests.core.support import (
    AUDIENCE,
    ISSUER,
    NOW,
    World,
    b64,
    message_of,
    parsed,
    profile,
    sign,
    signing_key,
    token,
    valid_claims,
    valid_header,
)
from tests.tokens.provider import public_jwk
from tests.tokens.shapes import EC_KEY, RSA_KEY, SHAPES, Shape, differing
from tests.tokens.test_signing import ALGORITHMS, public_bytes

from msk_auth import ExternalIdentity, Owner, SigningKey, TokenProfile, require_interactive
from msk_auth.errors import CredentialRefused, InteractiveRequired
from msk_auth.tokens import AlgorithmName
from msk_auth.tokens.issuers import ExternalIssuer, PinnedKeySet, Provider

T = int(NOW.timestamp())
TOKENS = {
    algorithm: profile(signing_key(algorithm)).issue(
        subject="ann", session_id="s1", now=NOW, lifetime=timedelta(hours=1)
    )
    for algorithm in ALGORITHMS
}


def assert_refused(
    text: str, verifier: TokenProfile | Callable[[str], object] | None = None
) -> None:
    """Refused by a profile, or by what verifies a target's token."""
    with refused_with("token_invalid") as refused:
        if verifier is None or isinstance(verifier, TokenProfile):
            (verifier or profile()).verify(text, NOW)
        else:
            verifier(text)
    assert refused.value.detail == CredentialRefused("token_invalid").detail
    assert refused.value.key_id is None


def accepts(text: str, verifier: TokenProfile | None = None) -> bool:
    return (verifier or profile()).verify(text, NOW).subject == "ann"


def segment(members: object) -> str:
    return b64(json.dumps(members).encode())


@dataclass(frozen=True)
class Target:
    """What verifies tokens, with a token that it accepts.

    Attributes:
        header: That of the token.
        claims: Those of the token.
        sign: Signs with the key of the token.
        key: The private key behind it; None where the key is a secret.
        verify: Raises where it does not accept a token.
    """

    header: Mapping[str, object]
    claims: Mapping[str, object]
    sign: Callable[[bytes], bytes]
    key: Any
    verify: Callable[[str], object]

    def token(
        self,
        header: Mapping[str, object] | str | None = None,
        claims: Mapping[str, object] | str | None = None,
    ) -> str:
        """The token with another header or other claims, as objects or as raw JSON; the signature is right."""
        message = message_of(
            self.header if header is None else header, self.claims if claims is None else claims
        )
        return f"{message}.{b64(self.sign(message.encode()))}"

    def refuses(self, text: str) -> None:
        assert_refused(text, self.verify)


def own(algorithm: AlgorithmName) -> Target:
    key = signing_key(algorithm)
    private = None if algorithm == "HS256" else load_pem_private_key(key.export(), None)
    return Target(
        valid_header(key),
        valid_claims(),
        key.sign,
        private,
        lambda text: profile(key).verify(text, NOW),
    )


def of_provider(shape: Shape) -> Target:
    algorithm = str(shape.header["alg"])
    key = EC_KEY if algorithm == "ES256" else RSA_KEY
    scheme = get_default_algorithms()[algorithm]

    def verify(text: str) -> None:
        # Where the issuer cannot be read any more, the token is not taken for the issuer's: it ends in the same error.
        if shape.issuer.authenticate(parsed(text), NOW) is None:
            raise CredentialRefused("token_invalid")

    return Target(
        shape.header, shape.claims, lambda message: scheme.sign(message, key), key, verify
    )


# What a header may have is the same for all providers but for `typ`. Supabase signs with another algorithm.
OF_PROVIDERS = {name: of_provider(SHAPES[name]) for name in (*differing("types"), "Supabase")}
TARGETS = {
    **{f"own {algorithm}": own(algorithm) for algorithm in ALGORITHMS},
    **OF_PROVIDERS,
}
EACH_TARGET = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
ATTACKER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
ATTACKERS: dict[str, Any] = {
    "HS256": bytes(range(32)),
    "RS256": ATTACKER,
    "PS256": ATTACKER,
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "ES384": ec.generate_private_key(ec.SECP384R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}


@EACH_TARGET
def test_the_unchanged_token_is_accepted(target: Target) -> None:
    target.verify(target.token())


# RFC 8725, section 3.1 and 3.2: the algorithm is the key's, not the token's.


NO_ALGORITHM: list[object] = [
    "none", "None", "NONE", "nOnE", "noNe", "none ", " none", "", None, False, 0, [], {}, ["HS256"], ["RS256"],
]  # fmt: skip


@EACH_TARGET
def test_no_algorithm_is_no_algorithm(target: Target) -> None:
    for alg in NO_ALGORITHM:
        header = {**target.header, "alg": alg}
        with case(alg):
            for signature in ("", "AA", "bm9uZQ"):
                target.refuses(f"{segment(header)}.{segment(target.claims)}.{signature}")
            target.refuses(target.token(header))


@EACH_TARGET
def test_a_token_without_its_signature_is_refused(target: Target) -> None:
    header, claims, _ = target.token().split(".")
    for text in (f"{header}.{claims}.", f"{header}.{claims}", f"{header}..", f".{claims}.", ".."):
        target.refuses(text)


def public_key_forms(key: Any) -> list[bytes]:
    public, jwk = key.public_key(), public_jwk(key)
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return [
        pem,
        pem.strip(),
        pem.replace(b"\n", b""),
        pem.replace(b"\n", b"\r\n"),
        b"".join(pem.splitlines()[1:-1]),
        der,
        base64.b64encode(der),
        public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH),
        json.dumps(jwk).encode(),
        json.dumps(jwk, separators=(",", ":"), sort_keys=True).encode(),
        *(str(value).encode() for value in jwk.values()),
        hashlib.sha512(pem).digest(),
        b"",
    ]


@EACH_TARGET
def test_the_public_key_is_no_hmac_secret_in_any_encoding(target: Target) -> None:
    # RFC 8725, section 2.1.
    secrets = [] if target.key is None else public_key_forms(target.key)
    for claimed in ("HS256", "HS384", "HS512"):
        for header in (target.header, {**target.header, "alg": claimed}):
            message = message_of(header, target.claims)
            for secret in secrets:
                with case(claimed, header, secret):
                    tag = hmac.digest(secret, message.encode(), "sha" + claimed[2:])
                    target.refuses(f"{message}.{b64(tag)}")


@EACH_TARGET
def test_a_foreign_key_under_the_same_id_is_refused(target: Target) -> None:
    for algorithm, key in ATTACKERS.items():
        scheme = get_default_algorithms()[algorithm]
        for alg in (algorithm, target.header["alg"]):
            jwk = {"kty": "oct", "k": b64(key)} if isinstance(key, bytes) else public_jwk(key)
            for more in ({}, {"jwk": jwk}, {"jku": "https://attacker.example/keys"}):
                header = {**target.header, "alg": alg, **more}
                message = message_of(header, target.claims)
                with case(algorithm, alg, more):
                    target.refuses(f"{message}.{b64(scheme.sign(message.encode(), key))}")


@EACH_TARGET
def test_the_right_key_under_another_algorithms_name_is_refused(target: Target) -> None:
    # The signed header names it, and the signature is of another algorithm.
    for alg in [
        "RS384",
        "PS256",
        "PS512",
        "ES384",
        "HS512",
        "Ed448",
        "rs256",
        "es256",
        "hs256",
        "RSA",
    ]:
        with case(alg):
            target.refuses(target.token({**target.header, "alg": alg}))


def test_both_names_of_one_algorithm_are_accepted() -> None:
    # RFC 8037, RFC 9864.
    target = TARGETS["own Ed25519"]
    target.verify(target.token({**target.header, "alg": "EdDSA"}))


def test_each_key_of_a_ring_keeps_to_its_own_algorithm() -> None:
    es, hs = signing_key("ES256", "es"), signing_key("HS256", "hs")
    ring = profile(es, hs)
    assert accepts(sign(valid_header(hs), valid_claims(), hs), ring)
    assert_refused(sign(valid_header(hs, kid="es"), valid_claims(), hs), ring)
    assert_refused(sign(valid_header(es, kid="hs"), valid_claims(), es), ring)


@pytest.mark.parametrize("name", ["own ES256", "Supabase"])
def test_trivial_ecdsa_signatures_are_refused(name: str) -> None:
    # CVE-2022-21449: r = s = 0 and its relatives.
    message = TARGETS[name].token().rpartition(".")[0]
    n = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    for r, s in ((0, 0), (1, 0), (0, 1), (1, 1), (n, n), (n, 0), (n - 1, n - 1)):
        raw = r.to_bytes(32, "big") + s.to_bytes(32, "big")
        TARGETS[name].refuses(f"{message}.{b64(raw)}")


# RFC 8725, sections 3.8 to 3.10: keys come from the ring or the set, never from the token.


READ_OTHERWISE: list[dict[str, object]] = [
    {"crit": []}, {"crit": ["exp"]}, {"crit": None}, {"b64": True}, {"b64": False, "crit": ["b64"]},
    {"zip": "DEF"}, {"enc": "A128GCM"},
]  # fmt: skip


@EACH_TARGET
def test_a_header_that_changes_how_the_token_is_read_is_refused(target: Target) -> None:
    for member in READ_OTHERWISE:
        with case(member):
            target.refuses(target.token({**target.header, **member}))


OTHER_MEMBERS: list[dict[str, object]] = [
    {"jwk": {"kty": "oct", "k": "AA"}}, {"jku": "https://attacker.example/keys"},
    {"x5u": "https://attacker.example/cert"}, {"x5c": ["AAAA"]}, {"x5t": "AAAA"}, {"cty": "JWT"}, {"iss": ISSUER},
    {"": ""},
]  # fmt: skip


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_applications_tokens_have_no_other_member_in_their_header(
    algorithm: AlgorithmName,
) -> None:
    target = TARGETS[f"own {algorithm}"]
    for member in [*OTHER_MEMBERS, {"jwk": signing_key(algorithm).jwk()}]:
        with case(member):
            target.refuses(target.token({**target.header, **member}))
    for missing in target.header:
        with case(missing):
            others = {name: value for name, value in target.header.items() if name != missing}
            target.refuses(target.token(others))


def test_header_members_that_are_not_critical_are_ignored() -> None:
    # RFC 7515, section 4. None of them is a key that is used: see the foreign key above.
    members = {"x5t": "AA", "jku": "https://attacker.example/keys", "cat": "cl_B7", "": ""}
    for target in OF_PROVIDERS.values():
        target.verify(target.token({**target.header, **members}))


KIDS: list[object] = [
    "", "k1 ", "K1", "k1\x00", "k1\n", "k2", "../../../../dev/null", "/dev/null", "file:///etc/passwd",
    "https://attacker.example/k1", "k1' OR '1'='1", "x' UNION SELECT 'secret' --", "k1; cat /etc/passwd",
    "${jndi:ldap://attacker.example}", "%00", "\x00", "\u0000k1", "\ud800", "ｋ1", "k" * 5000, None, 0, 1, 1.5, True,
    [], ["k1"], {"k1": "k1"},
]  # fmt: skip


@EACH_TARGET
def test_a_hostile_key_id_finds_nothing(target: Target) -> None:
    for kid in KIDS:
        header = {**target.header, "kid": kid}
        message = message_of(header, target.claims)
        with case(kid):
            target.refuses(target.token(header))
            # Signed as if the id had found an empty file.
            target.refuses(f"{message}.{b64(hmac.digest(bytes(32), message.encode(), 'sha256'))}")
    others = {name: value for name, value in target.header.items() if name != "kid"}
    target.refuses(target.token(others))


# RFC 8725, section 3.11; RFC 9068, section 4: explicit typing.


OTHER_TYPES: list[object] = [
    "at+jwt ", " at+jwt", "at jwt", "", "JWT ", "dpop+jwt", "logout+jwt", "id+jwt", "JOSE", "SAML", None, 1, True,
    ["at+jwt"], ["JWT"], {"JWT": 1},
]  # fmt: skip


@EACH_TARGET
def test_every_other_type_is_refused(target: Target) -> None:
    for typ in OTHER_TYPES:
        with case(typ):
            target.refuses(target.token({**target.header, "typ": typ}))


@pytest.mark.parametrize("typ", ["JWT", "jwt", "AT+JWT", "At+Jwt", "application/at+jwt"])
def test_the_type_of_the_applications_tokens_has_one_spelling(typ: str) -> None:
    assert_refused(sign(valid_header(typ=typ), valid_claims()))


# RFC 8725, section 2.4 and RFC 7515, section 4: duplicate members mean different things to different readers.


def once_more(members: dict[str, object], name: str, value: object) -> str:
    """The JSON of `members` with one more member at its end."""
    return f"{json.dumps(members)[:-1]}, {json.dumps(name)}: {json.dumps(value)}}}"


@pytest.mark.parametrize("name", ["alg", "kid", "typ"])
def test_a_header_member_given_twice_is_refused(name: str) -> None:
    header = valid_header()
    assert_refused(sign(once_more(header, name, header[name]), valid_claims()))
    assert_refused(sign(once_more(header, name, "none"), valid_claims()))


@pytest.mark.parametrize("name", list(valid_claims()))
def test_a_claim_given_twice_is_refused(name: str) -> None:
    claims = valid_claims()
    assert_refused(sign(valid_header(), once_more(claims, name, claims[name])))
    assert_refused(sign(valid_header(), once_more(claims, name, "bob")))


@pytest.mark.parametrize(
    "extra",
    [
        '"x": {"a": 1, "a": 1}',
        '"x": [[{"a": 1, "b": {"c": 1, "c": 2}}]]',
        r'"sub": "ann", "\u0073ub": "bob"',
        r'"x": {"a": 1, "\u0061": 2}',
    ],
)
def test_duplicates_are_found_nested_and_escaped(extra: str) -> None:
    claims = json.dumps(valid_claims(sub=None))[:-1]
    assert_refused(sign(valid_header(), f'{claims}, "sub": "ann", {extra}}}'))
    assert accepts(sign(valid_header(), f'{claims}, "sub": "ann", "x": {{"a": 1}}}}'))


# RFC 7519, section 4.1: odd types and sizes in every registered claim.

ODD: list[object] = [
    None, True, False, 0, 1, -1, 1.0, 1.5, -0.0, 1e300, 2**31, 253_402_300_800, 2**53, 2**63, 2**64, -(2**63),
    10**400, float("nan"), float("inf"), float("-inf"), "", " ", "0", "1", str(T), f"{T}.0",
    "2026-05-01T12:00:00Z", "ann\x00", "ann\n", "\ud800", "\u202eann", "\u200b", "a" * 256,
    [], [T], ["ann"], {}, {"ann": "ann"}, [[]], [None],
]  # fmt: skip


@pytest.mark.parametrize("name", ["iat", "exp", "auth_time", "nbf"])
def test_a_moment_that_is_no_whole_number_of_seconds_is_refused(name: str) -> None:
    for value in ODD:
        with case(value):
            # 0 and 1 are moments: the login may be old, and the start of validity too.
            if type(value) is int and value in {0, 1} and name in {"auth_time", "nbf"}:
                assert accepts(sign(valid_header(), {**valid_claims(), name: value}))
            else:
                assert_refused(sign(valid_header(), {**valid_claims(), name: value}))


def test_a_moment_spelt_as_a_fraction_is_refused() -> None:
    claims = json.dumps(valid_claims(auth_time=None))[:-1]
    for number in (f"{T}.0", f"{T}e0", f"{T}.5", "1e999", "-1e999", f"{T / 1e9}e9"):
        with case(number):
            assert_refused(sign(valid_header(), f'{claims}, "auth_time": {number}}}'))


def test_what_is_no_number_of_json_is_refused() -> None:
    claims = json.dumps(valid_claims())[:-1]
    for number in ("1" * 5000, "0x10", "+1", "01", "1_000", "NaN", "Infinity", "٣"):
        with case(number):
            assert_refused(sign(valid_header(), f'{claims}, "x": {number}}}'))


@pytest.mark.parametrize("name", ["sub", "jti", "sid"])
def test_text_that_is_none_or_cannot_be_stored_is_refused(name: str) -> None:
    for value in ODD:
        with case(value):
            text = sign(valid_header(), {**valid_claims(sub="ann"), name: value})
            harmless = {" ", "0", "1", str(T), f"{T}.0", "2026-05-01T12:00:00Z"}
            if isinstance(value, str) and value in harmless:
                assert profile().verify(text, NOW).interactive is True
            else:
                assert_refused(text)


@pytest.mark.parametrize("name", ["iss", "aud"])
def test_an_odd_issuer_or_audience_is_refused(name: str) -> None:
    for value in ODD:
        with case(value):
            assert_refused(sign(valid_header(), {**valid_claims(), name: value}))


# Providers may write moments as fractions, and other values of these that are old or far away.
ODD_FOR_PROVIDERS = [
    None,
    True,
    -1,
    1e300,
    10**400,
    math.inf,
    "",
    "ann\x00",
    "a" * 256,
    [],
    [None],
    {},
]


@pytest.mark.parametrize("name", differing("subject", "audience", "authenticated_at"))
def test_odd_values_of_a_providers_claims_are_refused(name: str) -> None:
    shape, target = SHAPES[name], of_provider(SHAPES[name])
    # The subject of Okta's access tokens is `uid`.
    subject = "uid" if name == "Okta, access" else "sub"
    for claim in ("iss", subject, "iat", "exp", shape.audience):
        for value in ODD_FOR_PROVIDERS:
            with case(claim, value):
                target.refuses(target.token(claims={**shape.claims, claim: value}))


@pytest.mark.parametrize("missing", ["iss", "aud", "sub", "iat", "exp", "jti", "auth_time"])
def test_a_token_without_a_required_claim_is_refused(missing: str) -> None:
    assert_refused(token(**{missing: None}))


def test_a_session_is_optional_and_never_null() -> None:
    assert accepts(token(sid=None))
    assert_refused(sign(valid_header(), {**valid_claims(), "sid": None}))


def test_claims_that_are_no_object_are_refused() -> None:
    for claims in (
        "[]",
        '"ann"',
        "1",
        "null",
        "true",
        "",
        " ",
        "{",
        "{}",
        "[{}]",
        "{'sub': 'ann'}",
        "{]",
    ):
        with case(claims):
            assert_refused(sign(valid_header(), claims))
            assert_refused(sign(claims, valid_claims()))


# RFC 7515, section 2 and RFC 4648, section 3.5: one token has one spelling.


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_segment_spelt_otherwise_is_refused(index: int) -> None:
    segments = token().split(".")
    part = segments[index]

    def with_part(other: str) -> str:
        return ".".join([*segments[:index], other, *segments[index + 1 :]])

    for other in (
        part + "=",
        part + "==",
        part + "A",
        part + "AAAA",
        part[:-1],
        "",
        part + "\n",
        "\n" + part,
        part[:4] + "\n" + part[4:],
        part[:4] + " " + part[4:],
        part[:4] + "\r\n" + part[4:],
        part[:4] + "=" + part[4:],
        part + "\x00",
        part[:4] + "%2B" + part[4:],
        part.upper(),
        "Ａ" + part[1:],
    ):
        assert_refused(with_part(other))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_signature_has_no_second_spelling(algorithm: AlgorithmName) -> None:
    verifier = profile(signing_key(algorithm))
    message, _, signature = TOKENS[algorithm].rpartition(".")
    raw = base64.urlsafe_b64decode(signature + "==")
    alphabet = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
    spellings = [
        other
        for last in alphabet
        if (other := signature[:-1] + last) != signature
        and base64.urlsafe_b64decode(other + "==") == raw
    ]
    assert spellings
    for other in spellings:
        assert_refused(f"{message}.{other}", verifier)


def test_the_alphabet_with_plus_and_slash_is_refused() -> None:
    # Only claims that contain both characters show it.
    text = sign(valid_header(), valid_claims(x="???>>>~~~"))
    header, claims, signature = text.split(".")
    assert {"-", "_"} & set(claims)
    assert accepts(text)
    other = claims.replace("-", "+").replace("_", "/")
    mac = b64(signing_key().sign(f"{header}.{other}".encode()))
    assert_refused(f"{header}.{other}.{mac}")
    assert_refused(f"{header}.{other}.{signature}")


def test_other_serialisations_are_refused() -> None:
    # RFC 7516, section 3.1 (JWE, five segments) and RFC 7515, section 7.2 (JSON).
    header, claims, signature = token().split(".")
    jws = {"payload": claims, "protected": header, "signature": signature}
    general = {"payload": claims, "signatures": [{"protected": header, "signature": signature}]}
    for text in (
        f"{token()}.{header}.{signature}",
        f"{header}.{header}.{claims}.{signature}.{signature}",
        json.dumps(jws),
        json.dumps(general),
        b64(json.dumps(jws).encode()),
        f"{header}.{token()}.{signature}",
        f".{token()}",
        f"{token()}.",
        f"{token()},{token()}",
        f" {token()}",
        # Not three segments of JSON
        *("", ".", "..", "...", "a", "a.b", "a.b.c", "a.b.c.d", "\ud800.a.b"),
    ):
        with case(text):
            assert_refused(text)


# RFC 8259, section 8.1; RFC 8725, section 3.7: UTF-8 and nothing before it.


def sign_raw(claims: bytes) -> str:
    message = f"{segment(valid_header())}.{b64(claims)}"
    return f"{message}.{b64(signing_key().sign(message.encode()))}"


def test_other_encodings_of_the_claims_are_refused() -> None:
    text = json.dumps(valid_claims())
    assert accepts(sign_raw(text.encode()))
    for encoding in ("utf-8-sig", "utf-16", "utf-16-le", "utf-32", "utf-7"):
        raw = text.encode(encoding)
        if raw != text.encode():
            assert_refused(sign_raw(raw))
    assert_refused(sign_raw(b"\xff" + text.encode()))
    assert_refused(sign_raw(text.replace("ann", "\x00nn").encode()))
    assert_refused(sign_raw(text.encode().replace(b"ann", b"\xc0\x80")))
    assert_refused(sign_raw(text.encode().replace(b"ann", b"\xed\xa0\x80")))
    assert_refused(sign_raw(text.encode() + b"{}"))
    assert_refused(sign_raw(text.encode() + b"\x00"))


# RFC 8725, section 3.12 and ASVS 5.0, 1.5.2: bounded work for hostile sizes.


def test_a_token_longer_than_the_limit_is_refused_before_it_is_read() -> None:
    longest = token(x="a" * 5000)
    padding = (16_384 - len(longest)) * 3 // 4
    for extra in range(padding - 4, padding + 8):
        text = token(x="a" * (5000 + extra))
        if len(text) <= 16_384:
            assert accepts(text)
        else:
            assert_refused(text)
    huge = "a." * 50_000_000
    start = time.thread_time()
    assert_refused(huge)
    assert time.thread_time() - start < 1


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_deep_nesting_within_the_limit_is_refused(opening: str) -> None:
    depth = 5900 // len(opening)
    for text in (sign(valid_header(), opening * depth), sign(opening * depth, valid_claims())):
        assert_refused(text[:8192])
        assert_refused(text)


@pytest.mark.parametrize("opening", ["[", '{"a":'])
@pytest.mark.parametrize("depth", [32, 33, 500])
def test_at_most_32_values_of_a_segment_are_within_each_other(opening: str, depth: int) -> None:
    closing = "]" if opening == "[" else "}"
    value = opening * (depth - 1) + "7" + closing * (depth - 1)
    # One more bracket, beside them: without it, 32 would not be counted.
    claims = json.dumps(valid_claims())[:-1] + f', "x": {value}, "y": []}}'
    header = json.dumps(valid_header())[:-1] + f', "x": {value}, "y": []}}'
    assert depth != 500 or opening != "[" or 1600 < len(sign(valid_header(), claims)) < 1800
    if depth == 32:
        assert accepts(sign(valid_header(), claims))
        assert parsed(sign(header, claims)).header["alg"] == "HS256"
    else:
        assert_refused(sign(valid_header(), claims))
        with refused_with("token_invalid"):
            parsed(sign(header, claims))


def test_brackets_side_by_side_and_in_text_do_not_count_as_depth() -> None:
    assert accepts(sign(valid_header(), valid_claims(x=[[[]]] * 200, y="[{" * 200)))


def test_digits_without_end_are_refused_quickly() -> None:
    start = time.thread_time()
    assert_refused(sign(valid_header(), f'{{"x": {"9" * 6000}}}'))
    assert time.thread_time() - start < 0.5


# Every single change, everywhere.


@pytest.mark.parametrize("algorithm", ["HS256", "ES256", "Ed25519"])
def test_every_character_of_a_token_matters(algorithm: AlgorithmName) -> None:
    text, verifier = TOKENS[algorithm], profile(signing_key(algorithm))
    for position, character in enumerate(text):
        for other in "A_9.=é":
            if other != character:
                assert_refused(text[:position] + other + text[position + 1 :], verifier)
        assert_refused(text[:position] + text[position + 1 :], verifier)
        assert_refused(text[:position], verifier)


@given(st.text())
def test_no_text_is_taken_for_a_token(text: str) -> None:
    assert_refused(text)
    assert_refused(f"{segment(valid_header())}.{text}")
    assert_refused(f"{segment(valid_header())}.{segment(valid_claims())}.{text}")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(list(valid_claims())), json_values)
def test_any_json_in_a_claim_is_refused_or_taken_literally(name: str, value: object) -> None:
    text = sign(valid_header(), {**valid_claims(), name: value})
    try:
        verified = profile().verify(text, NOW)
    except CredentialRefused:
        return
    assert name != "iss" or value == ISSUER
    assert name != "aud" or value == AUDIENCE or (isinstance(value, list) and AUDIENCE in value)
    assert name != "sub" or verified.subject == value
    assert verified.authenticated_at is not None
    assert verified.expires_at is not None
    assert verified.authenticated_at <= NOW < verified.expires_at


@given(st.sampled_from(list(SHAPES)), st.data(), json_values)
def test_any_json_in_a_providers_claim_is_refused_or_taken_literally(
    name: str, data: st.DataObject, value: object
) -> None:
    shape = SHAPES[name]
    claim = data.draw(st.sampled_from(list(shape.claims)))
    text = of_provider(shape).token(claims={**shape.claims, claim: value})
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


# A machine's token where a person is demanded (RFC 8725, section 3.12: kinds of JWT must not be interchangeable).


def external_issuer(rule: Any) -> dict[str, Any]:
    issuer = ExternalIssuer(
        Provider.OIDC,
        "https://ci.example",
        audience=AUDIENCE,
        grants=None,
        interactive=rule,
        keys=PinnedKeySet({"keys": [signing_key("ES256").jwk()]}),
    )
    return {
        "tokens": profile(),
        "issuers": [issuer],
        "find_external_owner": lambda identity: Owner(identity.subject, {"tasks:read"}, None),
    }


@pytest.mark.parametrize(
    "options",
    [
        {
            "tokens": [
                profile(),
                profile(
                    SigningKey("k1", "ES256", public_bytes(signing_key("ES256"))),
                    issuer="https://ci.example",
                ),
            ]
        },
        external_issuer(None),
        external_issuer(lambda claims: claims["client_id"] in frozenset({"web", "mobile"})),
    ],
    ids=["a profile with its public key", "no rule", "a rule that raises"],
)
def test_a_machines_token_manages_no_keys_however_it_is_exchanged(options: dict[str, Any]) -> None:
    provider = signing_key("ES256")
    world = World("sync", find_session=None, **options)
    text = sign(
        valid_header(provider),
        valid_claims(iss="https://ci.example", client_id=["web"], amr=["mfa"]),
        provider,
    )
    for _ in range(3):
        principal = world.enter(text)
        for attempt in (
            lambda: world.call("create_key", principal, name="ci"),  # noqa: B023
            lambda: require_interactive(max_age=timedelta(minutes=5)).check(principal, NOW),  # noqa: B023
        ):
            with pytest.raises(InteractiveRequired):
                attempt()
        text = profile().exchange(principal, now=NOW, lifetime=timedelta(hours=1))
