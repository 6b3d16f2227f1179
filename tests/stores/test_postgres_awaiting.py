"""The connections to PostgreSQL that an event loop holds: always fresh, given up when in doubt, under asyncio and uvloop."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import URL, NullPool, StaticPool, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from tests.stores.support import async_engine_on

from msk_auth import ApiKey
from msk_auth.batching import BatchedReader
from msk_auth.stores.sqlalchemy import AsyncSQLAlchemyKeyStore, _postgresql, _stores
from msk_auth.stores.sqlalchemy._postgresql import (
    AwaitingReader,
    _AwaitingConnection,
    _LoopConnections,
)
from msk_auth.stores.sqlalchemy._rows import FastPathUnavailable
from msk_auth.testing._store_contract import HOUR, NOW, OWNER, make_record

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


FULL = make_record(
    "k1",
    name="Schlüssel",
    digest="hmac-sha256:a:00",
    scopes=frozenset({"tasks:read", 'with " and \\ and ü'}),
    expires_at=NOW + HOUR,
    last_used_at=NOW - HOUR,
    revoked_at=NOW + timedelta(microseconds=1),
    replaced_by="K1",
    deleted_at=NOW,
)
MINIMAL = make_record("K1", scopes=frozenset())


@asynccontextmanager
async def store_on(url: URL, **options: Any) -> AsyncIterator[AsyncSQLAlchemyKeyStore]:
    """A store with two records, whose connections can be distinguished from others."""
    name = f"held-{secrets.token_hex(4)}"
    engine = async_engine_on(url.update_query_dict({"application_name": name}), **options)
    store = AsyncSQLAlchemyKeyStore(engine)
    for record in (FULL, MINIMAL):
        await store.insert(record, max_active=None, now=NOW)
    yield store
    await store.aclose()
    await engine.dispose()


@pytest.fixture
async def store(postgres_url: URL) -> AsyncIterator[AsyncSQLAlchemyKeyStore]:
    async with store_on(postgres_url) as store:
        yield store


def reader_of(store: AsyncSQLAlchemyKeyStore) -> AwaitingReader:
    assert store._postgres is not None
    return store._postgres


def here(store: AsyncSQLAlchemyKeyStore) -> _LoopConnections:
    return reader_of(store)._loops[asyncio.get_running_loop()]


def idle(store: AsyncSQLAlchemyKeyStore) -> _AwaitingConnection:
    """The connection that the next look-up takes."""
    return here(store).idle[-1]


def pid_of(connection: _AwaitingConnection) -> int:
    return connection.driver.pgconn.backend_pid


async def find_held(store: AsyncSQLAlchemyKeyStore, key_id: str) -> ApiKey | None:
    return await reader_of(store).find(key_id, soon())


async def find_many_held(store: AsyncSQLAlchemyKeyStore, key_ids: list[str]) -> list[ApiKey]:
    return await reader_of(store).find_many(key_ids, soon())


def soon() -> float:
    return asyncio.get_running_loop().time() + 60


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what is waited for happens outside
            await asyncio.sleep(0.002)


async def execute(store: AsyncSQLAlchemyKeyStore, statement: str, **values: Any) -> Any:
    async with store._awaiting_engine.begin() as connection:
        result = await connection.execute(text(statement), values)
        return result.all() if result.returns_rows else None


async def end_from_outside(store: AsyncSQLAlchemyKeyStore) -> None:
    """As a restart of the server would, for the held connection alone."""
    pid = pid_of(idle(store))
    await execute(store, "SELECT pg_terminate_backend(:pid, 10000)", pid=pid)


async def read_through_sqlalchemy(store: AsyncSQLAlchemyKeyStore, key_id: str) -> ApiKey | None:
    return await store._read(store._operations.find, key_id)


async def test_it_reads_what_sqlalchemy_reads(store: AsyncSQLAlchemyKeyStore) -> None:
    for record in (FULL, MINIMAL):
        for _ in range(2):
            assert await find_held(store, record.id) == record
        assert await read_through_sqlalchemy(store, record.id) == record
    assert await find_held(store, "unknown") is None
    found = await find_many_held(store, ["k1", "K1", "NULL"])
    assert sorted(found, key=lambda each: each.id) == [MINIMAL, FULL]


@pytest.mark.parametrize("key_id", ["", "k1\x00", "k 1", "k'1", "kü", "{k1}", "\udc80", "k" * 300])
async def test_an_impossible_id_finds_what_sqlalchemy_finds(
    store: AsyncSQLAlchemyKeyStore, key_id: str
) -> None:
    async def outcome(find: Callable[..., Any], *args: Any) -> object:
        try:
            return await find(*args)
        except (DBAPIError, UnicodeError) as error:
            return type(error)

    expected = await outcome(read_through_sqlalchemy, store, key_id)
    assert await outcome(store.find, key_id) == expected
    assert await outcome(store.find_many, [key_id]) in ([], expected)


async def test_it_sees_each_commit_and_nothing_before_one(store: AsyncSQLAlchemyKeyStore) -> None:
    for number in range(50):
        name = f"name {number}"
        async with store._awaiting_engine.begin() as connection:
            await connection.execute(
                text("UPDATE msk_auth_api_keys SET name = :name WHERE id = 'K1'"), {"name": name}
            )
            found = await find_held(store, "K1")
            assert found is not None
            assert found.name != name
        found = await find_held(store, "K1")
        (many,) = await find_many_held(store, ["K1"])
        assert found == many
        assert many.name == name


@pytest.mark.parametrize("isolation", ["SERIALIZABLE", "REPEATABLE READ"])
async def test_it_is_in_no_transaction_whatever_the_application_uses(
    postgres_url: URL, isolation: str
) -> None:
    async with store_on(postgres_url, isolation_level=isolation) as store:
        engine = store._awaiting_engine.sync_engine

        @event.listens_for(engine.pool, "checkout")
        def _leave_one_open(connection: Any, _record: object, _proxy: object) -> None:
            connection.cursor().execute("SELECT count(*) FROM msk_auth_api_keys")

        assert await find_held(store, "k1") == FULL
        event.remove(engine.pool, "checkout", _leave_one_open)
        await execute(store, "UPDATE msk_auth_api_keys SET name = 'new' WHERE id = 'k1'")
        found = await find_held(store, "k1")
        assert found is not None
        assert found.name == "new"
        states = await execute(
            store,
            "SELECT state FROM pg_stat_activity WHERE pid = :pid",
            pid=pid_of(idle(store)),
        )
        assert states == [("idle",)]


async def test_it_holds_one_connection_outside_of_the_pool(postgres_url: URL) -> None:
    async with store_on(postgres_url, pool_size=1, max_overflow=0, pool_timeout=60) as store:
        for _ in range(3):
            assert await store.find("k1") == FULL
        pids = await execute(
            store,
            "SELECT pid FROM pg_stat_activity WHERE application_name = current_setting('application_name')",
        )
        assert len(pids) == 2
        held = idle(store)
        await store.aclose()
        assert held.driver.closed
        assert await store.find("k1") == FULL
        assert reader_of(store)._loops == {}


@pytest.mark.parametrize("how", ["schema_translate_map", "one connection"])
async def test_with_special_names_or_connections_sqlalchemy_reads(
    postgres_url: URL, how: str
) -> None:
    options: dict[str, Any] = (
        {"poolclass": StaticPool}
        if how == "one connection"
        else {"execution_options": {"schema_translate_map": {None: "public"}}}
    )
    async with store_on(postgres_url, **options) as store:
        assert store._postgres is None
        assert await store.find("k1") == FULL


async def test_a_pool_that_keeps_nothing_works_too(postgres_url: URL) -> None:
    async with store_on(postgres_url, poolclass=NullPool) as store:
        assert await find_held(store, "k1") == FULL


async def test_text_in_another_encoding_is_read_as_well(postgres_url: URL) -> None:
    async with store_on(postgres_url, connect_args={"client_encoding": "latin1"}) as store:
        await execute(store, "UPDATE msk_auth_api_keys SET name = 'ü' WHERE id = 'k1'")
        found = await find_held(store, "k1")
        assert found is not None
        assert found.name == "ü"


async def test_when_the_connection_ends_the_next_look_up_has_its_answer(
    store: AsyncSQLAlchemyKeyStore,
) -> None:
    for _ in range(3):
        assert await store.find("k1") == FULL
        before = idle(store)
        await end_from_outside(store)
        assert await store.find("k1") == FULL
        assert before.driver.closed
        assert await find_held(store, "k1") == FULL


async def test_when_the_connection_ends_during_a_read_sqlalchemy_answers(
    store: AsyncSQLAlchemyKeyStore,
) -> None:
    assert await store.find("k1") == FULL
    pid = pid_of(idle(store))
    async with store._awaiting_engine.begin() as connection:
        await connection.execute(text("LOCK TABLE msk_auth_api_keys IN ACCESS EXCLUSIVE MODE"))
        reading = asyncio.create_task(store.find("k1"))
        await until_waiting_for_a_lock(store, 1)
        await execute(store, "SELECT pg_terminate_backend(:pid)", pid=pid)
        await until_waiting_for_a_lock(store, 1, but_not=pid)
    assert await reading == FULL


async def until_waiting_for_a_lock(
    store: AsyncSQLAlchemyKeyStore, count: int, but_not: int = 0
) -> None:
    async with asyncio.timeout(60):
        while True:
            ((waiting,),) = await execute(
                store,
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = current_setting('application_name')"
                " AND wait_event_type = 'Lock' AND pid <> :pid",
                pid=but_not,
            )
            if waiting == count:
                return
            await asyncio.sleep(0.005)


async def test_when_every_connection_ended_the_next_look_up_has_its_answer(
    store: AsyncSQLAlchemyKeyStore,
) -> None:
    """A restart of the server takes those of the pool as well: they cost one retry, not an outage."""
    await asyncio.gather(*(read_through_sqlalchemy(store, "k1") for _ in range(4)))
    assert await store.find("k1") == FULL
    other = create_async_engine(
        store._awaiting_engine.url, isolation_level="AUTOCOMMIT", poolclass=NullPool
    )
    async with other.connect() as connection:
        await connection.execute(
            text(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                " AND application_name = current_setting('application_name')"
            )
        )
    await other.dispose()
    assert await store.find("k1") == FULL
    assert [each.id for each in await store.find_many(["K1"])] == ["K1"]
    assert await store.recorded_leases() == []


async def test_a_server_that_does_not_answer_in_time_gets_a_cancel_request(
    store: AsyncSQLAlchemyKeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await store.find("k1") == FULL
    held = idle(store)
    monkeypatch.setattr(_stores, "READ_SECONDS", 0.2)
    async with store._awaiting_engine.begin() as connection:
        await connection.execute(text("LOCK TABLE msk_auth_api_keys IN ACCESS EXCLUSIVE MODE"))
        for read in (
            store.find("k1"),
            store.find_many(["k1"]),
            read_through_sqlalchemy(store, "k1"),
        ):
            with pytest.raises(TimeoutError, match="did not answer in time"):
                await read
        # Their processes do not go on waiting for the lock, nor will those of later look-ups.
        await until_waiting_for_a_lock(store, 0)
    await until(lambda: held.driver.closed)
    monkeypatch.undo()
    assert await find_held(store, "k1") == FULL


async def test_a_write_that_is_not_answered_in_time_fails(
    store: AsyncSQLAlchemyKeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_stores, "_WRITE_SECONDS", 0.2)
    engine = create_async_engine(store._awaiting_engine.url, poolclass=NullPool)
    async with engine.begin() as connection:
        await connection.execute(text("LOCK TABLE msk_auth_api_keys IN ACCESS EXCLUSIVE MODE"))
        with pytest.raises(TimeoutError, match="did not answer in time"):
            await store.revoke("k1", owner_id=OWNER, at=NOW)
    await engine.dispose()
    monkeypatch.undo()
    assert await store.find("k1") == FULL
    assert await store.delete("K1", owner_id=OWNER, at=NOW) is not None


async def test_a_look_up_that_is_cancelled_leaves_the_next_ones_their_own_answers(
    store: AsyncSQLAlchemyKeyStore,
) -> None:
    assert await store.find("k1") == FULL
    held = idle(store)
    for _ in range(10):
        cancelled = asyncio.create_task(store.find("k1"))
        await asyncio.sleep(0)
        assert held in here(store).busy
        cancelled.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await cancelled
        # Its answer is still to come; the next one takes another connection.
        assert await store.find("K1") == MINIMAL
        await until(lambda: not here(store).busy)
        assert held in here(store).idle
        assert not held.driver.closed
        here(store).idle.remove(held)
        here(store).idle.append(held)
        assert await store.find("K1") == MINIMAL


async def test_a_cancelled_look_up_returns_at_once_and_its_connection_is_bounded(
    store: AsyncSQLAlchemyKeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await store.find("k1") == FULL
    held = idle(store)
    monkeypatch.setattr(_stores, "READ_SECONDS", 0.2)
    async with store._awaiting_engine.begin() as connection:
        await connection.execute(text("LOCK TABLE msk_auth_api_keys IN ACCESS EXCLUSIVE MODE"))
        reading = asyncio.create_task(store.find("k1"))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert reading.cancelled()
        await until(lambda: held.driver.closed)


async def test_a_stalled_read_delays_no_other(
    store: AsyncSQLAlchemyKeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One connection is stalled, as after a cut; the look-ups that come during its silence are answered."""
    assert await store.find("k1") == FULL
    stalled, ready = idle(store), asyncio.Event()

    async def silence(_wanted: int) -> int:
        await ready.wait()
        raise TimeoutError

    monkeypatch.setattr(stalled, "_ready", silence)
    reader = BatchedReader(store.find, store.find_many)
    lost = asyncio.create_task(reader.find("k1"))
    await until(lambda: stalled in here(store).busy)
    found = await asyncio.gather(*(reader.find(each) for each in ["k1", "K1", "k2"] * 10))
    assert found == [FULL, MINIMAL, None] * 10
    assert not lost.done()
    ready.set()
    with pytest.raises(TimeoutError):
        await lost
    await until(lambda: stalled.driver.closed)


