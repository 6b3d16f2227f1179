"""The connections to PostgreSQL that threads hold: always fresh, and given up when in doubt."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from examples.task_service.tests.faults.proxy import wire
from sqlalchemy import URL, NullPool, StaticPool, create_engine, event, text
from sqlalchemy.exc import DBAPIError, OperationalError
from tests.forked import in_child
from tests.stores.support import engine_on
from tests.stores.test_postgres_awaiting import FULL, MINIMAL

from msk_auth import ApiKey
from msk_auth.stores.sqlalchemy import SQLAlchemyKeyStore, _deadlines, _postgresql, _stores
from msk_auth.stores.sqlalchemy._deadlines import CLOCK, bound_checkouts, connect_until
from msk_auth.stores.sqlalchemy._postgresql import BlockingReader, _BlockingConnection
from msk_auth.stores.sqlalchemy._rows import FastPathUnavailable
from msk_auth.testing import FrozenClock
from msk_auth.testing._store_contract import NOW, OWNER


@contextmanager
def store_on(url: URL, **options: Any) -> Iterator[SQLAlchemyKeyStore]:
    """A store with two records, whose connections can be distinguished from others."""
    name = f"held-{secrets.token_hex(4)}"
    with engine_on(url.update_query_dict({"application_name": name}), **options) as engine:
        store = SQLAlchemyKeyStore(engine)
        for record in (FULL, MINIMAL):
            store.insert(record, max_active=None, now=NOW)
        yield store
        store.close()


@pytest.fixture
def store(postgres_url: URL) -> Iterator[SQLAlchemyKeyStore]:
    with store_on(postgres_url) as store:
        yield store


def reader_of(store: SQLAlchemyKeyStore) -> BlockingReader:
    assert store._postgres is not None
    return store._postgres


def idle(store: SQLAlchemyKeyStore) -> _BlockingConnection:
    """The connection that the next look-up takes."""
    reader = reader_of(store)
    connection = reader._take()
    reader._give_back(connection)
    assert connection is not None
    return connection


def pid_of(connection: _BlockingConnection) -> int:
    return connection.driver.pgconn.backend_pid


def find_held(store: SQLAlchemyKeyStore, key_id: str) -> ApiKey | None:
    return reader_of(store).find(key_id, CLOCK.monotonic() + 60)


def execute(store: SQLAlchemyKeyStore, statement: str, **values: Any) -> Any:
    with store._derived.begin() as connection:
        result = connection.execute(text(statement), values)
        return result.all() if result.returns_rows else None


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def is_alive(store: SQLAlchemyKeyStore, pid: int) -> bool:
    return bool(execute(store, "SELECT 1 FROM pg_stat_activity WHERE pid = :pid", pid=pid))


def end_from_outside(store: SQLAlchemyKeyStore) -> None:
    """As a restart of the server would, for the held connection alone."""
    execute(store, "SELECT pg_terminate_backend(:pid, 10000)", pid=pid_of(idle(store)))


def waiting_for_a_lock(store: SQLAlchemyKeyStore, but_not: int = 0) -> int:
    ((count,),) = execute(
        store,
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = current_setting('application_name')"
        " AND wait_event_type = 'Lock' AND pid <> :pid",
        pid=but_not,
    )
    return int(count)


@contextmanager
def locked(store: SQLAlchemyKeyStore) -> Iterator[None]:
    """No other connection can read the table."""
    with store._derived.begin() as connection:
        connection.execute(text("LOCK TABLE msk_auth_api_keys IN ACCESS EXCLUSIVE MODE"))
        yield


def read_through_sqlalchemy(store: SQLAlchemyKeyStore, key_id: str) -> ApiKey | None:
    return store._read(store._operations.find, key_id)


def test_it_reads_what_sqlalchemy_reads(store: SQLAlchemyKeyStore) -> None:
    for record in (FULL, MINIMAL):
        for _ in range(2):
            assert find_held(store, record.id) == record
        assert read_through_sqlalchemy(store, record.id) == record
    assert find_held(store, "unknown") is None


@pytest.mark.parametrize("key_id", ["", "k1\x00", "k 1", "k'1", "kü", "{k1}", "\udc80", "k" * 300])
def test_an_impossible_id_finds_what_sqlalchemy_finds(
    store: SQLAlchemyKeyStore, key_id: str
) -> None:
    def outcome(find: Callable[..., Any], *args: Any) -> object:
        try:
            return find(*args)
        except (DBAPIError, UnicodeError) as error:
            return type(error)

    assert outcome(store.find, key_id) == outcome(read_through_sqlalchemy, store, key_id)


def test_it_sees_each_commit_and_nothing_before_one(store: SQLAlchemyKeyStore) -> None:
    for number in range(50):
        name = f"name {number}"
        with store._derived.begin() as connection:
            connection.execute(
                text("UPDATE msk_auth_api_keys SET name = :name WHERE id = 'K1'"), {"name": name}
            )
            found = find_held(store, "K1")
            assert found is not None
            assert found.name != name
        found = find_held(store, "K1")
        assert found is not None
        assert found.name == name
    assert store.revoke("K1", owner_id=OWNER, at=NOW) == find_held(store, "K1")


@pytest.mark.parametrize("isolation", ["SERIALIZABLE", "REPEATABLE READ"])
def test_it_is_in_no_transaction_whatever_the_application_uses(
    postgres_url: URL, isolation: str
) -> None:
    with store_on(postgres_url, isolation_level=isolation) as store:
        pool = store._derived.pool

        @event.listens_for(pool, "checkout")
        def _leave_one_open(connection: Any, _record: object, _proxy: object) -> None:
            connection.cursor().execute("SELECT count(*) FROM msk_auth_api_keys")

        assert find_held(store, "k1") == FULL
        event.remove(pool, "checkout", _leave_one_open)
        execute(store, "UPDATE msk_auth_api_keys SET name = 'new' WHERE id = 'k1'")
        found = find_held(store, "k1")
        assert found is not None
        assert found.name == "new"
        states = execute(
            store,
            "SELECT state FROM pg_stat_activity WHERE pid = :pid",
            pid=pid_of(idle(store)),
        )
        assert states == [("idle",)]


def test_one_thread_holds_one_connection_outside_of_the_pool(postgres_url: URL) -> None:
    with store_on(postgres_url, pool_size=1, max_overflow=0, pool_timeout=60) as store:
        for _ in range(3):
            assert store.find("k1") == FULL
        pids = execute(
            store,
            "SELECT pid FROM pg_stat_activity WHERE application_name = current_setting('application_name')",
        )
        assert len(pids) == 2
        held = idle(store)
        store.close()
        store.close()
        assert held.driver.closed
        assert store.find("k1") == FULL
        with pytest.raises(FastPathUnavailable):
            find_held(store, "k1")


def test_a_connection_that_is_in_use_is_closed_when_it_is_given_back(
    store: SQLAlchemyKeyStore,
) -> None:
    assert store.find("k1") == FULL
    held = idle(store)
    with ThreadPoolExecutor(1) as threads:
        with locked(store):
            reading = threads.submit(store.find, "k1")
            until(lambda: waiting_for_a_lock(store) == 1)
            store.close()
            assert not held.driver.closed
        assert reading.result(60) == FULL
    assert held.driver.closed


def test_threads_each_get_their_own_answer_from_few_connections(store: SQLAlchemyKeyStore) -> None:
    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(store.find, ["k1", "K1", "k2"] * 300))
    assert found == [FULL, MINIMAL, None] * 300
    assert 1 <= reader_of(store)._idle.qsize() <= _postgresql.MAX_HELD


def test_when_all_connections_are_taken_sqlalchemy_reads(
    store: SQLAlchemyKeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = reader_of(store)
    taken = [reader._take() for _ in range(_postgresql.MAX_HELD)]
    monkeypatch.setattr(_postgresql, "_MAX_WAIT_SECONDS", 0.01)
    with pytest.raises(FastPathUnavailable):
        find_held(store, "k1")
    assert store.find("k1") == FULL
    monkeypatch.setattr(_postgresql, "_MAX_WAIT_SECONDS", 10.0)
    timer = threading.Timer(0.05, reader._give_back, taken[:1])
    timer.start()
    assert store.find("k1") == FULL
    timer.join()


def test_the_next_thread_gets_the_connection_that_is_given_back(
    store: SQLAlchemyKeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A loaded machine may take longer to give one back than a read waits for it.
    monkeypatch.setattr(_postgresql, "_MAX_WAIT_SECONDS", 60)
    assert store.find("k1") == FULL
    reader = reader_of(store)
    taken = [reader._take() for _ in range(_postgresql.MAX_HELD)]
    timer = threading.Timer(0.02, reader._give_back, taken[:1])
    timer.start()
    assert find_held(store, "k1") == FULL
    timer.join()


@pytest.mark.parametrize("how", ["schema_translate_map", "one connection"])
def test_with_special_names_or_connections_sqlalchemy_reads(postgres_url: URL, how: str) -> None:
    options: dict[str, Any] = (
        {"poolclass": StaticPool}
        if how == "one connection"
        else {"execution_options": {"schema_translate_map": {None: "public"}}}
    )
    with store_on(postgres_url, **options) as store:
        assert store._postgres is None
        assert store.find("k1") == FULL


def test_a_forked_child_takes_not_the_one_connection_of_its_parent(postgres_url: URL) -> None:
    with store_on(postgres_url, poolclass=StaticPool) as store:

        def backend() -> int:
            assert store.find("k1") == FULL
            with store._engine.connect() as connection:
                pid: int = connection.scalars(text("SELECT pg_backend_pid()")).one()
                return pid

        ours = backend()
        assert in_child(backend) != ours
        assert backend() == ours


def test_a_pool_that_keeps_nothing_works_too(postgres_url: URL) -> None:
    with store_on(postgres_url, poolclass=NullPool) as store:
        assert find_held(store, "k1") == FULL


def test_text_in_another_encoding_is_read_as_well(postgres_url: URL) -> None:
    with store_on(postgres_url, connect_args={"client_encoding": "latin1"}) as store:
        execute(store, "UPDATE msk_auth_api_keys SET name = 'ü' WHERE id = 'k1'")
        found = find_held(store, "k1")
        assert found is not None
        assert found.name == "ü"


def test_when_the_connection_ended_the_look_up_has_its_answer_and_the_next_one_a_connection(
    store: SQLAlchemyKeyStore,
) -> None:
    for _ in range(3):
        assert store.find("k1") == FULL
        before = idle(store)
        end_from_outside(store)
        assert store.find("k1") == FULL
        assert before.driver.closed
        assert find_held(store, "k1") == FULL


def test_when_every_connection_ended_the_next_look_up_has_its_answer(
    store: SQLAlchemyKeyStore,
) -> None:
    """A restart of the server takes those of the pool as well: they cost one retry, not an outage."""
    with store._derived.connect(), store._derived.connect():
        assert store.find("k1") == FULL
    other = create_engine(store._derived.url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with other.connect() as connection:
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                " AND application_name = current_setting('application_name')"
            )
        )
    assert store.find("k1") == FULL
    assert store.find("K1") == MINIMAL
    assert store.recorded_leases() == []


def test_when_the_connection_ends_during_a_read_sqlalchemy_answers(
    store: SQLAlchemyKeyStore,
) -> None:
    assert store.find("k1") == FULL
    pid = pid_of(idle(store))
    with ThreadPoolExecutor(1) as threads:
        with locked(store):
            reading = threads.submit(store.find, "k1")
            until(lambda: waiting_for_a_lock(store) == 1)
            execute(store, "SELECT pg_terminate_backend(:pid)", pid=pid)
            until(lambda: waiting_for_a_lock(store, but_not=pid) == 1)
        assert reading.result(60) == FULL


@pytest.mark.parametrize("way", ["held", "pooled"])
def test_a_server_that_does_not_answer_in_time_gets_a_cancel_request(
    store: SQLAlchemyKeyStore, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    assert store.find("k1") == FULL
    held = idle(store)
    if way == "pooled":
        store.close()
    monkeypatch.setattr(_stores, "READ_SECONDS", 0.2)
    with locked(store):
        with pytest.raises(TimeoutError, match="did not answer in time"):
            store.find("k1")
        if way == "held":
            # Its process does not go on waiting for the lock, nor will those of later look-ups.
            until(lambda: waiting_for_a_lock(store) == 0)
    monkeypatch.undo()
    assert held.driver.closed
    assert store.find("k1") == FULL


def test_a_write_that_is_not_answered_in_time_fails(
    store: SQLAlchemyKeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_stores, "_WRITE_SECONDS", 0.2)
    with locked(store), pytest.raises(TimeoutError, match="did not answer in time"):
        store.revoke("k1", owner_id=OWNER, at=NOW)
    monkeypatch.undo()
    assert store.find("k1") == FULL
    assert store.delete("K1", owner_id=OWNER, at=NOW) is not None


@pytest.mark.parametrize("operation", ["look-up", "read", "write"])
def test_a_ping_that_is_not_answered_in_time_fails(
    postgres_url: URL, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """`pool_pre_ping` of the application's engine, on a network that went silent."""
    with wire(postgres_url.port or 5432) as cable:
        url = postgres_url.set(host="127.0.0.1", port=cable.port)
        with engine_on(url, pool_pre_ping=True) as engine:
            # The second store finds pings that are bounded already.
            SQLAlchemyKeyStore(engine)
            store = SQLAlchemyKeyStore(engine)
            store.insert(FULL, max_active=None, now=NOW)
            work: dict[str, Callable[[], object]] = {
                "look-up": lambda: store.find("k1"),
                "read": lambda: read_through_sqlalchemy(store, "k1"),
                "write": lambda: store.revoke("k1", owner_id=OWNER, at=NOW),
            }
            with engine.connect() as connection:
                pooled: Any = connection.connection.driver_connection
            monkeypatch.setattr(_stores, "READ_SECONDS", 0.2)
            monkeypatch.setattr(_stores, "_WRITE_SECONDS", 0.2)
            cable.cut()
            with pytest.raises(TimeoutError, match="did not answer in time"):
                work[operation]()
            assert pooled.closed
            cable.mend()
            monkeypatch.undo()
            assert store.find("k1") == FULL
            store.close()


