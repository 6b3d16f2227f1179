"""Requests to checked addresses only: the one way out of the service."""

from __future__ import annotations

import ssl
from functools import cache, cached_property
from typing import Final

from httpx2 import (
    URL,
    AsyncHTTPTransport,
    ConnectError,
    ConnectTimeout,
    Limits,
    Request,
    Response,
    create_ssl_context,
)

from .targets import TargetGuard, host_of

_CONNECT_TIMEOUT: Final = 10.0
_ADDRESSES_TRIED: Final = 3


@cache
def _machines_tls() -> ssl.SSLContext:
    # Reading the machine's certificates takes longer than a request; once is enough for all clients of the process.
    return create_ssl_context()


class GuardedClient:
    """Sends requests whose connection goes to an address that the guard has checked.

    Args:
        guard: Says which addresses may be reached.
    """

    def __init__(self, guard: TargetGuard) -> None:
        self._guard = guard

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return _machines_tls()

    def transport(self) -> AsyncHTTPTransport:
        """For :meth:`send`: no cookies, no netrc, no proxies, no redirects of its own; one connection per request."""
        return AsyncHTTPTransport(
            verify=self._tls, trust_env=False, limits=Limits(max_keepalive_connections=0)
        )

    async def send(self, transport: AsyncHTTPTransport, request: Request, url: URL) -> Response:
        """Send to one of the checked addresses; the next one is tried only when there was no connection.

        Args:
            transport: An open :meth:`transport`.
            request: Names the host in its headers; where it goes is decided here.
            url: Where to.

        Raises:
            TargetRefused: The name has no address, or one of its addresses may not be reached.
            HTTPError: There was no answer.
        """
        addresses = (await self._guard.addresses(url))[:_ADDRESSES_TRIED]
        request.extensions = {
            "sni_hostname": host_of(url),
            "timeout": {"connect": _CONNECT_TIMEOUT, "read": None, "write": None, "pool": None},
        }
        for address in addresses[:-1]:
            request.url = url.copy_with(host=str(address))
            try:
                return await transport.handle_async_request(request)
            except (ConnectError, ConnectTimeout):
                continue
        request.url = url.copy_with(host=str(addresses[-1]))
        return await transport.handle_async_request(request)
