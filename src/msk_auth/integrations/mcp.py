"""The adapter for MCP servers: a gate in front of the ASGI application that an SDK makes.

::

    auth = McpAuth(authenticator, resource="https://notes.example.com/mcp")
    server = FastMCP("Notes")


    @server.tool()
    async def list_notes(ctx: Context) -> list[str]:
        return await notes_of(auth.principal(ctx).owner.id)


    app = auth.protect(server.http_app(), tools={"list_notes": auth.require("notes:read")})

The gate reads MCP's messages itself and imports no SDK: it stands in front of the official SDK, of FastMCP, and of any other
server that speaks Streamable HTTP. It refuses what a message asks for before the server sees it, and takes out of a listing
what the caller may not use. What the gate has checked is what the server gets: it passes on the message as it has parsed it.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final, Generic, Self, TypeAlias, cast
from urllib.parse import unquote, urlsplit

from msk_auth._async.authenticator import AsyncAuthenticator
from msk_auth._route_audit import AuditedRoute, register_reader
from msk_auth._sync.authenticator import Authenticator
from msk_auth.core.errors import (
    ConfigurationError,
    Forbidden,
    InteractiveRequired,
    LoginTooOld,
    NotFound,
    Problem,
    RequestMalformed,
    bearer_challenge,
)
from msk_auth.core.model import Principal, UserT
from msk_auth.core.policy import Policy, any_credential, lasting, require
from msk_auth.http.admission import AUTHENTICATED, Memory, known_principal
from msk_auth.http.answers import JSON_TYPE, Answer, ContentTooLarge, ProblemRenderer, to_json
from msk_auth.http.routes import broken_body

from ._asgi import AsgiAuth, Connection, Send, values

__all__ = ["McpAuth"]

Receive: TypeAlias = Callable[[], Awaitable[Any]]
AsgiApp: TypeAlias = Callable[[Any, Receive, Send], Awaitable[None]]
Table: TypeAlias = Mapping[str, Policy]
"""The policy of each tool, prompt or resource."""

_SESSION_ID: Final = b"mcp-session-id"

_LISTS: Final = frozenset(
    {"tools/list", "prompts/list", "resources/list", "resources/templates/list"}
)
_LISTED: Final = {
    "tools": "name",
    "prompts": "name",
    "resources": "uri",
    "resourceTemplates": "uriTemplate",
}
"""What a listing has, and by which member an entry is found in the tables."""

# They reach nothing that has a policy. Notifications do not either.
_OPEN: Final = _LISTS | {"initialize", "ping", "logging/setLevel", "server/discover"}

# A request that is answered within this many seconds is not watched: a watch reads the store again.
_UNWATCHED: Final = 0.75

# Numbers that JSON-RPC leaves to the server, and that of unknown names in MCP.
_REFUSED: Final = -32010
_INVALID_PARAMS: Final = -32602

_EXPRESSION: Final = re.compile(r"(\{[^}]*\})")
# A server's parser of URIs drops or rewrites these, so that another resource would be read than the gate has looked up.
_AMBIGUOUS_URI: Final = re.compile(r"[^!-~]|\\")


class _NotServed(NotFound):
    """No policy names it, so that no caller can use it."""

    title = "Not found"
    default_detail = "This server has no tool, prompt or resource of this name."


@dataclass(frozen=True, slots=True)
class _Request:
    """What :meth:`AsgiAuth.admit` takes."""

    scope: Any


class McpAuth(AsgiAuth[UserT, Policy, Connection]):
    """Guards the tools, prompts and resources of MCP servers.

    `require`, `require_interactive`, `require_key` and `any_credential` return the policies for the tables of :meth:`protect`. The
    parameters in `resource=` are the arguments of the tool or the prompt, or the parameters of the URI template.

    Args:
        authenticator: Decides. What an `Authenticator` does runs in threads.
        resource: The URL of the MCP endpoint, as clients know it. Tokens for this server should have it as their audience: give
            it to your issuers as `audience`.
        authorization_servers: Where clients get tokens (RFC 9728): the `iss` of your issuers, if there are any.

    Raises:
        ConfigurationError: It is no authenticator, or `resource` is no URL without query and fragment.
    """

    def __init__(
        self,
        authenticator: AsyncAuthenticator[UserT] | Authenticator[UserT],
        *,
        resource: str,
        authorization_servers: Sequence[str] = (),
    ) -> None:
        super().__init__(authenticator)
        url = urlsplit(resource)
        if url.scheme not in {"http", "https"} or not url.netloc or url.query or url.fragment:
            raise ConfigurationError(
                f"resource={resource!r} is not the URL of an endpoint. Write resource='https://notes.example.com/mcp'."
            )
        self._resource = resource
        self._authorization_servers = authorization_servers

    def any_credential(self) -> Policy:
        """A policy that lets every accepted credential pass, also a key with scopes of its own."""
        return any_credential()

    def principal(self, context: object) -> Principal[UserT]:
        """The principal of the call that a tool, prompt or resource answers.

        Args:
            context: The `Context` that the SDK passes to the function, or the request context of a low-level server.

        Raises:
            ConfigurationError: It belongs to no request that came through the gate.
        """
        request = getattr(getattr(context, "request_context", None) or context, "request", None)
        return known_principal(getattr(request, "scope", {}), self.authenticator)

    def protect(
        self,
        app: AsgiApp,
        *,
        tools: Table | None = None,
        prompts: Table | None = None,
        resources: Table | None = None,
        max_body: int = 4 * 1024 * 1024,
    ) -> AsgiApp:
        """Put the gate in front of a server, and serve the result.

        A table names everything that callers can use: what it leaves out is neither listed nor served. Without a table
        everything of its kind is guarded by `require()`.

        Args:
            app: What the SDK makes: `server.http_app()` in FastMCP, `server.streamable_http_app()` in the official SDK. The gate
                is for MCP alone: mount other routes beside it.
            tools: The policy of each tool, by its name.
            prompts: The policy of each prompt, by its name.
            resources: The policy of each resource, by its URI or its URI template. A URI that several rows match needs all of
                their policies.
            max_body: How many bytes a message may have.
        """
        tables = {"tools": tools, "prompts": prompts, "resources": resources}
        return _Gate(self, app, tables, max_body, self._resource, self._authorization_servers)

    def _bound_in(self, scope: Memory) -> Self:
        return self

    def _connection(self, scope: Memory) -> Connection:
        return _Request(scope)

    def _guard(self, policy: Policy) -> Policy:
        return policy


class _Gate(Generic[UserT]):
    """An ASGI application: an MCP server behind a gate. The arguments are those of :class:`McpAuth` and of its `protect`."""

    def __init__(
        self,
        auth: McpAuth[UserT],
        server: AsgiApp,
        tables: Mapping[str, Table | None],
        max_body: int,
        resource: str,
        authorization_servers: Sequence[str],
    ) -> None:
        self.tables = tables
        self._auth = auth
        self._server = server
        self._max_body = max_body
        self._renderer = ProblemRenderer(auth.authenticator.realm)
        self._secret = secrets.token_bytes(32)
        self._patterns = [
            (_pattern(uri), policy) for uri, policy in (tables["resources"] or {}).items()
        ]
        rows = [policy for table in tables.values() for policy in (table or {}).values()]
        scopes = sorted(frozenset[str]().union(*(policy.permissions for policy in rows)))
        self._scopes = {"scope": " ".join(scopes)} if scopes else {}
        url = urlsplit(resource)
        # RFC 9728, section 3.1.
        self._metadata_path = f"/.well-known/oauth-protected-resource{url.path.rstrip('/')}"
        self._metadata_url = f"{url.scheme}://{url.netloc}{self._metadata_path}"
        metadata = {
            "resource": resource,
            "authorization_servers": authorization_servers,
            "scopes_supported": scopes,
            "bearer_methods_supported": ["header"],
        }
        # RFC 9728, section 3.2: what has no values is left out.
        body = to_json({name: value for name, value in metadata.items() if value})
        self._metadata = Answer(200, (("content-type", JSON_TYPE),), body)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve a request, or the server's lifespan with the authenticator's in it."""
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["method"] == "GET" and _path(scope) == self._metadata_path:
            await _answer(send, self._metadata)
        else:
            await self._serve(scope, receive, send)

    async def _live(self, scope: Any, receive: Receive, send: Send) -> None:
        async with AsyncExitStack() as opened:

            async def send_started(message: Any) -> None:
                if message["type"] == "lifespan.startup.complete":
                    await opened.enter_async_context(self._auth.authenticator)
                await send(message)

            async def receive_stopping() -> Any:
                message = await receive()
                if message["type"] == "lifespan.shutdown":
                    await opened.aclose()
                return message

            await self._server(scope, receive_stopping, send_started)

    async def _serve(self, scope: Any, receive: Receive, send: Send) -> None:
        message: dict[str, Any] = {}
        needed: list[_Needed] = []
        try:
            principal = await self._auth.admit(_Request(scope), AUTHENTICATED)
            inner = self._in_session(scope, principal)
            if scope["method"] == "POST":
                message, body = await self._read(receive)
                receive = _replay(body, receive)
                length = str(len(body)).encode()
                inner["headers"] = [
                    *_without(inner, b"content-length", b"transfer-encoding"),
                    (b"content-length", length),
                ]
                needed = self._needed(message)
                for policy, arguments in needed:
                    self._auth.authenticator.authorize(principal, policy, arguments)
        except Problem as problem:
            problem.__traceback__ = None
            await _answer(send, self._refusal(problem, message.get("id")))
            return
        is_listing = message.get("method") in _LISTS
        if is_listing:
            inner["headers"] = _without(inner, b"accept-encoding")
        response = _Response(self, send, principal, is_listing=is_listing)
        # Of several policies the watch holds the permissions alone.
        kept = needed[0][0] if len(needed) == 1 else None if needed else AUTHENTICATED
        serving = self._server(inner, receive, response.send)
        refusal = await self._watched(principal, kept, serving)
        if refusal is not None:
            await response.end(self._refusal(refusal, None))

    async def _watched(
        self, principal: Principal[UserT], policy: Policy | None, serving: Awaitable[None]
    ) -> Problem | None:
        """Serve a request for as long as the principal has access.

        Returns:
            The reason why access has ended; None if the request ended first.
        """
        loop = asyncio.get_running_loop()
        limit = asyncio.timeout(None)
        watching: list[asyncio.Task[None]] = []
        refusals: list[Problem] = []

        async def watch() -> None:
            refusals.append(await self._auth.watch(principal, policy).wait())
            limit.reschedule(loop.time())

        timer = loop.call_later(_UNWATCHED, lambda: watching.append(loop.create_task(watch())))
        try:
            async with limit:
                try:
                    await serving
                finally:
                    timer.cancel()
                    for task in watching:
                        task.cancel()
        except TimeoutError:
            if not refusals:
                raise
        return refusals[0] if refusals else None

    def _in_session(self, scope: Any, principal: Principal[UserT]) -> dict[str, Any]:
        """The scope as the server gets it: with its own id of the session, if the session belongs to the caller.

        Raises:
            NotFound: The session belongs to another credential, or to none.
        """
        headers: list[tuple[bytes, bytes]] = []
        for name, value in scope["headers"]:
            if name.lower() == _SESSION_ID:
                session_id = value.rpartition(b".")[0]
                if not hmac.compare_digest(self.sealed(session_id, principal), value):
                    raise _NotServed("There is no such session. Begin a new one.")
                headers.append((name, session_id))
            else:
                headers.append((name, value))
        return {**scope, "headers": headers}

    def sealed(self, session_id: bytes, principal: Principal[UserT]) -> bytes:
        """A session's id as its client gets it: with a signature that holds for one credential alone."""
        holder = (
            principal.kind.value,
            principal.owner.id,
            principal.key_id,
            principal.session_id,
            principal.identity,
        )
        text = session_id + repr(holder).encode()
        return session_id + b"." + hmac.digest(self._secret, text, "sha256").hex().encode()

    async def _read(self, receive: Receive) -> tuple[dict[str, Any], bytes]:
        """The message in the body of a request, and the body for the server: with nothing that a parser could read otherwise.

        Raises:
            RequestMalformed: It is no message, or several.
            ContentTooLarge: It is too long.
        """
        body = bytearray()
        while True:
            part = await receive()
            if part["type"] != "http.request":
                raise broken_body()
            body += part.get("body", b"")
            if len(body) > self._max_body:
                raise ContentTooLarge(self._max_body)
            if not part.get("more_body"):
                break
        try:
            message: Any = json.loads(body)
        except (ValueError, RecursionError):
            message = None
        method = _member(message, "method")
        if not isinstance(message, dict) or not isinstance(method, str | None):
            raise RequestMalformed("Send one JSON-RPC message in the body.")
        return cast("dict[str, Any]", message), to_json(cast("object", message))

    def _needed(self, message: Mapping[str, Any]) -> list[_Needed]:
        """What the caller needs for a message.

        Raises:
            NotFound: It asks for what no caller can use.
        """
        method, params = message.get("method"), message.get("params")
        arguments: object = None
        asked: list[tuple[str, object]] = []
        match method:
            case "tools/call" | "prompts/get":
                asked = [(method.partition("/")[0], _member(params, "name"))]
                arguments = _member(params, "arguments")
            case "resources/read" | "resources/subscribe" | "resources/unsubscribe":
                asked = [("resources", _member(params, "uri"))]
            case "completion/complete":
                ref = _member(params, "ref")
                named = [
                    ("prompts", _member(ref, "name")),
                    ("resourceTemplates", _member(ref, "uri")),
                ]
                asked = [(kind, name) for kind, name in named if name is not None]
            case "subscriptions/listen":
                # Under whatever name the server takes the list of URIs.
                filters = cast("dict[str, Any]", _member(params, "notifications") or {})
                asked = [
                    ("resources", uri)
                    for listed in filters.values()
                    if isinstance(listed, list)
                    for uri in cast("list[object]", listed)
                ]
            case str() if method not in _OPEN and not method.startswith("notifications/"):
                return [(require(), _Arguments())]
            case _:
                # Also the client's response to a request of the server.
                return []
        needed: list[_Needed] = []
        for kind, name in asked:
            found = self.needed_for(kind, name, arguments)
            if not found:
                raise _NotServed
            needed += found
        return needed

    def needed_for(self, kind: str, name: object, given: object = None) -> list[_Needed]:
        """What the caller needs for a tool, a prompt, a resource or a template; nothing if no caller can use it."""
        arguments = _Arguments(cast("dict[str, Any]", given) if isinstance(given, dict) else {})
        table = self.tables["resources" if kind == "resourceTemplates" else kind]
        if table is None:
            return [(require(), arguments)]
        if not isinstance(name, str):
            return []
        if kind != "resources":
            policy = table.get(name)
            return [] if policy is None else [(policy, arguments)]
        plain = unquote(name)
        segments = re.split(r"[/\\?#]", plain)
        if _AMBIGUOUS_URI.search(name) or "." in segments or ".." in segments:
            return []
        return [
            # Of a resource the URI alone says what it is about, whatever else the client sends.
            (policy, _Arguments(found.groupdict()))
            for pattern, policy in self._patterns
            if (found := pattern.fullmatch(plain) or pattern.fullmatch(name)) is not None
        ]

    def narrow(self, payload: bytes, principal: Principal[UserT]) -> bytes:
        """A listing of the server without what the caller may not use; nothing if it cannot be read."""
        try:
            message: Any = json.loads(payload)
        except (ValueError, RecursionError):
            return b""
        result: Any = _member(message, "result") or {}
        for kind, key in _LISTED.items():
            if isinstance(items := _member(result, kind), list):
                result[kind] = [
                    each
                    for each in cast("list[object]", items)
                    if self._may(principal, kind, _member(each, key))
                ]
        if "cacheScope" in result:
            # Otherwise a cache may show it to another credential.
            result["cacheScope"] = "private"
        return to_json(message)

    def _may(self, principal: Principal[UserT], kind: str, name: object) -> bool:
        needed = self.needed_for(kind, name)
        try:
            for policy, arguments in needed:
                # Which resource a call is about, only its arguments tell.
                listed = policy if kind == "resources" else lasting(policy)
                self._auth.authenticator.authorize(principal, listed, arguments)
        except LoginTooOld:
            # A new login is enough, and the refusal asks for one.
            return True
        except Problem:
            return False
        return bool(needed)

    def _refusal(self, problem: Problem, message_id: object) -> Answer:
        """The answer of a problem.

        Credentials are refused as everywhere, and so is a missing permission, which a client can ask for (RFC 6750). Where no
        token of the caller would do, the answer is a JSON-RPC error: a client shows its message and goes on, while some end the
        session at a status of 403.
        """
        answer = self._renderer.answer(problem)
        if (
            isinstance(problem, Forbidden | InteractiveRequired | NotFound)
            and message_id is not None
        ):
            error = {
                "code": _INVALID_PARAMS if isinstance(problem, NotFound) else _REFUSED,
                "message": problem.detail,
                "data": json.loads(answer.body),
            }
            body = to_json({"jsonrpc": "2.0", "id": message_id, "error": error})
            return Answer(200, answer.with_headers([("content-type", JSON_TYPE)]).headers, body)
        challenge = problem.challenge()
        if challenge is None or problem.status not in {401, 403}:
            return answer
        more = self._scopes if problem.status == 401 else {}
        parameters = {**more, **challenge, "resource_metadata": self._metadata_url}
        value = bearer_challenge(self._auth.authenticator.realm, parameters)
        return answer.with_headers([("www-authenticate", value)])


