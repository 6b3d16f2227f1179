"""Reads tasks and runs: conditions for what a principal may see, and the conversion of rows to models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Row, ScalarSelect, bindparam, select, true, union_all
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.schema import Column

from msk_auth import Principal
from task_service.db.schema import runs, tasks

from .models import Run, Task

READ_ALL = "tasks:read_all"
"""The permission to read other users' tasks and runs, and no more."""
CANCEL_ALL = "runs:cancel_all"
"""The permission to cancel other users' runs."""
WRITE = "tasks:write"
"""The permission to choose the parameters of one's own tasks."""
PRIORITIZE = "runs:prioritize"
"""The permission to queue urgent runs, which go before other owners'."""
MAX_PAGE = 100
DEFAULT_PAGE = 50

RUN_COLUMNS: Final = tuple(runs.c[name] for name in Run.model_fields)
"""What :func:`as_run` reads."""


def visible_to(principal: Principal[Any], owner: Column[str]) -> ColumnElement[bool]:
    """That a row belongs to the principal, or that the principal may read all."""
    return true() if READ_ALL in principal.permissions else owned_by(principal, owner)


def owned_by(principal: Principal[Any], owner: Column[str]) -> ColumnElement[bool]:
    """That a row belongs to the principal."""
    return owner == principal.owner.id


def cancellable_by(principal: Principal[Any], owner: Column[str]) -> ColumnElement[bool]:
    """That a run belongs to the principal, or that the principal may cancel all."""
    return true() if CANCEL_ALL in principal.permissions else owned_by(principal, owner)


# Built once, as the statement below: building an alias costs more than executing the statement.
_NEWEST: Final = runs.alias("newest")


def of_newest_run(column: str) -> ScalarSelect[Any]:
    """In a query of tasks: a column of each one's newest run, which the index finds."""
    return (
        select(_NEWEST.c[column])
        .where(_NEWEST.c.task_id == tasks.c.id)
        .order_by(_NEWEST.c.created_at.desc(), _NEWEST.c.id.desc())
        .limit(1)
        .correlate(tasks)
        .scalar_subquery()
    )


_LATEST_RUNS: Final = select(*RUN_COLUMNS).where(
    runs.c.id.in_(
        select(of_newest_run("id")).where(tasks.c.id.in_(bindparam("task_ids", expanding=True)))
    )
)


async def latest_runs(connection: AsyncConnection, task_ids: Sequence[str]) -> dict[str, list[Run]]:
    """The newest run of each task that has any; for one run it is many times faster than :func:`recent_runs`."""
    found = await connection.execute(_LATEST_RUNS, {"task_ids": task_ids})
    return {row.task_id: [as_run(row)] for row in found}


async def recent_runs(
    connection: AsyncConnection, task_ids: Sequence[str], count: int
) -> dict[str, list[Run]]:
    """The newest runs of each task that has any, newest first. Each task's are found by the index."""
    if not task_ids:
        return {}
    newest = [
        select(*RUN_COLUMNS)
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


def as_task(row: Row[Any], newest: Sequence[Run]) -> Task:
    """Convert a row of `tasks`, with its newest runs."""
    columns = row._asdict()  # pyright: ignore[reportPrivateUsage] - public, as that of a named tuple
    return Task.model_validate({**columns, "last_run": newest[0] if newest else None})
