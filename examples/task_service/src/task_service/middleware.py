"""What surrounds every request, the pages and the errors included: pure ASGI, one class for each concern.

From the outside in:

1. :class:`SecurityHeaders` on every answer, whoever made it.
2. :class:`Observed`: request id, log line, metrics, and the answer to whatever nobody else caught.
3. :class:`RequestLimit`: one address has a share of the requests that are under way, and not all of them.
4. :class:`HeadAsGet`: HEAD is GET without the content, so that no guard can forget it.
5. :class:`BodyLimit`: nothing larger, slower or later than bearable reaches a route.
6. :class:`LoginCookie`: the pages' cookie becomes the one header that is ever looked at for credentials.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from msk_auth import Clock, Problem, RequestMalformed

from .accounts.throttle import throttled_network
from .errors import (
    BodyTooLarge,
    BodyTooSlow,
    CrossOriginRefused,
    InternalError,
    MisdirectedRequest,
    TooManyRequests,
)
from .ids import new_id
from .observability import Metrics
from .origins import is_from_own_page
from .request_record import RequestRecord, current_request, request_address
from .web import login_cookie

Answer = Callable[[Request, Problem], Awaitable[Response]]
"""How a problem becomes a response."""

Network = IPv4Network | IPv6Network

MAX_BODY_BYTES: Final = 1_048_576
"""The largest request body that is read."""

BODY_SECONDS: Final = 30.0
"""How long a client may take to send a request's body."""

BODY_PAUSE_SECONDS: Final = 5.0
"""How long it may send nothing of it."""

MAX_FOR_ADDRESS: Final = 128
"""How many connections, and how many requests under way, one address may have: a quarter of what is served at once."""

_access_log = logging.getLogger("task_service.access")
_log = logging.getLogger(__name__)

_CLIENT_WENT_AWAY: Final = 499  # nginx's name for it: there was nobody left to answer
_JWT_SHAPED: Final = re.compile(r"eyJ[0-9A-Za-z_-]*\.[0-9A-Za-z_-]+\.[0-9A-Za-z_-]+")
_HEALTH: Final = frozenset({"/healthz", "/readyz"})
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class SecurityHeaders:
    """Headers for answers that set none of their own (ASVS 5.0, section 3.4).

    Args:
        app: The application inside.
        https: Whether people reach the service over TLS, and should not try otherwise.
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


class Observed:
    """Says what happened, and answers what went wrong on the way.

    Args:
        app: The application inside.
        clock: Measures how long an answer took.
        metrics: Counts it.
        trusted_proxies: Whose `X-Forwarded-For` is believed.
        untrusted_forwarder: Told from where a request came whose `X-Forwarded-For` was not believed.
        route_of: The path template of a request that was routed, from its scope.
        answer: Renders a problem.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        clock: Clock,
        metrics: Metrics,
        trusted_proxies: Sequence[Network],
        untrusted_forwarder: Callable[[IPv4Address | IPv6Address], None],
        route_of: Callable[[Scope], str | None],
        answer: Answer,
    ) -> None:
        self._app = app
        self._clock = clock
        self._metrics = metrics
        self._trusted_proxies = trusted_proxies
        self._untrusted_forwarder = untrusted_forwarder
        self._route_of = route_of
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # The server keeps its own scope; from here on it is ours to change.
        scope = dict(scope)
        client = find_client(scope, self._trusted_proxies)
        if client.untrusted_forwarder is not None:
            self._untrusted_forwarder(client.untrusted_forwarder)
        record = RequestRecord(new_id("req"), client.address)
        token = current_request.set(record)
        began = self._clock.monotonic()
        sent = _Sent(send, record.id)
        try:
            await self._guarded(scope, receive, sent)
        finally:
            current_request.reset(token)
            self._report(scope, record, sent, self._clock.monotonic() - began)

    async def _guarded(self, scope: Scope, receive: Receive, sent: _Sent) -> None:
        try:
            await self._app(scope, receive, sent)
        except Problem as problem:
            if sent.status is not None:
                raise
            await self._say(problem, scope, receive, sent)
        except Exception:
            _log.exception("a request failed")
            if sent.status is None:
                await self._say(InternalError(), scope, receive, sent)
            elif not sent.complete:
                raise  # the server breaks the connection off, so that nobody takes a part for the whole

    async def _say(self, problem: Problem, scope: Scope, receive: Receive, sent: _Sent) -> None:
        response = await self._answer(Request(scope), problem)
        await response(scope, receive, sent)

    def _report(self, scope: Scope, record: RequestRecord, sent: _Sent, seconds: float) -> None:
        route = self._route_of(scope) or "unmatched"
        status = _CLIENT_WENT_AWAY if sent.status is None else sent.status
        self._metrics.answered(scope["method"], route, status, None if sent.is_stream else seconds)
        principal = record.principal
        _access_log.info(
            "answered",
            extra={
                "request_id": record.id,
                "method": scope["method"],
                "route": route,
                "status": status,
                "milliseconds": round(seconds * 1000, 1),
                "address": record.address,
                "user_id": None if principal is None else principal.owner.id,
                "key_id": None if principal is None else principal.key_id,
            },
        )


