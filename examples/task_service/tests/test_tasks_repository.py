"""What an owner does with tasks, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import pytest
from examples.task_service.tests.runs_support import (
    ANN,
    BOB,
    World,
    observed,
    registry,
    world,
)
from sqlalchemy import select

from msk_auth import KeyFormat, Principal
from msk_auth.errors import InputInvalid, StoreUnavailable
from task_service.db.paging import Page
from task_service.db.schema import runs as runs_table
from task_service.errors import TaskNotFound
from task_service.tasks.models import NewTask, RunState, Task, TaskChanges
from task_service.tasks.status import StatusReport, WorkerStatus
from task_service.tasks.tasks import EXAMPLE_HANDLER, EXAMPLE_PARAMS, add_example_task

pytestmark = pytest.mark.anyio

__all__ = ["world"]


def new(name: str = "Task", **values: Any) -> NewTask:
    return NewTask.model_validate({"name": name, "handler": "anything", "params": {}} | values)


async def listed(world: World, principal: Principal[Any], **asked: Any) -> Page[Task]:
    return await world.tasks.list(principal, **asked)


async def test_parameters_are_returned_as_they_were_sent(world: World) -> None:
    params = {"url": "http://example.org/", "body": "a\x00b ü 😀"}
    made = await world.tasks.create(ANN, new(handler="http_request", params=params))
    assert (await world.tasks.get(ANN, made.id)).params == params


async def test_a_task_with_an_api_key_is_refused(world: World) -> None:
    """G1: a key's value exists in one response and nowhere else."""
    key = KeyFormat().generate().reveal()
    wrong_checksum = key[:-1] + ("0" if key[-1] != "0" else "1")
    for params in ({"argv": ["echo", f"Bearer {key}"]}, {"argv": ["echo", f"x{key}y"]}):
        with pytest.raises(InputInvalid, match="API key") as refusal:
            await world.tasks.create(ANN, new(handler="command", params=params))
        assert key not in str(refusal.value)
    await world.tasks.create(ANN, new(handler="command", params={"argv": ["echo", wrong_checksum]}))


async def test_the_handler_and_its_parameters_change_together(world: World) -> None:
    task = await world.tasks.create(ANN, new(params={"do": "a"}))
    with pytest.raises(InputInvalid) as refusal:
        await world.tasks.patch(ANN, task.id, TaskChanges(handler="command"))
    assert refusal.value.errors[0].field == "params"
    with pytest.raises(InputInvalid) as refusal:
        await world.tasks.patch(ANN, task.id, TaskChanges(params={"argv": ["echo"]}))
    changes = TaskChanges(handler="command", params={"argv": ["echo"]})
    changed = await world.tasks.patch(ANN, task.id, changes)
    assert (changed.handler, changed.params) == ("command", {"argv": ["echo"]})
    same = await world.tasks.patch(ANN, task.id, TaskChanges(handler="command"))
    assert same == changed


async def test_concurrent_changes_leave_parameters_that_fit_the_handler(world: World) -> None:
    task = await world.tasks.create(ANN, new(params={"do": "a"}))
    results = await asyncio.gather(
        world.tasks.patch(ANN, task.id, TaskChanges(params={"do": "b"})),
        world.tasks.patch(ANN, task.id, TaskChanges(handler="command", params={"argv": ["echo"]})),
        return_exceptions=True,
    )
    now = await world.tasks.get(ANN, task.id)
    assert (now.handler, now.params) in [
        ("anything", {"do": "b"}),
        ("command", {"argv": ["echo"]}),
    ]
    assert any(not isinstance(result, Exception) for result in results)


async def test_a_change_is_answered_though_the_database_is_gone_after_the_commit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await world.tasks.create(ANN, new())
    await world.runs.request(ANN, task.id)
    write = world.db.write

    def gone(*_: object) -> NoReturn:
        raise StoreUnavailable

    for work in (
        lambda: world.tasks.create(ANN, new()),
        lambda: world.tasks.patch(ANN, task.id, TaskChanges(name="x")),
    ):
        with monkeypatch.context() as outage:

            @asynccontextmanager
            async def write_last(outage: pytest.MonkeyPatch = outage) -> AsyncIterator[Any]:
                async with write() as connection:
                    yield connection
                outage.setattr(world.db, "read", gone)
                outage.setattr(world.db, "prepare", gone)

            outage.setattr(world.db, "write", write_last)
            answer = await work()
            with pytest.raises(StoreUnavailable):
                await world.tasks.get(ANN, task.id)
        assert await world.tasks.get(ANN, answer.id) == answer


