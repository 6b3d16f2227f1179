"""Middleware around every request, including pages and errors: pure ASGI, one class for each concern.

From the outside in:

1. :class:`SecurityHeaders` on every response.
2. :class:`RequestLog`: request id, log line, metrics, and the response to uncaught errors.
3. :class:`RequestLimit` bounds the concurrent requests of one address.
4. :class:`HeadAsGet`: HEAD is GET without the content, so every guard of GET holds for it.
5. :class:`BodyLimit` reads the whole body, bounded in size and time, before a route runs.
6. :class:`~task_service.login_cookie.LoginCookie` translates the pages' cookie into the only header that is read for
   credentials.
7. :class:`~task_service.compression.Compression` of the answers that hold no secret.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from msk_auth import Clock
from msk_auth.errors import Problem

from .accounts.throttle import throttled_network
from .errors import (
    BodyTooLarge,
    BodyTooSlow,
    InternalError,
    TooManyRequests,
)
from .ids import new_id
from .observability import Metrics, known_method, log_request
from .request_record import (
    RequestRecord,
    current_request,
    request_address,
    request_id_of,
    traceparent_of,
)
from .trusted_proxies import Address, Network, find_client

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from .tracing import Tracing

Answer = Callable[[Request, Problem], Awaitable[Response]]
"""Renders a problem as a response."""

MAX_BODY_BYTES: Final = 1_048_576
"""The largest request body that is read."""

BODY_SECONDS: Final = 30.0
"""How long a client may take to send a request's body."""

BODY_PAUSE_SECONDS: Final = 5.0
"""How long a client may pause within a body."""

MAX_FOR_ADDRESS: Final = 128
"""How many connections, and how many concurrent requests, one address may have: a quarter of all connections."""

_log = logging.getLogger(__name__)

_CLIENT_CLOSED_REQUEST: Final = (
    499  # nginx's code for a client that disconnected before the response
)
_BODY_HEADERS: Final = frozenset({b"content-length", b"transfer-encoding"})
_HEALTH: Final = frozenset({"/healthz", "/readyz"})
# What a monitor asks every few seconds has no span.
_UNTRACED: Final = _HEALTH | {"/metrics"}


