"""The cache, and what keeps the rules of leases, step by step."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from tests.core.support import World as CoreWorld

from msk_auth import KeyFormat, Owner, Principal, local_principal
from msk_auth._async.leases import LeaseRegisterView, Leases
from msk_auth._sync import leases as sync_leases
from msk_auth._sync.leases import LeaseRegisterView as SyncRegisterView
from msk_auth.core.authentication import Authenticated
from msk_auth.errors import ConfigurationError
from msk_auth.leases import (
    DRIFT,
    MAX_LEASE,
    LeaseCache,
    SingleFlight,
    seconds_to_wait,
    usual_header,
)
from msk_auth.stores import AsyncKeyStore, RecordedLease
from msk_auth.testing import FrozenClock

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SECOND, MICROSECOND = timedelta(seconds=1), timedelta(microseconds=1)
LEASE = timedelta(seconds=2)
KEY = KeyFormat().generate()
ANN: Principal[str] = local_principal(Owner("ann", frozenset(), "Ann"), at=NOW, interactive=True)
HEADERS = ["Bearer one", "Bearer two", "Bearer three", "Bearer four"]


class Event:
    """What a request waits for; here nothing runs beside it."""

    def __init__(self) -> None:
        self.was_set = 0

    def set(self) -> None:
        self.was_set += 1


class Suspended:
    """Awaited, it suspends once."""

    def __await__(self) -> Iterator[None]:
        yield


class World:
    def __init__(self) -> None:
        self.calls: list[object] = []
        self.clock = FrozenClock(NOW)
        self.cache = LeaseCache[str](LEASE, clock=self.clock)
        self.flights = SingleFlight(Event, lambda: "here")
        self.leases = Leases[str](self.cache, cast("AsyncKeyStore", self), self.clock)
        self.leases._single_flight = self.flights
        self.leases.wait_for = self.wait_for  # type: ignore[method-assign]
        self.recorded: list[RecordedLease] = []
        self.suspends = False
        self.takes = timedelta(0)
        self.while_waiting: Callable[[], object] = lambda: None
        self.principal = ANN
        self.outcome = Authenticated(ANN, None)

    async def recorded_leases(self) -> list[RecordedLease]:
        self.calls.append("read")
        if self.suspends:
            await Suspended()
        return list(self.recorded)

    async def record_lease(self, lease: RecordedLease) -> None:
        self.calls.append("record")
        self.recorded.append(lease)

    async def forget_lease(self, lease: RecordedLease) -> None:
        raise AssertionError("no lease is removed here")

    async def wait_for(self, flight: Any) -> None:
        self.calls.append("wait")
        assert not flight.leads
        self.while_waiting()

    def verify_by_store(self) -> Authenticated:
        self.calls.append("verify")
        self.clock.advance(self.takes)
        return self.outcome

    async def verification(self) -> Principal[Any]:
        """As an authenticator verifies."""
        attempt = await self.leases.begin(KEY)
        try:
            if attempt.principal is not None:
                return attempt.principal
            outcome = self.verify_by_store()
            self.leases.keep(attempt, outcome)
            return outcome.principal
        finally:
            self.leases.end(attempt)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The result of what waits for nothing here."""
        with pytest.raises(StopIteration) as ended:
            work.send(None)
        return ended.value.value

    def verify(self) -> list[object]:
        """What verifying the key did."""
        self.calls.clear()
        assert self.run(self.verification()) is self.principal
        return list(self.calls)

    def entries(self) -> list[bool]:
        return [self.cache.find([header]) is not None for header in HEADERS]

    def fill(self, header: str, *, began: float = 0.0, until: datetime | None = None) -> None:
        fingerprint = self.cache.fingerprint(header)
        self.cache.fill(fingerprint, began, self.principal, until, has_spellings=False)


@pytest.fixture
def world() -> World:
    return World()


# The cache.


@pytest.mark.parametrize("duration", [timedelta(0), -MICROSECOND, MAX_LEASE + MICROSECOND])
def test_a_lease_is_longer_than_nothing_and_bounded(duration: timedelta) -> None:
    with pytest.raises(ConfigurationError, match="at most 5 seconds"):
        LeaseCache(duration, clock=FrozenClock(NOW))


@pytest.mark.parametrize("duration", [MICROSECOND, MAX_LEASE])
def test_the_shortest_and_the_longest_lease_work(duration: timedelta) -> None:
    cache = LeaseCache[str](duration, clock=FrozenClock(NOW))
    assert cache.duration == duration
    cache.fill(cache.fingerprint("Bearer one"), 0.0, ANN, None, has_spellings=False)
    assert cache.find(["Bearer one"]) is ANN


