"""The address of a request's client, and the proxies whose `X-Forwarded-For` is believed.

The service believes that header from trusted proxies only; any other proxy counts as the client itself. If the operator
has not listed their own proxy, all clients share its address, and 50 wrong passwords lock every user out. The service
cannot distinguish that proxy from a client that invents the header, so it logs the address once and records it in the
database for `doctor`.

A private address can only be a machine of the operator's own network. A public one may be any client, and is recorded
separately, so that it does not displace the record of a proxy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final, TypeAlias

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite
from starlette.types import Scope

from msk_auth import Clock
from msk_auth.errors import StoreUnavailable
from task_service.db.engine import Database
from task_service.db.schema import deployment

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

RECORDED_EVERY: Final = timedelta(days=1)
"""How often the same kind of address is recorded again."""

VALID_FOR: Final = timedelta(days=2)
"""How old a record may be: since an older one the proxy was removed or listed."""

_RETRY_SECONDS: Final = 60.0
_PRIVATE: Final = "forwarder.private"
_PUBLIC: Final = "forwarder.public"
_COLUMNS: Final = deployment.c

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Client:
    """The client of a request.

    Attributes:
        address: The believed address; None when it is unknown.
        untrusted_proxy: The same address, if it sent `X-Forwarded-For` and is no trusted proxy.
        is_proxied: Whether a trusted proxy sent the request.
    """

    address: str | None
    untrusted_proxy: Address | None = None
    is_proxied: bool = False


def find_client(scope: Scope, trusted_proxies: Sequence[Network]) -> Client:
    """The client of a request.

    `X-Forwarded-For` is read from the right. Each entry is believed only if a trusted proxy appended it; any client can
    write the entries further left.

    Args:
        scope: The ASGI scope of the request.
        trusted_proxies: The networks of trusted proxies.
    """
    client = scope.get("client")
    address = None if client is None else parse_address(client[0])
    if address is None:
        return Client(None)
    is_proxied = any(address in network for network in trusted_proxies)
    sent = [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
    if not sent:
        return Client(_text_of(address), is_proxied=is_proxied)
    forwarded = b",".join(sent).decode("latin-1")
    entries = forwarded.split(",") if forwarded.strip() else []
    while entries:
        if not any(address in network for network in trusted_proxies):
            return Client(str(address), untrusted_proxy=address, is_proxied=is_proxied)
        before = parse_address(entries.pop().strip())
        if before is None:
            break
        address = before
    return Client(str(address), is_proxied=is_proxied)


# Written anew, an address takes as long as all else that is done here.
_text_of: Final = lru_cache(maxsize=1024)(str)


@lru_cache(maxsize=1024)
def parse_address(text: str) -> Address | None:
    """The address in a text; None if there is none."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    # A dual-stack socket shows IPv4 clients as ::ffff:a.b.c.d: the same client, one spelling.
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


class UntrustedProxies:
    """Records addresses that send `X-Forwarded-For` and are no trusted proxies.

    Args:
        db: Holds the records.
        clock: Where the time comes from.
    """

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock
        self._recorded: dict[str, datetime] = {}
        self._waiting: dict[str, Address] = {}
        self._wake = asyncio.Event()

    def notice(self, address: Address) -> None:
        """Queue the address for :meth:`write_queued`, without waiting; the first one is logged."""
        name = _PUBLIC if address.is_global else _PRIVATE
        now = self._clock.now()
        before = self._recorded.get(name)
        if before is not None and timedelta(0) <= now - before < RECORDED_EVERY:
            return
        self._recorded[name] = now
        self._waiting[name] = address
        self._wake.set()
        if before is None:
            _log.warning(
                "X-Forwarded-For from %s was ignored, because it is not a trusted proxy. If it is your proxy, add it to"
                " TASK_SERVICE_TRUSTED_PROXIES; until then all its clients count as one address. This is logged once.",
                address,
            )

    async def write_queued(self) -> None:
        """Write queued addresses to the database as they come, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._write()
            except StoreUnavailable:
                _log.warning(
                    "the database did not answer, so an untrusted proxy was not recorded; trying again later"
                )
                await asyncio.sleep(_RETRY_SECONDS)
                self._wake.set()

    async def _write(self) -> None:
        dialect = sqlite if self._db.engine.dialect.name == "sqlite" else postgresql
        for name, address in list(self._waiting.items()):
            record = {"value": str(address), "noted_at": self._clock.now()}
            statement = dialect.insert(deployment).values(name=name, **record)
            async with self._db.write() as connection:
                await connection.execute(
                    statement.on_conflict_do_update(index_elements=[_COLUMNS.name], set_=record)
                )
            self._waiting.pop(name)


async def untrusted_proxies(
    db: Database, trusted: Sequence[Network], now: datetime
) -> list[Address]:
    """The recorded addresses that are still no trusted proxies: at most one private and one public address.

    Args:
        db: A database of this version's schema.
        trusted: The networks of trusted proxies.
        now: The present.

    Raises:
        StoreUnavailable: The database does not answer.
    """
    async with db.read() as connection:
        found = await connection.scalars(
            select(_COLUMNS.value)
            .where(_COLUMNS.name.in_([_PRIVATE, _PUBLIC]), _COLUMNS.noted_at > now - VALID_FOR)
            .order_by(_COLUMNS.name)
        )
        addresses = [ip_address(value) for value in found]
    return [address for address in addresses if not any(address in network for network in trusted)]
