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

import hmac
import json
import re
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, Generic, NamedTuple, Self, TypeAlias, cast
from urllib.parse import unquote, urljoin, urlsplit

from msk_auth._async.authenticator import AsyncAuthenticator
from msk_auth._route_audit import AuditedRoute, register_reader
from msk_auth._sync.authenticator import Authenticator
from msk_auth.core.errors import (
    ConfigurationError,
    LoginTooOld,
    NotFound,
    PermissionDenied,
    Problem,
    RequestMalformed,
    bearer_challenge,
)
from msk_auth.core.model import Principal, UserT
from msk_auth.core.policy import SAFE_METHODS, Policy, any_credential, lasting, require
from msk_auth.http.admission import AUTHENTICATED, Memory, known_principal
from msk_auth.http.answers import (
    JSON_TYPE,
    Answer,
    ContentTooLarge,
    ProblemRenderer,
    json_answer,
    to_json,
)

from ._asgi import (
    AsgiApp,
    AsgiAuth,
    Connection,
    Receive,
    Send,
    body_chunks,
    client_path,
    read_stream,
    send_answer,
    values,
    watch_verified,
)

__all__ = ["McpAuth"]

Table: TypeAlias = Mapping[str, Policy]
"""The policy of each tool, prompt or resource."""

_SESSION_ID: Final = b"mcp-session-id"
# The server gets another body than the client has sent, and nothing compresses a listing that the gate has to read.
_CONTENT: Final = (b"content-length", b"transfer-encoding", b"accept-encoding")
# A server that keeps events does not know which credential they are for, and would replay those of another one.
_NOT_PASSED_ON: Final = (*_CONTENT, b"last-event-id")
_REPLACED: Final = (b"content-length", b"cache-control")

_LISTS: Final = {
    "tools/list": ("tools", "name"),
    "prompts/list": ("prompts", "name"),
    "resources/list": ("resources", "uri"),
    "resources/templates/list": ("resourceTemplates", "uriTemplate"),
}
"""What a method lists, and the member of an entry by which it is found in the tables."""

_NAMED: Final = {
    "tools/call": ("tools", "name"),
    "prompts/get": ("prompts", "name"),
    "resources/read": ("resources", "uri"),
    "resources/subscribe": ("resources", "uri"),
    "resources/unsubscribe": ("resources", "uri"),
    "completion/ref/prompt": ("prompts", "name"),
    "completion/ref/resource": ("resourceTemplates", "uri"),
}
"""What a method is about, and the parameter that names it; a completion is about what it refers to."""

# They reach nothing that has a policy. Notifications do not either.
_OPEN: Final = _LISTS.keys() | {"initialize", "ping", "logging/setLevel", "server/discover"}

# Every other request has to bring a message: servers may match methods in lower case too.
_WITHOUT_MESSAGE: Final = SAFE_METHODS | {"DELETE"}

# What guards everything of a kind that has no table, and every method that the gate does not know.
_REQUIRE: Final = require()

# Numbers that JSON-RPC leaves to the server, and that of unknown names in MCP.
_REFUSED: Final = -32010
_INVALID_PARAMS: Final = -32602

_EXPRESSION: Final = re.compile(r"(\{[^}]*\})")
# A server's parser of URIs drops or rewrites these, so that another resource would be read than the gate has looked up.
_AMBIGUOUS_URI: Final = re.compile(r"[^!-~]|\\")
_DOT_SEGMENT: Final = re.compile(r"(?<![^/\\?#])\.\.?(?![^/\\?#])")


class _NotServed(NotFound):
    """No policy names it, so that no caller can use it."""

    title = "Not found"
    default_detail = "This server has no tool, prompt or resource of this name."