def test_pings_of_the_application_are_not_bounded(postgres_url: URL) -> None:
    with engine_on(postgres_url, pool_pre_ping=True) as engine:
        are_bounded: list[bool] = []
        # psycopg waits in this method, which is replaced where there is a deadline.
        vars(engine.dialect)["do_ping"] = lambda driver: (
            are_bounded.append("wait" in vars(driver)) or True
        )
        store = SQLAlchemyKeyStore(engine)
        store.insert(FULL, max_active=None, now=NOW)
        with engine.connect():
            assert are_bounded == [False]
        assert store.find("k1") == FULL
        assert are_bounded == [False, True]
        store.close()


def test_stores_that_begin_on_one_engine_at_the_same_moment_bound_its_pings_once(
    postgres_url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine_on(postgres_url, pool_pre_ping=True) as engine:

        def meanwhile(value: object, kind: type) -> bool:
            monkeypatch.undo()
            bound_checkouts(engine)
            return isinstance(value, kind)

        # Another store comes first between the look at the engine and the change.
        monkeypatch.setattr(_deadlines, "isinstance", meanwhile, raising=False)
        store = SQLAlchemyKeyStore(engine)
        store.insert(FULL, max_active=None, now=NOW)
        # A pooled connection, which is pinged.
        assert store.find("k1") == FULL
        store.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FrozenClock:
    """The clock of all deadlines, which stands still."""
    clock = FrozenClock()
    for module in (_deadlines, _postgresql, _stores):
        monkeypatch.setattr(module, "CLOCK", clock)
    return clock


@pytest.mark.parametrize("own", [None, 5])
def test_opening_a_connection_is_bounded_for_the_store_alone(
    postgres_url: URL, clock: FrozenClock, own: int | None
) -> None:
    connect_args = {} if own is None else {"connect_timeout": own}
    with engine_on(postgres_url, connect_args=connect_args, poolclass=NullPool) as engine:
        given: list[object] = []
        connect: Callable[..., Any] = engine.dialect.connect

        def note(*args: Any, **parameters: Any) -> Any:
            given.append(parameters.get("connect_timeout"))
            return connect(*args, **parameters)

        vars(engine.dialect)["connect"] = note
        store = SQLAlchemyKeyStore(engine)
        store.insert(FULL, max_active=None, now=NOW)
        assert store.find("k1") == FULL
        read_through_sqlalchemy(store, "k1")
        with engine.connect():
            pass
        assert given == ([10, 3, 3, None] if own is None else [own] * 4)
        # Zero would mean that there is no limit.
        connect_until(engine, clock.monotonic() - 1).close()
        assert given[4:] == [own or 1]
        store.close()


def test_several_hosts_share_the_time_to_connect(postgres_url: URL, clock: FrozenClock) -> None:
    host, port = postgres_url.host, postgres_url.port
    hosts = postgres_url.set(host=None, port=None).update_query_dict(
        {"host": f"{host},{host}", "port": f"{port},{port}"}
    )
    engine = create_engine(hosts)
    SQLAlchemyKeyStore(engine)
    with connect_until(engine, clock.monotonic() + 9) as connection:
        driver: Any = connection.connection.driver_connection
        assert driver.info.get_parameters()["connect_timeout"] == "5"
    engine.dispose()


def test_a_server_that_accepts_connections_and_does_not_answer_is_given_up(
    postgres_url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_stores, "READ_SECONDS", 0.2)
    with wire(postgres_url.port or 5432) as cable:
        cable.cut()
        engine = create_engine(postgres_url.set(host="127.0.0.1", port=cable.port))
        with pytest.raises(OperationalError, match="timeout expired"):
            SQLAlchemyKeyStore(engine).find("k1")
        engine.dispose()


def test_a_ping_still_finds_a_connection_that_the_server_has_closed(postgres_url: URL) -> None:
    with store_on(postgres_url, pool_pre_ping=True, pool_use_lifo=True) as store:
        with store._derived.connect() as connection:
            pooled: Any = connection.connection.driver_connection
            pid = pooled.pgconn.backend_pid
            execute(store, "SELECT pg_terminate_backend(:pid, 10000)", pid=pid)
        # A write is not tried twice: only the ping can have noticed.
        assert store.delete("K1", owner_id=OWNER, at=NOW) is not None
        assert pooled.closed


def test_a_connection_is_closed_even_if_the_cancel_request_fails(
    store: SQLAlchemyKeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.find("k1") == FULL
    held = idle(store)
    monkeypatch.setattr(_stores, "READ_SECONDS", 0.1)
    monkeypatch.setattr(held._blocking, "cancel_safe", None)
    with locked(store), pytest.raises(TimeoutError, match="did not answer in time"):
        store.find("k1")
    assert held.driver.closed


def test_an_interrupt_leaves_no_answer_for_the_next_look_up(
    store: SQLAlchemyKeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.find("k1") == FULL
    held = idle(store)

    class Interrupted:
        def execute(self, *_args: object, **_options: object) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(held, "_cursor", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        store.find("k1")
    assert held.driver.closed
    assert store.find("K1") == MINIMAL


@pytest.mark.parametrize("is_configured", [True, False], ids=["configured", "detected"])
def test_poolers_without_prepared_statements_get_unprepared_ones(
    postgres_url: URL, is_configured: bool
) -> None:
    """PgBouncer in transaction mode: the next transaction may be on a server that never saw the statement."""
    options = {"connect_args": {"prepare_threshold": None}} if is_configured else {}
    with store_on(postgres_url, **options) as store:
        assert store.find("k1") == FULL
        # In a block, so that the driver does not notice.
        idle(store)._blocking.execute("DO $$BEGIN EXECUTE 'DEALLOCATE ALL'; END$$")
        # The first read after it detects this.
        for _ in range(3):
            assert store.find("k1") == FULL
        assert reader_of(store)._reading.prepares is is_configured
        assert find_held(store, "K1") == MINIMAL


def test_a_connection_that_cannot_be_prepared_for_reading_is_not_used(
    store: SQLAlchemyKeyStore,
) -> None:
    pool = store._derived.pool

    @event.listens_for(pool, "checkout")
    def _leave_a_block_open(connection: Any, _record: object, _proxy: object) -> None:
        connection._num_transactions = 1

    with pytest.raises(FastPathUnavailable):
        find_held(store, "k1")
    event.remove(pool, "checkout", _leave_a_block_open)
    assert store.find("k1") == FULL
    with pytest.raises(FastPathUnavailable):
        find_held(store, "k1")
    reader_of(store)._closed_until = 0.0
    assert find_held(store, "k1") == FULL


def test_a_failing_statement_is_reported_by_sqlalchemy(store: SQLAlchemyKeyStore) -> None:
    assert store.find("k1") == FULL
    execute(store, "ALTER TABLE msk_auth_api_keys RENAME TO elsewhere")
    try:
        for _ in range(2):
            with pytest.raises(DBAPIError, match='"msk_auth_api_keys" does not exist'):
                store.find("k1")
    finally:
        execute(store, "ALTER TABLE elsewhere RENAME TO msk_auth_api_keys")
    assert store.find("k1") == FULL


@pytest.mark.parametrize("limit", ["_MAX_IDLE_SECONDS", "_MAX_AGE_SECONDS"])
def test_an_old_or_unresponsive_connection_is_replaced(
    store: SQLAlchemyKeyStore, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    assert store.find("k1") == FULL
    before = idle(store)
    monkeypatch.setattr(_postgresql, limit, -1.0)
    assert store.find("k1") == FULL
    assert before.driver.closed
    monkeypatch.undo()
    assert find_held(store, "k1") == FULL


def test_a_forked_process_uses_connections_of_its_own(store: SQLAlchemyKeyStore) -> None:
    assert store.find("k1") == FULL
    pid = pid_of(idle(store))

    def read() -> tuple[bool, bool]:
        # As SQLAlchemy asks of a program that forks: what the parent's pool holds is the parent's.
        store._derived.dispose(close=False)
        is_found = find_held(store, "k1") == FULL
        own = pid_of(idle(store))
        store.close()
        return is_found, own != pid

    # Also while threads of the parent have taken all connections.
    taken = [reader_of(store)._take() for _ in range(_postgresql.MAX_HELD)]
    store._turn.acquire()
    assert in_child(read) == (True, True)
    store._turn.release()
    for each in taken:
        reader_of(store)._give_back(each)
    # The child's end did not end the parent's.
    assert find_held(store, "k1") == FULL
    assert pid_of(idle(store)) == pid


def test_an_unclosed_store_closes_its_connections_when_it_is_collected(postgres_url: URL) -> None:
    with engine_on(postgres_url) as engine:
        store = SQLAlchemyKeyStore(engine)
        assert store.find("k1") is None
        held = idle(store)
        assert not held.driver.closed
        del store
        assert held.driver.closed
