"""Reads tasks and runs: conditions for what a principal may see, pages, and the conversion of rows to models."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Row, Select, select, true, tuple_, union_all
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.schema import Column, Table

from msk_auth import InputInvalid, PageCursor, Principal
from task_service.db.schema import runs, tasks

from .models import Run, Task

READ_ALL = "tasks:read_all"
"""The permission to read other users' tasks and runs, and no more."""
CANCEL_ALL = "runs:cancel_all"
"""The permission to cancel other users' runs."""
PRIORITIZE = "runs:prioritize"
"""The permission to queue urgent runs, which go before other owners'."""
MAX_PAGE = 100
DEFAULT_PAGE = 50


def visible_to(principal: Principal[Any], owner: Column[str]) -> ColumnElement[bool]:
    """That a row belongs to the principal, or that the principal may read all."""
    return true() if READ_ALL in principal.permissions else owned_by(principal, owner)


def owned_by(principal: Principal[Any], owner: Column[str]) -> ColumnElement[bool]:
    """That a row belongs to the principal."""
    return owner == principal.owner.id


def cancellable_by(principal: Principal[Any], owner: Column[str]) -> ColumnElement[bool]:
    """That a run belongs to the principal, or that the principal may cancel all."""
    return true() if CANCEL_ALL in principal.permissions else owned_by(principal, owner)


def check_limit(limit: int) -> None:
    """Validate a page size.

    Raises:
        InputInvalid: Field `limit`.
    """
    if not 1 <= limit <= MAX_PAGE:
        raise InputInvalid.of("limit", f"Out of range. Allowed: 1 to {MAX_PAGE}.")


def page(statement: Select[Any], table: Table, *, cursor: str | None, limit: int) -> Select[Any]:
    """The statement's rows from the cursor on, newest first, and one more than `limit` for :func:`next_cursor`.

    Raises:
        InputInvalid: Fields `cursor` and `limit`.
    """
    check_limit(limit)
    position = (table.c.created_at, table.c.id)
    if cursor is not None:
        created_at, last_id = PageCursor.decode(cursor)
        statement = statement.where(
            tuple_(*position) < tuple_(created_at, last_id, types=[c.type for c in position])
        )
    return statement.order_by(*(column.desc() for column in position)).limit(limit + 1)


def next_cursor(rows: Sequence[Row[Any]], limit: int) -> str | None:
    """The cursor of the page after the first `limit` rows; None if there are no more."""
    if len(rows) <= limit:
        return None
    last = rows[limit - 1]
    return PageCursor.encode(last.created_at, last.id)


async def latest_runs(connection: AsyncConnection, task_ids: Collection[str]) -> dict[str, Run]:
    """The newest run of each task that has one. Each is found by the index."""
    inner = runs.alias("inner")
    newest = (
        select(inner.c.id)
        .where(inner.c.task_id == tasks.c.id)
        .order_by(inner.c.created_at.desc(), inner.c.id.desc())
        .limit(1)
        .scalar_subquery()
    )
    result = await connection.execute(
        select(runs).where(runs.c.id.in_(select(newest).where(tasks.c.id.in_(task_ids))))
    )
    return {row.task_id: as_run(row) for row in result}


async def recent_runs(
    connection: AsyncConnection, task_ids: Sequence[str], count: int
) -> dict[str, list[Run]]:
    """The newest runs of each task that has any, newest first. Each task's are found by the index."""
    if not task_ids:
        return {}
    newest = [
        select(runs)
        .where(runs.c.task_id == task_id)
        .order_by(runs.c.created_at.desc(), runs.c.id.desc())
        .limit(count)
        .subquery()
        for task_id in task_ids
    ]
    found: dict[str, list[Run]] = {}
    for row in await connection.execute(union_all(*(select(each) for each in newest))):
        found.setdefault(row.task_id, []).append(as_run(row))
    for each in found.values():
        each.sort(key=lambda run: (run.created_at, run.id), reverse=True)
    return found


def as_run(row: Row[Any]) -> Run:
    """Convert a row of `runs`."""
    return Run.model_validate(row)


def as_task(row: Row[Any], last_run: Run | None) -> Task:
    """Convert a row of `tasks`."""
    return Task(
        id=row.id,
        name=row.name,
        handler=row.handler,
        params=row.params,
        timeout_seconds=row.timeout_seconds,
        owner_id=row.owner_id,
        created_at=row.created_at,
        updated_at=row.updated_at,
        last_run=last_run,
    )
