"""A worker's operations on runs: acquire, renew, log, finish, release, and reclaim runs of dead workers.

A worker holds a run under a lease, which it renews. Every statement names its worker and its attempt
(`claimed_by` and `attempt`), so a worker that has lost a run to another worker changes nothing.

The worker's clock writes `lease_expires_at`, which is never compared with another machine's clock. :class:`LeaseWatch` counts
a worker as dead when it has observed the same lease for the lease's whole length on its own monotonic clock. So wrong or
changed clocks neither take a run from a living worker nor keep a dead worker's run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from sqlalchemy import Row, and_, delete, select, update
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import ColumnElement

from msk_auth import Clock
from task_service.accounts.config import ConfigStore
from task_service.db.engine import Database
from task_service.db.schema import run_log, runs, to_microseconds
from task_service.handlers import Progress
from task_service.ids import new_id
from task_service.request_record import RequestRecord

from .models import RunState
from .next_run import NEXT_RUNS, REQUESTED_WITH, lock_acquiring, note_turns
from .notifications import Notifications
from .run_log import KeptLine, LogBatch, SavedLog
from .runs import cancel_runs

LEASE: Final = timedelta(seconds=15)
"""The time that other workers wait before they reclaim a dead worker's runs. The same in every process of a deployment."""
MAX_ATTEMPTS: Final = 3
"""The maximum number of attempts: a run that ends every worker must not be retried for ever."""


@dataclass(frozen=True, slots=True)
class AcquiredRun:
    """A run that a worker holds, with everything for its execution.

    Attributes:
        waited: The time from its request to its start.
        request: The HTTP request for the run, for log lines; None for a run of an older version.
    """

    run_id: str
    task_id: str
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
    """The end of a run: a final state, and the handler's exit code and error."""

    state: RunState
    exit_code: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ObservedLease:
    """A lease as a worker has read it. While the lease is unchanged, its holder has not renewed it.

    Attributes:
        cancel_requested: True if the run must be stopped.
    """

    run_id: str
    worker_id: str
    attempt: int
    lease_expires_at: datetime
    cancel_requested: bool = field(default=False, compare=False)

    def is_of(self, run: AcquiredRun) -> bool:
        """True if a worker holds this run under the lease."""
        return (self.run_id, self.worker_id, self.attempt) == (
            run.run_id,
            run.worker_id,
            run.attempt,
        )


class LeaseWatch:
    """Finds dead workers by their leases.

    Args:
        clock: The clock; only its monotonic side is used.
        lease: The length of a lease; the same in every process of a deployment.
    """

    def __init__(self, clock: Clock, lease: timedelta) -> None:
        self._clock = clock
        self._lease = lease.total_seconds()
        self._since: dict[ObservedLease, float] = {}
        self._looked_at = clock.monotonic()

    def expired(self, observed: Iterable[ObservedLease]) -> list[ObservedLease]:
        """The leases that have not changed for a lease's length, among all present leases."""
        now = self._clock.monotonic()
        if now - self._looked_at > self._lease / 2:
            # A sleeping machine or a stopped database may have prevented the workers' renewals too: they get a whole
            # lease again.
            self._since = {}
        self._looked_at = now
        self._since = {each: self._since.get(each, now) for each in observed}
        return [each for each, since in self._since.items() if now - since >= self._lease]


