"""Read by type checkers: the application's own user class reaches its handlers."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, assert_type

from fastapi import APIRouter, FastAPI, WebSocket
from fastapi.params import Depends, Security
from fastapi.testclient import TestClient
from starlette.requests import HTTPConnection

from msk_auth import AsyncAuthenticator, Authenticator, Owner, Policy, Principal
from msk_auth.integrations.fastapi import FastAPIAuth
from msk_auth.stores.memory import AsyncMemoryKeyStore, MemoryKeyStore
from msk_auth.testing import key_headers


@dataclass
class User:
    name: str


async def find_owner(owner_id: str) -> Owner[User] | None:
    return Owner(owner_id, frozenset(), User(owner_id))


authenticator = AsyncAuthenticator(AsyncMemoryKeyStore(), find_owner=find_owner)
assert_type(authenticator, AsyncAuthenticator[User])

auth = FastAPIAuth(authenticator)
assert_type(auth, FastAPIAuth[User])
assert_type(auth.principal, Security)
assert_type(auth.require("tasks:read"), Security)
assert_type(auth.require_key("hooks"), Security)
assert_type(auth.require_interactive("admin", max_age=timedelta(minutes=5)), Security)
assert_type(auth.key_routes(prefix="/api/keys", operations=["list_keys"]), APIRouter)

app = auth.install(FastAPI())
assert_type(app, FastAPI)

CurrentPrincipal = Annotated[Principal[User], auth.principal]


@app.get("/me", dependencies=[auth.require("tasks:read")])
async def me(principal: CurrentPrincipal) -> str:
    assert_type(principal, Principal[User])
    assert_type(principal.owner, Owner[User])
    assert_type(principal.user, User)
    return principal.user.name


async def load_user(owner_id: Annotated[str, auth.owner_id]) -> User | None:
    return User(owner_id)


assert_type(auth.user("tasks:read", "tasks:run"), Depends)
CurrentUser = Annotated[User, auth.user(load_user=load_user)]
Reader = Annotated[User, auth.user("tasks:read", load_user=load_user)]


@app.get("/name")
async def name(user: CurrentUser) -> str:
    return assert_type(user, User).name


@app.get("/tasks")
async def tasks(reader: Reader) -> str:
    return assert_type(reader, User).name


@app.websocket("/ws")
async def ws(websocket: WebSocket, principal: CurrentPrincipal) -> None:
    assert_type(principal.user.name, str)


async def by_hand(connection: HTTPConnection) -> None:
    assert_type(await auth.admit(connection, Policy()), Principal[User])


def find_owner_blocking(owner_id: str) -> Owner[User] | None:
    return Owner(owner_id, frozenset(), User(owner_id))


blocking = Authenticator(MemoryKeyStore(), find_owner=find_owner_blocking)
synchronous = FastAPIAuth(blocking)
assert_type(synchronous, FastAPIAuth[User])
assert_type(synchronous.authenticator, AsyncAuthenticator[User])
assert_type(synchronous.blocking, Authenticator[User])
late = FastAPIAuth[User]()
late.install(FastAPI(), authenticator)
late.install(FastAPI(), blocking)

FastAPIAuth("a secret")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
auth.user(load_user)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
auth.require(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
auth.require_interactive(max_age=300)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def headers_of_a_synchronous_test(client: TestClient) -> None:
    assert_type(key_headers(blocking, "ada"), dict[str, str])
    assert_type(key_headers(authenticator, "ada", portal=client.portal), dict[str, str])
