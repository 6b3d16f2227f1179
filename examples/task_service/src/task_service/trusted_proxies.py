"""The address of a request's client, and proxies that are not trusted.

uvicorn's `ProxyHeadersMiddleware` trusts `X-Forwarded-For` only from trusted proxies; any other proxy counts as the
client itself. If the operator has not listed the proxy, all clients share its address, and 50 wrong passwords lock
every user out. The service cannot distinguish such a proxy from a client that invents the header, so it logs the address
once. A private address must be a machine of the operator's own network; a public address may be any client, and is logged
separately, so that it does not replace the line of a proxy.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address
from typing import Final, TypeAlias

from starlette.types import Scope

from task_service.settings import Network

Address: TypeAlias = IPv4Address | IPv6Address

_MAX_ADDRESS: Final = 64

_log = logging.getLogger(__name__)


def trusted_hosts(networks: Sequence[Network]) -> list[str]:
    """The networks for uvicorn, also in the form of a dual-stack socket: `::ffff:a.b.c.d`."""
    mapped = [
        f"::ffff:{network.network_address}/{96 + network.prefixlen}"
        for network in networks
        if isinstance(network, IPv4Network)
    ]
    return [*map(str, networks), *mapped]


def client_address(scope: Scope) -> str | None:
    """The address of a request's client in its usual spelling; None if it is unknown."""
    client = scope.get("client")
    address = None if client is None else _parse(client[0])
    # The zone of an IPv6 address may be very long.
    return None if address is None else str(address)[:_MAX_ADDRESS]


@lru_cache(maxsize=1024)
def _parse(text: str) -> Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def _without_port(entry: str) -> str:
    """The address of an entry of `X-Forwarded-For`, which may be `192.0.2.1:80` or `[2001:db8::1]:80`."""
    if entry.startswith("["):
        return entry[1:].partition("]")[0]
    return entry.partition(":")[0] if entry.count(":") == 1 else entry


class UntrustedProxies:
    """Logs clients with `X-Forwarded-For` that are not trusted proxies: one private address and one public address."""

    def __init__(self) -> None:
        self._logged: set[bool] = set()

    def notice(self, scope: Scope) -> None:
        """Log the client of a request, if its `X-Forwarded-For` was ignored.

        Args:
            scope: The request's scope, with the client from `ProxyHeadersMiddleware`: the address of the first entry from
                the right that is not trusted.
        """
        client = scope.get("client")
        sent = [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
        if not sent or client is None:
            return
        first = sent[0].decode("latin-1").partition(",")[0].strip()
        address = _parse(client[0])
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
