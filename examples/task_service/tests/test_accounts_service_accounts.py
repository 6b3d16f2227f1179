"""Service accounts: owners that nothing lets log in, and whose keys end with them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from argon2.profiles import CHEAPEST
from examples.task_service.tests.accounts_support import KINDS, PASSWORD, principal
from examples.task_service.tests.runs_support import migrated
from examples.task_service.tests.service_support import refused_with
from sqlalchemy import insert, update
from sqlalchemy.exc import IntegrityError

from msk_auth import Principal
from msk_auth.errors import InputInvalid, LoginTooOld, PermissionDenied
from msk_auth.keys import CreatedKey
from task_service.accounts.audit import AuditQuery
from task_service.accounts.roles import RECENT_LOGIN
from task_service.accounts.service_accounts import PERMISSIONS, ServiceAccount, ServiceAccountQuery
from task_service.db.paging import PageRequest
from task_service.accounts.users import User
from task_service.db import schema
from task_service.errors import (
    LastAdministrator,
    LoginFailed,
    ServiceAccountNotFound,
    UsernameTaken,
    UserNotFound,
)
from task_service.services import Services
from task_service.settings import Settings
from task_service.tasks.models import NewTask, RunState

pytestmark = pytest.mark.anyio


@pytest.fixture(params=KINDS)
async def services(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Services]:
    async with migrated(request.param, tmp_path) as url:
        settings = Settings(data_dir=tmp_path / "data", database_url=url)
        settings.create_data_dir()
        services = Services(settings, password_hashing=CHEAPEST)
        await services.join_deployment()
        yield services
        await services.close()


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
    return [(entry.action, entry.actor_name, dict(entry.details)) for entry in reversed(page.items)]


# What one is


async def test_one_is_created_described_and_listed_by_name(
    services: Services, ada: Principal[User], bot: ServiceAccount
) -> None:
    accounts = services.service_accounts
    assert (bot.name, bot.description, bot.disabled) == ("deploy-bot", "Deploys", False)
    assert (bot.active_keys, bot.last_used_at) == (0, None)
    other = await accounts.create(" Backup ", "  ", by=ada)
    assert (other.name, other.description) == ("backup", None)
    page = await accounts.list(ServiceAccountQuery(), limit=1, count=True)
    assert ([one.name for one in page.items], page.total) == (["backup"], 2)
    page = await accounts.list(ServiceAccountQuery(), limit=1, cursor=page.next_cursor)
    assert ([one.name for one in page.items], page.next_cursor) == (["deploy-bot"], None)
    changed = await accounts.change(bot.id, by=ada, description="Deploys at night")
    assert await accounts.get(bot.id) == changed
    assert (await accounts.change(bot.id, by=ada, description="")).description is None
    for query, found in (
        (ServiceAccountQuery(search="DEPLOY"), ["deploy-bot"]),
        (ServiceAccountQuery(search=other.id), ["backup"]),
        (ServiceAccountQuery(disabled=True), []),
        (ServiceAccountQuery(disabled=False), ["backup", "deploy-bot"]),
    ):
        assert [one.name for one in (await accounts.list(query)).items] == found
    name = {"name": "deploy-bot"}
    assert await entries(services, "service_account.") == [
        ("service_account.created", "ada", name),
        ("service_account.created", "ada", {"name": "backup"}),
        ("service_account.described", "ada", {**name, "description": "Deploys at night"}),
        ("service_account.described", "ada", {**name, "description": None}),
    ]


async def test_a_name_belongs_to_a_user_or_to_a_service_account(
    services: Services, bot: ServiceAccount
) -> None:
    with pytest.raises(UsernameTaken):
        await services.service_accounts.create("ADA")
    with pytest.raises(UsernameTaken):
        await services.users.create("Deploy-Bot", ["user"])


@pytest.mark.parametrize(
    ("name", "description", "field"),
    [
        ("", None, "name"),
        ("deploy bot", None, "name"),
        ("x" * 65, None, "name"),
        ("bot", "x" * 501, "description"),
        ("bot", "a\x00b", "description"),
        ("bot", "two\nlines", "description"),
    ],
)
async def test_a_bad_one_is_not_created(
    services: Services, name: str, description: str | None, field: str
) -> None:
    with pytest.raises(InputInvalid) as refused:
        await services.service_accounts.create(name, description)
    assert [error.field for error in refused.value.errors] == [field]
    assert (await services.service_accounts.list(ServiceAccountQuery())).items == ()


async def test_what_is_for_users_does_not_find_it(
    services: Services, ada: Principal[User], bot: ServiceAccount
) -> None:
    assert [user.username for user in (await services.users.list(count=True)).items] == ["ada"]
    for attempt in (
        services.users.get(bot.id),
        services.users.change(bot.id, by=ada, roles=["admin"]),
        services.users.change(bot.id, by=ada, disabled=True),
        services.invitations.create(bot.id, by=ada),
    ):
        with pytest.raises(UserNotFound):
            await attempt
    with pytest.raises(ServiceAccountNotFound):
        await services.service_accounts.get(ada.owner.id)
    with pytest.raises(LastAdministrator):
        await services.users.change(ada.owner.id, disabled=True)


# It never logs in


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
    for typed in ("", PASSWORD, "deploy-bot"):
        with pytest.raises(LoginFailed):
            await services.login.log_in("deploy-bot", typed)
    assert (await services.login.log_in("ada", PASSWORD)).user.username == "ada"


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


# Its keys


async def test_an_administrator_makes_a_key_that_belongs_to_it(
    services: Services, ada: Principal[User], bot: ServiceAccount
) -> None:
    key = await key_of(services, ada, bot)
    assert (key.record.owner_id, key.record.scopes) == (bot.id, PERMISSIONS)
    using = await use(services, key)
    assert (using.owner.id, using.user.username) == (bot.id, "deploy-bot")
    assert using.permissions == {"tasks:read", "tasks:run", "tasks:write"}
    (entry,) = await entries(services, "key.created")
    assert entry[1:] == (
        "ada",
        {"name": "pipeline", "owner_id": bot.id, "scopes": sorted(PERMISSIONS)},
    )
    await services.authenticator.flush()
    summary = await services.service_accounts.get(bot.id)
    assert summary.active_keys == 1
    assert summary.last_used_at is not None
    await services.authenticator.revoke_key(ada, key.record.id, on_behalf_of=bot.id)
    with refused_with("key_revoked"):
        await use(services, key)
    assert (await services.service_accounts.get(bot.id)).active_keys == 0


async def test_only_an_administrator_acts_for_it_and_nobody_acts_for_a_person(
    services: Services, ada: Principal[User], bot: ServiceAccount
) -> None:
    await services.users.create("ulf", ["user"], password=PASSWORD)
    ulf = await logged_in(services, "ulf")
    for who, owner_id in (
        (ulf, bot.id),
        (ulf, ada.owner.id),
        (ada, ulf.owner.id),
        (ada, "svc_0000000000000000"),
        (ada, "svc_"),
    ):
        with pytest.raises(PermissionDenied):
            await services.authenticator.create_key(who, name="mine", on_behalf_of=owner_id)
        with pytest.raises(PermissionDenied):
            await services.authenticator.list_keys(who, on_behalf_of=owner_id)


@pytest.mark.parametrize("scope", ["keys:manage", "tasks:read_all", "admin:users"])
async def test_no_key_of_it_can_do_more_than_it(
    services: Services, ada: Principal[User], bot: ServiceAccount, scope: str
) -> None:
    with pytest.raises(InputInvalid) as refused:
        await services.authenticator.create_key(ada, name="x", scopes=[scope], on_behalf_of=bot.id)
    assert [error.field for error in refused.value.errors] == ["scopes"]


async def test_every_change_of_its_keys_takes_a_recent_login(
    services: Services, ada: Principal[User], bot: ServiceAccount
) -> None:
    it = services.authenticator
    key = (await key_of(services, ada, bot)).record
    old = replace(ada, authenticated_at=services.clock.now() - RECENT_LOGIN - timedelta(seconds=1))
    acting = {"on_behalf_of": bot.id}
    for attempt in (
        it.create_key(old, name="another", **acting),
        it.rotate_key(old, key.id, overlap=timedelta(0), **acting),
        it.update_key(old, key.id, name="renamed", **acting),
        it.revoke_key(old, key.id, **acting),
    ):
        with pytest.raises(LoginTooOld):
            await attempt
    # Nothing happened, and reading needs no such login.
    assert await it.get_key(old, key.id, **acting) == key
    assert (await it.list_keys(old, **acting)).items == (key,)
    # The key of the administrator is their own.
    await it.create_key(old, name="my own")


# Its end


async def test_disabling_it_refuses_its_keys_and_ends_its_runs_and_enabling_accepts_them_again(
    services: Services, ada: Principal[User], bot: ServiceAccount
) -> None:
    key = await key_of(services, ada, bot)
    using = await use(services, key)
    task = await services.tasks.create(
        using, NewTask(name="hello", handler="command", params={"argv": ["echo", "hello"]})
    )
    assert task.owner_id == bot.id
    queued = await services.runs.request(using, task.id)
    assert (await services.service_accounts.change(bot.id, by=ada, disabled=True)).disabled
    with refused_with("owner_disabled"):
        await use(services, key)
    run = await services.runs.get(ada, queued.id)
    assert run.state is RunState.CANCELLED
    with pytest.raises(InputInvalid):
        await key_of(services, ada, bot)
    await services.service_accounts.change(bot.id, by=ada, disabled=True)
    await services.service_accounts.change(bot.id, by=ada, disabled=False)
    assert (await use(services, key)).owner.id == bot.id
    assert [entry[:2] for entry in await entries(services, "service_account.")] == [
        ("service_account.created", "ada"),
        ("service_account.disabled", "ada"),
        ("service_account.enabled", "ada"),
    ]


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
    assert (await accounts.list(ServiceAccountQuery(), PageRequest(count=True))).total == 0
    # What refers to it stays, under a name that nothing else can have.
    assert (await services.tasks.get(ada, task.id)).owner_id == bot.id
    assert await services.users.names([bot.id]) == {bot.id: f"deploy-bot {bot.id}"}
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
