"""The database as the service opens it: turns of writers, timeouts, and the conversion of failures."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import sqlite3
import stat
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import psycopg
import pytest
from examples.task_service.tests.accounts_support import KINDS, database_url
from sqlalchemy import JSON, Column, Integer, MetaData, Table, exc, insert, select, text, update
from tests.cases import case
from tests.databases import postgres_database

from msk_auth.errors import ConfigurationError, StoreUnavailable
from task_service.db import engine as engine_module
from task_service.db.engine import Database, is_outage, lock_table, parse_url

pytestmark = pytest.mark.anyio

COUNTERS = Table("counters", MetaData(), Column("n", Integer, primary_key=True))


@pytest.fixture(params=KINDS)
async def db(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    async with database_url(request.param, tmp_path) as url:
        db = Database.open(url)
        async with db.write() as connection:
            await connection.run_sync(COUNTERS.metadata.create_all)
            await connection.execute(insert(COUNTERS).values(n=0))
        yield db
        await db.close()


async def test_columns_of_json_are_read_as_they_were_written(db: Database) -> None:
    value = {"list": [1, 2.5, 10**30, {"ü": None}], "half": "\ud800"}
    documents = Table("documents", MetaData(), Column("value", JSON, nullable=False))
    async with db.write() as connection:
        await connection.run_sync(documents.create)
        await connection.execute(insert(documents).values(value=value))
    async with db.read() as connection:
        assert await connection.scalar(select(documents.c.value)) == value


async def _value(db: Database) -> int:
    async with db.read() as connection:
        return await connection.scalar(select(COUNTERS.c.n)) or 0


async def test_writers_of_two_processes_lose_no_update(db: Database) -> None:
    other = db.with_timeout(60)

    async def increment(database: Database) -> None:
        async with database.write() as connection:
            await lock_table(connection, COUNTERS)
            n = await connection.scalar(select(COUNTERS.c.n))
            await asyncio.sleep(0)
            await connection.execute(update(COUNTERS).values(n=(n or 0) + 1))

    await asyncio.gather(*(increment(each) for each in (db, other) * 10))
    await other.close()

    assert await _value(db) == 20


async def test_a_write_that_raises_leaves_nothing(db: Database) -> None:
    async def write() -> None:
        async with db.write() as connection:
            await connection.execute(update(COUNTERS).values(n=5))
            raise LookupError

    with pytest.raises(LookupError):
        await write()

    assert await _value(db) == 0


async def test_a_cancelled_write_leaves_nothing_and_blocks_no_other(db: Database) -> None:
    began = asyncio.Event()

    async def write() -> None:
        async with db.write() as connection:
            await connection.execute(update(COUNTERS).values(n=5))
            began.set()
            await asyncio.Event().wait()

    writer = asyncio.create_task(write())
    await began.wait()
    writer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writer

    assert await _value(db) == 0
    async with db.write() as connection:
        await connection.execute(update(COUNTERS).values(n=1))
    assert await _value(db) == 1


async def test_a_cancelled_block_returns_its_connection(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # psycopg lets other tasks run now and then, also where it waits for nothing: here, each time.
    monkeypatch.setattr("psycopg.waiting.MAX_BUSY_TIME", 0.0)

    async def read() -> None:
        async with db.read() as connection:
            await connection.execute(select(COUNTERS))

    async def write() -> None:
        async with db.write() as connection:
            await connection.execute(update(COUNTERS).values(n=5))

    async def execute() -> None:
        await db.execute(update(COUNTERS).values(n=5).returning(COUNTERS.c.n))

    for block, turns in itertools.product((read, write, execute), range(12)):
        # A connection is open before.
        await read()
        task = asyncio.create_task(block())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        with case(block.__name__, turns):
            async with asyncio.timeout(60):
                while db.connections_in_use():  # noqa: ASYNC110 - the pool has no event
                    await asyncio.sleep(0)


async def test_a_reader_does_not_wait_for_a_writer_and_sees_what_was_committed(
    db: Database,
) -> None:
    async with db.write() as connection:
        await connection.execute(update(COUNTERS).values(n=7))
        assert await _value(db) == 0
    assert await _value(db) == 7


async def test_a_reader_sees_what_is_committed_while_it_reads(db: Database) -> None:
    async with db.read() as connection:
        before = await connection.scalar(select(COUNTERS.c.n))
        async with db.write() as writing:
            await writing.execute(update(COUNTERS).values(n=7))
        after = await connection.scalar(select(COUNTERS.c.n))

    assert (before, after) == (0, 7)


async def test_a_constraint_or_a_syntax_error_is_not_an_outage(db: Database) -> None:
    with pytest.raises(exc.IntegrityError):
        async with db.write() as connection:
            await connection.execute(insert(COUNTERS).values(n=0))
    with pytest.raises(TimeoutError):
        async with db.read():
            raise TimeoutError


async def test_a_block_that_takes_too_long_is_unavailable(
    db: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hasty = db.with_timeout(0.2)
    with pytest.raises(StoreUnavailable):
        async with hasty.read():
            await asyncio.sleep(10)
    await hasty.close()

    assert "the database cannot answer" in caplog.text


async def test_a_used_up_pool_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(engine_module._POOL, "pool_size", 1)
    monkeypatch.setitem(engine_module._POOL, "max_overflow", 0)
    monkeypatch.setitem(engine_module._POOL, "pool_timeout", 0.1)
    db = Database.open(f"sqlite:///{tmp_path / 'test.sqlite3'}")
    async with db.read() as connection:
        await connection.execute(text("SELECT 1"))
        with pytest.raises(StoreUnavailable):
            async with db.read():
                pass
    await db.close()


async def test_an_unreachable_database_is_unavailable() -> None:
    db = Database.open("postgresql://nobody:geheim@127.0.0.1:1/nothing")
    with pytest.raises(StoreUnavailable) as caught:
        async with db.read():
            pass
    await db.close()

    assert "geheim" not in str(caught.value)


async def test_a_frozen_connection_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    """A server that accepts and never answers; the driver's own bound on connecting would be 5 seconds."""
    hold: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: hold.append(writer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    db = Database.open(f"postgresql://nobody@127.0.0.1:{port}/nothing").with_timeout(0.3)
    with pytest.raises(StoreUnavailable):
        async with db.read():
            pass
    await db.close()
    for writer in hold:
        writer.close()
    server.close()
    await server.wait_closed()


async def test_a_late_statement_ends_on_the_server_too() -> None:
    with postgres_database() as url:
        db = Database.open(url.render_as_string(hide_password=False))
        hasty = db.with_timeout(0.3)
        with pytest.raises(StoreUnavailable):
            async with hasty.read() as connection:
                await connection.exec_driver_sql("SELECT pg_sleep(60)")
        async with db.read() as connection, asyncio.timeout(60):
            # The server is shared with other tests.
            active = text(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE datname = current_database() AND state = 'active' AND query LIKE 'SELECT pg_sleep%'"
            )
            while await connection.scalar(active):  # noqa: ASYNC110 - the server sets no event
                await asyncio.sleep(0.01)
        await hasty.close()
        await db.close()


async def test_the_pool_counts_its_connections_in_use_and_names_the_service(db: Database) -> None:
    assert db.connections_in_use() == 0
    async with db.read() as connection:
        assert db.connections_in_use() == 1
        if connection.dialect.name == "postgresql":
            assert await connection.scalar(text("SHOW application_name")) == "task-service"
    assert db.connections_in_use() == 0


async def test_a_locked_file_is_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "test.sqlite3"
    db = Database.open(f"sqlite:///{path}")
    # Only what has to fail is bounded so tightly: a busy machine takes longer for a write that succeeds.
    impatient = db.with_timeout(0.2)
    async with db.write() as connection:
        await connection.execute(text("CREATE TABLE things (n INTEGER)"))
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable):
        async with impatient.write() as connection:
            pass
    blocker.close()

    async with db.write() as connection:
        await connection.execute(text("INSERT INTO things VALUES (1)"))
    await impatient.close()
    await db.close()


