"""The application of `adapters.py`, in Starlette."""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.endpoints import WebSocketEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket
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

from msk_auth import AsyncAuthenticator, Authenticator
from msk_auth.errors import TooManyAttempts
from msk_auth.integrations.starlette import StarletteAuth


def starlette_app(
    authenticator: AsyncAuthenticator[User] | Authenticator[User],
    *,
    late: bool = False,
    **options: Any,
) -> Starlette:
    auth = StarletteAuth[User](None if late else authenticator, **options)

    async def public(request: Request) -> Response:
        return JSONResponse({"public": True})

    async def describe_caller(request: Request) -> Response:
        return JSONResponse(describe(auth.principal(request)))

    @auth.require("tasks:run")
    def run(request: Request) -> Response:
        return JSONResponse(describe(auth.principal(request)))

    @auth.require_interactive("admin:config")
    async def config(request: Request) -> Response:
        return JSONResponse({"config": True})

    @auth.require()
    async def missing(request: Request) -> Response:
        raise TaskNotFound

    async def busy(request: Request) -> Response:
        raise TooManyAttempts(30)

    async def boom(request: Request) -> Response:
        raise Surprise("the password is swordfish")

    @auth.require()
    async def ws(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_json(describe(auth.principal(websocket)))
        await websocket.close()

    @auth.require_interactive()
    async def ws_admin(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.close()

    @auth.require()
    async def ws_missing(websocket: WebSocket) -> None:
        raise TaskNotFound

    class Conversation(WebSocketEndpoint):
        encoding = "text"

        @auth.require()
        async def on_connect(self, websocket: WebSocket) -> None:
            await websocket.accept()

        async def on_receive(self, websocket: WebSocket, data: str) -> None:
            await websocket.send_text(talk(data, auth.principal(websocket)))

    @auth.require()
    async def ws_watch(websocket: WebSocket) -> None:
        principal = auth.principal(websocket)
        await websocket.accept()
        async with auth.watch(principal):
            await outstay(auth.authenticator, principal)

    @auth.require()
    async def ws_again(websocket: WebSocket) -> None:
        await websocket.accept()
        await revoke(auth.authenticator, auth.principal(websocket))
        await auth.verify_again(websocket)

    class Admitting(WebSocketEndpoint):
        encoding = "text"

        @auth.require()
        async def on_connect(self, websocket: WebSocket) -> None:
            await websocket.accept()

        @auth.require()
        async def on_receive(self, websocket: WebSocket, data: str) -> None:
            await revoke(auth.authenticator, auth.principal(websocket))
            # As the next text would be.
            await self.on_receive(websocket, data)

    @auth.require()
    async def follow(request: Request) -> Response:
        principal = auth.principal(request)
        return StreamingResponse(auth.watch(principal).stream(lines(auth.authenticator, principal)))

    @auth.require()
    async def again(request: Request) -> Response:
        await revoke(auth.authenticator, auth.principal(request))
        await auth.verify_again(request)
        return Response()

    about = auth.require("tasks:read", resource="task:{task_id}")(describe_caller)
    both = auth.require("tasks:read")(auth.require("tasks:run")(describe_caller))
    app = Starlette(
        routes=[
            Route("/public", public),
            Route("/me", auth.require()(describe_caller)),
            Route("/whoami", auth.any_credential()(describe_caller)),
            Route("/api/own-keys", auth.any_credential()(describe_caller)),
            Route("/beside", auth.require()(auth.require("tasks:read")(describe_caller))),
            Route("/tasks", auth.require("tasks:read")(describe_caller)),
            Route("/tasks/run", run, methods=["POST"]),
            Route("/about/{task_id}", about),
            Route("/both", both),
            Route("/admin/config", config, methods=["GET", "PATCH"]),
            Route(
                "/fresh",
                auth.require_interactive(max_age=MAX_AGE)(describe_caller),
                methods=["POST"],
            ),
            Route("/login", auth.require_login()(describe_caller)),
            Route("/key", auth.require_key()(describe_caller)),
            Route("/hook", auth.require_key("tasks:run")(describe_caller), methods=["POST"]),
            Route("/missing", missing),
            Route("/busy", busy),
            Route("/boom", boom),
            WebSocketRoute("/ws", ws),
            WebSocketRoute("/ws/admin", ws_admin),
            WebSocketRoute("/ws/missing", ws_missing),
            WebSocketRoute("/ws/talk", Conversation),
            WebSocketRoute("/ws/watch", ws_watch),
            WebSocketRoute("/ws/again", ws_again),
            WebSocketRoute("/ws/admit", Admitting),
            Route("/follow", follow),
            Route("/again", again),
            *auth.key_routes(prefix="/api/keys"),
            *auth.key_routes(prefix="/api/own-keys", operations=["create_key", "revoke_key"]),
            *auth.admin_key_routes("admin:config", max_age=MAX_AGE),
        ]
    )
    auth.install(app, authenticator if late else None, errors="all")
    return app
