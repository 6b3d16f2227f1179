"""What workers do with runs, several of them on one database, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from examples.task_service.tests import runs_support
from examples.task_service.tests.runs_support import (
    ANN,
    BOB,
    LEASE,
    FakeClock,
    acquire,
    add_user,
    database,
    plans_of,
    principal,
    read_log,
    to_be_stopped,
)
from sqlalchemy import insert, select

from task_service.db.engine import Database
from task_service.db.schema import runs as runs_table
from task_service.db.schema import tasks as tasks_table
from task_service.db.schema import users as users_table
from task_service.tasks.models import Run, RunPriority, RunState
from task_service.tasks.run_log import KeptLine, LogBatch, RunLog, SavedLog
from task_service.tasks.worker_runs import (
    MAX_ATTEMPTS,
    AcquiredRun,
    LeaseWatch,
    ObservedLease,
    Outcome,
)

pytestmark = pytest.mark.anyio

OVER = (
    "INSERT INTO runs (id, task_id, owner_id, state, requested_by, handler, params, timeout_seconds, created_at)"
    " WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 30000)"
    " SELECT 'over_' || n, tasks.id, tasks.owner_id, 'succeeded', '{}', 'anything', '{}', 1, 0 FROM numbers, tasks"
    " WHERE tasks.owner_id = 'usr_ann'"
)
ADMIN = principal("usr_admin", "tasks:read_all", "runs:prioritize", "runs:cancel_all")
ROOT = principal("usr_root", "tasks:read_all", "runs:prioritize", "runs:cancel_all")
USERS = {"ann": ANN, "bob": BOB, "admin": ADMIN, "root": ROOT}


class World(runs_support.World):
    """A task of each of the users."""

    def __init__(self, db: Database) -> None:
        super().__init__(db)
        self.task_ids: dict[str, str] = {}

    async def queue(self, user: str = "ann", *, priority: RunPriority = RunPriority.NORMAL) -> Run:
        self.clock.advance(1)
        return await self.runs.request(USERS[user], self.task_ids[user], priority=priority)

    async def owner(self, run_id: str) -> str:
        async with self.db.read() as connection:
            found = await connection.scalar(
                select(runs_table.c.owner_id).where(runs_table.c.id == run_id)
            )
        assert found is not None
        return found

    async def get(self, run_id: str) -> Run:
        return await self.runs.get(ROOT, run_id)


@pytest.fixture(params=["sqlite", "postgresql"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with database(request.param, tmp_path) as db:
        await add_user(db, ROOT)
        made = World(db)
        for name, each in USERS.items():
            made.task_ids[name] = (await made.new_task(each, timeout_seconds=7)).id
        yield made


def written(*texts: str, clock: FakeClock, after: LogBatch | None = None) -> LogBatch:
    saved = () if after is None else (KeptLine(after.lines[-1].seq, after.kept_bytes, 0),)
    log = RunLog(clock, saved=SavedLog(saved))
    for text in texts:
        log.write("stdout", text)
    batch = log.take()
    assert batch is not None
    return batch


async def add_queued_runs(db: Database, *, owners: int, each: int) -> None:
    """What a crowd has queued."""
    now = FakeClock().now()
    async with db.write() as connection:
        task_id = await connection.scalar(select(tasks_table.c.id).limit(1))
        ids = [f"usr_{number:05}" for number in range(owners)]
        await connection.execute(
            insert(users_table),
            [{"id": id_, "username": id_, "roles": [], "created_at": now} for id_ in ids],
        )
        rows = [
            {
                "id": f"run_{owner_id}_{number}",
                "task_id": task_id,
                "owner_id": owner_id,
                "state": "queued",
                "requested_by": {},
                "handler": "anything",
                "params": {},
                "timeout_seconds": 1,
                "created_at": now,
            }
            for owner_id in ids
            for number in range(each)
        ]
        await connection.execute(insert(runs_table), rows)


async def text_of(world: World, run_id: str) -> str:
    return "".join(line.text for line in await read_log(world.db, run_id))


async def parts_of(world: World, run_id: str) -> tuple[str, str]:
    """The beginning and the end of a log, between which numbers are missing."""
    parts = ["", ""]
    for number, line in enumerate(await read_log(world.db, run_id), start=1):
        parts[line.seq != number] += line.text
    return parts[0], parts[1]


# Claiming


async def test_the_oldest_is_acquired_first(world: World) -> None:
    first, second = await world.queue(), await world.queue("bob")
    worker = world.worker("w1")
    acquired = await acquire(worker)
    assert acquired == AcquiredRun(
        first.id, first.task_id, "w1", 1, "anything", {"do": "x"}, 7, SavedLog()
    )
    run = await world.get(first.id)
    assert (run.state, run.attempt, run.started_at) == (RunState.RUNNING, 1, world.clock.now())
    assert (await acquire(worker)).run_id == second.id
    assert await worker.acquire(1) == []


@pytest.mark.parametrize(
    ("queued", "acquired"),
    [
        pytest.param(
            "bob:low ann ann:high ann:high bob",
            [(1, {2}), (1, {4}), (1, {3}), (1, {0}), (1, {1})],
            id="priorities order an owner's own runs and no others",
        ),
        pytest.param(
            "admin:urgent admin:urgent root:urgent root:urgent",
            [(1, {0}), (1, {2}), (1, {1}), (1, {3})],
            id="urgent runs take turns too",
        ),
        pytest.param(
            "ann:high " * 24 + "bob:low",
            [(1, {0}), (1, {24}), (1, {1})],
            id="an owner with many runs keeps no other waiting",
        ),
        pytest.param(
            "ann ann ann bob admin admin",
            [(4, {0, 3, 4, 1}), (4, {2, 5}), (4, set())],
            id="a worker with room for several goes from owner to owner",
        ),
        pytest.param(
            "root root ann ann bob bob",
            [(3, {0, 2, 4}), (1, {1}), (1, {3}), (1, {5})],
            id="owners who are served together keep their order",
        ),
    ],
)
async def test_owners_take_turns(
    world: World, queued: str, acquired: list[tuple[int, set[int]]]
) -> None:
    world.config.settings.max_concurrent_runs_per_user = 100
    numbers: dict[str, int] = {}
    for number, words in enumerate(queued.split()):
        user, _, priority = words.partition(":")
        run = await world.queue(user, priority=RunPriority(priority or "normal"))
        numbers[run.id] = number
    worker = world.worker("w1")
    for room, expected in acquired:
        assert {numbers[run.run_id] for run in await worker.acquire(room)} == expected


async def test_urgent_runs_go_first_and_respect_their_owners_limit(
    world: World,
) -> None:
    world.config.settings.max_concurrent_runs_per_user = 2
    theirs = [await world.queue("bob", priority=RunPriority.HIGH) for _ in range(3)]
    normal = await world.queue("admin")
    urgent = [await world.queue("admin", priority=RunPriority.URGENT) for _ in range(2)]
    worker = world.worker("w1")
    acquired_runs = [await acquire(worker) for _ in range(4)]
    assert [each.run_id for each in acquired_runs] == [*(run.id for run in urgent + theirs[:2])]
    assert await worker.acquire(1) == []
    await worker.finish(acquired_runs[0], Outcome(RunState.SUCCEEDED))
    assert (await acquire(worker)).run_id == normal.id


async def test_an_urgent_run_that_was_cancelled_leaves_no_advantage(world: World) -> None:
    theirs = await world.queue("bob")
    ordinary = await world.queue("admin")
    urgent = await world.queue("admin", priority=RunPriority.URGENT)
    await world.runs.cancel(ROOT, urgent.id)
    order = [(await acquire(world.worker("w1"))).run_id for _ in range(2)]
    assert order == [theirs.id, ordinary.id]


async def test_an_owner_who_queues_one_run_at_a_time_gets_no_more_turns(world: World) -> None:
    theirs = [await world.queue("bob") for _ in range(3)]
    order = []
    await world.queue()
    for _ in range(4):
        order.append((await acquire(world.worker("w1"))).run_id)
        if order[-1] not in {run.id for run in theirs}:
            await world.queue()
    assert [run_id in {run.id for run in theirs} for run_id in order] == [True, False, True, False]


async def test_an_owner_at_the_limit_keeps_their_turn(world: World) -> None:
    world.config.settings.max_concurrent_runs_per_user = 1
    mine = [await world.queue() for _ in range(2)]
    theirs = [await world.queue("bob") for _ in range(2)]
    worker = world.worker("w1")
    first, second = await acquire(worker), await acquire(worker)
    assert [first.run_id, second.run_id] == [mine[0].id, theirs[0].id]
    assert await worker.acquire(1) == []
    for each in (second, first):
        await worker.finish(each, Outcome(RunState.SUCCEEDED))
    # The owner at the limit is first: their turn has not changed.
    assert (await acquire(worker)).run_id == mine[1].id
    assert (await acquire(worker)).run_id == theirs[1].id
    more = await world.queue()
    assert await worker.acquire(1) == []
    # A change of the limit takes effect at once.
    world.config.settings.max_concurrent_runs_per_user = 2
    assert (await acquire(worker)).run_id == more.id


async def test_concurrent_workers_serve_each_owner_once(world: World) -> None:
    for _ in range(4):
        await world.queue()
    for user in ("bob", "admin", "root"):
        await world.queue(user)
    acquired_runs = await asyncio.gather(*(world.worker(f"w{n}").acquire(1) for n in range(4)))
    order = {run.run_id for each in acquired_runs for run in each}
    owners = [await world.owner(run_id) for run_id in order]
    assert sorted(owners) == ["usr_admin", "usr_ann", "usr_bob", "usr_root"]


async def test_a_worker_with_room_for_several_keeps_owners_to_their_limit(world: World) -> None:
    world.config.settings.max_concurrent_runs_per_user = 2
    for _ in range(4):
        await world.queue()
    urgent = await world.queue("admin", priority=RunPriority.URGENT)
    for _ in range(2):
        await world.queue("admin")
    worker = world.worker("w1")
    acquired = await worker.acquire(8)
    owners = [await world.owner(run.run_id) for run in acquired]
    assert urgent.id in {run.run_id for run in acquired}
    assert sorted(owners) == ["usr_admin", "usr_admin", "usr_ann", "usr_ann"]
    assert await worker.acquire(8) == []


async def test_the_next_run_is_found_by_the_index_among_many(world: World) -> None:
    """Runs that are over are not read."""
    await add_queued_runs(world.db, owners=300, each=5)
    worker = world.worker("w1")
    async with world.db.write() as connection:
        await connection.exec_driver_sql(OVER)
        await connection.exec_driver_sql("ANALYZE")
    world.config.settings.max_concurrent_runs_per_user = 3
    plans = await plans_of(world.db, worker.acquire(4), containing="row_number()")
    assert plans
    for slow in ("SCAN runs", "Seq Scan on runs"):
        assert not any(slow in line for line in plans), plans


async def test_many_workers_at_once_acquire_each_run_once_and_keep_to_the_limit(
    world: World,
) -> None:
    for _ in range(8):
        await world.queue()
    for _ in range(3):
        await world.queue("bob")
    workers = [world.worker(f"w{index}") for index in range(10)]
    acquired_runs = [
        run
        for acquired in await asyncio.gather(*(w.acquire(1) for w in workers))
        for run in acquired
    ]
    assert len({acquired.run_id for acquired in acquired_runs}) == len(acquired_runs) == 7
    owners = []
    async with world.db.read() as connection:
        owners = list(
            await connection.scalars(
                select(runs_table.c.owner_id).where(runs_table.c.state == "running")
            )
        )
    assert sorted(owners) == ["usr_ann"] * 4 + ["usr_bob"] * 3


# Leases


async def test_a_lease_is_renewed_by_its_worker_only(world: World) -> None:
    await world.queue()
    await world.queue()
    mine, other = world.worker("w1"), world.worker("w2")
    acquired, theirs = await acquire(mine), await acquire(other)
    before = {each.run_id: each for each in await mine.observed_leases()}
    world.clock.advance(5)
    assert await mine.renew(acquired)
    assert not await mine.renew(replace(theirs, worker_id="w1"))
    after = {each.run_id: each for each in await mine.observed_leases()}
    assert after[acquired.run_id].lease_expires_at == world.clock.now() + LEASE
    assert after[theirs.run_id] == before[theirs.run_id]
    assert after[acquired.run_id].is_of(acquired)
    assert not after[acquired.run_id].is_of(replace(acquired, attempt=2))
    assert not after[theirs.run_id].is_of(replace(theirs, worker_id="w1"))
    # A run of an earlier attempt is not held.
    assert not await mine.renew(replace(acquired, attempt=0))


async def test_the_run_of_a_killed_worker_is_queued_again(world: World) -> None:
    run = await world.queue()
    killed, living = world.worker("w1"), world.worker("w2")
    acquired = await acquire(killed)
    batch = written("before", clock=world.clock)
    await killed.append_log(acquired, batch)
    seen = await living.observed_leases()
    assert await living.reclaim(seen) == 1
    again = await world.get(run.id)
    assert (again.state, again.attempt, again.started_at) == (RunState.QUEUED, 1, None)
    second = await acquire(living)
    assert (second.attempt, second.log) == (2, SavedLog((KeptLine(1, 6, 0),)))
    # Whatever the first does now changes nothing.
    late = written("late", clock=world.clock, after=batch)
    assert not await killed.append_log(acquired, late)
    assert not await killed.finish(acquired, Outcome(RunState.SUCCEEDED))
    assert not await killed.release(acquired)
    assert not await killed.renew(acquired)
    assert await living.reclaim(seen) == 0
    assert (await world.get(run.id)).state is RunState.RUNNING
    assert await text_of(world, run.id) == "before"
    assert await living.finish(second, Outcome(RunState.SUCCEEDED, 0))
    assert (await world.get(run.id)).attempt == 2


async def test_the_middle_of_a_long_output_leaves_the_database(world: World) -> None:
    run = await world.queue()
    worker = world.worker("w1")
    acquired = await acquire(worker)
    log = RunLog(world.clock, saved=acquired.log)
    whole = ""
    for number in range(60):
        text = f"{number} " + "x" * 100_000 + "\n"
        whole += text
        log.write("stdout", text)
        batch = log.take()
        assert batch is not None
        # Twice, as when the answer to the commit is lost.
        assert await worker.append_log(acquired, batch)
        assert await worker.append_log(acquired, batch)
    head, tail = await parts_of(world, run.id)
    shown = await world.get(run.id)
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert shown.log_missing_bytes == len(whole) - len(head + tail) > 0
    assert shown.log_missing_lines == whole.count("\n") - (head + tail).count("\n")
    # The next attempt continues it.
    other = world.worker("w2")
    await other.reclaim(await other.observed_leases())
    second = await acquire(other)
    assert second.log.missing_bytes == shown.log_missing_bytes
    assert second.log.missing_lines == shown.log_missing_lines
    assert sum(line.size for line in second.log.lines) == len(head + tail)
    log = RunLog(world.clock, saved=second.log)
    log.write("stdout", "y" * 20_000)
    batch = log.take()
    assert batch is not None
    assert await other.append_log(second, batch)
    same, tail = await parts_of(world, run.id)
    assert same == head
    assert (whole + "y" * 20_000).endswith(tail)


async def test_a_worker_does_not_hold_its_own_earlier_attempt(world: World) -> None:
    run = await world.queue()
    worker = world.worker("w1")
    first = await acquire(worker)
    assert await worker.reclaim(await worker.observed_leases()) == 1
    second = await acquire(worker)
    assert (second.worker_id, second.attempt) == (first.worker_id, 2)
    batch = written("late", clock=world.clock)
    assert not await worker.append_log(first, batch)
    assert not await worker.finish(first, Outcome(RunState.SUCCEEDED))
    assert not await worker.release(first)
    assert (await world.get(run.id)).state is RunState.RUNNING
    assert await text_of(world, run.id) == ""


async def test_a_lease_that_was_renewed_meanwhile_stays(world: World) -> None:
    await world.queue()
    worker, other = world.worker("w1"), world.worker("w2")
    acquired = await acquire(worker)
    seen = await other.observed_leases()
    world.clock.advance(1)
    await worker.renew(acquired)
    assert await other.reclaim(seen) == 0


async def test_a_run_that_kills_every_worker_fails(world: World) -> None:
    run = await world.queue()
    living = world.worker("living")
    for attempt in range(1, MAX_ATTEMPTS + 1):
        assert (await acquire(world.worker(f"w{attempt}"))).attempt == attempt
        assert await living.reclaim(await living.observed_leases()) == 1
    failed = await world.get(run.id)
    assert (failed.state, failed.attempt) == (RunState.FAILED, MAX_ATTEMPTS)
    assert failed.error == "The worker stopped in the middle of the run 3 times."
    assert failed.started_at is not None
    assert failed.finished_at == world.clock.now()
    assert await living.acquire(1) == []


async def test_a_cancelled_run_of_a_killed_worker_ends(world: World) -> None:
    run = await world.queue()
    await acquire(world.worker("w1"))
    await world.runs.cancel(ANN, run.id)
    living = world.worker("w2")
    assert await living.reclaim(await living.observed_leases()) == 1
    over = await world.get(run.id)
    assert (over.state, over.error) == (RunState.CANCELLED, None)
    assert over.finished_at == world.clock.now()


# Cancelling, giving back, ending


async def test_a_worker_reads_requests_to_cancel(world: World) -> None:
    first, _ = await world.queue(), await world.queue()
    worker = world.worker("w1")
    assert len(await worker.acquire(2)) == 2
    assert await to_be_stopped(worker) == set()
    await world.runs.cancel(ANN, first.id)
    assert await to_be_stopped(worker) == {first.id}


async def test_a_released_run_keeps_its_attempt_and_its_log(world: World) -> None:
    run = await world.queue()
    stopping, other = world.worker("w1"), world.worker("w2")
    acquired = await acquire(stopping)
    assert await stopping.append_log(acquired, written("some", clock=world.clock))
    assert await stopping.release(acquired)
    waiting = await world.get(run.id)
    assert (waiting.state, waiting.attempt, waiting.started_at) == (RunState.QUEUED, 0, None)
    assert await text_of(world, run.id) == "some"
    again = await acquire(other)
    assert (again.attempt, again.log) == (1, SavedLog((KeptLine(1, 4, 0),)))
    # The same attempt, and yet not its run.
    assert not await stopping.finish(acquired, Outcome(RunState.SUCCEEDED))


async def test_releasing_a_cancelled_run_ends_it(world: World) -> None:
    run = await world.queue()
    worker = world.worker("w1")
    acquired = await acquire(worker)
    await world.runs.cancel(ANN, run.id)
    assert await worker.release(acquired)
    over = await world.get(run.id)
    assert (over.state, over.attempt) == (RunState.CANCELLED, 1)
    assert over.finished_at is not None


async def test_a_run_that_has_ended_takes_no_more_output(world: World) -> None:
    run = await world.queue()
    worker = world.worker("w1")
    acquired = await acquire(worker)
    first = written("a", clock=world.clock)
    last = written("b", clock=world.clock, after=first)
    assert await worker.append_log(acquired, first)
    assert await worker.append_log(acquired, last)
    world.clock.advance(3)
    outcome = Outcome(RunState.FAILED, 2, "It broke.")
    assert await worker.finish(acquired, outcome)
    ended = await world.get(run.id)
    assert (ended.state, ended.exit_code, ended.error) == (RunState.FAILED, 2, "It broke.")
    assert ended.finished_at == world.clock.now()
    assert await text_of(world, run.id) == "ab"
    assert not await worker.finish(acquired, Outcome(RunState.SUCCEEDED))
    late = written("c", clock=world.clock, after=last)
    assert not await worker.append_log(acquired, late)
    assert await world.get(run.id) == ended
    assert await text_of(world, run.id) == "ab"


# Judging leases


def observed(run_id: str = "r", *, renewals: int = 0) -> ObservedLease:
    at = FakeClock().now() + timedelta(seconds=renewals)
    return ObservedLease(run_id, "w", 1, at)


def test_a_lease_that_does_not_change_expires() -> None:
    clock = FakeClock()
    watch = LeaseWatch(clock, LEASE)
    assert watch.expired([observed("a"), observed("b")]) == []
    for second in range(1, 15):
        clock.advance(1)
        assert watch.expired([observed("a"), observed("b", renewals=second)]) == []
    clock.advance(1)
    assert watch.expired([observed("a"), observed("b", renewals=15)]) == [observed("a")]


def test_a_clock_that_is_set_changes_nothing() -> None:
    clock = FakeClock()
    watch = LeaseWatch(clock, LEASE)
    watch.expired([observed()])
    clock.wall += timedelta(hours=1)
    assert watch.expired([observed()]) == []
    clock.wall -= timedelta(days=1)
    for _ in range(15):
        assert watch.expired([observed()]) == []
        clock.seconds += 1
    assert watch.expired([observed()]) == [observed()]


def test_a_watch_that_was_suspended_starts_over() -> None:
    clock = FakeClock()
    watch = LeaseWatch(clock, LEASE)
    watch.expired([observed()])
    clock.advance(3600)
    assert watch.expired([observed()]) == []
    for _ in range(14):
        clock.advance(1)
        assert watch.expired([observed()]) == []
    clock.advance(1)
    assert watch.expired([observed()]) == [observed()]


async def test_runs_that_end_together_are_ended_each_in_its_own_way(world: World) -> None:
    for _ in range(4):
        await world.queue()
    worker, other = world.worker("w1"), world.worker("w2")
    one, two, three, lost = await worker.acquire(4)
    seen = [each for each in await other.observed_leases() if each.run_id == lost.run_id]
    assert await other.reclaim(seen) == 1
    await world.runs.cancel(ROOT, two.run_id)
    ended = await asyncio.gather(
        worker.finish(one, Outcome(RunState.SUCCEEDED, 0)),
        worker.finish(two, Outcome(RunState.CANCELLED)),
        worker.finish(lost, Outcome(RunState.SUCCEEDED, 0)),
        worker.finish(three, Outcome(RunState.FAILED, 3, "It failed.")),
    )
    assert ended == [True, True, False, True]
    shown = [await world.get(run.run_id) for run in (one, two, three, lost)]
    assert [(run.state, run.exit_code, run.error) for run in shown] == [
        (RunState.SUCCEEDED, 0, None),
        (RunState.CANCELLED, None, "An administrator cancelled the run."),
        (RunState.FAILED, 3, "It failed."),
        (RunState.QUEUED, None, None),
    ]
    assert [run.finished_at for run in shown] == [world.clock.now()] * 3 + [None]