class _Response:
    """What the server responds with, as the client gets it: with the signed id of its session, and narrowed listings."""

    def __init__(
        self, gate: _Gate[Any], send: Send, principal: Principal[Any], *, is_listing: bool
    ) -> None:
        self._gate = gate
        self._send = send
        self._principal = principal
        self._is_listing = is_listing
        # The start of a listing, and what there is of its body.
        self._start: Any = None
        self._body = b""
        self._begun = self._complete = False

    async def send(self, message: Any) -> None:
        """Take a message of the server, and send what becomes of it."""
        is_last = not message.get("more_body")
        if message["type"] == "http.response.start":
            headers = [
                (name, self._gate.sealed(value, self._principal))
                if name.lower() == _SESSION_ID
                else (name, value)
                for name, value in message["headers"]
            ]
            message = {**message, "headers": headers}
            if self._is_listing:
                self._start = message
                return
        elif self._start is not None:
            self._body += message.get("body", b"")
            if not is_last:
                return
            body = self._narrowed()
            headers = [
                *_without(self._start, b"content-length", b"cache-control"),
                (b"content-length", str(len(body)).encode()),
                (b"cache-control", b"no-store"),
            ]
            await self._send({**self._start, "headers": headers})
            message = {**message, "body": body}
        self._begun = True
        self._complete = message["type"] == "http.response.body" and is_last
        await self._send(message)

    async def end(self, answer: Answer) -> None:
        """End the stream, or refuse the request if no response has begun."""
        if not self._begun:
            await _answer(self._send, answer)
        elif not self._complete:
            await self._send({"type": "http.response.body", "body": b""})

    def _narrowed(self) -> bytes:
        """The listing, in JSON or in an event stream."""
        media_type = b"".join(values(self._start, b"content-type"))
        if not media_type.startswith(b"text/event-stream"):
            return self._gate.narrow(self._body, self._principal)
        lines: list[bytes] = []
        for line in self._body.splitlines():
            name, _, value = line.partition(b":")
            if name == b"data":
                lines.append(b"data: " + self._gate.narrow(value, self._principal))
            elif name != b"id":
                # Without an id the client cannot resume the stream, and so get the listing as the server keeps it.
                lines.append(line)
        return b"\n".join([*lines, b""])


