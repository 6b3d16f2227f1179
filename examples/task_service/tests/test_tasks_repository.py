"""What an owner does with tasks, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from examples.task_service.tests.runs_support import (
    ADMIN,
    ANN,
    BOB,
    Config,
    FakeClock,
    accounts_of,
    database,
    failing,
    registry,
)
from pydantic import ValidationError
from sqlalchemy import select, update

from msk_auth import KeyFormat, Principal
from msk_auth.errors import InputInvalid, StoreUnavailable
from task_service.db.engine import Database
from task_service.db.schema import runs as runs_table
from task_service.errors import TaskNotFound
from task_service.tasks.models import NewTask, RunState, TaskChanges, TaskPage
from task_service.tasks.notifications import LocalEvents
from task_service.tasks.runs import Runs
from task_service.tasks.status import StatusReport, WorkerStatus
from task_service.tasks.tasks import EXAMPLE_HANDLER, EXAMPLE_PARAMS, Tasks, add_example_task

pytestmark = pytest.mark.anyio


@dataclass
class World:
    db: Database
    clock: FakeClock
    config: Config
    events: LocalEvents
    tasks: Tasks
    runs: Runs


@pytest.fixture(params=["sqlite", "postgresql"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with database(request.param, tmp_path) as db:
        clock, config, events = FakeClock(), Config(), LocalEvents()
        yield World(
            db,
            clock,
            config,
            events,
            Tasks(accounts_of(db, clock), registry(config)),
            Runs(accounts_of(db, clock), config, events),
        )


def new(name: str = "Task", **values: Any) -> NewTask:
    return NewTask.model_validate({"name": name, "handler": "anything", "params": {}} | values)


async def listed(world: World, principal: Principal[Any], **asked: Any) -> TaskPage:
    return await world.tasks.list(principal, **asked)


async def test_a_task_is_created_and_found(world: World) -> None:
    made = await world.tasks.create(ANN, new("  Näme ✓ ", params={"do": "x"}, timeout_seconds=5))
    assert made.name == "Näme ✓"
    assert made.owner_id == "usr_ann"
    assert made.created_at == made.updated_at == world.clock.now()
    assert made.last_run is None
    assert await world.tasks.get(ANN, made.id) == made
    assert made.model_dump(mode="json") == {
        "id": made.id,
        "name": "Näme ✓",
        "handler": "anything",
        "params": {"do": "x"},
        "timeout_seconds": 5,
        "owner_id": "usr_ann",
        "created_at": "2026-01-01T00:00:00Z",
        "updated_at": "2026-01-01T00:00:00Z",
        "last_run": None,
    }


async def test_parameters_are_returned_as_they_were_sent(world: World) -> None:
    params = {"url": "http://example.org/", "body": "a\x00b ü 😀"}
    made = await world.tasks.create(ANN, new(handler="http_request", params=params))
    assert (await world.tasks.get(ANN, made.id)).params == params


@pytest.mark.parametrize(
    ("handler", "params", "field"),
    [
        ("none", {}, "handler"),
        ("anything", {"more": 1}, "params.more"),
        ("command", {"argv": []}, "params.argv"),
        ("command", {"argv": ["id"]}, "params.argv"),
        ("http_request", {"url": "http://127.0.0.1/"}, "params.url"),
    ],
)
async def test_parameters_that_a_handler_refuses_are_not_stored(
    world: World, handler: str, params: dict[str, Any], field: str
) -> None:
    with pytest.raises(InputInvalid) as refusal:
        await world.tasks.create(ANN, new(handler=handler, params=params))
    assert [error.field for error in refusal.value.errors] == [field]
    assert (await listed(world, ANN)).items == []


async def test_a_task_with_an_api_key_is_refused(world: World) -> None:
    """G1: a key's value exists in one response and nowhere else."""
    key = KeyFormat().generate().reveal()
    wrong_checksum = key[:-1] + ("0" if key[-1] != "0" else "1")
    for params in ({"argv": ["echo", f"Bearer {key}"]}, {"argv": ["echo", f"x{key}y"]}):
        with pytest.raises(InputInvalid, match="API key") as refusal:
            await world.tasks.create(ANN, new(handler="command", params=params))
        assert key not in str(refusal.value)
    await world.tasks.create(ANN, new(handler="command", params={"argv": ["echo", wrong_checksum]}))


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": "", "handler": "anything"},
        {"name": "  ", "handler": "anything"},
        {"name": "a\nb", "handler": "anything"},
        {"name": "a\x00", "handler": "anything"},
        {"name": "\u202egnp.exe", "handler": "anything"},
        {"name": "\ud800", "handler": "anything"},
        {"name": "a" * 101, "handler": "anything"},
        {"name": 1, "handler": "anything"},
        {"name": None, "handler": "anything"},
        {"name": "a", "handler": "a" * 65},
        {"name": "a", "handler": "anything", "params": []},
        {"name": "a", "handler": "anything", "timeout_seconds": 0},
        {"name": "a", "handler": "anything", "timeout_seconds": 86_401},
        {"name": "a", "handler": "anything", "timeout_seconds": 1.5},
        {"name": "a", "handler": "anything", "timeout_seconds": "5"},
        {"name": "a", "handler": "anything", "owner_id": "usr_bob"},
        {"name": "a", "handler": "anything", "id": "tsk_1"},
        {"name": "a", "handler": "anything", "last_run": None},
    ],
)
def test_a_bad_body_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        NewTask.model_validate(body)


