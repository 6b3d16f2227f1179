"""The runner: executing, stopping, reclaiming, and outages of the database.

It polls in real time. Where a lease may run out, the clock that measures it stands until the test advances it.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from examples.task_service.tests import runs_support
from examples.task_service.tests.runs_support import (
    ANN,
    OBSERVER,
    WORK,
    FakeClock,
    database,
    failing,
    read_log,
)
from examples.task_service.tests.waiting import eventually
from sqlalchemy import event, select, update

from msk_auth import Clock, SystemClock
from msk_auth.errors import StoreUnavailable
from task_service.db.engine import Database
from task_service.db.schema import runs as runs_table
from task_service.handlers import HandlerResult, RunContext
from task_service.request_record import RequestRecord, current_request
from task_service.tasks.execution import Execution
from task_service.tasks.models import Run, RunState, TaskChanges
from task_service.tasks.notifications import Notifications
from task_service.tasks.runner import Runner
from task_service.tasks.worker_runs import LEASE, AcquiredRun, WorkerRuns

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

LIMIT = 60.0
"""Seconds that a condition may take on a slow machine. The polls that a test is not to wait for are longer."""
SHORT_LEASE = timedelta(seconds=2)
"""For quick renewals: how often they happen is real time. No lease ends by it while the clock stands."""


class World(runs_support.World):
    """And runners, which work by the machine's clock."""

    def __init__(self, db: Database, clock: Clock | None = None) -> None:
        super().__init__(db, SystemClock() if clock is None else clock)

    def runner(
        self,
        *,
        notifications: Notifications | None = None,
        lease: timedelta = LEASE,
        **options: Any,
    ) -> Runner:
        """A runner; with notifications of its own it stands for another process."""
        notifications = self.notifications if notifications is None else notifications
        return Runner(
            WorkerRuns(self.db, self.clock, self.config, notifications, lease=lease),
            self.parameters,
            **{"observer": OBSERVER, "poll": timedelta(seconds=0.05)} | options,
        )

    @asynccontextmanager
    async def running(
        self, *, stop: asyncio.Event | None = None, **options: Any
    ) -> AsyncIterator[Runner]:
        runner, stop = self.runner(**options), stop or asyncio.Event()
        task = asyncio.create_task(runner.run(stop, timedelta(0)))
        try:
            yield runner
        finally:
            stop.set()
            await asyncio.wait_for(task, LIMIT)

    async def request(
        self,
        work: Callable[[RunContext], Awaitable[HandlerResult]] | None = None,
        *,
        timeout_seconds: int | None = None,
        **params: str,
    ) -> Run:
        if work is not None:
            WORK["x"] = work
        task = await self.new_task(params={"do": "x", **params}, timeout_seconds=timeout_seconds)
        return await self.runs.request(ANN, task.id)

    async def until(self, run: Run, *states: str) -> Run:
        async def arrived() -> bool:
            now = await self.runs.get(ANN, run.id)
            return now.state in states or (not states and now.state.is_final)

        await eventually(arrived)
        return await self.runs.get(ANN, run.id)

    async def text(self, run: Run, *streams: str) -> str:
        lines = await read_log(self.db, run.id)
        return "".join(line.text for line in lines if not streams or line.stream in streams)


class StandingWorld(World):
    """A world whose clock stands until it is advanced: no lease runs out while the machine is busy."""

    def __init__(self, db: Database) -> None:
        self.time = FakeClock()
        super().__init__(db, self.time)

    async def a_third_of_a_lease_passes(self, watching: Runner) -> None:
        """After which this runner has looked at the leases of the others."""
        self.time.advance(LEASE.total_seconds() / 3)
        await eventually(lambda: watching._watch._looked_at == self.time.monotonic())

    async def a_lease_passes(self, watching: Runner) -> None:
        """One third more than a lease: a runner measures it from its first look on."""
        for _ in range(4):
            await self.a_third_of_a_lease_passes(watching)


