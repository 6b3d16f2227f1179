"""Requests with `X-Forwarded-For` from an address that is no trusted proxy.

Such a header is not believed, so the proxy counts as the client. If it is the operator's own, all clients are then one
address, and 50 wrong passwords of a stranger keep everybody from logging in. The service cannot tell its operator's proxy
from a client that invents the header; so it says once what it saw, and leaves a note in the database for `doctor`.

A private address can only be a machine of the operator's own network. A public one may be any client's, and is noted apart,
so that a stranger's request does not hide the proxy's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite

from msk_auth import Clock, StoreUnavailable
from task_service.db.engine import Database
from task_service.db.schema import deployment

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

NOTED_EVERY: Final = timedelta(days=1)
"""How often the same is noted again."""

VALID_FOR: Final = timedelta(days=2)
"""How old a note may be: the proxy has been gone, or trusted, since."""

_RETRY_SECONDS: Final = 60.0
_PRIVATE: Final = "forwarder.private"
_PUBLIC: Final = "forwarder.public"
_COLUMNS: Final = deployment.c

_log = logging.getLogger(__name__)


class Forwarders:
    """Notes who sends `X-Forwarded-For` without being a trusted proxy.

    Args:
        db: Where the notes are left.
        clock: When they were.
    """

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock
        self._noted: dict[str, datetime] = {}
        self._waiting: dict[str, Address] = {}
        self._wake = asyncio.Event()

    def notice(self, address: Address) -> None:
        """A request came from there. Waits for nothing; the first one is logged."""
        name = _PUBLIC if address.is_global else _PRIVATE
        now = self._clock.now()
        before = self._noted.get(name)
        if before is not None and timedelta(0) <= now - before < NOTED_EVERY:
            return
        self._noted[name] = now
        self._waiting[name] = address
        self._wake.set()
        if before is None:
            _log.warning(
                "a request with X-Forwarded-For came from %s, which is no trusted proxy, and the header was not"
                " believed. If that is your proxy, all its clients count as one address: set"
                " TASK_SERVICE_TRUSTED_PROXIES to its address. This is logged once.",
                address,
            )

    async def write_for_ever(self) -> None:
        """Write what was noticed, as soon as it was, until it is cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._write()
            except StoreUnavailable:
                _log.warning("could not note a proxy that is not trusted; trying again later")
                await asyncio.sleep(_RETRY_SECONDS)
                self._wake.set()

    async def _write(self) -> None:
        dialect = sqlite if self._db.engine.dialect.name == "sqlite" else postgresql
        for name, address in list(self._waiting.items()):
            note = {"value": str(address), "noted_at": self._clock.now()}
            statement = dialect.insert(deployment).values(name=name, **note)
            async with self._db.write() as connection:
                await connection.execute(
                    statement.on_conflict_do_update(index_elements=[_COLUMNS.name], set_=note)
                )
            self._waiting.pop(name)


async def untrusted_forwarders(
    db: Database, trusted: Sequence[Network], now: datetime
) -> list[Address]:
    """Who sent `X-Forwarded-For` lately and is still no trusted proxy; one private and one public address at most.

    Args:
        db: A database of this version's schema.
        trusted: The networks of the proxies that are trusted.
        now: The present.

    Raises:
        StoreUnavailable: The database cannot answer.
    """
    async with db.read() as connection:
        found = await connection.scalars(
            select(_COLUMNS.value)
            .where(_COLUMNS.name.in_([_PRIVATE, _PUBLIC]), _COLUMNS.noted_at > now - VALID_FOR)
            .order_by(_COLUMNS.name)
        )
        addresses = [ip_address(value) for value in found]
    return [address for address in addresses if not any(address in network for network in trusted)]
