"""Service accounts: owners that nothing lets log in, and whose keys end with them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from examples.task_service.tests.accounts_support import PASSWORD, principal
from examples.task_service.tests.service_support import refused_with
from sqlalchemy import insert, update
from sqlalchemy.exc import IntegrityError

from msk_auth import Principal
from msk_auth.errors import InputInvalid, PermissionDenied
from msk_auth.keys import CreatedKey
from task_service.accounts.audit import AuditQuery
from task_service.accounts.service_accounts import ServiceAccount
from task_service.accounts.users import AccountQuery, User
from task_service.db import schema
from task_service.db.paging import PageRequest
from task_service.errors import (
    ServiceAccountNotFound,
    UserNotFound,
)
from task_service.services import Services
from task_service.tasks.models import NewTask

pytestmark = pytest.mark.anyio


@pytest.fixture
async def ada(services: Services) -> Principal[User]:
    """An administrator with a session of the moment."""
    await services.users.create("ada", ["admin"], password=PASSWORD)
    return await logged_in(services, "ada")


@pytest.fixture
async def bot(services: Services, ada: Principal[User]) -> ServiceAccount:
    return await services.service_accounts.create("deploy-bot", "Deploys", by=ada)


async def logged_in(services: Services, name: str) -> Principal[User]:
    begun = await services.login.log_in(name, PASSWORD)
    now = services.clock.now()
    return replace(principal(begun.user, session_id=begun.session_id), authenticated_at=now)


async def key_of(services: Services, by: Principal[User], account: ServiceAccount) -> CreatedKey:
    return await services.authenticator.create_key(by, name="pipeline", on_behalf_of=account.id)


async def use(services: Services, key: CreatedKey) -> Principal[User]:
    return await services.authenticator.authenticate([f"Bearer {key.value.reveal()}"])


async def entries(services: Services, action: str) -> list[tuple[str, str | None, dict[str, Any]]]:
    """What was done, by whom, oldest first."""
    page = await services.audit.list(AuditQuery(action=action), PageRequest(limit=200))
    return [
        (entry.action, entry.actor and entry.actor.username, entry.details)
        for entry in reversed(page.items)
    ]


async def test_the_database_gives_it_no_way_to_log_in(
    services: Services, bot: ServiceAccount
) -> None:
    this = schema.users.c.id == bot.id
    password = (await services.users.find_password("ada")).hash  # type: ignore[union-attr]
    for values in ({"password_hash": password}, {"external_login": True}):
        with pytest.raises(IntegrityError):
            async with services.db.write() as connection:
                await connection.execute(update(schema.users).where(this).values(**values))
    person = update(schema.users).where(schema.users.c.username == "ada")
    with pytest.raises(IntegrityError):
        async with services.db.write() as connection:
            await connection.execute(person.values(service_account=True))


async def test_a_link_that_someone_wrote_for_it_sets_no_password(
    services: Services, ada: Principal[User], bot: ServiceAccount
) -> None:
    """An operator of the database could."""
    link = await services.invitations.create(ada.owner.id, by=ada)
    async with services.db.write() as connection:
        await connection.execute(update(schema.password_links).values(user_id=bot.id))
    with pytest.raises(UserNotFound):
        await services.invitations.check(link.token)
    with pytest.raises(UserNotFound):
        await services.invitations.redeem(link.token, "five amber windmills")


# Its end


async def test_a_deleted_one_is_gone_and_its_name_is_free(
    services: Services, ada: Principal[User], bot: ServiceAccount
) -> None:
    accounts = services.service_accounts
    key = await key_of(services, ada, bot)
    using = await use(services, key)
    task = await services.tasks.create(
        using, NewTask(name="hello", handler="command", params={"argv": ["echo", "hello"]})
    )
    await accounts.delete(bot.id, services.authenticator, by=ada)
    with refused_with("key_revoked"):
        await use(services, key)
    for attempt in (
        accounts.get(bot.id),
        accounts.change(bot.id, by=ada, disabled=False),
        accounts.delete(bot.id, services.authenticator, by=ada),
    ):
        with pytest.raises(ServiceAccountNotFound):
            await attempt
    with pytest.raises(PermissionDenied):
        await key_of(services, ada, bot)
    assert (await accounts.list(AccountQuery(), PageRequest(count=True))).total == 0
    # What refers to it stays, under a name that nothing else can have.
    assert (await services.tasks.get(ada, task.id)).owner_id == bot.id
    kept = await services.users.by_id([bot.id])
    assert kept[bot.id].username == f"deploy-bot {bot.id}"
    again = await accounts.create("deploy-bot", by=ada)
    assert again.id != bot.id
    assert again.active_keys == 0
    (entry,) = await entries(services, "service_account.deleted")
    assert entry[1:] == ("ada", {"name": "deploy-bot"})


async def test_the_longest_name_is_freed_too(services: Services) -> None:
    for _ in range(2):
        bot = await services.service_accounts.create("x" * 64)
        await services.service_accounts.delete(bot.id, services.authenticator)


async def test_a_key_that_is_made_while_it_is_deleted_never_works(
    services: Services, ada: Principal[User], bot: ServiceAccount
) -> None:
    """As if the deletion had finished between the check of the library and the write of the key."""
    key = await key_of(services, ada, bot)
    await services.service_accounts.delete(bot.id, services.authenticator, by=ada)
    async with services.db.write() as connection:
        await connection.execute(
            update(schema.api_keys)
            .where(schema.api_keys.c.id == key.record.id)
            .values(revoked_at=None, deleted_at=None)
        )
    with refused_with("owner_disabled"):
        await use(services, key)


async def test_no_key_that_races_with_disabling_works_after_it(
    services: Services, ada: Principal[User], bot: ServiceAccount
) -> None:
    made = await asyncio.gather(
        *(key_of(services, ada, bot) for _ in range(4)),
        services.service_accounts.change(bot.id, by=ada, disabled=True),
        *(key_of(services, ada, bot) for _ in range(4)),
        return_exceptions=True,
    )
    keys = [one for one in made if isinstance(one, CreatedKey)]
    failures = [one for one in made if isinstance(one, BaseException)]
    assert all(isinstance(one, InputInvalid) for one in failures)
    for key in keys:
        with refused_with("owner_disabled"):
            await use(services, key)


@pytest.mark.parametrize("change", ["demoted", "disabled"])
async def test_an_administrator_who_is_none_any_more_changes_nothing(
    services: Services, ada: Principal[User], bot: ServiceAccount, change: str
) -> None:
    """Their request was authenticated before."""
    await services.users.create("bea", ["admin"], password=PASSWORD)
    key = await key_of(services, ada, bot)
    if change == "disabled":
        await services.users.change(ada.owner.id, disabled=True)
    else:
        await services.users.change(ada.owner.id, roles=["user"])
    accounts = services.service_accounts
    for attempt in (
        accounts.create("another", by=ada),
        accounts.change(bot.id, by=ada, disabled=True),
        accounts.delete(bot.id, services.authenticator, by=ada),
        services.authenticator.create_key(ada, name="x", on_behalf_of=bot.id),
    ):
        with refused_with("permission_denied", "token_revoked"):
            await attempt
    # The account outlives its administrator.
    assert (await use(services, key)).owner.id == bot.id


async def test_a_row_of_an_older_version_is_a_person(services: Services) -> None:
    values = {"id": "usr_000000000000000A", "username": "ann", "roles": ["user"]}
    async with services.db.write() as connection:
        await connection.execute(
            insert(schema.users).values(created_at=services.clock.now(), **values)
        )
    assert (await services.users.get(values["id"])).service_account is False  # type: ignore[arg-type]
