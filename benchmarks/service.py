"""The task service: requests beside a bare FastAPI application, and runs beside procrastinate alone doing no work.

Only when it is named: it starts a deployment of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import URL, create_engine, text
from tests.databases import postgres_database

from .bare_queue import TASK, bare_app
from .deployed import Deployed, deployed
from .machine import describe
from .result import Aim, Column, Result, Row, Spread
from .service_requests import CONNECTIONS, measure_requests
from .timing import Scale, ratios
from .traffic import Connection

CONCURRENCY = 4
POSTERS = 8
WORKERS = (1, 2)

_PAUSE_SECONDS = 0.1
_BARE_WORKER = "from benchmarks.bare_queue import main; main()"
_ROOT = Path(__file__).parents[1]


class BareQueue:
    """Procrastinate with a database and workers of its own."""

    def __init__(self, url: URL) -> None:
        self.url = url
        self.conninfo = url.set(drivername="postgresql").render_as_string(hide_password=False)
        self._workers: list[subprocess.Popen[str]] = []

    def set_workers(self, count: int) -> None:
        """Have so many workers, each ready."""
        while len(self._workers) > count:
            worker = self._workers.pop()
            worker.terminate()
            worker.communicate(timeout=30)
        while len(self._workers) < count:
            worker = subprocess.Popen(
                [sys.executable, "-c", _BARE_WORKER, self.conninfo, str(CONCURRENCY)],
                cwd=_ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert worker.stdout is not None
            assert worker.stdout.readline() == "working\n"
            self._workers.append(worker)

    def started(self) -> list[tuple[float, float]]:
        """When each job was asked for and when it began, oldest first."""
        return _moments(
            self.url,
            "SELECT extract(epoch FROM asked.at), extract(epoch FROM begun.at)"
            " FROM procrastinate_events asked JOIN procrastinate_events begun USING (job_id)"
            " WHERE asked.type = 'deferred' AND begun.type = 'started' ORDER BY asked.at",
        )


@contextmanager
def durable_database() -> Iterator[URL]:
    """A new database that commits as PostgreSQL does by default: the service does so as well, and the tests' databases do not.

    Procrastinate alone would not wait for the disk, and the service would.
    """
    with postgres_database() as url:
        engine = create_engine(url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"ALTER DATABASE {url.database} RESET synchronous_commit"))
        engine.dispose()
        yield url


@contextmanager
def bare_queue(url: URL) -> Iterator[BareQueue]:
    """Procrastinate on an empty database."""

    async def prepare() -> None:
        async with bare_app(queue.conninfo).open_async() as app:
            await app.schema_manager.apply_schema_async()

    queue = BareQueue(url)
    asyncio.run(prepare())
    try:
        yield queue
    finally:
        queue.set_workers(0)


def started(it: Deployed) -> list[tuple[float, float]]:
    """When each run was asked for and when it began, oldest first."""
    return _moments(
        it.url,
        "SELECT created_at / 1e6, started_at / 1e6 FROM runs"
        " WHERE started_at IS NOT NULL ORDER BY created_at",
    )


def _moments(url: URL, query: str) -> list[tuple[float, float]]:
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            return [(float(row[0]), float(row[1])) for row in connection.execute(text(query))]
    finally:
        engine.dispose()


async def _service_burst(it: Deployed, count: int) -> None:
    """Ask for so many runs, over several connections at once."""
    # At all processes that serve: what the workers can do is asked, not what one of those can take.
    ports = itertools.cycle(it.ports)
    connections = [Connection(next(ports), it.key) for _ in range(POSTERS)]

    async def post(connection: Connection, share: int) -> None:
        for _ in range(share):
            status, answer = await connection.ask("POST", f"/api/tasks/{it.task_id}/run")
            if status != 202:
                raise RuntimeError(f"{status}: {answer}")
        connection.close()

    await asyncio.gather(*(post(each, count // POSTERS) for each in connections))


async def _queue_burst(queue: BareQueue, count: int) -> None:
    async with bare_app(queue.conninfo).open_async() as app:

        async def defer(share: int) -> None:
            for _ in range(share):
                await app.configure_task(TASK).defer_async()

        await asyncio.gather(*(defer(count // POSTERS) for _ in range(POSTERS)))


async def _service_one_by_one(it: Deployed, count: int) -> None:
    """Ask for so many runs, each when the one before has long begun."""
    connection = Connection(it.ports[0], it.key)
    for _ in range(count):
        await connection.ask("POST", f"/api/tasks/{it.task_id}/run")
        await asyncio.sleep(_PAUSE_SECONDS)
    connection.close()


async def _queue_one_by_one(queue: BareQueue, count: int) -> None:
    async with bare_app(queue.conninfo).open_async() as app:
        for _ in range(count):
            await app.configure_task(TASK).defer_async()
            await asyncio.sleep(_PAUSE_SECONDS)


def _until_begun(moments: Callable[[], list[tuple[float, float]]], count: int) -> None:
    deadline = time.monotonic() + 120
    while len(moments()) < count:
        if time.monotonic() > deadline:
            raise RuntimeError("not everything that was asked for has begun")
        time.sleep(0.1)


@dataclass
class _Runs:
    """What one subject does in each round, and what came of it so far.

    Attributes:
        set_workers: Have so many.
        burst: Ask for so many at once.
        one_by_one: Ask for so many, one after the other.
        moments: When each was asked for and when it began.
    """

    name: str
    set_workers: Callable[[int], None]
    burst: Callable[[int], Awaitable[None]]
    one_by_one: Callable[[int], Awaitable[None]]
    moments: Callable[[], list[tuple[float, float]]]
    seen: int = 0
    rates: dict[int, list[float]] = field(default_factory=dict[int, list[float]])
    delays: dict[int, list[float]] = field(default_factory=dict[int, list[float]])

    def turn(self, workers: int, scale: Scale) -> None:
        """One round with so many workers."""
        self.set_workers(workers)
        fresh = self._after(self.one_by_one, scale.pick(2, 20))
        self.delays.setdefault(workers, []).append(
            statistics.median(began - asked for asked, began in fresh) * 1e3
        )
        fresh = self._after(self.burst, scale.pick(POSTERS, 25 * POSTERS))
        took = max(began for _, began in fresh) - min(asked for asked, _ in fresh)
        self.rates.setdefault(workers, []).append(len(fresh) / took)
        self.set_workers(0)

    def _after(self, do: Callable[[int], Awaitable[None]], count: int) -> list[tuple[float, float]]:
        async def done() -> None:
            await do(count)

        asyncio.run(done())
        _until_begun(self.moments, self.seen + count)
        fresh = self.moments()[self.seen :]
        self.seen += count
        return fresh


def measure_runs(it: Deployed, queue: BareQueue, scale: Scale) -> list[Row]:
    """Runs started in a second, and from asking to running; one worker and two."""
    subjects = [
        _Runs(
            "procrastinate alone",
            queue.set_workers,
            lambda count: _queue_burst(queue, count),
            lambda count: _queue_one_by_one(queue, count),
            queue.started,
        ),
        _Runs(
            "the service",
            it.set_workers,
            lambda count: _service_burst(it, count),
            lambda count: _service_one_by_one(it, count),
            lambda: started(it),
        ),
    ]
    for _ in range(scale.pick(1, 5)):
        for workers in WORKERS:
            for subject in subjects:
                subject.turn(workers, scale)
    alone, _ = subjects
    rows: list[Row] = []
    for group, key, of in (
        ("Runs begun in a second", "rate", lambda each: each.rates),
        ("From asking to running", "time", lambda each: each.delays),
    ):
        for workers in WORKERS:
            words = "one worker" if workers == 1 else "two workers"
            for subject in subjects:
                figures = of(subject)[workers]
                cells = {key: Spread.of(figures)}
                against, aim = "", None
                if subject is not alone:
                    cells["ratio"] = Spread.of(ratios(figures, of(alone)[workers]))
                    against = f"{alone.name}, {words}"
                    if key == "rate" and workers == 2:
                        aim = Aim("ratio", "at least", 0.4)
                rows.append(Row(group, f"{subject.name}, {words}", cells, against, aim))
    return rows


def run(scale: Scale) -> Result:
    """Measure it."""
    measured = describe("task-service", "procrastinate", "psycopg", "uvicorn")
    rows = measure_requests(scale)
    with (
        durable_database() as queue_url,
        durable_database() as service_url,
        bare_queue(queue_url) as queue,
        deployed(service_url, apis=2) as it,
    ):
        rows += measure_runs(it, queue, scale)
    return Result(
        name="service",
        title="The task service beside what it is built on",
        method="Everything runs on one machine: the processes, PostgreSQL, and the load generator."
        f" Requests come over {CONNECTIONS} connections, by turns to the service and to a"
        " bare FastAPI application with one read through SQLAlchemy's asynchronous engine; one process each, as deployed,"
        " with log lines in JSON. Requests to the service carry an API key, which is read from the database each time"
        " unless a lease is named. The runs and the jobs do nothing, and both sides commit to the disk; they are requested over"
        f" {POSTERS} connections at once, and each worker executes {CONCURRENCY} at once.",
        columns=[
            Column("rate", "In a second"),
            Column("cpu", "Processor time of each", "µs"),
            Column("time", "Median time", "ms"),
            Column("p99", "99 of 100 within", "ms"),
            Column("ratio", "Ratio"),
        ],
        rows=rows,
        measured=measured,
    )
