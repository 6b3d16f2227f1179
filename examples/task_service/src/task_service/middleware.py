"""Middleware around every request, including pages and errors: pure ASGI, one class for each concern.

From the outside in:

1. :class:`~task_service.trusted_proxies.TrustedProxies`: the client's address, as trusted proxies report it.
2. :class:`SecurityHeaders` on every response.
3. :class:`RequestLog`: request id, log line, metrics, and the response to uncaught errors.
4. :class:`HeadAsGet`: HEAD is routed like GET, so every guard of GET applies.
5. :class:`BodyLimit` refuses bodies that are too large, or of unknown length.
6. :class:`~task_service.login_cookie.LoginCookie` translates the pages' cookie into `Authorization`, the only header that
   is read for credentials.
7. :class:`~task_service.compression.Compression` of answers without secrets.

The proxy in front (`deploy/`) handles slow clients and many connections from one address.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from msk_auth import Clock
from msk_auth.errors import Problem

from .accounts.key_activity import KeyActivity
from .errors import BodyTooLarge, InternalError, LengthRequired
from .ids import new_id
from .observability import ACCESS_LOGGER, Metrics, known_method
from .request_record import RequestRecord, current_request, printable, traceparent_of
from .trusted_proxies import client_address

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from .tracing import Tracing

Answer = Callable[[Request, Problem], Awaitable[Response]]
"""Renders a problem as a response."""

MAX_BODY_BYTES: Final = 1_048_576
"""The largest request body that is read."""

_log = logging.getLogger(__name__)
_access_log = logging.getLogger(ACCESS_LOGGER)

_CLIENT_CLOSED_REQUEST: Final = (
    499  # nginx's code for a client that disconnected before the response
)
# Monitors ask these several times a minute: such a request has no span, and an expected answer has a line of level DEBUG.
_MONITORED: Final = frozenset({"/healthz", "/readyz", "/metrics"})


class SecurityHeaders:
    """Default headers of responses (ASVS 5.0, section 3.4).

    Args:
        app: The application inside.
        https: True if the base URL is https; then browsers must use only TLS.
    """

    def __init__(self, app: ASGIApp, *, https: bool) -> None:
        self._app = app
        self._defaults = {
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cross-origin-resource-policy": "same-origin",
            "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
        }
        if https:
            self._defaults["strict-transport-security"] = "max-age=31536000"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        is_api = scope["type"] == "http" and scope["path"].startswith("/api")

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._defaults.items():
                    headers.setdefault(name, value)
                if is_api:
                    headers.setdefault("cache-control", "no-store")
            await send(message)

        await self._app(scope, receive, send_with_headers)


@dataclass(frozen=True, slots=True)
class RequestLog:
    """Logs, measures and traces each request, and renders uncaught errors.

    Attributes:
        app: The application inside.
        clock: Measures the time of a response.
        metrics: Counts responses.
        templates: The path templates of routes by their endpoints.
        answer: Renders a problem.
        key_activity: Counts requests of keys.
        tracing: Begins and ends spans; None makes none.
    """

    app: ASGIApp
    clock: Clock
    metrics: Metrics
    templates: Mapping[object, str]
    answer: Answer
    key_activity: KeyActivity
    tracing: Tracing | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        # The inner middleware changes this copy; the server keeps its own scope.
        scope = dict(scope)
        record = RequestRecord(
            new_id("req"),
            client_address(scope),
            printable(Headers(scope=scope).get("user-agent")),
            traceparent=traceparent_of(scope["headers"]),
        )
        method = known_method(scope["method"])
        span = None
        if self.tracing is not None and scope["path"] not in _MONITORED:
            span = self.tracing.begin_request(record, method)
        exchange = _Exchange(send, record, method, span, began=self.clock.monotonic())
        token = current_request.set(record)
        try:
            with self.metrics.in_flight.track_inprogress():
                await self._call(scope, receive, exchange)
        finally:
            current_request.reset(token)
            self._report(scope, exchange)

    async def _call(self, scope: Scope, receive: Receive, exchange: _Exchange) -> None:
        try:
            await self.app(scope, receive, exchange)
        except Exception as error:
            problem = error if isinstance(error, Problem) else InternalError()
            if problem is not error:
                _log.exception("a request failed")
            if exchange.status is None:
                response = await self.answer(Request(scope), problem)
                await response(scope, receive, exchange)
            elif not exchange.complete:
                raise  # the server resets the connection, so that no client takes a part for the whole answer

    def _report(self, scope: Scope, exchange: _Exchange) -> None:
        seconds = self.clock.monotonic() - exchange.began
        record, method = exchange.record, exchange.method
        route = self.templates.get(scope.get("endpoint"), "unmatched")
        status = _CLIENT_CLOSED_REQUEST if exchange.status is None else exchange.status
        self.metrics.answered(method, route, status, None if exchange.is_stream else seconds)
        principal = record.principal
        key_id = record.refused_key_id if principal is None else principal.key_id
        fields = {
            "request_id": record.id,
            "trace_id": record.trace_id,
            "method": method,
            "route": route,
            "status": status,
            "milliseconds": round(seconds * 1000, 1),
            "address": record.address,
            "user_id": None if principal is None else principal.owner.id,
            "key_id": None if principal is None else principal.key_id,
        }
        is_routine = scope["path"] in _MONITORED and status < HTTPStatus.BAD_REQUEST
        _access_log.log(logging.DEBUG if is_routine else logging.INFO, "answered", extra=fields)
        if key_id is not None:
            self.key_activity.count(
                key_id,
                record,
                is_refused=status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN},
                route=f"{method} {route}",
            )
        if self.tracing is not None and exchange.span is not None:
            self.tracing.end_request(exchange.span, fields)


@dataclass(slots=True)
class _Exchange:
    """A request and the progress of its response, whose messages it sends."""

    send: Send
    record: RequestRecord
    method: str
    span: Span | None
    began: float
    status: int | None = None
    is_stream: bool = False
    complete: bool = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            # Not a member of HTTPStatus, which the console would print by its name.
            self.status = int(message["status"])
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self.record.id
            self.is_stream = headers.get("content-type", "").startswith("text/event-stream")
        elif message["type"] == "http.response.body":
            self.complete = not message.get("more_body", False)
        await self.send(message)


class HeadAsGet:
    """Answers HEAD like GET, without the content (RFC 9110, section 9.3.2)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        is_answered = asyncio.Event()

        async def receive_until_answered() -> Message:
            # An endless stream ends when its client disconnects.
            return {"type": "http.disconnect"} if is_answered.is_set() else await receive()

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                is_answered.set()

        scope["method"] = "GET"
        await self._app(scope, receive_until_answered, send_head)


class BodyLimit:
    """Refuses a body that is too large, before the service reads any of it.

    The server reads no more than the stated length, so a request must state it. Chunked bodies are refused also because of
    their trailers, whose fields the server would add to the head that a proxy has checked.

    Raises:
        LengthRequired: The request does not state the length of its body.
        BodyTooLarge: The body is longer than :data:`MAX_BODY_BYTES`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        for name, value in scope["headers"] if scope["type"] == "http" else ():
            if name == b"transfer-encoding":
                raise LengthRequired
            # The number of digits is bounded before they are parsed.
            if name == b"content-length" and (len(value) > 12 or int(value) > MAX_BODY_BYTES):
                raise BodyTooLarge
        await self._app(scope, receive, send)
