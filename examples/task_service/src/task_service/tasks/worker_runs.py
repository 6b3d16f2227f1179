"""What a worker does with runs: acquire, renew, log, finish, release, and reclaim those of dead workers.

A worker holds a run under a lease, which it renews. Every statement names the worker and the attempt that it belongs to
(`claimed_by` and `attempt`), so a worker whose run another one has acquired since changes nothing.

`lease_expires_at` is written by the worker's clock and never compared with another machine's. :class:`LeaseWatch` takes a
worker for dead when it has observed the same lease for the lease's whole length on its own monotonic clock. So neither
clocks that differ nor one that is set by an hour take a run from a living worker, or leave a dead one's run behind.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import (
    Column,
    Row,
    and_,
    bindparam,
    case,
    delete,
    insert,
    literal,
    null,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.dml import ReturningUpdate
from sqlalchemy.sql.elements import ColumnElement

from msk_auth import Clock
from task_service.db.engine import Database
from task_service.db.schema import UtcMicroseconds, run_log, runs
from task_service.handlers import Progress
from task_service.request_record import RequestRecord

from .group_commit import GroupCommit
from .interfaces import RunConfig
from .models import RunPriority, RunState
from .notifications import NullNotifier, WorkerNotifier
from .owner_rotation import (
    Lane,
    NextTurn,
    OwnerTurn,
    correct_turn,
    end_turns,
    join_rotation,
    lock_next_turns,
    lock_turn,
    next_runs,
    next_runs_values,
    owners_not_in_rotation,
)
from .run_log import LogBatch, SavedLine, SavedLog
from .runs import cancel_runs

MAX_ATTEMPTS: Final = 3
"""How many workers a run may outlive: one that brings down every worker must not be retried for ever."""


@dataclass(frozen=True, slots=True)
class AcquiredRun:
    """A run that a worker holds, with what it needs to execute it.

    Attributes:
        waited: From the request for it to its start.
        request: The HTTP request that it was requested with, for log lines; None for a run of an older version.
    """

    run_id: str
    worker_id: str
    attempt: int
    handler: str
    params: Any
    timeout_seconds: int
    log: SavedLog
    waited: timedelta = field(default=timedelta(0), compare=False)
    request: RequestRecord | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: a final state, and the handler's exit code and error."""

    state: RunState
    exit_code: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class _Ending:
    run: AcquiredRun
    outcome: Outcome
    batch: LogBatch | None


@dataclass(frozen=True, slots=True)
class ObservedLease:
    """A lease as a worker has read it. While none of it changes, its holder has not renewed it."""

    run_id: str
    worker_id: str
    attempt: int
    lease_expires_at: datetime


class LeaseWatch:
    """Judges by their leases whether workers are alive.

    Args:
        clock: Only its monotonic side is used.
        lease: The length of a lease; the same in every process of a deployment.
    """

    def __init__(self, clock: Clock, lease: timedelta) -> None:
        self._clock = clock
        self._lease = lease.total_seconds()
        self._since: dict[ObservedLease, float] = {}
        self._looked_at = clock.monotonic()

    def expired(self, observed: Iterable[ObservedLease]) -> list[ObservedLease]:
        """The leases that have not changed for a lease's length, given all that are in the database now."""
        now = self._clock.monotonic()
        if now - self._looked_at > self._lease / 2:
            # What kept this process from looking (a sleeping machine, a stopped database) may have kept the
            # workers from renewing: they get a whole lease again.
            self._since = {}
        self._looked_at = now
        self._since = {each: self._since.get(each, now) for each in observed}
        return [each for each, since in self._since.items() if now - since >= self._lease]


