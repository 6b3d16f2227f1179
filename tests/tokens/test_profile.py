"""The JWT profile (design, section 7): what it issues, what it accepts, and where time draws the line.

The attacks on it are in `tests/security/test_jwt_attacks.py`.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import refused_with
from tests.core.support import (
    AUDIENCE,
    ISSUER,
    NOW,
    SECOND,
    b64,
    parsed,
    profile,
    sign,
    signing_key,
    token,
    valid_claims,
    valid_header,
)
from tests.tokens.test_signing import ALGORITHMS, public_bytes

from msk_auth import CredentialKind, Owner, Principal, SigningKey, TokenProfile
from msk_auth.core.tokens import VerifiedToken
from msk_auth.errors import ConfigurationError, InteractiveRequired, LoginTooOld
from msk_auth.tokens import AlgorithmName

HOUR = timedelta(hours=1)
T = int(NOW.timestamp())


def refused(text: str, at: datetime = NOW, **options: Any) -> str:
    with refused_with("token_invalid", "token_expired") as problem:
        profile(**options).verify(text, at)
    assert problem.value.status == 401
    assert problem.value.challenge() == {"error": "invalid_token"}
    return problem.value.code


# Issuing.


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_issued_token_is_accepted_with_all_its_claims(algorithm: AlgorithmName) -> None:
    issuer = profile(signing_key(algorithm))
    logged_in = NOW - timedelta(minutes=5)
    issued = issuer.issue(
        subject="ann", now=NOW, lifetime=HOUR, authenticated_at=logged_in, session_id="s1"
    )
    verified = issuer.verify(issued, NOW)
    assert (verified.subject, verified.session_id) == ("ann", "s1")
    assert verified.expires_at == NOW + HOUR
    assert verified.authenticated_at == logged_in
    assert verified.interactive is True
    claims = parsed(issued).claims
    assert (claims["iss"], claims["aud"], claims["iat"]) == (ISSUER, AUDIENCE, T)


def test_a_token_without_a_session_and_with_a_login_just_now() -> None:
    claims = profile().verify(profile().issue(subject="ann", now=NOW, lifetime=HOUR), NOW)
    assert claims.session_id is None
    assert claims.authenticated_at == NOW


def test_every_issued_token_has_an_id_of_its_own_of_128_bits() -> None:
    tokens = [profile().issue(subject="a", now=NOW, lifetime=HOUR) for _ in range(100)]
    ids = {str(parsed(token).claims["jti"]) for token in tokens}
    assert (len(ids), {len(each) for each in ids}) == (100, {22})


def test_moments_are_cut_to_whole_seconds_so_that_nothing_lies_in_the_future() -> None:
    now = NOW + timedelta(microseconds=999_999)
    issued = profile().issue(subject="ann", now=now, lifetime=HOUR)
    verified = profile().verify(issued, now)
    assert verified.authenticated_at == NOW
    assert verified.expires_at == NOW + HOUR
    assert parsed(issued).claims["iat"] == T


def test_the_newest_key_signs_older_ones_verify_and_retired_ones_refuse() -> None:
    old, new = signing_key("HS256", "k1"), signing_key("ES256", "k2")
    by_old = profile(old).issue(subject="ann", now=NOW, lifetime=HOUR)
    both = profile(new, old)
    by_new = both.issue(subject="ann", now=NOW, lifetime=HOUR)
    assert jwt.get_unverified_header(by_new)["kid"] == "k2"
    assert both.verify(by_old, NOW).subject == both.verify(by_new, NOW).subject == "ann"
    assert profile(new).verify(by_new, NOW).subject == "ann"
    with refused_with("token_invalid"):
        profile(new).verify(by_old, NOW)


@pytest.mark.parametrize("lifetime", [timedelta(0), -HOUR, SECOND / 2, 24 * HOUR + SECOND])
def test_a_lifetime_out_of_range_is_not_issued(lifetime: timedelta) -> None:
    with pytest.raises(ConfigurationError, match="between 1 second and 1 day"):
        profile().issue(subject="ann", now=NOW, lifetime=lifetime)


@pytest.mark.parametrize("lifetime", [SECOND, 24 * HOUR])
def test_the_shortest_and_the_longest_lifetime_are_issued(lifetime: timedelta) -> None:
    issued = profile().issue(subject="ann", now=NOW, lifetime=lifetime)
    assert profile().verify(issued, NOW).expires_at == NOW + lifetime


@pytest.mark.parametrize("wrong", ["", "a" * 256, "a\x00b", "a\nb", "\ud800", "\u202eann"])
def test_a_subject_or_session_that_would_be_refused_is_not_issued(wrong: str) -> None:
    for options in ({"subject": wrong}, {"subject": "ann", "session_id": wrong}):
        with pytest.raises(ValueError, match="1 to 255 printable characters"):
            profile().issue(now=NOW, lifetime=HOUR, **options)


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=255).filter(str.isprintable))
def test_every_other_subject_comes_back_as_it_was(subject: str) -> None:
    issued = profile().issue(subject=subject, session_id=subject, now=NOW, lifetime=HOUR)
    claims = profile().verify(issued, NOW)
    assert claims.subject == claims.session_id == subject


def test_a_login_in_the_future_is_not_issued() -> None:
    with pytest.raises(ValueError, match="lies in the future"):
        profile().issue(subject="a", now=NOW, lifetime=HOUR, authenticated_at=NOW + SECOND)


def test_a_ring_of_public_keys_verifies_and_does_not_issue() -> None:
    key = signing_key("ES256")
    verifier = profile(SigningKey("k1", "ES256", public_bytes(key)))
    issued = profile(key).issue(subject="ann", now=NOW, lifetime=HOUR)
    assert verifier.verify(issued, NOW).subject == "ann"
    with pytest.raises(ConfigurationError, match="cannot sign"):
        verifier.issue(subject="ann", now=NOW, lifetime=HOUR)


# Time (RFC 7519, sections 4.1.4 to 4.1.6): each boundary to the second, without and with leeway.

LEEWAY = timedelta(seconds=10)
ACCEPTED = None


@pytest.mark.parametrize(
    ("leeway", "seconds", "expected"),
    [
        (timedelta(0), 3600 - 1e-6, ACCEPTED),
        (timedelta(0), 3600, "token_expired"),
        (LEEWAY, 3609, ACCEPTED),
        (LEEWAY, 3610, "token_expired"),
        (timedelta(0), 10**9, "token_expired"),
        (timedelta(0), 0, ACCEPTED),
        (timedelta(0), -1, "token_invalid"),
        (LEEWAY, -10, ACCEPTED),
        (LEEWAY, -11, "token_invalid"),
    ],
)
def test_a_token_is_accepted_from_its_issue_until_its_end(
    leeway: timedelta, seconds: float, expected: str | None
) -> None:
    at = NOW + timedelta(seconds=seconds)
    if expected is ACCEPTED:
        assert profile(leeway=leeway).verify(token(), at).subject == "ann"
    else:
        assert refused(token(), at, leeway=leeway) == expected


@pytest.mark.parametrize(
    ("leeway", "nbf", "expected"),
    [
        (timedelta(0), T, ACCEPTED),
        (timedelta(0), T + 1, "token_invalid"),
        (LEEWAY, T + 10, ACCEPTED),
        (LEEWAY, T + 11, "token_invalid"),
        (LEEWAY, 0, ACCEPTED),
    ],
)
def test_a_token_is_not_accepted_before_its_time(
    leeway: timedelta, nbf: int, expected: str | None
) -> None:
    if expected is ACCEPTED:
        assert profile(leeway=leeway).verify(token(nbf=nbf), NOW).subject == "ann"
    else:
        assert refused(token(nbf=nbf), leeway=leeway) == expected


@pytest.mark.parametrize(
    ("changes", "accepted"),
    [
        ({"auth_time": T - 10**9}, True),
        ({"auth_time": 0}, True),
        ({"auth_time": T + 1}, False),  # a login after the token that stands for it
        ({"iat": T - 10, "auth_time": T - 9}, False),
        ({"exp": T}, False),
        ({"exp": T - 1}, False),
        ({"exp": T + 1}, True),
        ({"exp": T + 86_400}, True),  # the longest lifetime
        ({"exp": T + 86_401}, False),
        ({"iat": T - 1, "exp": T + 86_400, "auth_time": T - 1}, False),
        ({"exp": 253_402_300_799}, False),
        ({"iat": 253_402_300_799, "exp": 253_402_300_799}, False),
    ],
)
def test_the_moments_of_a_token_are_in_order_and_bounded(
    changes: dict[str, object], accepted: bool
) -> None:
    # Leeway is for two clocks; these three moments are of one.
    for leeway in (timedelta(0), LEEWAY):
        if accepted:
            assert profile(leeway=leeway).verify(token(**changes), NOW).subject == "ann"
        else:
            assert refused(token(**changes), leeway=leeway) == "token_invalid"


def test_the_last_moment_there_is_overflows_nothing() -> None:
    endless = profile(max_lifetime=timedelta.max, leeway=timedelta(minutes=5))
    last = 253_402_300_799
    assert endless.verify(token(exp=last), NOW).expires_at == datetime(
        9999, 12, 31, 23, 59, 59, tzinfo=UTC
    )
    for changes in ({"iat": last, "exp": last}, {"nbf": last}, {"auth_time": last}):
        with refused_with("token_invalid"):
            endless.verify(token(**changes), NOW)


def test_only_a_token_that_is_right_otherwise_is_called_expired() -> None:
    later = NOW + 2 * HOUR
    assert refused(token(), later) == "token_expired"
    assert refused(token(aud="other"), later) == "token_invalid"
    assert refused(token(sub=""), later) == "token_invalid"
    assert refused(token() + "A", later) == "token_invalid"


# Who it is for and from (RFC 7519, sections 4.1.1 and 4.1.3).


@pytest.mark.parametrize("audience", [AUDIENCE, [AUDIENCE], ["other", AUDIENCE], [AUDIENCE] * 2])
def test_our_audience_is_found_alone_or_in_a_list(audience: object) -> None:
    assert profile().verify(token(aud=audience), NOW).subject == "ann"


# Values of other types are in `tests/security/test_jwt_attacks.py`.
@pytest.mark.parametrize(
    "changes",
    [
        *({"aud": audience} for audience in (AUDIENCE + "/", AUDIENCE.upper(), f"{AUDIENCE} other", ISSUER)),
        *({"aud": audience} for audience in (["other"], [[AUDIENCE]], [AUDIENCE, None], {AUDIENCE: True})),
        *({"iss": issuer} for issuer in (ISSUER + "/", ISSUER.upper(), [ISSUER])),
    ],
    ids=repr,
)  # fmt: skip
def test_every_other_audience_and_issuer_is_refused(changes: dict[str, object]) -> None:
    assert refused(token(**changes)) == "token_invalid"


def test_a_token_of_another_issuer_is_left_to_that_one() -> None:
    ours = profile()
    theirs = TokenProfile(
        issuer="https://login.example", audience=AUDIENCE, keys=[signing_key("ES256")]
    )
    assert (*ours.names, *theirs.names) == (ISSUER, "https://login.example")
    their_token = theirs.issue(subject="ann", now=NOW, lifetime=HOUR)
    for unknown in (their_token, token(iss="other"), token(iss=None), token(iss=[ISSUER])):
        assert ours.authenticate(parsed(unknown), NOW) is None
    verified = ours.authenticate(parsed(token()), NOW)
    assert verified == VerifiedToken("ann", NOW + HOUR, NOW, "s1", True, True)
    # Signed by one issuer in the name of the other.
    forged = sign(valid_header(signing_key("ES256")), valid_claims(), signing_key("ES256"))
    with refused_with("token_invalid"):
        ours.authenticate(parsed(forged), NOW)
    with refused_with("token_invalid"):
        ours.verify(their_token, NOW)


@pytest.mark.parametrize("claim", ["sub", "jti", "sid"])
def test_text_of_255_characters_is_the_longest(claim: str) -> None:
    assert profile().verify(token(**{claim: "a" * 255}), NOW).expires_at == NOW + HOUR
    assert refused(token(**{claim: "a" * 256})) == "token_invalid"


# Interactive or not.


def verify_only(algorithm: AlgorithmName) -> SigningKey:
    return SigningKey("k1", algorithm, public_bytes(signing_key(algorithm)))


@pytest.mark.parametrize("algorithm", ["ES256", "RS256"])
def test_what_a_public_key_verifies_was_issued_elsewhere_and_is_a_machines(
    algorithm: AlgorithmName,
) -> None:
    external = profile(verify_only(algorithm))
    signer = signing_key(algorithm)
    for more in ({}, {"client_id": "web", "amr": ["pwd"]}):
        made = sign(valid_header(signer), valid_claims(**more), signer)
        assert external.verify(made, NOW).interactive is False


@pytest.mark.parametrize(
    ("changes", "expected"), [({}, True), ({"msk_kind": "token"}, False), ({"act": {}}, False)]
)
def test_a_process_with_the_applications_own_public_keys_knows_its_logins(
    changes: dict[str, object], expected: bool
) -> None:
    signer = signing_key("ES256")
    made = sign(valid_header(signer), valid_claims(**changes), signer)
    verifier = profile(verify_only("ES256"), own_public_keys=True)
    assert verifier.verify(made, NOW).interactive is expected


def test_the_applications_own_tokens_are_logins() -> None:
    old, new = signing_key("HS256", "k1"), signing_key("ES256", "k2")
    for issuer in (profile(old), profile(new)):
        issued = issuer.issue(subject="ann", now=NOW, lifetime=HOUR)
        assert profile(new, old).verify(issued, NOW).interactive is True
    # What a key verifies that cannot sign was issued elsewhere, even if the ring can sign.
    mixed = profile(old, SigningKey("k2", "ES256", public_bytes(new)))
    theirs = profile(new).issue(subject="ann", now=NOW, lifetime=HOUR)
    assert mixed.verify(theirs, NOW).interactive is False


# Issuing for machines, and exchanging.


def principal_of(kind: CredentialKind, *, age: timedelta = timedelta(0)) -> Principal[str]:
    owner = Owner("ann", frozenset({"tasks:read"}), "Ann")
    return Principal(owner, kind, owner.permissions, NOW - age, session_id="theirs")


@pytest.mark.parametrize("interactive", [False, None, 0, 1, "yes", "True"])
def test_only_true_issues_a_login(interactive: Any) -> None:
    own = profile()
    issued = own.issue(subject="ann", now=NOW, lifetime=HOUR, interactive=interactive)
    assert own.verify(issued, NOW).interactive is False
    login = own.issue(subject="ann", now=NOW, lifetime=HOUR, interactive=True)
    assert own.verify(login, NOW).interactive is True


@pytest.mark.parametrize("mark", ["token", "api_key", "", "Interactive", None, True, [], {}, 1])
def test_a_token_with_any_other_mark_is_a_machines(mark: object) -> None:
    text = sign(valid_header(), {**valid_claims(), "msk_kind": mark})
    assert profile().verify(text, NOW).interactive is False


@pytest.mark.parametrize("kind", [CredentialKind.INTERACTIVE, CredentialKind.TOKEN])
def test_an_exchange_carries_the_kind_and_the_age_along(kind: CredentialKind) -> None:
    principal = principal_of(kind, age=timedelta(days=3))
    issued = profile().exchange(principal, now=NOW, lifetime=HOUR, session_id="s1")
    claims = profile().verify(issued, NOW)
    assert claims.interactive is (kind is CredentialKind.INTERACTIVE)
    assert claims.authenticated_at == NOW - timedelta(days=3)
    assert (claims.subject, claims.session_id, claims.expires_at) == ("ann", "s1", NOW + HOUR)


@pytest.mark.parametrize("scopes", [None, frozenset[str](), frozenset({"b", "a"})])
def test_an_exchange_carries_the_grants_along(scopes: frozenset[str] | None) -> None:
    principal = replace(principal_of(CredentialKind.TOKEN), scopes=scopes)
    issued = profile().exchange(principal, now=NOW, lifetime=HOUR)
    assert profile().verify(issued, NOW).scopes == scopes


@pytest.mark.parametrize("scopes", ["tasks:read", {"tasks:read": True}, [7]])
def test_scopes_that_are_no_set_of_strings_are_not_issued(scopes: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^scopes "):
        profile().issue(subject="ann", now=NOW, lifetime=HOUR, scopes=scopes)


@pytest.mark.parametrize("mark", [None, "a", {}, {"a": 1}, ["a", 7], [None], 7, True])
def test_grants_of_another_form_are_refused(mark: object) -> None:
    assert refused(sign(valid_header(), {**valid_claims(), "msk_scopes": mark})) == "token_invalid"


@pytest.mark.parametrize("claim", ["events", "cnf"])
def test_a_security_event_and_a_bound_token_are_no_bearers_login(claim: str) -> None:
    for value in ({"http://schemas.openid.net/event/backchannel-logout": {}}, {}, None):
        assert refused(sign(valid_header(), {**valid_claims(), claim: value})) == "token_invalid"


def test_a_token_that_another_party_uses_is_a_machines() -> None:
    for act in ({"sub": "admin"}, {}, None):
        text = sign(valid_header(), {**valid_claims(), "act": act})
        assert profile().verify(text, NOW).interactive is False


def test_an_exchange_does_not_carry_the_other_issuers_session_along() -> None:
    issued = profile().exchange(principal_of(CredentialKind.TOKEN), now=NOW, lifetime=HOUR)
    assert profile().verify(issued, NOW).session_id is None


def test_a_key_is_not_exchanged_for_a_token() -> None:
    # The token would outlive the key's revocation.
    with pytest.raises(InteractiveRequired):
        profile().exchange(principal_of(CredentialKind.API_KEY), now=NOW, lifetime=HOUR)


def test_a_login_of_unknown_age_is_not_exchanged() -> None:
    principal = replace(principal_of(CredentialKind.INTERACTIVE), authenticated_at=None)
    with pytest.raises(LoginTooOld) as refused:
        profile().exchange(principal, now=NOW, lifetime=HOUR)
    assert refused.value.max_age == profile().max_lifetime


def test_a_machines_token_that_names_no_login_is_exchanged() -> None:
    principal = replace(principal_of(CredentialKind.TOKEN), authenticated_at=None)
    issued = profile().exchange(principal, now=NOW, lifetime=HOUR)
    claims = profile().verify(issued, NOW)
    assert (claims.interactive, claims.authenticated_at) == (False, NOW)


def test_a_login_that_the_other_clock_puts_ahead_is_one_of_now() -> None:
    principal = principal_of(CredentialKind.INTERACTIVE, age=-SECOND)
    issued = profile().exchange(principal, now=NOW, lifetime=HOUR)
    assert profile().verify(issued, NOW).authenticated_at == NOW


def test_a_time_has_its_zone() -> None:
    naive = NOW.replace(tzinfo=None)
    for issue in (
        lambda: profile().exchange(principal_of(CredentialKind.TOKEN), now=naive, lifetime=HOUR),
        lambda: profile().issue(subject="u", now=naive, lifetime=HOUR),
        lambda: profile().issue(subject="u", now=NOW, authenticated_at=naive, lifetime=HOUR),
    ):
        with pytest.raises(ValueError, match="time zone"):
            issue()


# Interoperability with a library that is not ours.


@pytest.mark.parametrize("algorithm", ["HS256", "ES256", "RS256"])
def test_a_token_of_the_profile_that_another_library_made_is_accepted(
    algorithm: AlgorithmName,
) -> None:
    key = signing_key(algorithm)
    made = jwt.encode(
        valid_claims(), key.export(), algorithm=algorithm, headers={"kid": "k1", "typ": "at+jwt"}
    )
    assert profile(key).verify(made, NOW).subject == "ann"


# The set-up.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"issuer": ""}, "an issuer and an audience"),
        ({"audience": ""}, "an issuer and an audience"),
        ({"max_lifetime": timedelta(0)}, "at least one second"),
        ({"max_lifetime": -HOUR}, "at least one second"),
        ({"leeway": -SECOND}, "between 0 and 5 minutes"),
        ({"leeway": timedelta(minutes=5, seconds=1)}, "between 0 and 5 minutes"),
        ({"keys": []}, r"needs at least one key: \[SigningKey\("),
        ({"keys": [signing_key(), signing_key("ES256")]}, r"share an id: \['k1', 'k1'\]"),
    ],
)
def test_a_profile_that_cannot_be_safe_is_refused_while_starting(
    options: dict[str, Any], message: str
) -> None:
    settings = {"issuer": ISSUER, "audience": AUDIENCE, "keys": [signing_key()], **options}
    with pytest.raises(ConfigurationError, match=message):
        TokenProfile(**settings)


def test_the_shortest_longest_lifetime_works() -> None:
    brief = profile(max_lifetime=SECOND)
    assert brief.verify(brief.issue(subject="ann", now=NOW, lifetime=SECOND), NOW).subject == "ann"


def test_a_profile_publishes_the_public_keys_of_its_ring() -> None:
    assert profile().jwks() == {"keys": []}
    (jwk,) = profile(signing_key("ES256")).jwks()["keys"]
    assert jwk["kid"] == "k1"


def test_a_cached_header_does_not_make_a_token_valid() -> None:
    good = token()
    header, claims, signature = good.split(".")
    for _ in range(2):
        assert profile().verify(good, NOW).subject
        assert refused(f"{header}.{b64(b'{}')}.{signature}") == "token_invalid"
        assert refused(f"{header}.{claims}.{b64(b'x' * 32)}") == "token_invalid"
        # What cannot be read is not kept either.
        assert refused(f"{b64(b'[]')}.{claims}.{signature}") == "token_invalid"
        assert refused(f"{header}=.{claims}.{signature}") == "token_invalid"


def test_a_header_that_was_read_before_cannot_be_changed() -> None:
    first, second = parsed(token()), parsed(token())
    assert first.header == second.header == valid_header()
    with pytest.raises(TypeError, match="does not support item assignment"):
        first.header["alg"] = "none"  # type: ignore[index]