async def test_a_full_disk_is_unavailable_and_passes(tmp_path: Path) -> None:
    db = Database.open(f"sqlite:///{tmp_path / 'test.sqlite3'}")
    async with db.write() as connection:
        await connection.execute(text("CREATE TABLE things (t TEXT)"))
        await connection.execute(text("PRAGMA max_page_count = 3"))
    with pytest.raises(StoreUnavailable):
        async with db.write() as connection:
            await connection.execute(text("INSERT INTO things VALUES (:t)"), {"t": "x" * 100_000})
    async with db.write() as connection:
        await connection.execute(text("INSERT INTO things VALUES ('x')"))
    await db.close()


async def test_the_sqlite_file_is_durable_strict_and_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "test.sqlite3"
    umask = os.umask(0)
    try:
        db = Database.open(f"sqlite:///{path}")
        async with db.write() as connection:
            await connection.execute(text("CREATE TABLE things (n INTEGER)"))
            settings = [
                await connection.scalar(text(f"PRAGMA {name}"))
                for name in (
                    "journal_mode",
                    "synchronous",
                    "foreign_keys",
                    "busy_timeout",
                    "journal_size_limit",
                )
            ]
            modes = {stat.S_IMODE(file.stat().st_mode) for file in list(os.scandir(tmp_path))}
    finally:
        os.umask(umask)
    await db.close()

    assert settings == ["wal", 2, 1, engine_module._WAIT_SECONDS * 1000, 16_777_216]
    assert modes == {0o600}


