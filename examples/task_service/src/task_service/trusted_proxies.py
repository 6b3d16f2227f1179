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


def _address(scope: Scope) -> Address | None:
    """The address of a request's client; of a dual-stack socket's `::ffff:a.b.c.d` the IPv4 address."""
    try:
        address = ip_address(scope["client"][0])
    except (TypeError, ValueError):
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


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
        super().__init__(app, trusted_hosts=[str(network) for network in networks])
        # Whether a public and a private address were logged.
        self._logged: set[bool] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """ASGI."""
        if scope["type"] == "http" and (address := _address(scope)) is not None:
            scope["client"] = (str(address), scope["client"][1])
            forwarded = Headers(scope=scope).get("x-forwarded-for")
            is_untrusted = str(address) not in self.trusted_hosts
            if forwarded and is_untrusted and address.is_global not in self._logged:
                self._logged.add(address.is_global)
                _log.warning(
                    "X-Forwarded-For from %s was ignored, because it is not a trusted proxy. If it is your proxy, add it to"
                    " TASK_SERVICE_TRUSTED_PROXIES; until then all its clients count as one address, and 50 wrong passwords"
                    " lock all of them out. This is logged once.",
                    address,
                )
        await super().__call__(scope, receive, send)
