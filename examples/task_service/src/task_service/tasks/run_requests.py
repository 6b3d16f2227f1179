"""Queues runs. Requests of one owner that arrive at the same time are written in one transaction.

The transaction locks the owner's row, and so follows the one before it, in every process. It writes all that have arrived by
then (:class:`.group_commit.GroupCommit`); a request that arrives later waits for the next transaction of its owner. Each request is
judged as if it came alone, in the order in which they arrived: a refused one does not affect the others, and counts and
numbers include the runs of those before it. Owners do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

from sqlalchemy import Row, String, and_, bindparam, delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from msk_auth import Clock, Principal
from msk_auth.errors import OwnerDisabled, PermissionDenied, Problem
from task_service.db.engine import Database
from task_service.db.schema import api_keys, idempotency, runs, tasks, users
from task_service.errors import IdempotencyConflict, RunQueueFull, TaskNotFound
from task_service.ids import new_id
from task_service.request_record import RequestRecord, current_request

from .group_commit import GroupCommit
from .interfaces import Change, OnChange
from .models import AcceptedWork, Run, RunPriority, RunState
from .notifications import LocalEvents, WorkerNotifier
from .owner_rotation import join_rotation
from .queries import WRITE, as_run

MAX_QUEUED_PER_USER: Final = 1000
IDEMPOTENCY_LIFETIME: Final = timedelta(hours=24)
"""How long an `Idempotency-Key` is remembered."""


@dataclass(frozen=True, slots=True, eq=False)
class RunRequest:
    """A request for a run. Make it in the context of the HTTP request that asks for it.

    Attributes:
        longest_seconds: The longest that a run may take now.
        record: The HTTP request.

    The others are the arguments of :meth:`.runs.Runs.request`.
    """

    principal: Principal[Any]
    task_id: str
    idempotency_key: str | None
    priority: RunPriority
    work: AcceptedWork | None
    rerun_of: str | None
    longest_seconds: int
    record: RequestRecord | None = field(default_factory=current_request.get)


class RunRequests:
    """Judges requests for runs, and queues the runs.

    Args:
        db: The service's database.
        clock: Where to take the time from.
        events: The events of this process.
        notifier: Notifies workers elsewhere.
        on_change: Called with the new runs, in their transaction.
    """

    def __init__(
        self,
        db: Database,
        clock: Clock,
        events: LocalEvents,
        notifier: WorkerNotifier,
        on_change: OnChange,
    ) -> None:
        self._db = db
        self._clock = clock
        self._events = events
        self._notifier = notifier
        self._on_change = on_change
        # One for each owner, for as long as a request of theirs waits.
        self._groups: WeakValueDictionary[str, GroupCommit[RunRequest, Run | Problem]] = (
            WeakValueDictionary()
        )

    async def add(self, request: RunRequest) -> Run:
        """Queue a run, or return the one that an earlier request with the same idempotency key has queued.

        Raises:
            PermissionDenied, OwnerDisabled, TaskNotFound, IdempotencyConflict, RunQueueFull: As :meth:`.runs.Runs.request`.
            StoreUnavailable: The database does not answer. The run may have been queued.
        """
        owner_id = request.principal.owner.id
        group = self._groups.setdefault(owner_id, GroupCommit(partial(self._write, owner_id)))
        outcome = await group.add(request)
        if isinstance(outcome, Problem):
            raise outcome
        return outcome

    async def _write(
        self, owner_id: str, take: Callable[[], Sequence[RunRequest]]
    ) -> Sequence[Run | Problem]:
        async with self._db.write() as connection:
            # Two with the same idempotency key must not make two runs, in whichever processes. And either the owner is
            # disabled before, or the transaction that disables them finds these runs. (SQLite has one writer anyway and
            # ignores FOR UPDATE.)
            is_enabled = (await connection.execute(_LOCK_OWNER, {"owner": owner_id})).all()
            requests = take()
            if not is_enabled:
                return [OwnerDisabled() for _ in requests]
            queue = _Queue(
                owner_id,
                tasks=await _lock_tasks(connection, owner_id, requests),
                earlier=await self._earlier(connection, owner_id, requests),
            )
            outcomes = [queue.judge(request, self._clock.now()) for request in requests]
            if queue.accepted:
                await self._insert(connection, queue)
        if queue.accepted:
            self._events.runner_wake.set()
        return outcomes

    async def _insert(self, connection: AsyncConnection, queue: _Queue) -> None:
        accepted = queue.accepted
        await connection.execute(insert(runs), [each.row for each in accepted])
        await connection.execute(
            _SET_NUMBER,
            [{"task": task_id, "number": number} for task_id, number in queue.numbers.items()],
        )
        await join_rotation(
            connection, queue.owner_id, min(each.request.priority.rank for each in accepted)
        )
        await self._notifier.notify(connection, [each.run.id for each in accepted])
        remembered = [
            {
                "owner_id": queue.owner_id,
                "key": each.request.idempotency_key,
                "task_id": each.run.task_id,
                "run_id": each.run.id,
                "created_at": each.run.created_at,
            }
            for each in accepted
            if each.request.idempotency_key is not None
        ]
        if remembered:
            await connection.execute(insert(idempotency), remembered)
        await self._on_change(connection, [_change(each) for each in accepted])

    async def _earlier(
        self, connection: AsyncConnection, owner_id: str, requests: Sequence[RunRequest]
    ) -> dict[str, Run]:
        """The runs that were requested with these idempotency keys; deletes keys that have expired."""
        keys = {each.idempotency_key for each in requests if each.idempotency_key is not None}
        if not keys:
            return {}
        these = (idempotency.c.owner_id == owner_id, idempotency.c.key.in_(keys))
        expired_before = self._clock.now() - IDEMPOTENCY_LIFETIME
        await connection.execute(
            delete(idempotency).where(*these, idempotency.c.created_at <= expired_before)
        )
        found = await connection.execute(
            select(idempotency.c.key, runs)
            .join_from(idempotency, runs, runs.c.id == idempotency.c.run_id)
            .where(*these)
        )
        return {row.key: as_run(row) for row in found}


class _Accepted(NamedTuple):
    request: RunRequest
    run: Run
    row: dict[str, Any]


class _Queue:
    """The queue of one owner, as their transaction sees it.

    Attributes:
        accepted: What is new in it.
        numbers: The number of the newest run of each task that has a new one.
    """

    def __init__(
        self,
        owner_id: str,
        *,
        tasks: Sequence[Row[*tuple[Any, ...]]],
        earlier: dict[str, Run],
    ) -> None:
        self.owner_id = owner_id
        self.accepted: list[_Accepted] = []
        self.numbers: dict[str, int] = {}
        # Each task is there once with each key.
        self._tasks = {row.id: row for row in tasks}
        self._key_names: dict[str | None, str] = {row.key_id: row.key_name for row in tasks}
        self._earlier = earlier

    def judge(self, request: RunRequest, now: datetime) -> Run | Problem:
        """Accept a request, or refuse it.

        Returns:
            The run, which may be an earlier one, or the refusal.
        """
        task = self._tasks.get(request.task_id)
        if task is None:
            return TaskNotFound()
        if request.idempotency_key is not None:
            earlier = self._earlier.get(request.idempotency_key)
            if earlier is not None:
                return earlier if earlier.task_id == task.id else IdempotencyConflict()
        its_own = AcceptedWork(task.handler, task.params)
        work = request.work or its_own
        if work != its_own and WRITE not in request.principal.permissions:
            return PermissionDenied([WRITE])
        if task.queued + len(self.accepted) >= MAX_QUEUED_PER_USER:
            return RunQueueFull()
        run = self._accept(request, task, work, now)
        if request.idempotency_key is not None:
            self._earlier[request.idempotency_key] = run
        return run

    def _accept(
        self, request: RunRequest, task: Row[*tuple[Any, ...]], work: AcceptedWork, now: datetime
    ) -> Run:
        newest: int = task.newest_number
        number = self.numbers.get(task.id, newest) + 1
        longest = request.longest_seconds
        row: dict[str, Any] = {
            "id": new_id("run"),
            "task_id": task.id,
            "number": number,
            "owner_id": self.owner_id,
            "state": RunState.QUEUED,
            "requested_by": self._requested_by(request),
            "handler": work.handler,
            "params": work.params,
            "timeout_seconds": min(
                longest if task.timeout_seconds is None else task.timeout_seconds, longest
            ),
            "created_at": now,
            "rank": request.priority.rank,
        }
        run = Run.model_validate({**_NOT_STARTED, **row})
        self.numbers[task.id] = number
        self.accepted.append(_Accepted(request, run, row))
        return run

    def _requested_by(self, request: RunRequest) -> dict[str, Any]:
        principal, record = request.principal, request.record
        return {
            "user_id": principal.owner.id,
            "username": principal.user.username,
            "credential": {
                "kind": principal.kind.value,
                "key_id": principal.key_id,
                "key_name": self._key_names.get(principal.key_id),
            },
            # For the log lines of whichever process executes the run, not for clients.
            "request": None
            if record is None
            else {"id": record.id, "traceparent": record.traceparent},
        }


# What the columns of a new run have without being written.
_NOT_STARTED: Final[Mapping[str, Any]] = {
    "attempt": 0,
    "started_at": None,
    "finished_at": None,
    "exit_code": None,
    "error": None,
    "log_missing_bytes": 0,
    "log_missing_lines": 0,
}

# Statements are made once: that takes longer than to execute them.
_OWNER: Final = bindparam("owner", type_=String)
_LOCK_OWNER: Final = (
    select(users.c.id)
    .where(users.c.id == _OWNER, users.c.disabled_at.is_(None))
    .with_for_update(key_share=True)
)
_QUEUED: Final = (
    # No more are counted than may be queued.
    select(runs.c.id)
    .where(runs.c.owner_id == _OWNER, runs.c.state == RunState.QUEUED.value)
    .limit(MAX_QUEUED_PER_USER)
    .subquery()
)
# Only once for each task of a version without numbers.
_EARLIER_RUNS: Final = select(func.count()).where(runs.c.task_id == tasks.c.id).scalar_subquery()
_LOCK_TASKS: Final = (
    select(
        tasks.c.id,
        tasks.c.handler,
        tasks.c.params,
        tasks.c.timeout_seconds,
        func.coalesce(tasks.c.last_run_number, _EARLIER_RUNS).label("newest_number"),
        select(func.count()).select_from(_QUEUED).scalar_subquery().label("queued"),
        api_keys.c.id.label("key_id"),
        api_keys.c.name.label("key_name"),
    )
    .outerjoin_from(
        tasks,
        api_keys,
        and_(
            api_keys.c.owner_id == tasks.c.owner_id,
            api_keys.c.id.in_(bindparam("keys", expanding=True)),
        ),
    )
    .where(
        tasks.c.id.in_(bindparam("tasks", expanding=True)),
        tasks.c.owner_id == _OWNER,
        tasks.c.deleted_at.is_(None),
    )
    # In one order, so that transactions that lock several cannot block each other.
    .order_by(tasks.c.id)
    # A task that is being deleted gets no more runs, and one that is being run keeps its number.
    .with_for_update(key_share=True, of=tasks)
)
_SET_NUMBER: Final = (
    update(tasks).where(tasks.c.id == bindparam("task")).values(last_run_number=bindparam("number"))
)


async def _lock_tasks(
    connection: AsyncConnection, owner_id: str, requests: Collection[RunRequest]
) -> Sequence[Row[*tuple[Any, ...]]]:
    """Lock those tasks of the requests that the owner has, and return each of them with each key of the requests."""
    values = {
        "owner": owner_id,
        "tasks": list({each.task_id for each in requests}),
        "keys": list({each.principal.key_id for each in requests} - {None}),
    }
    return (await connection.execute(_LOCK_TASKS, values)).all()


def _change(accepted: _Accepted) -> Change:
    request, run, _ = accepted
    details = {"task_id": run.task_id}
    if request.rerun_of is not None:
        details["rerun_of"] = request.rerun_of
    address = None if request.record is None else request.record.address
    return Change(request.principal, "run.requested", run.id, details, address)
