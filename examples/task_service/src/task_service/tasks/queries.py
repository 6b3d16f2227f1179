"""Reads tasks and runs: conditions for what a principal may see, and the conversion of rows to models."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import Row, ScalarSelect, Select, select, true, union_all
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.schema import Column

from msk_auth import Principal
from task_service.db.schema import runs, tasks

from .models import RequestedBy, RequestedWith, Run, RunDetails, Task

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

_INNER = runs.alias("inner")
_RUN_COLUMNS = tuple(runs.c[name] for name in Run.model_fields)
_TASK_NAMES: Final = tuple(name for name in Task.model_fields if name != "last_run")
_RUN_NAMES: Final = tuple(Run.model_fields)
_REQUESTER_NAMES: Final = tuple(RequestedBy.model_fields)
_CREDENTIAL_NAMES: Final = tuple(RequestedWith.model_fields)
_task_values: Final = attrgetter(*_TASK_NAMES)
_run_values: Final = attrgetter(*(f"run_{name}" for name in _RUN_NAMES))


def visible_to(principal: Principal[Any], owner: Column[str]) -> ColumnElement[bool]:
    """That a row belongs to the principal, or that the principal may read all."""
    return true() if READ_ALL in principal.permissions else owned_by(principal, owner)


def owned_by(principal: Principal[Any], owner: Column[str]) -> ColumnElement[bool]:
    """That a row belongs to the principal."""
    return owner == principal.owner.id


def cancellable_by(principal: Principal[Any], owner: Column[str]) -> ColumnElement[bool]:
    """That a run belongs to the principal, or that the principal may cancel all."""
    return true() if CANCEL_ALL in principal.permissions else owned_by(principal, owner)


async def latest_runs(connection: AsyncConnection, task_ids: Collection[str]) -> dict[str, Run]:
    """The newest run of each task that has one. Each is found by the index."""
    newest = _of_newest_run(_INNER.c.id)
    result = await connection.execute(
        select(*_RUN_COLUMNS).where(runs.c.id.in_(select(newest).where(tasks.c.id.in_(task_ids))))
    )
    return {row.task_id: as_run(row) for row in result}


def with_last_run(tasks_page: Select[Any]) -> Select[Any]:
    """What is shown of a page of tasks, each with the columns of its newest run as `run_…`, which the index finds; in no order."""
    page = tasks_page.subquery("page")
    newest = (
        select(_INNER.c.id)
        .where(_INNER.c.task_id == page.c.id)
        .order_by(_INNER.c.created_at.desc(), _INNER.c.id.desc())
        .limit(1)
        .correlate(page)
        .scalar_subquery()
    )
    return select(
        *(page.c[name] for name in (*_TASK_NAMES, "sort_key")),
        *(runs.c[name].label(f"run_{name}") for name in _RUN_NAMES),
    ).select_from(page.outerjoin(runs, runs.c.id == newest))


def members_of_task(row: Any) -> dict[str, Any]:
    """The members of the `Task` in a row of :func:`with_last_run`.

    What the database holds was validated when it was written. To read it into models, and those into JSON, takes more than
    twice the time.
    """
    last_run = None
    if row.run_id is not None:
        last_run = dict(zip(_RUN_NAMES, _run_values(row), strict=True))
        last_run["requested_by"] = _members_of_requester(last_run["requested_by"])
    return {**dict(zip(_TASK_NAMES, _task_values(row), strict=True)), "last_run": last_run}


def _members_of_requester(stored: dict[str, Any]) -> dict[str, Any]:
    """The members of `RequestedBy`. The column has the request of the run as well, which no answer shows."""
    shown = {name: stored[name] for name in _REQUESTER_NAMES}
    credential = shown["credential"]
    # The oldest runs have no name of a key.
    shown["credential"] = {
        name: credential[name] for name in _CREDENTIAL_NAMES if name in credential
    }
    return shown


def newest_state() -> ScalarSelect[Any]:
    """In a query of tasks: the state of each one's newest run, which the index finds."""
    return _of_newest_run(_INNER.c.state)


def _of_newest_run(column: ColumnElement[Any]) -> ScalarSelect[Any]:
    return (
        select(column)
        .where(_INNER.c.task_id == tasks.c.id)
        .order_by(_INNER.c.created_at.desc(), _INNER.c.id.desc())
        .limit(1)
        .correlate(tasks)
        .scalar_subquery()
    )


async def recent_runs(
    connection: AsyncConnection, task_ids: Sequence[str], count: int
) -> dict[str, list[Run]]:
    """The newest runs of each task that has any, newest first. Each task's are found by the index."""
    if not task_ids:
        return {}
    newest = [
        select(*_RUN_COLUMNS)
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


def as_details(row: Row[Any]) -> RunDetails:
    """Convert a row of `runs`, with the parameters."""
    return RunDetails.model_validate(row)


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