class WorkerRuns:
    """The runs as one worker sees them.

    Args:
        db: The service's database.
        clock: For the times that users see.
        config: For the limit of concurrent runs, read for each run.
        worker_id: Unique for each start of a worker, on all machines; 64 characters at most.
        lease: How long a run is held without being renewed.
        notifier: Notifies workers elsewhere of runs that are queued again.

    Every method raises StoreUnavailable when the database does not answer; the change may have been made then.
    """

    def __init__(
        self,
        db: Database,
        clock: Clock,
        config: RunConfig,
        *,
        worker_id: str,
        lease: timedelta,
        notifier: WorkerNotifier | None = None,
    ) -> None:
        self._db = db
        self._clock = clock
        self._config = config
        self._worker_id = worker_id
        self._lease = lease
        self._notifier: WorkerNotifier = NullNotifier() if notifier is None else notifier
        self._next_turn = NextTurn(db)
        self._endings = GroupCommit(self._finish)

    async def acquire(self, room: int, *, announced: str | None = None) -> list[AcquiredRun]:
        """Acquire the next runs: of the owners whose turn it is, and who have fewer runs running than allowed.

        Args:
            room: How many runs at most.
            announced: The run whose notification the worker has consumed. Those of the runs that it acquires are withdrawn.

        Returns:
            The runs; none if no run may be started.
        """
        first = locked_by_another = None
        is_announced = announced is not None
        while True:
            limit = (await self._config.current()).max_concurrent_runs_per_user
            if not is_announced:
                # Mostly there is nothing to do, and so no transaction to begin.
                first = await self._next_turn(limit)
                if first is None:
                    return []
            is_announced = False
            async with self._db.write() as connection:
                if locked_by_another is None:
                    turns = await lock_next_turns(connection, limit, room)
                else:
                    turns = await lock_turn(connection, locked_by_another)
                now = self._clock.now()
                acquired = await self._start(connection, turns, limit, room, now) if turns else {}
                await end_turns(connection, [turn for turn in turns if turn.owner_id in acquired])
                runs_of_all = [run for each in acquired.values() for run in each]
                announced_too = [run.run_id for run in runs_of_all if run.run_id != announced]
                if announced_too:
                    await self._notifier.withdraw(connection, announced_too)
                refused = [
                    await correct_turn(connection, turn, now)
                    for turn in turns
                    if turn.owner_id not in acquired
                ]
            for each in refused:
                if each is not None:
                    # In another transaction: one that locks a turn must not wait for runs.
                    async with self._db.write() as connection:
                        await cancel_runs(connection, each.which, now, error=each.error)
            if runs_of_all:
                return runs_of_all
            # Other workers have locked every turn: wait for one instead of polling.
            locked_by_another = None if turns else first

    async def _start(
        self,
        connection: AsyncConnection,
        turns: Sequence[OwnerTurn],
        limit: int,
        room: int,
        now: datetime,
    ) -> dict[str, list[AcquiredRun]]:
        """Start the next runs of the owners whose turns are locked, and return them by owner."""
        result = await connection.execute(
            _start_next(tuple(turn.lane for turn in turns)),
            {
                **next_runs_values(turns, limit, room, now),
                "start": now,
                "worker": self._worker_id,
                "lease_end": now + self._lease,
            },
        )
        started: dict[str, list[AcquiredRun]] = {}
        for row in result.all():
            run = AcquiredRun(
                run_id=row.id,
                worker_id=self._worker_id,
                attempt=row.attempt,
                handler=row.handler,
                params=row.params,
                timeout_seconds=row.timeout_seconds,
                # A run without output has no line to continue from.
                log=await _saved_log(connection, row) if row.log_bytes else SavedLog(),
                waited=now - row.created_at,
                request=_request_of(row.requested_by),
            )
            started.setdefault(row.owner_id, []).append(run)
        return started

    async def complete_rotation(self) -> int:
        """Put the owners into the rotation who have a queued run and no turn; see :mod:`.owner_rotation`.

        Returns:
            How many there were.
        """
        async with self._db.read() as connection:
            missing = await owners_not_in_rotation(connection)
        for owner_id in missing:
            # One turn in each transaction: transactions that lock several could block each other.
            async with self._db.write() as connection:
                await join_rotation(connection, owner_id, RunPriority.NORMAL.rank)
        return len(missing)

    async def renew(self, held: Collection[AcquiredRun]) -> frozenset[str]:
        """Renew leases, all in one statement.

        Args:
            held: What the worker believes to hold. A run that it acquired without learning so (the answer to the commit
                was lost) is not renewed, and so another worker reclaims it.

        Returns:
            The ids of the runs that it does hold.
        """
        attempts = {run.run_id: run.attempt for run in held}
        condition = (
            runs.c.id.in_(attempts),
            runs.c.state == RunState.RUNNING,
            runs.c.claimed_by == self._worker_id,
        )
        async with self._db.write() as connection:
            # Locked in the order of their ids, as deleting a task does, so that the two cannot block each other.
            await connection.execute(
                select(runs.c.id).where(*condition).order_by(runs.c.id).with_for_update()
            )
            result = await connection.execute(
                update(runs)
                .where(*condition)
                .values(lease_expires_at=self._clock.now() + self._lease)
                .returning(runs.c.id, runs.c.attempt)
            )
            return frozenset(row.id for row in result if attempts[row.id] == row.attempt)

    async def cancelled(self, held: Collection[AcquiredRun]) -> frozenset[str]:
        """The ids of those runs whose cancellation was requested."""
        async with self._db.read() as connection:
            result = await connection.execute(
                select(runs.c.id).where(
                    runs.c.id.in_([run.run_id for run in held]),
                    runs.c.cancel_requested_at.is_not(None),
                )
            )
            return frozenset(result.scalars())

    async def observed_leases(self, *, except_for: Collection[AcquiredRun]) -> list[ObservedLease]:
        """Every lease in the database, except for those of the runs that the worker holds."""
        own = {(run.run_id, run.worker_id, run.attempt) for run in except_for}
        async with self._db.read() as connection:
            result = await connection.execute(
                select(runs.c.id, runs.c.claimed_by, runs.c.attempt, runs.c.lease_expires_at).where(
                    runs.c.state == RunState.RUNNING
                )
            )
            return [ObservedLease(*row) for row in result if tuple(row[:3]) not in own]

    async def reclaim(self, expired: Collection[ObservedLease]) -> int:
        """Queue the runs of dead workers again; end those that were cancelled or attempted too often.

        Args:
            expired: What :class:`LeaseWatch` found. A lease that was renewed since stays.

        Returns:
            How many runs were changed.
        """
        cancelled = runs.c.cancel_requested_at.is_not(None)
        hopeless = runs.c.attempt >= MAX_ATTEMPTS
        changed = 0
        for each in expired:
            async with self._db.write() as connection:
                result = await connection.execute(
                    update(runs)
                    .where(
                        _held_by(each),
                        runs.c.lease_expires_at == each.lease_expires_at,
                    )
                    .values(
                        state=case(
                            (cancelled, RunState.CANCELLED.value),
                            (hopeless, RunState.FAILED.value),
                            else_=RunState.QUEUED.value,
                        ),
                        error=case(
                            (cancelled, runs.c.error),
                            (
                                hopeless,
                                f"The worker stopped in the middle of the run {MAX_ATTEMPTS} times.",
                            ),
                            else_=null(),
                        ),
                        **self._unheld(over=cancelled | hopeless),
                    )
                    .returning(runs.c.id, runs.c.owner_id, runs.c.state, runs.c.rank)
                )
                row = result.one_or_none()
                changed += row is not None
                if row is not None:
                    await self._queue_again(connection, row)
        return changed

    async def release(self, run: AcquiredRun, batch: LogBatch | None) -> bool:
        """Queue a run again as if it had not been acquired, or end it if it was cancelled meanwhile.

        Args:
            run: The run to release.
            batch: The rest of its log.

        Returns:
            False if the worker did not hold the run any more; then nothing was changed.
        """
        cancelled = runs.c.cancel_requested_at.is_not(None)
        async with self._db.write() as connection:
            if batch is not None:
                await _append(connection, run, batch, _held_by(run))
            result = await connection.execute(
                update(runs)
                .where(_held_by(run))
                .values(
                    state=case((cancelled, RunState.CANCELLED.value), else_=RunState.QUEUED.value),
                    attempt=case((cancelled, runs.c.attempt), else_=runs.c.attempt - 1),
                    **self._unheld(over=cancelled),
                )
                .returning(runs.c.id, runs.c.owner_id, runs.c.state, runs.c.rank)
            )
            row = result.one_or_none()
            if row is not None:
                await self._queue_again(connection, row)
            return row is not None

    async def append_log(self, run: AcquiredRun, batch: LogBatch) -> bool:
        """Add a batch to the log of a run; doing it again changes nothing.

        Returns:
            False if the worker did not hold the run any more; then nothing was written.
        """
        async with self._db.write() as connection:
            return await _append(connection, run, batch, _held_by(run))

    async def report_progress(self, run: AcquiredRun, progress: Progress) -> bool:
        """Write a run's progress.

        Returns:
            False if the worker did not hold the run any more; then nothing was written.
        """
        saved = await self._db.execute(
            update(runs)
            .where(_held_by(run))
            .values(progress=progress.fraction, progress_text=progress.text)
            .returning(runs.c.id)
        )
        return bool(saved)

    async def finish(self, run: AcquiredRun, outcome: Outcome, batch: LogBatch | None) -> bool:
        """End a run, together with the rest of its log, and with the other runs that end just then.

        Args:
            run: The run that has ended.
            outcome: How it has ended.
            batch: The log's last batch.

        Returns:
            False if the worker did not hold the run any more (or had finished it already, when the answer to the
            first try was lost); then nothing was changed.
        """
        return await self._endings.add(_Ending(run, outcome, batch))

    async def _finish(self, take: Callable[[], Sequence[_Ending]]) -> list[bool]:
        endings = take()
        statement, values = _end(len(endings)), self._end_values(endings)
        if all(each.batch is None for each in endings):
            ended = {row.id for row in await self._db.execute(statement, values)}
        else:
            async with self._db.write() as connection:
                ended = {row.id for row in await connection.execute(statement, values)}
                for each in endings:
                    if each.batch is not None and each.run.run_id in ended:
                        # Locked and ended in this transaction.
                        this = runs.c.id == each.run.run_id
                        await _append(connection, each.run, each.batch, this)
        return [each.run.run_id in ended for each in endings]

    def _end_values(self, endings: Sequence[_Ending]) -> dict[str, Any]:
        values: dict[str, Any] = {"worker": self._worker_id, "end": self._clock.now()}
        for nth, each in enumerate(endings):
            values[f"id_of_{nth}"] = each.run.run_id
            values[f"attempt_of_{nth}"] = each.run.attempt
            values[f"state_of_{nth}"] = each.outcome.state
            values[f"exit_code_of_{nth}"] = each.outcome.exit_code
            values[f"error_of_{nth}"] = each.outcome.error
        return values

    async def _queue_again(self, connection: AsyncConnection, row: Row[*tuple[Any, ...]]) -> None:
        if row.state == RunState.QUEUED:
            await join_rotation(connection, row.owner_id, row.rank)
            await self._notifier.withdraw(connection, [row.id])
            await self._notifier.notify(connection, [row.id])

    def _unheld(self, *, over: ColumnElement[bool]) -> dict[str, Any]:
        """The columns of a run that no worker holds, whether it is `over` or queued again."""
        now = literal(self._clock.now(), UtcMicroseconds)
        return {
            "finished_at": case((over, now), else_=null()),
            "started_at": case((over, runs.c.started_at), else_=null()),
            "claimed_by": None,
            "lease_expires_at": None,
        }


