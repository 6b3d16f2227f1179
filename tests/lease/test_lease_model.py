"""No verification that starts after a narrowing returned succeeds, whatever the scheduler does (G2)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from random import Random
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.lease.simulation import RATES, Process, SimStore, World

from msk_auth import AsyncAuthenticator, Principal, lease, ports
from msk_auth.authenticator import driver
from msk_auth.core.steps import Flow
from msk_auth.lease import Fingerprint, LeaseCache, Leases

pytestmark = [pytest.mark.slow, pytest.mark.no_cover]

LEASES = st.sampled_from([None, 100, 400])


class Deployment(RuleBasedStateMachine):
    """Three processes, any of which may read, narrow, crash and come back with another lease."""

    make: type[Process] = Process

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.processes: list[Process] = []

    @initialize(leases=st.tuples(LEASES, LEASES, LEASES), rates=st.permutations(RATES))
    def boot(self, leases: tuple[int | None, ...], rates: Sequence[float]) -> None:
        self.processes = [
            self.make(self.world, rate=rate, lease_ms=lease)
            for lease, rate in zip(leases, rates, strict=True)
        ]

    @rule(who=st.integers(0, 2))
    def verify(self, who: int) -> None:
        self.processes[who].start(self.processes[who].verify())

    @rule(who=st.integers(0, 2))
    def revoke(self, who: int) -> None:
        self.processes[who].start(self.processes[who].revoke())

    @rule(who=st.integers(0, 2))
    def disable_owner(self, who: int) -> None:
        self.processes[who].start(self.processes[who].disable_owner())

    @precondition(lambda self: self.world.stopped)
    @rule(index=st.integers(0, 20))
    def release(self, index: int) -> None:
        self.world.release(index)

    @precondition(lambda self: self.world.stopped)
    @rule(count=st.integers(1, 12))
    def release_in_order(self, count: int) -> None:
        for _ in range(count):
            if self.world.stopped:
                self.world.release(0)

    @precondition(lambda self: self.world.stopped)
    @rule(index=st.integers(0, 20))
    def lose_a_connection(self, index: int) -> None:
        self.world.fail(index)

    @rule(seconds=st.sampled_from([0.001, 0.05, 0.1, 0.107, 0.3, 0.4, 0.41]))
    def time_passes(self, seconds: float) -> None:
        self.world.advance(seconds)

    @rule(who=st.integers(0, 2), lease=LEASES, rate=st.sampled_from(RATES))
    def crash_and_restart(self, who: int, lease: int | None, rate: float) -> None:
        self.processes[who].crash()
        self.processes[who] = self.make(self.world, rate=rate, lease_ms=lease)

    @invariant()
    def nothing_is_accepted_after_it_was_narrowed(self) -> None:
        assert self.world.violations == []

    def teardown(self) -> None:
        self.world.close()


SEARCH = settings(
    deadline=None,
    stateful_step_count=40,
    derandomize=True,
    report_multiple_bugs=False,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def test_no_interleaving_accepts_what_was_narrowed() -> None:
    run_state_machine_as_test(Deployment, settings=settings(SEARCH, max_examples=100))


# The mutants: each breaks one rule of `msk_auth.lease` or `msk_auth.batching`, and the same search must find out.


class StartsTheLeaseAfterTheReads(Leases[str]):
    """Breaks rule 1."""

    def _fill(
        self, cache: LeaseCache[str], fingerprint: Fingerprint, read: Any
    ) -> Flow[Principal[str]]:
        yield from self._may_grant(cache.duration)

        def keep(principal: Principal[str], valid_until: datetime | None) -> None:
            cache.fill(fingerprint, self._clock.monotonic(), principal, valid_until)

        return (yield from read(keep))


class WithoutCheck(LeaseCache[str]):
    """Breaks rule 2."""

    def find(self, authorization: Sequence[str | bytes]) -> Principal[str] | None:
        (header,) = authorization
        entry = self._entries.get(self.fingerprint(header).slot)
        return None if entry is None else entry.principal


class ReadsTheLongestLeaseBeforeTheCommit(Leases[str]):
    """Breaks rule 4."""

    known: timedelta | None = timedelta(0)

    def verify(self, *args: Any) -> Flow[Principal[str]]:
        # Every commit comes after some verification.
        self.known = yield from super()._longest()
        return (yield from super().verify(*args))

    def _longest(self) -> Flow[timedelta | None]:
        yield from ()
        return self.known


class WaitsForItsOwnLeaseOnly(Leases[str]):
    """Breaks rule 4 in another way."""

    def _longest(self) -> Flow[timedelta | None]:
        yield from ()
        return timedelta(0) if self.cache is None else self.cache.duration


class DoesNotWait(Leases[str]):
    """Breaks rule 4 altogether."""

    def _longest(self) -> Flow[timedelta | None]:
        yield from ()
        return timedelta(0)


class UsesTheLeaseBeforeItIsRecorded(Leases[str]):
    """Breaks rule 5."""

    def _fill(
        self, cache: LeaseCache[str], fingerprint: Fingerprint, read: Any
    ) -> Flow[Principal[str]]:
        keep = partial(cache.fill, fingerprint, self._clock.monotonic())
        principal = yield from read(keep)
        yield from self._may_grant(cache.duration)
        return principal


class TakesAnUnknownLeaseForNone(Leases[str]):
    """Breaks rule 6."""

    def _longest(self) -> Flow[timedelta | None]:
        return (yield from super()._longest()) or timedelta(0)


class JoinsAReadThatHasBegun(AsyncAuthenticator[str]):
    """Breaks the one rule of `msk_auth.batching`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        under_way: dict[str, asyncio.Task[Any]] = {}
        read = self._ports.store.find

        async def join(key_id: str) -> Any:
            if key_id not in under_way:
                task = asyncio.get_running_loop().create_task(cast("Any", read(key_id)))
                under_way[key_id] = task
                task.add_done_callback(lambda _: under_way.pop(key_id))
            return await asyncio.shield(under_way[key_id])

        self._ports.find_key = join  # type: ignore[method-assign]


