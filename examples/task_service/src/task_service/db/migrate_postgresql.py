"""Migrates PostgreSQL, the queue's tables included, while processes of an older version write.

1. **One process at a time.** The process that migrates holds an advisory lock of its session. The others poll the lock
   instead of waiting inside a statement: a statement that waits holds a snapshot, and `CREATE INDEX CONCURRENTLY` waits
   for all snapshots.
2. **Short waits for others.** To add a column, PostgreSQL locks the table exclusively for a moment. While it waits for that
   lock (a long transaction reads the table), every other statement queues behind it. So the migration waits for at most
   `LOCK_SECONDS`, then lets the others pass and retries. Its transaction is short: it adds tables and columns and reads no
   rows.
3. **Indexes are built concurrently**, on existing tables, after the transaction and outside of any: those of the schema
   that the database does not have. So migrations of PostgreSQL omit them. They affect only speed, so an index that cannot
   be built now is left to the next start.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
from procrastinate.schema import SchemaManager
from sqlalchemy import Connection, Index, insert, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection

from msk_auth.errors import ConfigurationError, StoreUnavailable

from .engine import Database
from .schema import metadata, queue_migrations

LOCK_SECONDS: Final = 1.0
"""How long other processes may wait because a migration waits for a table."""

LOCK_CONFLICTS: Final = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)
"""The driver's errors if another transaction holds a lock: worth a retry."""

_log = logging.getLogger(__name__)

# Any number that no other application locks in this database.
_ADVISORY_LOCK: Final = 827_573_784_23

_POLL_SECONDS: Final = 0.2

# Longer than LOCK_SECONDS, so that the statements that have queued meanwhile are done.
_PAUSE_SECONDS: Final = 2.0

# How long other transactions may delay a start, before it leaves the index to the next one.
_INDEX_SECONDS: Final = 60.0


async def migrate_postgresql(
    db: Database, upgrade: Callable[[Connection], None], *, finish: bool
) -> list[str]:
    """Migrate, or wait until another process has.

    Args:
        db: The database, with a timeout that is long enough.
        upgrade: Migrates the service's own tables, in a transaction.
        finish: See :func:`~task_service.db.migrate.migrate`.

    Returns:
        The queue's migrations that are left for `finish`.

    Raises:
        ConfigurationError: As :func:`~task_service.db.migrate.migrate`.
        StoreUnavailable: The database cannot answer, or not in time.
    """
    # One connection for everything: a process that loses it has lost the advisory lock, and stops migrating.
    async with db.read() as connection, _advisory_lock(connection):
        while True:
            try:
                left = await _in_one_transaction(connection, upgrade, finish=finish)
                break
            except (OperationalError, *LOCK_CONFLICTS) as error:
                if not _is_lock_conflict(error):
                    raise
                _log.info(
                    "other transactions use the tables; the migration will be retried after they had time to pass"
                )
                await asyncio.sleep(_PAUSE_SECONDS)
        for index in await _missing_indexes(connection):
            await _build_index(connection, index)
    return left


@asynccontextmanager
async def _advisory_lock(connection: AsyncConnection) -> AsyncGenerator[None]:
    waited = False
    while not await connection.scalar(text(f"SELECT pg_try_advisory_lock({_ADVISORY_LOCK})")):
        if not waited:
            _log.info("waiting for another process that migrates the database")
            waited = True
        await asyncio.sleep(_POLL_SECONDS)
    yield
    # On an error the connection is closed, which releases the lock.
    await connection.exec_driver_sql(f"SELECT pg_advisory_unlock({_ADVISORY_LOCK})")


async def _in_one_transaction(
    connection: AsyncConnection, upgrade: Callable[[Connection], None], *, finish: bool
) -> list[str]:
    # The connection is in autocommit mode, and this needs a transaction. SQLAlchemy still counts the statements so far as
    # one.
    await connection.commit()
    await connection.execution_options(isolation_level="READ COMMITTED")
    try:
        async with connection.begin():
            await connection.exec_driver_sql(f"SET LOCAL lock_timeout = {LOCK_SECONDS * 1000:.0f}")
            await connection.run_sync(upgrade)
            return await migrate_queue(connection, finish=finish)
    finally:
        if not connection.invalidated:
            await connection.execution_options(isolation_level="AUTOCOMMIT")


