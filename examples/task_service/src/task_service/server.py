"""The HTTP server: uvicorn with deadlines, limits on connections, and a shutdown that answers every request.

uvicorn waits for the rest of a request's head without a deadline and bounds no head's size, so a few hundred silent or
endless connections would exhaust it (slow headers, ASVS 5.0 section 13.2). Here each part of a request has a deadline:
its head, the rest of a body that was answered early, and the client's reading of the response.
:class:`~task_service.middleware.BodyLimit` times the body itself, because it can still answer.

The connections of each address are limited, except those of trusted proxies, behind which
:class:`~task_service.middleware.RequestLimit` counts by the client's address. A connection beyond a limit is refused
every request but health checks, and a share of connections is reserved for those.

uvicorn stops by closing its listening socket, which resets the connections that wait to be accepted, and by closing
every idle connection, on some of which a request is in transit. This server answers every request that is sent

- first on a connection that was established before the listening socket was closed, within :data:`LINGER_SECONDS`;
- next on a connection whose last response had no `Connection: close`, within :data:`LINGER_SECONDS` of that response.

It stops in this order: the kernel accepts no new connection; established connections are accepted; the listening socket
is closed; from the first step on responses have `Connection: close`; idle connections are closed after
:data:`LINGER_SECONDS`.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import json
import logging
import math
import re
import socket
import struct
import sys
from asyncio import TimerHandle
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any, Final, cast

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from msk_auth import PROBLEM_BASE
from msk_auth.errors import ConfigurationError, RequestMalformed

from .accounts.throttle import throttled_network
from .errors import TooManyRequests
from .middleware import MAX_FOR_ADDRESS
from .trusted_proxies import Network, parse_address

REALM: Final = "task-service"
"""The realm of challenges (RFC 9110, section 11.5)."""

HEAD_SECONDS: Final = 10.0
"""How long a client may take to send a request's line and headers."""

MAX_HEAD_BYTES: Final = 65_536
"""The largest request line and headers together, and the largest trailer."""

LINGER_SECONDS: Final = 1.0
"""How long an idle connection is kept for a request while the service stops."""

_log = logging.getLogger(__name__)

_HEALTH: Final = frozenset({b"/healthz", b"/readyz"})
_WARNING_SECONDS: Final = 60.0
_KEEP_ALIVE_SECONDS: Final = 5
# A client is connected when it has the kernel's SYN-ACK; the kernel knows of it one trip later.
_HANDSHAKE_SECONDS: Final = 0.2
_HANDSHAKES_SECONDS: Final = 5.0
_SO_ATTACH_FILTER: Final = 26
MAX_CONNECTIONS: Final = 512
"""How many clients are served at once: below the usual limit of 1,024 open files, with room for the rest."""

RESERVED_CONNECTIONS: Final = 32
"""How many connections are reserved for health checks."""

RESERVED_FOR_ADDRESS: Final = 4
"""How many of the reserved connections one address may have."""

RESERVED_HEAD_SECONDS: Final = 2.0
"""How long a client may take to send a request's line and headers on a reserved connection."""

REST_SECONDS: Final = 2.0
"""How long a client may take to send the rest of a body after the response."""

WRITE_SECONDS: Final = 30.0
"""How long a client may take to read, once the buffers are full."""


class _Refusal:
    """The response to requests that do not reach the application; an ASGI application itself."""

    def __init__(self, status: int, code: str, title: str, detail: str, **headers: str) -> None:
        document = {
            "type": f"{PROBLEM_BASE}#{code}",
            "title": title,
            "status": status,
            "detail": detail,
            "code": code,
        }
        body = json.dumps(document).encode("ascii")
        fields = {
            "content-type": "application/problem+json",
            "cache-control": "no-store",
            "x-content-type-options": "nosniff",
            "content-length": str(len(body)),
            "connection": "close",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        encoded = [(name.encode("ascii"), value.encode("ascii")) for name, value in fields.items()]
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode("ascii")]
        lines += [name + b": " + value for name, value in encoded]
        self.written = b"\r\n".join([*lines, b"", body])
        self._start = {"type": "http.response.start", "status": status, "headers": encoded}
        self._body = {"type": "http.response.body", "body": body}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        await send(self._start)
        await send(self._body)