async def test_the_number_of_connections_is_bounded(store: AsyncSQLAlchemyKeyStore) -> None:
    async with store._awaiting_engine.begin() as connection:
        await connection.execute(text("LOCK TABLE msk_auth_api_keys IN ACCESS EXCLUSIVE MODE"))
        reads = [asyncio.create_task(find_held(store, "k1")) for _ in range(_postgresql.MAX_HELD)]
        await until_waiting_for_a_lock(store, len(reads))
        # All of them stall by now or not: more are opened only for those that do.
        for each in here(store).busy:
            here(store).busy[each] = asyncio.get_running_loop().time() + 60
        with pytest.raises(FastPathUnavailable):
            await find_held(store, "k1")
        for each in here(store).busy:
            here(store).busy[each] = 0.0
        while len(reads) < _postgresql.MAX_STALLED:
            reads.append(asyncio.create_task(find_held(store, "k1")))
            await until_waiting_for_a_lock(store, len(reads))
            for each in here(store).busy:
                here(store).busy[each] = 0.0
        with pytest.raises(FastPathUnavailable):
            await find_held(store, "k1")
    assert await asyncio.gather(*reads) == [FULL] * len(reads)
    assert len(here(store).idle) == _postgresql.MAX_HELD


async def test_when_all_connections_are_taken_look_ups_wait_for_one(
    store: AsyncSQLAlchemyKeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object) -> None:
        raise AssertionError("read through SQLAlchemy")

    monkeypatch.setattr(store, "_read_until", refuse)
    monkeypatch.setattr(_postgresql, "_MAX_WAIT_SECONDS", 60.0)
    found = await asyncio.gather(*(store.find(each) for each in ["k1", "K1", "k2"] * 20))
    assert found == [FULL, MINIMAL, None] * 20
    assert len(here(store).idle) <= _postgresql.MAX_HELD


