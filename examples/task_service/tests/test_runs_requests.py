"""Requests for runs that arrive together are written together, and each is judged as if it came alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from examples.task_service.tests.runs_support import (
    ANN,
    BOB,
    Config,
    FakeClock,
    database,
    registry,
)
from sqlalchemy import event, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from msk_auth.errors import OwnerDisabled, PermissionDenied, StoreUnavailable
from task_service.accounts.audit import Audit
from task_service.db.engine import Database
from task_service.db.schema import audit, runs, users
from task_service.errors import IdempotencyConflict, RunQueueFull, TaskNotFound
from task_service.request_record import RequestRecord, current_request
from task_service.tasks.interfaces import Change, OnChange
from task_service.tasks.models import AcceptedWork, NewTask, Run, RunPriority, Task
from task_service.tasks.notifications import LocalEvents
from task_service.tasks.run_requests import MAX_QUEUED_PER_USER
from task_service.tasks.runs import Runs
from task_service.tasks.tasks import Tasks

pytestmark = pytest.mark.anyio


@dataclass
class World:
    db: Database
    clock: FakeClock
    tasks: Tasks
    task: Task
    theirs: Task
    commits: list[object]

    def runs(self, on_change: OnChange | None = None) -> Runs:
        on_change = Audit(self.db, self.clock).record_changes if on_change is None else on_change
        return Runs(self.db, self.clock, Config(), LocalEvents(), on_change=on_change)

    async def rows(self) -> Sequence[Any]:
        async with self.db.read() as connection:
            return (await connection.execute(select(runs).order_by(runs.c.number))).all()


@pytest.fixture(params=["sqlite", "postgresql"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with database(request.param, tmp_path) as db:
        clock = FakeClock()
        tasks = Tasks(db, clock, registry(Config()), LocalEvents())
        task, theirs = [
            await tasks.create(owner, NewTask(name="Task", handler="anything", params={}))
            for owner in (ANN, BOB)
        ]
        commits: list[object] = []
        event.listen(db.engine.sync_engine, "commit", commits.append)
        yield World(db, clock, tasks, task, theirs, commits)


async def test_requests_of_one_group_are_judged_each_for_itself(world: World) -> None:
    other = await world.tasks.create(ANN, NewTask(name="Other", handler="anything", params={}))
    runner = replace(ANN, permissions=frozenset({"tasks:run"}))
    work = AcceptedWork("anything", {"do": "something else"})
    it = world.runs()
    world.commits.clear()
    first, of_another, denied, again, conflict, of_other, last = await asyncio.gather(
        it.request(ANN, world.task.id, idempotency_key="key"),
        it.request(ANN, world.theirs.id),
        it.request(runner, world.task.id, work=work),
        it.request(ANN, world.task.id, idempotency_key="key"),
        it.request(ANN, other.id, idempotency_key="key"),
        it.request(ANN, other.id, priority=RunPriority.HIGH),
        it.request(ANN, world.task.id, work=work),
        return_exceptions=True,
    )
    assert len(world.commits) == 1
    assert [type(each) for each in (of_another, denied, conflict)] == [
        TaskNotFound,
        PermissionDenied,
        IdempotencyConflict,
    ]
    assert again == first
    accepted = [each for each in (first, of_other, last) if isinstance(each, Run)]
    assert [each.number for each in accepted] == [1, 1, 2]
    assert {row.id: (row.task_id, row.rank, row.params) for row in await world.rows()} == {
        accepted[0].id: (world.task.id, 0, {}),
        accepted[1].id: (other.id, -10, {}),
        accepted[2].id: (world.task.id, 0, {"do": "something else"}),
    }


async def test_a_group_does_not_queue_more_than_its_owner_may(world: World) -> None:
    it = world.runs()
    sample = (await it.request(ANN, world.task.id)).id
    (row,) = await world.rows()
    async with world.db.write() as connection:
        more = [row._asdict() | {"id": f"{sample}{nth}"} for nth in range(MAX_QUEUED_PER_USER - 3)]
        await connection.execute(insert(runs), more)
    world.commits.clear()
    outcomes = await asyncio.gather(
        *(it.request(ANN, world.task.id) for _ in range(4)), return_exceptions=True
    )
    assert len(world.commits) == 1
    assert [type(each) for each in outcomes] == [Run, Run, RunQueueFull, RunQueueFull]
    assert len(await world.rows()) == MAX_QUEUED_PER_USER


async def test_each_run_and_audit_entry_of_a_group_names_its_own_request(world: World) -> None:
    it = world.runs()

    async def request(name: str, address: str) -> Run:
        current_request.set(RequestRecord(name, address))
        return await it.request(ANN, world.task.id)

    made = await asyncio.gather(request("first", "192.0.2.1"), request("second", "192.0.2.2"))
    assert [row.requested_by["request"]["id"] for row in await world.rows()] == ["first", "second"]
    async with world.db.read() as connection:
        entries = await connection.execute(select(audit.c.target, audit.c.address, audit.c.details))
        assert {
            tuple(row) for row in [(e.target, e.address, *e.details.items()) for e in entries]
        } == {
            (made[0].id, "192.0.2.1", ("task_id", world.task.id)),
            (made[1].id, "192.0.2.2", ("task_id", world.task.id)),
        }


async def test_a_disabled_owner_is_refused_with_all_requests_and_no_other_owner(
    world: World,
) -> None:
    async with world.db.write() as connection:
        await connection.execute(
            update(users).where(users.c.id == "usr_ann").values(disabled_at=world.clock.now())
        )
    it = world.runs()
    *refused, accepted = await asyncio.gather(
        it.request(ANN, world.task.id),
        it.request(ANN, world.task.id),
        it.request(BOB, world.theirs.id),
        return_exceptions=True,
    )
    assert [type(each) for each in refused] == [OwnerDisabled, OwnerDisabled]
    assert refused[0] is not refused[1]
    assert isinstance(accepted, Run)


async def test_a_group_whose_commit_may_have_succeeded_is_not_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = world.db.write

    @asynccontextmanager
    async def lose_the_answer() -> AsyncGenerator[AsyncConnection]:
        async with write() as connection:
            yield connection
        raise StoreUnavailable

    it = world.runs()
    with monkeypatch.context() as patched:
        patched.setattr(world.db, "write", lose_the_answer)
        outcomes = await asyncio.gather(
            *(it.request(ANN, world.task.id, idempotency_key=f"key {nth}"[-1]) for nth in range(3)),
            return_exceptions=True,
        )
    assert [type(each) for each in outcomes] == [StoreUnavailable] * 3
    queued = await world.rows()
    assert len(queued) == 3
    # That is what the keys are for.
    assert (await it.request(ANN, world.task.id, idempotency_key="0")).id in {
        row.id for row in queued
    }
    assert len(await world.rows()) == 3


async def test_an_error_of_one_request_does_not_affect_the_others(world: World) -> None:
    other = await world.tasks.create(ANN, NewTask(name="Other", handler="anything", params={}))

    async def refuse_other(connection: AsyncConnection, changes: Sequence[Change]) -> None:
        if any(each.details["task_id"] == other.id for each in changes):
            raise LookupError("a defect")

    it = world.runs(refuse_other)
    first, failed, last = await asyncio.gather(
        it.request(ANN, world.task.id),
        it.request(ANN, other.id),
        it.request(ANN, world.task.id),
        return_exceptions=True,
    )
    assert isinstance(failed, LookupError)
    assert [row.id for row in await world.rows()] == [
        each.id for each in (first, last) if isinstance(each, Run)
    ]
    assert len(await world.rows()) == 2


async def test_a_request_that_is_cancelled_while_it_waits_queues_no_run(world: World) -> None:
    it = world.runs()
    requests = [asyncio.create_task(it.request(ANN, world.task.id)) for _ in range(3)]
    # All wait, and none is being written.
    await asyncio.sleep(0)
    requests[0].cancel()
    cancelled, *others = await asyncio.gather(*requests, return_exceptions=True)
    assert isinstance(cancelled, asyncio.CancelledError)
    assert [row.id for row in await world.rows()] == [
        each.id for each in others if isinstance(each, Run)
    ]
    assert len(others) == 2


async def test_a_request_that_is_cancelled_while_it_is_written_affects_no_other(
    world: World,
) -> None:
    writing, proceed = asyncio.Event(), asyncio.Event()

    async def wait(connection: AsyncConnection, changes: Sequence[Change]) -> None:
        writing.set()
        await proceed.wait()

    it = world.runs(wait)
    requests = [asyncio.create_task(it.request(ANN, world.task.id)) for _ in range(2)]
    await writing.wait()
    requests[0].cancel()
    await asyncio.wait({requests[0]})
    proceed.set()
    run = await requests[1]
    # As the answer to a client that has gone away, that of the first is lost; its run is not.
    assert [row.id for row in await world.rows()][1] == run.id


async def test_owners_do_not_wait_for_each_other(tmp_path: Path) -> None:
    async with database("postgresql", tmp_path) as db:
        clock = FakeClock()
        tasks = Tasks(db, clock, registry(Config()), LocalEvents())
        hers, his = [
            await tasks.create(owner, NewTask(name="Task", handler="anything", params={}))
            for owner in (ANN, BOB)
        ]
        it = Runs(db, clock, Config(), LocalEvents())
        async with db.write() as connection:
            await connection.execute(
                select(users.c.id).where(users.c.id == "usr_ann").with_for_update()
            )
            waiting = asyncio.create_task(it.request(ANN, hers.id))
            assert (await it.request(BOB, his.id)).number == 1
            assert not waiting.done()
        assert (await waiting).number == 1
        async with db.read() as connection:
            assert await connection.scalar(select(func.count()).select_from(runs)) == 2


async def test_requests_that_arrive_while_another_process_has_the_lock_are_one_transaction(
    tmp_path: Path,
) -> None:
    async with database("postgresql", tmp_path) as db:
        clock = FakeClock()
        tasks = Tasks(db, clock, registry(Config()), LocalEvents())
        task = await tasks.create(ANN, NewTask(name="Task", handler="anything", params={}))
        commits: list[object] = []
        it = Runs(db, clock, Config(), LocalEvents())
        async with db.write() as connection:
            await connection.execute(
                select(users.c.id).where(users.c.id == "usr_ann").with_for_update()
            )
            waiting: list[asyncio.Task[Run]] = []
            for _ in range(3):
                waiting.append(asyncio.create_task(it.request(ANN, task.id)))
                # The first has begun its transaction, which waits for this one.
                await asyncio.sleep(0.05)
            event.listen(db.engine.sync_engine, "commit", commits.append)
        queued = await asyncio.gather(*waiting)
        assert [each.number for each in queued] == [1, 2, 3]
        # This one's, and one of the three.
        assert len(commits) == 2