class _Sent:
    """A `send` that remembers what passed through it."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id.encode()
        self.status: int | None = None
        self.is_stream = False
        self.complete = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", ()), (b"x-request-id", self._request_id)]
            self.is_stream = any(
                name.lower() == b"content-type" and value.startswith(b"text/event-stream")
                for name, value in headers
            )
            message = {**message, "headers": headers}
        elif message["type"] == "http.response.body":
            self.complete = not message.get("more_body", False)
        await self._send(message)


class RequestLimit:
    """Counts the requests of one address that are under way, streams and unfinished bodies among them.

    What connects directly is limited by its connections already. This is for clients behind trusted proxies, which
    share the proxies' connections.

    Raises:
        TooManyRequests: The address has :data:`MAX_FOR_ADDRESS` requests under way.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._under_way: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        address = request_address() if scope["type"] == "http" else None
        if address is None or scope["path"] in _HEALTH:
            await self._app(scope, receive, send)
            return
        network = throttled_network(address)
        if self._under_way[network] >= MAX_FOR_ADDRESS:
            raise TooManyRequests
        self._under_way[network] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._under_way[network] -= 1
            if self._under_way[network] == 0:
                del self._under_way[network]


class HeadAsGet:
    """Answers HEAD as GET would, without the content (RFC 9110, section 9.3.2)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        answered = asyncio.Event()

        async def receive_until_answered() -> Message:
            # A stream that goes on for ever stops once its client is gone, and this one wants no more.
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
    """Reads a request's body before anything else happens, as far as it is bearable.

    Raises:
        BodyTooLarge: It is declared to be, or turns out to be, larger than :data:`MAX_BODY_BYTES`.
        BodyTooSlow: It did not arrive within :data:`BODY_SECONDS`, or nothing of it for :data:`BODY_PAUSE_SECONDS`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        for name, value in scope["headers"]:
            # More digits than these are too many before they are a number.
            if name == b"content-length" and (len(value) > 12 or int(value) > MAX_BODY_BYTES):
                raise BodyTooLarge
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
    """The whole body, or None when the client went away.

    Raises:
        BodyTooLarge: Already the part that came is too large.
        TimeoutError: It does not come, or too slowly.
    """
    body = bytearray()
    loop = asyncio.get_running_loop()
    end = loop.time() + BODY_SECONDS
    async with asyncio.timeout(BODY_PAUSE_SECONDS) as patience:
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return None
            body += message.get("body", b"")
            if len(body) > MAX_BODY_BYTES:
                raise BodyTooLarge
            if not message.get("more_body", False):
                return bytes(body)
            patience.reschedule(min(loop.time() + BODY_PAUSE_SECONDS, end))