async def test_a_look_up_waits_for_a_connection_only_so_long(
    store: AsyncSQLAlchemyKeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await store.find("k1") == FULL
    monkeypatch.setattr(_postgresql, "MAX_HELD", 1)
    taken = here(store).take()
    assert taken is not None
    monkeypatch.setattr(_postgresql, "_MAX_WAIT_SECONDS", 0.01)
    with pytest.raises(FastPathUnavailable):
        await find_held(store, "k1")
    assert here(store).idle == []
    assert await store.find("k1") == FULL
    here(store).give_back(taken)
    assert here(store).idle == [taken]


async def test_a_connection_goes_to_the_look_up_that_waits_longest_and_was_not_cancelled(
    store: AsyncSQLAlchemyKeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await store.find("k1") == FULL
    monkeypatch.setattr(_postgresql, "MAX_HELD", 1)
    monkeypatch.setattr(_postgresql, "_MAX_WAIT_SECONDS", 60.0)
    taken = here(store).take()
    assert taken is not None
    order: list[str] = []

    async def find(name: str) -> None:
        await find_held(store, "k1")
        order.append(name)

    waiting = [asyncio.create_task(find(name)) for name in ("first", "second", "third", "last")]
    await asyncio.sleep(0)
    waiting[1].cancel()
    here(store).give_back(taken)
    # It has been given the connection, and never uses it.
    waiting[0].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert [each.cancelled() for each in waiting] == [True, True, False, False]
    assert order == ["third", "last"]
    assert here(store).idle == [taken]
    assert here(store).busy == {}


async def test_an_old_connection_is_not_handed_on(
    store: AsyncSQLAlchemyKeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await store.find("k1") == FULL
    monkeypatch.setattr(_postgresql, "MAX_HELD", 1)
    monkeypatch.setattr(_postgresql, "_MAX_AGE_SECONDS", 0.0)
    taken = here(store).idle.pop()
    here(store).busy[taken] = asyncio.get_running_loop().time()
    waiting = asyncio.create_task(store.find("k1"))
    await asyncio.sleep(0)
    here(store).give_back(taken)
    assert taken.driver.closed
    assert await waiting == FULL


async def test_look_ups_side_by_side_each_get_their_own_answer(
    store: AsyncSQLAlchemyKeyStore,
) -> None:
    found = await asyncio.gather(*(store.find(each) for each in ["k1", "K1", "k2"] * 10))
    assert found == [FULL, MINIMAL, None] * 10


@pytest.mark.parametrize("is_configured", [True, False], ids=["configured", "detected"])
async def test_poolers_without_prepared_statements_get_unprepared_ones(
    postgres_url: URL, is_configured: bool
) -> None:
    """PgBouncer in transaction mode: the next transaction may be on a server that never saw the statement."""
    options = {"connect_args": {"prepare_threshold": None}} if is_configured else {}
    async with store_on(postgres_url, **options) as store:
        assert await store.find("k1") == FULL
        idle(store)._deadline = soon()
        # In a block, so that the driver does not notice.
        await idle(store)._awaited.execute("DO $$BEGIN EXECUTE 'DEALLOCATE ALL'; END$$")
        # The first read after it detects this.
        for _ in range(3):
            assert await store.find("k1") == FULL
        assert [each.id for each in await store.find_many(["K1"])] == ["K1"]
        assert reader_of(store)._reading.prepares is is_configured


async def test_no_connection_executes_the_statement_of_another_one(
    store: AsyncSQLAlchemyKeyStore,
) -> None:
    """Behind a pooler each may come to a server on which others have prepared their own, under their own names."""
    assert await store.find("k1") == FULL
    first = idle(store)
    names = [name for (name,) in await statements_of(first)]
    here(store).idle.clear()
    assert await store.find("k1") == FULL
    names += [name for (name,) in await statements_of(idle(store))]
    assert len(set(names)) == 2
    assert "_pg3_0" not in names
    # PostgreSQL cuts longer names off.
    assert max(map(len, names)) < 64
    first.close()


async def statements_of(connection: _AwaitingConnection) -> Any:
    connection._deadline = soon()
    cursor = await connection._awaited.execute("SELECT name FROM pg_prepared_statements")
    return await cursor.fetchall()


async def test_a_failing_statement_is_reported_by_sqlalchemy(
    store: AsyncSQLAlchemyKeyStore,
) -> None:
    assert await store.find("k1") == FULL
    await execute(store, "ALTER TABLE msk_auth_api_keys RENAME TO elsewhere")
    try:
        for _ in range(2):
            with pytest.raises(DBAPIError, match='"msk_auth_api_keys" does not exist'):
                await store.find("k1")
    finally:
        await execute(store, "ALTER TABLE elsewhere RENAME TO msk_auth_api_keys")
    assert await store.find("k1") == FULL


@pytest.mark.parametrize("limit", ["_MAX_IDLE_SECONDS", "_MAX_AGE_SECONDS"])
async def test_an_old_or_unresponsive_connection_is_replaced(
    store: AsyncSQLAlchemyKeyStore, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    assert await store.find("k1") == FULL
    before = idle(store)
    monkeypatch.setattr(_postgresql, limit, -1.0)
    assert await store.find("k1") == FULL
    assert before.driver.closed
    assert idle(store) is not before


async def test_a_forked_child_does_not_use_the_connections_of_its_parent(
    store: AsyncSQLAlchemyKeyStore,
) -> None:
    assert await store.find("k1") == FULL
    before = idle(store)
    reader_of(store)._renew()  # as in a child
    assert reader_of(store)._loops == {}
    await store.aclose()
    assert not before.driver.closed
    before.close()


async def test_a_connection_that_cannot_be_prepared_for_reading_is_not_used(
    store: AsyncSQLAlchemyKeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = store._awaiting_engine.pool

    @event.listens_for(pool, "checkout")
    def _leave_a_block_open(connection: Any, _record: object, _proxy: object) -> None:
        connection.driver_connection._num_transactions = 1

    with pytest.raises(FastPathUnavailable):
        await find_held(store, "k1")
    event.remove(pool, "checkout", _leave_a_block_open)
    with pytest.raises(FastPathUnavailable):
        await find_held(store, "k1")
    reader_of(store)._closed_until = 0.0
    assert await find_held(store, "k1") == FULL


def test_a_store_can_be_used_on_one_loop_after_another(postgres_url: URL) -> None:
    stores = [AsyncSQLAlchemyKeyStore(async_engine_on(postgres_url, poolclass=NullPool))]

    async def use() -> _AwaitingConnection:
        if not await stores[0].find("k1"):
            await stores[0].insert(FULL, max_active=None, now=NOW)
        assert await stores[0].find("k1") == FULL
        return idle(stores[0])

    first = asyncio.run(use())
    second = asyncio.run(use())
    assert first.driver.closed
    assert not second.driver.closed
    # Nothing closes the store: its end does.
    stores.clear()
    assert second.driver.closed


async def test_both_statements_use_the_primary_key(store: AsyncSQLAlchemyKeyStore) -> None:
    await execute(
        store,
        "INSERT INTO msk_auth_api_keys (id, name, owner_id, digest, created_at)"
        f" SELECT 'f' || n, 'n', '{OWNER}', 'd', n FROM generate_series(1, 5000) n",
    )
    await execute(store, "ANALYZE msk_auth_api_keys")
    reading = reader_of(store)._reading
    for statement, value in ((reading.one, "f7"), (reading.many, "{f7,f8,f9}")):
        question = statement.decode().replace("%s", f"'{value}'")
        plan = "\n".join(row[0] for row in await execute(store, f"EXPLAIN {question}"))
        assert "Index Scan using msk_auth_api_keys_pkey" in plan or "Bitmap Index Scan" in plan
        assert "Seq Scan" not in plan
