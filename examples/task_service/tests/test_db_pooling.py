"""Behind a real PgBouncer: with sessions of its own the service works, and with shared ones it refuses to start."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import URL
from tests.databases import pgbouncer, postgres_database

from msk_auth.errors import ConfigurationError
from task_service.cli import main
from task_service.db.engine import Database
from task_service.db.migrate import SchemaState, migrate, schema_state

pytestmark = pytest.mark.anyio


@pytest.fixture
def postgres() -> Iterator[URL]:
    with postgres_database() as url:
        yield url


def _address(url: URL) -> str:
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


async def test_the_service_works_with_a_pooler_of_sessions(postgres: URL) -> None:
    async with AsyncExitStack() as stack:
        db = Database.open(_address(stack.enter_context(pgbouncer(postgres, "session"))))
        stack.push_async_callback(db.close)
        await migrate(db)
        assert await schema_state(db) is SchemaState.CURRENT


async def test_a_pooler_that_shares_sessions_is_refused_and_the_doctor_reports_it(
    postgres: URL, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        url = _address(stack.enter_context(pgbouncer(postgres, "transaction")))
        db = Database.open(url)
        stack.push_async_callback(db.close)
        with pytest.raises(ConfigurationError, match="pool_mode=session"):
            await migrate(db)
        assert await schema_state(db) is SchemaState.OLDER
        env = {"TASK_SERVICE_DATABASE_URL": url, "TASK_SERVICE_DATA_DIR": str(tmp_path)}
        doctor = await asyncio.to_thread(CliRunner().invoke, main, ["doctor"], env=env)
    assert "problem  pooling: A pooler shares PostgreSQL's sessions" in doctor.output
