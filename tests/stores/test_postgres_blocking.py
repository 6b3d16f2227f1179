"""The connections to PostgreSQL that threads hold: always fresh, given up when in doubt, and in nobody's way."""

from __future__ import annotations

import os
import secrets
import select
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import URL, MetaData, NullPool, StaticPool, create_engine, event, text
from sqlalchemy.exc import DBAPIError
from tests.stores.support import engine_on
from tests.stores.test_postgres_awaiting import FULL, MINIMAL

from msk_auth import ApiKey
from msk_auth.stores.sqlalchemy import SQLAlchemyKeyStore, api_key_table
from msk_auth.stores.sqlalchemy._postgresql import BlockingReader, blocking, blocking_wire
from msk_auth.stores.sqlalchemy._postgresql import wire as limits
from msk_auth.stores.sqlalchemy._postgresql.blocking_wire import BlockingWire
from msk_auth.stores.sqlalchemy._postgresql.wire import Lost
from msk_auth.stores.sqlalchemy._rows import NotNow
from msk_auth.testing._store_contract import NOW, OWNER


@contextmanager
def store_on(url: URL, **options: Any) -> Iterator[SQLAlchemyKeyStore]:
    """A store with two records, whose connections can be told from others."""
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


def wire_of(store: SQLAlchemyKeyStore) -> BlockingWire:
    """The connection that the next look-up takes."""
    held = reader_of(store)._held
    wire = held.take()
    held.give_back(wire)
    assert wire is not None
    return wire


def execute(store: SQLAlchemyKeyStore, statement: str, **values: Any) -> Any:
    with store._for_writing.begin() as connection:
        result = connection.execute(text(statement), values)
        return result.all() if result.returns_rows else None


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def is_alive(store: SQLAlchemyKeyStore, pid: int) -> bool:
    return bool(execute(store, "SELECT 1 FROM pg_stat_activity WHERE pid = :pid", pid=pid))


def end_from_outside(store: SQLAlchemyKeyStore) -> None:
    """As a restart of the server would, for the held connection alone."""
    pid = wire_of(store)._libpq.backend_pid
    execute(store, "SELECT pg_terminate_backend(:pid)", pid=pid)
    until(lambda: not is_alive(store, pid))


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
    """Nobody else can read the table."""
    with store._for_writing.begin() as connection:
        connection.execute(text("LOCK TABLE msk_auth_api_keys IN ACCESS EXCLUSIVE MODE"))
        yield


def read_the_long_way(store: SQLAlchemyKeyStore, key_id: str) -> ApiKey | None:
    return store._read(store._operations.find, key_id)


def test_it_reads_what_sqlalchemy_reads(store: SQLAlchemyKeyStore) -> None:
    for record in (FULL, MINIMAL):
        for _ in range(2):
            assert reader_of(store).find(record.id) == record
        assert read_the_long_way(store, record.id) == record
    assert reader_of(store).find("unknown") is None


@pytest.mark.parametrize("key_id", ["", "k1\x00", "k 1", "k'1", "kü", "{k1}", "\udc80", "k" * 300])
def test_what_cannot_be_an_id_finds_what_the_long_way_finds(
    store: SQLAlchemyKeyStore, key_id: str
) -> None:
    def outcome(find: Callable[..., Any], *args: Any) -> object:
        try:
            return find(*args)
        except (DBAPIError, UnicodeError) as error:
            return type(error)

    assert outcome(store.find, key_id) == outcome(read_the_long_way, store, key_id)


def test_it_sees_each_commit_and_nothing_before_one(store: SQLAlchemyKeyStore) -> None:
    for number in range(50):
        name = f"name {number}"
        with store._for_writing.begin() as connection:
            connection.execute(
                text("UPDATE msk_auth_api_keys SET name = :name WHERE id = 'K1'"), {"name": name}
            )
            found = reader_of(store).find("K1")
            assert found is not None
            assert found.name != name
        found = reader_of(store).find("K1")
        assert found is not None
        assert found.name == name
    assert store.revoke("K1", owner_id=OWNER, at=NOW) == reader_of(store).find("K1")


@pytest.mark.parametrize("isolation", ["SERIALIZABLE", "REPEATABLE READ"])
def test_it_is_in_no_transaction_whatever_the_application_uses(
    postgres_url: URL, isolation: str
) -> None:
    with store_on(postgres_url, isolation_level=isolation) as store:
        pool = store._for_writing.pool

        @event.listens_for(pool, "checkout")
        def _leave_one_open(connection: Any, _record: object, _proxy: object) -> None:
            connection.cursor().execute("SELECT count(*) FROM msk_auth_api_keys")

        assert reader_of(store).find("k1") == FULL
        event.remove(pool, "checkout", _leave_one_open)
        execute(store, "UPDATE msk_auth_api_keys SET name = 'new' WHERE id = 'k1'")
        found = reader_of(store).find("k1")
        assert found is not None
        assert found.name == "new"
        states = execute(
            store,
            "SELECT state FROM pg_stat_activity WHERE pid = :pid",
            pid=wire_of(store)._libpq.backend_pid,
        )
        assert states == [("idle",)]


