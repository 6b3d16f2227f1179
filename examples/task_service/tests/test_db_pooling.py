"""Behind a real PgBouncer: with sessions of its own the service works, and with shared ones it refuses to start."""

from __future__ import annotations

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
from task_service.db.pooling import REMEDY, shares_sessions

pytestmark = pytest.mark.anyio


@pytest.fixture
def postgres() -> Iterator[URL]:
    with postgres_database() as url:
        yield url


def _address(url: URL) -> str:
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


async def test_postgresql_itself_shares_no_session(postgres: URL) -> None:
    async with AsyncExitStack() as stack:
        db = Database.open(_address(postgres))
        stack.push_async_callback(db.close)
        assert not await shares_sessions(db)


async def test_the_service_works_with_a_pooler_of_sessions(postgres: URL) -> None:
    async with AsyncExitStack() as stack:
        db = Database.open(_address(stack.enter_context(pgbouncer(postgres, "session"))))
        stack.push_async_callback(db.close)
        await migrate(db)
        assert await schema_state(db) is SchemaState.CURRENT


async def test_the_service_refuses_a_pooler_that_shares_sessions(postgres: URL) -> None:
    async with AsyncExitStack() as stack:
        db = Database.open(_address(stack.enter_context(pgbouncer(postgres, "transaction"))))
        stack.push_async_callback(db.close)
        with pytest.raises(ConfigurationError, match="pool_mode=session"):
            await migrate(db)
        assert await schema_state(db) is SchemaState.OLDER


@pytest.mark.parametrize(
    ("pool_mode", "line"),
    [
        ("session", "pooling: each connection has a session of its own"),
        ("transaction", REMEDY),
    ],
)
def test_the_doctor_reports_a_pooler_that_shares_sessions(
    postgres: URL, pool_mode: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pgbouncer(postgres, pool_mode) as url:
        monkeypatch.setenv("TASK_SERVICE_DATABASE_URL", _address(url))
        monkeypatch.setenv("TASK_SERVICE_DATA_DIR", str(tmp_path))
        output = CliRunner().invoke(main, ["doctor"]).output
    assert line in output
