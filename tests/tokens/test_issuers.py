"""Every provider's tokens are accepted as they are, by their own row and by no other, and as what they are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta
from queue import Queue
from typing import Any
from urllib.request import OpenerDirector, Request

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import case, refused_with
from tests.core.support import NOW, parsed
from tests.tokens.shapes import GOOGLE_CLIENT, SHAPES, TENANT, T, differing, jwks, sign

from msk_auth.errors import ConfigurationError, CredentialRefused
from msk_auth.tokens.issuers import ExternalIssuer, PinnedKeySet, Provider, RemoteKeySet, TokenRules

EACH_KIND = pytest.mark.parametrize("name", differing("kind"))


class AnyKeySet(PinnedKeySet):
    """Shows which key a token asks for."""

    def __init__(self) -> None: ...

    def find(self, kid: str) -> Any:
        raise LookupError(repr(kid))


async def granted_later(_claims: object) -> list[str]:
    return []


async def interactive_later(_claims: object) -> bool:
    return True


def verify(issuer: ExternalIssuer, token: str, at: Any = NOW) -> Any:
    return issuer.authenticate(parsed(token), at)


def interactive(name: str, **changes: object) -> bool:
    verified = verify(SHAPES[name].issuer, SHAPES[name].token(**changes))
    return verified.interactive


def refused(name: str, **changes: Any) -> str:
    with refused_with("token_invalid", "token_expired") as problem:
        verify(SHAPES[name].issuer, SHAPES[name].token(**changes))
    return problem.value.code


@pytest.mark.parametrize("name", SHAPES)
def test_a_token_as_its_provider_documents_it_is_accepted(name: str) -> None:
    shape = SHAPES[name]
    verified = verify(shape.issuer, shape.token())
    assert verified.subject.issuer == shape.claims["iss"]
    assert verified.subject.subject in {shape.claims["sub"], shape.claims.get("uid")}
    assert verified.interactive is shape.interactive
    assert (verified.session_id, verified.has_session) == (None, False)
    assert verified.expires_at.timestamp() == shape.claims["exp"]
    known = "auth_time" in shape.claims or name == "Clerk"
    assert (verified.authenticated_at is not None) is known
    # The type that RFC 7519 recommends. Some providers send none today, and could begin to.
    assert verify(shape.issuer, shape.token(header={"typ": "JWT"})) is not None


@pytest.mark.parametrize("name", SHAPES)
def test_no_other_row_accepts_it(name: str) -> None:
    for other in (each for each in SHAPES if each != name):
        with case(other):
            try:
                assert verify(SHAPES[other].issuer, SHAPES[name].token()) is None
                assert SHAPES[other].issuer.pending(parsed(SHAPES[name].token())) is None
            except CredentialRefused:
                # Of the same issuer, and of another kind or audience.
                assert SHAPES[name].claims["iss"] in SHAPES[other].issuer.names


@pytest.mark.parametrize(
    ("access", "identity"),
    [
        ("Entra, access", "Entra, ID"),
        ("Okta, access", "Okta, ID"),
        ("Cognito, access", "Cognito, ID"),
        ("OIDC, access", "OIDC, ID"),
        ("Zitadel, access", "Zitadel, ID"),
        ("Hydra, access", "Hydra, ID"),
        ("Authentik, access", "Authentik, ID"),
        ("FusionAuth, access", "FusionAuth, ID"),
        ("B2C, access", "B2C, ID"),
        ("Logto, access", "Logto, ID"),
    ],
)
def test_an_id_token_is_no_access_token_and_the_other_way_round(access: str, identity: str) -> None:
    # For the same audience, and by the same key: nothing but the kind distinguishes them.
    for accepting, other in ((access, identity), (identity, access)):
        shape = SHAPES[accepting]
        aud = shape.claims.get("aud", shape.claims.get("client_id"))
        claims = {**SHAPES[other].claims, "iss": shape.claims["iss"], "aud": aud}
        header = {**SHAPES[other].header, "kid": shape.header["kid"]}
        with refused_with("token_invalid"):
            verify(shape.issuer, sign(header, claims))


@pytest.mark.parametrize(
    "name",
    ["Auth0", "Auth0, RFC 9068", "Entra, access", "Okta, access", "PingOne"],
)
def test_what_is_marked_as_an_id_token_is_no_access_token(name: str) -> None:
    # The other rows distinguish kinds by a claim of their own, or have one kind only; `Provider.OIDC` is below.
    for member in ("nonce", "at_hash", "c_hash"):
        with case(member):
            assert refused(name, **{member: "x"}) == "token_invalid"


@pytest.mark.parametrize("name", [name for name in SHAPES if name.endswith("ID")])
def test_what_is_marked_as_an_access_token_is_no_id_token(name: str) -> None:
    assert refused(name, header={"typ": "at+jwt"}) == "token_invalid"
    if not name.startswith("Cognito"):
        for member in ("scope", "scp", "cid"):
            assert refused(name, **{member: "x"}) == "token_invalid"


def test_a_person_who_shares_no_address_with_the_application_is_one() -> None:
    assert interactive("Google", email=None) is True


@pytest.mark.parametrize("name", ["Entra, ID", "Okta, ID", "Google", "OIDC, ID"])
def test_a_client_id_does_not_make_an_id_token_an_access_token(name: str) -> None:
    # OpenID Connect Core, section 2: a client ignores what it does not know. ZITADEL puts it into every one.
    assert interactive(name, client_id="s6BhdRkqt3") is True


def test_an_access_token_may_have_a_nonce_where_it_is_marked_as_one() -> None:
    assert refused("OIDC, access", header={"typ": "JWT"}, scope=None, nonce="n") == "token_invalid"
    for header, scopes in (
        ({"typ": "at+jwt"}, {"scope": None}),
        ({"typ": "JWT"}, {"scope": ""}),
        ({"typ": "JWT"}, {"scope": None, "scp": "tasks.run"}),
    ):
        with case(header, scopes):
            assert interactive("OIDC, access", header=header, nonce="n", **scopes) is False


def test_an_id_token_for_several_audiences_names_this_client_as_authorized() -> None:
    audience = ["s6BhdRkqt3", "other"]
    assert refused("OIDC, ID", aud=audience) == "token_invalid"
    assert refused("OIDC, ID", aud=audience, azp="other") == "token_invalid"
    assert refused("OIDC, ID", aud=audience, azp=["s6BhdRkqt3"]) == "token_invalid"
    assert interactive("OIDC, ID", aud=audience, azp="s6BhdRkqt3")


@pytest.mark.parametrize("name", differing("kind", "audience"))
def test_the_audience_is_always_checked(name: str) -> None:
    for audience in [None, "", "other", [], ["other"], [["x"]], {"x": 1}, 1, True]:
        with case(audience):
            token = SHAPES[name].token(**{SHAPES[name].audience: audience})
            if SHAPES[name].audience == "iss":
                assert verify(SHAPES[name].issuer, token) is None
                continue
            with refused_with("token_invalid"):
                verify(SHAPES[name].issuer, token)


TENANTS: dict[str, dict[str, Any]] = {
    "Entra, access": {"tid": TENANT.replace("7", "8")},
    "Entra, ID": {"tid": None},
    "GitHub Actions": {"repository_owner": "attacker"},
    "GitLab CI": {"namespace_path": "my-group-of-an-attacker"},
    "Buildkite": {"organization_slug": "attacker"},
}


@pytest.mark.parametrize("name", TENANTS)
def test_the_tenant_is_always_checked(name: str) -> None:
    assert refused(name, **TENANTS[name]) == "token_invalid"


def test_tenants_are_named_by_id_or_path() -> None:
    keys = PinnedKeySet(jwks("example-key-id", "RS256"))
    github = SHAPES["GitHub Actions"]
    by_id = ExternalIssuer(
        Provider.GITHUB_ACTIONS, "65", audience="https://api.example.com", grants=None, keys=keys
    )
    assert verify(by_id, github.token()) is not None
    with refused_with("token_invalid"):
        verify(by_id, github.token(repository_owner="65", repository_owner_id="66"))
    assert interactive("GitLab CI", namespace_path="my-group/sub") is False
    workspace = ExternalIssuer(
        Provider.GOOGLE,
        audience=GOOGLE_CLIENT,
        required={"hd": "example.com"},
        grants=None,
        keys=PinnedKeySet(jwks(str(SHAPES["Google"].header["kid"]), "RS256")),
    )
    assert verify(workspace, SHAPES["Google"].token()) is not None
    for hd in (None, "attacker.example", ["example.com"]):
        with refused_with("token_invalid"):
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
    ("Google", {"nonce": None}),
    ("Google", {"nonce": ""}),
    ("Entra, ID", {"nonce": None}),
    ("Okta, ID", {"nonce": None}),
    ("Cognito, ID", {"nonce": None}),
    ("OIDC, ID", {"nonce": None}),
    ("OIDC, ID", {"nonce": ""}),
    ("OIDC, ID", {"nonce": ["n"]}),
    ("Google", {"email": ["ann@example.com"]}),
    ("Keycloak", {"preferred_username": "service-account-ci", "client_id": "ci"}),
    ("Keycloak", {"preferred_username": "service-account-ci"}),
    ("Keycloak", {"client_id": "ci"}),
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
    ("Firebase", {"firebase": {"sign_in_provider": ""}}),
    ("Firebase", {"firebase": {}}),
    ("PingOne", {"sid": None}),
    # What client credentials give, and other grants without a browser.
    ("Zitadel, ID", {"nonce": None, "amr": None}),
    ("Hydra, ID", {"nonce": None}),
    ("Authentik, ID", {"nonce": None, "sid": None, "amr": None}),
    ("FusionAuth, ID", {"nonce": None}),
    ("B2C, ID", {"nonce": None}),
    ("Logto, ID", {"nonce": None}),
    ("WorkOS", {"sid": "app_consent_01HQSXZGF8FHF7A9ZZFCW4387R"}),
    ("WorkOS", {"sid": None, "sub": "client_01HXYZ"}),
    ("Descope", {"sub": "K2bcdefghijklmnopqrstuvwxyza", "amr": None}),
    ("Cloudflare Access", {"identity_nonce": None, "sub": "", "common_name": "e367826f.access"}),
    ("Cloudflare Access", {"identity_nonce": ""}),
    ("Google IAP", {"email": "robot@p.iam.gserviceaccount.com"}),
]


@pytest.mark.parametrize(("name", "changes"), MACHINES)
def test_a_machine_and_what_may_be_one_is_no_person(name: str, changes: dict[str, Any]) -> None:
    assert interactive(name) is True
    assert interactive(name, **changes) is False


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("Auth0", {"azp": None}),
    ("Entra, access", {"ver": "1.0"}),
    ("Entra, access", {"azpacr": None}),
    # An access token of a program, which has no other mark.
    ("Entra, ID", {"azp": "6e74172b-be56-4843-9ff4-e66a39bb12e4", "nonce": None}),
    ("Entra, ID", {"azpacr": "1", "nonce": None}),
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
    ("Authentik, access", {"uid": None}),
    ("Authentik, access", {"azp": None}),
    ("Descope", {"drn": "DSR"}),
    ("Cloudflare Access", {"type": "org"}),
    ("Cloudflare Access", {"sub": ""}),
    ("Buildkite", {"pipeline_slug": None}),
]


@pytest.mark.parametrize(("name", "changes"), REFUSED)
def test_the_claims_that_show_the_kind_of_a_token_are_required(
    name: str, changes: dict[str, Any]
) -> None:
    assert refused(name, **changes) == "token_invalid"


# What is no login anywhere (RFC 8417), bound to a key (RFC 7800), or used by another party (RFC 8693).


@EACH_KIND
def test_a_logout_token_and_every_other_security_event_is_refused(name: str) -> None:
    for events in ({"http://schemas.openid.net/event/backchannel-logout": {}}, {}, None, []):
        claims = {**SHAPES[name].claims, "events": events}
        for typ in (SHAPES[name].header, {**SHAPES[name].header, "typ": "logout+jwt"}):
            with case(events, typ), refused_with("token_invalid"):
                verify(SHAPES[name].issuer, sign(typ, claims))


def test_rules_for_logout_tokens_accept_these_and_no_login() -> None:
    shape, events = SHAPES["OIDC, ID"], {"http://schemas.openid.net/event/backchannel-logout": {}}
    issuer = shape.made(token=TokenRules(kind="logout"))
    assert verify(issuer, shape.token(events=events)).interactive is False
    with refused_with("token_invalid"):
        verify(issuer, shape.token())


@EACH_KIND
def test_a_token_that_is_bound_to_a_key_is_no_bearers(name: str) -> None:
    for cnf in ({"jkt": "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"}, {"x5t#S256": "x"}, None):
        bound = sign(SHAPES[name].header, {**SHAPES[name].claims, "cnf": cnf})
        with case(cnf):
            with refused_with("token_invalid"):
                verify(SHAPES[name].issuer, bound)
            assert verify(SHAPES[name].made(allow_bound=True), bound) is not None


@EACH_KIND
def test_a_token_that_another_party_uses_is_never_a_persons(name: str) -> None:
    for act in ({"sub": "user_admin"}, {}, None):
        token = sign(SHAPES[name].header, {**SHAPES[name].claims, "act": act})
        assert verify(SHAPES[name].issuer, token).interactive is False
        if SHAPES[name].issuer.rules.is_person is not None:
            verified = verify(SHAPES[name].made(interactive=lambda _claims: True), token)
            assert verified.interactive is False


# What was granted.


def scopes(name: str, grants: Any, **changes: object) -> frozenset[str] | None:
    verified = verify(SHAPES[name].made(grants=grants), SHAPES[name].token(**changes))
    return verified.scopes


@EACH_KIND
def test_a_claim_limits_what_every_token_may_do(name: str) -> None:
    assert scopes(name, None) is None
    named = f"{SHAPES[name].issuer.rules.kind}-permissions"
    for value, granted in (("a b", {"a", "b"}), ("", set()), ("  ", set()), (" a ", {"a"}), ("a\tb", {"a\tb"}),
                           (["a", "b c"], {"a", "b c"}), ([], set()), (None, set())):  # fmt: skip
        with case(value):
            assert scopes(name, named, **{named: value}) == granted


@pytest.mark.parametrize("value", [None, 7, True, {}, {"a": True}, ["a", 7], [["a"]], [None]])
def test_a_claim_of_another_form_than_grants_have_is_refused(value: object) -> None:
    shape = SHAPES["Auth0"]
    token = sign(shape.header, {**shape.claims, "permissions": value})
    with refused_with("token_invalid"):
        verify(shape.made(grants="permissions"), token)


def test_what_providers_grant_is_read_where_they_write_it() -> None:
    def roles_of_keycloak(claims: Any) -> Any:
        return claims["realm_access"]["roles"]

    def roles_of_zitadel(claims: Any) -> Any:
        return claims.get("urn:zitadel:iam:org:project:roles", {}).keys()

    assert scopes("Keycloak", roles_of_keycloak) == {"offline_access", "uma_authorization"}
    assert scopes("Zitadel, access", roles_of_zitadel) == {"tasks:read"}
    assert scopes("Hydra, access", "scp") == {"tasks:read", "offline"}
    assert scopes("B2C, access", "scp") == {"tasks:read"}
    assert scopes("Logto, access", "scope") == {"tasks:read"}
    assert scopes("FusionAuth, access", "roles") == {"tasks:read"}
    assert scopes("Authentik, access", "groups") == {"tasks:read"}
    assert scopes("WorkOS", "permissions") == {"tasks:read", "tasks:run"}
    assert scopes("Descope", "permissions") == {"tasks:read"}


@pytest.mark.parametrize(
    "grants",
    [
        lambda claims: claims["no such claim"],
        lambda _claims: None,
        lambda _claims: "tasks:read",
        lambda _claims: {"tasks:read": True},
        lambda _claims: 7,
        lambda _claims: ["tasks:read", 7],
        lambda _claims: (1 // 0 for _ in "a"),
    ],
)
def test_a_function_that_cannot_say_what_was_granted_refuses_the_token(
    grants: Any, caplog: pytest.LogCaptureFixture
) -> None:
    shape = SHAPES["OIDC, access"]
    issuer = shape.made(grants=grants)
    for _ in range(2):
        with refused_with("token_invalid"):
            verify(issuer, shape.token())
    (record,) = caplog.records
    assert (
        "the function 'grants' for tokens of the issuer 'https://login.example' raised"
        in record.getMessage()
    )
    assert "The token is refused." in record.getMessage()
    assert "5ba552d67" not in caplog.text


def test_a_function_grants_by_claims_that_cannot_be_changed() -> None:
    assert scopes("OIDC, access", lambda _claims: ()) == frozenset()
    assert scopes("OIDC, access", lambda _claims: iter(["a", "a"])) == {"a"}
    assert scopes("OIDC, access", lambda _claims: ["", "a"]) == {"a"}
    assert scopes("Auth0", lambda claims: claims["aud"][:1]) == {"https://example.com/health-api"}


# Spellings and organisations.


def test_both_spellings_of_googles_issuer_are_one_identity() -> None:
    shape = SHAPES["Google"]
    one, other = (
        verify(shape.issuer, shape.token()),
        verify(shape.issuer, shape.token(iss="accounts.google.com")),
    )
    assert one.subject == other.subject
    assert other.subject.issuer == "https://accounts.google.com"
    assert other.subject.claims["iss"] == "accounts.google.com"


def test_claims_that_the_application_requires_have_exactly_that_text() -> None:
    shape = SHAPES["Auth0"]
    issuer = shape.made(required={"org_id": "org_1"})
    assert verify(issuer, shape.token(org_id="org_1")) is not None
    for value in (None, "", "org_2", ["org_1"], "ORG_1"):
        with case(value), refused_with("token_invalid"):
            verify(issuer, shape.token(org_id=value))


def test_a_required_claim_may_repeat_what_the_row_fixes_and_not_contradict_it() -> None:
    keycloak = SHAPES["Keycloak"]
    issuer = keycloak.made(required={"typ": "Bearer"})
    assert verify(issuer, keycloak.token()) is not None
    with refused_with("token_invalid"):
        verify(issuer, keycloak.token(typ="ID"))
    with pytest.raises(
        ConfigurationError,
        match=r"with Provider\.KEYCLOAK the claim is always 'Bearer'\. Leave 'typ' out of required\.",
    ):
        keycloak.made(required={"azp": "app", "typ": "ID"})


def test_an_organisation_of_buildkite_is_pinned_by_its_slug_or_its_id() -> None:
    shape, uuid = SHAPES["Buildkite"], "0184990a-477b-4fa8-9968-496074483cee"
    keys = shape.issuer.keys
    by_id = ExternalIssuer(
        Provider.BUILDKITE, uuid, audience="https://api.example.com", grants=None, keys=keys
    )
    assert verify(by_id, shape.token(organization_id=uuid)) is not None
    pinned = ExternalIssuer(
        Provider.OIDC,
        "https://agent.buildkite.com",
        audience="https://api.example.com",
        grants=None,
        required={"organization_slug": "example-org"},
        keys=keys,
    )
    assert verify(pinned, shape.token()) is not None
    for issuer in (by_id, pinned):
        with refused_with("token_invalid"):
            verify(issuer, shape.token(organization_slug=uuid))


def test_a_service_token_of_cloudflare_is_named_by_its_client() -> None:
    shape = SHAPES["Cloudflare Access"]
    machine = shape.token(sub="", identity_nonce=None, common_name="e367826f.access")
    verified = verify(shape.issuer, machine)
    assert verified.subject.subject == "e367826f.access"


def test_a_rule_of_the_application_decides_who_is_a_person() -> None:
    seen: list[Mapping[str, object]] = []

    def rule(claims: Mapping[str, object]) -> bool:
        seen.append(claims)
        return claims["client_id"] == "s6BhdRkqt3"

    shape = SHAPES["OIDC, access"]
    issuer = shape.made(interactive=rule)
    assert verify(issuer, shape.token()).interactive is True
    assert verify(issuer, shape.token(client_id="ci")).interactive is False
    # It raises.
    assert verify(issuer, shape.token(client_id=None)).interactive is False
    with pytest.raises(TypeError):
        seen[0]["sub"] = "ann"  # type: ignore[index]


@pytest.mark.parametrize(
    ("answer", "expected"), [(True, True), (False, False), (None, False), (1, False), ("no", False)]
)
def test_nothing_but_true_makes_a_token_a_persons(answer: Any, expected: bool) -> None:
    # A rule that forgets to answer makes none.
    shape = SHAPES["OIDC, access"]
    verified = verify(shape.made(interactive=lambda _claims: answer), shape.token())
    assert verified.interactive is expected


def test_a_rule_sees_genuine_claims_only() -> None:
    asked: list[object] = []
    shape = SHAPES["OIDC, access"]
    issuer = shape.made(interactive=lambda claims: asked.append(claims) or True)
    for wrong in (shape.token()[:-2], shape.token(aud="other"), shape.token(exp=T)):
        with refused_with("token_invalid"):
            verify(issuer, wrong)
    with refused_with("token_expired"):
        verify(issuer, shape.token(), NOW + timedelta(hours=2))
    assert asked == []


SECRET_CLAIM = "a claim that belongs in no log"


@pytest.mark.parametrize(
    "error",
    [
        KeyError(SECRET_CLAIM),
        TypeError(SECRET_CLAIM),
        CredentialRefused("token_invalid"),
        RecursionError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_rule_that_raises_means_a_machine_and_is_logged_once_without_claims(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def rule(_claims: Mapping[str, object]) -> bool:
        raise error

    shape = SHAPES["OIDC, access"]
    issuer = shape.made(interactive=rule)
    for _ in range(3):
        assert verify(issuer, shape.token(client_id=SECRET_CLAIM)).interactive is False
    (record,) = caplog.records
    line = rule.__code__.co_firstlineno + 1
    message = record.getMessage()
    assert f"raised {type(error).__name__} at {__file__}:{line}." in message
    assert "the function 'interactive' for tokens of the issuer" in message
    assert "counts as a machine's" in message
    assert SECRET_CLAIM not in caplog.text
    assert record.exc_info is None


# What another service may put into a claim.
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(client_id=JSON, amr=JSON)
def test_no_shape_of_a_claim_makes_a_machine_a_person(client_id: Any, amr: Any) -> None:
    people = frozenset({"a client of people"})

    def rule(claims: Mapping[str, Any]) -> bool:
        # As written without a thought for odd shapes: it raises on lists, dictionaries and numbers.
        return claims["client_id"] in people and "mfa" in claims["amr"]

    shape = SHAPES["OIDC, access"]
    verified = verify(shape.made(interactive=rule), shape.token(client_id=client_id, amr=amr))
    assert verified.interactive is False


def test_claims_cannot_be_changed_however_deep_they_are() -> None:
    verified = verify(SHAPES["Firebase"].issuer, SHAPES["Firebase"].token())
    firebase: Any = verified.subject.claims["firebase"]
    assert firebase["identities"]["email"] == ("ann@example.com",)
    with pytest.raises(TypeError):
        firebase["sign_in_provider"] = "password"


# Rules of the application's own.

SCOPED = TokenRules(kind="session", requires=("sid",), fixed={"use": "device"}, audience="device")


def test_an_application_can_have_rules_for_another_kind_of_token() -> None:
    shape = SHAPES["GitLab CI"]
    issuer = shape.made(token=SCOPED, audience="d1")
    device = {"sid": "s", "use": "device", "device": "d1"}
    assert verify(issuer, shape.token(**device)).interactive is False
    tenants = (
        {"namespace_path": None},
        {"namespace_path": ["my-group"]},
        {"namespace_path": "other"},
    )
    for changes in ({"sid": None}, {"use": "x"}, {"device": "d2"}, {"events": {}}, *tenants):
        with case(changes), refused_with("token_invalid"):
            verify(issuer, shape.token(**{**device, **changes}))


# Times.


@pytest.mark.parametrize("name", differing("authenticated_at"))
def test_times_are_numbers_with_or_without_a_fraction(name: str) -> None:
    changes = {"iat": T - 0.5, "exp": T + 30.25}
    assert verify(SHAPES[name].issuer, SHAPES[name].token(**changes)) is not None
    for claim in ("iat", "exp", "nbf"):
        for value in (True, "1", [], {}, -1, math.inf, 1e300, 10**400, str(T)):
            assert refused(name, **{claim: value}) == "token_invalid"
    for claim in ("iat", "exp"):
        assert refused(name, **{claim: None}) == "token_invalid"


@pytest.mark.parametrize("name", differing("authenticated_at", "max_lifetime"))
def test_a_token_outside_its_time_is_refused(name: str) -> None:
    shape, leeway = SHAPES[name], timedelta(seconds=30)
    end = NOW + timedelta(seconds=int(str(shape.claims["exp"])) - T)
    assert verify(shape.issuer, shape.token(), end + leeway - timedelta(seconds=1)) is not None
    with refused_with("token_expired"):
        verify(shape.issuer, shape.token(), end + leeway)
    with refused_with("token_invalid"):
        verify(shape.issuer, shape.token(nbf=None), NOW - leeway - timedelta(seconds=1))
    assert refused(name, nbf=T + 31) == "token_invalid"
    assert refused(name, exp=T) == "token_invalid"
    assert refused(name, exp=T + 30 * 3600) == "token_invalid"


@pytest.mark.parametrize("late", ["iat", "nbf", "auth_time"])
def test_no_time_of_a_token_is_later_than_the_leeway_allows(late: str) -> None:
    shape, times = SHAPES["OIDC, ID"], {"iat": T, "nbf": T, "auth_time": T}
    ahead = shape.token(**{**times, late: T + 30})
    assert verify(shape.issuer, ahead) is not None
    with refused_with("token_invalid"):
        verify(shape.issuer, ahead, NOW - timedelta(microseconds=1))


def test_the_age_of_a_login_is_known_or_unknown_and_never_guessed() -> None:
    for name in ("Auth0", "OIDC, ID", "Okta, access"):
        shape = SHAPES[name]
        verified = verify(shape.issuer, shape.token(auth_time=T - 60))
        assert verified.authenticated_at == NOW - timedelta(seconds=60)
        assert verify(shape.issuer, shape.token(auth_time=None)).authenticated_at is None
        assert refused(name, auth_time=T + 31) == "token_invalid"
        assert refused(name, auth_time="1") == "token_invalid"


@pytest.mark.parametrize("name", ["Entra, access", "Entra, ID"])
def test_a_login_may_be_later_than_the_token_whose_moment_is_set_back(name: str) -> None:
    set_back = {"iat": T - 300, "nbf": T - 300, "exp": T + 3600}
    verified = verify(SHAPES[name].issuer, SHAPES[name].token(**set_back, auth_time=T - 2))
    assert verified.authenticated_at == NOW - timedelta(seconds=2)
    assert refused(name, **set_back, auth_time=T + 31) == "token_invalid"


@pytest.mark.parametrize(
    ("fva", "age"),
    [([0, -1], 1), ([7, 2], 8), ([-1, -1], None), (None, None), ([], None), ([True], None),
     (["7"], None), ([999_999], 10**6), ([10**6], None), (7, None)],
)  # fmt: skip
def test_the_age_from_clerk_is_in_minutes(fva: object, age: int | None) -> None:
    verified = verify(SHAPES["Clerk"].issuer, SHAPES["Clerk"].token(fva=fva))
    assert verified.authenticated_at == (None if age is None else NOW - timedelta(minutes=age))


# Set-ups.


def test_an_issuer_fetches_keys_by_itself() -> None:
    shape = SHAPES["Google"]
    issuer = shape.make(grants=None)
    assert isinstance(issuer.keys, RemoteKeySet)
    assert issuer.keys.issuer == "https://accounts.google.com"
    assert repr(issuer) == f"<ExternalIssuer {issuer.provider} 'https://accounts.google.com'>"
    shape.issuer.open()
    shape.issuer.close()


LOGIN = "https://login.example"


@pytest.mark.parametrize(
    ("provider", "tenant", "options"),
    [
        (Provider.OIDC, "", {}),
        (Provider.OIDC, LOGIN, {"audience": ""}),
        (Provider.OIDC, LOGIN, {"audience": []}),
        (Provider.OIDC, LOGIN, {"token": "refresh"}),
        (Provider.OIDC, LOGIN, {"max_lifetime": timedelta(0)}),
        (Provider.OIDC, LOGIN, {"leeway": timedelta(minutes=5, seconds=1)}),
        (Provider.OIDC, LOGIN, {"grants": ""}),
        (Provider.OIDC, LOGIN, {"issuer": "https://other.example"}),
        (Provider.OIDC, LOGIN, {"token": SCOPED, "interactive": bool}),
        (Provider.OIDC, "https://gitlab.com", {}),
        (Provider.OIDC, "https://agent.buildkite.com", {}),
        (Provider.OIDC, "https://accounts.google.com", {"token": "id"}),
        (Provider.OIDC, "accounts.google.com", {"keys": SHAPES["Google"].issuer.keys}),
        (Provider.AUTH0, "", {}),
        (Provider.AUTH0, "https://tenant.auth0.com/", {}),
        (Provider.AUTH0, "tenant.auth0.com", {"token": "id"}),
        (Provider.AUTH0, "tenant.auth0.com", {"issuer": ""}),
        (Provider.ENTRA, "common", {}),
        (Provider.ENTRA, "organizations", {}),
        (Provider.COGNITO, "pool", {}),
        (Provider.COGNITO, "eu_central/../x", {}),
        (Provider.SUPABASE, "attacker.example/x?", {}),
        (Provider.FIREBASE, "../x", {}),
        (Provider.CLERK, "clerk", {}),
        (Provider.GITLAB_CI, "/", {}),
        (Provider.GITLAB_CI, "acme/", {}),
        (Provider.GITLAB_CI, "acme", {"issuer": "https://agent.buildkite.com"}),
        (Provider.GOOGLE, "example.com", {}),
        (Provider.GITHUB_ACTIONS, "a/b", {}),
        (Provider.GITHUB_ACTIONS, "acme", {"interactive": bool}),
        (Provider.BUILDKITE, "a/b", {}),
        (Provider.KEYCLOAK, "https://gitlab.com", {}),
        (Provider.KEYCLOAK, "http://sso.example.com/realms/acme", {}),
    ],
)
def test_a_set_up_that_cannot_be_meant_is_refused(
    provider: Provider, tenant: str, options: dict[str, Any]
) -> None:
    with pytest.raises(ConfigurationError):
        ExternalIssuer(provider, tenant, **{"audience": "a", "grants": None, **options})


@pytest.mark.parametrize(
    ("name", "function"), [("grants", granted_later), ("interactive", interactive_later)]
)
def test_a_function_of_the_claims_must_not_be_async(name: str, function: object) -> None:
    options: dict[str, Any] = {"audience": "a", "grants": None, name: function}
    with pytest.raises(ConfigurationError, match=f"^{name} must be a plain function"):
        ExternalIssuer(Provider.OIDC, LOGIN, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"max_lifetime": timedelta(seconds=1)},
        {"leeway": timedelta(0)},
        {"leeway": timedelta(minutes=5)},
    ],
    ids=repr,
)
def test_the_bounds_of_durations_are_within_them(options: dict[str, timedelta]) -> None:
    issuer = ExternalIssuer(Provider.OIDC, LOGIN, audience="a", grants=None, **options)
    assert [getattr(issuer, name) for name in options] == [*options.values()]


@pytest.mark.parametrize(("length", "expected"), [(0, False), (1, True), (256, True), (257, False)])
def test_a_key_id_has_1_to_256_characters(length: int, expected: bool) -> None:
    kid = "k" * length
    shape = SHAPES["OIDC, access"]
    issuer = shape.made(keys=AnyKeySet())
    asked = parsed(shape.token(header={"kid": kid}))
    if expected:
        assert issuer.pending(asked) is None
        with pytest.raises(LookupError, match=f"^'{kid}'$"):
            issuer.authenticate(asked, NOW)
    else:
        for check in (issuer.pending, lambda token: issuer.authenticate(token, NOW)):
            with refused_with("token_invalid"):
                check(asked)


def test_a_kind_that_the_provider_does_not_have_is_refused_with_those_that_it_has() -> None:
    def make(provider: Provider, tenant: str, token: Any) -> ExternalIssuer:
        return ExternalIssuer(provider, tenant, audience="a", grants=None, token=token)

    with pytest.raises(
        ConfigurationError, match=r"kind 'acess'\. Write token='access' or token='id'\.$"
    ):
        make(Provider.OIDC, LOGIN, "acess")
    with pytest.raises(ConfigurationError, match=r"kind 'id'\. Write token='session'\.$"):
        make(Provider.SUPABASE, "project", "id")


@pytest.mark.parametrize(
    ("provider", "tenant", "url"),
    [
        (
            Provider.CLOUDFLARE_ACCESS,
            "acme.cloudflareaccess.com",
            "https://acme.cloudflareaccess.com/cdn-cgi/access/certs",
        ),
        (
            Provider.AUTH0,
            "acme.eu.auth0.com",
            "https://acme.eu.auth0.com/.well-known/openid-configuration",
        ),
        # The host has the region, which is in the id of the pool.
        (
            Provider.COGNITO,
            "eu-central-1_Ab1",
            "https://cognito-idp.eu-central-1.amazonaws.com/eu-central-1_Ab1/.well-known/openid-configuration",
        ),
    ],
)
def test_keys_are_fetched_where_the_provider_has_them(
    provider: Provider, tenant: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: Queue[str] = Queue()

    def fetch(_opener: object, request: Request, **_: object) -> None:
        fetched.put(request.full_url)
        raise OSError

    monkeypatch.setattr(OpenerDirector, "open", fetch)
    issuer = ExternalIssuer(provider, tenant, audience="app", grants=None)
    issuer.open()
    try:
        assert fetched.get(timeout=60) == url
    finally:
        issuer.close()
