"""Disabling a user ends their runs: those that wait, those that run, and those that are just being queued or started."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from examples.task_service.tests import runs_support
from examples.task_service.tests.accounts_support import KINDS
from examples.task_service.tests.accounts_support import World as Accounts
from examples.task_service.tests.accounts_support import world as accounts_world
from examples.task_service.tests.runs_support import (
    acquire,
    principal,
    to_be_stopped,
)
from sqlalchemy import select, update

from msk_auth.errors import CredentialRefused
from task_service.accounts.users import User
from task_service.db.schema import runs as runs_table
from task_service.db.schema import users as users_table
from task_service.tasks.models import Run, RunState
from task_service.tasks.next_run import OWNER_DISABLED
from task_service.tasks.worker_runs import Outcome

pytestmark = pytest.mark.anyio

LEASE = timedelta(seconds=15)
ADMIN = principal("usr_admin", "tasks:read_all")


@dataclass(kw_only=True)
class World(runs_support.World):
    accounts: Accounts
    ann: User
    task_id: str = ""

    async def queue(self) -> Run:
        self.clock.advance(1)
        return await self.runs.request(principal(self.ann.id), self.task_id)

    async def disable(self) -> None:
        await self.accounts.users.change(self.ann.id, disabled=True)

    async def get(self, run: Run) -> Run:
        return await self.runs.get(ADMIN, run.id)


@pytest.fixture(params=KINDS)
async def it(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with accounts_world(request.param, tmp_path) as accounts:
        it = World(accounts.db, accounts=accounts, ann=await accounts.user("ann", password=None))
        it.task_id = (await it.new_task(principal(it.ann.id))).id
        yield it


async def test_disabling_a_user_ends_queued_runs_and_stops_running_ones(it: World) -> None:
    running, queued = await it.queue(), await it.queue()
    worker = it.worker()
    acquired = await acquire(worker)
    await it.disable()
    over = await it.get(queued)
    assert (over.state, over.error) == (RunState.CANCELLED, OWNER_DISABLED)
    assert over.finished_at is not None
    assert await worker.acquire(1) == []
    # On any machine: the worker reads the request from the database.
    assert await to_be_stopped(worker) == {running.id}
    assert await worker.finish(acquired, Outcome(RunState.CANCELLED))
    stopped = await it.get(running)
    assert (stopped.state, stopped.error) == (RunState.CANCELLED, OWNER_DISABLED)


async def test_the_runs_of_a_disabled_user_do_not_come_back(it: World) -> None:
    """Neither from a worker that was killed or stopped, nor when the user is enabled again."""
    runs = [await it.queue() for _ in range(3)]
    worker, other = it.worker(), it.worker("other")
    acquired_runs = [await acquire(worker) for _ in range(2)]
    await it.disable()
    assert await worker.release(acquired_runs[0])
    assert await other.reclaim(await other.observed_leases()) == 1
    await it.accounts.users.change(it.ann.id, disabled=False)
    assert await other.acquire(1) == []
    for run in runs:
        over = await it.get(run)
        assert (over.state, over.error) == (RunState.CANCELLED, OWNER_DISABLED)
    # What they queue from now on is executed.
    again = await it.queue()
    assert (await acquire(other)).run_id == again.id


async def test_a_run_of_a_disabled_user_does_not_start_however_it_was_queued(it: World) -> None:
    """An older version of the service disables users and leaves their runs."""
    run = await it.queue()
    async with it.db.write() as connection:
        await connection.execute(update(users_table).values(disabled_at=it.clock.now()))
    worker = it.worker()
    assert await worker.acquire(1) == []
    over = await it.get(run)
    assert (over.state, over.error) == (RunState.CANCELLED, OWNER_DISABLED)


async def test_no_run_is_left_when_requests_and_workers_race_with_disabling(it: World) -> None:
    it.config.settings.max_concurrent_runs_per_user = 4

    async def request() -> None:
        with suppress(CredentialRefused):
            await it.queue()

    workers = [it.worker(f"w{number}") for number in range(3)]
    await asyncio.gather(
        *(request() for _ in range(4)),
        *(worker.acquire(1) for worker in workers),
        it.disable(),
        *(worker.acquire(1) for worker in workers),
        *(request() for _ in range(4)),
    )
    assert await it.worker().acquire(1) == []
    async with it.db.read() as connection:
        found = (await connection.execute(select(runs_table))).all()
    for row in found:
        assert row.state in {RunState.RUNNING, RunState.CANCELLED}
        assert row.cancel_requested_at is not None
        assert row.error == OWNER_DISABLED
