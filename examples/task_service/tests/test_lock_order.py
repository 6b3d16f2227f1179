"""Two transactions on PostgreSQL that lock the same rows wait for each other, and never in a circle.

A circle would cost a second, after which PostgreSQL ends one of the two: its client would get 503.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from argon2.profiles import CHEAPEST
from examples.task_service.tests.accounts_support import PASSWORD, principal
from examples.task_service.tests.runs_support import migrated
from examples.task_service.tests.service_support import refused_with
from examples.task_service.tests.waiting import eventually
from sqlalchemy import FromClause, column, select, table, text

from msk_auth import Principal
from task_service.accounts.departures import Departure
from task_service.accounts.users import User
from task_service.db.schema import tasks, users
from task_service.services import Services
from task_service.settings import Settings
from task_service.tasks.models import NewTask, RunState, Task

pytestmark = pytest.mark.anyio

_WAITING = text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


@pytest.fixture
async def services(tmp_path: Path) -> AsyncIterator[Services]:
    async with migrated("postgresql", tmp_path) as url:
        settings = Settings(data_dir=tmp_path / "data", database_url=url)
        services = Services(settings, password_hashing=CHEAPEST)
        await services.join_deployment()
        yield services
        await services.close()


@pytest.fixture
async def people(services: Services) -> list[Principal[User]]:
    """Three administrators, in the order in which the database sorts their ids."""
    for name in ("ann", "bob", "cat"):
        await services.users.create(name, ["admin"], password=PASSWORD)
    async with services.db.read() as connection:
        names = await connection.scalars(select(users.c.username).order_by(users.c.id))
    logins = [await services.login.log_in(name, PASSWORD) for name in names]
    return [principal(each.user, session_id=each.session_id) for each in logins]


def leave(services: Services, people: list[Principal[User]]) -> Awaitable[Departure]:
    """The third disables the second, and gives the tasks to the first."""
    heir, leaving, administrator = people
    return services.departures.leave(
        leaving.owner.id, by=administrator, revoke_keys=False, owner_id=heir.owner.id
    )


async def new_task(services: Services, owner: Principal[User]) -> Task:
    new = NewTask(name="hello", handler="command", params={"argv": ["echo", "hello"]})
    return await services.tasks.create(owner, new)


@asynccontextmanager
async def held(services: Services, of: FromClause, row_id: str) -> AsyncIterator[None]:
    """Another transaction locks this row until the end of the block."""
    async with services.db.write() as connection:
        row = select(of.c.id).where(of.c.id == row_id).with_for_update(key_share=True)
        await connection.execute(row)
        yield


async def in_turn(
    services: Services, of: FromClause, row_id: str, *works: Awaitable[Any]
) -> list[Any]:
    """The results of transactions that waited for one row, and locked it in this order."""
    async with held(services, of, row_id):
        begun = []
        for number, work in enumerate(works, start=1):
            begun.append(asyncio.ensure_future(work))
            await eventually(lambda number=number: waits_of(services, number))
    return await asyncio.gather(*begun)


async def waits_of(services: Services, number: int) -> bool:
    async with services.db.read() as connection:
        return await connection.scalar(_WAITING) == number


async def test_an_administrator_runs_a_task_of_a_user_and_disables_the_user(
    services: Services, people: list[Principal[User]]
) -> None:
    owner, administrator, _ = people
    task = await new_task(services, owner)
    run, disabled = await in_turn(
        services,
        users,
        owner.owner.id,
        services.runs.request(administrator, task.id),
        services.users.change(owner.owner.id, by=administrator, disabled=True),
    )
    assert disabled.disabled
    assert (await services.runs.get(administrator, run.id)).state is RunState.CANCELLED


async def test_an_heir_runs_a_task_of_a_user_who_leaves(
    services: Services, people: list[Principal[User]]
) -> None:
    heir, leaving, administrator = people
    task = await new_task(services, leaving)
    run, departure = await in_turn(
        services,
        users,
        heir.owner.id,
        services.runs.request(heir, task.id),
        leave(services, people),
    )
    assert departure.moved_tasks == 1
    assert (await services.runs.get(administrator, run.id)).state is RunState.CANCELLED


async def test_a_task_of_a_user_who_leaves_is_deleted(
    services: Services, people: list[Principal[User]]
) -> None:
    _, leaving, administrator = people
    task = await new_task(services, leaving)
    run = await services.runs.request(leaving, task.id)
    _, departure = await in_turn(
        services,
        tasks,
        task.id,
        services.tasks.delete(administrator, task.id),
        leave(services, people),
    )
    assert departure.moved_tasks == 0
    assert (await services.runs.get(administrator, run.id)).state is RunState.CANCELLED


async def test_the_first_run_of_a_service_account_starts_while_the_account_is_deleted(
    services: Services, people: list[Principal[User]]
) -> None:
    administrator = people[0]
    bot = await services.service_accounts.create("bot", by=administrator)
    new = NewTask(
        name="hello", handler="command", params={"argv": ["echo", "hello"]}, owner_id=bot.id
    )
    task = await services.tasks.create(administrator, new)
    run = await services.runs.request(administrator, task.id)
    worker_runs = services.worker.runner.worker_runs
    jobs = table("procrastinate_jobs", column("id"), column("queueing_lock"))
    async with services.db.read() as connection:
        job = await connection.scalar(select(jobs.c.id).where(jobs.c.queueing_lock == run.id))
    acquired, _ = await in_turn(
        services,
        jobs,
        job,
        worker_runs.acquire(1),
        services.service_accounts.delete(bot.id, services.authenticator, by=administrator),
    )
    assert [each.run_id for each in acquired] == [run.id]
    assert [lease.cancel_requested for lease in await worker_runs.observed_leases()] == [True]
    with refused_with("service_account_not_found"):
        await services.service_accounts.get(bot.id)


async def test_an_id_that_postgresql_cannot_store_is_not_found(
    services: Services, people: list[Principal[User]]
) -> None:
    for strange in ("\0", "usr_\0", "svc_\0"):
        with refused_with("user_not_found"):
            await services.users.change(strange, by=people[0], disabled=True)
        with refused_with("service_account_not_found"):
            await services.service_accounts.change(strange, by=people[0], disabled=True)
        with refused_with("service_account_not_found"):
            await services.service_accounts.delete(strange, services.authenticator, by=people[0])