async def indexes_left(connection: AsyncConnection) -> list[str]:
    """The indexes that are missing or incomplete."""
    return [str(index.name) for index in await _missing_indexes(connection)]


async def _missing_indexes(connection: AsyncConnection) -> list[Index]:
    found = await connection.scalars(
        text(
            "SELECT relname FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid"
            " WHERE indisvalid AND pg_table_is_visible(indexrelid)"
        )
    )
    valid = set(found)
    indexes = (index for table in metadata.sorted_tables for index in table.indexes)
    return sorted((each for each in indexes if each.name not in valid), key=lambda it: str(it.name))


async def _build_index(connection: AsyncConnection, index: Index) -> None:
    columns = ", ".join(index.columns.keys())
    try:
        await connection.exec_driver_sql(f"SET lock_timeout = {_INDEX_SECONDS * 1000:.0f}")
        # An interrupted attempt leaves one that slows every write and serves no read.
        await connection.exec_driver_sql(f"DROP INDEX CONCURRENTLY IF EXISTS {index.name}")
        await connection.exec_driver_sql(
            f"CREATE INDEX CONCURRENTLY {index.name} ON {index.table} ({columns})"
        )
    except OperationalError as error:
        if not _is_lock_conflict(error):
            raise
        _log.warning(
            "cannot build the index %s beside long transactions; without it lists are slower. The next start"
            " retries; to retry now, run `task-service migrate`",
            index.name,
        )
    else:
        _log.info("built the index %s", index.name)
    finally:
        if not connection.invalidated:
            await connection.exec_driver_sql("RESET lock_timeout")


def _is_lock_conflict(error: Exception) -> bool:
    """True if another transaction holds a lock; False if the database failed."""
    return isinstance(error.orig if isinstance(error, OperationalError) else error, LOCK_CONFLICTS)


async def migrate_queue(connection: AsyncConnection, *, finish: bool) -> list[str]:
    """Create or change procrastinate's tables, in the transaction of `connection`.

    procrastinate numbers its migrations itself; `queue_migrations` records those that the database has. Those that old and
    new processes work with (`pre`) are applied at once. Those that only new processes work with (`post`) wait for
    `task-service migrate --finish`, after the last old process has stopped.

    Args:
        connection: On PostgreSQL, holding the advisory lock.
        finish: Also apply the migrations that older processes do not work with.

    Returns:
        The migrations that are left for `finish`.

    Raises:
        ConfigurationError: Another application has its own procrastinate in this database.
        StoreUnavailable: The database cannot answer.
        psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected: Other transactions use the tables.
    """
    scripts = _queue_scripts()
    known = sorted(scripts)
    applied = set((await connection.execute(select(queue_migrations.c.name))).scalars())
    if not applied:
        taken = await connection.scalar(
            text("SELECT to_regclass('procrastinate_jobs') IS NOT NULL")
        )
        if taken:
            raise ConfigurationError(
                "The database has a queue (procrastinate_jobs) that the service did not create."
                " Give the service a database of its own."
            )
        await _run_script(connection, SchemaManager.get_schema())
        await _record_migrations(connection, known)
        return []
    waiting = [name for name in known if name not in applied]
    later = [] if finish else [name for name in waiting if "_post_" in name]
    for name in waiting:
        if name not in later:
            await _run_script(connection, scripts[name])
            await _record_migrations(connection, [name])
    return later


async def queue_migrations_left(connection: AsyncConnection) -> list[str]:
    """The migrations of the queue that the database does not have yet."""
    applied = set((await connection.execute(select(queue_migrations.c.name))).scalars())
    return sorted(_queue_scripts().keys() - applied)


def _queue_scripts() -> dict[str, str]:
    folder = Path(SchemaManager.get_migrations_path())
    return {path.stem: path.read_text("utf-8") for path in folder.glob("*.sql")}


async def _record_migrations(connection: AsyncConnection, names: list[str]) -> None:
    await connection.execute(insert(queue_migrations), [{"name": name} for name in names])


async def _run_script(connection: AsyncConnection, script: str) -> None:
    # Only the driver itself executes several statements at once.
    driver: Any = (await connection.get_raw_connection()).driver_connection
    try:
        await driver.execute(script)
    except LOCK_CONFLICTS:
        raise
    except psycopg.OperationalError as error:
        raise StoreUnavailable from error
