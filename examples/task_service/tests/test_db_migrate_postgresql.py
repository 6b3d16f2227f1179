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
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from msk_auth.errors import StoreUnavailable
from task_service.db import migrate_postgresql
from task_service.db.engine import Database
from task_service.db.migrate import migrate

pytestmark = pytest.mark.anyio


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with fresh_postgres() as url:
        yield url


@pytest.fixture
async def db(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Database]:
    """A database of this version."""
    monkeypatch.setattr(migrate_postgresql, "_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(migrate_postgresql, "LOCK_SECONDS", 0.2)
    db = Database.open(url)
    await migrate(db)
    yield db
    await db.close()


@asynccontextmanager
async def open_transaction(url: str, statement: str) -> AsyncIterator[None]:
    """A transaction of another application, open until the end of the block."""
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await connection.execute(statement)
        yield


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


async def test_a_process_waits_for_another_one_that_migrates(
    db: Database, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with open_transaction(
        url, f"SELECT pg_advisory_lock({migrate_postgresql._ADVISORY_LOCK})"
    ):
        migrating = asyncio.create_task(migrate(db))
        await eventually(lambda: "another process that migrates" in caplog.text)
        assert not migrating.done()
    assert await migrating == []
