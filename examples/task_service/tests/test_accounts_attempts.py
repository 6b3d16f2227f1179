"""Attempts are counted once for all processes: in the database, or in Redis with the database in reserve."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from examples.task_service.tests.accounts_support import KINDS, START
from examples.task_service.tests.runs_support import migrated
from limits.aio.storage import MemoryStorage, Storage
from redis.asyncio import Redis
from sqlalchemy import func, select
from tests.ports import free_port

from msk_auth.errors import ConfigurationError, StoreUnavailable, TooManyAttempts
from msk_auth.testing import FrozenClock
from task_service.accounts.attempts import DatabaseAttempts, RedisAttempts
from task_service.accounts.throttle import PER_ADDRESS, PER_PAIR, LoginThrottle, PublicThrottle
from task_service.db.engine import Database
from task_service.db.schema import login_attempts

pytestmark = pytest.mark.anyio

HOME = "192.0.2.1"
KEY = b"k" * 32


@pytest.fixture(params=KINDS)
async def databases(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[Database, Database]]:
    """Two processes' view of one database."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(migrated(request.param, tmp_path))
        both = Database.open(url), Database.open(url)
        for db in both:
            stack.push_async_callback(db.close)
        yield both


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock(START)


async def test_processes_count_together(
    databases: tuple[Database, Database], clock: FrozenClock
) -> None:
    storages = [DatabaseAttempts(db, clock) for db in databases]
    counts = await asyncio.gather(
        *(storages[number % 2].incr("a", 900) for number in range(10)), storages[0].incr("b", 900)
    )
    assert sorted(counts[:10]) == list(range(1, 11))
    assert counts[10] == 1
    assert [await each.get("a") for each in storages] == [10, 10]
    ends = await storages[1].get_expiry("a")
    assert ends == (START + timedelta(seconds=900)).timestamp()


async def test_a_window_ends_and_another_begins(
    databases: tuple[Database, Database], clock: FrozenClock
) -> None:
    storage = DatabaseAttempts(databases[0], clock)
    assert await storage.incr("a", 900, amount=3) == 3
    clock.advance(timedelta(seconds=899))
    assert await storage.incr("a", 900) == 4
    clock.advance(timedelta(seconds=1))
    assert await storage.get("a") == 0
    assert await storage.incr("a", 900) == 1
    assert await storage.get_expiry("a") == (clock.now() + timedelta(seconds=900)).timestamp()


async def test_a_clock_that_was_set_back_prolongs_no_lockout(
    databases: tuple[Database, Database], clock: FrozenClock
) -> None:
    clock.advance(timedelta(hours=1))
    await DatabaseAttempts(databases[0], clock).incr("a", 900, amount=50)
    assert await DatabaseAttempts(databases[1], FrozenClock(START)).incr("a", 900) == 1


async def test_a_count_is_taken_back_but_never_below_nothing(
    databases: tuple[Database, Database], clock: FrozenClock
) -> None:
    storage = DatabaseAttempts(databases[0], clock)
    assert await storage.incr("a", 900, amount=-1) == 0
    assert await storage.incr("a", 900, amount=2) == 2
    assert await storage.incr("a", 900, amount=-1) == 1
    assert await storage.incr("a", 900, amount=-5) == 0


async def test_counts_are_forgotten(
    databases: tuple[Database, Database], clock: FrozenClock
) -> None:
    storage = DatabaseAttempts(databases[0], clock)
    for key in "ab":
        await storage.incr(key, 900)
    await storage.clear("a")
    assert (await storage.get("a"), await storage.get("b")) == (0, 1)
    assert await storage.get_expiry("a") == START.timestamp()
    clock.advance(timedelta(seconds=901))
    await storage.incr("c", 900)
    await storage.purge()
    async with databases[1].read() as connection:
        assert (await connection.scalars(select(login_attempts.c.key))).all() == ["c"]
    assert await storage.reset() == 1
    assert await storage.check()