@lru_cache
def _start_next(lanes: tuple[Lane, ...]) -> ReturningUpdate[*tuple[Any, ...]]:
    """The statement that starts the next runs of owners whose turns are in these lanes."""
    return (
        update(runs)
        .where(runs.c.id.in_(next_runs(lanes)))
        .values(
            state=RunState.RUNNING,
            attempt=runs.c.attempt + 1,
            started_at=bindparam("start", type_=runs.c.started_at.type),
            claimed_by=bindparam("worker", type_=runs.c.claimed_by.type),
            lease_expires_at=bindparam("lease_end", type_=runs.c.lease_expires_at.type),
            progress=None,
            progress_text=None,
        )
        .returning(
            runs.c.id,
            runs.c.owner_id,
            runs.c.attempt,
            runs.c.handler,
            runs.c.params,
            runs.c.timeout_seconds,
            runs.c.log_bytes,
            runs.c.log_missing_bytes,
            runs.c.log_missing_lines,
            runs.c.created_at,
            runs.c.requested_by,
        )
    )


@lru_cache
def _end(count: int) -> ReturningUpdate[str]:
    """The statement that ends so many runs, each in its own way; `_end_values` has its parameters."""
    # SQLAlchemy has names such as state_1 for the values that stand in the statement itself.
    ids = [bindparam(f"id_of_{nth}", type_=runs.c.id.type) for nth in range(count)]

    def each_its_own(column: Column[Any]) -> ColumnElement[Any]:
        values = (bindparam(f"{column.name}_of_{nth}", type_=column.type) for nth in range(count))
        return case(
            *((runs.c.id == run_id, value) for run_id, value in zip(ids, values, strict=True))
        )

    state = each_its_own(runs.c.state)
    # Locked in the order of their ids, as deleting a task does, so that the two cannot block each other.
    locked = select(_ENDING.c.id).where(_ENDING.c.id.in_(ids)).order_by(_ENDING.c.id)
    return (
        update(runs)
        .where(
            runs.c.id.in_(locked.with_for_update()),
            runs.c.state == RunState.RUNNING.value,
            runs.c.claimed_by == bindparam("worker", type_=runs.c.claimed_by.type),
            runs.c.attempt == each_its_own(runs.c.attempt),
        )
        .values(
            state=state,
            exit_code=each_its_own(runs.c.exit_code),
            # The request to cancel has written the reason.
            error=case(
                (state == RunState.CANCELLED.value, runs.c.error),
                else_=each_its_own(runs.c.error),
            ),
            finished_at=bindparam("end", type_=runs.c.finished_at.type),
            lease_expires_at=None,
        )
        .returning(runs.c.id)
    )


