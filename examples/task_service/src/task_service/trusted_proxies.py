"""The address of a request's client, and proxies that are not trusted.

uvicorn's `ProxyHeadersMiddleware` believes `X-Forwarded-For` from trusted proxies only; any other proxy counts as the
client itself. If the operator has not listed their own proxy, all clients share its address, and 50 wrong passwords lock
every user out. The service cannot distinguish that proxy from a client that invents the header, so it logs the address
once and writes it to the audit log, where `doctor` finds it.

A private address can only be a machine of the operator's own network. A public one may be any client, and is recorded
separately, so that it does not displace the record of a proxy.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address
from typing import Final, TypeAlias

from sqlalchemy import select
from starlette.types import Scope

from msk_auth import Clock
from msk_auth.errors import StoreUnavailable
from task_service.accounts.audit import Audit
from task_service.db import schema
from task_service.db.engine import Database
from task_service.settings import Network

Address: TypeAlias = IPv4Address | IPv6Address

RECORDED_EVERY: Final = timedelta(days=1)
"""How often the same kind of address is recorded again."""

VALID_FOR: Final = timedelta(days=2)
"""How old a record may be: since an older one the proxy was removed or listed."""

_ACTION: Final = "proxy.not_trusted"
_MAX_ADDRESS: Final = 64

_log = logging.getLogger(__name__)


def trusted_hosts(networks: Sequence[Network]) -> list[str]:
    """The networks for uvicorn, also as a dual-stack socket spells them: `::ffff:a.b.c.d`."""
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
    # The zone of an IPv6 address has any length.
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
    """Records clients that send `X-Forwarded-For` and are no trusted proxies.

    Args:
        audit: Gets an entry a day, with the address as its target.
        clock: Where the time comes from.
    """

    def __init__(self, audit: Audit, clock: Clock) -> None:
        self._audit = audit
        self._clock = clock
        self._recorded: dict[bool, datetime] = {}

    async def notice(self, scope: Scope) -> None:
        """Record the client of a request, if its `X-Forwarded-For` was not believed.

        Args:
            scope: Of the request, with the client that `ProxyHeadersMiddleware` has left in it: the address of the last
                entry that it did not believe any further.
        """
        client = scope.get("client")
        sent = [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
        if not sent or client is None:
            return
        first = sent[0].decode("latin-1").partition(",")[0].strip()
        address = _parse(client[0])
        # If all entries were believed, the first one is the client.
        if not first or address is None or _parse(_without_port(first)) == address:
            return
        now = self._clock.now()
        before = self._recorded.get(address.is_global)
        if before is not None and timedelta(0) <= now - before < RECORDED_EVERY:
            return
        self._recorded[address.is_global] = now
        if before is None:
            _log.warning(
                "X-Forwarded-For from %s was ignored, because it is not a trusted proxy. If it is your proxy, add it to"
                " TASK_SERVICE_TRUSTED_PROXIES; until then all its clients count as one address. This is logged once.",
                address,
            )
        try:
            await self._audit.record(_ACTION, target=str(address))
        except StoreUnavailable:
            _log.warning("the database did not answer, so %s is not in the audit log", address)


async def untrusted_proxies(
    db: Database, trusted: Sequence[Network], now: datetime
) -> list[Address]:
    """The recorded addresses that are still no trusted proxies, private ones first.

    Args:
        db: A database of this version's schema.
        trusted: The networks of trusted proxies.
        now: The present.

    Raises:
        StoreUnavailable: The database does not answer.
    """
    entries = schema.audit.c
    async with db.read() as connection:
        found = await connection.scalars(
            select(entries.target)
            .where(entries.action == _ACTION, entries.at > now - VALID_FOR)
            .distinct()
        )
        addresses = [ip_address(value) for value in found]
    untrusted = (each for each in addresses if not any(each in network for network in trusted))
    return sorted(untrusted, key=lambda address: (address.is_global, str(address)))
