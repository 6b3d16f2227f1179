"""The credentials that tests of an application are handed."""

from __future__ import annotations

from datetime import timedelta

import pytest

from msk_auth import (
    AsyncAuthenticator,
    Authenticator,
    CredentialKind,
    Owner,
    Session,
    SigningKey,
    TokenProfile,
    require_interactive,
)
from msk_auth.errors import ConfigurationError, LoginTooOld
from msk_auth.stores.memory import AsyncMemoryKeyStore, MemoryKeyStore
from msk_auth.testing import FrozenClock, async_key_headers, key_headers, login_headers

ADA = Owner("ada", frozenset({"tasks:read", "tasks:run"}), "Ada")
PROFILE = TokenProfile(
    issuer="https://tasks.test",
    audience="tasks",
    keys=[SigningKey("test", "HS256", b"a secret of at least thirty-two bytes")],
    max_lifetime=timedelta(minutes=30),
)


def make(**options: object) -> Authenticator[str]:
    return Authenticator(
        MemoryKeyStore(),
        find_owner={"ada": ADA}.get,
        clock=FrozenClock(),
        **{"tokens": PROFILE, **options},  # type: ignore[arg-type]
    )


def value(headers: dict[str, str]) -> list[bytes]:
    assert headers.keys() == {"Authorization"}
    return [headers["Authorization"].encode()]


def test_a_login_is_interactive() -> None:
    authenticator = make()
    principal = authenticator.authenticate(value(login_headers(authenticator, ADA)))
    assert (principal.owner, principal.kind) == (ADA, CredentialKind.INTERACTIVE)


def test_a_login_may_have_been_long_ago() -> None:
    authenticator = make()
    headers = login_headers(authenticator, ADA, since=timedelta(hours=2))
    principal = authenticator.authenticate(value(headers))
    with pytest.raises(LoginTooOld):
        authenticator.authorize(principal, require_interactive(max_age=timedelta(hours=1)))


def test_a_login_names_its_session() -> None:
    sessions = {"s1": Session("s1", "ada")}
    authenticator = make(find_session=sessions.get)
    principal = authenticator.authenticate(
        value(login_headers(authenticator, ADA, session_id="s1"))
    )
    assert principal.session_id == "s1"
    with pytest.raises(ConfigurationError, match="session_id"):
        login_headers(authenticator, ADA)


def test_an_authenticator_of_keys_alone_has_no_logins() -> None:
    with pytest.raises(ConfigurationError, match="tokens="):
        login_headers(make(tokens=()), ADA)


def test_a_key_is_no_login() -> None:
    authenticator = make()
    principal = authenticator.authenticate(
        value(key_headers(authenticator, ADA, scopes=["tasks:read"]))
    )
    assert principal.kind is CredentialKind.API_KEY
    assert principal.permissions == {"tasks:read"}


@pytest.mark.anyio
async def test_a_key_of_an_asynchronous_authenticator() -> None:
    async def find_owner(owner_id: str) -> Owner[str] | None:
        return ADA if owner_id == "ada" else None

    authenticator = AsyncAuthenticator(
        AsyncMemoryKeyStore(), find_owner=find_owner, tokens=PROFILE, clock=FrozenClock()
    )
    keyed = await authenticator.authenticate(value(await async_key_headers(authenticator, ADA)))
    assert (keyed.kind, keyed.permissions) == (CredentialKind.API_KEY, ADA.permissions)
    login = await authenticator.authenticate(value(login_headers(authenticator, ADA)))
    assert login.kind is CredentialKind.INTERACTIVE