def test_one_thread_holds_one_connection_outside_of_the_pool(postgres_url: URL) -> None:
    with store_on(postgres_url, pool_size=1, max_overflow=0, pool_timeout=5) as store:
        for _ in range(3):
            assert store.find("k1") == FULL
        pids = execute(
            store,
            "SELECT pid FROM pg_stat_activity WHERE application_name = current_setting('application_name')",
        )
        assert len(pids) == 2
        wire = wire_of(store)
        store.close()
        store.close()
        assert wire.is_closed
        assert store.find("k1") == FULL
        with pytest.raises(NotNow):
            reader_of(store).find("k1")


def test_a_connection_that_is_in_use_is_closed_when_it_is_given_back(
    store: SQLAlchemyKeyStore,
) -> None:
    assert store.find("k1") == FULL
    wire = wire_of(store)
    with ThreadPoolExecutor(1) as threads:
        with locked(store):
            reading = threads.submit(store.find, "k1")
            until(lambda: waiting_for_a_lock(store) == 1)
            store.close()
            assert not wire.is_closed
        assert reading.result(10) == FULL
    assert wire.is_closed


def test_threads_each_get_their_own_answer_from_few_connections(store: SQLAlchemyKeyStore) -> None:
    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(store.find, ["k1", "K1", "k2"] * 300))
    assert found == [FULL, MINIMAL, None] * 300
    assert 1 <= reader_of(store)._held._idle.qsize() <= blocking.MAX_HELD


def test_when_all_connections_are_taken_the_long_way_is(
    store: SQLAlchemyKeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = reader_of(store)._held
    taken = [held.take() for _ in range(blocking.MAX_HELD)]
    monkeypatch.setattr(blocking, "_MAX_WAIT_SECONDS", 0.01)
    with pytest.raises(NotNow):
        reader_of(store).find("k1")
    assert store.find("k1") == FULL
    monkeypatch.setattr(blocking, "_MAX_WAIT_SECONDS", 10.0)
    threading.Timer(0.05, held.give_back, taken[:1]).start()
    assert store.find("k1") == FULL


def test_whoever_waits_gets_the_connection_that_is_given_back(store: SQLAlchemyKeyStore) -> None:
    assert store.find("k1") == FULL
    held = reader_of(store)._held
    taken = [held.take() for _ in range(blocking.MAX_HELD)]
    timer = threading.Timer(0.02, held.give_back, taken[:1])
    timer.start()
    assert reader_of(store).find("k1") == FULL
    timer.join()


@pytest.mark.parametrize("how", ["schema_translate_map", "one connection"])
def test_where_names_or_connections_are_special_the_long_way_is_taken(
    postgres_url: URL, how: str
) -> None:
    options: dict[str, Any] = (
        {"poolclass": StaticPool}
        if how == "one connection"
        else {"execution_options": {"schema_translate_map": {None: "public"}}}
    )
    with store_on(postgres_url, **options) as store:
        assert store._postgres is None
        assert store.find("k1") == FULL


def test_a_pool_that_keeps_nothing_works_too(postgres_url: URL) -> None:
    with store_on(postgres_url, poolclass=NullPool) as store:
        assert reader_of(store).find("k1") == FULL


def test_text_in_another_encoding_is_read_the_long_way(postgres_url: URL) -> None:
    with store_on(postgres_url, connect_args={"client_encoding": "latin1"}) as store:
        execute(store, "UPDATE msk_auth_api_keys SET name = 'ü' WHERE id = 'k1'")
        for _ in range(2):
            found = store.find("k1")
            assert found is not None
            assert found.name == "ü"
        with pytest.raises(NotNow):
            reader_of(store).find("k1")


def test_when_the_connection_ended_the_look_up_has_its_answer_and_the_next_one_a_connection(
    store: SQLAlchemyKeyStore,
) -> None:
    for _ in range(3):
        assert store.find("k1") == FULL
        before = wire_of(store)
        end_from_outside(store)
        assert store.find("k1") == FULL
        assert before.is_closed
        assert reader_of(store).find("k1") == FULL
        assert wire_of(store) is not before


def test_when_every_connection_ended_the_store_recovers(store: SQLAlchemyKeyStore) -> None:
    """A restart of the server takes those of the pool as well."""
    assert store.find("k1") == FULL
    (pids,) = zip(
        *execute(
            store,
            "SELECT pid FROM pg_stat_activity WHERE application_name = current_setting('application_name')"
            " AND pid <> pg_backend_pid()",
        ),
        strict=True,
    )
    other = create_engine(store._for_writing.url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with other.connect() as connection:
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                " AND application_name = current_setting('application_name')"
            )
        )
    outcomes: list[object] = []
    for _ in range(3):
        try:
            outcomes.append(store.find("k1"))
        except DBAPIError as error:
            # As SQLAlchemy tells of its own connections; it throws all of them away then.
            outcomes.append(error.connection_invalidated)
    assert outcomes[-1] == FULL
    assert set(outcomes) <= {True, FULL}
    assert wire_of(store)._libpq.backend_pid not in pids


