"""How the service listens: uvicorn, made impatient with clients that never finish what they began.

uvicorn waits for the rest of a request's head for ever and lets it grow without bound, so a few hundred silent or
endless connections would use it up (slow headers, ASVS 5.0 section 13.2). Here whatever a client owes within one
request has a deadline: its head, and the rest of a body that was answered early. The body itself is timed by
:class:`~task_service.middleware.BodyLimit`, which can still answer.
"""

from __future__ import annotations

import asyncio
import errno
import json
import re
import socket
from asyncio import TimerHandle
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from msk_auth import PROBLEM_BASE, ConfigurationError, RequestMalformed

REALM: Final = "task-service"
"""What challenges name."""

HEAD_SECONDS: Final = 10.0
"""How long a client may take to send a request's line and headers."""

MAX_HEAD_BYTES: Final = 65_536
"""How large a request's line and headers may grow."""

_KEEP_ALIVE_SECONDS: Final = 5
MAX_CONNECTIONS: Final = 512
"""How many clients are served at once: below the usual limit of 1,024 open files, with room for the rest."""


def _refusal(status: str, code: str, title: str, detail: str, *headers: str) -> bytes:
    """An answer for requests that do not get as far as the application."""
    document = {
        "type": f"{PROBLEM_BASE}#{code}",
        "title": title,
        "status": int(status[:3]),
        "detail": detail,
        "code": code,
    }
    body = json.dumps(document)
    lines = (
        f"HTTP/1.1 {status}",
        "content-type: application/problem+json",
        "cache-control: no-store",
        "x-content-type-options: nosniff",
        f"content-length: {len(body)}",
        "connection: close",
        *headers,
    )
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode("ascii")


_UNREADABLE: Final = _refusal(
    "400 Bad Request", "bad_request", "The request cannot be read", "This is not HTTP/1.1."
)
# As the authenticator answers a header that it can read and is no credential.
_CREDENTIAL_UNREADABLE: Final = _refusal(
    "400 Bad Request",
    RequestMalformed.code,
    RequestMalformed.title,
    RequestMalformed.default_detail,
    f'www-authenticate: Bearer realm="{REALM}", error="invalid_request"',
)
_CONTROL_IN_CREDENTIAL: Final = re.compile(
    rb"^authorization[ \t]*:[^\r\n]*[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", re.IGNORECASE | re.MULTILINE
)
_HEAD_TOO_LARGE: Final = _refusal(
    "431 Request Header Fields Too Large",
    "head_too_large",
    "The request headers are too large",
    f"The request line and headers may be {MAX_HEAD_BYTES} bytes together.",
)
_FULL: Final = _refusal(
    "503 Service Unavailable",
    "service_unavailable",
    "The service is temporarily unavailable",
    "Too many clients are connected. Try again in a few seconds.",
    "retry-after: 5",
)


def bind(host: str, port: int) -> socket.socket:
    """A socket for :meth:`Server.run`, which does not accept anybody yet.

    Args:
        host: A name or an address of this machine.
        port: 0 takes a free one; `getsockname()` tells which.

    Raises:
        ConfigurationError: It cannot be had; the message says why, and what to do.
    """
    listener: socket.socket | None = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        # A restart need not wait until the last connections of its predecessor are forgotten.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # uvicorn listens later; a port that another program listens on is refused here and now.
        listener.listen()
    except OSError as error:
        if listener is not None:
            listener.close()
        raise ConfigurationError(_why_not(error, host, port)) from error
    return listener


def _why_not(error: OSError, host: str, port: int) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"The port {port} on {host} is taken by another program."
                " Stop that, or choose another port with TASK_SERVICE_PORT."
            )
        case errno.EACCES:
            return (
                f"The port {port} may only be used by root."
                " Choose one from 1024 on with TASK_SERVICE_PORT."
            )
        case _:
            return (
                f"{host} is no address that this machine can listen on ({error.strerror})."
                " Choose another with TASK_SERVICE_HOST."
            )


def is_loopback(host: str) -> bool:
    """True if only this machine can mean or reach this name or address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class ImpatientProtocol(HttpToolsProtocol):
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
        self._head_bytes = 0
        self._received = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connected: its first request is due."""
        super().connection_made(transport)
        self._expect()
        if len(self.connections) > MAX_CONNECTIONS:
            self._refuse(_FULL)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._satisfied()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came, as long as it can still be a head of bearable size."""
        if self._in_head:
            self._head_bytes += len(data)
            # Anything ends the keep-alive time, so even a bare line end before a request starts this one.
            if self._deadline is None:
                self._expect()
        self._received = data
        super().data_received(data)
        self._received = b""
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(_HEAD_TOO_LARGE)

    def send_400_response(self, msg: str) -> None:
        """Answer what cannot be parsed: a broken credential like one that could be parsed, with its challenge."""
        broken = _CONTROL_IN_CREDENTIAL.search(self._received)
        self._refuse(_UNREADABLE if broken is None else _CREDENTIAL_UNREADABLE)

    def on_message_begin(self) -> None:
        """A head begins, perhaps right behind the request before."""
        self._expect()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self._in_head = False
        self._head_bytes = 0
        self._satisfied()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The body is complete too: what comes next is another head."""
        self._in_head = True
        self._satisfied()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is sent, perhaps before the request was."""
        super().on_response_complete()
        if not self._in_head and not self.transport.is_closing():
            self._expect()

    def _expect(self) -> None:
        self._satisfied()
        self._deadline = self.loop.call_later(HEAD_SECONDS, self._too_late)

    def _satisfied(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, answer: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(answer)
            self.transport.close()

    def _too_late(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.close()


class Server(uvicorn.Server):
    """uvicorn's server, which also tells when it begins to stop.

    Streams that would go on for ever end on that signal; everything else that was accepted is finished.

    Args:
        app: The ASGI application.
        host: The address it is bound to, for uvicorn's own messages.
        grace_seconds: How long accepted requests may take to finish after a signal to stop.
        on_started: Awaited once the service accepts requests.
        on_stopping: Called once, on the event loop, before the connections are waited for.
    """

    def __init__(
        self,
        app: Any,
        *,
        host: str,
        grace_seconds: int,
        on_started: Callable[[], Awaitable[None]],
        on_stopping: Callable[[], None],
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                http=ImpatientProtocol,
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
        self._on_started = on_started
        self._on_stopping = on_stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, accept, and say so."""
        await super().startup(sockets)
        if self.started:
            await self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, let what was accepted finish, then stop the application."""
        self._on_stopping()
        await super().shutdown(sockets)
