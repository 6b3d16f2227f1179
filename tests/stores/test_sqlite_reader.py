"""Direct reads from SQLite: as correct as those through SQLAlchemy, and not used where they might not be."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Engine, MetaData, NullPool, StaticPool, create_engine, event, text
from sqlalchemy.ext.asyncio import create_async_engine
from tests.forked import in_child
from tests.stores.support import METADATA, async_engine_on, empty_tables, engine_on, sqlite_url

from msk_auth import (
    ApiKey,
    Authenticator,
    KeyFormat,
    KeyHasher,
    Owner,
)
from msk_auth.events import KeyEvent
from msk_auth.stores import KeyQuery
from msk_auth.stores.sqlalchemy import (
    AsyncSQLAlchemyKeyStore,
    SQLAlchemyKeyStore,
    _sqlite,
    _table,
    api_key_table,
    prepare_sqlite,
)
from msk_auth.testing import FrozenClock
from msk_auth.testing._store_contract import NOW, OWNER, add, make_record


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return Path(sqlite_url(tmp_path).database or "")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with engine_on(sqlite_url(tmp_path)) as engine:
        prepare_sqlite(engine)
        yield engine


@pytest.fixture
def store(engine: Engine) -> Iterator[SQLAlchemyKeyStore]:
    with closing(SQLAlchemyKeyStore(engine)) as store:
        # The first look-up learns where the file is.
        store.find("")
        yield store


@pytest.fixture
def statements(engine: Engine) -> list[str]:
    """What goes through SQLAlchemy."""
    seen: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def _note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        seen.append(statement)

    return seen


def test_writers_wait_for_each_other_on_one_event_loop_and_on_the_next(tmp_path: Path) -> None:
    store = AsyncSQLAlchemyKeyStore(async_engine_on(sqlite_url(tmp_path), poolclass=NullPool))

    async def write(loop: int) -> None:
        records = [make_record(f"k{loop}{number}") for number in range(3)]
        await asyncio.gather(
            *(store.insert(record, max_active=None, now=NOW) for record in records)
        )

    for loop in range(2):
        asyncio.run(write(loop))
    assert len(asyncio.run(store.list(KeyQuery(OWNER, NOW, limit=20)))) == 6


@pytest.mark.anyio
async def test_the_asynchronous_store_reads_directly_too(tmp_path: Path) -> None:
    engine = async_engine_on(sqlite_url(tmp_path))
    store = AsyncSQLAlchemyKeyStore(engine)
    record = make_record("k")
    await store.insert(record, max_active=None, now=NOW)
    await store.find("")
    # Closed pool, no further connection: only the store's own is left.
    await engine.dispose()
    engine.pool.dispose()
    seen: list[object] = []
    event.listen(engine.sync_engine, "connect", lambda *args: seen.append(args))
    assert (await store.find("k"), await store.find("unknown")) == (record, None)
    assert seen == []
    await store.aclose()
    assert await store.find("k") == record
    assert len(seen) == 1
    await engine.dispose()


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_what_another_connection_committed_is_seen_at_once(
    tmp_path: Path, path: Path, journal: str
) -> None:
    with engine_on(sqlite_url(tmp_path)) as engine, closing(SQLAlchemyKeyStore(engine)) as store:
        add(store, "k")
        store.find("k")
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            assert other.execute(f"PRAGMA journal_mode = {journal}").fetchone() == (journal,)
            for microseconds in range(1, 50):
                other.execute("UPDATE msk_auth_api_keys SET revoked_at = ?", (microseconds,))
                found = store.find("k")
                assert found is not None
                assert found.revoked_at == _table.from_microseconds(microseconds)


def test_no_transaction_stays_open_between_look_ups(store: SQLAlchemyKeyStore, path: Path) -> None:
    add(store, "k")
    store.find("k")
    with closing(sqlite3.connect(path, timeout=0)) as other:
        # A reader in the middle of a transaction would keep the WAL from being emptied.
        assert other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)


def test_a_read_through_sqlalchemy_waits_where_a_direct_one_must_not(
    tmp_path: Path, path: Path, engine: Engine, statements: list[str]
) -> None:
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("PRAGMA journal_mode = delete")
        plain = create_engine(sqlite_url(tmp_path))
        event.listen(plain, "before_cursor_execute", lambda *args: statements.append(args[2]))
        store = SQLAlchemyKeyStore(plain)
        record = add(store, "k")
        store.find("k")
        statements.clear()
        other.execute("BEGIN EXCLUSIVE")
        timer = threading.Timer(0.3, other.execute, ["COMMIT"])
        timer.start()
        assert store.find("k") == record
        assert len(statements) == 1
        timer.join()
        assert store.find("k") == record
        assert len(statements) == 1
        store.close()
        plain.dispose()


def test_a_file_that_was_replaced_is_opened_anew(
    store: SQLAlchemyKeyStore, path: Path, tmp_path: Path
) -> None:
    record = add(store, "k")
    assert store.find("k") == record
    restored = tmp_path / "restored.db"
    empty_tables(URL.create("sqlite", database=str(restored)))
    restored.replace(path)
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink()
    time.sleep(_sqlite.BELIEF_SECONDS)
    assert store.find("k") is None


def restore(backup: Path, path: Path) -> None:
    """Put a backup in the place of a database that is in use."""
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    backup.replace(path)


def backup_of(path: Path, tmp_path: Path) -> Path:
    backup = tmp_path / "backup.db"
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(backup)) as target:
        source.backup(target)
    return backup


def revocations_in(path: Path) -> list[datetime | None]:
    with closing(sqlite3.connect(path)) as other:
        found = other.execute("SELECT revoked_at FROM msk_auth_api_keys").fetchall()
    return [_table.from_microseconds(moment) for (moment,) in found]


def test_after_a_restore_no_change_is_written_to_the_file_of_before(
    store: SQLAlchemyKeyStore, path: Path, tmp_path: Path
) -> None:
    add(store, "k")
    restore(backup_of(path, tmp_path), path)
    with pytest.raises(_sqlite.ReplacedFileError, match="was replaced"):
        store.revoke("k", owner_id=OWNER, at=NOW)
    store.revoke("k", owner_id=OWNER, at=NOW)
    assert revocations_in(path) == [NOW]


def test_after_a_restore_a_connection_of_before_the_store_is_not_used(
    engine: Engine, path: Path, tmp_path: Path
) -> None:
    with engine.connect():
        pass
    store = SQLAlchemyKeyStore(engine)
    add(store, "k")
    restore(backup_of(path, tmp_path), path)
    with pytest.raises(_sqlite.ReplacedFileError):
        store.list(KeyQuery(OWNER, NOW))
    assert [record.id for record in store.list(KeyQuery(OWNER, NOW))] == ["k"]
    store.close()


@pytest.mark.anyio
async def test_after_a_restore_an_async_engine_is_renewed(path: Path, tmp_path: Path) -> None:
    engine = async_engine_on(URL.create("sqlite", database=str(path)))
    store = AsyncSQLAlchemyKeyStore(engine)
    await store.insert(make_record("k"), max_active=None, now=NOW)
    restore(backup_of(path, tmp_path), path)
    with pytest.raises(_sqlite.ReplacedFileError):
        await store.recorded_leases()
    await store.revoke("k", owner_id=OWNER, at=NOW)
    await store.aclose()
    await engine.dispose()
    assert revocations_in(path) == [NOW]


def test_a_backup_that_is_restored_under_a_running_process_cannot_lose_its_lease(
    store: SQLAlchemyKeyStore, engine: Engine, path: Path, tmp_path: Path
) -> None:
    key = KeyFormat().generate()
    record = make_record(key.id, digest=KeyHasher().digest(key.reveal()))
    store.insert(record, max_active=None, now=NOW)
    clock = FrozenClock(NOW)
    auth: Authenticator[str] = Authenticator(
        store,
        find_owner=lambda owner_id: Owner(owner_id, frozenset(), owner_id),
        clock=clock,
        lease=timedelta(milliseconds=250),
    )
    before_the_lease = backup_of(path, tmp_path)
    auth.authenticate([f"Bearer {key.reveal()}"])
    restore(before_the_lease, path)
    for _ in range(2):
        # A look at the register finds the replaced file, and the one a second later renews the entry.
        clock.advance(timedelta(seconds=2))
        auth.authenticate([f"Bearer {key.reveal()}"])
    assert auth.cached_principal([f"Bearer {key.reveal()}"]) is not None
    other = create_engine(engine.url, poolclass=NullPool)
    (recorded,) = SQLAlchemyKeyStore(other).recorded_leases()
    assert recorded.duration == timedelta(milliseconds=250)


def test_a_missing_file_is_left_to_the_engine(
    store: SQLAlchemyKeyStore, path: Path, engine: Engine
) -> None:
    add(store, "k")
    store.find("k")
    engine.dispose()
    path.rename(path.with_name("elsewhere"))
    time.sleep(_sqlite.BELIEF_SECONDS)
    with pytest.raises(Exception, match="no such table"):
        store.find("k")


def test_closing_closes_the_file_and_leaves_no_other_beside_it(
    store: SQLAlchemyKeyStore, engine: Engine, path: Path
) -> None:
    add(store, "k")
    store.find("k")
    engine.dispose()
    assert open_files(path) != []
    store.close()
    store.close()
    assert open_files(path) == []
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_an_unclosed_store_closes_its_file_when_it_is_collected(engine: Engine, path: Path) -> None:
    store = SQLAlchemyKeyStore(engine)
    store.find("k")
    store.find("k")
    engine.dispose()
    assert open_files(path) != []
    del store
    gc.collect()
    assert open_files(path) == []


@pytest.mark.anyio
async def test_an_unclosed_asynchronous_store_is_collected_without_a_warning(
    tmp_path: Path,
) -> None:
    engine = async_engine_on(sqlite_url(tmp_path))
    store: Any = AsyncSQLAlchemyKeyStore(engine)
    read = store.prepare(text("SELECT 1"))
    assert [await read(), await read()] == [[(1,)], [(1,)]]
    # In a cycle, so that the collector finds the store and its connection together.
    store.itself = store
    del store, read
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        gc.collect()
    assert [str(each.message) for each in seen if "sqlite3" in str(each.message)] == []
    await engine.dispose()


def open_files(path: Path) -> list[str]:
    targets = [
        str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()
    ]
    return [target for target in targets if target.startswith(str(path))]


def test_a_forked_child_opens_a_connection_of_its_own_and_leaves_its_parents_open(
    store: SQLAlchemyKeyStore, path: Path
) -> None:
    record = add(store, "k")
    store.find("k")
    parents = store._reader._opened if store._reader else None

    def find() -> tuple[ApiKey | None, bool, int]:
        before = len(open_files(path))
        found = store.find("k")
        assert store._reader is not None
        gc.collect()
        return found, store._reader._opened is not parents, len(open_files(path)) - before

    found, is_its_own, opened = in_child(find)
    assert (found, is_its_own) == (record, True)
    # The database and its WAL: what the parent has open stays open here as well.
    assert opened >= 2
    assert parents is not None
    assert parents.driver.execute("SELECT 1").fetchone() == (1,)


def change(after: ApiKey) -> tuple[KeyEvent]:
    return (KeyEvent("revoked", NOW, after, cause="owner"),)


@contextmanager
def threads_that_repeat(*works: Callable[[], object]) -> Iterator[None]:
    """Threads, each of which does one thing again and again."""
    is_over = threading.Event()

    def repeat(work: Callable[[], object]) -> None:
        while not is_over.is_set():
            work()

    with ThreadPoolExecutor(len(works)) as threads:
        ended = [threads.submit(repeat, work) for work in works]
        try:
            yield
        finally:
            is_over.set()
    for thread in ended:
        thread.result()


FORKS = pytest.mark.parametrize("forks", [8, pytest.param(200, marks=pytest.mark.faults)])


@FORKS
def test_a_child_that_is_forked_while_other_threads_read_can_read(
    store: SQLAlchemyKeyStore, forks: int
) -> None:
    record = add(store, "k")
    store.find("k")

    with threads_that_repeat(*[lambda: store.find("k")] * 3):
        for _ in range(forks):
            assert in_child(lambda: store.find("k")) == record


@FORKS
def test_a_child_that_is_forked_while_other_threads_write_and_list_can_write(
    store: SQLAlchemyKeyStore, forks: int
) -> None:
    record = add(store, "k")

    def write_and_list() -> Sequence[ApiKey]:
        store.touch({"k": NOW})
        return store.list(KeyQuery(OWNER, NOW, limit=10))

    expected = [replace(record, last_used_at=NOW)]
    with threads_that_repeat(write_and_list, write_and_list, store.recorded_leases):
        for _ in range(forks):
            assert in_child(write_and_list) == expected


@pytest.mark.anyio
async def test_a_fork_waits_for_what_an_asynchronous_driver_does(path: Path) -> None:
    engine = create_async_engine(URL.create("sqlite+aiosqlite", database=str(path)))
    AsyncSQLAlchemyKeyStore(engine)
    is_inside = threading.Event()
    ended: list[str] = []

    def pause(what: str) -> None:
        is_inside.set()
        time.sleep(0.2)
        ended.append(what)

    async with engine.connect() as connection:
        driver = await connection.get_raw_connection()
        assert driver.driver_connection is not None
        await driver.driver_connection.create_function("pause", 1, pause)
        for what, statement in (
            ("execute", "SELECT pause('execute')"),
            ("fetch", "SELECT 1 UNION ALL SELECT pause('fetch')"),
        ):
            is_inside.clear()
            reading = asyncio.ensure_future(connection.execute(text(statement)))
            assert await asyncio.to_thread(is_inside.wait, 60)
            # The thread of the event loop forks.
            assert in_child(lambda: ended[-1:]) == [what]
            await reading
    await engine.dispose()


def test_a_fork_does_not_wait_for_what_its_own_thread_has_begun(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[str] = []

    def fork(_connection: object, _event: object) -> None:
        began = time.monotonic()
        answers.append(in_child(lambda: "forked"))
        assert time.monotonic() - began < 30

    store = SQLAlchemyKeyStore(engine, on_change=fork)
    store.insert(make_record("k"), max_active=None, now=NOW, change=change)
    assert answers == ["forked"]
    assert in_child(lambda: store.find("k")) == make_record("k")


def test_a_fork_does_not_wait_for_ever(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sqlite, "_FORK_SECONDS", 0.01)
    is_inside, has_forked = threading.Event(), threading.Event()

    def hang(_connection: object, _event: object) -> None:
        is_inside.set()
        assert has_forked.wait(60)

    store = SQLAlchemyKeyStore(engine, on_change=hang)
    with ThreadPoolExecutor(1) as threads:
        write = threads.submit(
            store.insert, make_record("k"), max_active=None, now=NOW, change=change
        )
        assert is_inside.wait(60)
        assert in_child(lambda: "forked") == "forked"
        has_forked.set()
        write.result()


def test_a_forked_child_takes_no_connection_of_its_parents_pool(
    store: SQLAlchemyKeyStore, engine: Engine
) -> None:
    add(store, "k")

    def pooled() -> int:
        with engine.connect() as connection:
            return id(connection.connection.driver_connection)

    def revoke() -> int:
        store.revoke("k", owner_id=OWNER, at=NOW)
        return pooled()

    # The parent's connection lives on in the child, so the two cannot have the same id.
    assert in_child(revoke) != pooled()
    found = store.find("k")
    assert found is not None
    assert found.revoked_at == NOW
    store.touch({"k": NOW})


def test_it_refuses_to_write(store: SQLAlchemyKeyStore) -> None:
    store.find("k")
    assert store._reader is not None
    assert store._reader._opened is not None
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        store._reader._opened.driver.execute("DELETE FROM msk_auth_api_keys")


def test_a_database_in_memory_is_not_read_directly() -> None:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    METADATA.create_all(engine)
    store = SQLAlchemyKeyStore(engine)
    record = add(store, "k")
    assert store.find("k") == store.find("k") == record
    assert store._reader is not None
    assert store._reader._opened is None
    engine.dispose()


def test_a_table_of_an_attached_database_is_not_read_directly(tmp_path: Path) -> None:
    metadata = MetaData(schema="other")
    table = api_key_table(metadata)
    engine = create_engine(sqlite_url(tmp_path))

    @event.listens_for(engine, "connect")
    def _attach(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("ATTACH ? AS other", (str(tmp_path / "other.db"),))

    metadata.create_all(engine)
    store = SQLAlchemyKeyStore(engine, table)
    record = add(store, "k")
    assert store.find("k") == record
    assert store._reader is None
    store.close()
    engine.dispose()


def test_a_prepared_engine_is_durable_and_waits_for_locks(engine: Engine) -> None:
    with engine.connect() as connection:
        values = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "busy_timeout", "foreign_keys")
        ]
    assert values == ["wal", 2, 5000, 1]


@pytest.mark.anyio
async def test_an_asynchronous_engine_is_prepared_in_the_same_way(tmp_path: Path) -> None:
    engine = create_async_engine(sqlite_url(tmp_path).set(drivername="sqlite+aiosqlite"))
    prepare_sqlite(engine)
    async with engine.connect() as connection:
        assert (await connection.exec_driver_sql("PRAGMA journal_mode")).scalar() == "wal"
    await engine.dispose()
