"""Seals stored secrets: plain-text secrets of an older version, and secrets that another key has sealed.

Older processes cannot execute runs with sealed secrets, so `task-service migrate --finish` seals them, after the last older
process has stopped. This is also the last step of a rotation of the pepper.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final

from sqlalchemy import Select, Table, select, update

from task_service.db.engine import Database
from task_service.db.schema import runs, tasks

from .parameters import TaskParameters

_BATCH: Final = 500
_TIMEOUT_SECONDS: Final = 600.0


async def seal_all(db: Database, parameters: TaskParameters) -> int:
    """Seal the secrets of all tasks and runs with the current key. Other processes may continue.

    Returns:
        The number of changed tasks and runs.

    Raises:
        StoreUnavailable: The database does not answer. Earlier changes stay.
    """
    extended = db.with_timeout(_TIMEOUT_SECONDS)
    try:
        changed = 0
        # Until none is left: a run requested meanwhile has a copy of its task's secrets.
        while found := [each async for each in _unsealed(extended, parameters)]:
            for table, ids in found:
                changed += await _seal(extended, parameters, table, ids)
        if changed:
            await _erase_plain_text(extended)
        return changed
    finally:
        await extended.close()


async def any_unsealed(db: Database, parameters: TaskParameters) -> bool:
    """True if :func:`seal_all` would change a task or a run.

    Raises:
        StoreUnavailable: The database does not answer.
    """
    async with aclosing(_unsealed(db, parameters)) as found:
        return await anext(found, None) is not None


async def lacking_keys(db: Database, parameters: TaskParameters) -> set[str]:
    """The ids of missing keys, without which secrets of tasks cannot be opened here.

    Raises:
        StoreUnavailable: The database does not answer.
    """
    async with db.read() as connection:
        stored = await connection.scalars(
            select(tasks.c.params).where(tasks.c.deleted_at.is_(None))
        )
        return {key_id for params in stored for key_id in parameters.lacking(params)}


async def _unsealed(
    db: Database, parameters: TaskParameters
) -> AsyncGenerator[tuple[Table, Sequence[str]]]:
    """The ids of rows to seal, some at a time."""
    for table in (tasks, runs):
        last = ""
        while True:
            async with db.read() as connection:
                batch = _select(table).where(table.c.id > last).limit(_BATCH)
                rows = (await connection.execute(batch)).all()
            if not rows:
                break
            last = rows[-1].id
            ids = [row.id for row in rows if parameters.seal_stored(row) != row.params]
            if ids:
                yield table, ids


async def _seal(db: Database, parameters: TaskParameters, table: Table, ids: Sequence[str]) -> int:
    """Seal the secrets of these rows, which may have changed since they were read; return the number of changed rows."""
    changed = 0
    async with db.write() as connection:
        locked = _select(table).where(table.c.id.in_(ids)).with_for_update()
        for row in (await connection.execute(locked)).all():
            sealed = parameters.seal_stored(row)
            if sealed != row.params:
                await connection.execute(
                    update(table).where(table.c.id == row.id).values(params=sealed)
                )
                changed += 1
    return changed


def _select(table: Table) -> Select[*tuple[Any, ...]]:
    """The columns for sealing, in the order of ids, which all locks of several runs follow."""
    task_id = (table.c.id if table is tasks else table.c.task_id).label("task_id")
    columns = (table.c.id, task_id, table.c.owner_id, table.c.handler, table.c.params)
    return select(*columns).order_by(table.c.id)


async def _erase_plain_text(db: Database) -> None:
    """Remove overwritten texts, which SQLite keeps in free pages and in the WAL."""
    async with db.read() as connection:
        if connection.dialect.name == "sqlite":
            await connection.exec_driver_sql("VACUUM")
            await connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