def _request_of(requested_by: Mapping[str, Any]) -> RequestRecord | None:
    request = requested_by.get("request")
    if request is None:
        return None
    return RequestRecord(request["id"], address=None, traceparent=request["traceparent"])


# Made once: an alias makes all columns anew.
_ENDING: Final = runs.alias("ending")

# The size of all output, whether it is kept or not: it grows with each batch.
_output_bytes: Final = runs.c.log_bytes + runs.c.log_missing_bytes


def _held_by(lease: AcquiredRun | ObservedLease) -> ColumnElement[bool]:
    """That a run is running, and held by this worker in this attempt."""
    return and_(
        runs.c.id == lease.run_id,
        runs.c.state == RunState.RUNNING,
        runs.c.claimed_by == lease.worker_id,
        runs.c.attempt == lease.attempt,
    )


async def _saved_log(connection: AsyncConnection, row: Row[*tuple[Any, ...]]) -> SavedLog:
    """What earlier attempts of a run have left: 272 KiB at most."""
    result = await connection.execute(
        select(run_log.c.seq, run_log.c.text)
        .where(run_log.c.run_id == row.id)
        .order_by(run_log.c.seq)
    )
    lines = tuple(
        SavedLine(line.seq, len(line.text.encode()), line.text.count("\n")) for line in result
    )
    return SavedLog(lines, row.log_missing_bytes, row.log_missing_lines)


async def _append(
    connection: AsyncConnection, run: AcquiredRun, batch: LogBatch, held: ColumnElement[bool]
) -> bool:
    result = await connection.execute(
        update(runs)
        .where(held, _output_bytes == batch.size_before)
        .values(
            log_bytes=batch.size_after - batch.missing_bytes,
            log_missing_bytes=batch.missing_bytes,
            log_missing_lines=batch.missing_lines,
        )
    )
    if result.rowcount == 1:
        await connection.execute(
            insert(run_log),
            [
                {
                    "run_id": run.run_id,
                    "seq": line.seq,
                    "at": line.at,
                    "stream": line.stream,
                    "text": line.text,
                }
                for line in batch.lines
            ],
        )
        if batch.delete_through:
            await connection.execute(
                delete(run_log).where(
                    run_log.c.run_id == run.run_id, run_log.c.seq <= batch.delete_through
                )
            )
        return True
    # Either the batch is there already, or the worker does not hold the run.
    size = await connection.scalar(select(_output_bytes).where(held))
    return size == batch.size_after
