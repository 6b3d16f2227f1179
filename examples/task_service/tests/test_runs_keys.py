"""A run starts only while the key that requested it may still act. Revoking a key leaves what it has started."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from examples.task_service.tests import runs_support
from examples.task_service.tests.accounts_support import KINDS
from examples.task_service.tests.accounts_support import World as Accounts
from examples.task_service.tests.accounts_support import world as accounts_world
from examples.task_service.tests.runs_support import acquire, principal, to_be_stopped
from sqlalchemy import delete

from msk_auth import AsyncAuthenticator, Principal
from msk_auth.events import LeakedKey, LeakLocation
from msk_auth.keys import CreatedKey
from msk_auth.stores.sqlalchemy import AsyncSQLAlchemyKeyStore
from task_service.accounts.key_audit import KeyAudit
from task_service.accounts.users import User
from task_service.db import schema
from task_service.tasks.models import Run, RunState
from task_service.tasks.next_run import KEY_EXPIRED, KEY_LEAKED, KEY_REVOKED

pytestmark = pytest.mark.anyio

ADMIN = principal("usr_admin", "tasks:read_all")
DAY = timedelta(days=1)


@dataclass(kw_only=True)
class World(runs_support.World):
    accounts: Accounts
    authenticator: AsyncAuthenticator[User]
    ann: User
    login: Principal[User]
    task_id: str = ""

    async def key(self) -> CreatedKey:
        return await self.authenticator.create_key(self.login, name="ci", lifetime=DAY)

    async def queue(self, key: CreatedKey | None = None) -> Run:
        self.clock.sleep(1)
        key_id = None if key is None else key.record.id
        return await self.runs.request(principal(self.ann.id, key_id=key_id), self.task_id)

    async def revoke(self, key: CreatedKey) -> None:
        await self.authenticator.revoke_key(self.login, key.record.id)

    async def outcome(self, run: Run) -> tuple[RunState, str | None]:
        now = await self.runs.get(ADMIN, run.id)
        assert (now.finished_at is not None) == now.state.is_final
        return now.state, now.error


@pytest.fixture(params=KINDS)
async def it(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        accounts = await stack.enter_async_context(accounts_world(request.param, tmp_path))
        ann = await accounts.user("ann")
        audit = KeyAudit(accounts.db, accounts.audit)
        store = AsyncSQLAlchemyKeyStore(
            accounts.db.engine, schema.api_keys, on_change=audit.on_change
        )
        stack.push_async_callback(store.aclose)
        it = World(
            accounts.db,
            accounts.clock,
            accounts=accounts,
            authenticator=AsyncAuthenticator(
                store, find_owner=accounts.users.find_owner, clock=accounts.clock
            ),
            ann=ann,
            login=await accounts.logged_in(ann),
        )
        it.task_id = (await it.new_task(principal(ann.id))).id
        yield it


async def remove(it: World, key: CreatedKey) -> None:
    async with it.accounts.db.write() as connection:
        await connection.execute(delete(schema.api_keys))


async def expire(it: World, key: CreatedKey) -> None:
    it.accounts.clock.sleep(DAY.total_seconds())


@pytest.mark.parametrize(
    ("end", "error"),
    [(World.revoke, KEY_REVOKED), (remove, KEY_REVOKED), (expire, KEY_EXPIRED)],
)
async def test_a_queued_run_of_a_key_that_has_ended_does_not_start_and_says_so(
    it: World, end: Any, error: str
) -> None:
    key = await it.key()
    queued = [await it.queue(key) for _ in range(3)]
    await end(it, key)
    with patch.object(it.db, "write", wraps=it.db.write) as write:
        assert await it.worker().acquire(1) == []
    # A key may have many queued runs, which end together.
    assert write.call_count == 3
    for run in queued:
        assert await it.outcome(run) == (RunState.CANCELLED, error)
    # What the person queues from now on is executed.
    again = await it.queue()
    assert (await acquire(it.worker())).run_id == again.id


async def test_only_the_runs_of_that_key_are_refused(it: World) -> None:
    revoked, other = await it.key(), await it.key()
    first = await it.queue(revoked)
    rest = [await it.queue(), await it.queue(other), await it.queue()]
    await it.revoke(revoked)
    worker = it.worker()
    assert [(await acquire(worker)).run_id for _ in rest] == [run.id for run in rest]
    assert await worker.acquire(1) == []
    assert await it.outcome(first) == (RunState.CANCELLED, KEY_REVOKED)


async def test_revoking_a_key_leaves_what_it_has_started(it: World) -> None:
    key = await it.key()
    run = await it.queue(key)
    worker = it.worker()
    acquired = await acquire(worker)
    await it.revoke(key)
    assert await to_be_stopped(worker) == set()
    assert await worker.renew(acquired)
    assert await it.outcome(run) == (RunState.RUNNING, None)


async def test_a_run_whose_worker_died_does_not_start_again_after_its_key_was_revoked(
    it: World,
) -> None:
    key = await it.key()
    run = await it.queue(key)
    await acquire(it.worker("dead"))
    await it.revoke(key)
    other = it.worker("other")
    assert await other.reclaim(await other.observed_leases()) == 1
    assert await other.acquire(1) == []
    assert await it.outcome(run) == (RunState.CANCELLED, KEY_REVOKED)


async def test_a_leaked_key_takes_all_its_runs_with_it(it: World) -> None:
    key, other = await it.key(), await it.key()
    running, queued = await it.queue(key), await it.queue(key)
    kept = [await it.queue(other), await it.queue()]
    worker = it.worker()
    await acquire(worker)
    place = LeakLocation("github", "commit", "https://github.example/1")
    await it.authenticator.revoke_leaked([LeakedKey(key.value.reveal(), place)])
    assert await it.outcome(queued) == (RunState.CANCELLED, KEY_LEAKED)
    assert await to_be_stopped(worker) == {running.id}
    assert (await it.outcome(running))[1] == KEY_LEAKED
    assert [(await acquire(worker)).run_id for _ in kept] == [run.id for run in kept]


async def test_an_owner_may_cancel_the_runs_of_a_key_with_it(it: World) -> None:
    key, other = await it.key(), await it.key()
    running, queued = await it.queue(key), await it.queue(key)
    kept = [await it.queue(other), await it.queue()]
    worker = it.worker()
    await acquire(worker)
    await it.revoke(key)
    await it.runs.cancel_of_key(it.login, key.record.id)
    assert (await it.outcome(queued))[0] is RunState.CANCELLED
    assert await to_be_stopped(worker) == {running.id}
    assert (await it.accounts.actions()).count("run.cancelled") == 2
    assert [(await acquire(worker)).run_id for _ in kept] == [run.id for run in kept]
