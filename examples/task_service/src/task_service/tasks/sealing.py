"""Seals what is stored already: the secrets of an older version, in plain text, and those that another key has sealed.

Older processes cannot execute what is sealed, so `task-service migrate --finish` does it, after the last of them has stopped. It
is also the last step of a rotation of the pepper.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, Table, select, update

from task_service.db.engine import Database
from task_service.db.schema import runs, tasks

from .parameters import TaskParameters

_BATCH: Final = 500
_TIMEOUT_SECONDS: Final = 600.0
_TABLES: Final[tuple[tuple[Table, ColumnElement[str]], ...]] = (
    (tasks, tasks.c.id),
    (runs, runs.c.task_id),
)


async def seal_all(db: Database, parameters: TaskParameters) -> int:
    """Seal the secrets of all tasks and runs with the current key. Other processes may go on.

    Returns:
        How many tasks and runs were changed.

    Raises:
        StoreUnavailable: The database does not answer. What was changed so far stays.
    """
    extended = db.with_timeout(_TIMEOUT_SECONDS)
    try:
        changed = 0
        # Until there is nothing left: a run that was requested meanwhile has the secrets of its task.
        while now := await _pass(extended, parameters):
            changed += now
        if changed:
            await _forget_plain_text(extended)
        return changed
    finally:
        await extended.close()


async def any_unsealed(db: Database, parameters: TaskParameters) -> bool:
    """Whether :func:`seal_all` would change a task or a run.

    Raises:
        StoreUnavailable: The database does not answer.
    """
    for table, task_id in _TABLES:
        async for rows in _batches(db, table, task_id):
            if any(parameters.seal_stored(row, row.task_id) != row.params for row in rows):
                return True
    return False


async def _pass(db: Database, parameters: TaskParameters) -> int:
    changed = 0
    for table, task_id in _TABLES:
        async for rows in _batches(db, table, task_id):
            wanted = [
                row.id for row in rows if parameters.seal_stored(row, row.task_id) != row.params
            ]
            if wanted:
                changed += await _seal(db, parameters, table, task_id, wanted)
    return changed


async def _seal(
    db: Database,
    parameters: TaskParameters,
    table: Table,
    task_id: ColumnElement[str],
    ids: list[str],
) -> int:
    changed = 0
    async with db.write() as connection:
        # In the order of their ids, as all that lock several runs do. They may have changed since they were read.
        found = await connection.execute(
            _select(table, task_id).where(table.c.id.in_(ids)).with_for_update()
        )
        for row in found.all():
            sealed = parameters.seal_stored(row, row.task_id)
            if sealed != row.params:
                await connection.execute(
                    update(table).where(table.c.id == row.id).values(params=sealed)
                )
                changed += 1
    return changed


async def _batches(
    db: Database, table: Table, task_id: ColumnElement[str]
) -> AsyncGenerator[list[Row[Any]]]:
    last = ""
    while True:
        async with db.read() as connection:
            statement = _select(table, task_id).where(table.c.id > last).limit(_BATCH)
            rows = list((await connection.execute(statement)).all())
        if not rows:
            return
        yield rows
        last = rows[-1].id


def _select(table: Table, task_id: ColumnElement[str]) -> Any:
    columns = (table.c.id, task_id.label("task_id"), table.c.owner_id, table.c.handler)
    return select(*columns, table.c.params).order_by(table.c.id)


async def _forget_plain_text(db: Database) -> None:
    """SQLite keeps what was overwritten in free pages and in the WAL."""
    async with db.read() as connection:
        if connection.dialect.name == "sqlite":
            await connection.exec_driver_sql("VACUUM")
            await connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
