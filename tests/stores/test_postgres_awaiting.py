"""The held connection to PostgreSQL: always fresh, given up when in doubt, and in nobody's way."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import URL, MetaData, NullPool, StaticPool, event, text
from sqlalchemy.exc import DBAPIError
from tests.stores.support import async_engine_on

from msk_auth import ApiKey
from msk_auth.stores.sqlalchemy import AsyncSQLAlchemyKeyStore, api_key_table
from msk_auth.stores.sqlalchemy._postgresql import AwaitingReader, awaiting_wire
from msk_auth.stores.sqlalchemy._postgresql import wire as limits
from msk_auth.stores.sqlalchemy._postgresql.awaiting_wire import AwaitingWire
from msk_auth.stores.sqlalchemy._rows import NotNow
from msk_auth.testing._store_contract import HOUR, NOW, OWNER, make_record

pytestmark = pytest.mark.anyio

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
    """A store with two records, whose connections can be told from others."""
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


def wire_of(store: AsyncSQLAlchemyKeyStore) -> AwaitingWire:
    return reader_of(store)._wires[asyncio.get_running_loop()]


async def execute(store: AsyncSQLAlchemyKeyStore, statement: str, **values: Any) -> Any:
    async with store._write_engine.begin() as connection:
        result = await connection.execute(text(statement), values)
        return result.all() if result.returns_rows else None


async def end_from_outside(store: AsyncSQLAlchemyKeyStore) -> None:
    """As a restart of the server would, for the held connection alone."""
    wire = wire_of(store)
    await execute(store, "SELECT pg_terminate_backend(:pid)", pid=wire._libpq.backend_pid)
    async with asyncio.timeout(10):
        while not wire.is_closed:  # noqa: ASYNC110 - the server says so on the wire
            await asyncio.sleep(0.001)


async def read_the_long_way(store: AsyncSQLAlchemyKeyStore, key_id: str) -> ApiKey | None:
    return await store._read(store._operations.find, key_id)


async def test_it_reads_what_sqlalchemy_reads(store: AsyncSQLAlchemyKeyStore) -> None:
    reader = reader_of(store)
    for record in (FULL, MINIMAL):
        assert await reader.find(record.id) == record == await read_the_long_way(store, record.id)
    assert await reader.find("unknown") is None
    assert sorted(await reader.find_many(["k1", "K1", "NULL"]), key=lambda each: each.id) == [
        MINIMAL,
        FULL,
    ]


@pytest.mark.parametrize("key_id", ["", "k1\x00", "k 1", "k'1", "kü", "{k1}", "\udc80", "k" * 300])
async def test_what_cannot_be_an_id_finds_what_the_long_way_finds(
    store: AsyncSQLAlchemyKeyStore, key_id: str
) -> None:
    async def outcome(find: Callable[..., Any], *args: Any) -> object:
        try:
            return await find(*args)
        except (DBAPIError, UnicodeError) as error:
            return type(error)

    expected = await outcome(read_the_long_way, store, key_id)
    assert await outcome(store.find, key_id) == expected
    assert await outcome(store.find_many, [key_id]) in ([], expected)


async def test_it_sees_each_commit_and_nothing_before_one(store: AsyncSQLAlchemyKeyStore) -> None:
    for number in range(50):
        name = f"name {number}"
        async with store._write_engine.begin() as connection:
            await connection.execute(
                text("UPDATE msk_auth_api_keys SET name = :name WHERE id = 'K1'"), {"name": name}
            )
            found = await reader_of(store).find("K1")
            assert found is not None
            assert found.name != name
        found = await reader_of(store).find("K1")
        (many,) = await reader_of(store).find_many(["K1"])
        assert found == many
        assert many.name == name


@pytest.mark.parametrize("isolation", ["SERIALIZABLE", "REPEATABLE READ"])
async def test_it_is_in_no_transaction_whatever_the_application_uses(
    postgres_url: URL, isolation: str
) -> None:
    async with store_on(postgres_url, isolation_level=isolation) as store:
        engine = store._write_engine.sync_engine

        @event.listens_for(engine.pool, "checkout")
        def _leave_one_open(connection: Any, _record: object, _proxy: object) -> None:
            connection.cursor().execute("SELECT count(*) FROM msk_auth_api_keys")

        assert await reader_of(store).find("k1") == FULL
        event.remove(engine.pool, "checkout", _leave_one_open)
        await execute(store, "UPDATE msk_auth_api_keys SET name = 'new' WHERE id = 'k1'")
        found = await reader_of(store).find("k1")
        assert found is not None
        assert found.name == "new"
        states = await execute(
            store,
            "SELECT state FROM pg_stat_activity WHERE pid = :pid",
            pid=wire_of(store)._libpq.backend_pid,
        )
        assert states == [("idle",)]


async def test_it_holds_one_connection_outside_of_the_pool(postgres_url: URL) -> None:
    async with store_on(postgres_url, pool_size=1, max_overflow=0, pool_timeout=5) as store:
        for _ in range(3):
            assert await store.find("k1") == FULL
        pids = await execute(
            store,
            "SELECT pid FROM pg_stat_activity WHERE application_name = current_setting('application_name')",
        )
        assert len(pids) == 2
        wire = wire_of(store)
        await store.aclose()
        assert wire.is_closed
        assert await store.find("k1") == FULL
        assert reader_of(store)._wires == {}


@pytest.mark.parametrize("how", ["schema_translate_map", "one connection"])
async def test_where_names_or_connections_are_special_the_long_way_is_taken(
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
        assert await reader_of(store).find("k1") == FULL


async def test_text_in_another_encoding_is_read_the_long_way(postgres_url: URL) -> None:
    async with store_on(postgres_url, connect_args={"client_encoding": "latin1"}) as store:
        await execute(store, "UPDATE msk_auth_api_keys SET name = 'ü' WHERE id = 'k1'")
        found = await store.find("k1")
        assert found is not None
        assert found.name == "ü"
        with pytest.raises(NotNow):
            await reader_of(store).find("k1")


async def test_when_the_connection_ends_the_next_look_up_has_its_answer(
    store: AsyncSQLAlchemyKeyStore,
) -> None:
    for _ in range(3):
        assert await store.find("k1") == FULL
        before = wire_of(store)
        await end_from_outside(store)
        assert await store.find("k1") == FULL
        assert wire_of(store) is not before


async def test_when_the_connection_ends_during_a_read_the_long_way_answers(
    store: AsyncSQLAlchemyKeyStore,
) -> None:
    assert await store.find("k1") == FULL
    pid = wire_of(store)._libpq.backend_pid
    async with store._write_engine.begin() as connection:
        await connection.execute(text("LOCK TABLE msk_auth_api_keys IN ACCESS EXCLUSIVE MODE"))
        reading = asyncio.create_task(store.find("k1"))
        await until_waiting_for_a_lock(store, 1)
        await execute(store, "SELECT pg_terminate_backend(:pid)", pid=pid)
        await until_waiting_for_a_lock(store, 1, but_not=pid)
    assert await reading == FULL


async def until_waiting_for_a_lock(
    store: AsyncSQLAlchemyKeyStore, count: int, but_not: int = 0
) -> None:
    async with asyncio.timeout(10):
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


async def test_a_server_that_does_not_answer_is_given_up_and_told_so(
    store: AsyncSQLAlchemyKeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await store.find("k1") == FULL
    monkeypatch.setattr(awaiting_wire, "ANSWER_SECONDS", 0.2)
    async with store._write_engine.begin() as connection:
        await connection.execute(text("LOCK TABLE msk_auth_api_keys IN ACCESS EXCLUSIVE MODE"))
        with pytest.raises(TimeoutError, match="did not answer within"):
            await store.find("k1")
        # Its process does not go on waiting for the lock, nor will those of later look-ups.
        await until_waiting_for_a_lock(store, 0)
    monkeypatch.undo()
    async with asyncio.timeout(10):
        while not wire_of(store).is_closed:  # noqa: ASYNC110 - the server answers the cancellation
            await asyncio.sleep(0.005)
    assert await store.find("k1") == FULL


async def test_a_look_up_that_was_given_up_leaves_the_next_ones_their_own_answers(
    store: AsyncSQLAlchemyKeyStore,
) -> None:
    assert await store.find("k1") == FULL
    wire = wire_of(store)
    for _ in range(20):
        impatient = asyncio.create_task(store.find("k1"))
        await asyncio.sleep(0)
        assert wire.is_busy
        impatient.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await impatient
        # Its answer is still to come; whoever asks meanwhile takes the long way.
        assert await store.find("K1") == MINIMAL
        while wire.is_busy:  # noqa: ASYNC110 - until the answer that nobody wants has come
            await asyncio.sleep(0.001)
        assert await store.find("K1") == MINIMAL
    assert wire_of(store) is wire


async def test_look_ups_side_by_side_each_get_their_own_answer(
    store: AsyncSQLAlchemyKeyStore,
) -> None:
    found = await asyncio.gather(*(store.find(each) for each in ["k1", "K1", "k2"] * 10))
    assert found == [FULL, MINIMAL, None] * 10


@pytest.mark.parametrize("is_told", [True, False], ids=["told by the setting", "finds out"])
async def test_poolers_that_keep_no_statements_get_whole_questions(
    postgres_url: URL, is_told: bool
) -> None:
    """PgBouncer in transaction mode: the next transaction may be on a server that never saw the statement."""
    options = {"connect_args": {"prepare_threshold": None}} if is_told else {}
    async with store_on(postgres_url, **options) as store:
        assert await store.find("k1") == FULL
        assert wire_of(store).prepares is not is_told
        await wire_of(store).prepare(b"other", b"SELECT 1")
        await wire_of(store)._send(lambda: wire_of(store)._libpq.send_query(b"DISCARD ALL"))
        # The first one after it finds out.
        for _ in range(3):
            assert await store.find("k1") == FULL
        assert [each.id for each in await store.find_many(["K1"])] == ["K1"]
        assert wire_of(store).prepares is False


async def test_two_tables_never_ask_each_others_statements(postgres_url: URL) -> None:
    """Behind a pooler both may come to a server on which the other has prepared its own."""
    engine = async_engine_on(postgres_url)
    other = api_key_table(MetaData(), "other_keys")
    stores = [AsyncSQLAlchemyKeyStore(engine), AsyncSQLAlchemyKeyStore(engine, other)]
    names = {
        statement.name
        for store in stores
        for statement in (reader_of(store)._reading.one, reader_of(store)._reading.many)
    }
    assert len(names) == 4
    # PostgreSQL cuts longer names off.
    assert max(map(len, names)) < 64
    await engine.dispose()


async def test_a_statement_that_fails_is_told_by_sqlalchemy(store: AsyncSQLAlchemyKeyStore) -> None:
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
async def test_an_old_or_silent_connection_is_made_anew(
    store: AsyncSQLAlchemyKeyStore, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    assert await store.find("k1") == FULL
    before = wire_of(store)
    monkeypatch.setattr(limits, limit, 0.0)
    assert await store.find("k1") == FULL
    assert before.is_closed
    assert wire_of(store) is not before


async def test_a_wire_of_the_parent_process_is_left_alone(store: AsyncSQLAlchemyKeyStore) -> None:
    assert await store.find("k1") == FULL
    wire = wire_of(store)
    pid = wire._libpq.backend_pid
    wire._process -= 1  # as seen from a child
    wire.close()
    ((alive,),) = await execute(
        store, "SELECT count(*) FROM pg_stat_activity WHERE pid = :pid", pid=pid
    )
    assert alive == 1
    wire._libpq.finish()


def test_a_store_can_be_used_on_one_loop_after_another(postgres_url: URL) -> None:
    stores = [AsyncSQLAlchemyKeyStore(async_engine_on(postgres_url, poolclass=NullPool))]

    async def use() -> AwaitingWire:
        if not await stores[0].find("k1"):
            await stores[0].insert(FULL, max_active=None, now=NOW)
        assert await stores[0].find("k1") == FULL
        return wire_of(stores[0])

    first = asyncio.run(use())
    second = asyncio.run(use())
    assert first.is_closed
    assert not second.is_closed
    # Nobody closes the store: its end does.
    stores.clear()
    assert second.is_closed


async def test_both_statements_use_the_primary_key(store: AsyncSQLAlchemyKeyStore) -> None:
    await execute(
        store,
        "INSERT INTO msk_auth_api_keys (id, name, owner_id, digest, created_at)"
        f" SELECT 'f' || n, 'n', '{OWNER}', 'd', n FROM generate_series(1, 5000) n",
    )
    await execute(store, "ANALYZE msk_auth_api_keys")
    reader = reader_of(store)
    for statement, value in ((reader._reading.one, "f7"), (reader._reading.many, "{f7,f8,f9}")):
        question = statement.text.decode().replace("$1", f"'{value}'")
        plan = "\n".join(row[0] for row in await execute(store, f"EXPLAIN {question}"))
        assert "Index Scan using msk_auth_api_keys_pkey" in plan or "Bitmap Index Scan" in plan
        assert "Seq Scan" not in plan
