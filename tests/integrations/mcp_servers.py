"""The same MCP server made with each SDK, behind the gate, and each SDK's client: oldest and newest versions alike."""

from __future__ import annotations

import asyncio
import inspect
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import anyio
import uvicorn

from msk_auth.integrations.mcp import McpAuth

SDKS = ["official", *(["fastmcp"] if find_spec("fastmcp") else [])]
# The SDKs take this one since 2.0 of the official one. They are imported where they are used, by one worker and not by each.
HTTPX = "httpx" if find_spec("mcp") and version("mcp").startswith("1.") else "httpx2"
MODES = ["sessions", "stateless", "json"]
URL = "http://127.0.0.1:8000/mcp"


def make_server(sdk: str, mode: str, auth: McpAuth[Any], waits: asyncio.Event) -> Any:
    """The server's ASGI application, without the gate; `waits` is set while its tool `wait` runs."""
    options = {"stateless": {"stateless_http": True}, "json": {"json_response": True}}.get(mode, {})
    if sdk == "fastmcp":
        from fastmcp import Context as FastContext
        from fastmcp import FastMCP

        server = FastMCP("tasks")
        _fill(server, FastContext, auth, waits)
        return server.http_app(**options)
    try:
        from mcp.server.mcpserver import Context, MCPServer
    except ImportError:
        # The official SDK before 2.0.
        from mcp.server.fastmcp import Context  # type: ignore[no-redef]
        from mcp.server.fastmcp import FastMCP as MCPServer  # type: ignore[no-redef]
    takes = inspect.signature(MCPServer).parameters
    server = MCPServer("tasks", **(options if options.keys() <= takes.keys() else {}))
    _fill(server, Context, auth, waits)
    # Before 2.0 the server has the options, since then the application.
    make: Callable[..., Any] = server.streamable_http_app
    return make(**(options if options.keys() <= inspect.signature(make).parameters.keys() else {}))


def _fill(server: Any, context: Any, auth: McpAuth[Any], waits: asyncio.Event) -> None:
    async def whoami(ctx: Any) -> str:
        return auth.principal(ctx).owner.id

    def run(ctx: Any) -> str:
        return f"run by {auth.principal(ctx).kind.value}"

    def reset() -> str:
        return "reset"

    def unnamed() -> str:
        return "unnamed"

    async def wait() -> str:
        waits.set()
        try:
            await asyncio.sleep(60)
        finally:
            waits.clear()
        return "too late"

    def task(task_id: str) -> str:
        return f"task {task_id}"

    def admin() -> str:
        return "for administrators"

    def plan() -> str:
        return "Plan the day."

    for tool in (whoami, run):
        # Both SDKs pass their own `Context` to the parameter that is annotated with it.
        tool.__annotations__["ctx"] = context
    for tool in (whoami, run, reset, unnamed, wait):
        server.tool(description=f"Shows {tool.__name__}.")(tool)
    server.resource("tasks://{task_id}")(task)
    server.resource("tasks://admin")(admin)
    server.prompt(description="Plans the day.")(plan)


def protect(server: Any, auth: McpAuth[Any]) -> Any:
    """The gate in front of such a server."""
    return auth.protect(
        server,
        tools={
            "whoami": auth.any_credential(),
            "run": auth.require("tasks:run"),
            "reset": auth.require_interactive(),
            "wait": auth.require("tasks:read"),
        },
        resources={
            "tasks://{task_id}": auth.require("tasks:read"),
            "tasks://admin": auth.require("admin:config"),
        },
        prompts={"plan": auth.require("tasks:run"), "reset": auth.require_interactive()},
    )


@asynccontextmanager
async def living(app: Any) -> AsyncIterator[None]:
    """The lifespan of an application, as a server has it."""
    asked: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    answered: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    task = asyncio.create_task(app({"type": "lifespan", "state": {}}, asked.get, answered.put))
    for phase in ("startup", "shutdown"):
        await asked.put({"type": f"lifespan.{phase}"})
        assert await answered.get() == {"type": f"lifespan.{phase}.complete"}
        if phase == "startup":
            yield
    await task


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """A server in this process, on a port of its own."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=5)
        server = uvicorn.Server(config)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listener])
            while not server.started:  # noqa: ASYNC110 - it has no event to wait for
                await anyio.sleep(0.01)
            yield f"http://127.0.0.1:{port}/mcp"
            server.should_exit = True


class Caller:
    """A client of either SDK.

    Attributes:
        statuses: Of every response to a `POST`.
    """

    def __init__(self, session: Any, statuses: list[int]) -> None:
        self._session = session
        self.statuses = statuses

    async def listed(self) -> dict[str, list[str]]:
        """What the listings name."""
        found = {}
        for name in ("tools", "prompts", "resources", "resource_templates"):
            answer = await getattr(self._session, f"list_{name}")()
            if not isinstance(answer, list):
                answer = _either(answer, name)
            found[name] = [
                str(each.name if name in {"tools", "prompts"} else _uri(each)) for each in answer
            ]
        return found

    async def call(self, name: str) -> str:
        """The text of a tool's result."""
        result = await self._session.call_tool(name, {})
        text: str = result.content[0].text
        return text

    async def read(self, uri: str) -> str:
        """The text of a resource."""
        if "AnyUrl" in str(inspect.signature(self._session.read_resource)):
            from pydantic import AnyUrl

            uri = AnyUrl(uri)  # type: ignore[assignment]
        result = await self._session.read_resource(uri)
        text: str = (result if isinstance(result, list) else result.contents)[0].text
        return text


