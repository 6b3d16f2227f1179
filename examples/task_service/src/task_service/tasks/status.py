"""Reports for operators: the runs by state, for the metrics, and the status of the whole service."""

from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from platform import python_version
from typing import Final

from pydantic import BaseModel
from sqlalchemy import func, or_, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from task_service.db.engine import Database
from task_service.db.migrate import revision_of
from task_service.db.schema import runs

from .models import RunState

MAX_LEASES: Final = 100
STALLED_SECONDS: Final = 20.0
"""The time without a heartbeat after which a worker of the queue counts as dead."""

_SIZE: Final = {
    "sqlite": "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()",
    "postgresql": "SELECT pg_database_size(current_database())",
}

_LIVE: Final = text(
    "SELECT count(*) FROM procrastinate_workers"
    " WHERE last_heartbeat > now() - make_interval(secs => :seconds)"
)


async def runs_by_state(db: Database) -> dict[str, int]:
    """The number of queued and of running runs, zeros included, for the metrics.

    An index has the unfinished runs. Ended runs, which are many, are counted when they end; see
    :class:`~task_service.observability.RunMetrics`.

    Raises:
        StoreUnavailable: The database does not answer.
    """
    async with db.read() as connection:
        queue = await _read_queue(connection)
    return {RunState.QUEUED: queue.queued, RunState.RUNNING: queue.running}


async def count_live_workers(db: Database) -> int | None:
    """The number of workers of the queue with a recent heartbeat, by the clock of the database.

    None on SQLite, which has no queue.

    Raises:
        StoreUnavailable: The database does not answer.
    """
    async with db.read() as connection:
        if connection.dialect.name == "sqlite":
            return None
        return await connection.scalar(_LIVE, {"seconds": STALLED_SECONDS}) or 0


class ServiceStatus(BaseModel):
    """This process. During an upgrade another process behind the same address may run another version."""

    version: str
    library_version: str
    python_version: str
    started_at: datetime
    verification_lease_ms: int


class DatabaseStatus(BaseModel):
    """The database; `revision` is the latest applied migration."""

    kind: str
    version: str
    revision: str | None
    size_bytes: int


class QueueStatus(BaseModel):
    """The runs that have not ended."""

    queued: int
    running: int
    oldest_queued_at: datetime | None


async def _read_queue(connection: AsyncConnection) -> QueueStatus:
    is_queued, is_running = runs.c.state == RunState.QUEUED, runs.c.state == RunState.RUNNING
    found = await connection.execute(
        select(
            func.count().filter(is_queued).label("queued"),
            func.count().filter(is_running).label("running"),
            func.min(runs.c.created_at).filter(is_queued).label("oldest_queued_at"),
        ).where(or_(is_queued, is_running))
    )
    return QueueStatus(**found.mappings().one())


class LeaseStatus(BaseModel):
    """A run that a worker holds. Another worker reclaims it if the lease is not renewed."""

    run_id: str
    task_id: str
    attempt: int
    worker: str | None
    started_at: datetime | None
    expires_at: datetime | None


class WorkerStatus(BaseModel):
    """The worker in this process, and its number of concurrent runs.

    Attributes:
        elsewhere: The number of workers of the queue; null on SQLite, which has no queue.
    """

    id: str
    concurrency: int
    elsewhere: int | None = None


class SystemStatus(BaseModel):
    """The state at one moment; `leases` has at most 100 leases of all workers, oldest first."""

    service: ServiceStatus
    database: DatabaseStatus
    queue: QueueStatus
    worker: WorkerStatus
    leases: list[LeaseStatus]


@dataclass
class StatusReport:
    """Reports on the service.

    Args:
        db: The service's database.
        worker: The worker in this process.
        started_at: The start of this process.
        verification_lease_ms: The time for which a verification may be reused.
    """

    db: Database
    worker: WorkerStatus
    started_at: datetime
    verification_lease_ms: int

    def __post_init__(self) -> None:
        # Not later: an upgrade replaces the installed packages of a running process.
        self._service = ServiceStatus(
            version=version("task-service"),
            library_version=version("msk-auth"),
            python_version=python_version(),
            started_at=self.started_at,
            verification_lease_ms=self.verification_lease_ms,
        )

    async def now(self) -> SystemStatus:
        """The present status.

        Raises:
            StoreUnavailable: The database does not answer.
        """
        elsewhere = await count_live_workers(self.db)
        async with self.db.read() as connection:
            dialect = connection.dialect
            size = await connection.scalar(text(_SIZE[dialect.name]))
            queue = await _read_queue(connection)
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
        return SystemStatus(
            service=self._service,
            database=DatabaseStatus(
                kind=dialect.name,
                version=".".join(map(str, dialect.server_version_info or ())),
                revision=revision,
                size_bytes=int(size or 0),
            ),
            queue=queue,
            worker=self.worker.model_copy(update={"elsewhere": elsewhere}),
            leases=listed,
        )
