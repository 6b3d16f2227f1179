"""One issuer configured several times: what differs selects, and nothing is accepted that no configuration accepts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.cases import case
from tests.core.support import FrozenClock, profile
from tests.tokens.shapes import SHAPES, T, jwks

from msk_auth import Authenticator, ExternalIdentity, Owner, Principal
from msk_auth.errors import ConfigurationError, TokenExpired, TokenInvalid
from msk_auth.stores.memory import MemoryKeyStore
from msk_auth.tokens.issuers import (
    OIDC,
    ExternalIssuer,
    GitHubActions,
    GitLabCI,
    Google,
    PinnedKeySet,
    RemoteKeySet,
)

ACCESS, ID = SHAPES["Hydra, access"], SHAPES["Hydra, ID"]
PERMISSIONS = frozenset({"tasks:read", "tasks:run"})


def find_external_owner(identity: ExternalIdentity) -> Owner[str]:
    return Owner(identity.subject, PERMISSIONS, identity.issuer)


def authenticator(*issuers: ExternalIssuer, **options: Any) -> Authenticator[str]:
    return Authenticator(
        MemoryKeyStore(),
        find_owner=lambda _: None,
        issuers=issuers,
        find_external_owner=find_external_owner,
        clock=FrozenClock(),
        **options,
    )


def enter(auth: Authenticator[str], token: str) -> Principal[str]:
    return auth.authenticate([f"Bearer {token}"])


def test_the_kind_selects_in_any_order() -> None:
    for issuers in ([ACCESS, ID], [ID, ACCESS]):
        auth = authenticator(*(each.made(grants="scp") for each in issuers))
        machine, person = enter(auth, ACCESS.token()), enter(auth, ID.token())
        assert (machine.is_interactive, machine.permissions) == (False, {"tasks:read"})
        assert (person.is_interactive, person.permissions) == (True, frozenset())
        for token in (ACCESS.token(aud="other"), ID.token(aud="other"), ID.token(events={})):
            with pytest.raises(TokenInvalid):
                enter(auth, token)


def test_the_audience_selects_the_grants_and_the_rule() -> None:
    keys = PinnedKeySet(jwks(str(ACCESS.header["kid"]), "RS256"))
    options: dict[str, Any] = {"keys": keys}
    issuer = "https://hydra.example.com/"
    auth = authenticator(
        OIDC(issuer, audience="read", grants=lambda _: ["tasks:read"], **options),
        OIDC(issuer, audience="run", grants=None, interactive=lambda _: True, **options),
    )
    reader, runner = enter(auth, ACCESS.token(aud="read")), enter(auth, ACCESS.token(aud="run"))
    assert (reader.permissions, reader.is_interactive) == ({"tasks:read"}, False)
    assert (runner.permissions, runner.is_interactive) == (PERMISSIONS, True)


def test_the_tenant_selects() -> None:
    shape = SHAPES["GitHub Actions"]
    keys = shape.issuer.keys
    auth = authenticator(
        *(
            GitHubActions(owner, audience="https://api.example.com", grants=None, keys=keys)
            for owner in ("octo-org", "hubot")
        )
    )
    for owner in ("octo-org", "hubot"):
        assert enter(auth, shape.token(repository_owner=owner)).identity is not None
    with pytest.raises(TokenInvalid):
        enter(auth, shape.token(repository_owner="attacker"))


def test_an_expired_token_is_called_expired_by_the_configuration_that_it_is_for() -> None:
    for issuers in ([ACCESS, ID], [ID, ACCESS]):
        auth = authenticator(*(each.issuer for each in issuers))
        with pytest.raises(TokenExpired):
            enter(auth, ID.token(iat=T - 900, exp=T - 600, auth_time=T - 900, rat=T - 900))
        with pytest.raises(TokenInvalid):
            enter(auth, ID.token(iat=T - 900, exp=T - 600, aud="other"))


def test_a_token_that_its_issuer_refuses_reaches_no_function_in_logins() -> None:
    asked: list[str] = []
    auth = authenticator(ACCESS.issuer, ID.issuer, logins=[asked.append])
    with pytest.raises(TokenInvalid):
        enter(auth, ID.token(aud="other"))
    assert asked == []


SAME: dict[str, Callable[[], list[ExternalIssuer]]] = {
    "the same": lambda: [ACCESS.made(), ACCESS.made()],
    # Nothing would select the second.
    "another rule": lambda: [ACCESS.made(), ACCESS.made(interactive=lambda _: True)],
    "other grants": lambda: [ACCESS.made(), ACCESS.made(grants="scp")],
    "other spellings": lambda: [Google("c", grants=None), Google(["c"], grants=None)],
    "access claims": lambda: [SHAPES["Zitadel, ID"].made(), SHAPES["Zitadel, ID"].made()],
    "a group": lambda: [
        GitLabCI("acme", audience="a", grants=None),
        GitLabCI("/acme/", audience="a", grants=None),
    ],
}
DIFFERENT: dict[str, Callable[[], list[ExternalIssuer]]] = {
    "a kind": lambda: [ACCESS.made(), ID.made()],
    "a domain": lambda: [Google("c", grants=None), Google("c", grants=None, hosted_domain="a")],
    "a required claim": lambda: [ACCESS.made(), ACCESS.made(required={"org": "acme"})],
    "a lifetime": lambda: [ACCESS.made(), ACCESS.made(max_lifetime=timedelta(minutes=1))],
    "bound tokens": lambda: [ACCESS.made(), ACCESS.made(allow_bound=True)],
    "groups": lambda: [GitLabCI(name, audience="a", grants=None) for name in ("acme", "other")],
    "access claims": lambda: [
        OIDC("https://a.example", audience="a", grants=None, access_claims=claims)
        for claims in ([], ["uid"], ["jti"])
    ],
}


def test_two_configurations_that_accept_the_same_tokens_are_refused_while_starting() -> None:
    for name, issuers in SAME.items():
        with case(name), pytest.raises(ConfigurationError, match="same issuer"):
            authenticator(*issuers())
    for name, issuers in DIFFERENT.items():
        with case(name):
            authenticator(*issuers())


def test_an_issuer_of_the_applications_own_tokens_has_no_other_configuration() -> None:
    own = profile(issuer="https://hydra.example.com/")
    for issuers in ([ACCESS.made()], [ACCESS.made(), ID.made()]):
        with pytest.raises(ConfigurationError, match="same issuer"):
            authenticator(*issuers, tokens=own)


def test_presets_of_one_issuer_share_its_keys_unless_they_are_given() -> None:
    given = ACCESS.made(allow_bound=True)
    pinned = given.keys
    fetching = [
        OIDC("https://hydra.example.com/", audience=name, grants=None) for name in ("a", "b")
    ]
    other = OIDC("https://other.example", audience="a", grants=None)
    assert fetching[0].keys is not fetching[1].keys
    authenticator(*fetching, other, given)
    assert fetching[0].keys is fetching[1].keys
    assert isinstance(fetching[0].keys, RemoteKeySet)
    assert other.keys is not fetching[0].keys
    assert given.keys is pinned