async def test_other_users_get_404(world: World) -> None:
    task = await world.tasks.create(ANN, new())
    for call in (
        world.tasks.get(BOB, task.id),
        world.tasks.patch(BOB, task.id, TaskChanges(name="x")),
        world.tasks.delete(BOB, task.id),
        world.runs.request(BOB, task.id),
        world.runs.list(BOB, task.id),
    ):
        with pytest.raises(TaskNotFound):
            await call
    assert (await listed(world, BOB)).items == []
    assert (await world.tasks.get(ANN, task.id)).name == "Task"


async def test_the_permission_to_read_all_changes_nothing(world: World) -> None:
    task = await world.tasks.create(ANN, new())
    assert await world.tasks.get(ADMIN, task.id) == task
    assert (await listed(world, ADMIN)).items == [task]
    assert (await world.runs.list(ADMIN, task.id)).items == []
    for call in (
        world.tasks.patch(ADMIN, task.id, TaskChanges(name="x")),
        world.tasks.delete(ADMIN, task.id),
        world.runs.request(ADMIN, task.id),
    ):
        with pytest.raises(TaskNotFound):
            await call


@pytest.mark.parametrize(
    "task_id", ["", "x", "tsk_", "tsk_\x00", "tsk_" + "ä" * 16, "run_" + "a" * 16]
)
async def test_a_malformed_id_is_not_found(world: World, task_id: str) -> None:
    for call in (
        world.tasks.get(ANN, task_id),
        world.tasks.patch(ANN, task_id, TaskChanges(name="x")),
        world.tasks.delete(ANN, task_id),
        world.runs.request(ANN, task_id),
        world.runs.list(ANN, task_id),
    ):
        with pytest.raises(TaskNotFound):
            await call


async def test_tasks_are_listed_newest_first_in_pages(world: World) -> None:
    made = []
    for index in range(7):
        # Two of them at one moment: the id decides.
        if index % 2:
            world.clock.advance(1)
        made.append((await world.tasks.create(ANN, new(str(index)))).id)
    await world.tasks.create(BOB, new())
    seen: list[str] = []
    cursor = None
    for size in (3, 3, 1):
        page = await listed(world, ANN, cursor=cursor, limit=3)
        assert len(page.items) == size
        seen += [task.id for task in page.items]
        cursor = page.next_cursor
    assert cursor is None
    assert sorted(seen) == sorted(made)
    times = [(await world.tasks.get(ANN, task_id)).created_at for task_id in seen]
    assert times == sorted(times, reverse=True)
    assert (await listed(world, ANN, limit=7)).next_cursor is None
    assert len((await listed(world, ADMIN)).items) == 8


@pytest.mark.parametrize("limit", [0, -1, 101])
async def test_a_page_size_out_of_range_is_refused(world: World, limit: int) -> None:
    with pytest.raises(InputInvalid) as refusal:
        await listed(world, ANN, limit=limit)
    assert refusal.value.errors[0].field == "limit"


