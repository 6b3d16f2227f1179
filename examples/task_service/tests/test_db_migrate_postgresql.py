"""Migrating PostgreSQL beside transactions that hold locks: the migration waits, and no other process does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import pytest
from examples.task_service.tests.runs_support import fresh_postgres
from examples.task_service.tests.waiting import eventually
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError

from msk_auth.errors import StoreUnavailable
from task_service.db import migrate_postgresql
from task_service.db.engine import Database
from task_service.db.migrate import migrate

pytestmark = pytest.mark.anyio

INDEX = "ix_runs_state_owner_id_rank_created_at_id"
TOUCH = "UPDATE runs SET attempt = attempt WHERE id = 'run_1'"


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with fresh_postgres() as url:
        yield url


@pytest.fixture
async def db(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Database]:
    """A database of this version without the index that the last migration leaves for later."""
    monkeypatch.setattr(migrate_postgresql, "_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(migrate_postgresql, "LOCK_SECONDS", 0.2)
    db = Database.open(url)
    await migrate(db)
    async with db.write() as connection:
        await connection.exec_driver_sql(f"DROP INDEX {INDEX}")
    yield db
    await db.close()


async def is_valid(db: Database) -> bool | None:
    """Whether the index is there and can be used; None if there is none."""
    found = text("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(:name)")
    async with db.read() as connection:
        valid: bool | None = await connection.scalar(found, {"name": INDEX})
    return valid


@asynccontextmanager
async def open_transaction(url: str, statement: str) -> AsyncIterator[None]:
    """A transaction of another application, open until the end of the block."""
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await connection.execute(statement)
        yield


async def test_an_index_is_built_while_others_write(db: Database, url: str) -> None:
    async with open_transaction(url, TOUCH):
        migrating = asyncio.create_task(migrate(db))
        async with asyncio.timeout(60):
            while await is_valid(db) is None:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.02)
        # It is under way, and waits for the transaction that was there before.
        async with asyncio.timeout(60), db.write() as connection:
            await connection.exec_driver_sql(TOUCH)
        assert not migrating.done()
        assert await is_valid(db) is False
    await migrating

    assert await is_valid(db) is True


async def test_an_index_that_cannot_be_built_is_left_to_the_next_start(
    db: Database, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with open_transaction(url, TOUCH):
        with monkeypatch.context() as patch:
            patch.setattr(migrate_postgresql, "_INDEX_SECONDS", 0.2)
            assert await migrate(db) == []
    assert f"cannot build the index {INDEX} beside long transactions" in caplog.text
    assert await is_valid(db) is False
    await migrate(db)

    assert await is_valid(db) is True
    assert f"built the index {INDEX}" in caplog.text


async def test_a_database_that_fails_while_an_index_is_built_is_an_outage(
    db: Database, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate_postgresql, "_INDEX_SECONDS", 0.2)
    monkeypatch.setattr(migrate_postgresql, "_is_lock_conflict", lambda _: False)
    async with open_transaction(url, TOUCH):
        with pytest.raises(StoreUnavailable):
            await migrate(db)


async def test_a_table_in_use_is_retried_and_other_statements_pass_meanwhile(
    db: Database, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    newer = {
        **migrate_postgresql._queue_scripts(),
        "99.00.00_01_pre_colour": "ALTER TABLE procrastinate_jobs ADD COLUMN colour text",
    }
    monkeypatch.setattr(migrate_postgresql, "_queue_scripts", lambda: newer)
    async with open_transaction(url, "SELECT count(*) FROM procrastinate_jobs"):
        migrating = asyncio.create_task(migrate(db))
        await eventually(lambda: caplog.text.count("the migration will be retried") >= 2)
        async with asyncio.timeout(60), db.read() as connection:
            await connection.exec_driver_sql("SELECT count(*) FROM procrastinate_jobs")
        assert not migrating.done()
    await migrating

    async with db.read() as connection:
        await connection.exec_driver_sql("SELECT colour FROM procrastinate_jobs")


async def test_a_database_that_fails_meanwhile_is_an_outage(db: Database) -> None:
    def fail(_: Connection) -> None:
        raise OperationalError("statement", {}, psycopg.OperationalError("gone"))

    with pytest.raises(StoreUnavailable):
        await migrate_postgresql.migrate_postgresql(db, fail, finish=False)


async def test_a_process_that_waits_for_another_to_migrate_does_not_delay_it(
    db: Database, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with open_transaction(
        url, f"SELECT pg_advisory_lock({migrate_postgresql._ADVISORY_LOCK})"
    ):
        migrating = asyncio.create_task(migrate(db))
        await eventually(lambda: "another process that migrates" in caplog.text)
        # An index that the other one builds concurrently would wait for every snapshot.
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as other:
            await other.execute("SET lock_timeout = '60s'")
            await other.execute("CREATE INDEX CONCURRENTLY somebodys ON users (created_at)")
        assert not migrating.done()
    await migrating

    assert await is_valid(db) is True
