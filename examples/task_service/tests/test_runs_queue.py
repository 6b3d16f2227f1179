"""Several machines: the queue in PostgreSQL wakes workers, and nothing depends on it.

Workers here have bells, connections and runners of their own, as processes have. Where it says so they look into the table
once an hour only, so that what they hear of they have heard from the queue.
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
    WORK,
    Config,
    migrated,
    registry,
)
from procrastinate.exceptions import ConnectorException
from sqlalchemy import func, insert, select, text

from msk_auth import Principal, StoreUnavailable, SystemClock
from task_service.db.engine import Database
from task_service.db.schema import runs as runs_table
from task_service.db.schema import users
from task_service.handlers import HandlerResult, RunContext
from task_service.tasks.claims import Claims
from task_service.tasks.leases import Claim, LeaseWatch, Outcome
from task_service.tasks.queue import (
    QueueDoorbell,
    listen,
    living_workers,
    put_back_stalled,
)
from task_service.tasks.runner import Runner
from task_service.tasks.runs import Runs
from task_service.tasks.shapes import NewTask, Run, RunPriority, RunState
from task_service.tasks.signals import Signals
from task_service.tasks.tasks import Tasks

pytestmark = pytest.mark.anyio

NEVER = timedelta(hours=1)
LEASE = timedelta(seconds=15)


async def eventually(check: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while True:
            if await check():
                return
            await asyncio.sleep(0.02)


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
        """What is in the queue: whose bell, and in which state."""
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

    def worker(self, stack: AsyncExitStack, number: int) -> Claims:
        """What one more worker does with runs, on a pool of its own."""
        db = Database.open(self.url)
        stack.push_async_callback(db.close)
        return Claims(
            db,
            self.clock,
            self.config,
            worker_id=f"w{number}",
            lease=LEASE,
            doorbell=QueueDoorbell(self.url),
        )

    @asynccontextmanager
    async def machine(
        self, *, concurrency: int = 2, poll: timedelta = NEVER, hears: bool = True
    ) -> AsyncIterator[Machine]:
        db = Database.open(self.url)
        runner = Runner(
            db,
            self.clock,
            registry(self.config),
            self.config,
            Signals(),
            concurrency=concurrency,
            poll=poll,
            doorbell=QueueDoorbell(self.url),
        )
        machine = Machine(runner)

        async def answer(run_id: str) -> None:
            machine.executed.append(run_id)
            await runner.answer(run_id)

        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(runner.run())
            before = await living_workers(self.db)
            if hears:
                group.create_task(listen(self.url, answer, concurrency=concurrency, stop=stop))

                async def listens() -> bool:
                    return await living_workers(self.db) > before

                await eventually(listens)
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
            Runs(db, clock, config, Signals(), doorbell=QueueDoorbell(url)),
            Tasks(db, clock, registry(config), Signals()),
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


async def test_the_bell_rings_with_the_run_or_not_at_all(deployment: Deployment) -> None:
    run = await deployment.request(priority=RunPriority.HIGH)
    assert await deployment.jobs() == [(run.id, "todo")]

    doorbell = QueueDoorbell(deployment.url)

    async def ring_and_fail() -> None:
        async with deployment.db.write() as connection:
            await doorbell.ring(connection, "run_lost")
            raise LookupError

    with pytest.raises(LookupError):
        await ring_and_fail()
    assert await deployment.jobs() == [(run.id, "todo")]


async def test_a_queue_that_cannot_be_written_to_queues_no_run(deployment: Deployment) -> None:
    await deployment.request()
    await deployment.execute("ALTER TABLE procrastinate_jobs RENAME TO elsewhere")
    with pytest.raises(StoreUnavailable):
        await deployment.request()

    async with deployment.db.read() as connection:
        assert await connection.scalar(select(func.count()).select_from(runs_table)) == 1


async def test_a_bell_wakes_a_worker_elsewhere(deployment: Deployment) -> None:
    executed = work()
    async with deployment.machine() as machine:
        run = await deployment.request()
        over = await deployment.until_over(run)
        assert (over.state, over.attempt) == (RunState.SUCCEEDED, 1)
    assert machine.executed == [run.id]
    assert executed == [(run.id, 1)]
    assert await deployment.jobs() == []
    assert await living_workers(deployment.db) == 0


async def test_a_run_whose_bell_was_lost_is_found(deployment: Deployment) -> None:
    work()
    run = await deployment.request()
    await deployment.execute("DELETE FROM procrastinate_jobs")
    async with deployment.machine(hears=False, poll=timedelta(seconds=0.1)):
        assert (await deployment.until_over(run)).state is RunState.SUCCEEDED


async def test_a_run_that_was_found_rings_no_more(deployment: Deployment) -> None:
    """Or the queue would grow for as long as there are no workers."""
    work()
    run = await deployment.request()
    async with deployment.machine(hears=False, poll=timedelta(seconds=0.1)):
        await deployment.until_over(run)
    assert await deployment.jobs() == []


async def test_a_cancelled_run_rings_no_more(deployment: Deployment) -> None:
    run = await deployment.request()
    await deployment.runs.cancel(ANN, run.id)
    assert await deployment.jobs() == []


async def test_a_bell_that_rings_twice_is_harmless(deployment: Deployment) -> None:
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
    # The first may have been found before it was heard.
    assert one.executed + two.executed in ([run.id] * 4, [run.id] * 3)
    assert executed == [(run.id, 1)]


async def test_the_job_of_a_worker_that_died_is_put_back(deployment: Deployment) -> None:
    work()
    run = await deployment.request()
    await deployment.execute(
        "WITH dead AS (INSERT INTO procrastinate_workers (last_heartbeat)"
        " VALUES (now() - interval '1 minute') RETURNING id)"
        " UPDATE procrastinate_jobs SET status = 'doing', worker_id = (SELECT id FROM dead)"
    )
    assert await living_workers(deployment.db) == 0
    async with deployment.machine():
        # The workers do this among themselves, every fifteen seconds.
        await put_back_stalled(deployment.url)
        assert (await deployment.until_over(run)).state is RunState.SUCCEEDED


async def test_a_job_that_has_a_successor_is_dropped(deployment: Deployment) -> None:
    run = await deployment.request()
    await deployment.execute("UPDATE procrastinate_jobs SET status = 'doing'")
    async with deployment.db.write() as connection:
        await QueueDoorbell(deployment.url).ring(connection, run.id)
    assert len(await deployment.jobs()) == 2
    await put_back_stalled(deployment.url)

    assert await deployment.jobs() == [(run.id, "todo")]


async def test_a_worker_without_room_leaves_bells_to_others(deployment: Deployment) -> None:
    began, release = asyncio.Event(), asyncio.Event()

    async def wait(_: RunContext) -> HandlerResult:
        began.set()
        await release.wait()
        return HandlerResult(0)

    work(wait)
    async with deployment.machine(concurrency=1) as busy:
        first = await deployment.request()
        await asyncio.wait_for(began.wait(), 20)
        async with deployment.machine(concurrency=1) as idle:
            began.clear()
            second = await deployment.request()
            await asyncio.wait_for(began.wait(), 20)
            assert (busy.executed, idle.executed) == ([first.id], [second.id])
            release.set()
            for run in (first, second):
                assert (await deployment.until_over(run)).state is RunState.SUCCEEDED


async def test_a_bell_that_waits_for_a_place_gets_it_when_a_look_found_nothing(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, found_nothing = asyncio.Event(), asyncio.Event()
    acquire = Claims.acquire

    async def look_too_early(self: Claims, *, rung: bool = False) -> Claim | None:
        if looked.is_set():
            return await acquire(self, rung=rung)
        looked.set()
        await found_nothing.wait()
        return None

    monkeypatch.setattr(Claims, "acquire", look_too_early)
    work()
    async with deployment.machine(concurrency=1) as machine:
        await looked.wait()
        run = await deployment.request()

        async def heard() -> bool:
            return machine.executed == [run.id]

        await eventually(heard)
        found_nothing.set()
        assert (await deployment.until_over(run)).state is RunState.SUCCEEDED


async def test_what_a_stopping_worker_gives_back_rings_again(deployment: Deployment) -> None:
    began, release = asyncio.Event(), asyncio.Event()

    async def wait(_: RunContext) -> HandlerResult:
        began.set()
        await release.wait()
        return HandlerResult(0)

    executed = work(wait)
    run = await deployment.request()
    async with deployment.machine():
        await asyncio.wait_for(began.wait(), 20)
    assert (await deployment.runs.get(ANN, run.id)).state is RunState.QUEUED
    assert await deployment.jobs() == [(run.id, "todo")]
    release.set()
    async with deployment.machine():
        over = await deployment.until_over(run)
    assert (over.state, over.attempt) == (RunState.SUCCEEDED, 1)
    assert executed == [(run.id, 1), (run.id, 1)]


async def test_what_is_taken_from_a_dead_worker_rings_again(deployment: Deployment) -> None:
    run = await deployment.request()
    claims = [
        Claims(
            deployment.db,
            deployment.clock,
            deployment.config,
            worker_id=name,
            lease=timedelta(0),
            doorbell=QueueDoorbell(deployment.url),
        )
        for name in ("dead", "living")
    ]
    assert await claims[0].acquire() is not None
    await deployment.execute("DELETE FROM procrastinate_jobs")
    watch = LeaseWatch(deployment.clock, timedelta(0))
    assert await claims[1].take_back(watch.expired(await claims[1].sightings(besides=[]))) == 1

    assert await deployment.jobs() == [(run.id, "todo")]


async def test_one_owner_has_no_more_runs_at_once_than_allowed_on_all_machines_together(
    deployment: Deployment,
) -> None:
    deployment.config.settings.max_concurrent_runs_per_user = 3
    for who in (ANN, BOB):
        for _ in range(6):
            await deployment.request(who)
    async with AsyncExitStack() as stack:
        workers = [deployment.worker(stack, number) for number in range(4)]
        claims = await asyncio.gather(*(worker.acquire() for worker in workers * 4))
        held = [claim for claim in claims if claim is not None]
        assert len({claim.run_id for claim in held}) == len(held) == 6
        async with deployment.db.read() as connection:
            running = await connection.execute(
                select(runs_table.c.owner_id, func.count())
                .where(runs_table.c.state == RunState.RUNNING)
                .group_by(runs_table.c.owner_id)
            )
            assert dict([tuple(row) for row in running]) == {"usr_ann": 3, "usr_bob": 3}
        # A bell makes no difference.
        assert await asyncio.gather(*(each.acquire(rung=True) for each in workers)) == [None] * 4
        done = held[0]
        worker = next(each for each in workers if each._worker_id == done.worker_id)
        await worker.finish(done, Outcome(RunState.SUCCEEDED), None)
        assert await workers[1].acquire() is not None
        assert await workers[2].acquire() is None


async def test_a_worker_outlives_the_queue(deployment: Deployment) -> None:
    """All connections are cut: runs go on being found, and bells are heard again."""
    work()
    async with deployment.machine(poll=timedelta(seconds=2)) as machine:
        await deployment.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        assert (await deployment.until_over(await deployment.request())).state is RunState.SUCCEEDED

        async def heard() -> bool:
            run = await deployment.request()
            await deployment.until_over(run)
            return run.id in machine.executed

        await eventually(heard)


async def test_what_the_queue_leaves_undone_is_told_in_a_line(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    """A task that nobody waits for must not print a traceback when the database goes away."""
    loop = asyncio.get_running_loop()
    before, told = loop.get_exception_handler(), []
    loop.set_exception_handler(lambda _loop, context: told.append(context["message"]))
    try:
        async with deployment.machine():
            loop.call_exception_handler(
                {"message": "never retrieved", "exception": ConnectorException()}
            )
            loop.call_exception_handler({"message": "a mistake", "exception": LookupError()})
    finally:
        loop.set_exception_handler(before)
    assert told == ["a mistake"]
    assert "the queue left something undone" in caplog.text


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
    given = QueueDoorbell(url)._app.connector._pool_args["kwargs"]
    names = ("host", "port", "dbname", "user", "password", "sslmode")
    assert {name: given[name] for name in names if name in given} == settings
    assert given["connect_timeout"] == 5


async def test_workers_that_wait_for_places_do_not_block_each_other(deployment: Deployment) -> None:
    """More workers than owners: all places are locked most of the time, and each of them moves while others wait for it."""
    deployment.config.settings.max_concurrent_runs_per_user = 100
    requested = [await deployment.request(who) for _ in range(24) for who in (ANN, BOB)]
    async with AsyncExitStack() as stack:
        workers = [deployment.worker(stack, number) for number in range(6)]
        claims = await asyncio.gather(*(worker.acquire() for worker in workers * 8))
    assert {claim.run_id for claim in claims if claim is not None} == {run.id for run in requested}
