"""The cache, and what keeps the rules of leases, step by step."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
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
HEADERS = ["Bearer one", "Bearer two", "Bearer three", "Bearer four"]


def principal(name: str) -> Principal[str]:
    return local_principal(Owner(name, frozenset(), name), at=NOW, interactive=True)


ANN = principal("ann")


# The cache.


class Cached:
    """A cache, and its clock."""

    def __init__(self) -> None:
        self.clock = FrozenClock(NOW)
        self.cache = LeaseCache[str](LEASE, clock=self.clock)

    def fill(
        self,
        header: str | bytes,
        *,
        name: str = "ann",
        began: float = 0.0,
        until: datetime | None = None,
        has_spellings: bool = False,
    ) -> None:
        fingerprint = self.cache.fingerprint(header)
        self.cache.fill(fingerprint, began, principal(name), until, has_spellings=has_spellings)

    def found(self, *headers: str | bytes) -> str | None:
        found = self.cache.find(headers)
        return None if found is None else found.user

    def entries(self) -> list[bool]:
        return [self.found(header) is not None for header in HEADERS]


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
    assert cached.found(*headers) is None
    assert cached.found(b"Bearer one") == "ann"


def test_no_two_caches_digest_alike(cached: Cached) -> None:
    fingerprint = cached.cache.fingerprint("Bearer one")
    assert len(cached.cache._secret) == 32
    assert fingerprint.digest != Cached().cache.fingerprint("Bearer one").digest
    assert fingerprint == cached.cache.fingerprint(b"Bearer one")
    assert len(fingerprint.digest) == 64


# An entry is found by a hash that proves nothing, and then by one that does.


class SharesItsSlot(bytes):
    """A header value whose hash is that of all others of this kind."""

    def __hash__(self) -> int:
        return 1


class TextThatSharesItsSlot(str):
    """The same as text."""

    __slots__ = ()

    def __hash__(self) -> int:
        return 1


def test_headers_that_share_a_slot_are_never_taken_for_each_other(cached: Cached) -> None:
    cached.fill(SharesItsSlot(b"Bearer one"))
    assert cached.found(SharesItsSlot(b"Bearer one")) == "ann"
    assert cached.found(SharesItsSlot(b"Bearer two")) is None
    # Neither is found by what could be no credential.
    for header in ("Bearer öne", "Bearer \udcff", "Bearer é", "Bearer \U0001f511"):
        assert cached.found(TextThatSharesItsSlot(header)) is None


def test_garbage_is_not_digested(cached: Cached) -> None:
    cached.fill(b"Bearer one")
    # Nothing can be digested with it.
    cached.cache._secret = None  # type: ignore[assignment]
    assert cached.found(b"Bearer garbage") is None
    with pytest.raises(TypeError):
        cached.found(b"Bearer one")


@pytest.mark.parametrize("seed", range(20))
def test_the_bound_holds_whatever_is_filled_evicted_and_cleared(
    cached: Cached, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Of credentials that may have several spellings. Compared with a list that is searched through."""
    monkeypatch.setattr("msk_auth.leases._MAX_SPELLINGS", 3)
    monkeypatch.setattr("msk_auth.leases.MAX_ENTRIES", 8)
    random, cache = Random(seed), cached.cache
    listed: list[tuple[str, str, bool]] = []
    # Two of the headers share their slot: the later one has it.
    headers = [f"Bearer {number}" for number in range(12)]
    headers += [TextThatSharesItsSlot("Bearer a"), TextThatSharesItsSlot("Bearer b")]
    for step in range(400):
        if random.random() < 0.01:
            random.choice([cache.clear, cache._renew])()
            listed.clear()
        header, name, has_spellings = (
            random.choice(headers),
            random.choice(["ada", "bob"]),
            random.random() < 0.7,
        )
        cached.fill(header, name=name, began=step / 1000, has_spellings=has_spellings)
        listed = [each for each in listed if hash(each[0]) != hash(header)]
        own = [each for each in listed if each[1:] == (name, True)]
        if has_spellings and len(own) == 3:
            listed.remove(own[0])
        if len(listed) == 8:
            del listed[0]
        listed.append((header, name, has_spellings))
        assert [*cache._entries] == [hash(header) for header, _, _ in listed]
        names = {header: name for header, name, _ in listed}
        assert [cached.found(header) for header in headers] == [*map(names.get, headers)]
        # What was removed is not counted any more, and an owner without logins is not kept.
        assert {owner_id: [*slots] for owner_id, slots in cache._spellings.items()} == {
            owner_id: [hash(each[0]) for each in listed if each[1:] == (owner_id, True)]
            for owner_id in {each[1] for each in listed if each[2]}
        }


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
