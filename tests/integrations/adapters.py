"""The same application in every framework, and a client that speaks raw ASGI to it.

To add an adapter: build this application with it, and add it to `ADAPTERS`.

::

    GET  /public          anybody
    GET  /me              authenticated
    GET  /tasks           tasks:read
    POST /tasks/run       tasks:run
    GET  /both            tasks:read and tasks:run, as two guards
    *    /admin/config    interactive, admin:config (GET and PATCH)
    POST /fresh           interactive, logged in within the last 15 minutes
    GET  /missing         authenticated; raises a problem of the application's own
    GET  /busy            anybody; raises TooManyAttempts
    GET  /boom            anybody; raises what nobody expects
    WS   /ws              authenticated; says who it is
    WS   /ws/admin        interactive
         /api/keys        the key routes
"""

# No `from __future__ import annotations`: FastAPI reads the annotations of local names.

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import FastAPI, WebSocket
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket as StarletteWebSocket
from tests.integrations.flask_app import flask_app
from tests.integrations.litestar_app import litestar_app
from tests.integrations.world import MAX_AGE, Surprise, TaskNotFound, User, describe

from msk_auth import AsyncAuthenticator, Principal, TooManyAttempts
from msk_auth.integrations.fastapi import FastAPIAuth
from msk_auth.integrations.starlette import StarletteAuth


def fastapi_app(authenticator: AsyncAuthenticator[User]) -> FastAPI:
    auth = FastAPIAuth(authenticator)
    app = FastAPI()
    auth.install(app)
    app.include_router(auth.key_routes(prefix="/api/keys"))
    Current = Annotated[Principal[User], auth.principal]  # noqa: N806 - it is a type

    @app.get("/public")
    async def public() -> dict[str, Any]:
        return {"public": True}

    @app.get("/me")
    async def me(principal: Current) -> dict[str, Any]:
        return describe(principal)

    @app.get("/tasks")
    async def tasks(
        principal: Annotated[Principal[User], auth.require("tasks:read")],
    ) -> dict[str, Any]:
        return describe(principal)

    @app.post("/tasks/run", dependencies=[auth.require("tasks:run")])
    def run(principal: Current) -> dict[str, Any]:
        return describe(principal)

    @app.get("/both", dependencies=[auth.require("tasks:read"), auth.require("tasks:run")])
    async def both(principal: Current) -> dict[str, Any]:
        return describe(principal)

    @app.get("/admin/config", dependencies=[auth.require_interactive("admin:config")])
    async def read_config() -> dict[str, Any]:
        return {"config": True}

    @app.patch("/admin/config", dependencies=[auth.require_interactive("admin:config")])
    async def change_config() -> dict[str, Any]:
        return {"config": True}

    @app.post("/fresh")
    async def fresh(
        principal: Annotated[Principal[User], auth.require_interactive(max_age=MAX_AGE)],
    ) -> dict[str, Any]:
        return describe(principal)

    @app.get("/missing")
    async def missing(principal: Current) -> None:
        raise TaskNotFound

    @app.get("/busy")
    async def busy() -> None:
        raise TooManyAttempts(30)

    @app.get("/boom")
    async def boom() -> None:
        raise Surprise("the password is swordfish")

    @app.websocket("/ws")
    async def ws(websocket: WebSocket, principal: Current) -> None:
        await websocket.accept()
        await websocket.send_json(describe(principal))
        await websocket.close()

    @app.websocket("/ws/admin", dependencies=[auth.require_interactive()])
    async def ws_admin(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.close()

    return app


def starlette_app(authenticator: AsyncAuthenticator[User]) -> Starlette:
    auth = StarletteAuth(authenticator)

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
    async def ws(websocket: StarletteWebSocket) -> None:
        await websocket.accept()
        await websocket.send_json(describe(auth.principal(websocket)))
        await websocket.close()

    @auth.require_interactive()
    async def ws_admin(websocket: StarletteWebSocket) -> None:
        await websocket.accept()
        await websocket.close()

    both = auth.require("tasks:read")(auth.require("tasks:run")(describe_caller))
    app = Starlette(
        routes=[
            Route("/public", public),
            Route("/me", auth.require()(describe_caller)),
            Route("/tasks", auth.require("tasks:read")(describe_caller)),
            Route("/tasks/run", run, methods=["POST"]),
            Route("/both", both),
            Route("/admin/config", config, methods=["GET", "PATCH"]),
            Route(
                "/fresh",
                auth.require_interactive(max_age=MAX_AGE)(describe_caller),
                methods=["POST"],
            ),
            Route("/missing", missing),
            Route("/busy", busy),
            Route("/boom", boom),
            WebSocketRoute("/ws", ws),
            WebSocketRoute("/ws/admin", ws_admin),
            *auth.key_routes(prefix="/api/keys"),
        ]
    )
    auth.install(app)
    return app


ADAPTERS: dict[str, Callable[[AsyncAuthenticator[User]], Any]] = {
    "fastapi": fastapi_app,
    "starlette": starlette_app,
    "litestar": litestar_app,
    "flask": flask_app,
}
STARLETTE_BASED = ["fastapi", "starlette"]
WITH_WEBSOCKETS = [*STARLETTE_BASED, "litestar"]


@dataclass(frozen=True)
class Reply:
    """What came back."""

    status: int
    raw_headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        """The header's value; None if it is missing. Twice is an error."""
        values = [value.decode() for key, value in self.raw_headers if key == name.encode()]
        assert len(values) <= 1, f"{name} was sent {len(values)} times"
        return values[0] if values else None

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def send(
    app: Any,
    method: str,
    target: bytes,
    headers: list[tuple[bytes, bytes]] | None = None,
    body: bytes = b"",
    *,
    chunks: list[bytes] | None = None,
    **more: Any,
) -> Reply:
    """One request with exactly these bytes, as a server would hand it on.

    An unexpected exception in the application is swallowed after the answer, as a server does.
    """
    path, _, query = target.partition(b"?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path.decode("latin-1"),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": [(b"host", b"tasks.test"), *(headers or [])],
        "client": ("192.0.2.1", 50000),
        "server": ("192.0.2.2", 80),
        "state": {},
        **more,
    }
    pending = [body] if chunks is None else list(chunks)
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if not pending:
            return {"type": "http.disconnect"}
        chunk = pending.pop(0)
        return {"type": "http.request", "body": chunk, "more_body": bool(pending)}

    async def receive_answer(message: dict[str, Any]) -> None:
        sent.append(message)

    with suppress(Surprise):
        await app(scope, receive, receive_answer)
    start, *rest = sent
    content = b"".join(message.get("body", b"") for message in rest)
    return Reply(start["status"], tuple(start["headers"]), content)