@dataclass
class WorkerRuns:
    """The runs as one worker sees them.

    Args:
        db: The service's database.
        clock: The clock, for the times that users see.
        config: The configuration, read for each run for the limit of concurrent runs.
        notifications: Notifies other workers of runs that are queued again.
        worker_id: An id that is unique for each start of a worker, on all machines; random if not given.
        lease: The time for which a run is held without a renewal; see :data:`LEASE`.

    Every method raises StoreUnavailable when the database does not answer; the change may then have been made.
    """

    db: Database
    clock: Clock
    config: ConfigStore
    notifications: Notifications
    worker_id: str = field(default_factory=partial(new_id, "wrk"))
    lease: timedelta = LEASE

    async def acquire(self, room: int) -> list[AcquiredRun]:
        """Acquire the next runs (:mod:`.next_run`), and withdraw their notifications. Runs that must not start are cancelled.

        Args:
            room: The maximum number of runs.

        Returns:
            The runs; none if no run may be started.
        """
        limit = (await self.config.current()).max_concurrent_runs_per_user
        while True:
            async with self.db.write() as connection:
                await lock_acquiring(connection)
                # Later than the requests for the found runs.
                now = self.clock.now()
                values = {"room": room, "limit": limit, "now": to_microseconds(now)}
                found = (await connection.execute(NEXT_RUNS, values)).all()
                accepted = [row for row in found if row.refusal is None]
                if accepted:
                    await self.notifications.withdraw(connection, [row.id for row in accepted])
                    return await self._start(connection, accepted, now)
            if not found:
                return []
            for row in found:
                # In its own transaction: one that has locked other runs must not wait for these.
                async with self.db.write() as connection:
                    ids = await cancel_runs(connection, _like(row), now, error=row.refusal)
                    await self.notifications.withdraw(connection, ids)

    async def _start(
        self, connection: AsyncConnection, rows: Sequence[Row[*tuple[Any, ...]]], now: datetime
    ) -> list[AcquiredRun]:
        await note_turns(connection, [row.owner_id for row in rows])
        await connection.execute(
            update(runs)
            .where(runs.c.id.in_([row.id for row in rows]))
            .values(
                state=RunState.RUNNING,
                attempt=runs.c.attempt + 1,
                started_at=now,
                claimed_by=self.worker_id,
                lease_expires_at=now + self.lease,
                progress=None,
                progress_text=None,
            )
        )
        return [
            AcquiredRun(
                run_id=row.id,
                task_id=row.task_id,
                worker_id=self.worker_id,
                attempt=row.attempt + 1,
                handler=row.handler,
                params=row.params,
                timeout_seconds=row.timeout_seconds,
                # A run without output has no line to continue from.
                log=await _saved_log(connection, row) if row.log_bytes else SavedLog(),
                waited=now - row.created_at,
                request=_request_of(row.requested_by),
            )
            for row in rows
        ]

    async def renew(self, run: AcquiredRun) -> bool:
        """Renew the lease of a run that the worker believes to hold.

        A run that it acquired without knowing (the answer to the commit was lost) is not renewed, and so another worker
        reclaims it.

        Returns:
            False if the worker does not hold the run.
        """
        return await self._change(run, lease_expires_at=self.clock.now() + self.lease)

    async def observed_leases(self) -> list[ObservedLease]:
        """The leases of all running runs."""
        async with self.db.read() as connection:
            result = await connection.execute(
                select(
                    runs.c.id,
                    runs.c.claimed_by,
                    runs.c.attempt,
                    runs.c.lease_expires_at,
                    runs.c.cancel_requested_at.is_not(None),
                ).where(runs.c.state == RunState.RUNNING)
            )
            return [ObservedLease(*row) for row in result]

    async def reclaim(self, expired: Collection[ObservedLease]) -> int:
        """Queue the runs of dead workers again; end runs that were cancelled or attempted too often.

        Args:
            expired: The leases that :class:`LeaseWatch` found. A lease renewed since then stays.

        Returns:
            The number of changed runs.
        """
        changed = 0
        for each in expired:
            this = and_(_held_by(each), runs.c.lease_expires_at == each.lease_expires_at)
            async with self.db.write() as connection:
                changed += await self._give_up(connection, this, was_executed=True)
        return changed

    async def release(self, run: AcquiredRun) -> bool:
        """Queue a run again as if it had not been acquired, or end it if it was cancelled meanwhile.

        Returns:
            False if the worker no longer held the run; then nothing was changed.
        """
        async with self.db.write() as connection:
            return await self._give_up(connection, _held_by(run), was_executed=False)

    async def _give_up(
        self, connection: AsyncConnection, this: ColumnElement[bool], *, was_executed: bool
    ) -> bool:
        """Queue a run again, or end it if it was cancelled meanwhile or attempted too often."""
        columns = (runs.c.id, runs.c.attempt, runs.c.cancel_requested_at)
        found = await connection.execute(select(*columns).where(this).with_for_update())
        row = found.one_or_none()
        if row is None:
            return False
        values: dict[str, Any]
        if row.cancel_requested_at is not None:
            values = {"state": RunState.CANCELLED, "finished_at": self.clock.now()}
        elif was_executed and row.attempt >= MAX_ATTEMPTS:
            error = f"The worker stopped in the middle of the run {MAX_ATTEMPTS} times."
            values = {
                "state": RunState.FAILED,
                "finished_at": self.clock.now(),
                "report_due_at": self.clock.now(),
                "error": error,
            }
        else:
            attempt = row.attempt if was_executed else row.attempt - 1
            values = {"state": RunState.QUEUED, "started_at": None, "attempt": attempt}
            await self.notifications.withdraw(connection, [row.id])
            await self.notifications.announce(connection, row.id)
        await connection.execute(
            update(runs)
            .where(runs.c.id == row.id)
            .values(claimed_by=None, lease_expires_at=None, **values)
        )
        return True

    async def append_log(self, run: AcquiredRun, batch: LogBatch) -> bool:
        """Add a batch to the log of a run; a repetition changes nothing.

        Returns:
            False if the worker no longer held the run; then nothing was written.
        """
        async with self.db.write() as connection:
            result = await connection.execute(
                update(runs)
                .where(_held_by(run))
                .values(
                    log_bytes=batch.kept_bytes,
                    log_missing_bytes=batch.missing_bytes,
                    log_missing_lines=batch.missing_lines,
                )
            )
            if result.rowcount == 0:
                return False
            lines = [{"run_id": run.run_id, **dict(line)} for line in batch.lines]
            await connection.execute(_ADD_LINES, lines)
            if batch.delete_through:
                await connection.execute(
                    delete(run_log).where(
                        run_log.c.run_id == run.run_id,
                        run_log.c.seq > batch.delete_after,
                        run_log.c.seq <= batch.delete_through,
                    )
                )
            return True

    async def report_progress(self, run: AcquiredRun, progress: Progress) -> bool:
        """Write a run's progress.

        Returns:
            False if the worker no longer held the run; then nothing was written.
        """
        return await self._change(run, progress=progress.fraction, progress_text=progress.text)

    async def finish(self, run: AcquiredRun, outcome: Outcome) -> bool:
        """End a run, whose log is complete.

        Returns:
            False if the worker no longer held the run (or had already finished it, and the answer to the first try was
            lost); then nothing was changed.
        """
        values: dict[str, Any] = {"state": outcome.state, "exit_code": outcome.exit_code}
        if outcome.state is not RunState.CANCELLED:
            # The request to cancel has written the reason.
            values["error"] = outcome.error
        now = self.clock.now()
        if outcome.state.is_failure:
            values["report_due_at"] = now
        return await self._change(run, finished_at=now, lease_expires_at=None, **values)

    async def _change(self, run: AcquiredRun, **values: Any) -> bool:
        """Write columns of a run in one statement; False if the worker does not hold the run."""
        this = update(runs).where(_held_by(run))
        return bool(await self.db.execute(this.values(values).returning(runs.c.id)))