async def test_what_was_typed_is_not_in_the_database(
    databases: tuple[Database, Database], clock: FrozenClock
) -> None:
    throttle = LoginThrottle(clock, DatabaseAttempts(databases[0], clock), key=KEY)
    await throttle.attempt("my secret passphrase", HOME)
    async with databases[1].read() as connection:
        keys = (await connection.scalars(select(login_attempts.c.key))).all()
    assert len(keys) == 3
    assert not [key for key in keys if "secret" in key or HOME in key]


async def test_two_processes_share_one_lockout(
    databases: tuple[Database, Database], clock: FrozenClock
) -> None:
    """ASVS 5.0, section 6.3.1: asking a second process is no way around the limit."""
    one, two = (LoginThrottle(clock, DatabaseAttempts(db, clock), key=KEY) for db in databases)
    for _ in range(PER_PAIR // 2):
        await one.attempt("ann", HOME)
        await two.attempt("ann", HOME)
    for throttle in (one, two):
        with pytest.raises(TooManyAttempts) as caught:
            await throttle.attempt("ann", HOME)
        assert caught.value.retry_after == 15 * 60
    await one.succeeded("ann", HOME)
    await two.attempt("ann", HOME)


@pytest.mark.parametrize("closed_by", ["the pair", "the address", "the account"])
async def test_a_refused_attempt_writes_nothing(
    databases: tuple[Database, Database], clock: FrozenClock, closed_by: str
) -> None:
    db, _ = databases
    storage = DatabaseAttempts(db, clock)
    throttle = LoginThrottle(clock, storage, key=KEY)
    limits = dict(
        zip(("the pair", "the address", "the account"), throttle._limits("ann", HOME), strict=True)
    )
    limit, identifiers = limits[closed_by]
    await storage.incr(limit.key_for(*identifiers), limit.get_expiry(), limit.amount)

    async def rows() -> list[tuple[object, ...]]:
        async with db.read() as connection:
            found = await connection.execute(select(login_attempts).order_by(login_attempts.c.key))
            return [tuple(row) for row in found]

    before = await rows()
    for number in range(20):
        name = f"other{number}" if closed_by == "the address" else "ann"
        address = f"192.0.2.{number}" if closed_by == "the account" else HOME
        with pytest.raises(TooManyAttempts):
            await throttle.attempt(name, address)
    assert await rows() == before


async def test_refused_attempts_of_one_moment_write_no_names_and_use_up_no_address(
    databases: tuple[Database, Database], clock: FrozenClock
) -> None:
    """All of them pass the test of the limits before the first one is counted."""
    db, _ = databases
    throttle = LoginThrottle(clock, DatabaseAttempts(db, clock), key=KEY)

    async def admitted(*names: str) -> int:
        results = await asyncio.gather(
            *(throttle.attempt(name, HOME) for name in names), return_exceptions=True
        )
        assert {type(result) for result in results} == {type(None), TooManyAttempts}
        return results.count(None)

    async def rows() -> int | None:
        async with db.read() as connection:
            return await connection.scalar(select(func.count()).select_from(login_attempts))

    assert await admitted(*["ann"] * (PER_PAIR + 5)) == PER_PAIR
    # The account, the address and the pair.
    assert await rows() == 3
    # The five that were refused count for nothing at the address, which others share.
    others = PER_ADDRESS - PER_PAIR
    assert await admitted(*(f"other{number}" for number in range(others + 5))) == others
    assert await rows() == 3 + 2 * others


async def test_a_refused_request_without_a_login_writes_nothing(
    databases: tuple[Database, Database], clock: FrozenClock
) -> None:
    db, _ = databases
    throttle = PublicThrottle("revoke", 3, clock=clock, storage=DatabaseAttempts(db, clock))
    for _ in range(3):
        await throttle.count(HOME)
    for _ in range(3):
        with pytest.raises(TooManyAttempts):
            await throttle.count(HOME)
    async with db.read() as connection:
        assert await connection.scalar(select(login_attempts.c.attempts)) == 3


async def test_what_cannot_be_counted_is_not_tried(tmp_path: Path, clock: FrozenClock) -> None:
    db = Database.open(f"sqlite:///{tmp_path / 'no-tables.sqlite3'}")
    await db.close()
    (tmp_path / "no-tables.sqlite3").write_bytes(b"this is no database, and nothing can be counted")
    storage = DatabaseAttempts(db, clock)
    with pytest.raises(StoreUnavailable):
        await LoginThrottle(clock, storage).attempt("ann", HOME)
    assert not await storage.check()
    await db.close()


# Redis


@contextmanager
def _redis_server(port: int, folder: Path) -> Iterator[None]:
    try:
        server = subprocess.Popen(
            ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""],
            cwd=folder,
            stdout=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        pytest.skip("no redis-server is installed")
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield
    finally:
        server.kill()
        server.wait()


@pytest.fixture
async def port() -> int:
    return free_port()


@pytest.fixture
async def reserve() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
async def redis(port: int, clock: FrozenClock, reserve: Storage) -> AsyncIterator[RedisAttempts]:
    storage = RedisAttempts(f"redis://127.0.0.1:{port}/0", clock, reserve)
    yield storage
    await storage.close()


async def test_redis_counts_for_all(
    port: int, redis: RedisAttempts, reserve: MemoryStorage, tmp_path: Path, clock: FrozenClock
) -> None:
    other = RedisAttempts(f"redis://127.0.0.1:{port}/0", clock, MemoryStorage())
    with _redis_server(port, tmp_path):
        one, two = (LoginThrottle(clock, storage, key=KEY) for storage in (redis, other))
        for _ in range(PER_PAIR // 2):
            await one.attempt("my secret passphrase", HOME)
            await two.attempt("my secret passphrase", HOME)
        for throttle in (one, two):
            with pytest.raises(TooManyAttempts):
                await throttle.attempt("my secret passphrase", HOME)
        async with Redis(port=port, decode_responses=True) as client:
            keys = await client.keys("*")
        assert len(keys) == 3
        assert all(key.startswith("task-service:") for key in keys)
        assert not [key for key in keys if "secret" in key]
        assert await redis.check()
        await one.succeeded("my secret passphrase", HOME)
        await two.attempt("my secret passphrase", HOME)
        assert await redis.reset() is not None
        await other.close()
    assert reserve.storage == {}


async def test_while_redis_is_gone_the_database_counts(
    port: int,
    redis: RedisAttempts,
    reserve: MemoryStorage,
    clock: FrozenClock,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """ASVS 5.0, section 16.5: no guess is free, and no user is locked out."""
    assert not await redis.check()
    assert [await redis.incr("a", 900) for _ in range(3)] == [1, 2, 3]
    assert await redis.get("a") == 3
    assert caplog.messages == [
        "Redis did not answer (ConnectionError); the database counts attempts"
    ]
    with _redis_server(port, tmp_path):
        # It is left alone for a moment.
        assert await redis.incr("a", 900) == 4
        clock.advance(timedelta(seconds=6))
        assert await redis.incr("a", 900) == 1
        await redis.clear("a")
        assert await redis.get("a") == 0
    assert await reserve.get("a") == 0


@pytest.mark.parametrize("url", ["redis://127.0.0.1:port/0", "redis://[::1"])
def test_an_invalid_url_is_reported_without_its_password(url: str, clock: FrozenClock) -> None:
    with pytest.raises(
        ConfigurationError, match="TASK_SERVICE_REDIS_URL is not a valid URL"
    ) as caught:
        RedisAttempts(url.replace("//", "//:geheim@"), clock, MemoryStorage())
    assert "geheim" not in str(caught.value)


def test_without_the_client_the_message_names_the_extra(
    clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("task_service.accounts.attempts.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"Install task-service\[redis\]"):
        RedisAttempts("redis://127.0.0.1/0", clock, MemoryStorage())