_UNREADABLE: Final = _Refusal(
    400, "bad_request", "The request cannot be read", "This is not HTTP/1.1."
)
# The same response as the authenticator's to a malformed header.
_CREDENTIAL_UNREADABLE: Final = _Refusal(
    400,
    RequestMalformed.code,
    RequestMalformed.title,
    RequestMalformed.default_detail,
    www_authenticate=f'Bearer realm="{REALM}", error="invalid_request"',
)
_CONTROL_IN_CREDENTIAL: Final = re.compile(
    rb"^authorization[ \t]*:[^\r\n]*[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", re.IGNORECASE | re.MULTILINE
)
_HEAD_TOO_LARGE: Final = _Refusal(
    431,
    "head_too_large",
    "The request headers are too large",
    f"The request line and headers may be {MAX_HEAD_BYTES} bytes together.",
)
_FULL: Final = _Refusal(
    503,
    "service_unavailable",
    "The service is temporarily unavailable",
    "Too many clients are connected. Retry in a few seconds.",
    retry_after="5",
)
_ADDRESS_FULL: Final = _Refusal(
    TooManyRequests.status,
    TooManyRequests.code,
    TooManyRequests.title,
    TooManyRequests.default_detail,
    retry_after=str(TooManyRequests.retry_after),
)


def bind(host: str, port: int) -> socket.socket:
    """Bind a socket for :meth:`Server.run`, which accepts connections later.

    Args:
        host: A name or an address of this machine.
        port: 0 takes a free one; `getsockname()` returns it.

    Raises:
        ConfigurationError: The address is not available; the message states why, and what to do.
    """
    listener: socket.socket | None = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        # A restart need not wait for the TIME_WAIT of earlier connections.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # uvicorn listens again later; listening here detects a port that another program uses.
        listener.listen()
    except OSError as error:
        if listener is not None:
            listener.close()
        raise ConfigurationError(_explain_bind_error(error, host, port)) from error
    return listener


def _explain_bind_error(error: OSError, host: str, port: int) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"Another program uses port {port} on {host}."
                " Stop it, or choose another port with TASK_SERVICE_PORT."
            )
        case errno.EACCES:
            return (
                f"Only root may use port {port}. Choose a port from 1024 on with TASK_SERVICE_PORT."
            )
        case _:
            return (
                f"This machine cannot listen on {host} ({error.strerror})."
                " Choose another address with TASK_SERVICE_HOST."
            )