class LoginCookie:
    """Translates the pages' login cookie into `Authorization: Bearer …`, for requests of our own pages only.

    Browsers attach cookies to whatever any site makes them send; they attach no `Authorization` header. So the cookie
    counts only where the browser says that the request is our own: SameSite is the first line, this the second
    (ASVS 5.0, section 3.5). Only a token of a login may be in it: an API key in a cookie is ignored.

    Args:
        app: The application inside.
        base_url: Under which people reach the service.
        loopback: Whether it is bound to this machine only. Then only this machine's names are served, or a foreign
            name that was made to resolve to this machine (DNS rebinding) would be an origin of ours.

    Raises:
        RequestMalformed: The request brings a bearer credential beside the cookie.
        CrossOriginRefused: Another site may have sent it.
        MisdirectedRequest: It was sent to a name that is not this service's.
    """

    def __init__(self, app: ASGIApp, *, base_url: str, loopback: bool) -> None:
        self._app = app
        parts = urlsplit(base_url)
        self._scheme = parts.scheme
        self._names = (_LOOPBACK_NAMES | {parts.hostname or ""}) if loopback else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "http":
            # What the browser used, which a proxy that ends TLS has hidden.
            scope["scheme"] = self._scheme
            token = login_cookie.read(scope["headers"])
            if token is not None and _JWT_SHAPED.fullmatch(token) is not None:
                self._translate(scope, token)
        await self._app(scope, receive, send)

    def _translate(self, scope: Scope, token: str) -> None:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        host = _single(headers, b"host")
        if self._names is not None and _host_name(host) not in self._names:
            raise MisdirectedRequest
        if scope["method"] not in _SAFE_METHODS and not is_from_own_page(headers, self._scheme):
            raise CrossOriginRefused
        sent = [value for name, value in headers if name == b"authorization"]
        if any(value.strip().lower().startswith(b"bearer") for value in sent) or len(sent) > 1:
            raise RequestMalformed(
                "The request has a login cookie and an Authorization header. Send one of them."
            )
        # What remains is of another scheme, such as a proxy's own Basic login, and not meant for us.
        others = [header for header in headers if header[0] != b"authorization"]
        scope["headers"] = [*others, (b"authorization", b"Bearer " + token.encode())]


@dataclass(frozen=True, slots=True)
class Client:
    """Who sent a request, as far as can be believed.

    Attributes:
        address: The client's; None when it is not known.
        untrusted_forwarder: The same address, if it sent `X-Forwarded-For` and is no trusted proxy.
    """

    address: str | None
    untrusted_forwarder: IPv4Address | IPv6Address | None = None


def find_client(scope: Scope, trusted_proxies: Sequence[Network]) -> Client:
    """Who sent a request.

    `X-Forwarded-For` is read from the right, each entry believed only because the one who wrote it is trusted; what
    stands further left was written by anybody.

    Args:
        scope: Of the request.
        trusted_proxies: Who is believed.
    """
    client = scope.get("client")
    address = None if client is None else parse_address(client[0])
    if address is None:
        return Client(None)
    forwarded = b",".join(
        value for name, value in scope["headers"] if name == b"x-forwarded-for"
    ).decode("latin-1")
    entries = forwarded.split(",") if forwarded.strip() else []
    while entries:
        if not any(address in network for network in trusted_proxies):
            return Client(str(address), untrusted_forwarder=address)
        before = parse_address(entries.pop().strip())
        if before is None:
            break
        address = before
    return Client(str(address))


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """The address of a client; None if it is none."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    # A dual-stack socket shows IPv4 clients as ::ffff:a.b.c.d: the same client, one name.
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def _single(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> str | None:
    """The value of a header that was sent exactly once; two of them are as good as none."""
    values = [value for name, value in headers if name == wanted]
    return values[0].decode("latin-1") if len(values) == 1 else None


def _host_name(host: str | None) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname if host else None
    except ValueError:
        return None
