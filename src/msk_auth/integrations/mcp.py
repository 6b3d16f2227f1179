"""The adapter for MCP servers: a gate in front of the ASGI application that an SDK makes.

::

    auth = McpAuth(authenticator, resource="https://notes.example.com/mcp")
    server = FastMCP("Notes")


    @server.tool()
    async def list_notes(ctx: Context) -> list[str]:
        return await notes_of(auth.principal(ctx).owner.id)


    app = auth.protect(server.http_app(), tools={"list_notes": auth.require("notes:read")})

The gate reads MCP's messages itself and imports no SDK: it works in front of the official SDK, of FastMCP, and of any other
server that speaks Streamable HTTP. It refuses a message before the server sees it, and removes entries from a listing
that the caller may not use. The gate passes on its parsed message, so that the server gets exactly the checked message.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias, cast
from urllib.parse import unquote, urljoin, urlsplit

from msk_auth._async.authenticator import AsyncAuthenticator
from msk_auth._async.watch import AsyncWatch, AsyncWatches
from msk_auth._route_audit import AuditedRoute, register_reader
from msk_auth._sync.authenticator import Authenticator
from msk_auth.core.errors import (
    ConfigurationError,
    LoginTooOld,
    NotFound,
    Problem,
    RequestMalformed,
)
from msk_auth.core.model import Principal, UserT
from msk_auth.core.policy import SAFE_METHODS, Policy, lasting, require
from msk_auth.http.admission import AUTHENTICATED, known_principal
from msk_auth.http.answers import JSON_TYPE, Answer, ProblemRenderer, json_answer, to_json

from ._asgi import (
    AsgiApp,
    AsgiAuth,
    Receive,
    Send,
    body_chunks,
    client_path,
    read_stream,
    send_answer,
    values,
)

__all__ = ["McpAuth"]

Message: TypeAlias = dict[str, Any]
Table: TypeAlias = Mapping[str, Policy]
"""The policy of each tool, prompt or resource."""

# A policy, and what fills its `resource`: the arguments of a tool or a prompt, or the parameters of a URI.
Row: TypeAlias = tuple[Policy, Mapping[str, object]]
Change: TypeAlias = Callable[[bytes, Principal[Any]], bytes]

_SESSION_ID: Final = b"mcp-session-id"
# The server gets another body than the client sent, and must not compress a listing that the gate reads.
_CONTENT: Final = (b"content-length", b"transfer-encoding", b"accept-encoding")
# A server's stored events do not name their credential, so the server would replay events of another credential.
_NOT_PASSED_ON: Final = (*_CONTENT, b"last-event-id")

_KEYS: Final = {
    "tools": "name",
    "prompts": "name",
    "resources": "uri",
    "resourceTemplates": "uriTemplate",
}
"""The member with the name of a tool, prompt, resource or template: in a listing, and in the methods that begin with its kind."""
# The kinds that a completion refers to.
_REFERENCES: Final = {"ref/prompt": "prompts", "ref/resource": "resourceTemplates"}

_LISTS: Final = {"tools/list", "prompts/list", "resources/list", "resources/templates/list"}
# Methods that reach nothing with a policy. Notifications do not either.
_OPEN: Final = {*_LISTS, "initialize", "ping", "logging/setLevel", "server/discover"}
# Every other request must have a message: servers may match methods in lower case too.
_WITHOUT_MESSAGE: Final = SAFE_METHODS | {"DELETE"}

# The policy of a kind without a table, and of every unknown method.
_REQUIRE: Final = require()

# The attributes that bind a session to its credential. A renewed login stays the same.
_HOLDER: Final = attrgetter("kind", "owner.id", "key_id", "session_id", "identity")

# The data of a server-sent event.
_EVENT: Final = re.compile(rb"^data:(.*)", re.MULTILINE)
_EXPRESSION: Final = re.compile(r"\\\{([^\w}]*)([^\W\d]\w*)([^}]*)\\\}")
# How long a URI may be: two expressions that match everything take the square of this.
_LONGEST: Final = 2048
# A server's parser drops or rewrites these, so that another resource would be read than the gate has looked up: what no URI may have
# (RFC 3986), and other spellings of web addresses and files than the normalized one (WHATWG URL).
_AMBIGUOUS_URI: Final = re.compile(
    r'[^!-~]|["<>\\^`{|}]|^file:(?!///[^/])'
    r"|^(?:https?|wss?|ftp):(?!//(?:[a-z\d-]+\.)*[a-z][a-z\d-]*/)",
    re.ASCII | re.IGNORECASE,
)
_DOT_SEGMENT: Final = re.compile(r"(?<![^/\\?#])\.\.?(?![^/\\?#])")


class _NotServed(NotFound):
    """No policy has this name, so no caller can use it."""

    default_detail = "This server has no tool, prompt or resource of this name."


class _Request(NamedTuple):
    """The argument of :meth:`AsgiAuth.admit`."""

    scope: Any


class McpAuth(AsgiAuth[UserT, Policy, Any]):
    """Guards the tools, prompts and resources of MCP servers.

    `require`, `require_interactive`, `require_key` and `any_credential` return the policies for the tables of :meth:`protect`. The
    parameters in `resource=` are the arguments of the tool or the prompt, or the parameters of the URI template.

    Args:
        authenticator: The authenticator. An `Authenticator` runs in threads.
        resource: The URL of the MCP endpoint, as clients see it. Tokens for this server should have this audience: give
            it to your issuers as `audience`.
        authorization_servers: The servers that issue tokens for clients (RFC 9728): the `iss` of your issuers, if any.

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
        self.resource = resource
        self.authorization_servers = authorization_servers

    def principal(self, context: object) -> Principal[UserT]:
        """The principal of the current call of a tool, prompt or resource.

        Args:
            context: The `Context` that the SDK passes to the function, or the request context of a low-level server.

        Raises:
            ConfigurationError: The request did not come through the gate.
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

        A table names everything that callers can use: missing names are neither listed nor served. Without a table
        everything of its kind is guarded by `require()`.

        Args:
            app: The SDK's application: `server.http_app()` in FastMCP, `server.streamable_http_app()` in the official SDK. The
                gate serves only MCP: mount other routes beside it.
            tools: The policy of each tool, by its name.
            prompts: The policy of each prompt, by its name.
            resources: The policy of each resource, by its URI or its URI template. A URI that matches several rows must meet all
                of their policies.
            max_body: The maximum size of a message, in bytes.
        """
        tables = {"tools": tools, "prompts": prompts, "resources": resources}
        return _Gate(self, app, tables, max_body)

    def _guard(self, policy: Policy) -> Policy:
        return policy


