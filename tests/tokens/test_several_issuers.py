"""One issuer configured several times: what differs selects, and nothing is accepted that no configuration accepts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from tests.cases import case, refused_with
from tests.core.support import FrozenClock, profile
from tests.tokens.shapes import SHAPES, T, jwks

from msk_auth import AsyncAuthenticator, Authenticator, ExternalIdentity, Owner, Principal
from msk_auth.errors import ConfigurationError, CredentialRefused
from msk_auth.stores.memory import AsyncMemoryKeyStore, MemoryKeyStore
from msk_auth.tokens.issuers import ExternalIssuer, PinnedKeySet, Provider, RemoteKeySet, TokenRules

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


async def _no_owner(_: object) -> None:
    return None


def test_another_refusal_than_of_the_token_is_final(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raised by an issuer of the application's own: a later configuration that accepts the token does not undo it."""
    first, second = ID.made(grants="scp"), ACCESS.made(grants="scp")

    def ended(*_: Any) -> Any:
        raise CredentialRefused("token_revoked")

    monkeypatch.setattr(first, "authenticate", ended)
    with refused_with("token_revoked"):
        enter(authenticator(first, second), ACCESS.token())
    awaiting = AsyncAuthenticator(
        AsyncMemoryKeyStore(),
        find_owner=_no_owner,
        issuers=[first, second],
        find_external_owner=_no_owner,
        clock=FrozenClock(),
    )
    with refused_with("token_revoked"):
        asyncio.run(awaiting.authenticate([f"Bearer {ACCESS.token()}"]))
    assert not enter(authenticator(second), ACCESS.token()).is_interactive


def test_the_kind_selects_in_any_order() -> None:
    for issuers in ([ACCESS, ID], [ID, ACCESS]):
        auth = authenticator(*(each.made(grants="scp") for each in issuers))
        machine, person = enter(auth, ACCESS.token()), enter(auth, ID.token())
        assert (machine.is_interactive, machine.permissions) == (False, {"tasks:read"})
        assert (person.is_interactive, person.permissions) == (True, frozenset())
        for token in (ACCESS.token(aud="other"), ID.token(aud="other"), ID.token(events={})):
            with refused_with("token_invalid"):
                enter(auth, token)


def test_the_audience_selects_the_grants_and_the_rule() -> None:
    keys = PinnedKeySet(jwks(str(ACCESS.header["kid"]), "RS256"))
    hydra = partial(ExternalIssuer, Provider.OIDC, "https://hydra.example.com/", keys=keys)
    auth = authenticator(
        hydra(audience="read", grants=lambda _: ["tasks:read"]),
        hydra(audience="run", grants=None, interactive=lambda _: True),
    )
    reader, runner = enter(auth, ACCESS.token(aud="read")), enter(auth, ACCESS.token(aud="run"))
    assert (reader.permissions, reader.is_interactive) == ({"tasks:read"}, False)
    assert (runner.permissions, runner.is_interactive) == (PERMISSIONS, True)


def test_a_token_that_is_expired_for_one_audience_may_be_valid_for_another() -> None:
    strict = ACCESS.made(audience="strict", grants="scp", leeway=timedelta(0))
    lenient = ACCESS.made(audience="lenient", grants="scp", leeway=timedelta(minutes=1))
    late = ACCESS.token(aud=["strict", "lenient"], iat=T - 600, nbf=T - 600, exp=T - 30)
    with refused_with("token_expired"):
        enter(authenticator(strict), late)
    assert enter(authenticator(strict, lenient), late).permissions == {"tasks:read"}


def test_the_tenant_selects() -> None:
    shape = SHAPES["GitHub Actions"]
    keys = shape.issuer.keys
    auth = authenticator(
        *(
            ExternalIssuer(
                Provider.GITHUB_ACTIONS,
                owner,
                audience="https://api.example.com",
                grants=None,
                keys=keys,
            )
            for owner in ("octo-org", "hubot")
        )
    )
    for owner in ("octo-org", "hubot"):
        assert enter(auth, shape.token(repository_owner=owner)).identity is not None
    with refused_with("token_invalid"):
        enter(auth, shape.token(repository_owner="attacker"))


def test_an_expired_token_is_called_expired_by_the_configuration_that_it_is_for() -> None:
    for issuers in ([ACCESS, ID], [ID, ACCESS]):
        auth = authenticator(*(each.issuer for each in issuers))
        with refused_with("token_expired"):
            enter(auth, ID.token(iat=T - 900, exp=T - 600, auth_time=T - 900, rat=T - 900))
        with refused_with("token_invalid"):
            enter(auth, ID.token(iat=T - 900, exp=T - 600, aud="other"))


def test_a_token_that_its_issuer_refuses_reaches_no_function_in_logins() -> None:
    asked: list[str] = []
    auth = authenticator(ACCESS.issuer, ID.issuer, logins=[asked.append])
    with refused_with("token_invalid"):
        enter(auth, ID.token(aud="other"))
    assert asked == []


google = partial(ExternalIssuer, Provider.GOOGLE, grants=None)
gitlab = partial(ExternalIssuer, Provider.GITLAB_CI, audience="a", grants=None)
oidc = partial(ExternalIssuer, Provider.OIDC, audience="a", grants=None)

SAME: dict[str, Callable[[], list[ExternalIssuer]]] = {
    "the same": lambda: [ACCESS.made(), ACCESS.made()],
    # Nothing would select the second.
    "another rule": lambda: [ACCESS.made(), ACCESS.made(interactive=lambda _: True)],
    "other grants": lambda: [ACCESS.made(), ACCESS.made(grants="scp")],
    "other spellings": lambda: [google(audience="c"), google(audience=["c"])],
    "own rules": lambda: [SHAPES["Zitadel, ID"].made(), SHAPES["Zitadel, ID"].made()],
    "a group": lambda: [gitlab("acme"), gitlab("acme", issuer="https://gitlab.com")],
}
DIFFERENT: dict[str, Callable[[], list[ExternalIssuer]]] = {
    "a kind": lambda: [ACCESS.made(), ID.made()],
    "a domain": lambda: [google(audience="c"), google(audience="c", required={"hd": "a"})],
    "a required claim": lambda: [ACCESS.made(), ACCESS.made(required={"org": "acme"})],
    "a lifetime": lambda: [ACCESS.made(), ACCESS.made(max_lifetime=timedelta(minutes=1))],
    "bound tokens": lambda: [ACCESS.made(), ACCESS.made(allow_bound=True)],
    "groups": lambda: [gitlab("acme"), gitlab("other")],
    "own rules": lambda: [
        oidc("https://a.example", token=TokenRules(kind="access", **own))
        for own in ({}, {"requires": ("uid",)}, {"requires": ("jti",)}, {"audience": "azp"})
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
    with pytest.raises(ConfigurationError, match="Two token profiles have the same issuer"):
        Authenticator(MemoryKeyStore(), find_owner=lambda _: None, tokens=[own, own])


def test_configurations_of_one_issuer_share_its_keys_unless_they_are_given() -> None:
    given = ACCESS.made(allow_bound=True)
    pinned = given.keys
    fetching = [oidc("https://hydra.example.com/", audience=name) for name in ("a", "b")]
    other = oidc("https://other.example")
    assert fetching[0].keys is not fetching[1].keys
    authenticator(*fetching, other, given)
    assert fetching[0].keys is fetching[1].keys
    assert isinstance(fetching[0].keys, RemoteKeySet)
    assert other.keys is not fetching[0].keys
    assert given.keys is pinned
