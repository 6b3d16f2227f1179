"""PostgreSQL behind a network that fails, as a standby, and after a crash (guarantees G2, G5 and G8)."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from examples.task_service.tests.faults.proxy import Wire, wire
from sqlalchemy import URL, Engine, create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine
from tests.own_postgres import OwnPostgres, own_postgres
from tests.stores.support import METADATA, empty_tables

from msk_auth.batching import BatchedReader
from msk_auth.stores.sqlalchemy import (
    AsyncSQLAlchemyKeyStore,
    SQLAlchemyKeyStore,
    prepare_postgresql,
)
from msk_auth.testing._store_contract import NOW, OWNER, make_record

pytestmark = [pytest.mark.anyio, pytest.mark.faults]

BOUND_SECONDS = 5.0
CUT_SECONDS = 8.0
BACK_WITHIN_SECONDS = 1.0

RECORD = make_record("k1")


@pytest.fixture
def _patient_stores() -> None:
    """What is promised here is bounded by the limits that applications have."""


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


@dataclass
class History:
    """When each look-up began and ended, and how."""

    entries: list[tuple[float, float, str]] = field(default_factory=list)

    def note(self, began: float, outcome: str) -> None:
        self.entries.append((began, time.monotonic(), outcome))

    def outcomes(self, *, after: float, before: float) -> set[str]:
        return {how for began, ended, how in self.entries if after <= began and ended <= before}

    def check(self, cut: float, mended: float, end: float) -> None:
        """Bounded during the cut, and normal within a second of its end."""
        assert max(ended - began for began, ended, _ in self.entries) < BOUND_SECONDS
        assert self.outcomes(after=cut + 0.5, before=mended) <= {"TimeoutError", "OperationalError"}
        back = mended + BACK_WITHIN_SECONDS
        assert "found" in self.outcomes(after=mended, before=back + 0.5)
        assert self.outcomes(after=back, before=end) == {"found"}


@contextmanager
def cuttable(postgres_url: URL) -> Iterator[tuple[Wire, URL]]:
    empty_tables(postgres_url)
    engine = create_engine(postgres_url)
    SQLAlchemyKeyStore(engine).insert(RECORD, max_active=None, now=NOW)
    engine.dispose()
    with wire(postgres_url.port or 5432) as cable:
        yield cable, postgres_url.set(host="127.0.0.1", port=cable.port)


@asynccontextmanager
async def reader_on(url: URL, **options: Any) -> AsyncIterator[BatchedReader]:
    engine = create_async_engine(url, **options)
    prepare_postgresql(engine)
    store = AsyncSQLAlchemyKeyStore(engine)
    yield BatchedReader(store.find, store.find_many)
    await store.aclose()
    await engine.dispose()


@pytest.mark.parametrize("is_pinged", [False, True], ids=["plain", "pool_pre_ping"])
@pytest.mark.parametrize("loses", [False, True], ids=["late", "lost"])
async def test_after_a_cut_look_ups_are_answered_within_a_second(
    postgres_url: URL, loses: bool, is_pinged: bool
) -> None:
    """Late: what was sent meanwhile arrives in the end. Lost: no connection of before ever answers again."""
    history = History()
    with cuttable(postgres_url) as (cable, url):
        async with reader_on(url, pool_pre_ping=is_pinged) as reader:
            done = asyncio.Event()

            async def look_up() -> None:
                while not done.is_set():
                    began = time.monotonic()
                    try:
                        outcome = "found" if await reader.find("k1") == RECORD else "wrong"
                    except Exception as error:  # noqa: BLE001 - what it is, is checked
                        outcome = type(error).__name__
                    history.note(began, outcome)
                    await asyncio.sleep(0.005)

            tasks = [asyncio.create_task(look_up()) for _ in range(8)]
            # Requests that come during the cut find others waiting.
            await asyncio.sleep(1)
            assert history.outcomes(after=0, before=time.monotonic()) == {"found"}
            cut = time.monotonic()
            cable.cut()
            for _ in range(8):
                await asyncio.sleep(CUT_SECONDS / 8)
                tasks += [asyncio.create_task(look_up()) for _ in range(8)]
            if loses:
                cable.lose()
            cable.mend()
            mended = time.monotonic()
            await asyncio.sleep(4)
            end = time.monotonic()
            done.set()
            await asyncio.gather(*tasks)
    history.check(cut, mended, end)


async def test_one_lost_connection_delays_only_its_own_look_ups(postgres_url: URL) -> None:
    with cuttable(postgres_url) as (cable, url):
        async with reader_on(url) as reader:
            assert await reader.find("k1") == RECORD
            cable.lose()
            began = time.monotonic()
            lost = asyncio.create_task(reader.find("k1"))
            await asyncio.sleep(0)
            for _ in range(3):
                found = await asyncio.gather(*(reader.find("k1") for _ in range(20)))
                assert found == [RECORD] * 20
            assert not lost.done()
            with pytest.raises(TimeoutError):
                await lost
            assert time.monotonic() - began < BOUND_SECONDS


@pytest.mark.parametrize("is_pinged", [False, True], ids=["plain", "pool_pre_ping"])
@pytest.mark.parametrize("loses", [False, True], ids=["late", "lost"])
def test_after_a_cut_threads_are_answered_within_a_second(
    postgres_url: URL, loses: bool, is_pinged: bool
) -> None:
    history = History()
    with cuttable(postgres_url) as (cable, url):
        engine = create_engine(url, pool_timeout=1, pool_pre_ping=is_pinged)
        prepare_postgresql(engine)
        store = SQLAlchemyKeyStore(engine)
        done = threading.Event()

        def look_up(_: object) -> None:
            began = time.monotonic()
            try:
                outcome = "found" if store.find("k1") == RECORD else "wrong"
            except Exception as error:  # noqa: BLE001 - what it is, is checked
                outcome = type(error).__name__
            history.note(began, outcome)

        def work(_: object) -> None:
            while not done.is_set():
                look_up(None)
                done.wait(0.005)

        with ThreadPoolExecutor(80) as threads:
            working = [threads.submit(work, None) for _ in range(4)]
            time.sleep(1)
            cut = time.monotonic()
            cable.cut()
            time.sleep(CUT_SECONDS)
            if loses:
                cable.lose()
            cable.mend()
            mended = time.monotonic()
            # Threads that were not waiting when it was mended.
            working += [threads.submit(work, None) for _ in range(4)]
            time.sleep(BOUND_SECONDS)
            end = time.monotonic()
            done.set()
            for each in working:
                each.result()
        store.close()
        engine.dispose()
    assert max(ended - began for began, ended, _ in history.entries) < BOUND_SECONDS
    during = history.outcomes(after=cut + 0.5, before=mended)
    assert during <= {"TimeoutError", "OperationalError", "ConnectionTimeout"}
    assert history.outcomes(after=mended + BACK_WITHIN_SECONDS, before=end) == {"found"}


@contextmanager
def standby_of(primary: OwnPostgres) -> Iterator[OwnPostgres]:
    """A streaming standby of a running server."""
    with own_postgres() as standby:
        standby.stop()
        data = standby.folder / "data"
        shutil.rmtree(data)
        binaries = primary.binaries
        command = [binaries / "pg_basebackup", "-h", "127.0.0.1", "-p", str(primary.port)]
        command += ["-U", "postgres", "-D", data, "-R", "-X", "stream", "-c", "fast"]
        subprocess.run(command, check=True, capture_output=True, **primary.as_user)  # type: ignore[call-overload]
        standby.start()
        yield standby


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def both(first: OwnPostgres, second: OwnPostgres) -> URL:
    hosts = ("127.0.0.1,127.0.0.1", f"{first.port},{second.port}")
    return first.url.set(host=None, port=None).update_query_dict(
        {"host": hosts[0], "port": hosts[1]}
    )


def test_a_standby_is_never_read() -> None:
    """A URL of two hosts whose first one becomes a standby: it may not know of a revocation that has returned."""
    with own_postgres(fsync="off") as primary, standby_of(primary) as standby:
        engine = create_engine(primary.url)
        METADATA.create_all(engine)
        SQLAlchemyKeyStore(engine).insert(RECORD, max_active=None, now=NOW)
        engine.dispose()

        pooled = create_engine(standby.url)
        until(lambda: _has_the_key(pooled))
        with pooled.connect() as connection:
            connection.execute(text("SELECT pg_wal_replay_pause()"))
            connection.commit()

        engine = create_engine(both(primary, standby), connect_args={"connect_timeout": 2})
        store = SQLAlchemyKeyStore(engine)
        assert store.find("k1") == RECORD
        assert store.revoke("k1", owner_id=OWNER, at=NOW) is not None
        primary.stop()
        # Each of its connections reaches the standby now, which still has the key as it was.
        for _ in range(5):
            with pytest.raises(ConnectionError, match="target_session_attrs"):
                store.find("k1")

        async def find() -> Any:
            awaited = create_async_engine(both(primary, standby))
            held = AsyncSQLAlchemyKeyStore(awaited)
            try:
                return await asyncio.gather(
                    held.find("k1"),
                    held.find_many(["k1"]),
                    held.recorded_leases(),
                    held.revoke("k1", owner_id=OWNER, at=NOW),
                    return_exceptions=True,
                )
            finally:
                await held.aclose()
                await awaited.dispose()

        for each in asyncio.run(find()):
            assert isinstance(each, ConnectionError)
            assert "target_session_attrs" in str(each)

        # Once it is the primary it is read, on the same store.
        with pooled.connect() as connection:
            connection.execute(text("SELECT pg_wal_replay_resume()"))
            assert connection.scalar(text("SELECT pg_promote()"))
        until(lambda: _answers(store))
        revoked = store.find("k1")
        assert revoked is not None
        assert revoked.revoked_at == NOW
        store.close()
        engine.dispose()
        pooled.dispose()


@pytest.mark.parametrize("synchronous", [False, True])
def test_a_promotion_keeps_what_was_revoked_only_with_synchronous_replication(
    synchronous: bool,
) -> None:
    """The primary is lost while the standby lags: with an asynchronous standby this is a restore, without a word of it."""
    with own_postgres(fsync="off") as primary, standby_of(primary) as standby:
        engine, pooled = create_engine(primary.url), create_engine(standby.url)
        METADATA.create_all(engine)
        store, promoted = SQLAlchemyKeyStore(engine), SQLAlchemyKeyStore(pooled)
        store.insert(RECORD, max_active=None, now=NOW)
        until(lambda: _has_the_key(pooled))
        [source] = _run(pooled, "SHOW primary_conninfo")
        if synchronous:
            _run(engine, "ALTER SYSTEM SET synchronous_standby_names = '*'", RELOAD)
            state = "SELECT sync_state FROM pg_stat_replication"
            until(lambda: _run(engine, state) == ["sync"])
        # Nobody listens there, so the standby gets nothing more.
        _run(pooled, "ALTER SYSTEM SET primary_conninfo = 'host=127.0.0.1 port=1'", RELOAD)
        until(lambda: _run(engine, "SELECT count(*) FROM pg_stat_replication") == [0])

        with ThreadPoolExecutor(1) as threads:
            revoking = threads.submit(store.revoke, "k1", owner_id=OWNER, at=NOW)
            if synchronous:
                with pytest.raises(TimeoutError):
                    revoking.result(2)
                quoted = source.replace("'", "''")
                _run(pooled, f"ALTER SYSTEM SET primary_conninfo = '{quoted}'", RELOAD)
            assert revoking.result(60) is not None
        primary.stop_at_once()
        assert _run(pooled, "SELECT pg_promote()") == [True]
        until(lambda: _answers(promoted))
        found = promoted.find("k1")
        assert found is not None
        assert found.revoked_at == (NOW if synchronous else None)
        store.close()
        promoted.close()
        engine.dispose()
        pooled.dispose()


RELOAD = "SELECT pg_reload_conf()"


def _run(engine: Engine, *statements: str) -> list[Any]:
    """What the last of these statements returns, which is a single column."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        results = [connection.execute(text(statement)) for statement in statements]
        return list(results[-1].scalars())


