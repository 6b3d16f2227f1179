"""What the stores in databases promise beyond the contract, and what their columns hold."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy import (
    URL,
    AsyncAdaptedQueuePool,
    Column,
    Connection,
    Engine,
    MetaData,
    NullPool,
    QueuePool,
    String,
    Table,
    create_engine,
    event,
    select,
    text,
)
from sqlalchemy.dialects import mssql, mysql, postgresql, sqlite
from sqlalchemy.dialects.mysql.mariadb import MariaDBDialect
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection
from tests.cases import case
from tests.stores.support import OnEngine, async_engine_on, engine_on, sqlite_url

from msk_auth.errors import ConfigurationError
from msk_auth.events import KeyEvent
from msk_auth.stores import KeyQuery
from msk_auth.stores.sqlalchemy import (
    AsyncSQLAlchemyKeyStore,
    SQLAlchemyKeyStore,
    _servers,
    api_key_table,
    read_record,
)
from msk_auth.testing import BackgroundLoop
from msk_auth.testing._store_contract import (
    NOW,
    OWNER,
    add,
    ids,
    in_parallel,
    make_record,
    revocation_of,
)

pytestmark = pytest.mark.slow


@pytest.mark.faults
class TestPostgresUnderSerializable(OnEngine):
    """An application's isolation level changes nothing."""

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, postgres_url: URL) -> Iterator[Engine]:
        with engine_on(postgres_url, isolation_level="SERIALIZABLE") as engine:
            yield engine


def test_a_revocation_is_seen_even_if_the_pool_never_ends_transactions(url: URL) -> None:
    with engine_on(url, pool_reset_on_return=None) as careless, engine_on(url) as other:
        store, revoker = SQLAlchemyKeyStore(careless), SQLAlchemyKeyStore(other)
        # The long way on SQLite too.
        store.close()
        add(store, "k")
        assert store.find("k") is not None
        assert ids(store) == ["k"]
        revoker.revoke("k", owner_id=OWNER, at=NOW)
        revoker.close()
        found = store.find("k")
        assert found is not None
        assert found.revoked_at == NOW
        (listed,) = store.list(KeyQuery(OWNER, NOW))
        assert listed.revoked_at == NOW


def test_errors_do_not_show_what_is_stored(url: URL, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.DEBUG, "sqlalchemy.engine"),
        engine_on(url) as engine,
        closing(SQLAlchemyKeyStore(engine)) as store,
    ):
        add(store, "k", digest="sha256:digest-of-k", name="name-of-k")
        with pytest.raises(IntegrityError) as caught:
            add(store, "k", digest="sha256:digest-of-k", name="name-of-k")
    assert "digest-of-k" not in str(caught.value)
    assert "name-of-k" not in str(caught.value)
    assert "INSERT INTO msk_auth_api_keys" in caplog.text
    assert "digest-of-k" not in caplog.text


def test_a_writer_does_not_wait_for_ever(tmp_path: Path) -> None:
    is_writing, is_refused = threading.Event(), threading.Event()

    def linger(_connection: Connection, _event: object) -> None:
        is_writing.set()
        assert is_refused.wait(60)

    with engine_on(sqlite_url(tmp_path)) as engine, ThreadPoolExecutor(1) as threads:
        store = SQLAlchemyKeyStore(engine, on_change=linger)
        first = threads.submit(add, store, "k1", change=revocation_of)
        assert is_writing.wait(60)
        store.write_seconds = 0.01
        with pytest.raises(TimeoutError, match="earlier writes"):
            add(store, "k2", change=revocation_of)
        is_refused.set()
        first.result()
        add(store, "k2", change=revocation_of)
        store.close()


