"""Several machines: the queue in PostgreSQL wakes workers, and nothing depends on it.

Each worker here has events, connections and a runner of its own, as a process has. By default a worker polls the table
once an hour only, so that it learns of runs from the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from examples.task_service.tests.runs_support import (
    ADMIN,
    ANN,
    BOB,
    WORK,
    Config,
    migrated,
    registry,
)
from examples.task_service.tests.waiting import eventually
from procrastinate.exceptions import ConnectorException
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool
from sqlalchemy import func, insert, select, text

from msk_auth import Principal, SystemClock
from msk_auth.errors import StoreUnavailable
from task_service.accounts.audit import Audit
from task_service.accounts.config import ConfigStore
from task_service.db.engine import POSTGRES_CONNECT, Database, parse_url
from task_service.db.postgresql import TimeoutConnection
from task_service.db.schema import runs as runs_table
from task_service.db.schema import users
from task_service.handlers import HandlerResult, RunContext
from task_service.tasks import queue
from task_service.tasks.models import NewTask, Run, RunPriority, RunState
from task_service.tasks.notifications import LocalEvents
from task_service.tasks.queue import (
    QueueNotifier,
    count_live_workers,
    listen,
    requeue_stalled_jobs,
)
from task_service.tasks.runner import Runner
from task_service.tasks.runs import Runs
from task_service.tasks.tasks import Tasks
from task_service.tasks.worker_runs import AcquiredRun, LeaseWatch, Outcome, WorkerRuns

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

NEVER = timedelta(hours=1)
LEASE = timedelta(seconds=15)


@dataclass
class Machine:
    """A process with a worker."""

    runner: Runner
    executed: list[str] = field(default_factory=list)


@dataclass
class Deployment:
    url: str
    db: Database
    clock: SystemClock
    config: Config
    runs: Runs
    tasks: Tasks
    task_ids: dict[str, str] = field(default_factory=dict)

    async def request(
        self, who: Principal[Any] = ANN, priority: RunPriority = RunPriority.NORMAL
    ) -> Run:
        owner = who.owner.id
        if owner not in self.task_ids:
            new = NewTask(name="Task", handler="anything", params={"do": "x"})
            self.task_ids[owner] = (await self.tasks.create(who, new)).id
        return await self.runs.request(who, self.task_ids[owner], priority=priority)

    async def until_over(self, run: Run) -> Run:
        async def over() -> bool:
            return (await self.runs.get(ADMIN, run.id)).state.is_final

        await eventually(over)
        return await self.runs.get(ADMIN, run.id)

    async def jobs(self) -> list[tuple[str | None, str]]:
        """The jobs in the queue: the run of each, and its state."""
        async with self.db.read() as connection:
            found = await connection.execute(
                text(
                    "SELECT args->>'run_id', status::text FROM procrastinate_jobs"
                    " WHERE task_name = 'execute_run' ORDER BY id"
                )
            )
            return [tuple(row) for row in found]

    async def execute(self, statement: str, **values: Any) -> None:
        async with self.db.write() as connection:
            await connection.execute(text(statement), values)

    def worker(self, stack: AsyncExitStack, number: int) -> WorkerRuns:
        """What one more worker does with runs, on a pool of its own."""
        db = Database.open(self.url)
        stack.push_async_callback(db.close)
        return WorkerRuns(
            db,
            self.clock,
            self.config,
            worker_id=f"w{number}",
            lease=LEASE,
            notifier=QueueNotifier(self.url),
        )

    @asynccontextmanager
    async def machine(
        self,
        *,
        concurrency: int = 2,
        poll: timedelta = NEVER,
        is_notified: bool = True,
        looks: bool = True,
    ) -> AsyncIterator[Machine]:
        """A machine that works; without `looks` it executes what it is notified of, and finds nothing by itself."""

        async def should_acquire() -> bool:
            return looks

        db = Database.open(self.url)
        runner = Runner(
            db,
            self.clock,
            registry(self.config),
            self.config,
            LocalEvents(),
            concurrency=concurrency,
            poll=poll,
            notifier=QueueNotifier(self.url),
            should_acquire=should_acquire,
        )
        machine = Machine(runner)

        async def handle_notification(run_id: str) -> None:
            machine.executed.append(run_id)
            await runner.handle_notification(run_id)

        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(runner.run())
            before = await count_live_workers(self.db)
            if is_notified:
                group.create_task(listen(self.url, handle_notification, stop=stop))

                async def is_registered() -> bool:
                    return await count_live_workers(self.db) > before

                await eventually(is_registered)
            try:
                yield machine
            finally:
                stop.set()
                runner.stop(timedelta(0))
        await db.close()


@pytest.fixture
async def deployment(tmp_path: Path) -> AsyncIterator[Deployment]:
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(migrated("postgresql", tmp_path))
        db = Database.open(url)
        stack.push_async_callback(db.close)
        clock, config = SystemClock(), Config()
        async with db.write() as connection:
            await connection.execute(
                insert(users),
                [
                    {
                        "id": who.owner.id,
                        "username": who.owner.id,
                        "roles": [],
                        "created_at": clock.now(),
                    }
                    for who in (ANN, BOB)
                ],
            )
        yield Deployment(
            url,
            db,
            clock,
            config,
            Runs(db, clock, config, LocalEvents(), notifier=QueueNotifier(url)),
            Tasks(db, clock, registry(config), LocalEvents()),
        )


def work(
    do: Callable[[RunContext], Awaitable[HandlerResult]] | None = None,
) -> list[tuple[str, int]]:
    """What the runs do; returns where it is written which were executed, and at which attempt."""
    executed: list[tuple[str, int]] = []

    async def run(context: RunContext) -> HandlerResult:
        executed.append((context.run_id, context.attempt))
        return HandlerResult(0) if do is None else await do(context)

    WORK["x"] = run
    return executed


async def test_the_job_is_committed_with_the_run_or_not_at_all(deployment: Deployment) -> None:
    run = await deployment.request(priority=RunPriority.HIGH)
    assert await deployment.jobs() == [(run.id, "todo")]

    notifier = QueueNotifier(deployment.url)

    async def notify_and_fail() -> None:
        async with deployment.db.write() as connection:
            await notifier.notify(connection, ["run_lost"])
            raise LookupError

    with pytest.raises(LookupError):
        await notify_and_fail()
    assert await deployment.jobs() == [(run.id, "todo")]


async def test_a_queue_that_cannot_be_written_to_queues_no_run(deployment: Deployment) -> None:
    await deployment.request()
    await deployment.execute("ALTER TABLE procrastinate_jobs RENAME TO elsewhere")
    with pytest.raises(StoreUnavailable):
        await deployment.request()

    async with deployment.db.read() as connection:
        assert await connection.scalar(select(func.count()).select_from(runs_table)) == 1


async def test_a_notification_wakes_a_worker_in_another_process(deployment: Deployment) -> None:
    executed = work()
    async with deployment.machine(looks=False) as machine:
        run = await deployment.request()
        over = await deployment.until_over(run)
        assert (over.state, over.attempt) == (RunState.SUCCEEDED, 1)
    assert machine.executed == [run.id]
    assert executed == [(run.id, 1)]
    assert await deployment.jobs() == []
    assert await count_live_workers(deployment.db) == 0


async def test_a_run_whose_job_was_lost_is_found_by_polling(deployment: Deployment) -> None:
    work()
    run = await deployment.request()
    await deployment.execute("DELETE FROM procrastinate_jobs")
    async with deployment.machine(is_notified=False, poll=timedelta(seconds=0.1)):
        assert (await deployment.until_over(run)).state is RunState.SUCCEEDED


async def test_the_job_of_a_run_that_was_found_by_polling_is_withdrawn(
    deployment: Deployment,
) -> None:
    """Or the queue would grow for as long as there are no workers."""
    work()
    run = await deployment.request()
    async with deployment.machine(is_notified=False, poll=timedelta(seconds=0.1)):
        await deployment.until_over(run)
    assert await deployment.jobs() == []


async def test_the_job_of_a_cancelled_run_is_withdrawn(deployment: Deployment) -> None:
    run = await deployment.request()
    await deployment.runs.cancel(ANN, run.id)
    assert await deployment.jobs() == []


async def test_duplicate_jobs_execute_a_run_once(deployment: Deployment) -> None:
    executed = work()
    run = await deployment.request()
    for _ in range(3):
        await deployment.execute(
            "INSERT INTO procrastinate_jobs (queue_name, task_name, args)"
            " SELECT queue_name, task_name, args FROM procrastinate_jobs LIMIT 1"
        )
    async with deployment.machine(concurrency=4) as one, deployment.machine(concurrency=4) as two:
        await deployment.until_over(run)

        async def silent() -> bool:
            return await deployment.jobs() == []

        await eventually(silent)
    # The run may have been found by polling before its job arrived.
    assert one.executed + two.executed in ([run.id] * 4, [run.id] * 3)
    assert executed == [(run.id, 1)]


async def test_the_job_of_a_killed_worker_is_requeued(deployment: Deployment) -> None:
    work()
    run = await deployment.request()
    await deployment.execute(
        "WITH dead AS (INSERT INTO procrastinate_workers (last_heartbeat)"
        " VALUES (now() - interval '1 minute') RETURNING id)"
        " UPDATE procrastinate_jobs SET status = 'doing', worker_id = (SELECT id FROM dead)"
    )
    assert await count_live_workers(deployment.db) == 0
    async with deployment.machine():
        # The workers do this among themselves, every fifteen seconds.
        await requeue_stalled_jobs(deployment.url)
        assert (await deployment.until_over(run)).state is RunState.SUCCEEDED


async def test_a_job_that_has_a_successor_is_dropped(deployment: Deployment) -> None:
    run = await deployment.request()
    await deployment.execute("UPDATE procrastinate_jobs SET status = 'doing'")
    async with deployment.db.write() as connection:
        await QueueNotifier(deployment.url).notify(connection, [run.id])
    assert len(await deployment.jobs()) == 2
    await requeue_stalled_jobs(deployment.url)

    assert await deployment.jobs() == [(run.id, "todo")]


async def test_a_worker_without_room_leaves_jobs_to_others(deployment: Deployment) -> None:
    began, release = asyncio.Event(), asyncio.Event()

    async def wait(_: RunContext) -> HandlerResult:
        began.set()
        await release.wait()
        return HandlerResult(0)

    work(wait)
    async with deployment.machine(concurrency=1, looks=False) as busy:
        first = await deployment.request()
        await asyncio.wait_for(began.wait(), 60)
        async with deployment.machine(concurrency=1, looks=False) as idle:
            began.clear()
            second = await deployment.request()
            await asyncio.wait_for(began.wait(), 60)
            assert (busy.executed, idle.executed) == ([first.id], [second.id])
            release.set()
            for run in (first, second):
                assert (await deployment.until_over(run)).state is RunState.SUCCEEDED


async def test_a_job_that_waits_for_room_gets_it_when_a_poll_finds_nothing(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, found_nothing = asyncio.Event(), asyncio.Event()
    acquire = WorkerRuns.acquire

    async def look_too_early(
        self: WorkerRuns, room: int, *, announced: str | None = None
    ) -> list[AcquiredRun]:
        if looked.is_set():
            return await acquire(self, room, announced=announced)
        looked.set()
        await found_nothing.wait()
        return []

    monkeypatch.setattr(WorkerRuns, "acquire", look_too_early)
    work()
    async with deployment.machine(concurrency=1) as machine:
        await looked.wait()
        run = await deployment.request()

        async def received() -> bool:
            return machine.executed == [run.id]

        await eventually(received)
        found_nothing.set()
        assert (await deployment.until_over(run)).state is RunState.SUCCEEDED


async def test_a_run_that_a_stopping_worker_releases_is_announced_again(
    deployment: Deployment,
) -> None:
    began, release = asyncio.Event(), asyncio.Event()

    async def wait(_: RunContext) -> HandlerResult:
        began.set()
        await release.wait()
        return HandlerResult(0)

    executed = work(wait)
    run = await deployment.request()
    async with deployment.machine():
        await asyncio.wait_for(began.wait(), 60)
    assert (await deployment.runs.get(ANN, run.id)).state is RunState.QUEUED
    assert await deployment.jobs() == [(run.id, "todo")]
    release.set()
    async with deployment.machine():
        over = await deployment.until_over(run)
    assert (over.state, over.attempt) == (RunState.SUCCEEDED, 1)
    assert executed == [(run.id, 1), (run.id, 1)]


async def test_a_run_reclaimed_from_a_killed_worker_is_announced_again(
    deployment: Deployment,
) -> None:
    run = await deployment.request()
    workers = [
        WorkerRuns(
            deployment.db,
            deployment.clock,
            deployment.config,
            worker_id=name,
            lease=timedelta(0),
            notifier=QueueNotifier(deployment.url),
        )
        for name in ("dead", "living")
    ]
    assert await workers[0].acquire(1)
    await deployment.execute("DELETE FROM procrastinate_jobs")
    watch = LeaseWatch(deployment.clock, timedelta(0))
    assert (
        await workers[1].reclaim(watch.expired(await workers[1].observed_leases(except_for=[])))
        == 1
    )

    assert await deployment.jobs() == [(run.id, "todo")]


@contextmanager
def counted_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """How often this process has waited for PostgreSQL since the previous call."""
    real, waits = TimeoutConnection.wait, 0

    async def wait(self: TimeoutConnection, gen: Any, *more: Any) -> Any:
        nonlocal waits
        was_idle = self.pgconn.transaction_status == TransactionStatus.IDLE
        has_waited = False

        def counted() -> Generator[Any, Any, Any]:
            nonlocal has_waited
            try:
                wanted = next(gen)
                while True:
                    has_waited = True
                    wanted = gen.send((yield wanted))
            except StopIteration as end:
                return end.value

        result = await real(self, counted(), *more)
        has_begun = was_idle and self.pgconn.transaction_status == TransactionStatus.INTRANS
        # The driver waits for BEGIN first.
        waits += has_waited + has_begun
        return result

    def since() -> int:
        nonlocal waits
        waits, seen = 0, waits
        return seen

    with monkeypatch.context() as patched:
        patched.setattr(TimeoutConnection, "wait", wait)
        yield since


async def test_how_often_a_run_waits_for_the_database(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a handler that prints nothing. A run used to wait eleven times, and so did each of four at once."""
    config = ConfigStore(
        deployment.db, deployment.clock, audit=Audit(deployment.db, deployment.clock)
    )
    worker = WorkerRuns(
        deployment.db,
        deployment.clock,
        config,
        worker_id="w",
        lease=LEASE,
        notifier=QueueNotifier(deployment.url),
    )
    alone = await deployment.request()
    with counted_waits(monkeypatch) as waits:
        (run,) = await worker.acquire(4, announced=alone.id)
        # The settings, BEGIN, the owner's turn, the run, the end of the turn, COMMIT.
        assert waits() == 6
        assert await worker.finish(run, Outcome(RunState.SUCCEEDED), None)
        assert waits() == 1

        requested = [await deployment.request() for _ in range(4)]
        waits()
        together = await worker.acquire(4, announced=requested[0].id)
        # The jobs of the other three are withdrawn.
        assert (len(together), waits()) == (4, 7)
        ends = (worker.finish(each, Outcome(RunState.SUCCEEDED), None) for each in together)
        assert await asyncio.gather(*ends) == [True] * 4
        assert waits() == 1

        await asyncio.gather(*(deployment.request() for _ in range(4)))
        # BEGIN, the owner, the task, the runs (the driver waits twice for several rows), their last number, the owner's
        # turn, the jobs, COMMIT.
        assert waits() == 9


