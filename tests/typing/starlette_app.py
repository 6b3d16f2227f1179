"""Read by type checkers: the application's own user class reaches its endpoints."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import assert_type

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route
from starlette.websockets import WebSocket

from msk_auth import AsyncAuthenticator, AsyncUsers, Owner, Policy, Principal, Users
from msk_auth.integrations.starlette import StarletteAuth
from msk_auth.stores.memory import AsyncMemoryKeyStore


@dataclass
class User:
    name: str


async def find_owner(owner_id: str) -> Owner[User] | None:
    return Owner(owner_id, frozenset(), User(owner_id))


auth = StarletteAuth(AsyncAuthenticator(AsyncMemoryKeyStore(), find_owner=find_owner))
assert_type(auth, StarletteAuth[User])
assert_type(auth.key_routes(prefix="/api/keys", operations=["list_keys"]), list[BaseRoute])


@auth.require("tasks:read")
async def tasks(request: Request) -> JSONResponse:
    principal = auth.principal(request)
    assert_type(principal, Principal[User])
    assert_type(principal.user, User)
    return JSONResponse(principal.user.name)


@auth.require_interactive()
def in_a_thread(request: Request) -> JSONResponse:
    return JSONResponse(None)


@auth.require()
async def ws(websocket: WebSocket) -> None:
    assert_type(auth.principal(websocket).user, User)


async def by_hand(request: Request) -> None:
    # A decorated endpoint keeps its parameters and what it returns, and is async.
    assert_type(await tasks(request=request), JSONResponse)
    await tasks("a request")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(await in_a_thread(request), JSONResponse)
    assert_type(await auth.admit(request, Policy()), Principal[User])


app = auth.install(
    Starlette(
        routes=[Route("/tasks", tasks), Route("/in", in_a_thread), *auth.key_routes()],
    )
)
assert_type(app, Starlette)

StarletteAuth("a secret")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
auth.principal("a request")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@auth.user
async def current_user(owner_id: str, request: Request) -> User | None:
    return User(owner_id)


@auth.user
def current_user_blocking(owner_id: str, request: Request) -> User | None:
    return User(owner_id)


def load_account(_session: str, owner_id: str) -> bytes | None:
    return owner_id.encode()


async def load_account_async(_session: str, owner_id: str) -> bytes | None:
    return owner_id.encode()


def owner_of(_account: bytes) -> Owner[User]:
    return Owner("ada", frozenset(), User("Ada"))


def new_session() -> nullcontext[str]:
    return nullcontext("a session")


account = auth.user(AsyncUsers(load_account_async, owner_of, new_session))
account_blocking = auth.user(Users(load_account, owner_of, new_session))


async def load(request: Request) -> None:
    assert_type(await account(request), bytes)
    assert_type(account_blocking(request), bytes)
    assert_type(await current_user(request), User)
    assert_type(current_user_blocking(request), User)