def test_a_full_cache_drops_the_entry_that_ends_first(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("msk_auth.leases.MAX_ENTRIES", 3)
    for began, header in enumerate(HEADERS[:3]):
        world.fill(header, began=began / 10)
    assert world.entries() == [True, True, True, False]
    # One that is filled again ends last, and takes no other's place.
    world.fill(HEADERS[1], began=0.3)
    assert world.entries() == [True, True, True, False]
    world.fill(HEADERS[0], began=0.3)
    world.fill(HEADERS[3], began=0.4)
    assert world.entries() == [True, True, False, True]


def test_an_entry_ends_with_its_lease_counted_from_before_the_read(world: World) -> None:
    world.clock.advance(SECOND)
    world.fill("Bearer one", began=0.5)
    world.clock.advance(timedelta(seconds=1.5) - MICROSECOND)
    assert world.entries()[0]
    world.clock.advance(MICROSECOND)
    assert not world.entries()[0]


def test_an_entry_ends_with_its_credential(world: World) -> None:
    world.fill("Bearer one", until=NOW + SECOND)
    world.clock.advance(SECOND - MICROSECOND)
    assert world.entries()[0]
    world.clock.advance(MICROSECOND)
    assert not world.entries()[0]


def test_a_read_that_began_earlier_replaces_no_newer_entry(world: World) -> None:
    world.fill("Bearer one", began=1.0, until=NOW)
    world.fill("Bearer one", began=0.999)
    assert not world.entries()[0]
    world.fill("Bearer one", began=1.0)
    assert world.entries()[0]


@pytest.mark.parametrize("headers", [[], ["Bearer one", "Bearer one"], ["bearer one"]])
def test_other_headers_are_not_found(world: World, headers: list[str]) -> None:
    world.fill("Bearer one")
    assert world.cache.find(headers) is None
    assert world.cache.find([b"Bearer one"]) is ANN


def test_no_two_caches_digest_alike(world: World) -> None:
    other = World()
    fingerprint = world.cache.fingerprint("Bearer one")
    assert len(world.cache._secret) == 32
    assert fingerprint.digest != other.cache.fingerprint("Bearer one").digest
    assert fingerprint == world.cache.fingerprint(b"Bearer one")
    assert len(fingerprint.digest) == 64


# What waits.


def test_a_verification_is_kept_and_reused_once_the_lease_is_recorded(world: World) -> None:
    world.takes = SECOND
    assert world.verify() == ["read", "record", "verify"]
    assert world.recorded[0].duration == LEASE
    assert world.verify() == []
    assert usual_header(KEY) == f"Bearer {KEY.reveal()}"
    # It ends two seconds after its read began, which took one of them.
    world.clock.advance(SECOND)
    assert world.verify() == ["read", "verify"]


@pytest.mark.parametrize("networks", [None, frozenset({"203.0.113.0/24"})])
def test_a_request_waits_for_another_one_and_takes_its_outcome(
    world: World, networks: frozenset[str] | None
) -> None:
    # The address of each request is checked later.
    world.principal = replace(ANN, networks=networks)
    fingerprint = world.cache.fingerprint(usual_header(KEY))
    other = world.flights.join(fingerprint.digest)
    world.while_waiting = lambda: world.fill(usual_header(KEY))
    assert world.verify() == ["wait"]
    # It was not this request's to end.
    assert other.finished.was_set == 0


def test_a_request_that_waited_in_vain_verifies_by_itself(world: World) -> None:
    other = world.flights.join(world.cache.fingerprint(usual_header(KEY)).digest)
    assert world.verify() == ["wait", "read", "record", "verify"]
    assert other.finished.was_set == 0


def test_a_flight_ends_with_its_verification(world: World) -> None:
    flights: list[Any] = []
    join = world.flights.join
    world.flights.join = lambda what: flights.append(join(what)) or flights[-1]  # type: ignore[method-assign, func-returns-value]
    world.verify()
    assert [(each.leads, each.finished.was_set) for each in flights] == [(True, 1), (True, 1)]
    assert world.flights._flights == {}


def test_the_register_is_confirmed_by_one_request_at_a_time(world: World) -> None:
    other = world.flights.join(LeaseRegisterView)
    assert world.verify() == ["wait", "verify"]
    assert other.finished.was_set == 0
    assert len(world.cache) == 0


def test_a_thread_beside_the_one_that_confirms_verifies_without_a_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sync_leases, "MAX_WAIT_SECONDS", 0.001)
    core = CoreWorld("sync", lease=LEASE)
    key = core.create().value.reveal()
    other = core.auth._leases._single_flight.join(SyncRegisterView)
    reads = [core.enter(key) and core.store.calls.count("find") for _ in range(2)]
    assert reads[1] == reads[0] + 1
    core.auth._leases._single_flight.finish(other)


def test_a_request_that_is_cancelled_before_it_verifies_holds_up_no_other(world: World) -> None:
    world.suspends = True
    beginning = world.leases.begin(KEY)
    beginning.send(None)  # it reads the register
    with pytest.raises(CancelledError):
        beginning.throw(CancelledError())
    world.suspends = False
    assert world.verify() == ["read", "record", "verify"]


@pytest.mark.parametrize(
    ("longest", "seconds"),
    [(timedelta(0), 0.0), (-SECOND, 0.0), (SECOND, DRIFT + 0.005), (None, 5 * DRIFT + 0.005)],
)
def test_a_writer_waits_for_the_longest_lease(longest: timedelta | None, seconds: float) -> None:
    assert seconds_to_wait(longest) == pytest.approx(seconds, abs=1e-9)