class _Gate:
    """An ASGI application: an MCP server behind a gate. The arguments are those of :meth:`McpAuth.protect`."""

    def __init__(
        self, auth: McpAuth[Any], server: AsgiApp, tables: Mapping[str, Table | None], max_body: int
    ) -> None:
        self.tables = tables
        self._auth = auth
        self._server = server
        self._max_body = max_body
        self._secret = secrets.token_bytes(32)
        parts: Any = auth.authenticator
        self._watches: AsyncWatches[Any] = parts._watches
        resources = tables["resources"] or {}
        self._patterns = [(_pattern(uri), policy) for uri, policy in resources.items()]
        policies = [policy for table in tables.values() for policy in (table or {}).values()]
        scopes = sorted(frozenset[str]().union(*(each.permissions for each in policies)))
        # RFC 9728, section 3.1.
        path = urlsplit(auth.resource).path.rstrip("/")
        self._metadata_path = f"/.well-known/oauth-protected-resource{path}"
        metadata = {
            "resource": auth.resource,
            "authorization_servers": auth.authorization_servers,
            "scopes_supported": scopes,
            "bearer_methods_supported": ["header"],
        }
        # RFC 9728, section 3.2: members without values are left out.
        given = {name: value for name, value in metadata.items() if value}
        self._metadata = json_answer(200, given)
        shown = {"resource_metadata": urljoin(auth.resource, self._metadata_path)}
        self._renderer = ProblemRenderer(auth.authenticator.realm, shown)
        asked = {"scope": " ".join(scopes), **shown} if scopes else shown
        self._renderer_of_401 = replace(self._renderer, parameters=asked)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve a request, or the server's lifespan together with the authenticator's."""
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

            async def receive_between() -> Any:
                message = await receive()
                if message["type"] == "lifespan.startup":
                    await opened.enter_async_context(self._auth.authenticator)
                else:
                    # Before the server closes the authenticator's store.
                    await opened.aclose()
                return message

            await self._server(scope, receive_between, send)

    async def _serve(self, scope: Any, receive: Receive, send: Send) -> None:
        message: Message = {}
        served: Any = None
        is_open: bool | None = None

        async def pass_on(part: Any) -> None:
            nonlocal is_open
            is_start = part["type"] == "http.response.start"
            if is_start:
                part = _with_session(part, self._sealed, principal)
            is_open = part.get("more_body", is_start)
            await send(part)

        try:
            principal = await self._auth.admit(_Request(scope), AUTHENTICATED)
            # The principal was just verified: a response that ends before the next round needs no look-up.
            async with AsyncWatch(self._watches, principal, None, is_fresh=True):
                inner = _with_session(scope, self._unsealed, principal, *_NOT_PASSED_ON)
                if scope["method"] not in _WITHOUT_MESSAGE:
                    message = await self._read(receive)
                    for subject in _subjects(message):
                        for policy, arguments in self._rows(*subject):
                            self._auth.authenticator.authorize(principal, policy, arguments)
                served = inner
                if message.get("method") in _LISTS:
                    await self._list(inner, receive, pass_on, principal, message)
                else:
                    await self._server(inner, _replay(message, receive), pass_on)
        except Problem as problem:
            problem.__traceback__ = None
            if is_open is None:
                await send_answer(send, self._refusal(problem, message.get("id")))
            elif is_open:
                await send({"type": "http.response.body", "body": b""})
            if served is not None and "id" in message and values(served, _SESSION_ID):
                await self._cancel(served, receive, message["id"])

    async def _cancel(self, scope: Any, receive: Receive, message_id: object) -> None:
        """Have the server cancel a request of a session: without that it goes on when the response has ended."""

        async def ignore(part: Any) -> None:
            """The client knows already."""

        cancelled = {"method": "notifications/cancelled", "params": {"requestId": message_id}}
        await self._server(scope, _replay({"jsonrpc": "2.0", **cancelled}, receive), ignore)

    async def _list(
        self, scope: Any, receive: Receive, send: Send, principal: Principal[Any], message: Message
    ) -> None:
        """Serve a listing without entries that the caller may not use. The answer is JSON, even if the server sends events."""
        sent: list[Any] = []

        async def keep(part: Any) -> None:
            sent.append(part)

        # A server sends an answer to the last request that has its id. With the client's own id that could be another one.
        asked = {**message, "id": secrets.token_hex()}
        await self._server(scope, _replay(asked, receive), keep)
        status, body = sent[0]["status"], b"".join(part.get("body", b"") for part in sent)
        answers = map(_parsed, (body, *_EVENT.findall(body)))
        answer = next((each for each in answers if each.get("id") == asked["id"]), None)
        if answer is not None:
            self._narrow(_object(answer.get("result")), principal)
            answer["id"] = message.get("id")
            await send_answer(send, json_answer(status, answer))
        elif status < 400:
            await send_answer(send, self._renderer.http_error(502))
        else:
            for part in sent:
                await send(part)

    def _narrow(self, result: dict[str, Any], principal: Principal[Any]) -> None:
        """Remove entries from a listing that the caller may not use."""
        for kind in _KEYS.keys() & result:
            listed = _list(result[kind])
            result[kind] = [each for each in listed if self._may_use(principal, kind, each)]
        if "cacheScope" in result:
            # Otherwise a cache may show it to another credential.
            result["cacheScope"] = "private"

    def _may_use(self, principal: Principal[Any], kind: str, entry: object) -> bool:
        try:
            for policy, parameters in self._rows(kind, _object(entry).get(_KEYS[kind])):
                # Only the arguments of a call show its resource.
                demanded = policy if kind == "resources" else lasting(policy)
                self._auth.authenticator.authorize(principal, demanded, parameters)
        except LoginTooOld:
            # A new login is enough.
            return True
        except Problem:
            return False
        return True

    def _rows(self, kind: str, name: object, given: object = None) -> Sequence[Row]:
        """The rows of a tool, a prompt, a resource or a template.

        Raises:
            NotFound: No row matches, so no caller can use it.
        """
        # A missing argument matches no resource.
        arguments = defaultdict(str, _object(given))
        table = self.tables.get("resources" if kind == "resourceTemplates" else kind)
        if table is None:
            return [(_REQUIRE, arguments)]
        rows: Sequence[Row] = []
        if isinstance(name, str) and kind == "resources":
            rows = self._matching(name)
        elif isinstance(name, str) and name in table:
            rows = [(table[name], arguments)]
        if not rows:
            raise _NotServed
        return rows

    def _matching(self, uri: str) -> Sequence[Row]:
        """The rows that guard a URI; none if no row names it. Only the URI decides, not the client's arguments."""
        plain = unquote(uri)
        if len(uri) > _LONGEST or _AMBIGUOUS_URI.search(uri) or _DOT_SEGMENT.search(plain):
            return []
        rows: list[Row] = []
        is_named = False
        for pattern, policy in self._patterns:
            for found in filter(None, map(pattern.fullmatch, (plain, uri))):
                values = {name: unquote(value) for name, value in found.groupdict().items()}
                rows.append((policy, defaultdict(str, values)))
                is_named = is_named or found[pattern.groups] is None
        return rows if is_named else []

    def _sealed(self, session_id: bytes, principal: Principal[Any]) -> bytes:
        """A session's id for its client: with a signature that is valid for only one credential."""
        text = session_id + repr(_HOLDER(principal)).encode()
        return session_id + b"." + hmac.digest(self._secret, text, "sha256").hex().encode()

    def _unsealed(self, value: bytes, principal: Principal[Any]) -> bytes:
        """The server's own id of a session.

        Raises:
            NotFound: The session belongs to another credential, or to none.
        """
        session_id = value.rpartition(b".")[0]
        if not hmac.compare_digest(self._sealed(session_id, principal), value):
            raise _NotServed("This session does not exist. Begin a new session.")
        return session_id

    async def _read(self, receive: Receive) -> Message:
        """The message in the body of a request.

        Raises:
            RequestMalformed: The body is not a message, or several messages.
            ContentTooLarge: The body is too long.
        """
        message = _parsed(await read_stream(body_chunks(receive), self._max_body, passing=Problem))
        if not message or not isinstance(message.get("method", ""), str):
            raise RequestMalformed("Send one JSON-RPC message in the body.")
        return message

    def _refusal(self, problem: Problem, message_id: object) -> Answer:
        """The answer to a problem.

        Refused credentials and missing permissions, which a client can request (RFC 6750), are answered as everywhere. If no
        token of the caller would help, the answer is a JSON-RPC error: clients show its message and continue, while some end the
        session at a status of 403.
        """
        renderer = self._renderer_of_401 if problem.status == 401 else self._renderer
        answer = renderer.answer(problem)
        error = (problem.challenge() or {}).get("error")
        if problem.status not in {403, 404} or error == "insufficient_scope" or message_id is None:
            return answer
        # MCP's code for unknown names (invalid parameters), and a number that JSON-RPC leaves to the server.
        code = -32602 if problem.status == 404 else -32010
        shown = {"code": code, "message": problem.detail, "data": json.loads(answer.body)}
        body = to_json({"jsonrpc": "2.0", "id": message_id, "error": shown})
        return Answer(200, answer.with_headers([("content-type", JSON_TYPE)]).headers, body)


