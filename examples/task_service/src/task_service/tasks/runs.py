"""Owners' operations on runs: request, read and cancel; and the cancellation of many runs at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Final

from sqlalchemy import Row, and_, delete, func, insert, or_, select, true, update
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.schema import Column

from msk_auth import Principal
from msk_auth.errors import CredentialRefused, InputInvalid, PermissionDenied
from task_service.accounts.changes import Accounts
from task_service.accounts.config import ConfigStore
from task_service.db.paging import FIRST_PAGE, Order, Page, PageRequest, Paging
from task_service.db.schema import api_keys, idempotency, runs, tasks, users
from task_service.errors import (
    IdempotencyConflict,
    RunNotCancellable,
    RunNotFound,
    RunQueueFull,
    TaskNotFound,
    TaskOwnerDisabled,
)
from task_service.ids import is_id, new_id
from task_service.request_record import current_request

from .models import AcceptedWork, ListedRun, Run, RunDetails, RunPriority, RunQuery, RunState
from .next_run import OWNER_DISABLED, REQUESTED_WITH
from .notifications import Notifications
from .parameters import TaskParameters

READ = "tasks:read"
RUN = "tasks:run"
READ_ALL = "tasks:read_all"
"""The permission to read other users' tasks and runs, and no more."""
MANAGE_ALL = "tasks:manage_all"
"""The permission to read, change, run, delete and hand over other users' tasks."""
CANCEL_ALL = "runs:cancel_all"
"""The permission to cancel other users' runs."""
WRITE = "tasks:write"
"""The permission to choose the parameters of one's own tasks."""
PRIORITIZE = "runs:prioritize"
"""The permission to queue urgent runs, which go before other owners' runs."""

RUN_COLUMNS: Final = tuple(runs.c[name] for name in Run.model_fields)
"""The columns of a :class:`.models.Run`."""
MAX_QUEUED_PER_USER: Final = 1000
IDEMPOTENCY_LIFETIME: Final = timedelta(hours=24)
"""The time for which an `Idempotency-Key` is remembered."""

TASK: Final = "task:"
"""The prefix of a task among the resources of a key."""
_NEWEST_FIRST: Final = Order.by_time(runs.c.created_at, runs.c.id)
_OWNERS: Final = users.alias("owners")
_WITH_ITS_KEY = "Its owner revoked the API key that requested the run, and cancelled its runs."
_BY_ANOTHER = "An administrator cancelled the run."
# Visible ASCII, which a header field can contain without quotes.
_IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,255}")


def visible_tasks(principal: Principal[Any]) -> ColumnElement[bool]:
    """The tasks that the principal sees: its own, or all; with a key limited to tasks, only these."""
    return and_(tasks.c.deleted_at.is_(None), _visible(principal, tasks.c.owner_id, tasks.c.id))


def _visible_runs(principal: Principal[Any], *others: str) -> ColumnElement[bool]:
    """The runs that the principal sees, like their tasks; `others` are further permissions that show all runs."""
    return _visible(principal, runs.c.owner_id, runs.c.task_id, *others)


def _visible(
    principal: Principal[Any], owner: Column[str], task_id: Column[str], *others: str
) -> ColumnElement[bool]:
    sees_all = principal.permissions & {READ_ALL, MANAGE_ALL, *others}
    visible = true() if sees_all else owner == principal.owner.id
    if principal.resources is None:
        return visible
    return and_(visible, task_id.in_(task_ids(principal.resources)))


def task_ids(resources: Iterable[str]) -> Sequence[str]:
    """The ids of the tasks among the resources of a key."""
    return [each.removeprefix(TASK) for each in resources if each.startswith(TASK)]


def readable_by(principal: Principal[Any]) -> ColumnElement[bool]:
    """A condition: the run is visible to the principal, or the principal's API key has requested it.

    Raises:
        PermissionDenied: The principal may neither read nor run tasks.
    """
    if READ in principal.permissions:
        return _visible_runs(principal)
    if RUN in principal.permissions and principal.key_id is not None:
        its_own: ColumnElement[bool] = principal.key_id == REQUESTED_WITH
        return its_own
    raise PermissionDenied([READ])


