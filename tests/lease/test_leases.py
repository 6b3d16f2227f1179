"""The cache, and what keeps the rules of leases, step by step."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.core.support import MakeWorld, World

from msk_auth import Owner, Principal, local_principal
from msk_auth._async import leases as async_leases
from msk_auth._sync import leases as sync_leases
from msk_auth.errors import ConfigurationError
from msk_auth.leases import DRIFT, MAX_LEASE, LeaseCache, seconds_to_wait
from msk_auth.testing import FrozenClock

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SECOND, MICROSECOND = timedelta(seconds=1), timedelta(microseconds=1)
LEASE = timedelta(seconds=2)
ANN: Principal[str] = local_principal(Owner("ann", frozenset(), "Ann"), at=NOW, interactive=True)
HEADERS = ["Bearer one", "Bearer two", "Bearer three", "Bearer four"]


# The cache.


class Cached:
    """A cache, and its clock."""

    def __init__(self) -> None:
        self.clock = FrozenClock(NOW)
        self.cache = LeaseCache[str](LEASE, clock=self.clock)

    def fill(self, header: str, *, began: float = 0.0, until: datetime | None = None) -> None:
        self.cache.fill(self.cache.fingerprint(header), began, ANN, until, has_spellings=False)

    def entries(self) -> list[bool]:
        return [self.cache.find([header]) is not None for header in HEADERS]


@pytest.fixture
def cached() -> Cached:
    return Cached()


@pytest.mark.parametrize("duration", [timedelta(0), -MICROSECOND, MAX_LEASE + MICROSECOND])
def test_a_lease_is_longer_than_nothing_and_bounded(duration: timedelta) -> None:
    with pytest.raises(
        ConfigurationError, match=r"at most 5 seconds, such as timedelta\(milliseconds=250\)"
    ):
        LeaseCache(duration, clock=FrozenClock(NOW))


@pytest.mark.parametrize("duration", [MICROSECOND, MAX_LEASE])
def test_the_shortest_and_the_longest_lease_work(duration: timedelta) -> None:
    cache = LeaseCache[str](duration, clock=FrozenClock(NOW))
    assert cache.duration == duration
    cache.fill(cache.fingerprint("Bearer one"), 0.0, ANN, None, has_spellings=False)
    assert cache.find(["Bearer one"]) is ANN


def test_a_full_cache_drops_the_entry_that_ends_first(
    cached: Cached, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("msk_auth.leases.MAX_ENTRIES", 3)
    for began, header in enumerate(HEADERS[:3]):
        cached.fill(header, began=began / 10)
    assert cached.entries() == [True, True, True, False]
    # One that is filled again ends last, and takes no other's place.
    cached.fill(HEADERS[1], began=0.3)
    assert cached.entries() == [True, True, True, False]
    cached.fill(HEADERS[0], began=0.3)
    cached.fill(HEADERS[3], began=0.4)
    assert cached.entries() == [True, True, False, True]


def test_an_entry_ends_with_its_lease_counted_from_before_the_read(cached: Cached) -> None:
    cached.clock.advance(SECOND)
    cached.fill("Bearer one", began=0.5)
    cached.clock.advance(timedelta(seconds=1.5) - MICROSECOND)
    assert cached.entries()[0]
    cached.clock.advance(MICROSECOND)
    assert not cached.entries()[0]


def test_an_entry_ends_with_its_credential(cached: Cached) -> None:
    cached.fill("Bearer one", until=NOW + SECOND)
    cached.clock.advance(SECOND - MICROSECOND)
    assert cached.entries()[0]
    cached.clock.advance(MICROSECOND)
    assert not cached.entries()[0]


def test_a_read_that_began_earlier_replaces_no_newer_entry(cached: Cached) -> None:
    cached.fill("Bearer one", began=1.0, until=NOW)
    cached.fill("Bearer one", began=0.999)
    assert not cached.entries()[0]
    cached.fill("Bearer one", began=1.0)
    assert cached.entries()[0]


@pytest.mark.parametrize("headers", [[], ["Bearer one", "Bearer one"], ["bearer one"]])
def test_other_headers_are_not_found(cached: Cached, headers: list[str]) -> None:
    cached.fill("Bearer one")
    assert cached.cache.find(headers) is None
    assert cached.cache.find([b"Bearer one"]) is ANN


def test_no_two_caches_digest_alike(cached: Cached) -> None:
    fingerprint = cached.cache.fingerprint("Bearer one")
    assert len(cached.cache._secret) == 32
    assert fingerprint.digest != Cached().cache.fingerprint("Bearer one").digest
    assert fingerprint == cached.cache.fingerprint(b"Bearer one")
    assert len(fingerprint.digest) == 64


# What waits. `tests/test_authenticator.py` has what a request reads within its lease and after it.


def flights(world: World) -> Any:
    return world.auth._leases._single_flight


def test_a_lease_counts_from_before_the_read_of_the_key(make_world: MakeWorld) -> None:
    world = make_world(lease=LEASE)
    key, find = world.create().value.reveal(), world.store.inner.find

    def find_in_a_second(key_id: str) -> Any:
        world.clock.advance(SECOND)
        return find(key_id)

    world.store.inner.find = find_in_a_second  # type: ignore[method-assign]
    world.enter(key)
    world.clock.advance(SECOND - MICROSECOND)
    world.enter(key)
    assert world.store.calls.count("find") == 1
    world.clock.advance(MICROSECOND)
    world.enter(key)
    assert world.store.calls.count("find") == 2
    # Each ended its flights, on which no other request waits for good.
    assert flights(world)._flights == {}


def test_a_request_beside_the_one_that_confirms_verifies_without_a_lease(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (async_leases, sync_leases):
        monkeypatch.setattr(module, "MAX_WAIT_SECONDS", 0.001)
    world = make_world(lease=LEASE)
    key = world.create().value.reveal()
    register = type(world.auth._leases._register)

    async def join() -> Any:
        return flights(world).join(register)

    other = flights(world).join(register) if world._runner is None else world._runner.run(join())
    world.forget_calls()
    for count in (1, 2):
        world.enter(key)
        assert world.store.calls == ["find"] * count
    # It is not theirs to end.
    assert list(flights(world)._flights.values()) == [other.finished]


def test_a_request_that_ends_before_it_verifies_holds_up_no_other(make_world: MakeWorld) -> None:
    world = make_world(lease=LEASE)
    key = world.create().value.reveal()
    world.forget_calls()
    world.store.fails = {"recorded_leases": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        world.enter(key)
    assert flights(world)._flights == {}
    world.store.fails = {}
    world.enter(key)
    assert world.store.calls == ["recorded_leases"] * 2 + ["record_lease", "find"]


@pytest.mark.parametrize(
    ("longest", "seconds"),
    [(timedelta(0), 0.0), (-SECOND, 0.0), (SECOND, DRIFT + 0.005), (None, 5 * DRIFT + 0.005)],
)
def test_a_writer_waits_for_the_longest_lease(longest: timedelta | None, seconds: float) -> None:
    assert seconds_to_wait(longest) == pytest.approx(seconds, abs=1e-9)