def is_loopback(host: str) -> bool:
    """True if this name or address is reachable from this machine only."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Connections:
    """Counts the connections, in total and of each address, and those beyond a limit.

    Args:
        trusted_proxies: Networks whose addresses have no limit of their own.
    """

    def __init__(self, trusted_proxies: Sequence[Network] = ()) -> None:
        self._trusted_proxies = trusted_proxies
        self._count = 0
        self._by_network: Counter[str] = Counter()
        self._beyond = 0
        self._beyond_by_network: Counter[str] = Counter()
        self._warned_at = -math.inf

    def add(self, client: tuple[str, int] | None) -> _Refusal | None:
        """Count a connection. Returns the refusal of its requests if it is beyond a limit."""
        network = self._network(client)
        self._count += 1
        if network is not None:
            self._by_network[network] += 1
        if self._count - self._beyond > MAX_CONNECTIONS:
            refusal = _FULL
        elif network is not None and self._by_network[network] > MAX_FOR_ADDRESS:
            self._warn(network)
            refusal = _ADDRESS_FULL
        else:
            return None
        self._beyond += 1
        self._beyond_by_network[network or ""] += 1
        return refusal

    def has_reserve(self, client: tuple[str, int] | None) -> bool:
        """Whether a reserved connection is left for one that was counted as beyond a limit."""
        network = self._network(client) or ""
        return (
            self._beyond <= RESERVED_CONNECTIONS
            and self._beyond_by_network[network] <= RESERVED_FOR_ADDRESS
        )

    def remove(self, client: tuple[str, int] | None, *, beyond: bool) -> None:
        """Remove a connection that has ended.

        Args:
            client: As it was added.
            beyond: Whether it was beyond a limit.
        """
        network = self._network(client)
        self._count -= 1
        if network is not None:
            _count_down(self._by_network, network)
        if beyond:
            self._beyond -= 1
            _count_down(self._beyond_by_network, network or "")

    def _network(self, client: tuple[str, int] | None) -> str | None:
        """The network that counts as one address; None for trusted proxies, which have no limit."""
        address = None if client is None else parse_address(client[0])
        if address is None or any(address in network for network in self._trusted_proxies):
            return None
        return throttled_network(str(address))

    def _warn(self, network: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._warned_at > _WARNING_SECONDS:
            self._warned_at = now
            _log.warning(
                "%s has %d connections, and further ones are refused. If it is your proxy, add it to"
                " TASK_SERVICE_TRUSTED_PROXIES.",
                network,
                MAX_FOR_ADDRESS,
            )


def _count_down(counter: Counter[str], name: str) -> None:
    counter[name] -= 1
    if counter[name] == 0:
        del counter[name]


class TimeoutProtocol(HttpToolsProtocol):
    """uvicorn's connection, with a deadline and a bound for each request's head."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._deadline: TimerHandle | None = None
        self._in_head = True
        self._bytes_beside_body = 0
        self._received = b""
        self._beyond: _Refusal | None = None
        self._stalled: TimerHandle | None = None

    @property
    def _is_stopping(self) -> bool:
        return cast("_State", self.server_state).stopping

    @property
    def _connections(self) -> Connections:
        return cast("_State", self.server_state).held

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connected: the deadline of its first request begins."""
        super().connection_made(transport)
        self._beyond = self._connections.add(self.client)
        self._expect()
        if self._beyond is not None and not self._connections.has_reserve(self.client):
            self._refuse(self._beyond)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._satisfied()
        self.resume_writing()
        self._connections.remove(self.client, beyond=self._beyond is not None)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The buffers are full: the client has to read."""
        super().pause_writing()
        self._stalled = self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has read."""
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def data_received(self, data: bytes) -> None:
        """Parse the data, unless the head is too large, or what comes between the parts of a body and after them."""
        self._bytes_beside_body += len(data)
        # Any data ends the keep-alive time, so even a blank line before a request starts this deadline.
        if self._in_head and self._deadline is None:
            self._expect()
        self._received = data
        super().data_received(data)
        self._received = b""
        if self._bytes_beside_body > MAX_HEAD_BYTES:
            self._refuse(_HEAD_TOO_LARGE)

    def on_body(self, body: bytes) -> None:
        """A part of the body; :class:`~task_service.middleware.BodyLimit` counts these."""
        self._bytes_beside_body = 0
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that cannot be parsed; a malformed credential gets a challenge."""
        broken = _CONTROL_IN_CREDENTIAL.search(self._received)
        self._refuse(_UNREADABLE if broken is None else _CREDENTIAL_UNREADABLE)

    def on_message_begin(self) -> None:
        """A head begins, perhaps pipelined behind an earlier request."""
        self._expect()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head. Those of a trailer, which uvicorn would add to them, are ignored (RFC 9110, section 6.5.1)."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self._in_head = False
        self._bytes_beside_body = 0
        self._satisfied()
        if self._beyond is not None and self.url.partition(b"?")[0] not in _HEALTH:
            self.app = self._beyond
        super().on_headers_complete()
        if self._is_stopping or self._beyond is not None:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        """The body is complete too; another head follows."""
        self._in_head = True
        self._bytes_beside_body = 0
        self._satisfied()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The response is sent, perhaps before the whole request was received."""
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if not self._in_head:
            self._expect(REST_SECONDS)
        elif self._is_stopping and self._is_idle:
            self._linger()

    def shutdown(self) -> None:
        """Answer the requests that were received or are in transit, then close the connection."""
        if self._is_idle:
            self._linger()
        elif not self.cycle.response_started:
            self.cycle.keep_alive = False

    @property
    def _is_idle(self) -> bool:
        # Before the first request there is none.
        latest = cast("RequestResponseCycle | None", self.cycle)
        return latest is None or latest.response_complete

    def _linger(self) -> None:
        """Close the connection if no request begins within :data:`LINGER_SECONDS`."""
        if self._in_head and self._bytes_beside_body == 0:
            self._satisfied()
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                LINGER_SECONDS, self.timeout_keep_alive_handler
            )

    def _expect(self, seconds: float | None = None) -> None:
        self._satisfied()
        if seconds is None:
            seconds = HEAD_SECONDS if self._beyond is None else RESERVED_HEAD_SECONDS
        self._deadline = self.loop.call_later(seconds, self._too_late)

    def _satisfied(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, refusal: _Refusal) -> None:
        if not self.transport.is_closing():
            # Not into another response.
            if self._is_idle or not self.cycle.response_started:
                self.transport.write(refusal.written)
            self.transport.close()

    def _too_late(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.close()


class _State(ServerState):
    """The state that the connections share."""

    def __init__(self, held: Connections) -> None:
        super().__init__()
        self.held = held
        self.stopping = False


class Server(uvicorn.Server):
    """uvicorn's server, with a callback when it begins to stop; it answers every client that is connected by then.

    The callback ends streams without an end; all other requests are finished.

    Args:
        app: The ASGI application.
        host: The address it is bound to, for uvicorn's own messages.
        grace_seconds: How long accepted requests may take to finish after a signal to stop.
        on_started: Awaited once the service accepts requests.
        on_stopping: Called once, on the event loop, before the server waits for its connections.
        trusted_proxies: Networks whose addresses may have any number of connections.
    """

    def __init__(
        self,
        app: Any,
        *,
        host: str,
        grace_seconds: int,
        on_started: Callable[[], Awaitable[None]],
        on_stopping: Callable[[], None],
        trusted_proxies: Sequence[Network] = (),
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                http=TimeoutProtocol,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                # The middleware decides which proxies to believe.
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=grace_seconds,
            )
        )
        self.server_state = self._state = _State(Connections(trusted_proxies))
        self._on_started = on_started
        self._on_stopping = on_stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, accept connections, and call `on_started`."""
        await super().startup(sockets)
        if self.started:
            await self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept the established connections, finish their requests, then stop the application."""
        self._on_stopping()
        self._state.stopping = True
        for connection in list(self._state.connections):
            connection.shutdown()
        listeners = sockets or []
        for listener in listeners:
            refuse_connections(listener)
        await asyncio.sleep(_HANDSHAKE_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(_HANDSHAKES_SECONDS):
                while any(map(waiting_connections, listeners)):  # noqa: ASYNC110 - the kernel sets no events
                    await asyncio.sleep(_HANDSHAKE_SECONDS / 10)
        await super().shutdown(sockets)


def refuse_connections(listener: socket.socket) -> None:
    """Drop new connections at a listening socket whose established ones can still be accepted. Linux only.

    The kernel drops SYN packets, so clients retry a second later, when another process may listen, or are refused. On
    other systems, and where the kernel does not support it, this does nothing, and a client that connects in the instant
    before the socket is closed gets no answer.
    """
    if not sys.platform.startswith("linux"):
        return
    # The classic BPF program "tcp[13] & (SYN|ACK) == SYN ? drop : keep": code, jumps if true and if false, value
    # (linux/filter.h). The packet begins with TCP's header.
    program = b"".join(
        struct.pack("=HBBI", *instruction)
        for instruction in (
            (0x30, 0, 0, 13),
            (0x54, 0, 0, 0x12),
            (0x15, 0, 1, 0x02),
            (0x06, 0, 0, 0),
            (0x06, 0, 0, 0xFFFFFFFF),
        )
    )
    instructions = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("HP", len(program) // 8, ctypes.addressof(instructions))
    with suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, described)


def waiting_connections(listener: socket.socket) -> int:
    """How many connections are established and not accepted yet; 0 where the kernel does not report it. Linux only."""
    if not sys.platform.startswith("linux"):
        return 0
    try:
        # struct tcp_info: of a socket that listens, tcpi_unacked is the length of this queue.
        information = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 28)
        return int(struct.unpack_from("=I", information, 24)[0])
    except (OSError, struct.error):
        return 0
