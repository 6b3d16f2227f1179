"""Several processes that start without an administrator: every printed link is valid until one is used."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from argon2.profiles import CHEAPEST
from examples.task_service.tests.accounts_support import (
    KINDS,
    OTHER_PASSWORD,
    PASSWORD,
)
from examples.task_service.tests.runs_support import migrated
from sqlalchemy import func, select

from task_service import cli
from task_service.accounts.credentials import MAX_FIRST_LINKS
from task_service.accounts.invitations import Invitation
from task_service.db import schema
from task_service.errors import LinkInvalid
from task_service.services import Services
from task_service.settings import Settings

pytestmark = pytest.mark.anyio


@pytest.fixture(params=KINDS)
async def processes(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[list[Services]]:
    """Two services that were started at the same moment on one database without users."""
    async with migrated(request.param, tmp_path) as url, contextlib.AsyncExitStack() as stack:
        settings = Settings(data_dir=tmp_path / "data", database_url=url, execute_runs="never")
        processes = [Services(settings, password_hashing=CHEAPEST) for _ in range(2)]
        for services in processes:
            stack.push_async_callback(services.close)
        await asyncio.gather(*(services.join_deployment() for services in processes))
        yield processes


async def _links(processes: list[Services], each: int = 1) -> list[Invitation]:
    """What all of them make at the same moment."""
    made = await asyncio.gather(
        *(
            services.invitations.create_for_first_administrator()
            for services in processes
            for _ in range(each)
        )
    )
    links = [link for link in made if link is not None]
    assert len(links) == len(made)
    return links


async def _count(services: Services, table: str) -> int:
    async with services.db.read() as connection:
        counted = await connection.scalar(
            select(func.count()).select_from(schema.metadata.tables[table])
        )
    return int(counted or 0)


async def _works(services: Services, link: Invitation) -> bool:
    try:
        await services.invitations.check(link.token)
    except LinkInvalid:
        return False
    return True


async def test_all_their_links_work_until_one_is_used(processes: list[Services]) -> None:
    links = await _links(processes, each=3)
    one, other = processes

    assert {link.user.username for link in links} == {"admin"}
    assert await _count(one, "users") == 1
    assert [await _works(other, link) for link in links] == [True] * 6
    # The log of the machine that was started first is as good as any.
    await other.invitations.redeem(links[0].token, PASSWORD)
    user = await other.users.get_by_name("admin")
    assert user.has_password
    for link in links:
        with pytest.raises(LinkInvalid):
            await one.invitations.redeem(link.token, OTHER_PASSWORD)
    assert (await one.login.log_in("admin", PASSWORD)).user.id == user.id
    for services in processes:
        assert await services.invitations.create_for_first_administrator() is None


async def test_of_two_links_that_are_used_at_the_same_moment_one_counts(
    processes: list[Services],
) -> None:
    links = await _links(processes)
    passwords = [PASSWORD, OTHER_PASSWORD]
    outcomes = await asyncio.gather(
        *(
            services.invitations.redeem(link.token, password)
            for services, link, password in zip(processes, links, passwords, strict=True)
        ),
        return_exceptions=True,
    )
    used = [not isinstance(outcome, Exception) for outcome in outcomes]

    assert sorted(used) == [False, True]
    assert isinstance(outcomes[used.index(False)], LinkInvalid), outcomes
    password = passwords[used.index(True)]
    assert (await processes[0].login.log_in("admin", password)).user.username == "admin"


async def test_no_printed_link_is_valid_once_an_administrator_with_a_password_was_added(
    processes: list[Services],
) -> None:
    links = await _links(processes)
    one, other = processes
    await other.users.create("bob", ["user"], password=PASSWORD)
    await other.users.create("eve", ["admin"])
    assert [await _works(one, link) for link in links] == [True, True]

    await other.users.create("ada", ["admin"], password=PASSWORD)
    for link in links:
        with pytest.raises(LinkInvalid):
            await one.invitations.redeem(link.token, OTHER_PASSWORD)
    assert await one.invitations.create_for_first_administrator() is None


async def test_no_printed_link_is_valid_once_another_administrator_has_redeemed_a_link(
    processes: list[Services],
) -> None:
    links = await _links(processes)
    one, other = processes
    ada = await other.users.create("ada", ["admin"])
    invitation = await other.invitations.create(ada.id)
    await other.invitations.redeem(invitation.token, PASSWORD)
    assert [await _works(one, link) for link in links] == [False, False]


async def test_a_user_invited_by_an_administrator_keeps_their_link(
    processes: list[Services],
) -> None:
    one, other = processes
    await one.users.create("ada", ["admin"], password=PASSWORD)
    eve = await one.users.create("eve", ["admin"])
    invitation = await one.invitations.create(eve.id)
    await other.users.create("bea", ["admin"], password=PASSWORD)
    assert await _works(other, invitation)


async def test_a_service_that_is_started_over_and_over_leaves_a_bounded_number_of_ways_in(
    processes: list[Services],
) -> None:
    first = (await _links(processes[:1]))[0]
    links = await _links(processes, each=MAX_FIRST_LINKS // 2)

    assert len(links) == MAX_FIRST_LINKS
    assert [await _works(processes[0], link) for link in links] == [True] * MAX_FIRST_LINKS
    assert not await _works(processes[0], first)


async def test_an_invitation_replaces_the_earlier_link(
    processes: list[Services],
) -> None:
    links = await _links(processes)
    invited = await processes[0].invitations.create(links[0].user.id)

    assert [await _works(processes[1], link) for link in (*links, invited)] == [False, False, True]


async def test_each_process_prints_a_link_and_there_is_one_example_task(
    processes: list[Services], capsys: pytest.CaptureFixture[str]
) -> None:
    await asyncio.gather(*(cli._greet(services) for services in processes))
    tokens = re.findall(r"/set-password#([\w-]{43})", capsys.readouterr().out)

    assert len(set(tokens)) == 2
    assert await _count(processes[0], "tasks") == 1
    for token in tokens:
        assert (await processes[0].invitations.check(token)).username == "admin"
