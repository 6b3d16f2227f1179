"""The credentials that tests of an application are handed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.cases import refused_with

from msk_auth import (
    AsyncAuthenticator,
    Authenticator,
    CredentialKind,
    Login,
    Owner,
    Session,
    SigningKey,
    TokenProfile,
    require_interactive,
)
from msk_auth.errors import ConfigurationError, LoginTooOld
from msk_auth.stores.memory import AsyncMemoryKeyStore, MemoryKeyStore
from msk_auth.testing import (
    BackgroundLoop,
    FrozenClock,
    async_key_headers,
    key_headers,
    login_headers,
)

ADA = Owner("ada", frozenset({"tasks:read", "tasks:run"}), "Ada")
PROFILE = TokenProfile(
    issuer="https://tasks.test",
    audience="tasks",
    keys=[SigningKey("test", "HS256", b"a secret of at least thirty-two bytes")],
    max_lifetime=timedelta(minutes=30),
)


def find_login(credential: str) -> Login | None:
    return Login("ada") if credential == "own" else None


# An application has tokens of its own, or functions that find logins.
LOGINS = pytest.mark.parametrize(
    "options", [{"tokens": PROFILE}, {"logins": [find_login]}], ids=["tokens", "logins"]
)
WHO = pytest.mark.parametrize("who", [ADA, "ada"], ids=["owner", "id"])


def make(**options: Any) -> Authenticator[str]:
    return Authenticator(
        MemoryKeyStore(), find_owner={"ada": ADA}.get, clock=FrozenClock(), **options
    )


def make_async(**options: Any) -> AsyncAuthenticator[str]:
    async def find_owner(owner_id: str) -> Owner[str] | None:
        return {"ada": ADA}.get(owner_id)

    return AsyncAuthenticator(
        AsyncMemoryKeyStore(), find_owner=find_owner, clock=FrozenClock(), **options
    )


def value(headers: dict[str, str]) -> list[bytes]:
    assert headers.keys() == {"Authorization"}
    return [headers["Authorization"].encode()]


@LOGINS
@WHO
def test_a_login_is_interactive_and_may_have_been_long_ago(
    who: Owner[str] | str, options: dict[str, Any]
) -> None:
    auth = make(**options)
    principal = auth.authenticate(value(login_headers(auth, who)))
    assert (principal.owner, principal.kind) == (ADA, CredentialKind.INTERACTIVE)
    policy = require_interactive(max_age=timedelta(hours=1))
    auth.authorize(principal, policy)
    old = auth.authenticate(value(login_headers(auth, who, since=timedelta(hours=2))))
    with pytest.raises(LoginTooOld):
        auth.authorize(old, policy)


def test_the_applications_own_logins_go_on() -> None:
    auth = make(logins=[find_login])
    login_headers(auth, ADA)
    assert auth.authenticate(["Bearer own"]).owner.id == "ada"
    with refused_with("token_invalid"):
        auth.authenticate(["Bearer unknown"])


def test_a_login_names_its_session() -> None:
    auth = make(tokens=PROFILE, find_session={"s1": Session("s1", "ada")}.get)
    principal = auth.authenticate(value(login_headers(auth, ADA, session_id="s1")))
    assert principal.session_id == "s1"
    with pytest.raises(ConfigurationError, match="session_id"):
        login_headers(auth, ADA)


def test_an_authenticator_of_keys_alone_has_no_logins() -> None:
    with pytest.raises(ConfigurationError, match="tokens="):
        login_headers(make(), ADA)


@WHO
def test_a_key_is_no_login(who: Owner[str] | str) -> None:
    auth = make()
    principal = auth.authenticate(value(key_headers(auth, who, scopes=["tasks:read"])))
    assert principal.kind is CredentialKind.API_KEY
    assert principal.permissions == {"tasks:read"}
    assert auth.authenticate(value(key_headers(auth, who))).permissions == ADA.permissions


@LOGINS
@WHO
@pytest.mark.anyio
async def test_an_asynchronous_authenticator_has_both(
    who: Owner[str] | str, options: dict[str, Any]
) -> None:
    auth = make_async(**options)
    key = await auth.authenticate(value(await async_key_headers(auth, who)))
    assert (key.kind, key.permissions) == (CredentialKind.API_KEY, ADA.permissions)
    login = await auth.authenticate(value(login_headers(auth, who)))
    assert (login.owner, login.kind) == (ADA, CredentialKind.INTERACTIVE)


class Portal:
    """What test clients have: a loop in another thread."""

    def __init__(self, loop: BackgroundLoop) -> None:
        self._loop = loop
        self.threads: set[int] = set()

    def call(self, func: Callable[[], Any], /) -> Any:
        async def run() -> Any:
            self.threads.add(threading.get_ident())
            return await func()

        return self._loop.run(run())


def test_a_synchronous_test_makes_the_key_on_the_loop_of_its_client() -> None:
    auth = make_async()
    with BackgroundLoop() as loop:
        portal = Portal(loop)
        headers = key_headers(auth, "ada", scopes=["tasks:read"], portal=portal)
        principal = loop.run(auth.authenticate(value(headers)))
    assert (principal.owner.id, principal.permissions) == ("ada", {"tasks:read"})
    assert portal.threads.isdisjoint({threading.get_ident()})
    assert len(portal.threads) == 1


def test_without_a_portal_it_says_where_to_get_one() -> None:
    # A client of Starlette that no `with` statement holds has None.
    with pytest.raises(ConfigurationError, match=r"with TestClient\(app\) as client"):
        key_headers(make_async(), "ada", portal=None)
