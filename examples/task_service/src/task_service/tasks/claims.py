"""What a worker does with runs: claim, keep, log, finish, give back, and take over from the dead.

Every statement names the claim it belongs to (`claimed_by` and `attempt`), so what a worker does after its run was
given to another changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any

from sqlalchemy import and_, case, func, insert, literal, null, select, update
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import ColumnElement

from msk_auth import Clock
from msk_auth.stores.sqlalchemy import UtcMicroseconds
from task_service.db.engine import Database
from task_service.db.schema import run_log, runs, users
from task_service.handlers import Progress

from .config import RunConfig
from .doorbell import Doorbell, SilentDoorbell
from .leases import Claim, Outcome, Sighting
from .run_log import LogBatch
from .shapes import RunState

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

    async def claim(self, wanted: str | None = None) -> Claim | None:
        """Take a queued run whose owner has fewer runs running than allowed: of those of the lowest rank the oldest.

        Args:
            wanted: Only this one.

        Returns:
            None if there is none.
        """
        limit = (await self._config.current()).max_concurrent_runs_per_user
        while True:
            run_id = wanted
            if run_id is None:
                # Mostly there is nothing to do, and so no transaction to begin.
                async with self._db.read() as connection:
                    run_id = await _first_claimable(connection, limit)
                if run_id is None:
                    return None
            async with self._db.write() as connection:
                claim = None
                owner_id = await _lock_owner(connection, run_id)
                if owner_id is not None:
                    claim = await self._claim(connection, run_id, owner_id, limit)
                if claim is not None and wanted is None:
                    await self._doorbell.unring(connection, run_id)
                if claim is not None or wanted is not None:
                    return claim
            # Another worker was faster. Look again, with a new view of the table.

    async def _claim(
        self, connection: AsyncConnection, run_id: str, owner_id: str, limit: int
    ) -> Claim | None:
        now = self._clock.now()
        others = runs.alias("others")
        running = (
            select(func.count())
            .select_from(others)
            .where(others.c.owner_id == owner_id, others.c.state == RunState.RUNNING)
        )
        result = await connection.execute(
            update(runs)
            .where(
                runs.c.id == run_id,
                runs.c.state == RunState.QUEUED,
                running.scalar_subquery() < limit,
            )
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
        # Whoever has not written anything has no place to go on from.
        last_seq = row.log_bytes and await connection.scalar(
            select(func.max(run_log.c.seq)).where(run_log.c.run_id == run_id)
        )
        return Claim(
            run_id=run_id,
            worker_id=self._worker_id,
            attempt=row.attempt,
            handler=row.handler,
            params=row.params,
            timeout_seconds=row.timeout_seconds,
            last_seq=last_seq or 0,
            log_bytes=row.log_bytes,
            log_truncated=row.log_truncated,
        )

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
                            (
                                and_(~cancelled, hopeless),
                                f"Its worker stopped in the middle of it {MAX_ATTEMPTS} times.",
                            ),
                            else_=null(),
                        ),
                        **self._put_down(over=cancelled | hopeless),
                    )
                    .returning(runs.c.state, runs.c.rank)
                )
                row = result.one_or_none()
                changed += row is not None
                if row is not None:
                    await self._ring_again(connection, each.run_id, row.state, row.rank)
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
                .returning(runs.c.state, runs.c.rank)
            )
            row = result.one_or_none()
            if row is not None:
                await self._ring_again(connection, claim.run_id, row.state, row.rank)
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
                    error=outcome.error,
                    finished_at=self._clock.now(),
                    lease_expires_at=None,
                )
            )
            return result.rowcount == 1

    async def _ring_again(
        self, connection: AsyncConnection, run_id: str, state: str, rank: int
    ) -> None:
        if state == RunState.QUEUED:
            await self._doorbell.unring(connection, run_id)
            await self._doorbell.ring(connection, run_id, rank)

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


async def _lock_owner(connection: AsyncConnection, run_id: str) -> str | None:
    """The owner of a queued run; None if it does not wait any more.

    One claim at a time for each owner, or two workers could exceed the limit together. (SQLite has one writer anyway
    and ignores FOR UPDATE.)
    """
    owner_id: str | None = await connection.scalar(
        select(users.c.id)
        .where(users.c.id == runs.c.owner_id, runs.c.id == run_id, runs.c.state == RunState.QUEUED)
        .with_for_update(of=users, key_share=True)
    )
    return owner_id


async def _first_claimable(connection: AsyncConnection, limit: int) -> str | None:
    # Owners at their limit are few (they have running runs), so they are found once and not for each queued run.
    busy = (
        select(runs.c.owner_id)
        .where(runs.c.state == RunState.RUNNING)
        .group_by(runs.c.owner_id)
        .having(func.count() >= limit)
    )
    run_id: str | None = await connection.scalar(
        select(runs.c.id)
        .where(runs.c.state == RunState.QUEUED, runs.c.owner_id.not_in(busy))
        .order_by(runs.c.rank, runs.c.created_at, runs.c.id)
        .limit(1)
    )
    return run_id


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