async def test_a_deleted_task_is_gone_and_its_runs_end(world: World) -> None:
    task = await world.tasks.create(ANN, new())
    other = await world.tasks.create(ANN, new())
    queued, running = [await world.runs.request(ANN, task.id) for _ in range(2)]
    kept = await world.runs.request(ANN, other.id)
    await world.set(running, state="running")
    await world.tasks.delete(ANN, task.id)
    with pytest.raises(TaskNotFound):
        await world.tasks.get(ANN, task.id)
    with pytest.raises(TaskNotFound):
        await world.tasks.delete(ANN, task.id)
    with pytest.raises(TaskNotFound):
        await world.runs.request(ANN, task.id)
    assert [each.id for each in (await listed(world, ANN)).items] == [other.id]
    ended = await world.runs.get(ANN, queued.id)
    assert (ended.state, ended.finished_at) == (RunState.CANCELLED, world.clock.now())
    assert (await world.runs.get(ANN, running.id)).state is RunState.RUNNING
    async with world.db.read() as connection:
        asked = select(runs_table.c.id).where(runs_table.c.cancel_requested_at.is_not(None))
        assert set(await connection.scalars(asked)) == {queued.id, running.id}
    assert (await world.runs.get(ANN, kept.id)).state is RunState.QUEUED


async def test_a_new_service_has_one_example_that_may_be_run(world: World) -> None:
    await add_example_task(world.db, world.clock, "usr_ann")
    await add_example_task(world.db, world.clock, "usr_ann")
    (example,) = (await listed(world, ANN)).items
    assert (example.handler, example.params) == (EXAMPLE_HANDLER, EXAMPLE_PARAMS)
    # With what is allowed from the start.
    await registry(world.config).check(example.handler, example.params)
    await world.tasks.delete(ANN, example.id)
    await add_example_task(world.db, world.clock, "usr_ann")
    assert (await listed(world, ANN)).items == []


async def test_tasks_are_listed_with_their_newest_runs(world: World) -> None:
    busy, idle = await world.tasks.create(ANN, new("busy")), await world.tasks.create(ANN, new())
    runs = []
    for _ in range(4):
        world.clock.advance(1)
        runs.append((await world.runs.request(ANN, busy.id)).id)
    page = await listed(world, ANN, recent=3)
    found = {task.id: task.model_dump() for task in page.items}
    assert [run["id"] for run in found[busy.id]["recent_runs"]] == runs[:0:-1]
    assert found[busy.id]["last_run"] == found[busy.id]["recent_runs"][0]
    assert (found[idle.id]["recent_runs"], found[idle.id]["last_run"]) == ([], None)
    assert (await listed(world, BOB, recent=3)).items == []
    plain = await listed(world, ANN)
    assert all("recent_runs" not in task.model_dump() for task in plain.items)
    changed = await world.tasks.patch(ANN, busy.id, TaskChanges(name="x"))
    for task in (changed, await world.tasks.get(ANN, busy.id)):
        assert task.last_run is not None
        assert task.last_run.id == runs[-1]


async def test_a_list_reads_runs_in_the_thread_of_a_connection(world: World) -> None:
    # A page with 2000 runs must not stop the event loop.
    await world.tasks.create(ANN, new())
    statements: list[str] = []
    with observed(world.db, lambda statement, _: statements.append(statement)):
        await listed(world, ANN, recent=20)
    assert len(statements) == 2
    assert "UNION ALL" in statements[1]


async def test_the_status_reports_the_database_and_the_queue(world: World) -> None:
    report = StatusReport(
        world.db,
        WorkerStatus(id="wrk_1", concurrency=2),
        started_at=world.clock.now(),
        verification_lease_ms=0,
    )
    task = await world.tasks.create(ANN, new())
    waiting = await world.runs.request(ANN, task.id)
    world.clock.advance(1)
    held = await world.runs.request(ANN, task.id)
    until = world.clock.now()
    await world.set(held, state="running", claimed_by="wrk_2", attempt=1, lease_expires_at=until)
    status = await report.now()
    assert status.database.kind == world.db.engine.dialect.name
    assert status.database.version[0].isdigit()
    assert status.database.size_bytes > 0
    assert (status.queue.queued, status.queue.running) == (1, 1)
    assert status.queue.oldest_queued_at == waiting.created_at
    (lease,) = status.leases
    assert (lease.run_id, lease.worker, lease.expires_at) == (held.id, "wrk_2", until)