@pytest.fixture(params=["sqlite", "postgresql"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with database(request.param, tmp_path) as db:
        yield World(db)


@pytest.fixture
async def sqlite(tmp_path: Path) -> AsyncIterator[World]:
    async with database("sqlite", tmp_path) as db:
        yield World(db)


@pytest.fixture
async def standing(tmp_path: Path) -> AsyncIterator[StandingWorld]:
    async with database("sqlite", tmp_path) as db:
        yield StandingWorld(db)


def doing(result: HandlerResult) -> Callable[[RunContext], Awaitable[HandlerResult]]:
    async def work(context: RunContext) -> HandlerResult:
        return result

    return work


class Blocker:
    """Work that waits until it is released, and knows whether it was started and stopped."""

    def __init__(self, *, stubborn: bool = False) -> None:
        self.started = asyncio.Event()
        self.release = asyncio.Event()
        self.stopped = asyncio.Event()
        self.attempts: list[int] = []
        self.stubborn = stubborn

    async def __call__(self, context: RunContext) -> HandlerResult:
        self.attempts.append(context.attempt)
        context.log("stdout", f"attempt {context.attempt}\n")
        self.started.set()
        while True:
            try:
                await self.release.wait()
                return HandlerResult(0)
            except asyncio.CancelledError:
                self.stopped.set()
                if not self.stubborn:
                    raise


async def within(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), LIMIT)


# Executing


async def test_a_run_knows_the_request_that_started_it(world: World) -> None:
    """In whichever process it is executed, and no other run does."""
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    seen: list[tuple[RequestRecord | None, str | None]] = []

    async def work(context: RunContext) -> HandlerResult:
        seen.append((current_request.get(), context.traceparent))
        return HandlerResult()

    async with world.running(notifications=Notifications()):
        token = current_request.set(RequestRecord("req_1", "192.0.2.1", traceparent=traceparent))
        run = await world.request(work)
        current_request.reset(token)
        await world.until(run)
        await world.until(await world.request(work))

    assert seen == [
        (RequestRecord("req_1", None, traceparent=traceparent), traceparent),
        (None, None),
    ]
    # They are for operators, not for those who may see the run.
    assert "req_1" not in run.model_dump_json()


async def test_what_a_process_has_executed_is_observed(world: World) -> None:
    class Observer:
        def __init__(self) -> None:
            self.started_runs = 0
            self.ended_runs: list[str] = []

        def started(self, waited: timedelta) -> None:
            assert waited >= timedelta(0)
            self.started_runs += 1

        def ended(self, state: str, seconds: float) -> None:
            assert seconds >= 0
            self.ended_runs.append(state)

    async def fail(_: RunContext) -> HandlerResult:
        return HandlerResult(error="no")

    async def succeed(_: RunContext) -> HandlerResult:
        return HandlerResult()

    observer = Observer()
    async with world.running(observer=observer):
        for work in (fail, succeed):
            await world.until(await world.request(work))
    assert observer.started_runs == 2
    assert observer.ended_runs == ["failed", "succeeded"]


async def test_a_local_event_wakes_the_runner_at_once(sqlite: World) -> None:
    async with sqlite.running(poll=timedelta(seconds=60)):
        await asyncio.sleep(0.1)
        for _ in range(2):
            run = await sqlite.until(await sqlite.request(doing(HandlerResult(0))))
            assert run.state is RunState.SUCCEEDED


async def test_a_run_queued_by_another_process_is_found_by_polling(sqlite: World) -> None:
    async with sqlite.running(notifications=Notifications()):
        run = await sqlite.until(await sqlite.request(doing(HandlerResult(0))))
    assert run.state is RunState.SUCCEEDED


async def test_no_more_runs_than_its_concurrency_are_executed_at_once(world: World) -> None:
    blocker = Blocker()
    runs = [await world.request(blocker) for _ in range(3)]
    async with world.running(concurrency=2) as runner:
        await world.until(runs[0], "running")
        await world.until(runs[1], "running")
        await asyncio.sleep(0.2)
        assert len(runner._executions) == 2
        assert (await world.runs.get(ANN, runs[2].id)).state is RunState.QUEUED
        blocker.release.set()
        for run in runs:
            assert (await world.until(run)).state is RunState.SUCCEEDED
    assert len(runner._executions) == 0


async def test_an_error_fails_the_run_in_one_line(sqlite: World) -> None:
    async with sqlite.running():
        work = doing(HandlerResult(3, "It\nbroke\x00 \x1b[31mbadly" + "!" * 1000))
        run = await sqlite.until(await sqlite.request(work))
    assert (run.state, run.exit_code) == (RunState.FAILED, 3)
    assert run.error is not None
    assert run.error.startswith("It broke [31mbadly!")
    assert len(run.error) == 500


async def test_an_exception_of_a_handler_is_only_in_the_services_log(
    sqlite: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(context: RunContext) -> HandlerResult:
        raise RuntimeError("inner secret")

    async with sqlite.running():
        run = await sqlite.until(await sqlite.request(work))
    assert run.state is RunState.FAILED
    assert run.error == "The handler failed. The reason is in the service's log."
    assert "inner secret" not in await sqlite.text(run)
    assert "inner secret" in caplog.text


async def test_a_handler_that_returns_no_result_has_failed_at_once(
    sqlite: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(context: RunContext) -> Any:
        return None

    async with sqlite.running():
        run = await sqlite.until(await sqlite.request(work))
    assert (run.state, run.attempt) == (RunState.FAILED, 1)
    assert run.error == "The handler failed. The reason is in the service's log."
    assert "'NoneType' object has no attribute 'error'" in caplog.text


async def test_a_handler_that_cancels_itself_has_failed(sqlite: World) -> None:
    async def work(context: RunContext) -> HandlerResult:
        raise asyncio.CancelledError

    async with sqlite.running():
        run = await sqlite.until(await sqlite.request(work))
        assert (run.state, run.error) == (RunState.FAILED, "The handler cancelled itself.")
        # And the runner goes on.
        assert (await sqlite.until(await sqlite.request(doing(HandlerResult(0))))).exit_code == 0


async def test_a_run_of_an_uninstalled_handler_fails(sqlite: World) -> None:
    run = await sqlite.request(doing(HandlerResult(0)))
    async with sqlite.db.write() as connection:
        await connection.execute(update(runs_table).values(handler="gone"))
    async with sqlite.running():
        run = await sqlite.until(run)
    assert run.error is not None
    assert "Unknown handler" in run.error


async def test_a_run_that_takes_too_long_is_stopped(world: World) -> None:
    blocker = Blocker()
    async with world.running():
        run = await world.until(await world.request(blocker, timeout_seconds=1))
    assert run.state is RunState.TIMED_OUT
    assert run.error == "The run took longer than 1 seconds."
    assert blocker.stopped.is_set()
    assert await world.text(run) == "attempt 1\n"


async def test_a_cancelled_run_is_stopped(world: World) -> None:
    blocker = Blocker()
    async with world.running(notifications=Notifications()):
        run = await world.request(blocker)
        await within(blocker.started)
        assert (await world.runs.cancel(ANN, run.id)).state is RunState.RUNNING
        run = await world.until(run)
    assert (run.state, run.error) == (RunState.CANCELLED, None)
    assert blocker.stopped.is_set()


async def test_the_runner_does_not_wait_for_a_handler_that_does_not_stop(
    sqlite: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in ("execution", "runner"):
        monkeypatch.setattr(f"task_service.tasks.{module}.STOP_SECONDS", 0.05)
    blocker = Blocker(stubborn=True)
    async with sqlite.running():
        run = await sqlite.until(await sqlite.request(blocker, timeout_seconds=1))
        assert run.state is RunState.TIMED_OUT
        assert "does not stop" in caplog.text
        blocker.release.set()


async def test_an_exception_while_stopping_is_logged(
    sqlite: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(context: RunContext) -> HandlerResult:
        try:
            await asyncio.sleep(60)
        finally:
            raise RuntimeError("broken clean-up")

    async with sqlite.running():
        run = await sqlite.until(await sqlite.request(work, timeout_seconds=1))
    assert run.state is RunState.TIMED_OUT
    assert "broken clean-up" in caplog.text


# The log


async def test_much_output_is_written_in_few_batches(
    sqlite: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(context: RunContext) -> HandlerResult:
        for index in range(300):
            context.log("stdout", f"{index}\n")
            await asyncio.sleep(0.001)
        return HandlerResult(0)

    async with sqlite.running():
        run = await sqlite.until(await sqlite.request(work))
    lines = await read_log(sqlite.db, run.id)
    assert run.started_at is not None
    assert run.finished_at is not None
    assert len(lines) <= (run.finished_at - run.started_at).total_seconds() * 10 + 1
    assert "".join(line.text for line in lines) == "".join(f"{index}\n" for index in range(300))


# Stopping


async def test_a_stopping_runner_waits_for_its_runs(sqlite: World) -> None:
    blocker = Blocker()
    # The first run takes the only place, so the runner acquires nothing at the moment of `stop`.
    runner, stop = sqlite.runner(concurrency=1), asyncio.Event()
    task = asyncio.create_task(runner.run(stop, timedelta(seconds=60)))
    run = await sqlite.request(blocker)
    await within(blocker.started)
    stop.set()
    later = await sqlite.request()
    await asyncio.sleep(0.2)
    assert not task.done()
    blocker.release.set()
    await asyncio.wait_for(task, LIMIT)
    assert (await sqlite.runs.get(ANN, run.id)).state is RunState.SUCCEEDED
    assert (await sqlite.runs.get(ANN, later.id)).state is RunState.QUEUED


async def test_a_run_that_does_not_end_within_the_grace_is_queued_again(world: World) -> None:
    blocker = Blocker()
    runner, stop = world.runner(), asyncio.Event()
    task = asyncio.create_task(runner.run(stop, timedelta(seconds=0.1)))
    run = await world.request(blocker)
    await within(blocker.started)
    stop.set()
    await asyncio.wait_for(task, LIMIT)
    assert blocker.stopped.is_set()
    waiting = await world.runs.get(ANN, run.id)
    assert (waiting.state, waiting.attempt) == (RunState.QUEUED, 0)
    blocker.release.set()
    async with world.running():
        assert (await world.until(run)).attempt == 1
    assert blocker.attempts == [1, 1]


async def test_a_runner_can_be_stopped_while_the_database_is_away(
    standing: StandingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("execution", "runner"):
        monkeypatch.setattr(f"task_service.tasks.{module}.STOP_SECONDS", 0.2)
    blocker = Blocker()
    runner, stop = standing.runner(), asyncio.Event()
    task = asyncio.create_task(runner.run(stop, timedelta(0)))
    run = await standing.request(blocker)
    await within(blocker.started)
    with failing(standing.db):
        stop.set()
        await asyncio.wait_for(task, LIMIT)
    assert blocker.stopped.is_set()
    async with standing.running() as other:
        blocker.release.set()
        await standing.a_lease_passes(other)
        assert (await standing.until(run)).attempt == 2


# Dying and reclaiming


async def kill_worker(runner: Runner, task: asyncio.Task[None]) -> None:
    """As after `kill -9`: nothing more is written."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_run_of_a_killed_worker_is_reclaimed(world: World) -> None:
    standing = StandingWorld(world.db)
    blocker = Blocker()
    runner = standing.runner(notifications=Notifications())
    task = asyncio.create_task(runner.run(asyncio.Event(), timedelta(0)))
    run = await standing.request(blocker)
    await within(blocker.started)
    async with standing.running() as other:
        for _ in range(6):
            await runner._renew()
            await standing.a_third_of_a_lease_passes(other)
        # A living worker keeps its run, however long it takes.
        assert blocker.attempts == [1]
        blocker.started.clear()
        await kill_worker(runner, task)
        await standing.a_lease_passes(other)
        await within(blocker.started)
        blocker.release.set()
        ended = await standing.until(run)
    assert (ended.state, ended.attempt) == (RunState.SUCCEEDED, 2)
    assert blocker.attempts == [1, 2]
    assert "Attempt 2: the worker of the previous attempt stopped" in await standing.text(
        run, "system"
    )
    assert (await standing.text(run, "stdout")).endswith("attempt 2\n")


async def test_a_worker_that_lost_its_run_stops_it(standing: StandingWorld) -> None:
    blocker = Blocker()
    async with standing.running(lease=SHORT_LEASE) as runner:
        run = await standing.request(blocker)
        await within(blocker.started)
        async with standing.db.write() as connection:
            await connection.execute(update(runs_table).values(claimed_by="another", attempt=2))
        await within(blocker.stopped)
        await eventually(lambda: len(runner._executions) == 0)
        now = await standing.runs.get(ANN, run.id)
        assert (now.state, now.attempt) == (RunState.RUNNING, 2)


async def test_a_worker_executes_a_run_again_that_it_has_lost_and_not_stopped(
    standing: StandingWorld,
) -> None:
    first, second = Blocker(stubborn=True), Blocker()
    attempts = iter((first, second))

    async def work(context: RunContext) -> HandlerResult:
        return await next(attempts)(context)

    async with standing.running(lease=SHORT_LEASE) as runner:
        run = await standing.request(work)
        await within(first.started)
        other = standing.worker("another", lease=SHORT_LEASE)
        assert await other.reclaim(await other.observed_leases()) == 1
        await within(second.started)
        await within(first.stopped)
        first.release.set()
        await eventually(lambda: len(runner._executions) == 1)
        assert not second.stopped.is_set()
        second.release.set()
        ended = await standing.until(run)
    assert (ended.state, ended.attempt) == (RunState.SUCCEEDED, 2)


async def test_a_worker_that_is_cut_off_stops_before_another_may_begin(
    standing: StandingWorld,
) -> None:
    blocker = Blocker()
    async with standing.running() as runner:
        run = await standing.request(blocker)
        await within(blocker.started)
        with failing(standing.db):
            standing.time.advance(LEASE.total_seconds() * 2 / 3 - 0.001)
            await runner._fence()
            assert not any(each._stop_reason.done() for each in runner._executions)
            # A third of the lease is left. The fence finds it on its own.
            standing.time.advance(0.001)
            await within(blocker.stopped)
            await eventually(lambda: len(runner._executions) == 0)
        blocker.release.set()
        await standing.a_lease_passes(runner)
        assert (await standing.until(run)).attempt == 2


async def test_a_handler_that_is_cut_off_has_a_quarter_of_the_lease_to_stop(
    standing: StandingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: dict[str, float] = {}

    async def note(self: Runner, pause: float, do: Callable[[], Awaitable[None]]) -> None:
        pauses[do.__name__] = pause

    monkeypatch.setattr(Runner, "_run_every", note)
    async with standing.running() as runner:
        await eventually(lambda: "_fence" in pauses)
    lease = LEASE.total_seconds()
    assert runner._hold + pauses["_fence"] <= lease * 3 / 4
    # One renewal may fail.
    assert pauses["_renew"] * 2 <= runner._hold


# A database that comes and goes


async def test_a_handler_that_raises_lease_lost_writes_no_outcome(standing: StandingWorld) -> None:
    """What a worker does when it goes on after a SIGSTOP, here without waiting for one."""
    attempts: list[int] = []

    async def work(context: RunContext) -> HandlerResult:
        attempts.append(context.attempt)
        context.check_lease()
        if context.attempt == 1:
            context.lease.until = 0
            context.check_lease()
        return HandlerResult(0)

    async with standing.running() as runner:
        run = await standing.request(work)
        await eventually(lambda: attempts == [1] and len(runner._executions) == 0)
        await standing.a_lease_passes(runner)
        run = await standing.until(run)
    assert (run.state, run.attempt, attempts) == (RunState.SUCCEEDED, 2, [1, 2])


async def test_an_outcome_is_not_lost(
    standing: StandingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0
    settle = Execution._settle

    async def count(self: Execution, *args: Any) -> bool:
        nonlocal tries
        tries += 1
        return await settle(self, *args)

    monkeypatch.setattr(Execution, "_settle", count)
    blocker = Blocker()
    async with standing.running() as runner:
        run = await standing.request(blocker)
        # The outcome is written after the log.
        await eventually(lambda: standing.text(run))
        with failing(standing.db):
            blocker.release.set()
            await eventually(lambda: tries > 0)
            # Longer than the lease: an end that was reached is not given up.
            standing.time.advance(1.2 * LEASE.total_seconds())
            await runner._fence()
            before = tries
            await eventually(lambda: tries > before)
        ended = await standing.until(run)
    assert (ended.state, ended.attempt) == (RunState.SUCCEEDED, 1)
    assert blocker.attempts == [1]


async def test_a_driver_that_swallows_cancellation_does_not_keep_the_runner_from_stopping(
    sqlite: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, swallowed = asyncio.Event(), asyncio.Event()

    async def lose_the_connection() -> None:
        waiting.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            swallowed.set()

    runner, stop = sqlite.runner(), asyncio.Event()
    monkeypatch.setattr(runner, "_fence", lose_the_connection)
    running = asyncio.create_task(runner.run(stop, timedelta(0)))
    await within(waiting)
    stop.set()
    await asyncio.wait_for(running, LIMIT)
    assert swallowed.is_set()


async def test_output_of_an_outage_is_written_afterwards(sqlite: World) -> None:
    more, end = asyncio.Event(), asyncio.Event()
    begin = "BEGIN IMMEDIATE"

    async def work(context: RunContext) -> HandlerResult:
        context.log("stdout", "before ")
        await more.wait()
        context.log("stdout", "during ")
        await end.wait()
        context.log("stdout", "after")
        return HandlerResult(0)

    async with sqlite.running():
        run = await sqlite.request(work)
        await eventually(lambda: sqlite.text(run))
        with failing(sqlite.db) as refused:
            more.set()
            # Only the log writes in a transaction meanwhile.
            await eventually(lambda: refused.count(begin) > 0)
            # The end comes while a batch is under way and there is more behind it.
            end.set()
            tried = refused.count(begin)
            await eventually(lambda: refused.count(begin) > tried)
        await sqlite.until(run)
    assert await sqlite.text(run) == "before during after"


async def test_a_batch_whose_commit_was_not_confirmed_is_written_once(
    sqlite: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database committed, and the connection broke before the answer: for each kind of write."""
    real_append = sqlite.runner().worker_runs.append_log.__func__  # type: ignore[attr-defined]
    real_finish = sqlite.runner().worker_runs.finish.__func__  # type: ignore[attr-defined]
    lost: set[str] = set()

    def losing(real: Any) -> Any:
        async def call(self: Any, *args: Any) -> bool:
            result: bool = await real(self, *args)
            if real.__name__ not in lost:
                lost.add(real.__name__)
                raise StoreUnavailable
            return result

        return call

    monkeypatch.setattr("task_service.tasks.worker_runs.WorkerRuns.append_log", losing(real_append))
    monkeypatch.setattr("task_service.tasks.worker_runs.WorkerRuns.finish", losing(real_finish))

    async def work(context: RunContext) -> HandlerResult:
        for index in range(5):
            context.log("stdout", f"{index} ")
            await asyncio.sleep(0.1)
        return HandlerResult(0)

    async with sqlite.running() as runner:
        run = await sqlite.until(await sqlite.request(work))
        # What it takes for unwritten it writes again until then.
        await eventually(lambda: len(runner._executions) == 0)
    assert lost == {"append_log", "finish"}
    assert await sqlite.text(run) == "0 1 2 3 4 "
    assert (run.state, run.attempt) == (RunState.SUCCEEDED, 1)


async def test_a_runner_survives_an_outage_without_hurry(
    sqlite: World, caplog: pytest.LogCaptureFixture
) -> None:
    statements = 0

    def count(*_: object) -> None:
        nonlocal statements
        statements += 1

    caplog.set_level(logging.CRITICAL, "task_service.db.engine")
    loop = asyncio.get_running_loop()
    async with sqlite.running():
        event.listen(sqlite.db.engine.sync_engine, "before_cursor_execute", count)
        with failing(sqlite.db):
            began = loop.time()
            for _ in range(100):
                sqlite.notifications.runner_wake.set()
                await asyncio.sleep(0.01)
            lasted = loop.time() - began
        # Each loop goes on with a few statements a second, and none of them with each notification.
        assert statements < 20 + 5 * lasted
        run = await sqlite.until(await sqlite.request(doing(HandlerResult(0))))
    assert run.state is RunState.SUCCEEDED


async def test_a_run_is_released_when_the_settings_cannot_be_read(sqlite: World) -> None:
    task = await sqlite.new_task(handler="command", params={"argv": ["echo"]})
    reads = 0
    real = sqlite.config.current

    async def current() -> Any:
        nonlocal reads
        reads += 1
        if reads == 3:  # the request reads first, then the acquiring, then the check before the run
            raise StoreUnavailable
        return await real()

    sqlite.config.current = current  # type: ignore[method-assign]
    run = await sqlite.runs.request(ANN, task.id)
    async with sqlite.running():
        ended = await sqlite.until(run)
    assert (ended.state, ended.attempt) == (RunState.SUCCEEDED, 1)
    assert reads > 4


async def test_an_exception_in_the_runner_does_not_end_it(
    sqlite: World, caplog: pytest.LogCaptureFixture
) -> None:
    sqlite.config.error = KeyError("a mistake")
    async with sqlite.running():
        await eventually(lambda: "a mistake" in caplog.text)
        sqlite.config.error = None
        ended = await sqlite.until(await sqlite.request(doing(HandlerResult(0))))
    assert ended.state is RunState.SUCCEEDED


async def test_a_run_that_cannot_be_finished_is_reclaimed(
    standing: StandingWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = standing.runner().worker_runs.finish.__func__  # type: ignore[attr-defined]
    calls = 0

    async def finish(self: Any, *args: Any) -> bool:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise KeyError("a mistake")
        return bool(await real(self, *args))

    monkeypatch.setattr("task_service.tasks.worker_runs.WorkerRuns.finish", finish)
    async with standing.running() as runner:
        run = await standing.request(doing(HandlerResult(0)))
        await eventually(lambda: calls == 1 and len(runner._executions) == 0)
        await standing.a_lease_passes(runner)
        ended = await standing.until(run)
    assert (ended.state, ended.attempt) == (RunState.SUCCEEDED, 2)
    assert "cannot finish the run" in caplog.text


async def test_a_change_of_a_task_does_not_touch_its_queued_run(sqlite: World) -> None:
    WORK["y"] = doing(HandlerResult(9, "the new one"))
    run = await sqlite.request(doing(HandlerResult(0)))
    await sqlite.tasks.patch(ANN, run.task_id, TaskChanges(params={"do": "y"}))
    async with sqlite.running():
        assert (await sqlite.until(run)).state is RunState.SUCCEEDED


@pytest.mark.parametrize("is_stopping", [False, True])
async def test_a_run_acquired_for_a_cancelled_notification_is_executed(
    sqlite: World, monkeypatch: pytest.MonkeyPatch, is_stopping: bool
) -> None:
    """A queue that loses its connection, or stops, cancels its calls; a run may be acquired by then."""
    has_looked, committed, proceed = asyncio.Event(), asyncio.Event(), asyncio.Event()
    acquire = WorkerRuns.acquire

    async def slowly(self: WorkerRuns, room: int) -> list[AcquiredRun]:
        acquired = await acquire(self, room)
        if acquired:
            committed.set()
            await proceed.wait()
        has_looked.set()
        return acquired

    monkeypatch.setattr(WorkerRuns, "acquire", slowly)
    # Only the notification finds the run: the runner does not poll meanwhile.
    stop = asyncio.Event()
    async with sqlite.running(stop=stop, poll=timedelta(hours=1)) as runner:
        await within(has_looked)
        blocker = Blocker()
        run = await World(sqlite.db).request(blocker)
        answering = asyncio.create_task(runner.handle_notification())
        await within(committed)
        answering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answering
        if is_stopping:
            stop.set()
        else:
            blocker.release.set()
        proceed.set()
        now = await sqlite.until(run, "queued" if is_stopping else "succeeded")
    assert now.attempt == (0 if is_stopping else 1)


async def test_no_secret_is_in_what_a_run_reports(sqlite: World) -> None:
    went_on = asyncio.Event()

    async def work(context: RunContext) -> HandlerResult:
        context.log("stdout", "to")
        context.log("stderr", "another line\n")
        context.log("stdout", "ken-geheim and token-of-another. ")
        context.report_progress(0.5, "with token-geheim")
        await went_on.wait()
        context.log("stdout", "token-geh")
        return HandlerResult(1, "refused: token-geheim")

    async with sqlite.running():
        run = await sqlite.request(work, token="Bearer token-geheim")

        async def has_reported() -> bool:
            async with sqlite.db.read() as connection:
                text = await connection.scalar(select(runs_table.c.progress_text))
            return text == "with ***"

        await eventually(has_reported)
        went_on.set()
        run = await sqlite.until(run)
    assert run.error == "refused: ***"
    # What could have been the beginning of a secret is written at the end.
    assert await sqlite.text(run, "stdout") == "*** and token-of-another. token-geh"
    assert await sqlite.text(run, "stderr") == "another line\n"


async def test_no_secret_is_in_the_traceback_of_a_handler(
    sqlite: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(_context: RunContext) -> HandlerResult:
        try:
            int("token-geheim")
        except ValueError as error:
            raise RuntimeError("cannot use token-geheim") from error

    async with sqlite.running():
        run = await sqlite.until(await sqlite.request(work, token="token-geheim"), "failed")
    assert run.error == "The handler failed. The reason is in the service's log."
    (record,) = [each for each in caplog.records if "failed the run" in each.message]
    assert record.exc_info
    logged = "".join(traceback.format_exception(record.exc_info[1]))
    assert "with base 10: '***'" in logged
    assert "RuntimeError: cannot use ***" in logged
    assert "token-geheim" not in logged
    assert "token-geheim" not in caplog.text
