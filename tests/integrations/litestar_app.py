"""The application of `adapters.py`, in Litestar."""

# No `from __future__ import annotations`: Litestar reads the annotations of local names.

from typing import Any

from litestar import Litestar, Request, WebSocket, get, post, route, websocket
from litestar.enums import HttpMethod
from litestar.response import Stream
from tests.contract.adapter import (
    MAX_AGE,
    Surprise,
    TaskNotFound,
    User,
    describe,
    lines,
    outstay,
    revoke,
    talk,
)
from tests.integrations.litestar_di import NamedDependency

from msk_auth import AsyncAuthenticator, Authenticator, Policy, Principal
from msk_auth.errors import TooManyAttempts
from msk_auth.integrations.litestar import LitestarAuth

Current = NamedDependency[Principal[User]]


def litestar_app(
    authenticator: AsyncAuthenticator[User] | Authenticator[User],
    *,
    late: bool = False,
    **options: Any,
) -> Litestar:
    auth = LitestarAuth[User](None if late else authenticator, errors="all", **options)

    @get("/public", opt=auth.public)
    async def public() -> dict[str, Any]:
        return {"public": True}

    async def describe_caller(principal: Current) -> dict[str, Any]:
        return describe(principal)

    @get("/tasks", guards=[auth.require("tasks:read")])
    async def tasks(request: Request[User, Principal[User], Any]) -> dict[str, Any]:
        return describe(request.auth)

    @post("/tasks/run", guards=[auth.require("tasks:run")], status_code=200, sync_to_thread=True)
    def run(principal: Current) -> dict[str, Any]:
        return describe(principal)

    @route(
        "/admin/config",
        http_method=[HttpMethod.GET, HttpMethod.PATCH],
        guards=[auth.require_interactive("admin:config")],
    )
    async def config() -> dict[str, Any]:
        return {"config": True}

    @get("/missing", guards=[auth.require()])
    async def missing() -> None:
        raise TaskNotFound

    @get("/busy", opt=auth.public)
    async def busy() -> None:
        raise TooManyAttempts(30)

    @get("/boom", opt=auth.public)
    async def boom() -> None:
        raise Surprise("the password is swordfish")

    @websocket("/ws", guards=[auth.require()])
    async def ws(socket: WebSocket[User, Principal[User], Any]) -> None:
        await socket.accept()
        await socket.send_json(describe(socket.auth))
        await socket.close()

    @websocket("/ws/admin", guards=[auth.require_interactive()])
    async def ws_admin(socket: WebSocket[Any, Any, Any]) -> None:
        await socket.accept()
        await socket.close()

    @websocket("/ws/missing", guards=[auth.require()])
    async def ws_missing(socket: WebSocket[Any, Any, Any]) -> None:
        raise TaskNotFound

    @websocket("/ws/talk", guards=[auth.require()])
    async def ws_talk(socket: WebSocket[User, Principal[User], Any]) -> None:
        await socket.accept()
        while True:
            await socket.send_text(talk(await socket.receive_text(), socket.auth))

    @websocket("/ws/watch", guards=[auth.require()])
    async def ws_watch(socket: WebSocket[User, Principal[User], Any]) -> None:
        await socket.accept()
        async with auth.watch(socket.auth):
            await outstay(auth.authenticator, socket.auth)

    @websocket("/ws/again", guards=[auth.require()])
    async def ws_again(socket: WebSocket[User, Principal[User], Any]) -> None:
        await socket.accept()
        await revoke(auth.authenticator, socket.auth)
        await auth.verify_again(socket)

    @websocket("/ws/admit", guards=[auth.require()])
    async def ws_admit(socket: WebSocket[User, Principal[User], Any]) -> None:
        await socket.accept()
        await revoke(auth.authenticator, socket.auth)
        await auth.admit(socket, Policy())

    @get("/follow", guards=[auth.require()])
    async def follow(principal: Current) -> Stream:
        return Stream(auth.watch(principal).stream(lines(auth.authenticator, principal)))

    @get("/again", guards=[auth.require()])
    async def again(request: Request[User, Principal[User], Any]) -> None:
        await revoke(auth.authenticator, request.auth)
        await auth.verify_again(request)

    described = {
        "/me": [auth.require()],
        "/whoami": [auth.any_credential()],
        "/beside": [auth.require(), auth.require("tasks:read")],
        "/about/{task_id:str}": [auth.require("tasks:read", resource="task:{task_id}")],
        "/both": [auth.require("tasks:read"), auth.require("tasks:run")],
        "/login": [auth.require_login()],
        "/key": [auth.require_key()],
    }
    posted = {
        "/fresh": [auth.require_interactive(max_age=MAX_AGE)],
        "/hook": [auth.require_key("tasks:run")],
    }
    some = auth.key_routes(path="/api/own-keys", operations=["create_key", "revoke_key"])
    some.register(get("/", guards=[auth.any_credential()])(describe_caller))
    return Litestar(
        [
            *(get(path, guards=guards)(describe_caller) for path, guards in described.items()),
            *(
                post(path, guards=guards, status_code=200)(describe_caller)
                for path, guards in posted.items()
            ),
            *(public, tasks, run, config, missing, busy, boom, follow, again),
            *(ws, ws_admin, ws_missing, ws_talk, ws_watch, ws_again, ws_admit),
            auth.key_routes(path="/api/keys"),
            some,
            auth.admin_key_routes("admin:config", max_age=MAX_AGE),
        ],
        plugins=[auth.bind(authenticator) if late else auth],
        # Its own would replace that of the test run.
        logging_config=None,
    )
