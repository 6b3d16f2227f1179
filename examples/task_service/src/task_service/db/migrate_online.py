"""Migrating PostgreSQL while processes of an older version go on writing.

1. **One at a time.** An advisory lock of the session belongs to whoever migrates. The others ask for it again and again
   instead of waiting inside of a statement: a statement that waits holds a snapshot, and an index that is built
   concurrently waits for all snapshots.
2. **Nobody waits for long.** To add a column PostgreSQL needs a table for itself for an instant. While it waits for that
   instant (somebody reads the table in a long transaction), everybody else queues up behind it. So it waits for
   `LOCK_SECONDS` at most, then lets the others pass and tries again. The transaction itself is short: it adds tables and
   columns and reads no rows.
3. **Indexes are built concurrently**, on tables that were there before, after the transaction and outside of any. They
   are an affair of speed alone, so one that cannot be built now is left to whoever starts next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection

from .engine import Database
from .queue_schema import IN_THE_WAY, bring_queue_to_version

LOCK_SECONDS: Final = 1.0
"""How long everybody else may have to wait because a migration waits for a table."""

CONCURRENT_INDEXES: Final = {
    "ix_runs_state_owner_id_rank_created_at_id": "runs (state, owner_id, rank, created_at, id)",
}
"""The indexes that later versions added to tables that may be large, and what they are on. A migration leaves them out."""

OBSOLETE_INDEXES: Final = ("ix_runs_owner_id_state", "ix_runs_state_rank_created_at_id")
"""What those have replaced, and is dropped once they are there."""

_log = logging.getLogger(__name__)

# Any number that nothing else locks in this database.
_ADVISORY_LOCK: Final = 827_573_784_23

_POLL_SECONDS: Final = 0.2

# Longer than anybody has waited for us, so that what has queued up meanwhile is done.
_PAUSE_SECONDS: Final = 2.0

# How long a start may be put off by other transactions, before it leaves the index to the next one.
_INDEX_SECONDS: Final = 60.0


async def migrate_online(
    patient: Database, upgrade: Callable[[Connection], None], *, finish: bool
) -> list[str]:
    """Migrate, or wait until another process has.

    Args:
        patient: The database, with as much time as this may take.
        upgrade: Brings our own tables to this version's schema, in a transaction.
        finish: See :func:`~task_service.db.migrate.migrate`.

    Returns:
        The queue's migrations that are left for later.

    Raises:
        ConfigurationError: As :func:`~task_service.db.migrate.migrate`.
        StoreUnavailable: The database cannot answer, or not in time.
    """
    # One connection for everything: whoever loses it has lost the advisory lock, and migrates no more.
    async with patient.read() as connection, _alone(connection):
        while True:
            try:
                left = await _in_one_transaction(connection, upgrade, finish=finish)
                break
            except (OperationalError, *IN_THE_WAY) as error:
                if not _was_in_the_way(error):
                    raise
                _log.info("others use the tables; letting them pass before trying to migrate again")
                await asyncio.sleep(_PAUSE_SECONDS)
        for name, columns in CONCURRENT_INDEXES.items():
            await _build_index(connection, name, columns)
        if not await indexes_left(connection):
            for name in OBSOLETE_INDEXES:
                await _drop_index(connection, name)
    return left


@asynccontextmanager
async def _alone(connection: AsyncConnection) -> AsyncGenerator[None]:
    waited = False
    while not await connection.scalar(text(f"SELECT pg_try_advisory_lock({_ADVISORY_LOCK})")):
        if not waited:
            _log.info("another process migrates the database; waiting for it")
            waited = True
        await asyncio.sleep(_POLL_SECONDS)
    yield
    # Whoever fails gives it back with the connection, which is closed.
    await connection.exec_driver_sql(f"SELECT pg_advisory_unlock({_ADVISORY_LOCK})")


async def _in_one_transaction(
    connection: AsyncConnection, upgrade: Callable[[Connection], None], *, finish: bool
) -> list[str]:
    # The connection commits each statement by itself; here several belong together. To SQLAlchemy what was asked so far
    # is a transaction nevertheless.
    await connection.commit()
    await connection.execution_options(isolation_level="READ COMMITTED")
    try:
        async with connection.begin():
            await connection.exec_driver_sql(f"SET LOCAL lock_timeout = {LOCK_SECONDS * 1000:.0f}")
            await connection.run_sync(upgrade)
            return await bring_queue_to_version(connection, finish=finish)
    finally:
        if not connection.invalidated:
            await connection.execution_options(isolation_level="AUTOCOMMIT")


async def indexes_left(connection: AsyncConnection) -> list[str]:
    """The indexes that could not be built yet, or not to their end."""
    return [name for name in CONCURRENT_INDEXES if not await _is_valid(connection, name)]


async def _is_valid(connection: AsyncConnection, name: str) -> bool | None:
    """Whether an index was built to its end; None if there is none of that name."""
    is_valid: bool | None = await connection.scalar(
        text("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(:name)"),
        {"name": name},
    )
    return is_valid


async def _build_index(connection: AsyncConnection, name: str, columns: str) -> None:
    is_valid = await _is_valid(connection, name)
    if is_valid:
        return
    try:
        await connection.exec_driver_sql(f"SET lock_timeout = {_INDEX_SECONDS * 1000:.0f}")
        if is_valid is not None:
            # What an attempt that was interrupted has left: it costs every write and helps no read.
            await connection.exec_driver_sql(f"DROP INDEX CONCURRENTLY {name}")
        await connection.exec_driver_sql(f"CREATE INDEX CONCURRENTLY {name} ON {columns}")
    except OperationalError as error:
        if not _was_in_the_way(error):
            raise
        _log.warning(
            "the index %s could not be built beside long transactions; without it runs are found more slowly. The next"
            " start, or `task-service migrate`, tries again",
            name,
        )
    else:
        _log.info("built the index %s", name)
    finally:
        if not connection.invalidated:
            await connection.exec_driver_sql("RESET lock_timeout")


async def _drop_index(connection: AsyncConnection, name: str) -> None:
    if await _is_valid(connection, name) is None:
        return
    try:
        await connection.exec_driver_sql(f"SET lock_timeout = {_INDEX_SECONDS * 1000:.0f}")
        await connection.exec_driver_sql(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
    except OperationalError as error:
        if not _was_in_the_way(error):
            raise
        _log.warning("the index %s is not needed any more; the next start drops it", name)
    finally:
        if not connection.invalidated:
            await connection.exec_driver_sql("RESET lock_timeout")


def _was_in_the_way(error: Exception) -> bool:
    """True if somebody else had what was needed; False if the database failed."""
    return isinstance(error.orig if isinstance(error, OperationalError) else error, IN_THE_WAY)
