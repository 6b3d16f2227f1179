"""Migrates PostgreSQL, the queue's tables included, while processes of an older version write.

One transaction migrates, under an advisory lock for which the other processes wait. To add a column, PostgreSQL locks the
table exclusively for a moment. While it waits for that lock (a long transaction reads the table), every other statement
queues behind it. So the migration waits for at most `LOCK_SECONDS`, then lets the others pass and retries. Its transaction
is short: it adds tables and columns and reads no rows.

An index on an older table is built inside the transaction, while writers of that table wait. So the migration of a large
table says `if_not_exists=True`, and the notes of its version give the `CREATE INDEX CONCURRENTLY` to run before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psycopg
from procrastinate.schema import SchemaManager
from sqlalchemy import Connection, func, insert, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection

from msk_auth.errors import ConfigurationError

from .engine import Database
from .schema import queue_migrations

LOCK_SECONDS: Final = 0.3
"""How long other processes may wait because a migration waits for a table.

Even for three tables in turn that is below the second after which PostgreSQL looks for a deadlock (`deadlock_timeout`). Of a
process that has one table and waits for another, and a migration that has them the other way round, the migration gives up.
"""

_log = logging.getLogger(__name__)

# Any number that no other application locks in this database.
_ADVISORY_LOCK: Final = 827_573_784_23

_LOCK_CONFLICTS: Final = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)

# Longer than LOCK_SECONDS, so that the queued statements can end.
_PAUSE_SECONDS: Final = 2.0


async def migrate_postgresql(
    db: Database, upgrade: Callable[[Connection], None], *, finish: bool
) -> None:
    """Migrate, or wait until another process has migrated.

    Args:
        db: The database, with a timeout that is long enough.
        upgrade: Migrates the service's own tables, in a transaction.
        finish: See :func:`~task_service.db.migrate.migrate`.

    Raises:
        ConfigurationError: As for :func:`~task_service.db.migrate.migrate`.
        StoreUnavailable: The database cannot answer, or not in time.
    """
    while True:
        async with db.write() as connection:
            if not await connection.scalar(select(func.pg_try_advisory_xact_lock(_ADVISORY_LOCK))):
                _log.info("waiting for another process that migrates the database")
                await connection.execute(select(func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
            try:
                async with connection.begin_nested():
                    milliseconds = round(LOCK_SECONDS * 1000)
                    await connection.exec_driver_sql(f"SET LOCAL lock_timeout = {milliseconds}")
                    await connection.run_sync(upgrade)
                    await migrate_queue(connection, finish=finish)
                    return
            except OperationalError as error:
                if not isinstance(error.orig, _LOCK_CONFLICTS):
                    raise
        _log.info(
            "other transactions use the tables; the migration will be retried after they had time to pass"
        )
        await asyncio.sleep(_PAUSE_SECONDS)


async def migrate_queue(connection: AsyncConnection, *, finish: bool) -> None:
    """Create or change procrastinate's tables, in the transaction of `connection`.

    procrastinate numbers its migrations itself; `queue_migrations` records those that the database has. Migrations for old
    and new processes (`pre`) are applied immediately. Migrations for only new processes (`post`) wait for
    `task-service migrate --finish`, after the last old process has stopped.

    Args:
        connection: A PostgreSQL connection with the advisory lock.
        finish: Also apply the migrations with which older processes do not work.

    Raises:
        ConfigurationError: Another application has its own procrastinate in this database.
        sqlalchemy.exc.OperationalError: The database cannot answer, or other transactions use the tables.
    """
    scripts = _queue_scripts()
    applied = set((await connection.execute(select(queue_migrations.c.name))).scalars())
    steps = [
        (script, [name])
        for name, script in sorted(scripts.items())
        if name not in applied and (finish or "_post_" not in name)
    ]
    if not applied:
        if await connection.scalar(text("SELECT to_regclass('procrastinate_jobs') IS NOT NULL")):
            raise ConfigurationError(
                "The database has a queue (procrastinate_jobs) that the service did not create."
                " Give the service its own database."
            )
        steps = [(SchemaManager.get_schema(), sorted(scripts))]
    for script, names in steps:
        # Without parameters the driver executes several statements at once.
        await connection.exec_driver_sql(script, execution_options={"no_parameters": True})
        await connection.execute(insert(queue_migrations), [{"name": name} for name in names])


async def queue_migrations_left(connection: AsyncConnection) -> list[str]:
    """The migrations of the queue that the database does not have yet."""
    applied = set((await connection.execute(select(queue_migrations.c.name))).scalars())
    return sorted(_queue_scripts().keys() - applied)


def _queue_scripts() -> dict[str, str]:
    folder = Path(SchemaManager.get_migrations_path())
    return {path.stem: path.read_text("utf-8") for path in folder.glob("*.sql")}
