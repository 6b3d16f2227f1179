"""Judges requests for runs, and queues the runs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Row, and_, delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from msk_auth import Principal
from msk_auth.errors import CredentialRefused, PermissionDenied
from task_service.db.schema import api_keys, idempotency, runs, tasks, users
from task_service.errors import IdempotencyConflict, RunQueueFull, TaskNotFound
from task_service.ids import new_id
from task_service.request_record import current_request

from .models import AcceptedWork, Run, RunPriority, RunState
from .queries import RUN_COLUMNS, WRITE, as_run

MAX_QUEUED_PER_USER: Final = 1000
IDEMPOTENCY_LIFETIME: Final = timedelta(hours=24)
"""How long an `Idempotency-Key` is remembered."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A request for a run.

    Attributes:
        longest_seconds: The longest that a run may take now.

    The others are the arguments of :meth:`.runs.Runs.request`.
    """

    principal: Principal[Any]
    task_id: str
    idempotency_key: str | None
    priority: RunPriority
    work: AcceptedWork | None
    longest_seconds: int


class Queued(NamedTuple):
    """The answer to a request: its run, or that of an earlier request with the same idempotency key."""

    run: Run
    is_new: bool


async def queue_run(connection: AsyncConnection, request: RunRequest, now: datetime) -> Queued:
    """Queue a run, or find the one that an earlier request with the same idempotency key has queued.

    Locks the owner's row until the transaction ends: two requests with the same idempotency key must not make two runs, and
    either the owner is disabled before, or the transaction that disables them finds the new run.

    Raises:
        CredentialRefused, TaskNotFound, IdempotencyConflict, PermissionDenied, RunQueueFull: As :meth:`.runs.Runs.request`.
    """
    owner_id = request.principal.owner.id
    task = await _task_of(connection, request)
    earlier = await _earlier_run(connection, request, now)
    if earlier is not None:
        return Queued(earlier, is_new=False)
    its_own = AcceptedWork(task.handler, task.params)
    work = request.work or its_own
    if work != its_own and WRITE not in request.principal.permissions:
        raise PermissionDenied([WRITE])
    number = await _next_number(connection, request)
    longest = request.longest_seconds
    row = {
        "id": new_id("run"),
        "task_id": task.id,
        "number": number,
        "owner_id": owner_id,
        "state": RunState.QUEUED,
        "requested_by": _requested_by(request.principal, task.key_name),
        "handler": work.handler,
        "params": work.params,
        "timeout_seconds": min(
            longest if task.timeout_seconds is None else task.timeout_seconds, longest
        ),
        "created_at": now,
        "rank": request.priority.rank,
    }
    queued = await connection.execute(insert(runs).values(row).returning(*RUN_COLUMNS))
    if request.idempotency_key is not None:
        await connection.execute(
            insert(idempotency).values(
                owner_id=owner_id,
                key=request.idempotency_key,
                task_id=task.id,
                run_id=row["id"],
                created_at=now,
            )
        )
    return Queued(as_run(queued.one()), is_new=True)


async def _task_of(connection: AsyncConnection, request: RunRequest) -> Row[*tuple[Any, ...]]:
    """Lock the owner's row, and read the task and the name of the key."""
    owner_id, key_id = request.principal.owner.id, request.principal.key_id
    key = and_(api_keys.c.owner_id == owner_id, api_keys.c.id == key_id)
    found = await connection.execute(
        select(
            tasks.c.id,
            tasks.c.handler,
            tasks.c.params,
            tasks.c.timeout_seconds,
            select(api_keys.c.name).where(key).scalar_subquery().label("key_name"),
        )
        .outerjoin_from(users, tasks, and_(*_is_there(request)))
        .where(users.c.id == owner_id, users.c.disabled_at.is_(None))
        .with_for_update(key_share=True, of=users)
    )
    task = found.one_or_none()
    if task is None:
        raise CredentialRefused("owner_disabled")
    if task.id is None:
        raise TaskNotFound
    return task


async def _next_number(connection: AsyncConnection, request: RunRequest) -> int:
    """Number the run. The task's row is locked: one that is deleted meanwhile gets no more runs."""
    queued = (
        # No more are counted than may be queued.
        select(runs.c.id)
        .where(runs.c.owner_id == request.principal.owner.id, runs.c.state == RunState.QUEUED)
        .limit(MAX_QUEUED_PER_USER)
        .subquery()
    )
    # Only once for each task of a version without numbers.
    earlier = select(func.count()).where(runs.c.task_id == tasks.c.id).scalar_subquery()
    numbered = await connection.execute(
        update(tasks)
        .where(*_is_there(request))
        .values(last_run_number=func.coalesce(tasks.c.last_run_number, earlier) + 1)
        .returning(
            tasks.c.last_run_number,
            select(func.count()).select_from(queued).scalar_subquery().label("queued"),
        )
    )
    row = numbered.one_or_none()
    if row is None:
        raise TaskNotFound
    if row.queued >= MAX_QUEUED_PER_USER:
        raise RunQueueFull
    number: int = row.last_run_number
    return number


def _is_there(request: RunRequest) -> tuple[ColumnElement[bool], ...]:
    return (
        tasks.c.id == request.task_id,
        tasks.c.owner_id == request.principal.owner.id,
        tasks.c.deleted_at.is_(None),
    )


async def _earlier_run(
    connection: AsyncConnection, request: RunRequest, now: datetime
) -> Run | None:
    """The run of the request's idempotency key. One that has expired is forgotten."""
    if request.idempotency_key is None:
        return None
    this = (
        idempotency.c.owner_id == request.principal.owner.id,
        idempotency.c.key == request.idempotency_key,
    )
    expired = idempotency.c.created_at <= now - IDEMPOTENCY_LIFETIME
    await connection.execute(delete(idempotency).where(*this, expired))
    found = await connection.execute(
        select(runs).join_from(idempotency, runs, runs.c.id == idempotency.c.run_id).where(*this)
    )
    row = found.one_or_none()
    if row is not None and row.task_id != request.task_id:
        raise IdempotencyConflict
    return None if row is None else as_run(row)


def _requested_by(principal: Principal[Any], key_name: str | None) -> dict[str, Any]:
    record = current_request.get()
    return {
        "user_id": principal.owner.id,
        "username": principal.user.username,
        "credential": {
            "kind": principal.kind.value,
            "key_id": principal.key_id,
            "key_name": key_name,
        },
        # For the log lines of whichever process executes the run, not for clients.
        "request": None if record is None else {"id": record.id, "traceparent": record.traceparent},
    }
