"""Read by type checkers: the application's own user class reaches its handlers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

from litestar import Litestar, Request, Router, WebSocket, get, websocket
from litestar.connection import ASGIConnection
from litestar.datastructures import State
from litestar.di import NamedDependency, Provide
from litestar.handlers import BaseRouteHandler
from litestar.testing import TestClient

from msk_auth import AsyncAuthenticator, Owner, Policy, Principal, own_guard, require_interactive
from msk_auth.integrations.litestar import Guard, LitestarAuth
from msk_auth.stores.memory import AsyncMemoryKeyStore
from msk_auth.testing import key_headers


@dataclass
class User:
    name: str


async def find_owner(owner_id: str) -> Owner[User] | None:
    return Owner(owner_id, frozenset(), User(owner_id))


authenticator = AsyncAuthenticator(AsyncMemoryKeyStore(), find_owner=find_owner)
auth = LitestarAuth(
    authenticator,
    default=require_interactive(),
    paths={"/jobs/*": require_interactive("jobs"), "/static/*": None},
    exclude_opt_key="exclude_from_auth",
)
assert_type(auth, LitestarAuth[User])
assert_type(auth.require("tasks:read"), Guard)
assert_type(auth.require_interactive(), Guard)
assert_type(auth.require_key("hooks"), Guard)
assert_type(auth.key_routes(path="/api/keys", operations=["list_keys"]), Router)


@get("/tasks", guards=[auth.require("tasks:read")])
async def tasks(
    principal: NamedDependency[Principal[User]], request: Request[User, Principal[User], State]
) -> str:
    assert_type(principal.user, User)
    assert_type(request.auth, Principal[User])
    assert_type(await auth.admit(request, Policy()), Principal[User])
    return request.user.name


@websocket("/ws", guards=[auth.require()])
async def ws(socket: WebSocket[User, Principal[User], State]) -> None:
    assert_type(socket.auth.user, User)


@get("/health", opt=auth.public)
async def health() -> None: ...


app = Litestar([tasks, ws, health, auth.key_routes()], plugins=[auth])
assert_type(app, Litestar)

LitestarAuth("a secret")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
auth.require(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def load_user(principal: Principal[User]) -> User | None:
    return principal.user


assert_type(auth.user(load_user), Provide)


@own_guard
def is_active(_connection: ASGIConnection[Any, Any, Any, Any], _handler: BaseRouteHandler) -> bool:
    return True


LitestarAuth(authenticator, default=own_guard, paths={"/jobs/*": own_guard, "/health": None})


def headers_of_a_synchronous_test(client: TestClient[Litestar]) -> None:
    assert_type(key_headers(authenticator, "ada", portal=client.blocking_portal), dict[str, str])
