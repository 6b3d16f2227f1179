"""Requests with one credential wait for each other: across threads, on several event loops, and never in a child for its parent."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from tests.core.support import NOW
from tests.forked import in_child

from msk_auth import (
    ApiKey,
    AsyncAuthenticator,
    Authenticator,
    KeyFormat,
    KeyHasher,
    Owner,
)
from msk_auth._async import leases as async_leases
from msk_auth._async import primitives
from msk_auth._sync import leases as sync_leases
from msk_auth.errors import StoreUnavailable
from msk_auth.leases import SingleFlight
from msk_auth.stores.memory import AsyncMemoryKeyStore, MemoryKeyStore
from msk_auth.testing import FrozenClock

LEASE = timedelta(milliseconds=1)
KEY = KeyFormat().generate()
HEADER = [f"Bearer {KEY.reveal()}"]
RECORD = ApiKey(KEY.id, "ci", "ann", KeyHasher().digest(KEY.reveal()), None, NOW)
ANN = Owner("ann", frozenset({"run"}), "Ann")


async def find_owner(_: str) -> Owner[str]:
    await asyncio.sleep(0)
    return ANN


class AsyncStore(AsyncMemoryKeyStore):
    """A store whose reads end when a test lets them."""

    def __init__(self) -> None:
        super().__init__()
        asyncio.run(self.insert(RECORD, max_active=None, now=NOW))
        self.answers: Callable[[], Any] = lambda: asyncio.sleep(0)

    async def find(self, key_id: str) -> ApiKey | None:
        await self.answers()
        return await super().find(key_id)


def awaiting(store: AsyncStore, lease: timedelta = LEASE) -> AsyncAuthenticator[str]:
    return AsyncAuthenticator(store, find_owner=find_owner, lease=lease)


async def outcome(auth: AsyncAuthenticator[str]) -> str:
    try:
        return str((await auth.authenticate(HEADER)).key_id)
    except StoreUnavailable:
        return "unavailable"


@pytest.mark.parametrize("lease", [LEASE, timedelta(seconds=5)])
def test_one_authenticator_serves_several_event_loops(lease: timedelta) -> None:
    auth = awaiting(AsyncStore(), lease)
    together = threading.Barrier(4)

    async def use() -> Counter[str]:
        outcomes: Counter[str] = Counter()
        for _ in range(20):
            outcomes.update(await asyncio.gather(*(outcome(auth) for _ in range(10))))
        return outcomes

    def serve(_: int) -> Counter[str]:
        together.wait()
        return asyncio.run(use())

    with ThreadPoolExecutor(4) as threads:
        outcomes = list(threads.map(serve, range(4)))
    assert outcomes == [Counter({KEY.id: 200})] * 4


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_that_was_closed_while_requests_waited_holds_up_no_other() -> None:
    store = AsyncStore()
    auth = awaiting(store)
    store.answers = lambda: asyncio.get_running_loop().create_future()
    closed = asyncio.new_event_loop()
    tasks = [closed.create_task(outcome(auth)) for _ in range(3)]
    for _ in range(5):
        closed.run_until_complete(asyncio.sleep(0))
    closed.close()
    store.answers = lambda: asyncio.sleep(0)
    assert asyncio.run(outcome(auth)) == KEY.id
    # Nor does it when its tasks are destroyed.
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    del tasks, task
    gc.collect()
    assert asyncio.run(outcome(auth)) == KEY.id
    assert auth._leases._single_flight._flights == {}


class FailingClock(FrozenClock):
    """A clock of which one of the next looks fails."""

    looks_left = 100

    def monotonic(self) -> float:
        self.looks_left -= 1
        if self.looks_left == 0:
            raise OSError("no clock")
        return super().monotonic()


@pytest.mark.parametrize("look", range(1, 12))
def test_a_clock_that_fails_leaves_no_flight_behind(look: int) -> None:
    store = MemoryKeyStore()
    store.insert(RECORD, max_active=None, now=NOW)
    clock = FailingClock(NOW)
    auth = Authenticator(store, find_owner=lambda _: ANN, lease=LEASE, clock=clock)
    clock.looks_left = look
    with suppress(StoreUnavailable):
        auth.authenticate(HEADER)
    assert auth._leases._single_flight._flights == {}


class EventOfAClosedLoop:
    def set(self) -> None:
        raise RuntimeError("Event loop is closed")


def test_a_flight_ends_although_its_loop_was_closed() -> None:
    flights = SingleFlight(EventOfAClosedLoop, lambda: "loop")
    first = flights.join("key")
    assert not flights.join("key").leads
    flights.finish(first)
    assert flights.join("key").leads


def test_a_child_begins_without_the_flights_of_its_parent_and_may_end_one() -> None:
    flights = SingleFlight(threading.Event, threading.get_ident)
    of_parent = flights.join("key")
    flights._renew()
    assert flights.join("key").leads
    flights._renew()
    flights.finish(of_parent)
    assert of_parent.finished.is_set()


def test_requests_that_waited_for_a_cancelled_one_verify_by_themselves() -> None:
    store = AsyncStore()
    auth = awaiting(store)

    async def cancel_the_first() -> list[str]:
        never = asyncio.get_running_loop().create_future()
        store.answers = lambda: asyncio.shield(never)
        first = asyncio.create_task(outcome(auth))
        others = [asyncio.create_task(outcome(auth)) for _ in range(3)]
        for _ in range(5):
            await asyncio.sleep(0)
        store.answers = lambda: asyncio.sleep(0)
        first.cancel()
        return await asyncio.gather(*others)

    assert asyncio.run(cancel_the_first()) == [KEY.id] * 3
    assert auth._leases._single_flight._flights == {}


def test_a_request_does_not_wait_long_for_a_stalled_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(async_leases, "MAX_WAIT_SECONDS", 0.001)
    store = AsyncStore()
    auth = awaiting(store)

    async def use() -> str:
        never = asyncio.get_running_loop().create_future()
        store.answers = lambda: never
        stuck = asyncio.create_task(outcome(auth))
        for _ in range(5):
            await asyncio.sleep(0)
        store.answers = lambda: asyncio.sleep(0)
        answer = await outcome(auth)
        stuck.cancel()
        await asyncio.wait([stuck])
        return answer

    assert asyncio.run(use()) == KEY.id


class BlockingStore(MemoryKeyStore):
    """A store whose reads wait for a test, in one thread."""

    def __init__(self) -> None:
        super().__init__()
        self.insert(RECORD, max_active=None, now=NOW)
        self.is_reading = threading.Event()
        self.may_answer = threading.Event()
        self.stops = threading.local()

    def find(self, key_id: str) -> ApiKey | None:
        if getattr(self.stops, "here", False):
            self.is_reading.set()
            assert self.may_answer.wait(60)
        return super().find(key_id)


def test_a_forked_child_waits_for_nothing_of_its_parents_and_has_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sync_leases, "MAX_WAIT_SECONDS", 3600)
    store = BlockingStore()
    # A lease would end while a busy machine forks.
    auth = Authenticator(
        store, find_owner=lambda _: ANN, lease=timedelta(seconds=5), clock=FrozenClock(NOW)
    )

    def read_in_a_thread() -> str | None:
        store.stops.here = True
        return auth.authenticate(HEADER).key_id

    with ThreadPoolExecutor(1) as thread:
        reading = thread.submit(read_in_a_thread)
        assert store.is_reading.wait(60)
        cache, usage = auth._cache, auth._usage
        assert cache is not None
        # Every lock there is, held by a thread that the child does not have.
        with cache._lock, usage._lock, store._lock:
            assert in_child(lambda: auth.authenticate(HEADER).key_id) == KEY.id
        store.may_answer.set()
        assert reading.result(60) == KEY.id

    def begins_empty() -> tuple[int, bool, dict[str, Any]]:
        recorded = auth._leases._register._confirmation.recorded
        return len(cache._entries), recorded is not None, auth._usage._batch.last_used

    assert begins_empty() == (1, True, {KEY.id: usage._batch.last_used[KEY.id]})
    assert in_child(begins_empty) == (0, False, {})


def test_a_forked_child_runs_an_event_loop_and_threads_of_its_own() -> None:
    store = AsyncStore()
    auth = awaiting(store, timedelta(seconds=5))
    assert asyncio.run(outcome(auth)) == KEY.id
    hasher = KeyHasher()
    digest, verify = hasher.digest(KEY.reveal()), hasher.verify

    def use() -> tuple[str, bool]:
        verified = asyncio.run(primitives.run_slowly(verify, KEY.reveal(), digest))
        return asyncio.run(outcome(auth)), verified

    never = threading.Event()
    # All threads for Argon2 are busy in the parent.
    loop = asyncio.new_event_loop()
    busy = [loop.create_task(primitives.run_slowly(never.wait, 60)) for _ in range(2)]
    loop.run_until_complete(asyncio.sleep(0))
    try:
        assert in_child(use) == (KEY.id, True)
    finally:
        never.set()
    assert loop.run_until_complete(asyncio.gather(*busy)) == [True, True]
    loop.close()
