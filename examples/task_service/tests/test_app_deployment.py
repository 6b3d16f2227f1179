"""A deployment has an id of its own, which its login tokens name: copied secrets make no login good elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from argon2.profiles import CHEAPEST
from examples.task_service.tests.accounts_support import KINDS, START
from examples.task_service.tests.runs_support import migrated
from examples.task_service.tests.service_support import (
    ADMIN_PASSWORD,
    expect,
    problem,
    running_service,
)
from sqlalchemy import insert, select

from task_service.db import schema
from task_service.db.engine import Database
from task_service.db.migrate import migrate
from task_service.deployment import deployment_id, forget_deployment_id
from task_service.services import Services
from task_service.settings import Settings

pytestmark = pytest.mark.anyio


@pytest.fixture(params=KINDS)
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    async with migrated(request.param, tmp_path) as url:
        yield url


async def test_a_login_is_good_in_no_other_deployment_with_the_same_secrets(
    template: Path, tmp_path: Path
) -> None:
    # Both have the template's secrets and users. The session is copied as well, or it alone would refuse the token.
    async with (
        running_service(template, tmp_path / "one") as one,
        running_service(template, tmp_path / "other") as other,
    ):
        ada = await one.log_in("ada", ADMIN_PASSWORD)
        async with one.services.db.read() as source, other.services.db.write() as target:
            rows = (await source.execute(select(schema.sessions))).mappings().all()
            await target.execute(insert(schema.sessions), [dict(row) for row in rows])
        expect(await ada.get("/api/auth/me"), 200)
        token = ada.token
        response = await other.caller(token).get("/api/auth/me")
        assert problem(response) == (401, "token_invalid")


async def test_processes_that_start_at_the_same_moment_agree_on_one_id(url: str) -> None:
    databases = [Database.open(url) for _ in range(6)]
    try:
        ids = await asyncio.gather(*(deployment_id(db, START) for db in databases))
        assert len(set(ids)) == 1
        # One that starts later, too.
        assert await deployment_id(databases[0], START + timedelta(days=1)) == ids[0]
    finally:
        for db in databases:
            await db.close()


async def test_a_deployment_that_was_copied_can_be_given_another_id(url: str) -> None:
    db = Database.open(url)
    try:
        first = await deployment_id(db, START)
        await forget_deployment_id(db)
        assert await deployment_id(db, START) != first
    finally:
        await db.close()


async def test_logins_go_on_after_a_restart_and_none_is_accepted_before_the_id_is_known(
    tmp_path: Path,
) -> None:
    audiences = []
    for _ in range(2):
        services = Services(Settings(data_dir=tmp_path), password_hashing=CHEAPEST)
        unknown = services.tokens.audience
        await migrate(services.db)
        await services.join_deployment()
        audiences.append(services.tokens.audience)
        assert unknown.startswith("task-service:none_")
        await services.close()
    assert audiences[0] == audiences[1]
    assert audiences[0].startswith("task-service:dep_")