def _like(row: Row[*tuple[Any, ...]]) -> ColumnElement[bool]:
    """The queued runs that are refused like this one: of its owner, requested with its key. There may be many."""
    its_key = row.requested_by["credential"]["key_id"]
    return and_(
        runs.c.state == RunState.QUEUED,
        runs.c.owner_id == row.owner_id,
        its_key == REQUESTED_WITH,
    )


def _request_of(requested_by: Mapping[str, Any]) -> RequestRecord | None:
    request = requested_by.get("request")
    if request is None:
        return None
    return RequestRecord(request["id"], address=None, traceparent=request["traceparent"])


def _held_by(lease: AcquiredRun | ObservedLease) -> ColumnElement[bool]:
    """A condition: this worker holds the running run in this attempt."""
    return and_(
        runs.c.id == lease.run_id,
        runs.c.state == RunState.RUNNING,
        runs.c.claimed_by == lease.worker_id,
        runs.c.attempt == lease.attempt,
    )


async def _saved_log(connection: AsyncConnection, row: Row[*tuple[Any, ...]]) -> SavedLog:
    """The log from earlier attempts of a run."""
    result = await connection.execute(
        select(run_log.c.seq, run_log.c.text)
        .where(run_log.c.run_id == row.id)
        .order_by(run_log.c.seq)
    )
    lines = tuple(
        KeptLine(line.seq, len(line.text.encode()), line.text.count("\n")) for line in result
    )
    return SavedLog(lines, row.log_missing_bytes, row.log_missing_lines)


# A batch whose commit was not confirmed is saved again. Both databases understand this statement.
_ADD_LINES: Final = postgresql.insert(run_log).on_conflict_do_nothing()
