"""What every change needs, and the one rule of those of accounts."""

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
        connection: In the transaction.
        by: Who makes the change; None means the service itself, its command line, or a link.
        now: When it began.
        audit: Gets the entries of :meth:`record`.
    """

    connection: AsyncConnection
    by: Principal[Any] | None
    now: datetime
    audit: Audit

    async def record(
        self, action: str, /, *targets: str | None, anonymous: bool = False, **details: Any
    ) -> None:
        """Add an audit entry for each target in this transaction. Arguments as :meth:`Audit.entry`."""
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
    """Where accounts, tasks and runs are kept, and how they are changed.

    Attributes:
        db: Holds them.
        clock: Where the time comes from.
        audit: Records every change, in the change's own transaction.
        await_lease_expiry: `AsyncAuthenticator.await_lease_expiry`.
    """

    db: Database
    clock: Clock
    audit: Audit
    await_lease_expiry: Callable[[], Awaitable[None]] = no_leases

    def now(self) -> datetime:
        """The present."""
        return self.clock.now()

    @asynccontextmanager
    async def change(self, by: Principal[Any] | None = None) -> AsyncGenerator[Change]:
        """A write transaction that takes no access away.

        Args:
            by: As :attr:`Change.by`.
        """
        async with self.db.write() as connection:
            yield Change(connection, by, self.now(), self.audit)

    @asynccontextmanager
    async def narrow(self, by: Principal[Any] | None = None) -> AsyncGenerator[Change]:
        """A write transaction that takes access away.

        It is left only when every lease that was granted before its commit has expired: then no process accepts what it ended.

        Args:
            by: As :attr:`Change.by`.
        """
        async with self.change(by) as change:
            yield change
        await self.await_lease_expiry()