def _either(answer: Any, name: str) -> Any:
    """A member, in snake case since 2.0 of the official SDK."""
    first, *rest = name.split("_")
    camel = first + "".join(map(str.title, rest))
    return getattr(answer, name) if hasattr(answer, name) else getattr(answer, camel)


def _uri(entry: Any) -> Any:
    return entry.uri if hasattr(entry, "uri") else _either(entry, "uri_template")


class LoginServer:
    """The authorization server of the specification's flow, for one person, who always agrees.

    Attributes:
        asked: The parameters of the requests for authorization and for a token.
    """

    def __init__(self, issuer: str, issue: Callable[[str, str], str]) -> None:
        self._issuer = issuer
        self._issue = issue
        self.asked: list[dict[str, str]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve its metadata, the registration of clients, and tokens."""
        body = (await receive()).get("body", b"")
        match scope["path"]:
            case "/.well-known/oauth-authorization-server":
                answer = {
                    "issuer": self._issuer,
                    "authorization_endpoint": f"{self._issuer}/authorize",
                    "token_endpoint": f"{self._issuer}/token",
                    "registration_endpoint": f"{self._issuer}/register",
                    "response_types_supported": ["code"],
                    "code_challenge_methods_supported": ["S256"],
                }
            case "/register":
                answer = {**json.loads(body), "client_id": "agent"}
            case _:
                form = dict(parse_qsl(body.decode()))
                token = self._issue(form["resource"], self.asked[-1]["scope"])
                self.asked.append(form)
                answer = {"access_token": token, "token_type": "Bearer", "expires_in": 300}
        headers = [(b"content-type", b"application/json")]
        status = 201 if scope["path"] == "/register" else 200
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    def login(self) -> Any:
        """What a client of the official SDK logs in with."""
        from mcp.client.auth import OAuthClientProvider
        from mcp.shared import auth

        class Storage:
            tokens = client_info = None

            async def get_tokens(self) -> Any:
                return self.tokens

            async def set_tokens(self, tokens: Any) -> None:
                self.tokens = tokens

            async def get_client_info(self) -> Any:
                return self.client_info

            async def set_client_info(self, client_info: Any) -> None:
                self.client_info = client_info

        async def redirect(url: str) -> None:
            self.asked.append(dict(parse_qsl(urlsplit(url).query)))

        async def callback() -> Any:
            code, state = "code", self.asked[-1]["state"]
            result = getattr(auth, "AuthorizationCodeResult", None)
            return (code, state) if result is None else result(code=code, state=state)

        metadata = auth.OAuthClientMetadata.model_validate(
            {"client_name": "agent", "redirect_uris": ["http://127.0.0.1:9/callback"]}
        )
        return OAuthClientProvider(
            URL,
            metadata,
            Storage(),  # type: ignore[arg-type]
            redirect_handler=redirect,
            callback_handler=callback,
        )


@asynccontextmanager
async def connected(
    sdk: str, headers: dict[str, str], app: Any = None, url: str = URL, auth: Any = None
) -> AsyncIterator[Caller]:
    """A client of an SDK that has initialized its session: with an application in this process, or with a server.

    With `auth` the client of the official SDK logs in.
    """
    statuses: list[int] = []
    httpx = import_module(HTTPX)

    async def note(response: Any) -> None:
        if response.request.method == "POST":
            statuses.append(response.status_code)

    def make_http(**options: Any) -> Any:
        kept = {name: options.get(name) for name in ("headers", "auth") if options.get(name)}
        transport = None if app is None else httpx.ASGITransport(app)
        return httpx.AsyncClient(
            transport=transport, timeout=30, event_hooks={"response": [note]}, **kept
        )

    if sdk == "fastmcp":
        from fastmcp import Client as FastClient
        from fastmcp.client.transports import StreamableHttpTransport

        transport = StreamableHttpTransport(url, headers=headers, httpx_client_factory=make_http)
        async with FastClient(transport) as client:
            yield Caller(client, statuses)
        return
    from mcp import ClientSession

    async with AsyncExitStack() as stack:
        try:
            from mcp.client.streamable_http import streamable_http_client as connect
        except ImportError:
            from mcp.client.streamable_http import streamablehttp_client

            opened = streamablehttp_client(
                url, headers=headers, httpx_client_factory=make_http, auth=auth
            )
        else:
            # The SDK leaves closing a client to its maker.
            http = await stack.enter_async_context(make_http(headers=headers, auth=auth))
            opened = connect(url, http_client=http)
        streams = await stack.enter_async_context(opened)
        session = await stack.enter_async_context(ClientSession(streams[0], streams[1]))
        await session.initialize()
        yield Caller(session, statuses)