def _parsed(text: bytes) -> Message:
    """A message; empty if the text is not a message."""
    try:
        return _object(json.loads(text.decode()))
    except (ValueError, RecursionError):
        return {}


def _subjects(message: Message) -> Iterator[tuple[str, object, object]]:
    """The subjects of a message: kind, name and arguments; none if it reaches nothing with a policy."""
    # A message without a method is the client's response to a request of the server.
    method: str = message.get("method", "notifications/response")
    kind, params = method.partition("/")[0], _object(message.get("params"))
    if method == "completion/complete":
        reference = _object(params.get("ref"))
        kind = _REFERENCES.get(str(reference.get("type")), "")
        key = "name" if kind == "prompts" else "uri"
        # A completion is for all resources of a template, regardless of its arguments.
        yield kind, reference.get(key), None
    elif method == "subscriptions/listen":
        # Servers give the list of URIs different names.
        for listed in _object(params.get("notifications")).values():
            for uri in _list(listed):
                yield "resources", uri, None
    elif method not in _OPEN and kind != "notifications":
        yield kind, params.get(_KEYS.get(kind, "")), params.get("arguments")


def _object(value: object) -> Message:
    """A JSON object; other values become an empty object."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    """A JSON array; other values become an empty list."""
    return cast("list[object]", value) if isinstance(value, list) else []


def _pattern(template: str) -> re.Pattern[str]:
    """The URIs of a template (RFC 6570), in any case of letters: servers normalize hosts.

    The last group has the query and the fragment, if the template stands for what is before them: some servers drop both, so
    that the template guards the URI, which it does not name.
    """

    def group(expression: re.Match[str]) -> str:
        operator, name, modifier = expression.groups()
        values = ".*" if operator or modifier.endswith("*") else "[^/?#]*"
        if operator not in {"", r"\+"}:
            # The other operators begin what they stand for, as in `notes://search{?text}`.
            values = f"(?:{operator}{values})?"
        return f"(?P<{name}>{values})"

    text = _EXPRESSION.sub(group, re.escape(template))
    return re.compile(f"{text}([?#].*)?", re.DOTALL | re.IGNORECASE)


def _replay(message: Message, receive: Receive) -> Receive:
    """A `receive` for the server: first the checked message, then the client's further messages."""
    parts = [{"type": "http.request", "body": to_json(message)}] if message else []

    async def replay() -> Any:
        return parts.pop() if parts else await receive()

    return replay


def _with_session(message: Any, change: Change, principal: Principal[Any], *dropped: bytes) -> Any:
    """A scope or a response with another session id, and without these headers."""
    headers = [
        (name, change(value, principal) if lower == _SESSION_ID else value)
        for name, value in message["headers"]
        if (lower := name.lower()) not in dropped
    ]
    return {**message, "headers": headers}


def _read_gate(gate: _Gate, prefix: str) -> Iterator[AuditedRoute]:
    """The rows of its tables, for the route audit."""
    for kind, table in gate.tables.items():
        rows = {"*": _REQUIRE} if table is None else table
        for name, policy in rows.items():
            yield AuditedRoute(f"{prefix}/{kind}/{name}", ("POST",), "route", name, (policy,))


register_reader(_Gate, _read_gate)
