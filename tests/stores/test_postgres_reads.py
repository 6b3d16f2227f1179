"""Reads and writes on PostgreSQL through the application's pool: always the newest state, in bounded time, by both stores."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias, cast

import pytest
from examples.task_service.tests.faults.proxy import Wire, wire
from psycopg import Cursor
from sqlalchemy import (
    URL,
    Engine,
    MetaData,
    NullPool,
    QueuePool,
    StaticPool,
    create_engine,
    event,
    text,
)
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from tests.forked import in_child
from tests.stores.support import empty_tables, engine_on

from msk_auth import ApiKey
from msk_auth.batching import BatchedReader
from msk_auth.errors import ConfigurationError
from msk_auth.stores.sqlalchemy import (
    AsyncSQLAlchemyKeyStore,
    SQLAlchemyKeyStore,
    api_key_table,
    prepare_postgresql,
)
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

AnyEngine: TypeAlias = Engine | AsyncEngine


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": getattr(request, "param", "asyncio") == "uvloop"}


on_both_loops = pytest.mark.parametrize("anyio_backend", ["asyncio", "uvloop"], indirect=True)


class Blocking:
    """A blocking store, whose calls run in threads."""

    def __init__(self, url: URL, **options: Any) -> None:
        self.engine: AnyEngine = create_engine(url, **options)
        self.sync = cast("Engine", self.engine)
        self.store: Any = SQLAlchemyKeyStore(self.sync)

    async def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return await asyncio.to_thread(getattr(self.store, name), *args, **kwargs)

    async def dispose(self) -> None:
        self.sync.dispose()

    async def close(self) -> None:
        self.store.close()
        await self.dispose()


class Awaiting:
    """An asynchronous store."""

    def __init__(self, url: URL, **options: Any) -> None:
        self.engine: AnyEngine = create_async_engine(url, **options)
        self.sync = self.engine.sync_engine
        self.store: Any = AsyncSQLAlchemyKeyStore(self.engine)

    async def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return await getattr(self.store, name)(*args, **kwargs)

    async def dispose(self) -> None:
        await cast("AsyncEngine", self.engine).dispose()

    async def close(self) -> None:
        await self.store.aclose()
        await self.dispose()


Half: TypeAlias = Blocking | Awaiting


@pytest.fixture(params=[Blocking, Awaiting])
def kind(request: pytest.FixtureRequest) -> type[Half]:
    made: type[Half] = request.param
    return made


# The blocking store runs in threads, on each event loop alike.
in_threads_and_on_both_loops = pytest.mark.parametrize(
    ("kind", "anyio_backend"),
    [(Blocking, "asyncio"), (Awaiting, "asyncio"), (Awaiting, "uvloop")],
    indirect=["anyio_backend"],
)


@pytest.fixture
def admin(postgres_url: URL) -> Iterator[Engine]:
    """The same database, apart from the store."""
    empty_tables(postgres_url)
    engine = create_engine(postgres_url, poolclass=NullPool)
    yield engine
    engine.dispose()


@pytest.fixture
async def half(kind: type[Half], postgres_url: URL, admin: Engine) -> AsyncIterator[Half]:
    async with half_on(kind, postgres_url) as half:
        yield half


@asynccontextmanager
async def half_on(kind: type[Half], url: URL, **options: Any) -> AsyncIterator[Half]:
    """A store with two records, whose connections can be distinguished from others."""
    name = f"store-{secrets.token_hex(4)}"
    half = kind(url.update_query_dict({"application_name": name}), **options)
    for record in (FULL, MINIMAL):
        await half.call("insert", record, max_active=None, now=NOW)
    yield half
    await half.close()


async def find(half: Half, key_id: str = "k1") -> ApiKey | None:
    found: ApiKey | None = await half.call("find", key_id)
    return found


OPERATIONS: dict[str, Callable[[Half], Awaitable[Any]]] = {
    "read": find,
    "write": lambda half: half.call("revoke", "k1", owner_id=OWNER, at=NOW),
}


def backends(admin: Engine, half: Half, where: str = "true") -> list[int]:
    """The processes of the server that serve a store."""
    with admin.connect() as connection:
        name = half.sync.url.query["application_name"]
        found = connection.execute(
            text(f"SELECT pid FROM pg_stat_activity WHERE application_name = :name AND {where}"),
            {"name": name},
        )
        return list(found.scalars())


def end_from_outside(admin: Engine, half: Half) -> None:
    """As a restart of the server does."""
    with admin.connect() as connection:
        for pid in backends(admin, half):
            connection.execute(text("SELECT pg_terminate_backend(:pid, 60000)"), {"pid": pid})


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110 - what is waited for happens outside
            await asyncio.sleep(0.005)


@contextmanager
def locked(admin: Engine) -> Iterator[None]:
    """No other connection can read the table."""
    with admin.begin() as connection:
        connection.execute(text("LOCK TABLE msk_auth_api_keys IN ACCESS EXCLUSIVE MODE"))
        yield


def checked_out(half: Half) -> int:
    return cast("QueuePool", half.sync.pool).checkedout()


def limit_time(half: Half, seconds: float) -> None:
    half.store.read_seconds = half.store.write_seconds = seconds


async def test_an_impossible_id_is_no_key(half: Half) -> None:
    for key_id in ("k1\x00", "{k1}", "\udc80"):
        # The driver refuses a NUL and half a surrogate.
        with suppress(DBAPIError, UnicodeError):
            assert await find(half, key_id) is None
        assert await find(half) == FULL


async def test_each_look_up_sees_each_commit_and_nothing_before_one(
    half: Half, admin: Engine
) -> None:
    rename = text("UPDATE msk_auth_api_keys SET name = :name WHERE id = 'K1'")
    for number in range(20):
        name = f"name {number}"
        with admin.begin() as connection:
            connection.execute(rename, {"name": name})
            found = await find(half, "K1")
            assert found is not None
            assert found.name != name
        found = await find(half, "K1")
        assert found is not None
        assert found.name == name
    assert await half.call("revoke", "K1", owner_id=OWNER, at=NOW) == await find(half, "K1")


@pytest.mark.parametrize("isolation", ["SERIALIZABLE", "REPEATABLE READ"])
async def test_a_look_up_is_in_no_transaction_whatever_the_application_uses(
    kind: type[Half], postgres_url: URL, admin: Engine, isolation: str
) -> None:
    async with half_on(kind, postgres_url, isolation_level=isolation) as half:
        assert await find(half) == FULL
        with admin.begin() as connection:
            connection.execute(text("UPDATE msk_auth_api_keys SET name = 'new' WHERE id = 'k1'"))
        found = await find(half)
        assert found is not None
        assert found.name == "new"
        assert backends(admin, half, "state <> 'idle'") == []


@pytest.mark.parametrize(
    "options",
    [
        {"poolclass": NullPool},
        {"poolclass": StaticPool},
        {"execution_options": {"schema_translate_map": {None: "public"}}},
        {"connect_args": {"client_encoding": "latin1"}},
        {"connect_args": {"prepare_threshold": None}},
        {"pool_pre_ping": True},
    ],
    ids=lambda options: next(iter(options)),
)
async def test_every_kind_of_engine_is_read(
    kind: type[Half], postgres_url: URL, admin: Engine, options: dict[str, Any]
) -> None:
    async with half_on(kind, postgres_url, **options) as half:
        for _ in range(8):
            assert await find(half) == FULL


async def test_a_store_has_no_connections_beside_the_pool(
    kind: type[Half], postgres_url: URL, admin: Engine
) -> None:
    async with half_on(kind, postgres_url, pool_size=1, max_overflow=0, pool_timeout=60) as half:
        found = await asyncio.gather(*(find(half, each) for each in ["k1", "K1", "k2"] * 10))
        assert found == [FULL, MINIMAL, None] * 10
        assert len(backends(admin, half)) == 1
        await half.dispose()
        await until(lambda: backends(admin, half) == [])


current_tenant: ContextVar[str] = ContextVar("current_tenant")


@pytest.fixture
def tenants(admin: Engine) -> Iterator[dict[str, ApiKey]]:
    """A schema for each tenant, with a key of the tenant."""
    keys = {name: make_record(f"k{name}") for name in ("a", "b")}
    for name in keys:
        metadata = MetaData()
        api_key_table(metadata)
        with admin.begin() as connection:
            connection.execute(text(f"CREATE SCHEMA tenant_{name}"))
            connection.execute(text(f"SET LOCAL search_path TO tenant_{name}"))
            metadata.create_all(connection)
    yield keys
    with admin.begin() as connection:
        for name in keys:
            connection.execute(text(f"DROP SCHEMA tenant_{name} CASCADE"))


async def test_a_key_of_one_tenant_is_not_found_for_another(
    kind: type[Half], postgres_url: URL, tenants: dict[str, ApiKey]
) -> None:
    """Tenants by `search_path`: the application's listener prepares each connection that leaves the pool."""
    half = kind(postgres_url)

    @event.listens_for(half.sync, "checkout")
    def _choose_schema(connection: Any, _record: object, _proxy: object) -> None:
        cursor = connection.cursor()
        cursor.execute(f"SET search_path TO tenant_{current_tenant.get()}")
        cursor.close()
        connection.commit()

    async def as_tenant(name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        current_tenant.set(name)
        return await call()

    for name, record in tenants.items():
        insert = partial(half.call, "insert", record, max_active=None, now=NOW)
        await asyncio.create_task(as_tenant(name, insert))
    again = AsyncSQLAlchemyKeyStore(half.engine) if isinstance(half, Awaiting) else None
    wanted = [(name, record) for name in tenants for record in tenants.values()] * 10
    for look_up in [partial(find, half), *([] if again is None else [batched(again)])]:
        for _ in range(2):
            found = await asyncio.gather(
                *(
                    asyncio.create_task(as_tenant(name, partial(look_up, record.id)))
                    for name, record in wanted
                )
            )
            assert found == [record if tenants[name] is record else None for name, record in wanted]
    await half.close()


def batched(store: AsyncSQLAlchemyKeyStore) -> Callable[[str], Awaitable[ApiKey | None]]:
    """The look-up of keys as an authenticator makes it."""
    return BatchedReader(store.find, store.find_many, store.may_share_reads).find


async def test_when_every_connection_ended_the_next_look_up_has_its_answer(
    half: Half, admin: Engine
) -> None:
    """A restart of the server costs a retry, not an outage."""
    for _ in range(3):
        assert await asyncio.gather(*(find(half) for _ in range(4))) == [FULL] * 4
        end_from_outside(admin, half)
        assert await find(half) == FULL
        assert await half.call("recorded_leases") == []


@in_threads_and_on_both_loops
async def test_when_the_connection_ends_during_a_look_up_it_is_made_again(
    half: Half, admin: Engine
) -> None:
    assert await find(half) == FULL
    is_waiting = partial(backends, admin, half, "wait_event_type = 'Lock'")
    with locked(admin):
        reading = asyncio.create_task(find(half))
        await until(lambda: len(is_waiting()) == 1)
        (first,) = is_waiting()
        end_from_outside(admin, half)
        await until(lambda: len(is_waiting()) == 1 and is_waiting() != [first])
    assert await reading == FULL


@in_threads_and_on_both_loops
@pytest.mark.parametrize("operation", ["read", "write"])
async def test_an_operation_that_is_late_fails_and_the_server_stops_waiting(
    half: Half, admin: Engine, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    assert await find(half) == FULL
    # Enough for a busy machine to have sent the statement: the server stops only what it has begun.
    limit_time(half, 1)
    for driver in ("_async", "_sync"):
        # The server is asked to stop by a connection of its own, for which a busy machine takes longer.
        monkeypatch.setattr(f"msk_auth.stores.sqlalchemy.{driver}.running.CANCEL_SECONDS", 60)
    with locked(admin):
        began = time.monotonic()
        with pytest.raises(TimeoutError, match="did not answer in time"):
            await OPERATIONS[operation](half)
        assert time.monotonic() - began < 60
        await until(lambda: backends(admin, half, "wait_event_type = 'Lock'") == [])
        await until(lambda: checked_out(half) == 0)
    limit_time(half, 60)
    assert await find(half) == FULL
    assert await half.call("delete", "K1", owner_id=OWNER, at=NOW) is not None


@on_both_loops
async def test_a_cancelled_look_up_ends_at_once_and_its_connection_returns_to_the_pool(
    postgres_url: URL, admin: Engine
) -> None:
    async with half_on(Awaiting, postgres_url, pool_size=1, max_overflow=1) as half:
        assert await find(half) == FULL
        (pid,) = backends(admin, half)
        with locked(admin):
            reading = asyncio.create_task(find(half))
            await until(lambda: backends(admin, half, "wait_event_type = 'Lock'") == [pid])
            reading.cancel()
            await asyncio.wait([reading])
            assert reading.cancelled()
            assert checked_out(half) == 1
        await until(lambda: checked_out(half) == 0)
        assert backends(admin, half) == [pid]
        assert await find(half, "K1") == MINIMAL


@on_both_loops
async def test_a_write_that_has_begun_takes_place_when_its_caller_is_cancelled(
    postgres_url: URL, admin: Engine
) -> None:
    async with half_on(Awaiting, postgres_url) as half:
        with locked(admin):
            writing = asyncio.create_task(half.call("revoke", "K1", owner_id=OWNER, at=NOW))
            await until(lambda: len(backends(admin, half, "wait_event_type = 'Lock'")) == 1)
            writing.cancel()
            await asyncio.wait([writing])
            assert writing.cancelled()
        await until(lambda: checked_out(half) == 0)
        found = await find(half, "K1")
        assert found is not None
        assert found.revoked_at == NOW


@contextmanager
def cuttable(url: URL) -> Iterator[tuple[Wire, URL]]:
    with wire(url.port or 5432) as cable:
        yield cable, url.set(host="127.0.0.1", port=cable.port)


@in_threads_and_on_both_loops
@pytest.mark.parametrize("is_pinged", [False, True], ids=["plain", "pool_pre_ping"])
@pytest.mark.parametrize("operation", ["read", "write"])
async def test_a_silent_server_is_given_up_and_its_connections_are_replaced(
    kind: type[Half],
    postgres_url: URL,
    admin: Engine,
    caplog: pytest.LogCaptureFixture,
    is_pinged: bool,
    operation: str,
) -> None:
    """As frozen: its machine still acknowledges what is sent, so no setting of the driver notices."""
    with cuttable(postgres_url) as (cable, url):
        async with half_on(kind, url, pool_pre_ping=is_pinged) as half:
            prepare_postgresql(half.engine)
            await half.dispose()
            assert await find(half) == FULL
            limit_time(half, 0.2)
            cable.cut()
            began = time.monotonic()
            with pytest.raises(TimeoutError, match="did not answer in time"):
                await OPERATIONS[operation](half)
            assert time.monotonic() - began < 60
            await until(lambda: checked_out(half) == 0)
            # What was sent on the connections of before never arrives.
            cable.lose()
            cable.mend()
            limit_time(half, 60)
            assert await find(half) == FULL
    # The pool was not left with a connection that it cannot reset.
    assert "Exception during reset" not in caplog.text


@pytest.mark.faults
async def test_a_server_that_accepts_connections_and_does_not_answer_is_given_up(
    kind: type[Half], postgres_url: URL
) -> None:
    with cuttable(postgres_url) as (cable, url):
        cable.cut()
        half = kind(url)
        prepare_postgresql(half.engine)
        began = time.monotonic()
        with pytest.raises((TimeoutError, OperationalError)):
            await find(half)
        assert time.monotonic() - began < 60
        await half.close()


def test_a_prepared_engine_sets_what_the_application_left_open(kind: type[Half]) -> None:
    expected = {
        "connect_timeout": 2,
        "tcp_user_timeout": 2000,
        "keepalives_idle": 5,
        "keepalives_interval": 1,
        "keepalives_count": 2,
    }
    for own in ({}, {"connect_timeout": 9, "cursor_factory": None}):
        half = kind(URL.create("postgresql+psycopg", host="127.0.0.1"), connect_args=own)
        prepare_postgresql(half.engine)
        given: dict[str, Any] = {}

        def note(_d: object, _r: object, _a: object, parameters: dict[str, Any]) -> None:
            given.update(parameters)  # noqa: B023 - called in this turn of the loop
            raise ConnectionRefusedError

        event.listen(half.sync, "do_connect", note)
        with pytest.raises(ConnectionRefusedError):
            half.sync.connect()
        assert given.items() >= {**expected, **own}.items()


@pytest.mark.parametrize("url", ["sqlite://", "mariadb+pymysql://127.0.0.1/x"])
def test_another_database_cannot_be_prepared_as_postgresql(url: str) -> None:
    with pytest.raises(
        ConfigurationError, match="for PostgreSQL with psycopg, psycopg2 or asyncpg"
    ):
        prepare_postgresql(create_engine(url))


async def test_the_application_s_own_statements_have_no_deadline(
    kind: type[Half], postgres_url: URL, admin: Engine
) -> None:
    async with half_on(kind, postgres_url) as half:
        prepare_postgresql(half.engine)
        await half.dispose()
        limit_time(half, 0.1)
        sleep = text("SELECT 1 FROM pg_sleep(0.4)")
        if isinstance(half.engine, AsyncEngine):
            async with half.engine.connect() as awaited:
                assert await awaited.scalar(sleep) == 1
        else:
            with half.engine.connect() as connection:
                assert connection.scalar(sleep) == 1


@pytest.mark.parametrize("options", [{}, {"poolclass": StaticPool}], ids=["pool", "one connection"])
def test_a_forked_process_uses_connections_of_its_own(
    postgres_url: URL, options: dict[str, Any]
) -> None:
    with engine_on(postgres_url, **options) as engine:
        store = SQLAlchemyKeyStore(engine)
        store.insert(FULL, max_active=None, now=NOW)

        def backend() -> int:
            assert store.find("k1") == FULL
            with engine.connect() as connection:
                pid: int = connection.scalars(text("SELECT pg_backend_pid()")).one()
                return pid

        ours = backend()
        assert in_child(backend) != ours
        assert backend() == ours
        store.close()


def test_an_interrupted_look_up_leaves_no_answer_for_the_next_one(
    postgres_url: URL, admin: Engine
) -> None:
    armed: list[bool] = []

    class Interrupted(Cursor[Any]):
        def execute(self, *args: Any, **options: Any) -> Any:
            if armed:
                armed.clear()
                raise KeyboardInterrupt
            return super().execute(*args, **options)

    with engine_on(postgres_url, connect_args={"cursor_factory": Interrupted}) as engine:
        store = SQLAlchemyKeyStore(engine)
        for record in (FULL, MINIMAL):
            store.insert(record, max_active=None, now=NOW)
        with engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
        armed.append(True)
        with pytest.raises(KeyboardInterrupt):
            store.find("k1")
        assert driver.closed
        assert store.find("K1") == MINIMAL
        store.close()
