"""Handlers that declare nothing, as other plugins bring them, for tests of the Litestar adapter."""

# No `from __future__ import annotations`: Litestar reads the annotations of local names.

from typing import Any

from litestar import Controller, Request, Response, WebSocket, asgi, get, websocket
from litestar.openapi import OpenAPIConfig
from litestar.types import Receive, Scope, Send


@get("/silent")
async def silent() -> str:
    return "reached"


@websocket("/socket")
async def silent_socket(socket: WebSocket[Any, Any, Any]) -> None:
    await socket.accept()
    await socket.close()


@asgi("/mount", is_mount=True, copy_scope=True)
async def mount(scope: Scope, receive: Receive, send: Send) -> None:
    await Response("reached").to_asgi_response(None, Request(scope))(scope, receive, send)


class Jobs(Controller):
    """As a plugin brings it: a page, and what is below it."""

    path = "/jobs"

    @get()
    async def page(self) -> str:
        return "reached"

    @get("/queues/{queue:str}")
    async def queue(self) -> str:
        return "reached"


def openapi(**more: Any) -> OpenAPIConfig:
    return OpenAPIConfig(title="Tasks", version="1", **more)
