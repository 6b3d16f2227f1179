"""How often one client may guess or ask: counted once for all processes, in the database.

ASVS 5.0, sections 2.4.1 and 6.3.1; API Security Top 10, API4.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from examples.task_service.tests.accounts_support import START, World, client

from msk_auth.errors import StoreUnavailable, TooManyAttempts
from msk_auth.testing import FrozenClock
from task_service.accounts.throttle import (
    PER_ACCOUNT,
    PER_ADDRESS,
    PER_PAIR,
    WINDOW,
    Attempts,
    LoginThrottle,
    PublicThrottle,
)
from task_service.db.engine import Database

pytestmark = pytest.mark.anyio

HOME = "192.0.2.1"
KEY = b"k" * 32
Processes = tuple[Attempts, Attempts]


@pytest.fixture
async def processes(it: World) -> AsyncIterator[Processes]:
    """What two processes count in one database."""
    other = it.db.with_timeout(60)
    yield Attempts(it.db, it.clock), Attempts(other, it.clock)
    await other.close()


async def rows(it: World) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in await it.rows("login_attempts", "key")]


async def refused(attempts: Attempts, most: int = 3) -> int | None:
    with pytest.raises(TooManyAttempts) as caught:
        await attempts.count({"a": most})
    return caught.value.retry_after


async def test_parallel_attempts_of_two_processes_reach_one_limit(processes: Processes) -> None:
    results = await asyncio.gather(
        *(processes[number % 2].count({"a": 7}) for number in range(10)), return_exceptions=True
    )
    assert results.count(None) == 7
    assert {type(each) for each in results if each is not None} == {TooManyAttempts}


async def test_a_window_ends_and_another_begins(it: World, processes: Processes) -> None:
    one, _ = processes
    for _ in range(3):
        await one.count({"a": 3})
    it.clock.advance(WINDOW - timedelta(seconds=1, microseconds=1))
    assert await refused(one) == 2
    it.clock.advance(timedelta(seconds=1, microseconds=1))
    await one.count({"a": 3})


async def test_a_clock_that_was_set_back_prolongs_no_lockout(
    it: World, processes: Processes
) -> None:
    ahead = Attempts(it.db, FrozenClock(START + timedelta(hours=1)))
    for _ in range(3):
        await ahead.count({"a": 3})
    await processes[1].count({"a": 3})


async def test_attempts_are_taken_back_but_never_below_nothing(processes: Processes) -> None:
    one, two = processes
    for _ in range(2):
        await one.take_back("a", "b")
        await one.count({"a": 3, "b": 3})
        await one.count({"a": 3, "b": 3})
    assert await refused(two) == 15 * 60
    await two.take_back("a", "b", clear="a")
    for _ in range(3):
        await one.count({"a": 3})
    await one.count({"b": 3})


async def test_windows_that_are_over_are_deleted(it: World, processes: Processes) -> None:
    await processes[0].count({"a": 1})
    it.clock.advance(WINDOW)
    await processes[0].count({"c": 1})
    await processes[0].purge()
    assert [row[0] for row in await rows(it)] == ["c"]


async def test_what_was_typed_is_not_in_the_database(it: World, processes: Processes) -> None:
    with client(HOME):
        await LoginThrottle(processes[0], key=KEY).attempt("my secret passphrase")
    keys = [str(row[0]) for row in await rows(it)]
    assert len(keys) == 3
    assert not [key for key in keys if "secret" in key or HOME in key]


@pytest.mark.parametrize("closed_by", ["the pair", "the address", "the account"])
async def test_a_refused_attempt_writes_nothing(
    it: World, processes: Processes, closed_by: str
) -> None:
    throttle = LoginThrottle(processes[0], key=KEY)
    used = {"the pair": PER_PAIR, "the address": PER_ADDRESS, "the account": PER_ACCOUNT}
    for number in range(used[closed_by]):
        with client(f"198.51.100.{number}" if closed_by == "the account" else HOME):
            await throttle.attempt(f"user{number}" if closed_by == "the address" else "ann")
    before = await rows(it)
    for number in range(20):
        address = f"192.0.2.{number}" if closed_by == "the account" else HOME
        with client(address), pytest.raises(TooManyAttempts):
            await throttle.attempt(f"other{number}" if closed_by == "the address" else "ann")
    assert await rows(it) == before


async def test_refused_attempts_of_one_moment_write_no_names_and_use_up_no_address(
    it: World, processes: Processes
) -> None:
    """All of them pass the check of the limits before the first one is counted."""
    throttle = LoginThrottle(processes[0], key=KEY)

    async def admitted(*names: str) -> int:
        with client(HOME):
            results = await asyncio.gather(
                *(throttle.attempt(name) for name in names), return_exceptions=True
            )
        assert {type(result) for result in results} == {type(None), TooManyAttempts}
        return results.count(None)

    assert await admitted(*["ann"] * (PER_PAIR + 5)) == PER_PAIR
    # The account, the address and the pair.
    assert len(await rows(it)) == 3
    # The five that were refused count for nothing at the address, which others share.
    others = PER_ADDRESS - PER_PAIR
    assert await admitted(*(f"other{number}" for number in range(others + 5))) == others
    assert len(await rows(it)) == 3 + 2 * others


@pytest.mark.parametrize(
    ("same", "other"),
    [
        (["192.0.2.1"], "192.0.2.2"),
        # A subscriber of IPv6 is one address.
        (["2001:db8::1", "2001:db8::2"], "2001:db8:0:1::1"),
        ([None], "192.0.2.1"),
    ],
)
async def test_each_address_has_its_share_for_each_purpose(
    it: World,
    processes: Processes,
    same: list[str | None],
    other: str,
) -> None:
    one, two = (PublicThrottle("revoke", 3, each) for each in processes)
    for number in range(3):
        with client(same[number % len(same)]):
            await one.check()
            await (one, two)[number % 2].count()
    before = await rows(it)
    for throttle in (one, two):
        with client(same[-1]):
            for refuse in (throttle.check, throttle.count):
                with pytest.raises(TooManyAttempts):
                    await refuse()
    assert await rows(it) == before
    with client(other):
        await one.count()
    with client(same[0]):
        await PublicThrottle("report", 3, processes[0]).count()


async def test_what_cannot_be_counted_is_not_tried(tmp_path: Path) -> None:
    db = Database.open(f"sqlite:///{tmp_path / 'no-tables.sqlite3'}")
    await db.close()
    (tmp_path / "no-tables.sqlite3").write_bytes(b"this is no database, and nothing can be counted")
    with pytest.raises(StoreUnavailable):
        await LoginThrottle(Attempts(db, FrozenClock(START)), key=KEY).attempt("ann")
    await db.close()
