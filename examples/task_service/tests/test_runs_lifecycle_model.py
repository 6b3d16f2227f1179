"""Any number of workers, in any order, dying and cut off at any moment: a run ends once and none is left lying.

And owners take turns: an owner who waits and may run more sees each other owner served once at most before it is their turn,
whatever priorities are used, and no run of a disabled owner begins.

The workers here are what the runner is made of (acquiring, renewing, the watch over leases, the fence), driven step by
step with a clock that stands still in between, so that Hypothesis finds the interleaving that breaks a promise.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import TypeVar

import hypothesis
import pytest
from examples.task_service.tests.runs_support import (
    ADMIN,
    ANN,
    BOB,
    LEASE,
    Config,
    FakeClock,
    World,
    add_user,
    database,
    principal,
    read_log,
)
from examples.task_service.tests.service_support import refused_with
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sqlalchemy import update

from task_service.db.schema import users as users_table
from task_service.tasks.models import Run, RunPriority, RunState
from task_service.tasks.next_run import OWNER_DISABLED
from task_service.tasks.run_log import RunLog
from task_service.tasks.runs import cancel_runs_of
from task_service.tasks.worker_runs import (
    MAX_ATTEMPTS,
    AcquiredRun,
    LeaseWatch,
    ObservedLease,
    Outcome,
    WorkerRuns,
)

FENCE = 10.0
LIMIT = 2
EVE = principal("usr_eve")
WORKERS = st.integers(0, 2)
PICK = st.integers(0, 3)

T = TypeVar("T")


@dataclass
class Execution:
    """A handler at work: what a worker believes to hold, until it stops, ends or is killed."""

    run: AcquiredRun
    renewed_at: float
    log: RunLog
    printed: str = ""


@dataclass
class Worker:
    runs: WorkerRuns
    watch: LeaseWatch
    executions: list[Execution] = field(default_factory=list)
    stale: list[Execution] = field(default_factory=list)


class Lifecycle(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        # Ids that are the same each time: Hypothesis must be able to do again what it did.
        self.patch = pytest.MonkeyPatch()
        ids = count()
        self.patch.setattr("task_service.tasks.runs.new_id", lambda _: f"run_{next(ids):016}")
        self.loop = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = FakeClock()
        self.config = Config()
        self.config.settings.max_concurrent_runs_per_user = LIMIT
        self.db = self.do(
            self.stack.enter_async_context(database("sqlite", Path(self.folder.name)))
        )
        self.world = World(self.db, self.clock, self.config)
        self.runs = self.world.runs
        self.do(add_user(self.db, EVE))
        self.tasks = [(owner, self.do(self.world.new_task(owner)).id) for owner in (ANN, BOB, EVE)]
        self.disabled: set[str] = set()
        # How often each other owner was served while an owner waited and might have been.
        self.passed_over: dict[str, Counter[str]] = {}
        self.names = count()
        self.workers = [self.new_worker() for _ in range(3)]
        self.requested: dict[str, Run] = {}
        self.completed: dict[str, RunState] = {}
        self.logged: dict[str, str] = {}
        self.ended: dict[str, Run] = {}

    def do(self, awaitable: Awaitable[T]) -> T:
        async def call() -> T:
            return await awaitable

        return self.loop.run(call())

    def new_worker(self) -> Worker:
        name = f"w{next(self.names)}"
        return Worker(self.world.worker(name), LeaseWatch(self.clock, LEASE))

    def teardown(self) -> None:
        try:
            self.everything_ends()
        finally:
            self.do(self.stack.aclose())
            self.loop.close()
            self.patch.undo()
            self.folder.cleanup()

    def everything_ends(self) -> None:
        """Nothing hangs: once all workers are killed, a new one brings every run to an end."""
        self.workers = [self.new_worker()]
        last = self.workers[0]
        for _ in range((MAX_ATTEMPTS + len(self.requested)) * 20):
            self.look(0)
            while self.try_to_acquire(last):
                self.finish(0, 0, RunState.SUCCEEDED)
            if all(run.state.is_final for run in self.now()):
                break
            self.clock.advance(1)
            for each in last.executions:
                each.renewed_at = self.clock.monotonic()
        self.check()
        assert all(run.state.is_final for run in self.now())

    def now(self) -> list[Run]:
        return [self.do(self.runs.get(ADMIN, run_id)) for run_id in self.requested]

    # What users do

    @rule(
        which=st.integers(0, 2),
        priority=st.sampled_from([RunPriority.LOW, RunPriority.NORMAL, RunPriority.HIGH]),
    )
    def request(self, which: int, priority: RunPriority) -> None:
        owner, task_id = self.tasks[which]
        self.clock.advance(0.001)
        if owner.owner.id in self.disabled:
            with refused_with("owner_disabled"):
                self.do(self.runs.request(owner, task_id, priority=priority))
            return
        run = self.do(self.runs.request(owner, task_id, priority=priority))
        self.requested[run.id] = run
        self.logged[run.id] = ""

    @rule(which=st.integers(0, 2))
    def disable_or_enable(self, which: int) -> None:
        owner_id = self.tasks[which][0].owner.id
        self.disabled ^= {owner_id}
        self.do(self.set_disabled(owner_id, is_disabled=owner_id in self.disabled))

    async def set_disabled(self, owner_id: str, *, is_disabled: bool) -> None:
        now = self.clock.now()
        async with self.db.write() as connection:
            await connection.execute(
                update(users_table)
                .where(users_table.c.id == owner_id)
                .values(disabled_at=now if is_disabled else None)
            )
            if is_disabled:
                await cancel_runs_of(connection, owner_id, now)

    @precondition(lambda self: self.requested)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        run = self.requested[data.draw(st.sampled_from(list(self.requested)))]
        owner = next(each for each, _ in self.tasks if each.owner.id == run.requested_by.user_id)
        if self.do(self.runs.get(owner, run.id)).state in {RunState.QUEUED, RunState.RUNNING}:
            self.do(self.runs.cancel(owner, run.id))

    # What workers do

    @rule(index=WORKERS)
    def acquire(self, index: int) -> None:
        self.try_to_acquire(self.workers[index])

    @rule(index=WORKERS)
    def renew(self, index: int) -> None:
        worker = self.workers[index]
        for each in list(worker.executions):
            if self.do(worker.runs.renew(each.run)):
                each.renewed_at = self.clock.monotonic()
            else:
                self.put_aside(worker, each)

    @rule(index=WORKERS)
    def look(self, index: int) -> None:
        worker = self.workers[index]
        leases = self.do(worker.runs.observed_leases())
        own = {each.run.run_id: each for each in worker.executions}
        others: list[ObservedLease] = []
        for lease in leases:
            each = own.get(lease.run_id)
            if each is None or not lease.is_of(each.run):
                others.append(lease)
            elif lease.cancel_requested:
                self.end(worker, each, Outcome(RunState.CANCELLED))
        self.do(worker.runs.reclaim(worker.watch.expired(others)))

    @rule(index=WORKERS, pick=PICK, text=st.text("ab", min_size=1, max_size=3))
    def write(self, index: int, pick: int, text: str) -> None:
        each = self.pick(self.workers[index].executions, pick)
        if each is not None:
            each.log.write("stdout", text)
            self.save(self.workers[index], each)

    @rule(index=WORKERS, pick=PICK, state=st.sampled_from([RunState.SUCCEEDED, RunState.FAILED]))
    def finish(self, index: int, pick: int, state: RunState) -> None:
        each = self.pick(self.workers[index].executions, pick)
        if each is not None:
            self.end(self.workers[index], each, Outcome(state))

    @rule(index=WORKERS, pick=PICK)
    def give_back(self, index: int, pick: int) -> None:
        worker = self.workers[index]
        each = self.pick(worker.executions, pick)
        if each is not None:
            self.do(worker.runs.release(each.run))
            self.put_aside(worker, each)

    @rule(index=WORKERS)
    def kill(self, index: int) -> None:
        killed = self.workers[index]
        self.workers[index] = self.new_worker()
        # What it had sent may still arrive at the database after its death.
        self.workers[index].stale = killed.executions

    @rule(index=WORKERS, pick=PICK)
    def come_too_late(self, index: int, pick: int) -> None:
        """A worker that stopped, or was killed, writes once more."""
        each = self.pick(self.workers[index].stale, pick)
        if each is None:
            return
        late = self.world.worker(each.run.worker_id)
        if self.do(late.finish(each.run, Outcome(RunState.SUCCEEDED))):
            self.complete(each.run, RunState.SUCCEEDED)

    @rule(seconds=st.sampled_from([0.5, 1, 2, 5, 5, 5, 7, 20, 3600]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for worker in self.workers:
            for each in list(worker.executions):
                if self.clock.monotonic() - each.renewed_at > FENCE:
                    self.put_aside(worker, each)

    @rule(index=WORKERS, seconds=st.sampled_from([5, 17, 17]))
    def work_on(self, index: int, seconds: int) -> None:
        """The usual course of things, in which only one of the workers can reach the database."""
        for _ in range(seconds):
            self.wait(1)
            self.renew(index)
            self.look(index)
            self.try_to_acquire(self.workers[index])
            self.check_executions()

    @rule(hours=st.sampled_from([-24, -1, 1, 24]))
    def set_the_clock(self, hours: int) -> None:
        self.clock.wall += timedelta(hours=hours)

    # How the steps are done

    def try_to_acquire(self, worker: Worker) -> bool:
        began = self.clock.monotonic()
        waiting = self.who_may_be_next()
        acquired = self.do(worker.runs.acquire(1))
        assert bool(acquired) == bool(waiting), "a run waits, and a worker with room finds none"
        if not acquired:
            return False
        (acquired,) = acquired
        self.check_turn(self.requested[acquired.run_id].requested_by.user_id, waiting)
        log = RunLog(self.clock, saved=acquired.log)
        worker.executions.append(Execution(acquired, began, log))
        return True

    def who_may_be_next(self) -> set[str]:
        """The owners who have a queued run and may run more."""
        states = Counter((run.requested_by.user_id, run.state) for run in self.now())
        return {
            owner_id
            for (owner_id, state) in states
            if state is RunState.QUEUED and states[owner_id, RunState.RUNNING] < LIMIT
        }

    def check_turn(self, served: str, waiting: set[str]) -> None:
        assert served not in self.disabled
        for owner_id in list(self.passed_over):
            if owner_id not in waiting:
                del self.passed_over[owner_id]
        for owner_id in waiting - {served}:
            passed_over = self.passed_over.setdefault(owner_id, Counter())
            passed_over[served] += 1
            assert passed_over[served] <= 1, "an owner was served twice while another waited"
        self.passed_over.pop(served, None)

    def pick(self, executions: list[Execution], index: int) -> Execution | None:
        return executions[index % len(executions)] if executions else None

    def put_aside(self, worker: Worker, each: Execution) -> None:
        worker.executions.remove(each)
        worker.stale.append(each)

    def save(self, worker: Worker, each: Execution) -> None:
        batch = each.log.take()
        assert batch is not None
        if self.do(worker.runs.append_log(each.run, batch)):
            self.logged[each.run.run_id] += "".join(line.text for line in batch.lines)
        else:
            self.put_aside(worker, each)

    def end(self, worker: Worker, each: Execution, outcome: Outcome) -> None:
        if self.do(worker.runs.finish(each.run, outcome)):
            self.complete(each.run, outcome.state)
        self.put_aside(worker, each)

    def complete(self, acquired: AcquiredRun, state: RunState) -> None:
        run_id = acquired.run_id
        assert run_id not in self.completed, "a run was completed twice"
        executing = [each for each in self.executing() if each.run_id == run_id]
        assert executing in ([], [acquired]), "a run was completed over the head of its worker"
        self.completed[run_id] = state

    # What is promised

    def executing(self) -> list[AcquiredRun]:
        return [each.run for worker in self.workers for each in worker.executions]

    def check_executions(self) -> None:
        ids = [acquired.run_id for acquired in self.executing()]
        assert len(ids) == len(set(ids)), "a run is executed twice at once"

    @invariant()
    def check(self) -> None:
        self.check_executions()
        running: dict[str, int] = {}
        for run in self.now():
            if run.requested_by.user_id in self.disabled:
                assert run.state is not RunState.QUEUED
                if run.state is RunState.CANCELLED:
                    assert run.error in {None, OWNER_DISABLED}
            assert run.attempt <= MAX_ATTEMPTS
            assert (run.finished_at is not None) == run.state.is_final
            assert (run.started_at is None) == (run.state is RunState.QUEUED) or run.state.is_final
            if run.state is RunState.RUNNING:
                running[run.requested_by.user_id] = running.get(run.requested_by.user_id, 0) + 1
            if run.id in self.completed:
                assert run.state is self.completed[run.id]
            if run.id in self.ended:
                assert run == self.ended[run.id], "what is over has changed"
            if run.state.is_final:
                self.ended[run.id] = run
            lines = self.do(read_log(self.db, run.id))
            assert "".join(line.text for line in lines) == self.logged[run.id]
        assert all(number <= LIMIT for number in running.values()), "more at once than allowed"


Lifecycle.TestCase.settings = hypothesis.settings(
    hypothesis.settings.default,
    # Each step is a transaction.
    max_examples=hypothesis.settings.default.max_examples // 4,
    stateful_step_count=30,
)
TestLifecycle = Lifecycle.TestCase