class _Request(NamedTuple):
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
        resources = tables["resources"] or {}
        self._patterns = [(_pattern(uri), policy) for uri, policy in resources.items()]
        policies = [policy for table in tables.values() for policy in (table or {}).values()]
        scopes = sorted(frozenset[str]().union(*(each.permissions for each in policies)))
        self._scope = {"scope": " ".join(scopes)} if scopes else {}
        # RFC 9728, section 3.1.
        path = urlsplit(resource).path.rstrip("/")
        self._metadata_path = f"/.well-known/oauth-protected-resource{path}"
        self._metadata_url = urljoin(resource, self._metadata_path)
        metadata = {
            "resource": resource,
            "authorization_servers": authorization_servers,
            "scopes_supported": scopes,
            "bearer_methods_supported": ["header"],
        }
        # RFC 9728, section 3.2: what has no values is left out.
        given = {name: value for name, value in metadata.items() if value}
        self._metadata = json_answer(200, given)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve a request, or the server's lifespan with the authenticator's in it."""
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["method"] == "GET" and client_path(scope) == self._metadata_path:
            await send_answer(send, self._metadata)
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
        last: Any = None

        async def pass_on(part: Any) -> None:
            nonlocal last
            if part["type"] == "http.response.start":
                part = _with_session(part, lambda value: self._sealed(value, principal))
            last = part
            await send(part)

        try:
            principal = await self._auth.admit(_Request(scope), AUTHENTICATED)
            async with watch_verified(self._auth.authenticator, principal):
                inner = _with_session(
                    scope, lambda value: self._unsealed(value, principal), *_NOT_PASSED_ON
                )
                if scope["method"] not in _WITHOUT_MESSAGE:
                    message = await self._read(receive)
                    for subject in _subjects(message):
                        self._authorize(principal, self._rows(*subject))
                if message.get("method") in _LISTS:
                    await self._list(inner, message, receive, pass_on, principal)
                else:
                    await self._server(inner, _replay(message, receive), pass_on)
        except Problem as problem:
            problem.__traceback__ = None
            if last is None:
                await send_answer(send, self._refusal(problem, message.get("id")))
            elif last["type"] == "http.response.start" or last.get("more_body"):
                await send({"type": "http.response.body", "body": b""})

    async def _list(
        self,
        scope: Any,
        message: dict[str, Any],
        receive: Receive,
        send: Send,
        principal: Principal[UserT],
    ) -> None:
        """Serve a listing, in JSON or as an event stream, without what the caller may not use."""
        sent: list[Any] = []

        async def keep(part: Any) -> None:
            sent.append(part)

        # A server sends an answer to the last request that has its id. With the client's own id that could be another one.
        asked = {**message, "id": secrets.token_hex()}
        await self._server(scope, _replay(asked, receive), keep)
        start, *parts = sent
        body = b"".join(part.get("body", b"") for part in parts)
        if b"".join(values(start, b"content-type")).startswith(b"text/event-stream"):
            # No other field of an event is passed on: with an id the client could resume the stream, and so get the listing
            # as the server keeps it.
            lines = [line[5:] for line in body.splitlines() if line.startswith(b"data:")]
            listings = [self._narrowed(line, message, principal) for line in lines]
            body = b"".join(b"data: " + listing + b"\n\n" for listing in listings if listing)
        else:
            body = self._narrowed(body, message, principal)
        headers = [
            *((name, value) for name, value in start["headers"] if name.lower() not in _REPLACED),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
        ]
        await send({**start, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _unsealed(self, value: bytes, principal: Principal[UserT]) -> bytes:
        """The server's own id of a session.

        Raises:
            NotFound: The session belongs to another credential, or to none.
        """
        session_id = value.rpartition(b".")[0]
        if not hmac.compare_digest(self._sealed(session_id, principal), value):
            raise _NotServed("There is no such session. Begin a new one.")
        return session_id

    def _sealed(self, session_id: bytes, principal: Principal[UserT]) -> bytes:
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

    async def _read(self, receive: Receive) -> dict[str, Any]:
        """The message in the body of a request.

        Raises:
            RequestMalformed: It is no message, or several.
            ContentTooLarge: It is too long.
        """
        body = await read_stream(body_chunks(receive), self._max_body, passing=Problem)
        if len(body) > self._max_body:
            raise ContentTooLarge(self._max_body)
        message = _parsed(body)
        if not message or not isinstance(message.get("method"), str | None):
            raise RequestMalformed("Send one JSON-RPC message in the body.")
        return message

    def _authorize(self, principal: Principal[UserT], rows: Sequence[_Row]) -> None:
        for policy, arguments in rows:
            self._auth.authenticator.authorize(principal, policy, arguments)

    def _rows(self, kind: str, name: object, given: object = None) -> list[_Row]:
        """What guards a tool, a prompt, a resource or a template.

        Raises:
            NotFound: No policy does, so that no caller can use it.
        """
        # What is missing names no resource.
        arguments = defaultdict(str, _object(given))
        table = self.tables.get("resources" if kind == "resourceTemplates" else kind)
        if table is None:
            return [(_REQUIRE, arguments)]
        rows: list[_Row] = []
        if not isinstance(name, str):
            raise _NotServed
        if kind != "resources":
            rows = [(table[name], arguments)] if name in table else []
        elif not (_AMBIGUOUS_URI.search(name) or _DOT_SEGMENT.search(plain := unquote(name))):
            rows = [
                # Of a resource the URI alone says what it is about, whatever else the client sends.
                (policy, defaultdict(str, found.groupdict()))
                for pattern, policy in self._patterns
                if (found := pattern.fullmatch(plain) or pattern.fullmatch(name)) is not None
            ]
        if not rows:
            raise _NotServed
        return rows

    def _narrowed(
        self, payload: bytes, asked: dict[str, Any], principal: Principal[UserT]
    ) -> bytes:
        """An answer of the server without what the caller may not use; nothing if it cannot be read."""
        message = _parsed(payload)
        if not message:
            return b""
        if "method" not in message:
            message["id"] = asked.get("id")
        result = _object(message.get("result"))
        kind, key = _LISTS[asked["method"]]
        result[kind] = [
            each
            for each in _list(result.get(kind))
            if self._may_use(principal, kind, _object(each).get(key))
        ]
        if "cacheScope" in result:
            # Otherwise a cache may show it to another credential.
            result["cacheScope"] = "private"
        return to_json(message)

    def _may_use(self, principal: Principal[UserT], kind: str, name: object) -> bool:
        try:
            rows = self._rows(kind, name)
            if kind != "resources":
                # Which resource a call is about, only its arguments tell.
                rows = [(lasting(policy), arguments) for policy, arguments in rows]
            self._authorize(principal, rows)
        except LoginTooOld:
            # A new login is enough, and the refusal asks for one.
            return True
        except Problem:
            return False
        return True

    def _refusal(self, problem: Problem, message_id: object) -> Answer:
        """The answer of a problem.

        Credentials are refused as everywhere, and so is a missing permission, which a client can ask for (RFC 6750). Where no
        token of the caller would do, the answer is a JSON-RPC error: a client shows its message and goes on, while some end the
        session at a status of 403.
        """
        answer = self._renderer.answer(problem)
        challenge = problem.challenge()
        refuses_call = problem.status in {403, 404} and not isinstance(problem, PermissionDenied)
        if refuses_call and message_id is not None:
            code = _INVALID_PARAMS if isinstance(problem, NotFound) else _REFUSED
            error = {"code": code, "message": problem.detail, "data": json.loads(answer.body)}
            body = to_json({"jsonrpc": "2.0", "id": message_id, "error": error})
            answer = Answer(200, answer.with_headers([("content-type", JSON_TYPE)]).headers, body)
        elif challenge is not None:
            scope = self._scope if problem.status == 401 else {}
            parameters = {**scope, **challenge, "resource_metadata": self._metadata_url}
            value = bearer_challenge(self._renderer.realm, parameters)
            answer = answer.with_headers([("www-authenticate", value)])
        return answer


_Row: TypeAlias = tuple[Policy, Mapping[str, object]]
"""A policy, and what fills its `resource`: the arguments of a tool or a prompt, or the parameters of a URI."""


def _parsed(text: bytes) -> dict[str, Any]:
    """A message; empty if it is none."""
    try:
        return _object(json.loads(text.decode()))
    except (ValueError, RecursionError):
        return {}


def _subjects(message: dict[str, Any]) -> Iterator[tuple[str, object, object]]:
    """What a message is about, by its kind, its name and its arguments; nothing if it reaches nothing that has a policy."""
    method, params = message.get("method"), _object(message.get("params"))
    arguments = params.get("arguments")
    if method == "completion/complete":
        # It is for all resources of a template.
        params, arguments = _object(params.get("ref")), None
        method = f"completion/{params.get('type')}"
    if method == "subscriptions/listen":
        # Servers give the list of URIs different names.
        for listed in _object(params.get("notifications")).values():
            for uri in _list(listed):
                yield "resources", uri, None
    elif method is not None and method not in _OPEN and not method.startswith("notifications/"):
        # Without a method it is the client's response to a request of the server.
        kind, name = _NAMED.get(method, ("", ""))
        yield kind, params.get(name), arguments


def _object(value: object) -> dict[str, Any]:
    """An object in JSON; an empty one in place of anything else."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    """A list in JSON; an empty one in place of anything else."""
    return cast("list[object]", value) if isinstance(value, list) else []


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


def _replay(message: dict[str, Any], receive: Receive) -> Receive:
    """What the server receives: the message as the gate has checked it, then what the client sends."""
    parts = [{"type": "http.request", "body": to_json(message)}] if message else []

    async def replay() -> Any:
        return parts.pop() if parts else await receive()

    return replay


def _with_session(message: Any, change: Callable[[bytes], bytes], *dropped: bytes) -> Any:
    """A scope or a response with another id of the session, and without the headers of these names."""
    headers = [
        (name, change(value) if lower == _SESSION_ID else value)
        for name, value in message["headers"]
        if (lower := name.lower()) not in dropped
    ]
    return {**message, "headers": headers}


def _read_gate(gate: _Gate[Any], prefix: str) -> Iterator[AuditedRoute]:
    """The rows of its tables, for the route audit."""
    for kind, table in gate.tables.items():
        rows = {"*": _REQUIRE} if table is None else table
        for name, policy in rows.items():
            yield AuditedRoute(f"{prefix}/{kind}/{name}", ("POST",), "route", name, (policy,))


register_reader(_Gate, _read_gate)
