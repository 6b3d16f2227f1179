"""The address of a request's client, as trusted proxies report it.

Any client can send `X-Forwarded-For`, so uvicorn's `ProxyHeadersMiddleware` reads it only from trusted proxies; any other
proxy counts as the client itself. If the operator has not listed the proxy, all clients share its address, and 50 wrong
passwords lock every user out. The service cannot distinguish such a proxy from a client that invents the header, so it
logs the address once. A private address must be a machine of the operator's own network; a public address may be any client,
and is logged separately, so that it does not replace the line of a proxy.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final, TypeAlias

from starlette.datastructures import Headers
from starlette.types import Scope
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from task_service.settings import Network

Address: TypeAlias = IPv4Address | IPv6Address

_MAX_ADDRESS: Final = 64

_log = logging.getLogger(__name__)


def _parse(text: str) -> Address | None:
    """An address; of a dual-stack socket's `::ffff:a.b.c.d` the IPv4 address."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def _address(scope: Scope) -> Address | None:
    client = scope.get("client")
    return None if client is None else _parse(client[0])


def _without_port(entry: str) -> str:
    """The address of an entry of `X-Forwarded-For`, which may be `192.0.2.1:80` or `[2001:db8::1]:80`."""
    if entry.startswith("["):
        return entry[1:].partition("]")[0]
    return entry.partition(":")[0] if entry.count(":") == 1 else entry


def client_address(scope: Scope) -> str | None:
    """The address of a request's client in its usual spelling; None if it is unknown."""
    address = _address(scope)
    # The zone of an IPv6 address may be very long.
    return None if address is None else str(address)[:_MAX_ADDRESS]


class TrustedProxies(ProxyHeadersMiddleware):
    """Sets the client of a request to the address that trusted proxies report, and logs proxies that are not trusted.

    Args:
        app: The application inside.
        networks: The networks of the trusted proxies.
    """

    def __init__(self, app: Any, *, networks: Sequence[Network]) -> None:
        # Dual-stack sockets, also of proxies, name IPv4 addresses in this form.
        mapped = [
            f"::ffff:{network.network_address}/{96 + network.prefixlen}"
            for network in networks
            if network.version == 4
        ]
        super().__init__(self._notice_and_serve, trusted_hosts=[*map(str, networks), *mapped])
        self._inner = app
        # Whether a public and a private address were logged.
        self._logged: set[bool] = set()

    async def _notice_and_serve(self, scope: Any, receive: Any, send: Any) -> None:
        # The client is now the first address from the right that is not trusted.
        if scope["type"] == "http":
            self._notice(scope)
        await self._inner(scope, receive, send)

    def _notice(self, scope: Scope) -> None:
        first = Headers(scope=scope).get("x-forwarded-for", "").partition(",")[0].strip()
        address = _address(scope)
        # If all entries were trusted, the first entry is the client.
        if not first or address is None or _parse(_without_port(first)) == address:
            return
        if address.is_global in self._logged:
            return
        self._logged.add(address.is_global)
        _log.warning(
            "X-Forwarded-For from %s was ignored, because it is not a trusted proxy. If it is your proxy, add it to"
            " TASK_SERVICE_TRUSTED_PROXIES; until then all its clients count as one address, and 50 wrong passwords lock"
            " all of them out. This is logged once.",
            address,
        )
