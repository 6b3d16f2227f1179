"""The transactions of changes, and the rule for changes of accounts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from msk_auth import Clock, Principal
from task_service.db import schema
from task_service.db.engine import Database

from .audit import Audit


async def no_leases() -> None:
    """For deployments and tools without leases: returns at once."""


@dataclass(frozen=True, slots=True)
class Change:
    """A write transaction.

    Attributes:
        connection: The connection, in the transaction.
        by: The principal of the change; None means the service itself, its command line, or a link.
        now: The beginning of the transaction.
        audit: Gets the entries of :meth:`record`.
    """

    connection: AsyncConnection
    by: Principal[Any] | None
    now: datetime
    audit: Audit

    async def record(
        self, action: str, /, *targets: str | None, anonymous: bool = False, **details: Any
    ) -> None:
        """Add an audit entry for each target in this transaction. Arguments as for :meth:`Audit.entry`."""
        entries = [
            self.audit.entry(
                action, principal=self.by, anonymous=anonymous, target=target, details=details
            )
            for target in targets
        ]
        if entries:
            await self.connection.execute(insert(schema.audit), entries)


@dataclass(frozen=True, slots=True)
class Accounts:
    """The database of accounts, tasks and runs, and its transactions.

    Attributes:
        db: The database.
        clock: The clock.
        audit: Records every change, in the change's own transaction.
        await_lease_expiry: `AsyncAuthenticator.await_lease_expiry`.
    """

    db: Database
    clock: Clock
    audit: Audit
    await_lease_expiry: Callable[[], Awaitable[None]] = no_leases

    def now(self) -> datetime:
        """The present time."""
        return self.clock.now()

    @asynccontextmanager
    async def change(self, by: Principal[Any] | None = None) -> AsyncGenerator[Change]:
        """A write transaction that removes no access.

        Args:
            by: As :attr:`Change.by`.
        """
        async with self.db.write() as connection:
            yield Change(connection, by, self.now(), self.audit)

    @asynccontextmanager
    async def narrow(self, by: Principal[Any] | None = None) -> AsyncGenerator[Change]:
        """A write transaction that removes access.

        It ends only after every lease granted before its commit has expired: then no process accepts the ended credentials.

        Args:
            by: As :attr:`Change.by`.
        """
        async with self.change(by) as change:
            yield change
        await self.await_lease_expiry()