async def test_a_run_that_is_being_cancelled_keeps_no_worker_waiting(
    deployment: Deployment,
) -> None:
    """Nor can the two wait for each other, as one that starts several runs and one that cancels several could."""
    first, second = [await deployment.request() for _ in range(2)]
    async with AsyncExitStack() as stack:
        worker = deployment.worker(stack, 1)
        async with deployment.db.write() as connection:
            await connection.execute(
                select(runs_table.c.id).where(runs_table.c.id == first.id).with_for_update()
            )
            acquired = await worker.acquire(2)
        assert [run.run_id for run in acquired] == [second.id]
        # It was not cancelled after all.
        assert [run.run_id for run in await worker.acquire(2)] == [first.id]


async def test_the_limit_of_concurrent_runs_holds_across_machines(
    deployment: Deployment,
) -> None:
    deployment.config.settings.max_concurrent_runs_per_user = 3
    for who in (ANN, BOB):
        for _ in range(6):
            await deployment.request(who)
    async with AsyncExitStack() as stack:
        workers = [deployment.worker(stack, number) for number in range(4)]
        acquired = await asyncio.gather(*(worker.acquire(1) for worker in workers * 4))
        held = [run for each in acquired for run in each]
        assert len({run.run_id for run in held}) == len(held) == 6
        async with deployment.db.read() as connection:
            running = await connection.execute(
                select(runs_table.c.owner_id, func.count())
                .where(runs_table.c.state == RunState.RUNNING)
                .group_by(runs_table.c.owner_id)
            )
            assert dict([tuple(row) for row in running]) == {"usr_ann": 3, "usr_bob": 3}
        # A notification makes no difference.
        announced = (each.acquire(1, announced="run_x") for each in workers)
        assert await asyncio.gather(*announced) == [[]] * 4
        done = held[0]
        worker = next(each for each in workers if each._worker_id == done.worker_id)
        await worker.finish(done, Outcome(RunState.SUCCEEDED), None)
        assert await workers[1].acquire(1)
        assert await workers[2].acquire(1) == []


