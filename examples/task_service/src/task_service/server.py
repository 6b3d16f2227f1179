"""The HTTP server: uvicorn, which answers every connected client before it stops.

The proxy in front (`deploy/`) handles slow heads and bodies, held connections, large heads and TLS. The process itself
only gives accepted requests :attr:`~uvicorn.Config.timeout_graceful_shutdown` to finish after a signal to stop, and closes
idle connections.

A restart loses no request if the listening socket outlives the process, as with systemd's socket units: clients that
connect meanwhile wait for the next process. A socket that ends with its process resets connections that were not accepted.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any, Final

import uvicorn

from msk_auth.errors import ConfigurationError

_FIRST_PASSED_SOCKET: Final = 3
# A proxy sends its request within this time after it has connected.
_REQUEST_IN_TRANSIT_SECONDS: Final = 0.3


def bind(host: str, port: int) -> socket.socket:
    """A listening socket for :meth:`Server.serve`: the socket from systemd (sd_listen_fds(3)), or a new one.

    Args:
        host: A name or an address of this machine. A socket from systemd has its own.
        port: The port, unless the socket is from systemd; 0 means any free port, which `getsockname()` returns.

    Raises:
        ConfigurationError: The address is not available; the message has the reason and a remedy.
    """
    if os.environ.get("LISTEN_PID") == str(os.getpid()):
        listener = socket.socket(fileno=_FIRST_PASSED_SOCKET)
        listener.set_inheritable(False)
        return listener
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigurationError(
            f"Cannot listen on port {port} of {host}: {error.strerror}. Change TASK_SERVICE_PORT or TASK_SERVICE_HOST,"
            " or stop the program that uses the port."
        ) from error


def is_loopback(host: str) -> bool:
    """True if only this machine can reach the name or address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Server(uvicorn.Server):
    """uvicorn's server, with a callback when it begins to stop.

    Args:
        app: The ASGI application, whose lifespan the caller has started.
        host: The bound address, for uvicorn's own messages.
        grace_seconds: The time for accepted requests to finish after a signal to stop.
        on_stopping: Called once, on the event loop, before the server waits for its connections; ends endless streams.
    """

    def __init__(
        self,
        app: Any,
        *,
        host: str,
        grace_seconds: int,
        on_stopping: Callable[[], None],
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                # The middleware decides which proxies to trust.
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=grace_seconds,
            )
        )
        self._on_stopping = on_stopping

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, answer the requests in transit, then stop like uvicorn."""
        self._on_stopping()
        for server in self.servers:
            server.close()
        # uvicorn immediately closes connections that seem idle, even if their first request has not arrived yet.
        await asyncio.sleep(_REQUEST_IN_TRANSIT_SECONDS)
        await super().shutdown(sockets)