def test_when_the_connection_ends_during_a_read_the_long_way_answers(
    store: SQLAlchemyKeyStore,
) -> None:
    assert store.find("k1") == FULL
    pid = wire_of(store)._libpq.backend_pid
    with ThreadPoolExecutor(1) as threads:
        with locked(store):
            reading = threads.submit(store.find, "k1")
            until(lambda: waiting_for_a_lock(store) == 1)
            execute(store, "SELECT pg_terminate_backend(:pid)", pid=pid)
            until(lambda: waiting_for_a_lock(store, but_not=pid) == 1)
        assert reading.result(10) == FULL


def test_a_server_that_does_not_answer_is_given_up_and_told_so(
    store: SQLAlchemyKeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.find("k1") == FULL
    wire = wire_of(store)
    monkeypatch.setattr(blocking_wire, "ANSWER_SECONDS", 0.2)
    with locked(store):
        with pytest.raises(TimeoutError, match="did not answer within"):
            store.find("k1")
        # Its process does not go on waiting for the lock, nor will those of later look-ups.
        until(lambda: waiting_for_a_lock(store) == 0)
    monkeypatch.undo()
    assert wire.is_closed
    assert store.find("k1") == FULL


def test_a_server_that_cannot_be_told_is_given_up_all_the_same(
    store: SQLAlchemyKeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.find("k1") == FULL
    wire = wire_of(store)
    monkeypatch.setattr(blocking_wire, "ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(wire._driver, "cancel_safe", None)
    with locked(store), pytest.raises(TimeoutError, match="did not answer within"):
        store.find("k1")
    assert wire.is_closed


def test_where_the_system_has_no_poll_it_is_waited_in_another_way(
    store: SQLAlchemyKeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.delattr(select, "poll")
        assert reader_of(store).find("k1") == FULL
    assert reader_of(store).find("K1") == MINIMAL
    monkeypatch.setattr(blocking_wire, "ANSWER_SECONDS", 0.1)
    with locked(store), pytest.raises(TimeoutError, match="did not answer within"):
        reader_of(store).find("k1")


def test_an_interrupt_leaves_no_answer_for_the_next_look_up(
    store: SQLAlchemyKeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.find("k1") == FULL
    wire = wire_of(store)

    def interrupt(_timeout: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(wire, "_wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.find("k1")
    assert wire.is_closed
    assert store.find("K1") == MINIMAL


class Scripted:
    """A libpq in an unlikely state."""

    def __init__(self, *answers: Any, flushed: int = 0, status: int = 0) -> None:
        self._answers = [*answers, None]
        self._flushed = flushed
        self.status = status

    def flush(self) -> int:
        return self._flushed

    def is_busy(self) -> int:
        return 0

    def get_result(self) -> Any:
        return self._answers.pop(0)

    def finish(self) -> None:
        pass


@pytest.mark.parametrize("flushed", [0, 1], ids=["no answer at all", "nothing can be sent"])
def test_whatever_else_is_odd_is_a_lost_connection(store: SQLAlchemyKeyStore, flushed: int) -> None:
    assert store.find("k1") == FULL
    wire = wire_of(store)
    libpq = wire._libpq
    wire._libpq = Scripted(flushed=flushed)  # type: ignore[assignment]
    with pytest.raises(Lost):
        wire._send(lambda: None)
    assert wire.is_closed
    libpq.finish()


def test_a_connection_that_ended_behind_its_answer_is_not_used_again(
    store: SQLAlchemyKeyStore,
) -> None:
    assert store.find("k1") == FULL
    wire = wire_of(store)
    libpq = wire._libpq
    wire._libpq = Scripted("answer", status=1)  # type: ignore[assignment]
    assert wire._send(lambda: None) == "answer"
    assert wire.is_closed
    libpq.finish()


@pytest.mark.parametrize("is_told", [True, False], ids=["told by the setting", "finds out"])
def test_poolers_that_keep_no_statements_get_whole_questions(
    postgres_url: URL, is_told: bool
) -> None:
    """PgBouncer in transaction mode: the next transaction may be on a server that never saw the statement."""
    options = {"connect_args": {"prepare_threshold": None}} if is_told else {}
    with store_on(postgres_url, **options) as store:
        assert store.find("k1") == FULL
        assert wire_of(store).prepares is not is_told
        wire = wire_of(store)
        wire._send(lambda: wire._libpq.send_query(b"DISCARD ALL"))
        # The first one after it finds out.
        for _ in range(3):
            assert store.find("k1") == FULL
        assert wire_of(store).prepares is False
        assert reader_of(store).find("K1") == MINIMAL


def test_a_statement_that_is_there_already_is_not_asked_by_its_name(
    store: SQLAlchemyKeyStore,
) -> None:
    """Behind a pooler that hands a new connection a server on which another one has prepared it."""
    name, statement = reader_of(store)._reading.one.name, b"SELECT 1"
    pool = store._for_writing.pool

    @event.listens_for(pool, "checkout")
    def _prepare(connection: Any, _record: object, _proxy: object) -> None:
        connection.pgconn.prepare(name, statement)

    assert reader_of(store).find("k1") == FULL
    event.remove(pool, "checkout", _prepare)
    assert wire_of(store).prepares is False


def test_a_statement_that_cannot_be_prepared_is_told_by_sqlalchemy_and_tried_later(
    store: SQLAlchemyKeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[object] = []
    event.listen(store._for_writing.pool, "detach", lambda *args: opened.append(args))
    execute(store, "ALTER TABLE msk_auth_api_keys RENAME TO elsewhere")
    try:
        for _ in range(3):
            with pytest.raises(DBAPIError, match='"msk_auth_api_keys" does not exist'):
                store.find("k1")
        assert len(opened) == 1
    finally:
        execute(store, "ALTER TABLE elsewhere RENAME TO msk_auth_api_keys")
    assert store.find("k1") == FULL
    reader_of(store)._closed_until = 0.0
    assert reader_of(store).find("k1") == FULL


def test_a_connection_that_ends_while_it_is_set_up_is_not_used(
    store: SQLAlchemyKeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_args: object) -> None:
        raise Lost

    monkeypatch.setattr(BlockingWire, "prepare", lost)
    with pytest.raises(NotNow):
        reader_of(store).find("k1")
    assert store.find("k1") == FULL


def test_what_fails_before_there_is_a_wire_leaves_no_connection_behind(
    store: SQLAlchemyKeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_driver: object) -> None:
        raise OSError("no more files")

    with monkeypatch.context() as patch:
        patch.setattr(blocking, "BlockingWire", fail)
        with pytest.raises(OSError, match="no more files"):
            store.find("k1")
    assert store.find("k1") == FULL


def test_a_statement_that_fails_is_told_by_sqlalchemy(store: SQLAlchemyKeyStore) -> None:
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
def test_an_old_or_silent_connection_is_made_anew(
    store: SQLAlchemyKeyStore, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    assert store.find("k1") == FULL
    before = wire_of(store)
    monkeypatch.setattr(limits, limit, 0.0)
    assert store.find("k1") == FULL
    assert before.is_closed
    assert wire_of(store) is not before


def test_a_forked_process_uses_connections_of_its_own(store: SQLAlchemyKeyStore) -> None:
    assert store.find("k1") == FULL
    pid = wire_of(store)._libpq.backend_pid
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        try:
            # As SQLAlchemy asks of whoever forks: what the parent's pool holds is the parent's.
            store._for_writing.dispose(close=False)
            found = reader_of(store).find("k1")
            own = wire_of(store)._libpq.backend_pid
            store.close()
            os._exit(0 if found == FULL and own != pid else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    # The child's end did not end the parent's.
    assert reader_of(store).find("k1") == FULL
    assert wire_of(store)._libpq.backend_pid == pid


def test_a_wire_of_the_parent_process_is_left_alone(
    store: SQLAlchemyKeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.find("k1") == FULL
    wire = wire_of(store)
    monkeypatch.setattr(limits, "_inherited", kept := [])
    reader_of(store)._held.process = wire._process = -1  # as seen from a child
    assert store.find("k1") == FULL
    assert wire_of(store) is not wire
    assert kept == [wire._driver]
    assert is_alive(store, wire._libpq.backend_pid)
    wire._libpq.finish()


def test_a_store_that_nobody_closed_closes_its_connections_when_it_goes(postgres_url: URL) -> None:
    with engine_on(postgres_url) as engine:
        store = SQLAlchemyKeyStore(engine)
        assert store.find("k1") is None
        wire = wire_of(store)
        assert not wire.is_closed
        del store
        assert wire.is_closed


def test_two_tables_never_ask_each_others_statements(postgres_url: URL) -> None:
    with engine_on(postgres_url) as engine:
        other = api_key_table(MetaData(), "other_keys")
        stores = [SQLAlchemyKeyStore(engine), SQLAlchemyKeyStore(engine, other)]
        assert len({reader_of(store)._reading.one.name for store in stores}) == 2
