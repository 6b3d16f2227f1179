"""What a request to an MCP server costs behind the gate, beside the Starlette adapter and the SDKs' own verifier.

All of them stand in front of the same servers, and verify the same key under a lease. Beside the servers of the SDKs there is one
that does no more than answer, where the gate's own work is most of it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.auth.middleware.bearer_auth import BearerAuthBackend, RequireAuthMiddleware
from mcp.server.auth.provider import AccessToken
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tests.integrations.mcp_servers import SDKS, URL, living, make_server

from msk_auth import AsyncAuthenticator
from msk_auth.integrations.mcp import McpAuth
from msk_auth.integrations.starlette import StarletteAuth
from msk_auth.stores.memory import AsyncMemoryKeyStore

from . import subjects
from .machine import describe
from .result import Column, Result
from .timing import Scale, Work, rows, take_turns

PERMISSION = "tasks:read"
NAMES = {"official": "official SDK", "fastmcp": "FastMCP", "plain": "plain ASGI"}
TOOLS = ("whoami", "run", "reset", "unnamed", "wait")
REQUESTS: dict[str, tuple[str, dict[str, object]]] = {
    "call of a tool": ("tools/call", {"name": "unnamed", "arguments": {}}),
    "listing of five tools": ("tools/list", {}),
}


async def plain_server(scope: Any, receive: Any, send: Any) -> None:
    """Answers a message as a server would, and does nothing else."""
    message = json.loads((await receive())["body"])
    result: object = {"content": [{"type": "text", "text": "unnamed"}]}
    if message["method"] == "tools/list":
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]}
    body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class HandOn(Response):
    """A response of Starlette that another application gives."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.background = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Let the application respond."""
        await self._app(scope, receive, send)


class Verifier:
    """The `TokenVerifier` that the SDKs suggest."""

    def __init__(self, authenticator: AsyncAuthenticator[str]) -> None:
        self._authenticator = authenticator

    async def verify_token(self, token: str) -> AccessToken | None:
        """What the credential may do."""
        principal = await self._authenticator.authenticate([f"Bearer {token}".encode()])
        scopes = sorted(principal.permissions)
        return AccessToken(token=token, client_id=principal.owner.id, scopes=scopes)


def fronts(authenticator: AsyncAuthenticator[str], server: Any) -> dict[str, Any]:
    """What stands in front of a server, by its name."""
    starlette = StarletteAuth(authenticator)

    @starlette.require(PERMISSION)
    async def endpoint(_: Request) -> Response:
        return HandOn(server)

    mcp = McpAuth(authenticator, resource=URL)
    tools = dict.fromkeys(TOOLS, mcp.require(PERMISSION))
    middleware = [
        Middleware(AuthenticationMiddleware, backend=BearerAuthBackend(Verifier(authenticator))),
        Middleware(AuthContextMiddleware),
    ]
    required = RequireAuthMiddleware(server, [PERMISSION])
    return {
        "Starlette adapter": starlette.install(
            Starlette(routes=[Route("/mcp", endpoint, methods=["POST"])])
        ),
        "gate": mcp.protect(server, tools=tools),
        "SDK's verifier": Starlette(routes=[Route("/mcp", required)], middleware=middleware),
        "nothing": server,
    }


def request(app: Any, key: str, method: str, params: object) -> Callable[[], Awaitable[object]]:
    """A request as a server hands it on, with the headers of the SDK's client."""
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    body = json.dumps(message).encode()
    headers = {
        "host": "127.0.0.1:8000",
        "accept": "application/json, text/event-stream",
        "accept-encoding": "gzip, deflate",
        "user-agent": "python-httpx",
        "content-type": "application/json",
        "content-length": str(len(body)),
        "mcp-protocol-version": "2025-06-18",
        "authorization": f"Bearer {key}",
    }
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def work() -> None:
        parts = [{"type": "http.request", "body": body, "more_body": False}]
        statuses: list[int] = []

        async def receive() -> Any:
            return parts.pop() if parts else await asyncio.Event().wait()

        async def send(part: Any) -> None:
            if part["type"] == "http.response.start":
                statuses.append(part["status"])

        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/mcp",
            "raw_path": b"/mcp",
            "query_string": b"",
            "root_path": "",
            "headers": encoded,
            "client": ("127.0.0.1", 50000),
            "server": ("127.0.0.1", 8000),
            "state": {},
        }
        await app(scope, receive, send)
        assert statuses == [200], statuses

    return work


def works(authenticator: AsyncAuthenticator[str], key: str, servers: dict[str, Any]) -> list[Work]:
    """Each request to each server behind each front."""
    made: list[Work] = []
    for sdk, server in servers.items():
        apps = fronts(authenticator, server)
        for what, (method, params) in REQUESTS.items():
            group = f"{NAMES[sdk]}, {what}"
            reference = f"{group}, Starlette adapter"
            for front, app in apps.items():
                name = f"{group}, {front}"
                call = request(app, key, method, params)
                against = "" if name == reference else reference
                at_most = 1.2 if front == "gate" and sdk in SDKS else None
                made.append(Work(group, name, call, against, at_most, is_async=True))
    return made


def run(scale: Scale) -> Result:
    """Measure it."""
    # They log each request.
    logging.getLogger("mcp").setLevel(logging.WARNING)
    measured = describe("mcp", "fastmcp", "starlette")
    authenticator = subjects.async_authenticator(AsyncMemoryKeyStore(), lease=subjects.LONG_LEASE)
    auth: McpAuth[Any] = McpAuth(authenticator, resource=URL)
    servers = {sdk: make_server(sdk, "stateless", auth, asyncio.Event()) for sdk in SDKS}
    alive = AsyncExitStack()

    async def start() -> str:
        for server in servers.values():
            await alive.enter_async_context(living(server))
        created = await authenticator.create_key(subjects.interactive(), name="benchmark")
        return created.value.reveal()

    with asyncio.Runner() as runner:
        key = runner.run(start())
        made = works(authenticator, key, {**servers, "plain": plain_server})
        samples = take_turns(
            made, rounds=scale.pick(2, 40), seconds=scale.pick(1, 300) / 10_000, runner=runner
        )
        runner.run(alive.aclose())
    return Result(
        name="mcp",
        title="A request to an MCP server",
        method="Processor time of one request in process, without a network, to a server that keeps no sessions and logs nothing. The"
        " Starlette adapter guards a route that hands the request on.",
        columns=[Column("time", "Time", "µs"), Column("ratio", "Ratio")],
        rows=rows(made, samples),
        measured=measured,
    )
