"""Look-ups that arrive together share a round trip, and none of them a read that began before it came."""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from msk_auth import (
    ApiKey,
    AsyncAuthenticator,
    Owner,
    batching,
    local_principal,
)
from msk_auth.batching import MAX_BATCH, BatchedReader
from msk_auth.core.store import WrongRecord
from msk_auth.errors import StoreUnavailable
from msk_auth.stores.memory import AsyncMemoryKeyStore

pytestmark = pytest.mark.anyio

NOW = datetime(2026, 1, 1, tzinfo=UTC)
REQUEST = contextvars.ContextVar[str]("REQUEST")


def record(key_id: str, name: str = "") -> ApiKey:
    return ApiKey(key_id, name, "owner", "sha256:", None, NOW)


class Database:
    """Reads that begin at once and answer when a test releases them, with what was there when they began."""

    def __init__(self) -> None:
        self.reads: list[tuple[tuple[str, ...], asyncio.Future[None]]] = []
        self.version = 1
        self.contexts: list[str | None] = []

    async def find(self, key_id: str) -> ApiKey | None:
        (found,) = await self._read((key_id,))
        return found

    async def find_many(self, key_ids: Sequence[str]) -> Sequence[ApiKey]:
        return [found for found in await self._read(tuple(key_ids)) if found is not None]

    async def _read(self, key_ids: tuple[str, ...]) -> list[ApiKey | None]:
        answer = [
            record(each, f"version {self.version}") if each.startswith("k") else None
            for each in key_ids
        ]
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.reads.append((key_ids, gate))
        self.contexts.append(REQUEST.get(None))
        await gate
        return answer

    @property
    def asked(self) -> list[tuple[str, ...]]:
        return [key_ids for key_ids, _ in self.reads]

    async def answer(self, index: int, error: Exception | None = None) -> None:
        gate = self.reads[index][1]
        if error is None:
            gate.set_result(None)
        else:
            gate.set_exception(error)
        await settle()