def check_may_manage(principal: Principal[Any], owner_id: str, *others: str) -> None:
    """Refuse a change of a visible task or run without the permission.

    Args:
        principal: The principal.
        owner_id: The owner of the task or run.
        others: Further permissions that suffice, besides `tasks:manage_all`.

    Raises:
        PermissionDenied: The owner is another, and the principal has none of these permissions.
    """
    sufficient = {MANAGE_ALL, *others}
    if owner_id != principal.owner.id and not principal.permissions & sufficient:
        raise PermissionDenied(
            [MANAGE_ALL], f"This belongs to another owner. It needs the permission {MANAGE_ALL}."
        )


def _conditions(query: RunQuery) -> Iterator[ColumnElement[bool]]:
    if query.states is not None:
        yield runs.c.state.in_(query.states)
    if query.owner is not None:
        named = select(_OWNERS.c.id).where(_OWNERS.c.username == query.owner)
        yield runs.c.owner_id == named.scalar_subquery()
    if query.task_id is not None:
        yield runs.c.task_id == query.task_id
    if query.key_id is not None:
        yield query.key_id == REQUESTED_WITH
    if query.since is not None:
        yield runs.c.created_at >= query.since
    if query.until is not None:
        yield runs.c.created_at < query.until


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs of all users, each seen through its principal.

    Args:
        accounts: The database and the audit log.
        config: The administrator's live settings.
        notifications: Notifies workers and readers.
        parameters: Accepts changed parameters of a rerun, and masks secrets.

    Every method raises StoreUnavailable when the database does not answer.
    """

    accounts: Accounts
    config: ConfigStore
    notifications: Notifications
    parameters: TaskParameters

    async def request(
        self,
        principal: Principal[Any],
        task_id: str,
        *,
        idempotency_key: str | None = None,
        priority: RunPriority = RunPriority.NORMAL,
        work: AcceptedWork | None = None,
        rerun_of: str | None = None,
    ) -> Run:
        """Queue a run of a task. The run belongs to the task's owner, not to the caller.

        Args:
            principal: The caller.
            task_id: The task.
            idempotency_key: A second request with the same key within 24 hours returns the run of the first request
                (draft-ietf-httpapi-idempotency-key-header). An API key that may not read all runs of its owner has its own keys.
            priority: The order among the owner's own runs; `urgent` also goes before other owners' runs.
            work: The handler and parameters; None means the task's present ones.
            rerun_of: The earlier run, for the audit log.

        Raises:
            PermissionDenied: The priority is urgent, and the principal lacks `runs:prioritize`; or `work` differs from the
                task, and the principal lacks `tasks:write`; or the task is another owner's, and the principal lacks
                `tasks:manage_all`.
            CredentialRefused: The principal's own account was disabled meanwhile.
            TaskOwnerDisabled: The owner of the task is disabled.
            TaskNotFound: There is no such task, or the principal may not see it.
            IdempotencyConflict: The key was used to run another task.
            RunQueueFull: 1000 runs of this user are already queued.
            InputInvalid: Field `Idempotency-Key`.
        """
        if not is_id(task_id, "tsk"):
            raise TaskNotFound
        if idempotency_key is not None:
            idempotency_key = _stored_key(principal, idempotency_key)
        if priority is RunPriority.URGENT and PRIORITIZE not in principal.permissions:
            raise PermissionDenied([PRIORITIZE])
        longest = (await self.config.current()).run_timeout_seconds
        details: dict[str, Any] = {} if rerun_of is None else {"rerun_of": rerun_of}
        async with self.accounts.change(principal) as change:
            connection = change.connection
            task = await _lock_task(connection, principal, task_id)
            if idempotency_key is not None:
                earlier = await _earlier_run(
                    connection, principal.owner.id, task_id, idempotency_key, change.now
                )
                if earlier is not None:
                    return earlier
            its_own = AcceptedWork(task.handler, task.params)
            work = its_own if work is None else work
            if work != its_own and WRITE not in principal.permissions:
                raise PermissionDenied([WRITE])
            values = {
                "id": new_id("run"),
                "task_id": task_id,
                "number": await _next_number(connection, task),
                "owner_id": task.owner_id,
                "state": RunState.QUEUED,
                "requested_by": _requested_by(principal, task.key_name),
                "handler": work.handler,
                "params": work.params,
                "timeout_seconds": longest
                if task.timeout_seconds is None
                else min(task.timeout_seconds, longest),
                "created_at": change.now,
                "rank": priority.rank,
            }
            queued = await connection.execute(insert(runs).values(values).returning(*RUN_COLUMNS))
            run = Run.model_validate(queued.one())
            if idempotency_key is not None:
                await connection.execute(
                    insert(idempotency).values(
                        owner_id=principal.owner.id,
                        key=idempotency_key,
                        task_id=task_id,
                        run_id=run.id,
                        created_at=change.now,
                    )
                )
            await self.notifications.announce(connection, run.id)
            await change.record("run.requested", run.id, task_id=task_id, **details)
        self.notifications.runner_wake.set()
        return run

    async def rerun(
        self,
        principal: Principal[Any],
        run_id: str,
        *,
        params: dict[str, Any] | None = None,
        idempotency_key: str | None = None,
        priority: RunPriority = RunPriority.NORMAL,
    ) -> Run:
        """Queue a run of the same task, with the handler of an earlier run.

        Args:
            principal: The caller, who need not read tasks.
            run_id: The earlier run.
            params: The parameters; None means those of the earlier run.
            idempotency_key: As for :meth:`request`.
            priority: As for :meth:`request`.

        Raises:
            RunNotFound: There is no such run, or the principal may not see it.
            InputInvalid: The handler does not accept or allow the parameters.
            Problem: As for :meth:`request`.
        """
        visible = _visible_runs(principal)
        before = await self._read(run_id, visible)
        accepted = await self.parameters.accept(
            principal, before.task_id, before.handler, params, before=before
        )
        return await self.request(
            principal,
            before.task_id,
            idempotency_key=idempotency_key,
            priority=priority,
            work=AcceptedWork(before.handler, accepted),
            rerun_of=run_id,
        )

    async def get(self, principal: Principal[Any], run_id: str) -> Run:
        """One run that the principal may see.

        Raises:
            RunNotFound: There is no such run, or the principal may not see it.
        """
        return Run.model_validate(await self._read(run_id, readable_by(principal)))

    async def details(self, principal: Principal[Any], run_id: str) -> RunDetails:
        """One run that the principal may see, with its handler and parameters.

        Raises:
            RunNotFound: There is no such run, or the principal may not see it.
        """
        row = await self._read(run_id, readable_by(principal))
        columns = row._asdict()  # pyright: ignore[reportPrivateUsage] - public, as that of a named tuple
        params = self.parameters.mask(row.handler, row.params)
        return RunDetails.model_validate({**columns, "params": params})

    async def _read(self, run_id: str, condition: ColumnElement[bool]) -> Row[Any]:
        if not is_id(run_id, "run"):
            raise RunNotFound
        statement = select(runs).where(runs.c.id == run_id, condition)
        rows = await self.accounts.db.prepare(statement)()
        if not rows:
            raise RunNotFound
        row: Row[Any] = rows[0]
        return row

    async def search(
        self, principal: Principal[Any], query: RunQuery, wanted: PageRequest = FIRST_PAGE
    ) -> Page[ListedRun]:
        """A page of the runs of all tasks that the principal may see, newest first, without runs of deleted tasks.

        Args:
            principal: The caller.
            query: The filter.
            wanted: The page, of at most 100 runs.

        Raises:
            PermissionDenied: As for :func:`readable_by`.
            InputInvalid: Field `cursor`.
        """
        paging = Paging(_NEWEST_FIRST, query, wanted)
        statement = (
            select(
                *RUN_COLUMNS,
                tasks.c.name.label("task_name"),
                runs.c.owner_id,
                users.c.username.label("owner_name"),
            )
            .join_from(runs, tasks, tasks.c.id == runs.c.task_id)
            .join(users, users.c.id == runs.c.owner_id)
            .where(tasks.c.deleted_at.is_(None), readable_by(principal), *_conditions(query))
        )
        async with self.accounts.db.read() as connection:
            return await paging.read(connection, statement, ListedRun.model_validate)

    async def cancel(self, principal: Principal[Any], run_id: str) -> Run:
        """Cancel a run: a queued run ends immediately, a running run within about a second.

        For its owner, and a principal with `tasks:manage_all` or `runs:cancel_all`. Cancelling a cancelled run changes nothing.

        Returns:
            The present run, which may still be running.

        Raises:
            RunNotFound: There is no such run, or the principal may not see it.
            PermissionDenied: The principal may see the run but not cancel it.
            RunNotCancellable: The run has succeeded, failed or timed out.
        """
        if not is_id(run_id, "run"):
            raise RunNotFound
        visible = _visible_runs(principal, CANCEL_ALL)
        this = (runs.c.id == run_id, visible)
        async with self.accounts.change(principal) as change:
            connection = change.connection
            # Locks the row (PostgreSQL), so that its state cannot change in between.
            result = await connection.execute(
                select(runs.c.state, runs.c.cancel_requested_at, runs.c.owner_id)
                .where(*this)
                .with_for_update()
            )
            before = result.one_or_none()
            if before is None:
                raise RunNotFound
            check_may_manage(principal, before.owner_id, CANCEL_ALL)
            if before.state in {RunState.SUCCEEDED, RunState.FAILED, RunState.TIMED_OUT}:
                raise RunNotCancellable
            reason = None if before.owner_id == principal.owner.id else _BY_ANOTHER
            ids = await cancel_runs(connection, runs.c.id == run_id, change.now, error=reason)
            if ids and before.cancel_requested_at is None:
                await change.record("run.cancelled", run_id)
            run = Run.model_validate((await connection.execute(select(runs).where(*this))).one())
            if run.state is RunState.CANCELLED:
                await self.notifications.withdraw(connection, ids)
        self.notifications.run_changed(run_id)
        return run

    async def cancel_of_key(self, principal: Principal[Any], key_id: str) -> None:
        """Cancel the unfinished runs that a key has requested.

        Call this after revoking the key: then runs that the key queues at the same time are not started.

        Args:
            principal: The principal who has revoked the key.
            key_id: The key.
        """
        async with self.accounts.change(principal) as change:
            ids = await cancel_runs(
                change.connection, key_id == REQUESTED_WITH, change.now, error=_WITH_ITS_KEY
            )
            await change.record("run.cancelled", *ids)


async def _lock_task(
    connection: AsyncConnection, principal: Principal[Any], task_id: str
) -> Row[*tuple[Any, ...]]:
    """Read a task and the name of the principal's key, and lock the task's owner and the principal until the transaction ends.

    So two requests with the same idempotency key do not make two runs, and a transaction that disables an account either comes
    before, or finds the new run.
    """
    me = principal.owner.id
    key = and_(api_keys.c.owner_id == me, api_keys.c.id == principal.key_id)
    found = await connection.execute(
        select(
            tasks.c.id,
            tasks.c.owner_id,
            tasks.c.handler,
            tasks.c.params,
            tasks.c.timeout_seconds,
            select(api_keys.c.name).where(key).scalar_subquery().label("key_name"),
            users.c.id.label("user_id"),
            users.c.disabled_at,
        )
        .join_from(tasks, users, or_(users.c.id == tasks.c.owner_id, users.c.id == me))
        .where(tasks.c.id == task_id, visible_tasks(principal))
        .order_by(users.c.id)
        .with_for_update(of=users, key_share=True)
    )
    # A row for each of the two users.
    rows = found.all()
    if not rows:
        raise TaskNotFound
    task = rows[0]
    check_may_manage(principal, task.owner_id)
    disabled = {row.user_id for row in rows if row.disabled_at is not None}
    if me in disabled:
        raise CredentialRefused("owner_disabled")
    if task.owner_id in disabled:
        raise TaskOwnerDisabled
    return task


async def _next_number(connection: AsyncConnection, task: Row[*tuple[Any, ...]]) -> int:
    """Number the run. The task's row is locked: a task that is deleted or handed over meanwhile gets no more runs."""
    queued = (
        # Count no more runs than may be queued.
        select(runs.c.id)
        .where(runs.c.owner_id == task.owner_id, runs.c.state == RunState.QUEUED)
        .limit(MAX_QUEUED_PER_USER)
        .subquery()
    )
    # Only once for each task from a version without numbers.
    earlier = select(func.count()).where(runs.c.task_id == tasks.c.id).scalar_subquery()
    numbered = await connection.execute(
        update(tasks)
        .where(
            tasks.c.id == task.id,
            tasks.c.owner_id == task.owner_id,
            tasks.c.deleted_at.is_(None),
        )
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


def _stored_key(principal: Principal[Any], value: str) -> str:
    """The stored form of an `Idempotency-Key`, which belongs to its owner.

    An API key that may not read all of its owner's runs has a separate namespace, so that it neither learns the owner's uses
    of a value nor blocks a value. A value has no space character, and so never equals the stored form of such a key.
    """
    if _IDEMPOTENCY_KEY.fullmatch(value) is None:
        raise InputInvalid.of("Idempotency-Key", "This must be 1 to 255 visible ASCII characters.")
    if principal.key_id is None or (principal.resources is None and READ in principal.permissions):
        return value
    return f"{principal.key_id} {sha256(value.encode('ascii')).hexdigest()}"


async def _earlier_run(
    connection: AsyncConnection, requester_id: str, task_id: str, key: str, now: datetime
) -> Run | None:
    """The run of an idempotency key. Expired keys are deleted."""
    this = (idempotency.c.owner_id == requester_id, idempotency.c.key == key)
    expired = idempotency.c.created_at <= now - IDEMPOTENCY_LIFETIME
    await connection.execute(delete(idempotency).where(*this, expired))
    found = await connection.execute(
        select(runs).join_from(idempotency, runs, runs.c.id == idempotency.c.run_id).where(*this)
    )
    row = found.one_or_none()
    if row is not None and row.task_id != task_id:
        raise IdempotencyConflict
    return None if row is None else Run.model_validate(row)


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
        # For the log lines of the process that executes the run, not for clients.
        "request": None if record is None else {"id": record.id, "traceparent": record.traceparent},
    }


