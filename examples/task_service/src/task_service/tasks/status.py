"""What operators see: the runs by state, for the metrics, and a report on the service as a whole."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from importlib.metadata import version
from platform import python_version
from typing import Final

from pydantic import BaseModel
from sqlalchemy import func, select, text

from msk_auth import Clock
from task_service.db.engine import Database
from task_service.db.migrate import revision_of
from task_service.db.schema import runs

from .models import RunState

MAX_LEASES: Final = 100

_SIZE: Final = {
    "sqlite": "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()",
    "postgresql": "SELECT pg_database_size(current_database())",
}


_UNFINISHED: Final = (RunState.QUEUED, RunState.RUNNING)


class RunCounts:
    """Counts the unfinished runs by state, and caches the result: the metrics may be scraped as often as operators like.

    An index has the unfinished runs. Those that have ended, which are many, are counted as they end; see
    :class:`~task_service.tasks.interfaces.RunObserver`.

    Args:
        db: The service's database.
        clock: Its monotonic side measures how old a count is.
        lifetime: How long a count is reused.
    """

    def __init__(
        self, db: Database, clock: Clock, *, lifetime: timedelta = timedelta(seconds=5)
    ) -> None:
        self._db = db
        self._clock = clock
        self._lifetime = lifetime.total_seconds()
        self._lock = asyncio.Lock()
        self._counted_at: float | None = None
        self._counts: dict[str, int] = {}

    async def by_state(self) -> dict[str, int]:
        """The number of queued and of running runs, zeros included.

        Raises:
            StoreUnavailable: The database does not answer.
        """
        async with self._lock:
            now = self._clock.monotonic()
            if self._counted_at is None or now - self._counted_at >= self._lifetime:
                async with self._db.read() as connection:
                    found = await connection.execute(
                        select(runs.c.state, func.count().label("runs"))
                        .where(runs.c.state.in_(_UNFINISHED))
                        .group_by(runs.c.state)
                    )
                    counted: dict[str, int] = {row.state: row.runs for row in found}
                self._counts = {state.value: counted.get(state.value, 0) for state in _UNFINISHED}
                self._counted_at = now
            return self._counts


class ServiceStatus(BaseModel):
    """This process. During an upgrade another process behind the same address may run another version."""

    version: str
    library_version: str
    python_version: str
    started_at: datetime
    verification_lease_ms: int


class DatabaseStatus(BaseModel):
    """The database; `revision` is the migration that its schema is at."""

    kind: str
    version: str
    revision: str | None
    size_bytes: int


class QueueStatus(BaseModel):
    """The runs that have not ended."""

    queued: int
    running: int
    oldest_queued_at: datetime | None


class LeaseStatus(BaseModel):
    """A run that a worker holds. Another worker reclaims it if the lease is not renewed."""

    run_id: str
    task_id: str
    attempt: int
    worker: str | None
    started_at: datetime | None
    expires_at: datetime | None


class WorkerStatus(BaseModel):
    """The worker in this process, and how many runs it executes at once.

    Attributes:
        elsewhere: How many processes are workers of the queue; null on SQLite, which has no queue.
    """

    id: str
    concurrency: int
    elsewhere: int | None = None


class SystemStatus(BaseModel):
    """The state at one moment; `leases` are those of all workers, oldest first, at most 100."""

    service: ServiceStatus
    database: DatabaseStatus
    queue: QueueStatus
    worker: WorkerStatus
    leases: list[LeaseStatus]


class StatusReport:
    """Reports on the service.

    Args:
        db: The service's database.
        clock: Where to take the time from.
        worker: The worker in this process.
        verification_lease_ms: For how long a verification may be reused.
        count_live_workers: Counts the workers of the queue; None without a queue.
    """

    def __init__(
        self,
        db: Database,
        clock: Clock,
        *,
        worker: WorkerStatus,
        verification_lease_ms: int,
        count_live_workers: Callable[[Database], Awaitable[int]] | None = None,
    ) -> None:
        self._count_live_workers = count_live_workers
        self._db = db
        self._worker = worker
        self._service = ServiceStatus(
            version=version("task-service"),
            library_version=version("msk-auth"),
            python_version=python_version(),
            started_at=clock.now(),
            verification_lease_ms=verification_lease_ms,
        )

    async def now(self) -> SystemStatus:
        """The status now.

        Raises:
            StoreUnavailable: The database does not answer.
        """
        elsewhere = (
            None if self._count_live_workers is None else await self._count_live_workers(self._db)
        )
        async with self._db.read() as connection:
            dialect = connection.dialect
            size = await connection.scalar(text(_SIZE[dialect.name]))
            counts = await connection.execute(
                select(runs.c.state, func.count(), func.min(runs.c.created_at))
                .where(runs.c.state.in_(_UNFINISHED))
                .group_by(runs.c.state)
            )
            found = {state: (count, oldest) for state, count, oldest in counts}
            leases = await connection.execute(
                select(
                    runs.c.id.label("run_id"),
                    runs.c.task_id,
                    runs.c.attempt,
                    runs.c.claimed_by.label("worker"),
                    runs.c.started_at,
                    runs.c.lease_expires_at.label("expires_at"),
                )
                .where(runs.c.state == RunState.RUNNING)
                .order_by(runs.c.created_at, runs.c.id)
                .limit(MAX_LEASES)
            )
            listed = [LeaseStatus(**row) for row in leases.mappings()]
            revision = await revision_of(connection)
        queued, oldest = found.get(RunState.QUEUED, (0, None))
        return SystemStatus(
            service=self._service,
            database=DatabaseStatus(
                kind=dialect.name,
                version=".".join(map(str, dialect.server_version_info or ())),
                revision=revision,
                size_bytes=int(size or 0),
            ),
            queue=QueueStatus(
                queued=queued,
                running=found.get(RunState.RUNNING, (0, None))[0],
                oldest_queued_at=oldest,
            ),
            worker=self._worker.model_copy(update={"elsewhere": elsewhere}),
            leases=listed,
        )
