"""Every provider's tokens are accepted as they are, by their own preset and by no other, and as what they are."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from tests.cases import case
from tests.core.support import NOW, World, result_of, token
from tests.tokens.shapes import GOOGLE_CLIENT, SHAPES, TENANT, T, jwks, sign

from msk_auth import ConfigurationError, ExternalIdentity, Owner, TokenExpired, TokenInvalid
from msk_auth.core.compact import ParsedToken
from msk_auth.core.issuer import VerifiedToken
from msk_auth.tokens.external import ExternalIssuer
from msk_auth.tokens.issuers import (
    OIDC,
    Auth0,
    Clerk,
    Cognito,
    Entra,
    Firebase,
    GitHubActions,
    GitLabCI,
    Google,
    Keycloak,
    Supabase,
)
from msk_auth.tokens.keysets import PinnedKeySet, RemoteKeySet


def verify(issuer: ExternalIssuer, token: str, at: Any = NOW) -> VerifiedToken | None:
    verified: VerifiedToken | None = result_of(issuer.authenticate(ParsedToken(token), at))
    return verified


def interactive(name: str, **changes: object) -> bool:
    verified = verify(SHAPES[name].issuer, SHAPES[name].token(**changes))
    assert verified is not None
    return verified.interactive


def refused(name: str, **changes: Any) -> type[TokenInvalid | TokenExpired]:
    with pytest.raises((TokenInvalid, TokenExpired)) as problem:
        verify(SHAPES[name].issuer, SHAPES[name].token(**changes))
    return type(problem.value)


@pytest.mark.parametrize("name", SHAPES)
def test_a_token_as_its_provider_documents_it_is_accepted(name: str) -> None:
    shape = SHAPES[name]
    verified = verify(shape.issuer, shape.token())
    assert verified is not None
    assert isinstance(verified.subject, ExternalIdentity)
    assert verified.subject.issuer == shape.claims["iss"]
    assert verified.subject.subject in {shape.claims["sub"], shape.claims.get("uid")}
    assert verified.interactive is shape.interactive
    assert (verified.session_id, verified.has_session) == (None, False)
    assert verified.expires_at.timestamp() == shape.claims["exp"]
    known = "auth_time" in shape.claims or name == "Clerk"
    assert (verified.authenticated_at is not None) is known


@pytest.mark.parametrize("name", SHAPES)
def test_no_other_preset_accepts_it(name: str) -> None:
    for other in (each for each in SHAPES if each != name):
        with case(other):
            try:
                assert verify(SHAPES[other].issuer, SHAPES[name].token()) is None
            except TokenInvalid:
                # Of the same issuer, and of another kind or audience.
                assert SHAPES[name].claims["iss"] in SHAPES[other].issuer.names


@pytest.mark.parametrize(
    ("access", "identity"),
    [
        ("Entra, access", "Entra, ID"),
        ("Okta, access", "Okta, ID"),
        ("Cognito, access", "Cognito, ID"),
    ],
)
def test_an_id_token_is_no_access_token_and_the_other_way_round(access: str, identity: str) -> None:
    # For the same audience, and by the same key: nothing but the kind distinguishes them.
    for accepting, other in ((access, identity), (identity, access)):
        shape = SHAPES[accepting]
        aud = shape.claims.get("aud", shape.claims.get("client_id"))
        claims = {**SHAPES[other].claims, "aud": aud}
        with pytest.raises(TokenInvalid):
            verify(shape.issuer, sign(shape.header, claims))


@pytest.mark.parametrize("name", [name for name in SHAPES if not name.endswith("ID")])
def test_what_is_marked_as_an_id_token_is_no_access_token(name: str) -> None:
    if SHAPES[name].issuer.check_kind.__qualname__.split(".")[0] in {
        # These distinguish kinds by a claim of their own, or have one kind only.
        "Keycloak", "Cognito", "Supabase", "Clerk", "Firebase", "Google", "GitHubActions",
        "GitLabCI", "Kubernetes",
    }:  # fmt: skip
        return
    for member in ("nonce", "at_hash", "c_hash"):
        with case(member):
            assert refused(name, **{member: "x"}) is TokenInvalid


@pytest.mark.parametrize("name", [name for name in SHAPES if name.endswith("ID")])
def test_what_is_marked_as_an_access_token_is_no_id_token(name: str) -> None:
    assert refused(name, header={"typ": "at+jwt"}) is TokenInvalid
    if not name.startswith("Cognito"):
        for member in ("client_id", "scp", "cid"):
            assert refused(name, **{member: "x"}) is TokenInvalid


def test_an_id_token_for_several_audiences_names_this_client_as_authorized() -> None:
    audience = ["s6BhdRkqt3", "other"]
    assert refused("OIDC, ID", aud=audience) is TokenInvalid
    assert refused("OIDC, ID", aud=audience, azp="other") is TokenInvalid
    assert refused("OIDC, ID", aud=audience, azp=["s6BhdRkqt3"]) is TokenInvalid
    assert interactive("OIDC, ID", aud=audience, azp="s6BhdRkqt3")


@pytest.mark.parametrize("name", SHAPES)
def test_the_audience_is_always_checked(name: str) -> None:
    for audience in [None, "", "other", [], ["other"], [["x"]], {"x": 1}, 1, True]:
        with case(audience):
            assert refused(name, **{SHAPES[name].audience: audience}) is TokenInvalid


TENANTS: dict[str, dict[str, Any]] = {
    "Entra, access": {"tid": TENANT.replace("7", "8")},
    "Entra, ID": {"tid": None},
    "GitHub Actions": {"repository_owner": "attacker"},
    "GitLab CI": {"namespace_path": "my-group-of-an-attacker"},
}


@pytest.mark.parametrize("name", TENANTS)
def test_the_tenant_is_always_checked(name: str) -> None:
    assert refused(name, **TENANTS[name]) is TokenInvalid


def test_tenants_are_named_by_id_or_path() -> None:
    keys = PinnedKeySet(jwks("example-key-id", "RS256"))
    github = SHAPES["GitHub Actions"]
    by_id = GitHubActions("65", audience="https://api.example.com", keys=keys)
    assert verify(by_id, github.token()) is not None
    with pytest.raises(TokenInvalid):
        verify(by_id, github.token(repository_owner="65", repository_owner_id="66"))
    assert interactive("GitLab CI", namespace_path="my-group/sub") is False
    workspace = Google(
        GOOGLE_CLIENT,
        hosted_domain="example.com",
        keys=PinnedKeySet(jwks(str(SHAPES["Google"].header["kid"]), "RS256")),
    )
    assert verify(workspace, SHAPES["Google"].token()) is not None
    for hd in (None, "attacker.example", ["example.com"]):
        with pytest.raises(TokenInvalid):
            verify(workspace, SHAPES["Google"].token(hd=hd))


MACHINES: list[tuple[str, dict[str, Any]]] = [
    ("Auth0", {"sub": "awZfdIir8YFdGZWkvCejDoUb7SjTDicx@clients", "gty": "client-credentials"}),
    ("Auth0", {"sub": "auth0|x@clients"}),
    ("Auth0", {"gty": "client-credentials"}),
    ("Auth0, RFC 9068", {"sub": "awZfdIir8YFdGZWkvCejDoUb7SjTDicx@clients"}),
    ("Entra, access", {"scp": None, "roles": ["Tasks.Run"], "idtyp": "app"}),
    ("Entra, access", {"scp": "x", "idtyp": "app"}),
    ("Entra, access", {"scp": ["x"]}),
    ("Okta, access", {"uid": None, "sub": "nmdP1fcyvdVO11AL7ECm"}),
    ("Okta, access", {"sub": "nmdP1fcyvdVO11AL7ECm"}),
    ("Google", {"azp": "113774264463038321964", "email": "robot@p.iam.gserviceaccount.com"}),
    ("Google", {"azp": "113774264463038321964"}),
    ("Google", {"email": "robot@p.iam.gserviceaccount.com"}),
    ("Google", {"azp": None}),
    ("Google", {"email": ["ann@example.com"]}),
    ("Keycloak", {"preferred_username": "service-account-ci", "client_id": "ci"}),
    ("Keycloak", {"preferred_username": "service-account-ci"}),
    ("Keycloak", {"clientHost": "10.0.0.1"}),
    ("Keycloak", {"sid": None}),
    ("Cognito, access", {"username": None, "sub": "xxxxxxxxxxxxexample"}),
    ("Cognito, access", {"sub": "xxxxxxxxxxxxexample"}),
    ("Supabase", {"is_anonymous": True}),
    ("Supabase", {"is_anonymous": None}),
    ("Supabase", {"role": "service_role"}),
    ("Clerk", {"act": {"sub": "user_admin"}}),
    ("Clerk", {"sub": "mch_1"}),
    ("Firebase", {"firebase": {"sign_in_provider": "anonymous"}}),
    ("Firebase", {"firebase": {"sign_in_provider": "custom"}}),
    ("Firebase", {"firebase": {}}),
    ("PingOne", {"sid": None}),
]


@pytest.mark.parametrize(("name", "changes"), MACHINES)
def test_a_machine_and_what_may_be_one_is_no_person(name: str, changes: dict[str, Any]) -> None:
    assert interactive(name) is True
    assert interactive(name, **changes) is False


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("Auth0", {"azp": None}),
    ("Entra, access", {"ver": "1.0"}),
    ("Entra, access", {"azpacr": None}),
    ("Okta, access", {"jti": None}),
    ("Okta, access", {"jti": "ID.x"}),
    ("Okta, access", {"cid": None}),
    ("Okta, access", {"uid": 7}),
    ("Okta, ID", {"jti": "AT.x"}),
    ("Keycloak", {"typ": "ID"}),
    ("Keycloak", {"typ": "Refresh"}),
    ("Keycloak", {"typ": None}),
    ("Cognito, access", {"token_use": None}),
    ("Cognito, access", {"client_id": ["xxxxxxxxxxxxexample"]}),
    ("Supabase", {"session_id": None}),
    ("Clerk", {"sts": "pending"}),
    ("Clerk", {"sid": None}),
    ("Firebase", {"firebase": "x"}),
    ("Firebase", {"auth_time": None}),
    ("PingOne", {"sub": None}),
    ("PingOne", {"client_id": None}),
    ("GitHub Actions", {"repository_id": None}),
    ("GitLab CI", {"project_id": None}),
    ("Kubernetes", {"kubernetes.io": None}),
    ("Kubernetes", {"sub": "ann"}),
]


@pytest.mark.parametrize(("name", "changes"), REFUSED)
def test_the_claims_that_show_the_kind_of_a_token_are_required(
    name: str, changes: dict[str, Any]
) -> None:
    assert refused(name, **changes) is TokenInvalid


def test_a_rule_of_the_application_decides_who_is_a_person() -> None:
    seen: list[Mapping[str, object]] = []

    def rule(claims: Mapping[str, object]) -> bool:
        seen.append(claims)
        return claims["client_id"] == "s6BhdRkqt3"

    shape = SHAPES["OIDC, access"]
    issuer = shape.made(interactive=rule)
    assert getattr(verify(issuer, shape.token()), "interactive", None) is True
    assert getattr(verify(issuer, shape.token(client_id="ci")), "interactive", None) is False
    # It raises.
    assert getattr(verify(issuer, shape.token(client_id=None)), "interactive", None) is False
    with pytest.raises(TypeError):
        seen[0]["sub"] = "ann"  # type: ignore[index]


def test_claims_cannot_be_changed_however_deep_they_are() -> None:
    verified = verify(SHAPES["Firebase"].issuer, SHAPES["Firebase"].token())
    assert verified is not None
    assert isinstance(verified.subject, ExternalIdentity)
    firebase: Any = verified.subject.claims["firebase"]
    assert firebase["identities"]["email"] == ("ann@example.com",)
    with pytest.raises(TypeError):
        firebase["sign_in_provider"] = "password"


def test_a_claim_that_is_nested_500_deep_is_refused_and_nothing_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    shape = SHAPES["Auth0"]
    nested: Any = 7
    for _ in range(500):
        nested = [nested]
    world = World(
        "sync",
        issuers=[shape.issuer],
        find_external_owner=lambda identity: Owner(identity.subject, (), None),
    )
    assert world.enter(shape.token()).owner.id == shape.claims["sub"]
    for text in (shape.token(x=nested), token(x=nested)):
        with pytest.raises(TokenInvalid) as refused:
            world.enter(text)
        assert refused.value.code == "token_invalid"
    assert caplog.records == []


# Times.


@pytest.mark.parametrize("name", SHAPES)
def test_times_are_numbers_with_or_without_a_fraction(name: str) -> None:
    changes = {"iat": T - 0.5, "exp": T + 30.25}
    assert verify(SHAPES[name].issuer, SHAPES[name].token(**changes)) is not None
    for claim in ("iat", "exp", "nbf"):
        for value in (True, "1", [], {}, -1, math.inf, 1e300, 10**400, str(T)):
            assert refused(name, **{claim: value}) is TokenInvalid
    for claim in ("iat", "exp"):
        assert refused(name, **{claim: None}) is TokenInvalid


@pytest.mark.parametrize("name", SHAPES)
def test_the_type_that_rfc_7519_recommends_is_always_accepted(name: str) -> None:
    # Some providers send none today, and could begin to.
    assert verify(SHAPES[name].issuer, SHAPES[name].token(header={"typ": "JWT"})) is not None


@pytest.mark.parametrize("name", SHAPES)
def test_a_token_outside_its_time_is_refused(name: str) -> None:
    shape, leeway = SHAPES[name], timedelta(seconds=30)
    end = NOW + timedelta(seconds=int(str(shape.claims["exp"])) - T)
    assert verify(shape.issuer, shape.token(), end + leeway - timedelta(seconds=1)) is not None
    with pytest.raises(TokenExpired):
        verify(shape.issuer, shape.token(), end + leeway)
    with pytest.raises(TokenInvalid):
        verify(shape.issuer, shape.token(nbf=None), NOW - leeway - timedelta(seconds=1))
    assert refused(name, nbf=T + 31) is TokenInvalid
    assert refused(name, exp=T) is TokenInvalid
    assert refused(name, exp=T + 30 * 3600) is TokenInvalid


def test_the_age_of_a_login_is_known_or_unknown_and_never_guessed() -> None:
    for name in ("Auth0", "OIDC, ID", "Okta, access"):
        shape = SHAPES[name]
        verified = verify(shape.issuer, shape.token(auth_time=T - 60))
        assert verified is not None
        assert verified.authenticated_at == NOW - timedelta(seconds=60)
        verified = verify(shape.issuer, shape.token(auth_time=None))
        assert verified is not None
        assert verified.authenticated_at is None
        assert refused(name, auth_time=T + 31) is TokenInvalid
        assert refused(name, auth_time="1") is TokenInvalid


@pytest.mark.parametrize("name", ["Entra, access", "Entra, ID"])
def test_a_login_may_be_later_than_the_token_whose_moment_is_set_back(name: str) -> None:
    set_back = {"iat": T - 300, "nbf": T - 300, "exp": T + 3600}
    verified = verify(SHAPES[name].issuer, SHAPES[name].token(**set_back, auth_time=T - 2))
    assert verified is not None
    assert verified.authenticated_at == NOW - timedelta(seconds=2)
    assert refused(name, **set_back, auth_time=T + 31) is TokenInvalid


@pytest.mark.parametrize(
    ("fva", "age"),
    [([0, -1], 1), ([7, 2], 8), ([-1, -1], None), (None, None), ([], None), ([True], None),
     (["7"], None), ([10**9], None), (7, None)],
)  # fmt: skip
def test_the_age_from_clerk_is_in_minutes(fva: object, age: int | None) -> None:
    verified = verify(SHAPES["Clerk"].issuer, SHAPES["Clerk"].token(fva=fva))
    assert verified is not None
    assert verified.authenticated_at == (None if age is None else NOW - timedelta(minutes=age))


# Set-ups.


@pytest.mark.parametrize("name", SHAPES)
def test_a_preset_takes_three_lines_and_fetches_keys_by_itself(name: str) -> None:
    issuer = SHAPES[name].make()
    assert isinstance(issuer.keys, RemoteKeySet)
    assert issuer.keys.issuer == next(iter(issuer.names))
    assert repr(issuer) == f"<{type(issuer).__name__} {issuer.keys.issuer!r}>"
    pinned = SHAPES[name].issuer
    pinned.open()
    pinned.close()


@pytest.mark.parametrize(
    "make",
    [
        lambda: OIDC("", audience="a"),
        lambda: OIDC("https://login.example", audience=""),
        lambda: OIDC("https://login.example", audience=[]),
        lambda: OIDC("https://login.example", audience="a", token="refresh"),  # type: ignore[arg-type]
        lambda: OIDC("https://login.example", audience="a", max_lifetime=timedelta(0)),
        lambda: OIDC("https://login.example", audience="a", leeway=timedelta(hours=1)),
        lambda: OIDC("https://login.example", audience="a", interactive=True),  # type: ignore[arg-type]
        lambda: Auth0("https://tenant.auth0.com/", audience="a"),
        lambda: Entra("common", client_id="c"),
        lambda: Entra("organizations", client_id="c"),
        lambda: Cognito("pool", client_id="c"),
        lambda: Cognito("eu_central/../x", client_id="c"),
        lambda: Supabase("attacker.example/x?", audience="a"),
        lambda: Firebase("../x"),
        lambda: Clerk("clerk", authorized_parties="https://example.com"),
        lambda: GitLabCI("/", audience="a"),
        lambda: GitHubActions("a/b", audience="a"),
        lambda: Keycloak("http://sso.example.com/realms/acme", audience="a"),
    ],
)
def test_a_set_up_that_cannot_be_meant_is_refused(make: Any) -> None:
    with pytest.raises(ConfigurationError):
        make()
