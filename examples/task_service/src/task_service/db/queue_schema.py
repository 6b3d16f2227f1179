"""The tables of procrastinate, in the same database and brought to their version in the same transaction as ours.

procrastinate numbers its migrations itself; which ones a database has is recorded in `queue_migrations`. Those that old
and new processes can both live with (`pre`) are applied at once. Those that only new processes can live with (`post`)
wait for `task-service migrate --finish`, after the last old process has stopped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import psycopg
from procrastinate.schema import SchemaManager
from sqlalchemy import insert, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from msk_auth import ConfigurationError, StoreUnavailable

from .schema import queue_migrations

IN_THE_WAY: Final = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)
"""What the driver says if another transaction has what is needed: worth trying again."""


async def bring_queue_to_version(connection: AsyncConnection, *, finish: bool) -> list[str]:
    """Make or change procrastinate's tables, in the transaction of `connection`.

    Args:
        connection: On PostgreSQL, with nobody else migrating.
        finish: Whether to apply also what older processes cannot live with.

    Returns:
        The migrations that are left for later.

    Raises:
        ConfigurationError: Another application keeps its own procrastinate in this database.
        StoreUnavailable: The database cannot answer.
        psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected: Others use the tables.
    """
    scripts = _scripts()
    known = sorted(scripts)
    applied = set((await connection.execute(select(queue_migrations.c.name))).scalars())
    if not applied:
        taken = await connection.scalar(
            text("SELECT to_regclass('procrastinate_jobs') IS NOT NULL")
        )
        if taken:
            raise ConfigurationError(
                "The database holds a queue (procrastinate_jobs) that the service did not make."
                " Give it a database of its own."
            )
        await _run_script(connection, SchemaManager.get_schema())
        await _record(connection, known)
        return []
    waiting = [name for name in known if name not in applied]
    later = [] if finish else [name for name in waiting if "_post_" in name]
    for name in waiting:
        if name not in later:
            await _run_script(connection, scripts[name])
            await _record(connection, [name])
    return later


async def queue_migrations_left(connection: AsyncConnection) -> list[str]:
    """The migrations that a database with a queue does not have yet."""
    applied = set((await connection.execute(select(queue_migrations.c.name))).scalars())
    return sorted(_scripts().keys() - applied)


def _scripts() -> dict[str, str]:
    folder = Path(SchemaManager.get_migrations_path())
    return {path.stem: path.read_text("utf-8") for path in folder.glob("*.sql")}


async def _record(connection: AsyncConnection, names: list[str]) -> None:
    await connection.execute(insert(queue_migrations), [{"name": name} for name in names])


async def _run_script(connection: AsyncConnection, script: str) -> None:
    # Several statements at once go through the driver alone, and only without parameters.
    driver: Any = (await connection.get_raw_connection()).driver_connection
    try:
        await driver.execute(script)
    except IN_THE_WAY:
        raise
    except psycopg.OperationalError as error:
        raise StoreUnavailable from error