async def test_parameters_are_in_no_log_and_no_exception(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "task_service")
    # SQLite calls a mistake in a statement an operational error.
    with pytest.raises((exc.DBAPIError, StoreUnavailable)) as caught:
        async with db.write() as connection:
            await connection.execute(
                text("INSERT INTO nothing VALUES (:secret, 1)"), {"secret": "geheim-7"}
            )

    assert "geheim-7" not in str(caught.value) + caplog.text


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://root@localhost/x", "mysql"),
        ("sqlite://", "file"),
        ("sqlite:///:memory:", "file"),
        ("sqlite:////tmp/x?mode=ro", "file"),
        ("nonsense", "is malformed"),
        ("postgresql://u:geheim@h:notaport/x", "is malformed"),
        ("sqlite:////nonexistent/folder/x.sqlite3", "Cannot open the database file"),
    ],
)
async def test_the_error_for_an_unusable_url_names_the_right_form_and_no_password(
    url: str, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        Database.open(url)

    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+asyncpg"])
async def test_every_spelling_of_postgresql_gets_the_service_s_driver(scheme: str) -> None:
    assert parse_url(f"{scheme}://u@h/d").drivername == "postgresql+psycopg"


async def test_a_refused_statement_on_a_broken_connection_is_an_outage() -> None:
    broken = exc.ProgrammingError("x", {}, Exception(), connection_invalidated=True)

    assert is_outage(broken)
    assert not is_outage(exc.ProgrammingError("x", {}, Exception()))
    assert not is_outage(ValueError())


async def test_connections_that_the_server_has_closed_cost_no_request() -> None:
    """Such as after a restart of PostgreSQL: those in the pool are replaced before they are used."""
    with postgres_database() as url:
        db = Database.open(url.render_as_string(hide_password=False))
        async with AsyncExitStack() as stack:
            for _ in range(3):
                await stack.enter_async_context(db.read())
        with psycopg.connect(url.set(drivername="postgresql").render_as_string(False)) as other:
            ended = other.execute(
                "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            ).fetchall()
        assert len(ended) >= 3

        async with db.read() as connection:
            assert await connection.scalar(text("SELECT 1")) == 1
        async with db.write() as connection:
            assert await connection.scalar(text("SELECT 1")) == 1
        await db.close()
