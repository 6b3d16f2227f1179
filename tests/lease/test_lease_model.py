"""No verification that starts after a narrowing returned succeeds, whatever the scheduler does (G2)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
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

from msk_auth import AsyncAuthenticator, Principal, ports
from msk_auth.authenticator.driver import GrantedLease
from msk_auth.lease import Fingerprint, LeaseCache

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


class StartsTheLeaseAfterTheReads(AsyncAuthenticator[str]):
    """Breaks rule 1."""

    def _settle(self, outcome: Any, now: Any, lease: GrantedLease | None) -> Principal[str]:
        if lease is not None:
            lease = lease._replace(began=self.clock.monotonic())
        return super()._settle(outcome, now, lease)


class NeverChecksTheLease(AsyncAuthenticator[str]):
    """Breaks rule 2."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self._cache is not None:
            self._cache = _WithoutCheck(self._cache.duration, clock=self.clock, max_entries=10)


class _WithoutCheck(LeaseCache[str]):
    def find(self, authorization: Sequence[str | bytes]) -> Principal[str] | None:
        fingerprint = self.fingerprint(authorization)
        entry = None if fingerprint is None else self._entries.get(fingerprint.slot)
        return None if entry is None or entry.digest != fingerprint.digest else entry.principal


class ReadsTheLongestLeaseBeforeTheCommit(AsyncAuthenticator[str]):
    """Breaks rule 4."""

    async def revoke_key(self, principal: Any, key_id: str) -> Any:
        longest = await self._ports._longest_lease()

        async def known_before() -> timedelta | None:
            return longest

        self._ports._longest_lease = known_before  # type: ignore[method-assign]
        return await super().revoke_key(principal, key_id)


class WaitsForItsOwnLeaseOnly(AsyncAuthenticator[str]):
    """Breaks rule 4 in another way."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)

        async def own() -> timedelta:
            return timedelta(0) if self._cache is None else self._cache.duration

        self._ports._longest_lease = own  # type: ignore[method-assign]


class DoesNotWait(AsyncAuthenticator[str]):
    """Breaks rule 4 altogether."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)

        async def none() -> timedelta:
            return timedelta(0)

        self._ports._longest_lease = none  # type: ignore[method-assign]


class UsesTheLeaseBeforeItIsRecorded(AsyncAuthenticator[str]):
    """Breaks rule 5."""

    async def _grant_lease(self, fingerprint: Fingerprint) -> GrantedLease | None:
        lease = GrantedLease(fingerprint, self.clock.monotonic())
        if not self._lease_is_recorded and self._cache is not None:
            self._lease_is_recorded = True
            store: Any = self._ports.store
            asyncio.get_running_loop().create_task(store.raise_longest_lease(self._cache.duration))
        return lease if self._cache is not None else None


class TakesAnUnknownLeaseForNone(AsyncAuthenticator[str]):
    """Breaks rule 6."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        ask = self._ports._longest_lease

        async def unknown_is_none() -> timedelta:
            return (await ask()) or timedelta(0)

        self._ports._longest_lease = unknown_is_none  # type: ignore[method-assign]


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
        NeverChecksTheLease,
        ReadsTheLongestLeaseBeforeTheCommit,
        WaitsForItsOwnLeaseOnly,
        DoesNotWait,
        UsesTheLeaseBeforeItIsRecorded,
        TakesAnUnknownLeaseForNone,
    ],
)
def test_it_finds_every_broken_rule(mutant: type[AsyncAuthenticator[str]]) -> None:
    class Broken(Process):
        def build(self, lease: timedelta | None) -> AsyncAuthenticator[str]:
            return mutant(SimStore(self), find_owner=self.find_owner, clock=self, lease=lease)

    assert explore(Broken, 4000) != []


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
        ports,
        "seconds_to_wait",
        lambda longest: 5.0 if longest is None else longest.total_seconds(),
    )
    # Only moments that differ by less than the drift tell the two apart.
    assert explore(Process, 4000, (0.001, 0.1, 0.4), NEWEST_FIRST, [100, 400]) != []
