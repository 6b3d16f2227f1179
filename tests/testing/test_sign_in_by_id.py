"""The headers of a login or a key, by the id of an owner."""

from __future__ import annotations

import asyncio
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
    require_interactive,
)
from msk_auth.errors import ConfigurationError, LoginTooOld
from msk_auth.stores.memory import AsyncMemoryKeyStore, MemoryKeyStore
from msk_auth.testing import BackgroundLoop, async_key_headers, key_headers, login_headers

ADA = Owner("ada", {"tasks:read", "tasks:run"}, "Ada")


def find_login(credential: str) -> Login | None:
    return Login("ada") if credential == "own" else None


def test_a_blocking_authenticator_with_logins() -> None:
    auth = Authenticator(MemoryKeyStore(), find_owner={"ada": ADA}.get, logins=[find_login])
    headers = login_headers(auth, "ada", since=timedelta(hours=2))
    login_headers(auth, ADA)
    principal = auth.authenticate([headers["Authorization"]])
    assert (principal.owner.id, principal.kind) == ("ada", CredentialKind.INTERACTIVE)
    with pytest.raises(LoginTooOld):
        auth.authorize(principal, require_interactive(max_age=timedelta(hours=1)))
    assert auth.authenticate(["Bearer own"]).owner.id == "ada"
    with refused_with("token_invalid"):
        auth.authenticate(["Bearer nobody"])
    narrow = key_headers(auth, "ada", scopes=["tasks:read"])
    assert auth.authenticate([narrow["Authorization"]]).permissions == {"tasks:read"}
    assert (
        auth.authenticate([key_headers(auth, "ada")["Authorization"]]).permissions
        == ADA.permissions
    )


def test_an_asynchronous_authenticator_with_logins() -> None:
    async def main() -> None:
        async def find_owner(owner_id: str) -> Owner[str] | None:
            return {"ada": ADA}.get(owner_id)

        auth = AsyncAuthenticator(AsyncMemoryKeyStore(), find_owner=find_owner, logins=[find_login])
        for headers in (login_headers(auth, "ada"), await async_key_headers(auth, "ada")):
            assert (await auth.authenticate([headers["Authorization"]])).owner.id == "ada"

    asyncio.run(main())


def asynchronous() -> AsyncAuthenticator[str]:
    async def find_owner(owner_id: str) -> Owner[str] | None:
        return {"ada": ADA}.get(owner_id)

    return AsyncAuthenticator(AsyncMemoryKeyStore(), find_owner=find_owner, logins=[find_login])


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
    auth = asynchronous()
    with BackgroundLoop() as loop:
        portal = Portal(loop)
        headers = key_headers(auth, "ada", scopes=["tasks:read"], portal=portal)
        principal = loop.run(auth.authenticate([headers["Authorization"]]))
    assert (principal.owner.id, principal.permissions) == ("ada", {"tasks:read"})
    assert portal.threads.isdisjoint({threading.get_ident()})
    assert len(portal.threads) == 1


def test_without_a_portal_it_says_where_to_get_one() -> None:
    # A client of Starlette that no `with` statement holds has None.
    with pytest.raises(ConfigurationError, match=r"with TestClient\(app\) as client"):
        key_headers(asynchronous(), "ada", portal=None)
