"""What an owner does with runs, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from examples.task_service.tests.runs_support import (
    ANN,
    BOB,
    World,
    read_log,
    world,
)
from sqlalchemy import delete, func, insert, select, update

from task_service.db.schema import idempotency, run_log
from task_service.db.schema import runs as runs_table
from task_service.db.schema import tasks as tasks_table
from task_service.errors import (
    RunNotFound,
    RunQueueFull,
)
from task_service.tasks import retention
from task_service.tasks.models import LogLine, Run, RunState, Task, TaskChanges
from task_service.tasks.run_log import READ_LINES, LogReader
from task_service.tasks.runs import MAX_QUEUED_PER_USER

pytestmark = pytest.mark.anyio

__all__ = ["world"]


async def count(world: World, table: Any) -> int:
    async with world.db.read() as connection:
        return await connection.scalar(select(func.count()).select_from(table)) or 0


@pytest.fixture
async def task(world: World) -> Task:
    return await world.new_task()


async def test_the_runs_of_each_task_are_numbered_and_no_number_is_used_again(
    world: World,
    task: Task,
) -> None:
    other = await world.new_task()
    numbers = [(await world.runs.request(ANN, task.id)).number for _ in range(3)]
    assert numbers == [1, 2, 3]
    assert (await world.runs.request(ANN, other.id)).number == 1
    # As retention does, and as a task of a version without numbers is: its first number tells how many runs there were.
    async with world.db.write() as connection:
        await connection.execute(delete(runs_table).where(runs_table.c.task_id == task.id))
        await connection.execute(
            update(tasks_table).where(tasks_table.c.id == other.id).values(last_run_number=None)
        )
    assert (await world.runs.request(ANN, task.id)).number == 4
    assert (await world.runs.request(ANN, other.id)).number == 2


async def test_runs_that_are_requested_at_once_have_numbers_of_their_own(
    world: World, task: Task
) -> None:
    requested = await asyncio.gather(*(world.runs.request(ANN, task.id) for _ in range(8)))
    assert sorted(run.number or 0 for run in requested) == list(range(1, 9))


@pytest.mark.parametrize(
    ("own", "longest", "expected"), [(None, 300, 300), (60, 300, 60), (600, 300, 300)]
)
async def test_the_timeout_is_the_tasks_but_never_above_the_administrators(
    world: World, task: Task, own: int | None, longest: int, expected: int
) -> None:
    world.config.settings.run_timeout_seconds = longest
    await world.tasks.patch(ANN, task.id, TaskChanges(timeout_seconds=own))
    run = await world.runs.request(ANN, task.id)
    async with world.db.read() as connection:
        kept = await connection.scalar(
            select(runs_table.c.timeout_seconds).where(runs_table.c.id == run.id)
        )
    assert kept == expected


# Idempotency-Key


async def test_another_user_may_use_the_same_key(world: World, task: Task) -> None:
    theirs = await world.new_task(BOB)
    first = await world.runs.request(ANN, task.id, idempotency_key="key")
    second = await world.runs.request(BOB, theirs.id, idempotency_key="key")
    assert first.id != second.id


async def test_a_key_is_remembered_for_a_day(world: World, task: Task) -> None:
    first = await world.runs.request(ANN, task.id, idempotency_key="key")
    world.clock.advance(86_399)
    assert (await world.runs.request(ANN, task.id, idempotency_key="key")).id == first.id
    world.clock.advance(1)
    second = await world.runs.request(ANN, task.id, idempotency_key="key")
    assert second.id != first.id
    assert (await world.runs.request(ANN, task.id, idempotency_key="key")).id == second.id


async def test_queued_runs_are_bounded_for_each_user(world: World, task: Task) -> None:
    async with world.db.write() as connection:
        row = (await connection.execute(select(tasks_table))).mappings().one()
        await connection.execute(
            insert(runs_table),
            [
                {
                    "id": f"run_{index}",
                    "task_id": row["id"],
                    "owner_id": "usr_ann",
                    "state": "queued",
                    "requested_by": {},
                    "handler": "anything",
                    "params": {},
                    "timeout_seconds": 1,
                    "created_at": world.clock.now(),
                }
                for index in range(MAX_QUEUED_PER_USER - 3)
            ],
        )
    await world.runs.request(ANN, task.id, idempotency_key="last")
    at_once = await asyncio.gather(
        *(world.runs.request(ANN, task.id) for _ in range(4)), return_exceptions=True
    )
    assert sorted(type(each).__name__ for each in at_once) == ["Run"] * 2 + ["RunQueueFull"] * 2
    with pytest.raises(RunQueueFull) as refusal:
        await world.runs.request(ANN, task.id)
    assert refusal.value.status == 429
    # A repeated request for a run that was accepted makes no new one.
    await world.runs.request(ANN, task.id, idempotency_key="last")
    theirs = await world.new_task(BOB)
    await world.runs.request(BOB, theirs.id)


# Cancelling


async def test_a_queued_run_is_cancelled_at_once(world: World, task: Task) -> None:
    run = await world.runs.request(ANN, task.id)
    world.clock.advance(1)
    cancelled = await world.runs.cancel(ANN, run.id)
    assert (cancelled.state, cancelled.finished_at) == (RunState.CANCELLED, world.clock.now())
    world.clock.advance(1)
    assert await world.runs.cancel(ANN, run.id) == cancelled


async def test_cancelling_a_running_run_requests_its_end(world: World, task: Task) -> None:
    run = await world.runs.request(ANN, task.id)
    await world.set(run, state="running")
    assert (await world.runs.cancel(ANN, run.id)).state is RunState.RUNNING
    asked_at = world.clock.now()
    world.clock.advance(1)
    await world.runs.cancel(ANN, run.id)
    async with world.db.read() as connection:
        assert await connection.scalar(select(runs_table.c.cancel_requested_at)) == asked_at


# The log


async def append(world: World, run: Run, first: int, *texts: str) -> None:
    async with world.db.write() as connection:
        await connection.execute(
            insert(run_log),
            [
                {
                    "run_id": run.id,
                    "seq": first + index,
                    "at": world.clock.now(),
                    "stream": "stdout",
                    "text": text,
                }
                for index, text in enumerate(texts)
            ],
        )


async def test_the_log_is_read_from_any_line(world: World, task: Task) -> None:
    run = await world.runs.request(ANN, task.id)
    await append(world, run, 1, *(str(index) for index in range(1, READ_LINES + 3)))
    lines = await read_log(world.db, run.id)
    assert [line.seq for line in lines] == list(range(1, READ_LINES + 1))
    lines = await read_log(world.db, run.id, READ_LINES)
    assert [line.text for line in lines] == ["501", "502"]
    assert lines[0].model_dump(mode="json") == {
        "seq": 501,
        "at": "2026-01-01T00:00:00Z",
        "stream": "stdout",
        "text": "501",
    }
    assert len(await read_log(world.db, run.id, -(10**30))) == READ_LINES
    assert list(await read_log(world.db, run.id, 10**30)) == []


async def test_a_log_is_followed_to_its_end(world: World, task: Task) -> None:
    run = await world.runs.request(ANN, task.id)
    logs = LogReader(world.db, world.notifications, world.clock, poll=timedelta(seconds=60))
    seen: list[str] = []
    more = asyncio.Event()

    async def follow() -> None:
        async for item in logs.follow(run.id, 1):
            assert isinstance(item, LogLine)
            seen.append(item.text)
            more.set()

    await append(world, run, 1, "a", "b")
    task = asyncio.create_task(follow())
    await asyncio.wait_for(more.wait(), 30)
    assert seen == ["b"]
    more.clear()
    await append(world, run, 3, "c")
    world.notifications.run_changed(run.id)
    await asyncio.wait_for(more.wait(), 30)
    await append(world, run, 4, "d")
    await world.set(run, state="succeeded")
    world.notifications.run_changed(run.id)
    await asyncio.wait_for(task, 30)
    assert seen == ["b", "c", "d"]
    # No subscription is left.
    assert world.notifications._subscribers == {}


async def test_a_deleted_run_has_no_log(world: World) -> None:
    logs = LogReader(world.db, world.notifications, world.clock)
    assert [item async for item in logs.follow("run_" + "a" * 16)] == []


# Retention


async def test_old_rows_are_deleted(
    world: World, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("task_service.tasks.retention._BATCH", 2)
    old, unfinished, recent = [], [], []
    for index in range(5):
        run = await world.runs.request(ANN, task.id, idempotency_key=f"{index}")
        await append(world, run, 1, "a")
        await world.set(run, state="succeeded", finished_at=world.clock.now())
        old.append(run)
    for state in ("queued", "running"):
        run = await world.runs.request(ANN, task.id)
        await world.set(run, state=state)
        unfinished.append(run)
    slow = await world.runs.request(ANN, task.id)
    world.clock.advance(86_400)
    await append(world, slow, 1, "b")
    await world.set(slow, state="failed", finished_at=world.clock.now())
    recent.append(slow)

    async def purge(days: int) -> int:
        return await retention.purge(world.db, days, world.clock.now())

    assert await purge(30) == 0
    assert await count(world, idempotency) == 0
    assert await count(world, runs_table) == 8

    world.clock.advance(29 * 86_400 + 1)
    assert await purge(30) == 5
    for run in old:
        with pytest.raises(RunNotFound):
            await world.runs.get(ANN, run.id)
    for run in unfinished + recent:
        assert (await world.runs.get(ANN, run.id)).id == run.id
    assert await count(world, run_log) == 1
    assert await purge(1) == 1


async def test_a_deleted_task_is_removed_with_its_last_run(world: World, task: Task) -> None:
    run = await world.runs.request(ANN, task.id)
    await world.tasks.delete(ANN, task.id)
    await retention.purge(world.db, 30, world.clock.now())
    assert await count(world, tasks_table) == 1
    assert (await world.runs.get(ANN, run.id)).state is RunState.CANCELLED
    world.clock.advance(31 * 86_400)
    assert await retention.purge(world.db, 30, world.clock.now()) == 1
    assert await count(world, tasks_table) == 0