class World:
    """A reader on such a database."""

    def __init__(self) -> None:
        self.database = Database()
        self.reader = BatchedReader(self.database.find, self.database.find_many)
        self.look_ups: list[asyncio.Task[ApiKey | None]] = []

    async def look_up(self, *key_ids: str) -> list[asyncio.Task[ApiKey | None]]:
        tasks = [asyncio.ensure_future(self.reader.find(each)) for each in key_ids]
        self.look_ups += tasks
        await settle()
        return tasks


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
async def here(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    # However slow the machine is, a read stalls only where a test says so.
    monkeypatch.setattr(batching, "STALL_SECONDS", math.inf)
    world = World()
    yield world
    # The event loop goes on: what a test left waiting would time out in another one.
    for task in world.look_ups:
        task.cancel()
    await asyncio.gather(*world.look_ups, return_exceptions=True)


def names(tasks: Sequence[asyncio.Task[ApiKey | None]]) -> list[str | None]:
    return [None if (found := task.result()) is None else found.name for task in tasks]


async def test_a_look_up_alone_is_made_at_once_and_alone(here: World) -> None:
    (task,) = await here.look_up("k1")
    assert here.database.asked == [("k1",)]
    await here.database.answer(0)
    assert task.result() == record("k1", "version 1")


async def test_those_that_come_during_a_read_share_the_next_one(here: World) -> None:
    first = await here.look_up("k1")
    later = await here.look_up("k2", "k3", "unknown", "k3", "k1")
    assert here.database.asked == [("k1",)]

    await here.database.answer(0)
    assert here.database.asked == [("k1",), ("k2", "k3", "unknown", "k1")]
    assert names(first) == ["version 1"]
    assert not any(task.done() for task in later)

    await here.database.answer(1)
    assert names(later) == ["version 1", "version 1", None, "version 1", "version 1"]
    assert [task.result().id for task in later if task.result()] == ["k2", "k3", "k3", "k1"]


async def test_each_is_made_alone_while_the_store_lets_none_share_a_read(here: World) -> None:
    may_share = [False]
    here.reader = BatchedReader(here.database.find, here.database.find_many, lambda: may_share[0])
    alone = await here.look_up("k1", "k2", "unknown")
    assert here.database.asked == [("k1",), ("k2",), ("unknown",)]
    for index in range(3):
        await here.database.answer(index)
    assert names(alone) == ["version 1", "version 1", None]
    may_share[0] = True
    await here.look_up("k1", "k2", "k3")
    await here.database.answer(3)
    assert here.database.asked[3:] == [("k1",), ("k2", "k3")]


async def test_the_task_of_a_shared_read_is_held_until_it_has_ended(here: World) -> None:
    await here.look_up("k1")
    await here.look_up("k2")
    await here.database.answer(0)
    held = here.reader._queue()._tasks
    assert [task.get_name() for task in held] == ["msk_auth reads"]
    await here.database.answer(1)
    assert held == set()


async def test_no_look_up_joins_a_read_that_has_begun(here: World) -> None:
    first = await here.look_up("k1")
    here.database.version = 2
    second = await here.look_up("k1")
    await here.database.answer(0)
    here.database.version = 3
    third = await here.look_up("k1")
    await here.database.answer(1)
    await here.database.answer(2)
    assert here.database.asked == [("k1",)] * 3
    assert names([*first, *second, *third]) == ["version 1", "version 2", "version 3"]


async def test_a_round_trip_asks_for_a_bounded_number_of_keys(here: World) -> None:
    await here.look_up("k0")
    tasks = await here.look_up(*(f"k{number}" for number in range(MAX_BATCH + 10)))
    await here.database.answer(0)
    assert len(here.database.asked[1]) == MAX_BATCH
    assert len(here.database.asked) == 2
    await here.database.answer(1)
    assert here.database.asked[2] == tuple(f"k{MAX_BATCH + n}" for n in range(10))
    await here.database.answer(2)
    assert names(tasks) == ["version 1"] * (MAX_BATCH + 10)


async def test_an_error_reaches_the_look_ups_that_shared_the_read_and_no_others(
    here: World,
) -> None:
    await here.look_up("k0")
    failing = await here.look_up("k1", "k2", "k2")
    await here.database.answer(0)
    later = await here.look_up("k1")
    error = ConnectionError("lost")
    await here.database.answer(1, error)
    assert [task.exception() for task in failing] == [error] * 3
    await here.database.answer(2)
    assert names(later) == ["version 1"]


async def test_cancelling_a_look_up_cancels_no_other(here: World) -> None:
    (first,) = await here.look_up("k1")
    cancelled, waiting = await here.look_up("k1", "k1")
    first.cancel()
    await settle()
    assert first.cancelled()
    assert here.database.asked == [("k1",), ("k1",)]
    cancelled.cancel()
    await settle()
    await here.database.answer(1)
    assert cancelled.cancelled()
    assert names([waiting]) == ["version 1"]


async def test_nothing_is_read_for_cancelled_look_ups(here: World) -> None:
    await here.look_up("k0")
    gone, stays = await here.look_up("k1", "k2")
    gone.cancel()
    await here.database.answer(0)
    assert here.database.asked[1:] == [("k2",)]
    stays.cancel()
    (other,) = await here.look_up("k3")
    other.cancel()
    await here.database.answer(1)
    assert len(here.database.asked) == 2
    # And the next one need not wait.
    (next_one,) = await here.look_up("k4")
    await here.database.answer(2)
    assert names([next_one]) == ["version 1"]


async def test_a_batch_of_which_all_gave_up_holds_up_no_other(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "MAX_BATCH", 2)
    await here.look_up("k1")
    for task in await here.look_up("k2", "k3"):
        task.cancel()
    (waiting,) = await here.look_up("k4")
    await here.database.answer(0)
    assert here.database.asked == [("k1",), ("k4",)]
    await here.database.answer(1)
    assert names([waiting]) == ["version 1"]


async def test_no_look_up_waits_for_ever_when_the_reading_task_is_cancelled(here: World) -> None:
    # The event loop is that of other tests too: a read they abandoned may still run.
    before = asyncio.all_tasks()
    await here.look_up("k0")
    during = await here.look_up("k1")
    await here.database.answer(0)
    behind = await here.look_up("k2")
    (reading,) = [
        each for each in asyncio.all_tasks() - before if each.get_name() == "msk_auth reads"
    ]
    reading.cancel()
    await settle()
    for task in (*during, *behind):
        assert isinstance(task.exception(), ConnectionAbortedError)
    afterwards = await here.look_up("k3", "k4")
    await here.database.answer(-1)
    await here.database.answer(-1)
    assert names(afterwards) == ["version 1", "version 1"]


async def test_a_read_that_stalls_holds_up_only_its_own_look_ups(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "STALL_SECONDS", 0.0)
    first = await here.look_up("k1")
    second = await here.look_up("k1", "k2")
    third = await here.look_up("k3")
    # Each began beside those before it, and none joined one that had begun.
    assert here.database.asked == [("k1",), ("k1", "k2"), ("k3",)]
    here.database.version = 2
    await here.database.answer(2)
    assert names(third) == ["version 1"]
    assert not any(task.done() for task in (*first, *second))
    # The read that is waited for is the latest one; those that were overtaken end in any order and begin nothing.
    monkeypatch.setattr(batching, "STALL_SECONDS", math.inf)
    fourth = await here.look_up("k4")
    fifth = await here.look_up("k5")
    await here.database.answer(1)
    await here.database.answer(0)
    assert names([*first, *second]) == ["version 1"] * 3
    assert here.database.asked[3:] == [("k4",)]
    await here.database.answer(3)
    await here.database.answer(4)
    assert names([*fourth, *fifth]) == ["version 2"] * 2
    # And the next one need not wait.
    (last,) = await here.look_up("k6")
    assert here.database.asked[5:] == [("k6",)]
    await here.database.answer(5)
    assert names([last]) == ["version 2"]


async def test_what_does_not_fit_into_a_batch_does_not_wait_for_it_when_it_stalls(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "STALL_SECONDS", 0.0)
    monkeypatch.setattr(batching, "MAX_BATCH", 2)
    await here.look_up("k1")
    tasks = await here.look_up(*(f"k{number}" for number in range(2, 7)))
    assert here.database.asked == [("k1",), ("k2", "k3"), ("k4", "k5"), ("k6",)]
    for index in (3, 2, 1, 0):
        await here.database.answer(index)
    assert names(tasks) == ["version 1"] * 5


async def test_a_look_up_waits_no_longer_than_the_time_of_a_look_up(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the queue, or for the read: the time counts from its arrival."""
    (first,) = await here.look_up("k1")
    monkeypatch.setattr(batching, "READ_SECONDS", 0.0)
    (queued,) = await here.look_up("k2")
    # The log quotes the error.
    assert repr(queued.exception()) == "TimeoutError('the store did not answer in time')"
    monkeypatch.undo()
    later = await here.look_up("k3")
    await here.database.answer(0)
    assert names([first]) == ["version 1"]
    # Nothing is read for the one that gave up.
    assert here.database.asked == [("k1",), ("k3",)]
    await here.database.answer(1)
    assert names(later) == ["version 1"]


async def test_records_that_were_not_asked_for_answer_no_look_up() -> None:
    """The result of another statement decides nothing: neither that a key is good nor that it is unknown."""
    reads = asyncio.Event()

    async def find(key_id: str) -> ApiKey | None:
        await reads.wait()
        return record(key_id)

    async def find_many(key_ids: Sequence[str]) -> Sequence[ApiKey]:
        return [record("k2"), record("another")]

    reader = BatchedReader(find, find_many)
    tasks = [asyncio.ensure_future(reader.find(key_id)) for key_id in ("k1", "k2", "k3")]
    await settle()
    reads.set()
    first, *wrong = await asyncio.gather(*tasks, return_exceptions=True)
    assert first == record("k1")
    assert [type(error) for error in wrong] == [WrongRecord, WrongRecord]
    assert all("Looking up records returned" in str(error) for error in wrong)


async def test_a_store_that_never_answers_leaves_no_reads_behind(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await here.look_up("k1")
    (second,) = await here.look_up("k2")
    monkeypatch.setattr(batching, "READ_SECONDS", 0.0)
    await here.database.answer(0)
    assert isinstance(second.exception(), TimeoutError)
    assert here.database.reads[1][1].cancelled()


async def test_a_shared_read_runs_in_the_context_of_no_request(here: World) -> None:
    REQUEST.set("the request that happens to end")
    await here.look_up("k0")
    await here.look_up("k1", "k2")
    await here.database.answer(0)
    assert here.database.contexts == ["the request that happens to end", None]


def test_each_event_loop_has_a_queue_of_its_own() -> None:
    here = World()

    async def leave_one_unanswered() -> None:
        await here.look_up("k1", "k2")

    async def ask() -> list[str | None]:
        tasks = await here.look_up("k3")
        await here.database.answer(-1)
        return names(tasks)

    asyncio.run(leave_one_unanswered())
    assert asyncio.run(ask()) == ["version 1"]


class Batching(AsyncMemoryKeyStore):
    """A store that can find several, and counts its round trips."""

    def __init__(self) -> None:
        super().__init__()
        self.round_trips: list[int] = []
        self.fails = False

    async def find(self, key_id: str) -> ApiKey | None:
        await self._travel(1)
        return await super().find(key_id)

    async def find_many(self, key_ids: Sequence[str]) -> Sequence[ApiKey]:
        await self._travel(len(key_ids))
        found = [await AsyncMemoryKeyStore.find(self, each) for each in key_ids]
        return [each for each in found if each is not None]

    async def _travel(self, keys: int) -> None:
        self.round_trips.append(keys)
        await settle()
        if self.fails:
            raise ConnectionError("lost")


async def find_owner(owner_id: str) -> Owner[str]:
    return Owner(owner_id, frozenset(), owner_id)


async def test_64_verifications_that_arrive_together_take_two_round_trips() -> None:
    store = Batching()
    authenticator = AsyncAuthenticator(store, find_owner=find_owner)
    ada = local_principal(await find_owner("ada"), at=NOW, interactive=True)
    keys = [(await authenticator.create_key(ada, name="ci")).value for _ in range(64)]

    async def authenticate_all() -> list[Any]:
        requests = (authenticator.authenticate([f"Bearer {key.reveal()}"]) for key in keys)
        return await asyncio.gather(*requests, return_exceptions=True)

    assert [principal.key_id for principal in await authenticate_all()] == [key.id for key in keys]
    store.fails = True
    assert [type(error) for error in await authenticate_all()] == [StoreUnavailable] * 64
    assert store.round_trips == [1, 63] * 2
