"""Everything that writes accounts and queues, starts and ends runs, at once in two processes: nothing waits in a circle.

Two transactions that lock the same rows in another order end in a deadlock, which PostgreSQL resolves by failing one of
them: a 503 that no client caused.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from examples.task_service.tests.accounts_support import (
    KINDS,
    OTHER_PASSWORD,
    PASSWORD,
    World,
    compose,
    principal,
    world,
)
from examples.task_service.tests.runs_support import Config, parameters

from msk_auth import AsyncAuthenticator, Principal
from msk_auth.errors import Problem, StoreUnavailable, TooManyAttempts
from msk_auth.stores.sqlalchemy import AsyncSQLAlchemyKeyStore
from task_service.accounts.key_audit import KeyAudit
from task_service.accounts.users import User
from task_service.db import schema
from task_service.tasks.models import NewTask, RunState
from task_service.tasks.notifications import Notifications
from task_service.tasks.runs import Runs
from task_service.tasks.tasks import Tasks
from task_service.tasks.worker_runs import Outcome, WorkerRuns

pytestmark = [pytest.mark.anyio, pytest.mark.faults]

Act = Callable[[Principal[User], User], Awaitable[object]]

PASSWORDS = (PASSWORD, OTHER_PASSWORD)
CLIENTS = 4  # of each process
ACTS = 40
LEASE = timedelta(hours=1)


@pytest.fixture(params=KINDS)
async def processes(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[World]]:
    async with world(request.param, tmp_path) as one, AsyncExitStack() as stack:
        two = compose(one.db.with_timeout(60), one.passwords)
        stack.push_async_callback(two.db.close)
        yield [one, two]


class Client:
    """Does one thing after another, by chance, with the login that it has."""

    def __init__(
        self,
        it: World,
        keys: AsyncAuthenticator[User],
        runs: Runs,
        tasks: dict[User, str],
        seed: int,
    ) -> None:
        self._it = it
        self._keys = keys
        self._runs = runs
        self._tasks = tasks
        self._users = list(tasks)
        self._chance = random.Random(seed)
        self.done = 0

    async def act(self) -> None:
        user = self._chance.choice(self._users)
        try:
            me = await self._it.logged_in(user, self._chance.choice(PASSWORDS))
            self._it.sessions.seen(me.session_id or "", self._it.clock.now())
            for act in self._chance.sample(self._acts(), k=3):
                await act(me, self._chance.choice(self._users))
                self.done += 1
        except (StoreUnavailable, TooManyAttempts):
            raise
        except Problem:
            # Another client was first; whatever was refused has changed nothing.
            return

    def _acts(self) -> tuple[Act, ...]:
        it, chance = self._it, self._chance

        async def change(me: Principal[User], _: User) -> None:
            old, new = chance.sample(PASSWORDS, k=2)
            await it.login.change_password(me, old, new)

        async def reset(me: Principal[User], other: User) -> None:
            link = await it.invitations.create(other.id, by=me)
            await it.invitations.redeem(link.token, chance.choice(PASSWORDS))

        async def disable(me: Principal[User], other: User) -> None:
            await it.users.change(other.id, disabled=True, by=me)
            await it.users.change(other.id, disabled=False)

        async def confirm(me: Principal[User], _: User) -> None:
            await it.login.reauthenticate(me, chance.choice(PASSWORDS))

        async def end_others(me: Principal[User], _: User) -> None:
            await it.sessions.end_all(me.owner.id, by=me, keep=me.session_id)

        async def end_theirs(me: Principal[User], other: User) -> None:
            await it.sessions.end_all(other.id, by=me)

        async def log_out(me: Principal[User], _: User) -> None:
            await it.sessions.end(me.session_id or "", by=me)

        async def make_key(me: Principal[User], _: User) -> None:
            await self._keys.create_key(me, name="a key")

        async def queue(me: Principal[User], _: User) -> None:
            await self._runs.request(me, self._tasks[me.user])

        async def flush(_: Principal[User], __: User) -> None:
            await it.sessions.flush()

        return (
            *(change, reset, disable, confirm, end_others, end_theirs, log_out, make_key, queue),
            flush,
        )


async def execute_runs(worker: WorkerRuns, finished: asyncio.Event) -> None:
    """A worker whose runs end as soon as they have begun."""
    while not finished.is_set():
        held = await worker.acquire(3)
        if not held:
            await asyncio.sleep(0.01)
            continue
        await asyncio.gather(*map(worker.renew, held))
        ends = (worker.finish(run, Outcome(RunState.SUCCEEDED)) for run in held)
        await asyncio.gather(*ends)


async def test_concurrent_writes_do_not_deadlock(
    processes: list[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = processes[0]
    notifications, config = Notifications(), Config()
    made = Tasks(one.accounts, parameters(config))
    new = NewTask(name="Task", handler="anything", params={"do": "nothing"})
    tasks: dict[User, str] = {}
    for name in ("ann", "bob", "eve"):
        user = await one.user(name, "admin")
        tasks[user] = (await made.create(principal(user), new)).id

    async def uncounted(*_: object) -> None:
        """Guesses are not what this is about."""

    finished = asyncio.Event()
    async with AsyncExitStack() as stack:
        clients: list[Client] = []
        workers: list[asyncio.Task[None]] = []
        for number, it in enumerate(processes):
            monkeypatch.setattr(it.throttle, "attempt", uncounted)
            worker = WorkerRuns(
                it.db, it.clock, config, notifications, worker_id=f"w{number}", lease=LEASE
            )
            workers.append(asyncio.create_task(execute_runs(worker, finished)))
            store = AsyncSQLAlchemyKeyStore(
                it.db.engine, schema.api_keys, on_change=KeyAudit(it.db, it.audit).on_change
            )
            stack.push_async_callback(store.aclose)
            keys = AsyncAuthenticator(
                store,
                find_owner=it.users.find_owner,
                find_session=it.sessions.find_session,
                tokens=it.tokens,
                clock=it.clock,
            )
            runs = Runs(it.accounts, config, notifications, parameters(config))
            clients += [
                Client(it, keys, runs, tasks, seed=10 * number + seed) for seed in range(CLIENTS)
            ]

        async def work(client: Client) -> None:
            for _ in range(ACTS):
                await client.act()

        try:
            await asyncio.gather(*(work(client) for client in clients))
        finally:
            finished.set()
            await asyncio.gather(*workers)
    assert sum(client.done for client in clients) > len(clients) * ACTS / 10