async def give_runs(connection: AsyncConnection, task_ids: Sequence[str], owner_id: str) -> None:
    """Give the runs of tasks to the tasks' new owner, for whom queued runs then act.

    Args:
        connection: The connection, in the transaction that has changed the tasks.
        task_ids: The tasks.
        owner_id: Their new owner.
    """
    its_runs = runs.c.task_id.in_(task_ids)
    await _lock_unfinished(connection, its_runs)
    await connection.execute(update(runs).where(its_runs).values(owner_id=owner_id))


async def cancel_runs_of(connection: AsyncConnection, owner_id: str, now: datetime) -> None:
    """Cancel the runs of a disabled owner.

    Args:
        connection: The connection, in the transaction that has locked the owner and disables it: a run that is queued or
            started at the same time either comes before, and is found here, or finds the owner disabled.
        owner_id: The owner.
        now: The time of the change.
    """
    # Tasks are locked before their runs: the same transaction may hand the tasks over.
    own = select(tasks.c.id).where(tasks.c.owner_id == owner_id, tasks.c.deleted_at.is_(None))
    await connection.execute(own.order_by(tasks.c.id).with_for_update())
    await cancel_runs(connection, runs.c.owner_id == owner_id, now, error=OWNER_DISABLED)


async def cancel_runs(
    connection: AsyncConnection,
    which: ColumnElement[bool],
    now: datetime,
    *,
    error: str | None = None,
) -> Sequence[str]:
    """End queued runs, and request the cancellation of running runs.

    Workers on all machines read such requests once a second.

    Args:
        connection: The connection, in a write transaction.
        which: A condition that selects the runs.
        now: The time of the change.
        error: One line with the reason, shown with the run; an earlier request's reason stays.

    Returns:
        The ids of the runs.
    """
    ids = await _lock_unfinished(connection, which)
    await connection.execute(
        update(runs)
        .where(runs.c.id.in_(ids), runs.c.state == RunState.QUEUED)
        .values(state=RunState.CANCELLED, finished_at=now, cancel_requested_at=now, error=error)
    )
    await connection.execute(
        update(runs)
        .where(
            runs.c.id.in_(ids),
            runs.c.state == RunState.RUNNING,
            runs.c.cancel_requested_at.is_(None),
        )
        .values(cancel_requested_at=now, error=error)
    )
    return ids


async def _lock_unfinished(
    connection: AsyncConnection, which: ColumnElement[bool]
) -> Sequence[str]:
    """Lock runs in the order of their ids, so that two transactions cannot block each other."""
    unfinished = await connection.scalars(
        select(runs.c.id)
        .where(which, runs.c.state.in_((RunState.QUEUED, RunState.RUNNING)))
        .order_by(runs.c.id)
        .with_for_update()
    )
    return unfinished.all()