class SecurityHeaders:
    """Default headers of responses (ASVS 5.0, section 3.4).

    Args:
        app: The application inside.
        https: Whether the base URL is https; then browsers must use TLS only.
    """

    def __init__(self, app: ASGIApp, *, https: bool) -> None:
        self._app = app
        self._always = [
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cross-origin-resource-policy", b"same-origin"),
            (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
        ]
        if https:
            self._always.append((b"strict-transport-security", b"max-age=31536000"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        defaults = list(self._always)
        if scope["path"].startswith("/api"):
            defaults.append((b"cache-control", b"no-store"))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                present = {name.lower() for name, _ in headers}
                headers += [header for header in defaults if header[0] not in present]
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, send_with_headers)


class RequestLog:
    """Logs, measures and traces each request, and renders errors that were not caught.

    Args:
        app: The application inside.
        clock: Measures the time of a response.
        metrics: Counts responses.
        trusted_proxies: Proxies whose `X-Forwarded-For` is believed.
        untrusted_proxy: Called with the address of a client whose `X-Forwarded-For` was not believed.
        route_of: The path template of a request that was routed, from its scope.
        answer: Renders a problem.
        tracing: Begins and ends spans; None makes none.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        clock: Clock,
        metrics: Metrics,
        trusted_proxies: Sequence[Network],
        untrusted_proxy: Callable[[Address], None],
        route_of: Callable[[Scope], str | None],
        answer: Answer,
        tracing: Tracing | None = None,
    ) -> None:
        self._app = app
        self._tracing = tracing
        self._clock = clock
        self._metrics = metrics
        self._trusted_proxies = trusted_proxies
        self._untrusted_proxy = untrusted_proxy
        self._route_of = route_of
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # A copy: the inner middleware changes it, and the server keeps its own.
        scope = dict(scope)
        client = find_client(scope, self._trusted_proxies)
        # What the library holds against the networks of a key.
        scope["client"] = None if client.address is None else (client.address, 0)
        if client.untrusted_proxy is not None:
            self._untrusted_proxy(client.untrusted_proxy)
        given_id = request_id_of(scope["headers"]) if client.is_proxied else None
        record = RequestRecord(
            given_id or new_id("req"),
            client.address,
            traceparent=traceparent_of(scope["headers"]),
        )
        span = None
        if self._tracing is not None and scope["path"] not in _UNTRACED:
            span = self._tracing.begin_request(record, known_method(scope["method"]))
        token = current_request.set(record)
        began = self._clock.monotonic()
        self._metrics.request_began()
        sent = _Sent(send, record.id)
        try:
            await self._call(scope, receive, sent)
        finally:
            current_request.reset(token)
            self._report(scope, record, sent, self._clock.monotonic() - began, span)

    async def _call(self, scope: Scope, receive: Receive, sent: _Sent) -> None:
        try:
            await self._app(scope, receive, sent)
        except Problem as problem:
            if sent.status is not None:
                raise
            await self._render(problem, scope, receive, sent)
        except Exception:
            _log.exception("a request failed")
            if sent.status is None:
                await self._render(InternalError(), scope, receive, sent)
            elif not sent.complete:
                raise  # the server resets the connection, so that no client takes a part for the whole

    async def _render(self, problem: Problem, scope: Scope, receive: Receive, sent: _Sent) -> None:
        response = await self._answer(Request(scope), problem)
        await response(scope, receive, sent)

    def _report(
        self, scope: Scope, record: RequestRecord, sent: _Sent, seconds: float, span: Span | None
    ) -> None:
        route = self._route_of(scope) or "unmatched"
        status = _CLIENT_CLOSED_REQUEST if sent.status is None else sent.status
        self._metrics.answered(scope["method"], route, status, None if sent.is_stream else seconds)
        principal = record.principal
        fields = {
            "request_id": record.id,
            "trace_id": record.trace_id,
            "method": known_method(scope["method"]),
            "route": route,
            "status": status,
            "milliseconds": round(seconds * 1000, 1),
            "address": record.address,
            "user_id": None if principal is None else principal.owner.id,
            "key_id": None if principal is None else principal.key_id,
        }
        log_request(fields)
        if self._tracing is not None and span is not None:
            self._tracing.end_request(span, fields)


class _Sent:
    """A `send` that records status and progress of the response."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id.encode()
        self.status: int | None = None
        self.is_stream = False
        self.complete = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            # A plain number: the console prints a member of HTTPStatus by its name.
            self.status = int(message["status"])
            headers = [*message.get("headers", ()), (b"x-request-id", self._request_id)]
            for name, value in headers:
                if name.lower() == b"content-type":
                    self.is_stream = value.startswith(b"text/event-stream")
            message = {**message, "headers": headers}
        elif message["type"] == "http.response.body":
            self.complete = not message.get("more_body", False)
        await self._send(message)


class RequestLimit:
    """Bounds the concurrent requests of one address, including streams and unfinished bodies.

    The server bounds the connections of clients that connect directly. This bounds those behind trusted proxies, which
    share the proxies' connections.

    Raises:
        TooManyRequests: The address has :data:`MAX_FOR_ADDRESS` concurrent requests.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._concurrent: dict[str, int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        address = request_address() if scope["type"] == "http" else None
        if address is None or scope["path"] in _HEALTH:
            await self._app(scope, receive, send)
            return
        network = throttled_network(address)
        count = self._concurrent.get(network, 0)
        if count >= MAX_FOR_ADDRESS:
            raise TooManyRequests
        self._concurrent[network] = count + 1
        try:
            await self._app(scope, receive, send)
        finally:
            left = self._concurrent.pop(network) - 1
            if left:
                self._concurrent[network] = left


class HeadAsGet:
    """Answers HEAD like GET, without the content (RFC 9110, section 9.3.2)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        answered = asyncio.Event()

        async def receive_until_answered() -> Message:
            # An endless stream ends when its client disconnects, so this reports a disconnect after the head.
            if answered.is_set():
                return {"type": "http.disconnect"}
            return await receive()

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                answered.set()

        scope["method"] = "GET"
        try:
            await self._app(scope, receive_until_answered, send_head)
        finally:
            scope["method"] = "HEAD"


class BodyLimit:
    """Reads a request's whole body before a route runs, bounded in size and time.

    Raises:
        BodyTooLarge: Its declared or actual length exceeds :data:`MAX_BODY_BYTES`.
        BodyTooSlow: It took longer than :data:`BODY_SECONDS`, or paused for :data:`BODY_PAUSE_SECONDS`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_body = False
        for name, value in scope["headers"]:
            # The number of digits is bounded before they are parsed.
            if name == b"content-length" and (len(value) > 12 or int(value) > MAX_BODY_BYTES):
                raise BodyTooLarge
            has_body = has_body or name in _BODY_HEADERS
        if not has_body and scope["method"] == "GET":
            # RFC 9112, section 6.3: without either of the two there is none.
            await self._app(scope, receive, send)
            return
        try:
            body = await _read_body(receive)
        except TimeoutError:
            raise BodyTooSlow from None
        if body is None:
            return
        pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_again() -> Message:
            return pending.pop() if pending else await receive()

        await self._app(scope, receive_again, send)


async def _read_body(receive: Receive) -> bytes | None:
    """The whole body, or None if the client disconnected.

    Raises:
        BodyTooLarge: The part received so far is too large.
        TimeoutError: It arrives too slowly.
    """
    body = bytearray()
    loop = asyncio.get_running_loop()
    end = loop.time() + BODY_SECONDS
    async with asyncio.timeout(BODY_PAUSE_SECONDS) as timeout:
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return None
            body += message.get("body", b"")
            if len(body) > MAX_BODY_BYTES:
                raise BodyTooLarge
            if not message.get("more_body", False):
                return bytes(body)
            timeout.reschedule(min(loop.time() + BODY_PAUSE_SECONDS, end))