def _has_the_key(engine: Engine) -> bool:
    with engine.connect() as connection:
        known = connection.scalar(text("SELECT to_regclass('msk_auth_api_keys')"))
        return bool(
            known and connection.scalar(text("SELECT count(*) FROM msk_auth_api_keys")) == 1
        )


def _answers(store: SQLAlchemyKeyStore) -> bool:
    try:
        store.find("k1")
    except ConnectionError:
        return False
    return True


def test_a_revocation_that_returned_survives_a_crash_of_a_server_that_commits_asynchronously() -> (
    None
):
    with own_postgres(synchronous_commit="off", wal_writer_delay="10s") as postgres:
        engine = create_engine(postgres.url)
        METADATA.create_all(engine)
        store = SQLAlchemyKeyStore(engine)
        for number in range(4):
            store.insert(make_record(f"k{number}"), max_active=None, now=NOW)
        successor = make_record("k9")
        store.revoke("k0", owner_id=OWNER, at=NOW)
        store.delete("k1", owner_id=OWNER, at=NOW)
        store.expire("k2", owner_id=OWNER, at=NOW)
        store.rotate("k3", successor=successor, ends_at=NOW, max_active=None, now=NOW)
        expected = [store.find(f"k{number}") for number in (0, 1, 2, 3, 9)]
        store.close()
        engine.dispose()
        postgres.stop_at_once()
        postgres.start()
        engine = create_engine(postgres.url)
        store = SQLAlchemyKeyStore(engine)
        assert [store.find(f"k{number}") for number in (0, 1, 2, 3, 9)] == expected
        assert None not in expected
        store.close()
        engine.dispose()