@pytest.mark.parametrize("cursor", ["", "x", "AAAA", "é"])
async def test_a_foreign_cursor_is_refused(world: World, cursor: str) -> None:
    with pytest.raises(InputInvalid) as refusal:
        await listed(world, ANN, cursor=cursor)
    assert refusal.value.errors[0].field == "cursor"


async def test_only_members_that_are_present_are_changed(world: World) -> None:
    task = await world.tasks.create(ANN, new(params={"do": "a"}, timeout_seconds=5))
    world.clock.advance(10)
    changed = await world.tasks.patch(ANN, task.id, TaskChanges(name="New"))
    assert changed == task.model_copy(update={"name": "New", "updated_at": world.clock.now()})
    changed = await world.tasks.patch(ANN, task.id, TaskChanges(params={"do": "b"}))
    assert (changed.params, changed.timeout_seconds) == ({"do": "b"}, 5)
    changed = await world.tasks.patch(ANN, task.id, TaskChanges(timeout_seconds=None))
    assert (changed.params, changed.timeout_seconds) == ({"do": "b"}, None)
    assert await world.tasks.patch(ANN, task.id, TaskChanges()) == changed


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


@pytest.mark.parametrize(
    "body",
    [
        {"name": None},
        {"handler": None},
        {"params": None},
        {"timeout_seconds": 0},
        {"owner_id": "usr_bob"},
        {"created_at": "2020-01-01T00:00:00Z"},
    ],
)
def test_a_bad_change_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TaskChanges.model_validate(body)


async def test_a_deleted_task_is_gone_and_its_runs_end(world: World) -> None:
    task = await world.tasks.create(ANN, new())
    other = await world.tasks.create(ANN, new())
    queued, running = [await world.runs.request(ANN, task.id) for _ in range(2)]
    kept = await world.runs.request(ANN, other.id)
    async with world.db.write() as connection:
        await connection.execute(
            update(runs_table).where(runs_table.c.id == running.id).values(state="running")
        )
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


async def test_a_task_shows_its_latest_run(world: World) -> None:
    task = await world.tasks.create(ANN, new())
    other = await world.tasks.create(ANN, new())
    await world.runs.request(ANN, task.id)
    world.clock.advance(1)
    latest = await world.runs.request(ANN, task.id)
    assert (await world.tasks.get(ANN, task.id)).last_run == latest
    last_runs = {each.id: each.last_run for each in (await listed(world, ANN)).items}
    assert last_runs == {task.id: latest, other.id: None}
    changed = await world.tasks.patch(ANN, task.id, TaskChanges(name="x"))
    assert changed.last_run == latest


async def test_an_outage_raises_store_unavailable(world: World) -> None:
    task = await world.tasks.create(ANN, new())
    with failing(world.db):
        for call in (
            world.tasks.create(ANN, new()),
            listed(world, ANN),
            world.tasks.get(ANN, task.id),
            world.tasks.delete(ANN, task.id),
        ):
            with pytest.raises(StoreUnavailable):
                await call
    assert [each.id for each in (await listed(world, ANN)).items] == [task.id]


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
    with pytest.raises(InputInvalid):
        await listed(world, ANN, recent=21)


async def test_the_status_reports_the_database_and_the_queue(world: World) -> None:
    report = StatusReport(
        world.db,
        world.clock,
        worker=WorkerStatus(id="wrk_1", concurrency=2),
        verification_lease_ms=0,
    )
    task = await world.tasks.create(ANN, new())
    waiting = await world.runs.request(ANN, task.id)
    world.clock.advance(1)
    held = await world.runs.request(ANN, task.id)
    until = world.clock.now()
    async with world.db.write() as connection:
        await connection.execute(
            update(runs_table)
            .where(runs_table.c.id == held.id)
            .values(state="running", claimed_by="wrk_2", attempt=1, lease_expires_at=until)
        )
    status = await report.now()
    assert status.database.kind == world.db.engine.dialect.name
    assert status.database.version[0].isdigit()
    assert status.database.size_bytes > 0
    assert (status.queue.queued, status.queue.running) == (1, 1)
    assert status.queue.oldest_queued_at == waiting.created_at
    (lease,) = status.leases
    assert (lease.run_id, lease.worker, lease.expires_at) == (held.id, "wrk_2", until)
