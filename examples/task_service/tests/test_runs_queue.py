"""Several machines: the queue in PostgreSQL wakes workers, and nothing depends on it.

Each worker here has events, connections and a runner of its own, as a process has. By default a worker polls the table
once an hour only, so that it learns of runs from the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from examples.task_service.tests.runs_support import (
    ADMIN,
    ANN,
    BOB,
    OBSERVER,
    WORK,
    World,
    add_user,
    migrated,
)
from examples.task_service.tests.test_runs_runner import Blocker, within
from examples.task_service.tests.waiting import eventually
from procrastinate.exceptions import ConnectorException
from sqlalchemy import func, select, text

from msk_auth import Principal, SystemClock
from msk_auth.errors import StoreUnavailable
from task_service.db.engine import Database, parse_url
from task_service.db.schema import runs as runs_table
from task_service.handlers import HandlerResult, RunContext
from task_service.tasks import queue
from task_service.tasks.models import Run, RunPriority, RunState
from task_service.tasks.next_run import lock_acquiring
from task_service.tasks.queue import QueueNotifications
from task_service.tasks.runner import Runner
from task_service.tasks.status import count_live_workers
from task_service.tasks.worker_runs import AcquiredRun, LeaseWatch, WorkerRuns

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

NEVER = timedelta(hours=1)
LEASE = timedelta(seconds=15)


@dataclass
class Machine:
    """A process with a worker.

    Attributes:
        notified: How many notifications it has received.
        has_looked: Set after its first look for runs: from then on, a notification alone makes it look.
    """

    runner: Runner
    notified: int = 0
    has_looked: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(kw_only=True)
class Deployment(World):
    url: str
    task_ids: dict[str, str] = field(default_factory=dict)

    async def request(
        self, who: Principal[Any] = ANN, priority: RunPriority = RunPriority.NORMAL
    ) -> Run:
        owner = who.owner.id
        if owner not in self.task_ids:
            self.task_ids[owner] = (await self.new_task(who)).id
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

    def worker_elsewhere(self, stack: AsyncExitStack) -> WorkerRuns:
        """What one more worker does with runs, on a pool of its own."""
        db = Database.open(self.url)
        stack.push_async_callback(db.close)
        return self.worker("elsewhere", db=db)

    @asynccontextmanager
    async def machine(
        self,
        *,
        concurrency: int = 2,
        poll: timedelta = NEVER,
        is_notified: bool = True,
    ) -> AsyncIterator[Machine]:
        """A machine that works."""
        db, notifications = Database.open(self.url), QueueNotifications(self.url)
        runner = Runner(
            WorkerRuns(db, self.clock, self.config, notifications),
            self.parameters,
            OBSERVER,
            concurrency=concurrency,
            poll=poll,
        )
        machine = Machine(runner)
        acquire = runner.worker_runs.acquire

        async def note_look(room: int) -> list[AcquiredRun]:
            acquired = await acquire(room)
            machine.has_looked.set()
            return acquired

        runner.worker_runs.acquire = note_look

        async def handle_notification() -> None:
            machine.notified += 1
            await runner.handle_notification()

        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(runner.run(stop, timedelta(0)))
            before = await count_live_workers(self.db) or 0
            if is_notified:
                group.create_task(notifications.listen(handle_notification, stop))

                async def is_registered() -> bool:
                    return (await count_live_workers(self.db) or 0) > before

                await eventually(is_registered)
            try:
                yield machine
            finally:
                stop.set()
        await db.close()


@pytest.fixture
async def deployment(tmp_path: Path) -> AsyncIterator[Deployment]:
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(migrated("postgresql", tmp_path))
        db = Database.open(url)
        stack.push_async_callback(db.close)
        await add_user(db, ANN, BOB)
        yield Deployment(db, SystemClock(), url=url, notifications=QueueNotifications(url))


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

    async def notify_and_fail() -> None:
        async with deployment.db.write() as connection:
            await deployment.notifications.announce(connection, "run_lost")
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
    async with deployment.machine() as machine:
        await machine.has_looked.wait()
        run = await deployment.request()
        over = await deployment.until_over(run)
        assert (over.state, over.attempt) == (RunState.SUCCEEDED, 1)
    assert machine.notified == 1
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
    assert one.notified + two.notified in {3, 4}
    assert executed == [(run.id, 1)]


async def test_the_job_of_a_killed_worker_is_deleted(deployment: Deployment) -> None:
    for _ in range(2):
        await deployment.request()
    await deployment.execute(
        "WITH living AS (INSERT INTO procrastinate_workers (last_heartbeat)"
        " VALUES (now() + interval '1 hour') RETURNING id)"
        " UPDATE procrastinate_jobs SET status = 'doing', worker_id = (SELECT id FROM living)"
    )
    app = queue._app(parse_url(deployment.url))
    async with app.open_async():
        await queue._delete_stalled_jobs(app)
        assert len(await deployment.jobs()) == 2
        assert await count_live_workers(deployment.db) == 1
        await deployment.execute(
            "UPDATE procrastinate_workers SET last_heartbeat = now() - interval '1 minute'"
        )
        assert await count_live_workers(deployment.db) == 0
        # The workers do this among themselves, every fifteen seconds.
        await asyncio.gather(*(queue._delete_stalled_jobs(app) for _ in range(2)))
    assert await deployment.jobs() == []


async def test_a_worker_without_room_leaves_jobs_to_others(deployment: Deployment) -> None:
    blocker = Blocker()
    work(blocker)
    async with deployment.machine(concurrency=1) as busy:
        await busy.has_looked.wait()
        first = await deployment.request()
        await within(blocker.started)
        async with deployment.machine(concurrency=1) as idle:
            await idle.has_looked.wait()
            blocker.started.clear()
            second = await deployment.request()
            await within(blocker.started)
            assert (busy.notified, idle.notified) == (1, 1)
            blocker.release.set()
            for run in (first, second):
                assert (await deployment.until_over(run)).state is RunState.SUCCEEDED


async def test_a_job_that_waits_for_room_gets_it_when_a_poll_finds_nothing(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, found_nothing = asyncio.Event(), asyncio.Event()
    acquire = WorkerRuns.acquire

    async def look_too_early(self: WorkerRuns, room: int) -> list[AcquiredRun]:
        if looked.is_set():
            return await acquire(self, room)
        looked.set()
        await found_nothing.wait()
        return []

    monkeypatch.setattr(WorkerRuns, "acquire", look_too_early)
    work()
    async with deployment.machine(concurrency=1) as machine:
        await looked.wait()
        run = await deployment.request()

        async def received() -> bool:
            return machine.notified == 1

        await eventually(received)
        found_nothing.set()
        assert (await deployment.until_over(run)).state is RunState.SUCCEEDED


async def test_a_run_that_a_stopping_worker_releases_is_announced_again(
    deployment: Deployment,
) -> None:
    blocker = Blocker()
    executed = work(blocker)
    run = await deployment.request()
    # Without a listener, which could fetch the new job while it stops: without grace both stop at once.
    async with deployment.machine(is_notified=False):
        await within(blocker.started)
    assert (await deployment.runs.get(ANN, run.id)).state is RunState.QUEUED
    assert await deployment.jobs() == [(run.id, "todo")]
    blocker.release.set()
    async with deployment.machine():
        over = await deployment.until_over(run)
    assert (over.state, over.attempt) == (RunState.SUCCEEDED, 1)
    assert executed == [(run.id, 1), (run.id, 1)]


async def test_a_run_reclaimed_from_a_killed_worker_is_announced_again(
    deployment: Deployment,
) -> None:
    run = await deployment.request()
    workers = [deployment.worker(name, lease=timedelta(0)) for name in ("dead", "living")]
    assert await workers[0].acquire(1)
    await deployment.execute("DELETE FROM procrastinate_jobs")
    watch = LeaseWatch(deployment.clock, timedelta(0))
    assert await workers[1].reclaim(watch.expired(await workers[1].observed_leases())) == 1

    assert await deployment.jobs() == [(run.id, "todo")]


async def test_a_run_that_is_being_cancelled_keeps_no_worker_waiting(
    deployment: Deployment,
) -> None:
    """Nor can the two wait for each other, as one that starts several runs and one that cancels several could."""
    first, second = [await deployment.request() for _ in range(2)]
    theirs = await deployment.request(BOB)
    async with AsyncExitStack() as stack:
        worker = deployment.worker_elsewhere(stack)
        async with deployment.db.write() as connection:
            await connection.execute(
                select(runs_table.c.id).where(runs_table.c.id == first.id).with_for_update()
            )
            acquired = await worker.acquire(2)
        assert [run.run_id for run in acquired] == [theirs.id, second.id]
        # It was not cancelled after all.
        assert [run.run_id for run in await worker.acquire(2)] == [first.id]


async def test_a_worker_that_freezes_while_it_acquires_keeps_no_other_waiting(
    deployment: Deployment,
) -> None:
    run = await deployment.request()
    frozen = Database.open(deployment.url)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(frozen.close)
        worker = deployment.worker_elsewhere(stack)
        connection = await stack.enter_async_context(frozen.engine.connect())
        await lock_acquiring(connection)
        acquired = await worker.acquire(1)
        await connection.invalidate()
    assert [each.run_id for each in acquired] == [run.id]


async def test_a_worker_survives_the_loss_of_its_queue_connection(deployment: Deployment) -> None:
    """All connections are cut: runs are still found by polling, and notifications arrive again afterwards."""
    work()
    async with deployment.machine(poll=timedelta(seconds=2)) as machine:
        await deployment.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        assert (await deployment.until_over(await deployment.request())).state is RunState.SUCCEEDED

        async def received() -> bool:
            before = machine.notified
            await deployment.until_over(await deployment.request())
            return machine.notified > before

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