async def test_a_worker_survives_the_loss_of_its_queue_connection(deployment: Deployment) -> None:
    """All connections are cut: runs are still found by polling, and notifications arrive again afterwards."""
    work()
    async with deployment.machine(poll=timedelta(seconds=2)) as machine:
        await deployment.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        assert (await deployment.until_over(await deployment.request())).state is RunState.SUCCEEDED

        async def received() -> bool:
            run = await deployment.request()
            await deployment.until_over(run)
            return run.id in machine.executed

        await eventually(received)


async def test_a_lost_connection_of_the_queue_is_logged_in_one_line(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    """A task that is never awaited must not log a traceback when the database goes away."""
    loop = asyncio.get_running_loop()
    before, passed_on = loop.get_exception_handler(), []
    loop.set_exception_handler(lambda _loop, context: passed_on.append(context["message"]))
    try:
        async with deployment.machine():
            loop.call_exception_handler(
                {"message": "never retrieved", "exception": ConnectorException()}
            )
            loop.call_exception_handler({"message": "a mistake", "exception": LookupError()})
    finally:
        loop.set_exception_handler(before)
    assert passed_on == ["a mistake"]
    assert "the queue dropped a statement" in caplog.text


async def test_the_queue_replaces_a_connection_that_the_server_has_closed_without_asking_it_each_time(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_connection: object) -> None:
        raise AssertionError("a round trip before each statement")

    monkeypatch.setattr(AsyncConnectionPool, "check_connection", refuse)
    own_pid = "SELECT pg_backend_pid() AS pid"
    app = queue._app(parse_url(deployment.url))
    async with app.open_async():
        pid = (await app.connector.execute_query_one_async(own_pid))["pid"]
        assert (await app.connector.execute_query_one_async(own_pid))["pid"] == pid
        async with deployment.db.write() as connection:
            await connection.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
        assert (await app.connector.execute_query_one_async(own_pid))["pid"] != pid


@pytest.mark.parametrize(
    ("url", "settings"),
    [
        (
            "postgresql://u:p%40ss@db.test:5433/tasks?sslmode=verify-full",
            {
                "host": "db.test",
                "port": 5433,
                "dbname": "tasks",
                "user": "u",
                "password": "p@ss",
                "sslmode": "verify-full",
            },
        ),
        (
            "postgresql:///tasks?host=/run/postgresql",
            {"host": "/run/postgresql", "dbname": "tasks"},
        ),
    ],
)
def test_the_queue_connects_as_the_service_does(url: str, settings: dict[str, Any]) -> None:
    given = QueueNotifier(url)._app.connector._pool_args["kwargs"]
    names = ("host", "port", "dbname", "user", "password", "sslmode")
    assert {name: given[name] for name in names if name in given} == settings
    assert given["connect_timeout"] == POSTGRES_CONNECT["connect_timeout"]


async def test_workers_that_wait_for_turns_do_not_deadlock(deployment: Deployment) -> None:
    """More workers than owners: all turns are locked most of the time, and each moves while other workers wait for it."""
    deployment.config.settings.max_concurrent_runs_per_user = 100
    requested = [await deployment.request(who) for _ in range(24) for who in (ANN, BOB)]
    async with AsyncExitStack() as stack:
        workers = [deployment.worker(stack, number) for number in range(6)]
        acquired = await asyncio.gather(*(worker.acquire(1) for worker in workers * 8))
    assert {run.run_id for each in acquired for run in each} == {run.id for run in requested}