@pytest.mark.anyio
async def test_an_asynchronous_writer_does_not_wait_for_ever(
    tmp_path: Path,
) -> None:
    is_writing, is_refused = asyncio.Event(), asyncio.Event()

    async def linger(_connection: AsyncConnection, _event: object) -> None:
        is_writing.set()
        await is_refused.wait()

    async def insert(key_id: str) -> None:
        await store.insert(make_record(key_id), max_active=None, now=NOW, change=revocation_of)

    engine = async_engine_on(sqlite_url(tmp_path))
    store = AsyncSQLAlchemyKeyStore(engine, on_change=linger)
    first = asyncio.create_task(insert("k1"))
    await is_writing.wait()
    store.write_seconds = 0.01
    with pytest.raises(TimeoutError, match="earlier writes"):
        await insert("k2")
    is_refused.set()
    await first
    await insert("k2")
    await store.aclose()
    await engine.dispose()


@pytest.mark.anyio
async def test_a_cancelled_writer_releases_its_turn(tmp_path: Path) -> None:
    # The pool's connection is open before anything is cancelled: SQLAlchemy loses one that is being opened. Without a
    # choice, old versions open one for each transaction.
    engine = async_engine_on(
        sqlite_url(tmp_path), poolclass=AsyncAdaptedQueuePool, pool_size=1, max_overflow=0
    )
    store = AsyncSQLAlchemyKeyStore(engine)
    await store.insert(make_record("first"), max_active=None, now=NOW)
    tasks = [
        asyncio.create_task(store.insert(make_record(f"k{n}"), max_active=None, now=NOW))
        for n in range(30)
    ]
    await asyncio.sleep(0.01)
    for task in tasks[::2]:
        task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    written = {record.id for record in await store.list(KeyQuery(OWNER, NOW, limit=100))}
    # A task that ended well has written; one that was cancelled may have been about to.
    assert {f"k{n}" for n, outcome in enumerate(outcomes) if outcome is None} <= written
    assert {f"k{n}" for n in range(1, 30, 2)} <= written
    await store.insert(make_record("last"), max_active=None, now=NOW)
    await store.aclose()
    await engine.dispose()


@pytest.mark.anyio
async def test_a_hook_that_waits_for_ever_keeps_no_writer_waiting_after_its_caller_has_gone(
    tmp_path: Path,
) -> None:
    engine = async_engine_on(sqlite_url(tmp_path))
    is_reached = asyncio.Event()

    async def wait_for_ever(_connection: AsyncConnection, _event: KeyEvent) -> None:
        is_reached.set()
        await asyncio.Event().wait()

    store = AsyncSQLAlchemyKeyStore(engine, on_change=wait_for_ever)
    first, second = make_record("k1"), make_record("k2")
    task = asyncio.create_task(store.insert(first, max_active=9, now=NOW, change=revocation_of))
    await is_reached.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    # The hook has no event to wait with.
    await store.insert(second, max_active=9, now=NOW, change=lambda _: ())
    assert [each.id for each in await store.list(KeyQuery(OWNER, NOW))] == ["k2"]
    await store.aclose()
    await engine.dispose()