class _Arguments(dict[str, Any]):
    """The arguments of a tool or a prompt, or the parameters of a URI. One that is missing names no resource."""

    def __missing__(self, name: str) -> str:
        return ""


_Needed: TypeAlias = tuple[Policy, _Arguments]
"""A policy, and what fills its `resource`."""


def _member(value: object, name: str) -> Any:
    """A member of an object in JSON; None if it is not there, or this is no object."""
    return cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None


def _pattern(template: str) -> re.Pattern[str]:
    """Which URIs a template stands for (RFC 6570), whatever their case: servers normalize hosts."""
    parts: list[str] = []
    for part in _EXPRESSION.split(template):
        if not part.startswith("{"):
            parts.append(re.escape(part))
        else:
            text = ".*" if part[1] in "+#./;?&" or part.endswith("*}") else "[^/?#]*"
            name = part.strip("{+#./;?&*}")
            parts.append(f"(?P<{name}>{text})" if name.isidentifier() else text)
    return re.compile("".join(parts), re.IGNORECASE)


def _replay(body: bytes, receive: Receive) -> Receive:
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Any:
        return parts.pop() if parts else await receive()

    return replay


def _without(message: Any, *names: bytes) -> list[tuple[bytes, bytes]]:
    """The headers of a scope or a message, but for those of these names."""
    return [(key, value) for key, value in message["headers"] if key.lower() not in names]


def _path(scope: Any) -> str:
    """The path as the client has it. Some servers put the root path into `path`, others do not."""
    root: str = scope.get("root_path", "").rstrip("/")
    path: str = scope["path"]
    return path if path.startswith(f"{root}/") else root + path


async def _answer(send: Send, answer: Answer) -> None:
    headers = [*answer.headers, ("content-length", str(len(answer.body)))]
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    await send({"type": "http.response.start", "status": answer.status, "headers": encoded})
    await send({"type": "http.response.body", "body": answer.body})


def _read_gate(gate: _Gate[Any], prefix: str) -> Iterator[AuditedRoute]:
    """The rows of its tables, for the route audit."""
    for kind, table in gate.tables.items():
        rows = {"*": require()} if table is None else table
        for name, policy in rows.items():
            yield AuditedRoute(f"{prefix}/{kind}/{name}", ("POST",), "route", name, (policy,))


register_reader(_Gate, _read_gate)
