"""What an owner does with runs: request, look, cancel, read the log."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from msk_auth import Clock, InputInvalid, OwnerDisabled, PermissionDenied, Principal
from task_service.db.engine import Database
from task_service.db.schema import idempotency, run_log, runs, tasks, users
from task_service.errors import (
    IdempotencyConflict,
    RunNotCancellable,
    RunNotFound,
    RunQueueFull,
    TaskNotFound,
)
from task_service.handlers import Progress
from task_service.ids import is_id, new_id

from .config import RunConfig
from .doorbell import Doorbell, SilentDoorbell
from .progress import Pulse
from .queries import (
    DEFAULT_PAGE,
    PRIORITIZE,
    as_run,
    cancellable_by,
    next_cursor,
    owned_by,
    page,
    visible_to,
)
from .shapes import LogLine, Run, RunPage, RunPriority, RunState
from .signals import Signals
from .turns import join_line
from .witness import Witness, nobody

MAX_QUEUED_PER_USER = 1000
IDEMPOTENCY_LIFETIME = timedelta(hours=24)
"""How long an `Idempotency-Key` is remembered."""
LOG_READ_LINES = 500

_BY_ANOTHER = "An administrator cancelled the run."
_MAX_SEQ = 2**31 - 1
# Visible ASCII, as a header field's value can hold it without quoting.
_IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,255}")


class Named(Protocol):
    """A user who has a name."""

    @property
    def username(self) -> str:
        """The name to show."""
        ...


NamedT = TypeVar("NamedT", bound=Named)


class Runs:
    """The runs of all users, each seen through its principal.

    Args:
        db: The service's database.
        clock: Where to take the time from.
        config: The administrator's live settings.
        signals: The bells of this process.
        doorbell: Tells workers elsewhere.
        witness: Told of each change.

    Every method raises StoreUnavailable when the database does not answer.
    """

    def __init__(
        self,
        db: Database,
        clock: Clock,
        config: RunConfig,
        signals: Signals,
        *,
        doorbell: Doorbell | None = None,
        witness: Witness = nobody,
    ) -> None:
        self._witness = witness
        self._doorbell: Doorbell = SilentDoorbell() if doorbell is None else doorbell
        self._db = db
        self._clock = clock
        self._config = config
        self._signals = signals

    async def request(
        self,
        principal: Principal[NamedT],
        task_id: str,
        *,
        idempotency_key: str | None = None,
        priority: RunPriority = RunPriority.NORMAL,
    ) -> Run:
        """Queue a run of one of the principal's own tasks.

        Args:
            principal: Who asks, and with which credential.
            task_id: What to run, with the parameters it has now.
            idempotency_key: Asking again with the same key within 24 hours gives the run of the first time
                (draft-ietf-httpapi-idempotency-key-header).
            priority: Which of the owner's own runs go first; `urgent` also goes before other owners'.

        Raises:
            PermissionDenied: The priority is urgent, and the principal may not say so.
            OwnerDisabled: The owner was disabled in this moment.
            TaskNotFound: The principal owns no such task.
            IdempotencyConflict: The key was used to run another task.
            RunQueueFull: 1000 runs of this user are waiting already.
            InputInvalid: Field `Idempotency-Key`.
        """
        if not is_id(task_id, "tsk"):
            raise TaskNotFound
        if idempotency_key is not None and _IDEMPOTENCY_KEY.fullmatch(idempotency_key) is None:
            raise InputInvalid.of(
                "Idempotency-Key", "This must be 1 to 255 visible ASCII characters."
            )
        if priority is RunPriority.URGENT and PRIORITIZE not in principal.permissions:
            raise PermissionDenied([PRIORITIZE])
        longest = (await self._config.current()).run_timeout_seconds
        async with self._db.write() as connection:
            # One request at a time for each owner: the same key twice at once must not make two runs. And either the
            # owner is disabled before, or who disables them finds this run. (SQLite has one writer anyway and ignores
            # FOR UPDATE.)
            enabled = await connection.scalar(
                select(users.c.id)
                .where(users.c.id == principal.owner.id, users.c.disabled_at.is_(None))
                .with_for_update(key_share=True)
            )
            if enabled is None:
                raise OwnerDisabled
            result = await connection.execute(
                select(tasks)
                .where(
                    tasks.c.id == task_id,
                    tasks.c.deleted_at.is_(None),
                    owned_by(principal, tasks.c.owner_id),
                )
                # A task that is being deleted gets no more runs.
                .with_for_update(read=True)
            )
            task = result.one_or_none()
            if task is None:
                raise TaskNotFound
            if idempotency_key is not None:
                earlier = await self._earlier(
                    connection, principal.owner.id, idempotency_key, task_id
                )
                if earlier is not None:
                    return earlier
            await _check_room(connection, principal.owner.id)
            now = self._clock.now()
            result = await connection.execute(
                insert(runs)
                .values(
                    id=new_id("run"),
                    task_id=task_id,
                    owner_id=principal.owner.id,
                    state=RunState.QUEUED,
                    requested_by=_requested_by(principal),
                    handler=task.handler,
                    params=task.params,
                    timeout_seconds=min(
                        longest if task.timeout_seconds is None else task.timeout_seconds, longest
                    ),
                    created_at=now,
                    rank=priority.rank,
                )
                .returning(runs)
            )
            run = as_run(result.one())
            await join_line(connection, principal.owner.id, priority.rank)
            await self._doorbell.ring(connection, run.id)
            if idempotency_key is not None:
                await connection.execute(
                    insert(idempotency).values(
                        owner_id=principal.owner.id,
                        key=idempotency_key,
                        task_id=task_id,
                        run_id=run.id,
                        created_at=now,
                    )
                )
            await self._witness(connection, principal, "run.requested", run.id, task_id=task_id)
        self._signals.run_queued()
        return run

    async def get(self, principal: Principal[Any], run_id: str) -> Run:
        """One run that the principal may see.

        Raises:
            RunNotFound: There is none with this id.
        """
        if not is_id(run_id, "run"):
            raise RunNotFound
        async with self._db.read() as connection:
            result = await connection.execute(
                select(runs).where(runs.c.id == run_id, visible_to(principal, runs.c.owner_id))
            )
            row = result.one_or_none()
        if row is None:
            raise RunNotFound
        return as_run(row)

    async def list(
        self,
        principal: Principal[Any],
        task_id: str,
        *,
        cursor: str | None = None,
        limit: int = DEFAULT_PAGE,
        state: RunState | None = None,
    ) -> RunPage:
        """A page of the runs of a task that the principal may see, newest first.

        Args:
            principal: Who asks.
            task_id: Whose runs.
            cursor: Where the previous page ended.
            limit: How many runs at most, from 1 to 100.
            state: Only runs that are in this state now.

        Raises:
            TaskNotFound: There is no such task.
            InputInvalid: Fields `cursor` and `limit`.
        """
        if not is_id(task_id, "tsk"):
            raise TaskNotFound
        wanted = select(runs).where(runs.c.task_id == task_id)
        if state is not None:
            wanted = wanted.where(runs.c.state == state)
        statement = page(wanted, runs, cursor=cursor, limit=limit)
        async with self._db.read() as connection:
            visible = await connection.scalar(
                select(tasks.c.id).where(
                    tasks.c.id == task_id,
                    tasks.c.deleted_at.is_(None),
                    visible_to(principal, tasks.c.owner_id),
                )
            )
            if visible is None:
                raise TaskNotFound
            rows = (await connection.execute(statement)).all()
        return RunPage(
            items=[as_run(row) for row in rows[:limit]], next_cursor=next_cursor(rows, limit)
        )

    async def cancel(self, principal: Principal[Any], run_id: str) -> Run:
        """Stop a run: at once if it is queued, within about a second if it is running.

        Its owner may, and who may cancel all runs.

        Cancelling what is cancelled already changes nothing.

        Returns:
            The run as it is now; a running one is still running.

        Raises:
            RunNotFound: There is none with this id that the principal may cancel.
            RunNotCancellable: It has ended otherwise.
        """
        if not is_id(run_id, "run"):
            raise RunNotFound
        this = (runs.c.id == run_id, cancellable_by(principal, runs.c.owner_id))
        now = self._clock.now()
        async with self._db.write() as connection:
            # Locks the row where several can write, so that it cannot change its state in between.
            result = await connection.execute(
                select(runs.c.state, runs.c.cancel_requested_at, runs.c.owner_id)
                .where(*this)
                .with_for_update()
            )
            before = result.one_or_none()
            if before is None:
                raise RunNotFound
            why = None if before.owner_id == principal.owner.id else _BY_ANOTHER
            match before.state:
                case RunState.QUEUED:
                    values = {
                        "state": RunState.CANCELLED,
                        "finished_at": now,
                        "cancel_requested_at": now,
                        "error": why,
                    }
                case RunState.RUNNING if before.cancel_requested_at is None:
                    values = {"cancel_requested_at": now, "error": why}
                case RunState.RUNNING:
                    values = {"cancel_requested_at": runs.c.cancel_requested_at}
                case RunState.CANCELLED:
                    values = {"cancel_requested_at": runs.c.cancel_requested_at}
                case _:
                    raise RunNotCancellable
            changed = await connection.execute(
                update(runs).where(*this).values(values).returning(runs)
            )
            run = as_run(changed.one())
            if before.cancel_requested_at is None:
                await self._witness(connection, principal, "run.cancelled", run_id)
            if run.state is RunState.CANCELLED:
                await self._doorbell.unring(connection, run_id)
        if run.state is RunState.RUNNING:
            self._signals.cancel_requested(run_id)
        self._signals.run_changed(run_id)
        return run

    async def read_log(self, run_id: str, after_seq: int = 0) -> Sequence[LogLine]:
        """At most 500 pieces of a run's log. Whether the reader may see the run is asked of :meth:`get` before.

        Args:
            run_id: Whose log.
            after_seq: The number of the last piece that the reader has; 0 for none.
        """
        async with self._db.read() as connection:
            result = await connection.execute(
                select(run_log)
                .where(
                    run_log.c.run_id == run_id,
                    run_log.c.seq > max(0, min(after_seq, _MAX_SEQ)),
                )
                .order_by(run_log.c.seq)
                .limit(LOG_READ_LINES)
            )
            return [LogLine.model_validate(row) for row in result]

    async def pulse(self, run_id: str) -> Pulse:
        """Whether the run is over, and how far it has come."""
        async with self._db.read() as connection:
            result = await connection.execute(
                select(runs.c.state, runs.c.progress, runs.c.progress_text).where(
                    runs.c.id == run_id
                )
            )
            row = result.one_or_none()
        if row is None:
            return Pulse(True, None)
        progress = None if row.progress is None else Progress(row.progress, row.progress_text)
        return Pulse(RunState(row.state).is_final, progress)

    async def _earlier(
        self, connection: AsyncConnection, owner_id: str, key: str, task_id: str
    ) -> Run | None:
        """The run that was made with this key; forgets a key that is too old."""
        this = (idempotency.c.owner_id == owner_id, idempotency.c.key == key)
        forget_before = self._clock.now() - IDEMPOTENCY_LIFETIME
        await connection.execute(
            delete(idempotency).where(*this, idempotency.c.created_at <= forget_before)
        )
        result = await connection.execute(select(idempotency).where(*this))
        known = result.one_or_none()
        if known is None:
            return None
        if known.task_id != task_id:
            raise IdempotencyConflict
        return as_run(
            (await connection.execute(select(runs).where(runs.c.id == known.run_id))).one()
        )


async def _check_room(connection: AsyncConnection, owner_id: str) -> None:
    waiting = (
        select(runs.c.id)
        .where(runs.c.owner_id == owner_id, runs.c.state == RunState.QUEUED)
        .limit(MAX_QUEUED_PER_USER)
        .subquery()
    )
    if await connection.scalar(select(func.count()).select_from(waiting)) == MAX_QUEUED_PER_USER:
        raise RunQueueFull


def _requested_by(principal: Principal[NamedT]) -> dict[str, Any]:
    return {
        "user_id": principal.owner.id,
        "username": principal.user.username,
        "credential": {"kind": principal.kind.value, "key_id": principal.key_id},
    }
