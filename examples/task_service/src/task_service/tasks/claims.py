"""What a worker does with runs: acquire, keep, log, finish, give back, and take over from the dead.

Every statement names the claim it belongs to (`claimed_by` and `attempt`), so what a worker does after its run was
given to another changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any

from sqlalchemy import Row, and_, case, func, insert, literal, null, select, update
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import ColumnElement

from msk_auth import Clock
from task_service.db.engine import Database
from task_service.db.schema import run_log, runs
from task_service.db.types import UtcMicroseconds
from task_service.handlers import Progress

from .cancellation import cancel_runs_of
from .config import RunConfig
from .doorbell import Doorbell, SilentDoorbell
from .leases import Claim, Outcome, Sighting
from .run_log import LogBatch
from .shapes import RunPriority, RunState
from .turns import (
    Place,
    correct_place,
    end_turn,
    join_line,
    line_end,
    lock_first_place,
    may_start,
    missing_owners,
)

MAX_ATTEMPTS = 3
"""How many workers a run may outlive: one that brings down every worker must not go round for ever."""


class Claims:
    """The runs as one worker sees them.

    Args:
        db: The service's database.
        clock: For the times that are shown to people.
        config: For the limit of runs at once; asked anew for each claim.
        worker_id: Unique for each start of a worker, on all machines; 64 characters at most.
        lease: How long a claim holds without being renewed.
        doorbell: Tells workers elsewhere of runs that wait again.

    Every method raises StoreUnavailable when the database does not answer; whether the change was made is then open.
    """

    def __init__(
        self,
        db: Database,
        clock: Clock,
        config: RunConfig,
        *,
        worker_id: str,
        lease: timedelta,
        doorbell: Doorbell | None = None,
    ) -> None:
        self._db = db
        self._clock = clock
        self._config = config
        self._worker_id = worker_id
        self._lease = lease
        self._doorbell: Doorbell = SilentDoorbell() if doorbell is None else doorbell

    async def acquire(self, *, rung: bool = False) -> Claim | None:
        """Take the next run: of the owner whose turn it is, and who has fewer runs running than allowed.

        Args:
            rung: A bell was heard for it, which is gone. Otherwise the bell of the run that is found is silenced.

        Returns:
            None if no run may be started.
        """
        limit = (await self._config.current()).max_concurrent_runs_per_user
        skip_locked = True
        while True:
            # Mostly there is nothing to do, and so no transaction to begin.
            async with self._db.read() as connection:
                end = await line_end(connection, limit)
            if end is None:
                return None
            disabled = False
            async with self._db.write() as connection:
                place = await lock_first_place(connection, limit, end, skip_locked=skip_locked)
                if place is not None:
                    claim = await self._acquire(connection, place, limit)
                    if claim is not None:
                        await end_turn(connection, place)
                        if not rung:
                            await self._doorbell.unring(connection, claim.run_id)
                        return claim
                    disabled = await correct_place(connection, place)
            if place is not None and disabled:
                # Apart from the place, which must not be locked by a transaction that locks runs.
                async with self._db.write() as connection:
                    await cancel_runs_of(connection, place.owner_id, self._clock.now())
            # Every place is locked by other workers: wait for one, instead of asking again and again.
            skip_locked = place is not None

    async def _acquire(self, connection: AsyncConnection, place: Place, limit: int) -> Claim | None:
        now = self._clock.now()
        result = await connection.execute(
            update(runs)
            .where(may_start(place, limit))
            .values(
                state=RunState.RUNNING,
                attempt=runs.c.attempt + 1,
                started_at=now,
                claimed_by=self._worker_id,
                lease_expires_at=now + self._lease,
                progress=None,
                progress_text=None,
            )
            .returning(
                runs.c.id,
                runs.c.attempt,
                runs.c.handler,
                runs.c.params,
                runs.c.timeout_seconds,
                runs.c.log_bytes,
                runs.c.log_truncated,
            )
        )
        row = result.one_or_none()
        if row is None:
            return None
        # A run without output has no place to go on from.
        last_seq = row.log_bytes and await connection.scalar(
            select(func.max(run_log.c.seq)).where(run_log.c.run_id == row.id)
        )
        return Claim(
            run_id=row.id,
            worker_id=self._worker_id,
            attempt=row.attempt,
            handler=row.handler,
            params=row.params,
            timeout_seconds=row.timeout_seconds,
            last_seq=last_seq or 0,
            log_bytes=row.log_bytes,
            log_truncated=row.log_truncated,
        )

    async def complete_line(self) -> int:
        """Put the owners into the line who have a queued run and no place in it; see :mod:`.turns`.

        Returns:
            How many there were.
        """
        async with self._db.read() as connection:
            missing = await missing_owners(connection)
        for owner_id in missing:
            # One place in each transaction: transactions that lock several could block each other.
            async with self._db.write() as connection:
                await join_line(connection, owner_id, RunPriority.NORMAL.rank)
        return len(missing)

    async def renew(self, claims: Collection[Claim]) -> frozenset[str]:
        """Renew leases, all in one statement.

        Args:
            claims: What the worker believes to hold. A claim that it does not know of (its answer got lost) is not
                renewed, and so finds its way back into the queue.

        Returns:
            The ids of the runs that it does hold.
        """
        attempts = {claim.run_id: claim.attempt for claim in claims}
        held = (
            runs.c.id.in_(attempts),
            runs.c.state == RunState.RUNNING,
            runs.c.claimed_by == self._worker_id,
        )
        async with self._db.write() as connection:
            # Locked in the order of their ids, as deleting a task does, so that the two cannot block each other.
            await connection.execute(
                select(runs.c.id).where(*held).order_by(runs.c.id).with_for_update()
            )
            result = await connection.execute(
                update(runs)
                .where(*held)
                .values(lease_expires_at=self._clock.now() + self._lease)
                .returning(runs.c.id, runs.c.attempt)
            )
            return frozenset(row.id for row in result if attempts[row.id] == row.attempt)

    async def cancelled(self, claims: Collection[Claim]) -> frozenset[str]:
        """The ids of those runs that somebody wants to stop."""
        async with self._db.read() as connection:
            result = await connection.execute(
                select(runs.c.id).where(
                    runs.c.id.in_([claim.run_id for claim in claims]),
                    runs.c.cancel_requested_at.is_not(None),
                )
            )
            return frozenset(result.scalars())

    async def sightings(self, *, besides: Collection[Claim]) -> list[Sighting]:
        """Every lease in the database, without those of the worker's own living claims."""
        own = {(claim.run_id, claim.worker_id, claim.attempt) for claim in besides}
        async with self._db.read() as connection:
            result = await connection.execute(
                select(runs.c.id, runs.c.claimed_by, runs.c.attempt, runs.c.lease_expires_at).where(
                    runs.c.state == RunState.RUNNING
                )
            )
            return [Sighting(*row) for row in result if tuple(row[:3]) not in own]

    async def take_back(self, expired: Collection[Sighting]) -> int:
        """Put the runs of dead workers back into the queue; end those that were cancelled or tried too often.

        Args:
            expired: What :class:`LeaseWatch` found. A lease that was renewed since is left alone.

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
                        _held(each.run_id, each.worker_id, each.attempt),
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
                                f"Its worker stopped in the middle of it {MAX_ATTEMPTS} times.",
                            ),
                            else_=null(),
                        ),
                        **self._put_down(over=cancelled | hopeless),
                    )
                    .returning(runs.c.id, runs.c.owner_id, runs.c.state, runs.c.rank)
                )
                row = result.one_or_none()
                changed += row is not None
                if row is not None:
                    await self._queue_again(connection, row)
        return changed

    async def give_back(self, claim: Claim, batch: LogBatch | None) -> bool:
        """Put a run back into the queue as if it had not been claimed, or end it if it was cancelled meanwhile.

        Args:
            claim: What is given back.
            batch: The rest of its log.

        Returns:
            False if the worker did not hold the run any more; then nothing was changed.
        """
        cancelled = runs.c.cancel_requested_at.is_not(None)
        async with self._db.write() as connection:
            if batch is not None:
                await _append(connection, claim, batch)
            result = await connection.execute(
                update(runs)
                .where(_held(claim.run_id, claim.worker_id, claim.attempt))
                .values(
                    state=case((cancelled, RunState.CANCELLED.value), else_=RunState.QUEUED.value),
                    attempt=case((cancelled, runs.c.attempt), else_=runs.c.attempt - 1),
                    **self._put_down(over=cancelled),
                )
                .returning(runs.c.id, runs.c.owner_id, runs.c.state, runs.c.rank)
            )
            row = result.one_or_none()
            if row is not None:
                await self._queue_again(connection, row)
            return row is not None

    async def append(self, claim: Claim, batch: LogBatch) -> bool:
        """Add a batch to the log of a run; doing it again changes nothing.

        Returns:
            False if the worker did not hold the run any more; then nothing was written.
        """
        async with self._db.write() as connection:
            return await _append(connection, claim, batch)

    async def report(self, claim: Claim, progress: Progress) -> bool:
        """Write down how far a run has come.

        Returns:
            False if the worker did not hold the run any more; then nothing was written.
        """
        async with self._db.write() as connection:
            result = await connection.execute(
                update(runs)
                .where(_held(claim.run_id, claim.worker_id, claim.attempt))
                .values(progress=progress.fraction, progress_text=progress.text)
            )
            return result.rowcount == 1

    async def finish(self, claim: Claim, outcome: Outcome, batch: LogBatch | None) -> bool:
        """End a run, together with the rest of its log.

        Args:
            claim: What has ended.
            outcome: How.
            batch: The log's last batch.

        Returns:
            False if the worker did not hold the run any more (or had finished it already, when the answer to the
            first try got lost); then nothing was changed.
        """
        async with self._db.write() as connection:
            if batch is not None:
                await _append(connection, claim, batch)
            result = await connection.execute(
                update(runs)
                .where(_held(claim.run_id, claim.worker_id, claim.attempt))
                .values(
                    state=outcome.state,
                    exit_code=outcome.exit_code,
                    # Why it was cancelled was written by who cancelled it.
                    error=runs.c.error if outcome.state is RunState.CANCELLED else outcome.error,
                    finished_at=self._clock.now(),
                    lease_expires_at=None,
                )
            )
            return result.rowcount == 1

    async def _queue_again(self, connection: AsyncConnection, row: Row[*tuple[Any, ...]]) -> None:
        if row.state == RunState.QUEUED:
            await join_line(connection, row.owner_id, row.rank)
            await self._doorbell.unring(connection, row.id)
            await self._doorbell.ring(connection, row.id)

    def _put_down(self, *, over: ColumnElement[bool]) -> dict[str, Any]:
        """The columns of a run that nobody holds, whether it is `over` or waits again."""
        now = literal(self._clock.now(), UtcMicroseconds)
        return {
            "finished_at": case((over, now), else_=null()),
            "started_at": case((over, runs.c.started_at), else_=null()),
            "claimed_by": None,
            "lease_expires_at": None,
        }


def _held(run_id: str, worker_id: str, attempt: int) -> ColumnElement[bool]:
    """That a run is running and belongs to this claim."""
    return and_(
        runs.c.id == run_id,
        runs.c.state == RunState.RUNNING,
        runs.c.claimed_by == worker_id,
        runs.c.attempt == attempt,
    )


async def _append(connection: AsyncConnection, claim: Claim, batch: LogBatch) -> bool:
    held = _held(claim.run_id, claim.worker_id, claim.attempt)
    result = await connection.execute(
        update(runs)
        .where(held, runs.c.log_bytes == batch.size_before)
        .values(log_bytes=batch.size_after, log_truncated=batch.truncated)
    )
    if result.rowcount == 1:
        await connection.execute(
            insert(run_log),
            [
                {
                    "run_id": claim.run_id,
                    "seq": line.seq,
                    "at": line.at,
                    "stream": line.stream,
                    "text": line.text,
                }
                for line in batch.lines
            ],
        )
        return True
    # Either the batch is there already, or the run is not ours.
    size = await connection.scalar(select(runs.c.log_bytes).where(held))
    return size == batch.size_after