@pytest.mark.anyio
async def test_a_closed_store_leaves_no_connection_to_a_pool_that_is_disposed_of(
    postgres_url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a process stops while it reads: the garbage collector would find the connection open."""
    # Longer than a busy machine takes to connect.
    monkeypatch.setattr("msk_auth.stores.sqlalchemy._async.running.CANCEL_SECONDS", 60)
    engine = async_engine_on(postgres_url)
    returned: list[object] = []
    event.listen(engine.sync_engine, "checkin", lambda *_: returned.append(_))
    store = AsyncSQLAlchemyKeyStore(engine)
    reading = asyncio.create_task(store.list(KeyQuery(OWNER, NOW)))
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait([reading])
    assert reading.cancelled()
    assert returned == []
    await store.aclose()
    assert len(returned) == 1
    await engine.dispose()


@pytest.mark.anyio
async def test_a_cancelled_call_returns_its_connection(
    url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when clients hang up: the application's pool is not one connection short until garbage is collected."""
    # psycopg lets other tasks run now and then, also where it waits for nothing: here, each time.
    monkeypatch.setattr("psycopg.waiting.MAX_BUSY_TIME", 0.0)
    # The oldest SQLAlchemy has no pool for files of SQLite, unless it is asked for.
    engine = async_engine_on(
        url, poolclass=AsyncAdaptedQueuePool, pool_size=1, max_overflow=0, pool_timeout=60
    )
    store = AsyncSQLAlchemyKeyStore(engine)
    calls = {
        "read": partial(store.list, KeyQuery(OWNER, NOW)),
        "write": partial(store.touch, {"k1": NOW}),
    }
    for (name, call), turns in itertools.product(calls.items(), range(25)):
        # It opens a connection if the last one was closed, since it was cancelled within a statement.
        await store.list(KeyQuery(OWNER, NOW))
        task = asyncio.ensure_future(call())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        with case(name, turns):
            async with asyncio.timeout(60):
                while cast("QueuePool", engine.pool).checkedout():  # noqa: ASYNC110 - the pool has no event
                    await asyncio.sleep(0)
    await store.aclose()
    await engine.dispose()


@pytest.mark.anyio
async def test_a_connection_to_sqlite_may_be_closed_again(tmp_path: Path) -> None:
    """As a pool does that stops a connection while a cancelled request closes it."""
    engine = async_engine_on(sqlite_url(tmp_path))
    store = AsyncSQLAlchemyKeyStore(engine)
    async with engine.connect() as connection:
        driver: Any = (await connection.get_raw_connection()).driver_connection
        cursor = await driver.cursor()
        await cursor.execute("SELECT 1 UNION SELECT 2")
        assert await cursor.fetchone() == (1,)
        closing = asyncio.ensure_future(driver.close())
        await asyncio.sleep(0)
        stopping = driver.stop()
        # Both take place before the event loop learns of either.
        time.sleep(0.1)  # noqa: ASYNC251
        await stopping
        # The driver's thread has ended, and its `close` would wait for it.
        closing.cancel()
        await asyncio.wait([closing])
        await connection.invalidate()
    assert await store.list(KeyQuery(OWNER, NOW)) == []
    await store.aclose()
    await engine.dispose()


def test_another_database_is_refused() -> None:
    driver = SimpleNamespace(paramstyle="pyformat", __version__="2.2", Error=Exception)
    engine = create_engine("mssql+pymssql://h/d", module=driver)
    with pytest.raises(ConfigurationError, match="'mssql': use SQLite, PostgreSQL"):
        SQLAlchemyKeyStore(engine)


def test_a_table_with_other_columns_is_refused(tmp_path: Path) -> None:
    table = Table("keys", MetaData(), Column("id", String(64), primary_key=True))
    with (
        engine_on(sqlite_url(tmp_path)) as engine,
        pytest.raises(ConfigurationError, match="make both with api_key_table"),
    ):
        SQLAlchemyKeyStore(engine, table)


def test_what_the_columns_hold(tmp_path: Path) -> None:
    with engine_on(sqlite_url(tmp_path)) as engine, closing(SQLAlchemyKeyStore(engine)) as store:
        add(store, "a", scopes=frozenset({"b", "a", "ü"}), expires_at=NOW)
        add(store, "b", scopes=frozenset())
        with engine.connect() as connection:
            rows = connection.execute(
                text("SELECT scopes, expires_at FROM msk_auth_api_keys ORDER BY id")
            ).all()
    microseconds = int(NOW.timestamp()) * 1_000_000 + NOW.microsecond
    assert rows == [('["a","b","\\u00fc"]', microseconds), ("[]", None)]


def test_a_moment_without_a_zone_is_refused(tmp_path: Path) -> None:
    naive = NOW.replace(tzinfo=None)
    with engine_on(sqlite_url(tmp_path)) as engine, closing(SQLAlchemyKeyStore(engine)) as store:
        add(store, "k")
        for work in (
            lambda: add(store, "other", created_at=naive),
            lambda: store.touch({"k": naive}),
            lambda: store.revoke("k", owner_id=OWNER, at=naive),
            lambda: store.list(KeyQuery(OWNER, NOW, after=(naive, "k"))),
        ):
            with pytest.raises(ValueError, match=r"without a time zone.* Use datetime.now\(UTC\)"):
                work()
        assert store.find("k") == make_record("k")
        assert store.find("other") is None


@pytest.mark.parametrize("text_of_scopes", ['"read"', "[1]", "read", '{"read": 1}'])
def test_a_key_with_scopes_that_the_library_does_not_write_is_not_read(
    tmp_path: Path, text_of_scopes: str
) -> None:
    with engine_on(sqlite_url(tmp_path)) as engine, closing(SQLAlchemyKeyStore(engine)) as store:
        add(store, "k")
        with engine.begin() as connection:
            connection.execute(
                text("UPDATE msk_auth_api_keys SET scopes = :scopes"), {"scopes": text_of_scopes}
            )
        for work in (lambda: store.find("k"), lambda: store.list(KeyQuery(OWNER, NOW))):
            with pytest.raises(ValueError, match=r"JSON array of strings|Expecting value"):
                work()


def test_a_row_of_a_query_of_the_application_becomes_a_record(url: URL) -> None:
    keys = api_key_table(MetaData())
    with engine_on(url) as engine, closing(SQLAlchemyKeyStore(engine)) as store:
        add(store, "k", scopes=frozenset({"a b", "c"}), expires_at=NOW)
        with engine.connect() as connection:
            row = connection.execute(select(*keys.c).where(keys.c.id == "k")).one()
        assert read_record(row) == store.find("k")


@pytest.mark.parametrize(
    ("dialect", "expected"),
    [
        (sqlite.dialect(), "VARCHAR(64)"),
        (postgresql.dialect(), 'VARCHAR(64) COLLATE "C"'),
        # Whether a server of MariaDB is reached as one or as MySQL: the same.
        (mysql.dialect(is_mariadb=True), "VARCHAR(64) COLLATE utf8mb4_bin"),
        (mysql.dialect(is_mariadb=False), "VARCHAR(64) COLLATE utf8mb4_bin"),
        (MariaDBDialect(), "VARCHAR(64) COLLATE utf8mb4_bin"),
        (mssql.dialect(), "VARCHAR(64)"),
    ],
)
def test_ids_compare_exactly_in_every_database(dialect: Any, expected: str) -> None:
    keys = api_key_table(MetaData())
    assert keys.c.id.type.compile(dialect) == expected


def test_a_replica_of_mariadb_is_neither_read_nor_written_to(
    mariadb_url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine_on(mariadb_url) as engine:
        store = SQLAlchemyKeyStore(engine)
        store.insert(make_record("k1"), max_active=None, now=NOW)
        for state in ("1,0", "0,1", "ON,OFF", "OFF,ON", "READ_ONLY,OFF"):
            monkeypatch.setattr(_servers, "_READ_ONLY", text(f"SELECT '{state}'"))
            for work in (
                lambda: store.find("k1"),
                store.recorded_leases,
                lambda: store.revoke("k1", owner_id=OWNER, at=NOW),
            ):
                with case(state), pytest.raises(ConnectionError, match="read-only, like a replica"):
                    work()
        monkeypatch.undo()
        assert store.find("k1") == make_record("k1")


def end_all_but_this(connection: Connection) -> None:
    others = text(
        "SELECT id FROM information_schema.processlist WHERE db = database() AND id <> connection_id()"
    )
    for (number,) in connection.execute(others).all():
        connection.execute(text(f"KILL {number}"))


@pytest.mark.parametrize("awaits", [False, True], ids=["blocking", "awaiting"])
def test_closed_connections_of_mariadb_cost_a_read_one_retry(
    mariadb_url: URL, awaits: bool
) -> None:
    """As after a restart: every connection of the pool is closed."""
    with ExitStack() as stack:
        if awaits:
            loop = stack.enter_context(BackgroundLoop())
            engine = async_engine_on(mariadb_url)
            stack.callback(lambda: loop.run(engine.dispose()))
            store = loop.blocking(AsyncSQLAlchemyKeyStore(engine))
        else:
            store = SQLAlchemyKeyStore(stack.enter_context(engine_on(mariadb_url)))
        record = add(store, "k1")
        assert in_parallel(lambda _: store.find("k1"), range(3)) == [record] * 3
        other = create_engine(mariadb_url, poolclass=NullPool)
        with other.connect() as connection:
            end_all_but_this(connection)
        for _ in range(3):
            assert store.find("k1") == record