PAUSES = (0.001, 0.05, 0.1, 0.42)


OLDEST_FIRST = (0, 1, 2)
NEWEST_FIRST = (-1, -2)


def explore(
    make: type[Process],
    episodes: int,
    pauses: Sequence[float] = PAUSES,
    order: Sequence[int] = OLDEST_FIRST,
    leases: Sequence[int | None] = (None, 100, 400),
) -> list[str]:
    """Deployments driven at random, faster than the search above can: the first violations found."""
    for episode in range(episodes):
        chance = Random(episode)
        world = World()
        processes = [
            make(world, rate=rate, lease_ms=chance.choice(leases))
            for rate in chance.sample(RATES, k=2)
        ]
        for _ in range(60):
            who = chance.randrange(2)
            process = processes[who]
            match chance.choices(range(6), weights=[6, 2, 8, 4, 0.5, 0.3])[0]:
                case 0:
                    process.start(process.verify())
                case 1:
                    process.start(chance.choice([process.revoke, process.disable_owner])())
                case 2 if world.stopped:
                    for _ in range(chance.randrange(1, 6)):
                        if world.stopped:
                            world.release(chance.choice(order))
                case 3:
                    world.advance(chance.choice(pauses))
                case 4 if world.stopped:
                    world.fail(chance.randrange(4))
                case 5 if chance.random() < 0.3:
                    process.crash()
                    processes[who] = make(world, rate=process.rate, lease_ms=chance.choice(leases))
                case _:
                    pass
        world.close()
        if world.violations:
            return world.violations
    return []


def test_the_faster_search_finds_nothing_in_the_real_rules() -> None:
    assert explore(Process, 500) == []


@pytest.mark.parametrize(
    "mutant",
    [
        StartsTheLeaseAfterTheReads,
        ReadsTheLongestLeaseBeforeTheCommit,
        WaitsForItsOwnLeaseOnly,
        DoesNotWait,
        UsesTheLeaseBeforeItIsRecorded,
        TakesAnUnknownLeaseForNone,
    ],
)
def test_it_finds_every_broken_rule(
    mutant: type[Leases[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "Leases", mutant)
    assert explore(Process, 4000) != []


def test_it_finds_entries_that_are_used_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "LeaseCache", WithoutCheck)
    assert explore(Process, 4000) != []


def test_it_finds_look_ups_that_join_a_read_that_has_begun() -> None:
    class Broken(Process):
        def build(self, lease: timedelta | None) -> AsyncAuthenticator[str]:
            return JoinsAReadThatHasBegun(
                SimStore(self), find_owner=self.find_owner, clock=self, lease=lease
            )

    # An answer has to be under way for as long as a whole revocation takes; without leases that is not long.
    assert explore(Broken, 1000, order=NEWEST_FIRST, leases=[None]) != []
    assert explore(Process, 200, order=NEWEST_FIRST, leases=[None]) == []


def test_it_finds_a_wait_without_the_margin_for_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        lease,
        "seconds_to_wait",
        lambda longest: 5.0 if longest is None else longest.total_seconds(),
    )
    # Only moments that differ by less than the drift tell the two apart.
    assert explore(Process, 4000, (0.001, 0.1, 0.4), NEWEST_FIRST, [100, 400]) != []
