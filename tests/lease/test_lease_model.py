"""No verification that starts after a revocation returned succeeds, whatever the scheduler does (G2)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from datetime import timedelta
from random import Random
from typing import Any, cast

import pytest
from tests.lease.simulation import RATES, Process, SimStore, World

from msk_auth import AsyncAuthenticator, Principal
from msk_auth._async import authenticator
from msk_auth._async import leases as leasing
from msk_auth._async.leases import LeaseRegisterView, Leases
from msk_auth.leases import Fingerprint, LeaseCache
from msk_auth.stores import RecordedLease

pytestmark = [pytest.mark.slow, pytest.mark.no_cover]

# A restored database may have been away for longer than a look at the register and the longest lease last, or hardly.
AWAY = (0.001, 0.5)


@pytest.fixture(autouse=True)
def short_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record lasts for little longer than a lease, so that a search of few steps comes to its end."""
    monkeypatch.setattr(leasing, "RECORD_SECONDS", 1.0)
    monkeypatch.setattr(leasing, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(leasing, "_RETRY_SECONDS", 0.05)
    # Thousands of lost connections are reported.
    monkeypatch.setattr(logging.getLogger("msk_auth"), "disabled", True)


# The mutants: each breaks one rule of `msk_auth.leases` or `msk_auth.batching`, and the same search as of the real rules must find out.


class StartsTheLeaseAfterTheReads(LeaseCache[str]):
    """Breaks rule 1."""

    def fill(self, fingerprint: Fingerprint, began: float, *outcome: Any, **more: Any) -> None:
        super().fill(fingerprint, self._clock.monotonic(), *outcome, **more)


class WithoutCheck(LeaseCache[str]):
    """Breaks rule 2."""

    def find(
        self, authorization: Sequence[str | bytes], checks_address: bool = False
    ) -> Principal[str] | None:
        (header,) = authorization
        entry = self._entries.get(self.fingerprint(header).slot)
        return None if entry is None else entry.principal


class ReadsTheLongestLeaseBeforeTheCommit(Leases[str]):
    """Breaks rule 4."""

    known: timedelta | None = timedelta(0)

    async def find_or_verify(self, presented: Any, verify: Any) -> Any:
        # Every commit comes after some verification.
        self.known = await super()._longest()
        return await super().find_or_verify(presented, verify)

    async def _longest(self) -> timedelta | None:
        return self.known


class WaitsForItsOwnLeaseOnly(Leases[str]):
    """Breaks rule 4 in another way."""

    async def _longest(self) -> timedelta | None:
        return timedelta(0) if self.cache is None else self.cache.duration


class UsesTheLeaseBeforeItIsRecorded(Leases[str]):
    """Breaks rule 5: it records the lease with the next verification."""

    is_due = False

    async def find_or_verify(self, presented: Any, verify: Any) -> Any:
        if self.is_due and self.cache is not None:
            self.is_due = False
            await super()._confirm(self.cache.duration)
        return await super().find_or_verify(presented, verify)

    async def _begin(self, duration: timedelta) -> float | None:
        await super()._begin(duration)
        return self._clock.monotonic()

    async def _confirm(self, duration: timedelta) -> None:
        self.is_due = True


class GrantsOnAnOldReading(Leases[str]):
    """Breaks rule 5 for a process that is paused."""

    async def _begin(self, duration: timedelta) -> float | None:
        began = await super()._begin(duration)
        return None if began is None else self._clock.monotonic()


class RecordsItselfOnce(LeaseRegisterView):
    """Breaks rule 5, as the first version did."""

    def allows_leases(self, at: float) -> bool:
        return self._confirmation.recorded is not None


class NeverReadsTheRegisterAgain(LeaseRegisterView):
    """Breaks rule 5: what it recorded within the last minute may have been lost."""

    def allows_leases(self, at: float) -> bool:
        return at - self._confirmation.recorded_at <= leasing.RECORD_SECONDS


class KnowsOnlyWhatItReads(LeaseRegisterView):
    """Takes a process that is gone from the register for one that has ended."""

    async def read(self) -> Collection[RecordedLease]:
        self._observation = self._observation._replace(unchanged={})
        return await super().read()


class CountsTheWholeTimeBetweenItsReads(LeaseRegisterView):
    """Takes a mark that a backup may have brought back for one that has not changed."""

    async def read(self) -> Collection[RecordedLease]:
        read_at, unchanged = self._observation
        passed = self._clock.monotonic() - read_at
        self._observation = self._observation._replace(
            unchanged={lease: seconds + passed for lease, seconds in unchanged.items()}
        )
        return await super().read()


class TakesAnUnknownLeaseForNone(Leases[str]):
    """Breaks rule 6."""

    async def _longest(self) -> timedelta | None:
        return (await super()._longest()) or timedelta(0)


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

        self._look_ups.find_key = join  # type: ignore[method-assign]


PAUSES = (0.001, 0.05, 0.1, 0.42)


OLDEST_FIRST = (0, 1, 2)
NEWEST_FIRST = (-1, -2)


def explore(
    make: type[Process],
    episodes: int,
    order: Sequence[int] = OLDEST_FIRST,
    leases: Sequence[int | None] = (None, 100, 400),
    count: int = 2,
) -> list[str]:
    """Deployments of that many processes, any of which may read, revoke, crash and come back: the first violations found."""
    for episode in range(episodes):
        chance = Random(episode)
        world = World()
        processes = [
            make(world, rate=rate, lease_ms=chance.choice(leases))
            for rate in chance.sample(RATES, k=count)
        ]
        for _ in range(60):
            who = chance.randrange(count)
            process = processes[who]
            match chance.choices(range(10), weights=[6, 2, 8, 4, 0.5, 0.3, 0.3, 0.3, 0.2, 0.2])[0]:
                case 0:
                    process.start(process.verify())
                case 1:
                    process.start(chance.choice([process.revoke, process.disable_owner])())
                case 2 if world.stopped:
                    for _ in range(chance.randrange(1, 6)):
                        if world.stopped:
                            world.release(chance.choice(order))
                case 3:
                    world.advance(chance.choice(PAUSES))
                case 4 if world.stopped:
                    world.fail(chance.randrange(4))
                case 5 if chance.random() < 0.3:
                    process.crash()
                    processes[who] = make(world, rate=process.rate, lease_ms=chance.choice(leases))
                case 6:
                    world.back_up()
                case 7:
                    world.restore(chance.choice(AWAY))
                case 8:
                    processes[who] = make(world, rate=process.rate, lease_ms=process.lease_ms)
                case 9:
                    world.pause = chance.randrange(8), chance.choice([0.06, 0.5, 1.5])
                case _:
                    pass
        world.close()
        if world.violations:
            return world.violations
    return []


def explore_the_register(episodes: int) -> list[str]:
    """Deployments whose database is replaced by backups, and whose processes are paused, come and go.

    Most of what they begin goes on to its end, so that more of it happens than in the search above.
    """
    for episode in range(episodes):
        chance = Random(episode)
        world = World()
        user = Process(world, rate=chance.choice(RATES), lease_ms=400)
        writer = Process(world, rate=chance.choice(RATES), lease_ms=None)
        for _ in range(40):
            match chance.choices(range(8), weights=[8, 5, 6, 1, 2, 1, 0.3, 2])[0]:
                case 0:
                    user.start(user.verify())
                case 7:
                    # Requests come all the time, and little is revoked.
                    for _ in range(chance.choice([1, 5])):
                        user.start(user.verify())
                        world.release_all()
                        if chance.random() < 0.2:
                            writer.start(writer.authenticator.await_lease_expiry())
                            world.release_all()
                        world.advance(0.7)
                    user.start(user.verify())
                    world.release_all()
                case 1:
                    writer.start(
                        chance.choice([writer.revoke, writer.authenticator.await_lease_expiry])()
                    )
                case 2:
                    world.advance(chance.choice([0.001, 0.02, 0.3, 0.7, 1.1, 3.0]))
                case 3:
                    world.back_up()
                case 4:
                    world.restore(chance.choice(AWAY))
                    if chance.random() < 0.5:
                        writer.start(writer.revoke())
                        world.release_all()
                        user.start(user.verify())
                        world.release_all()
                case 5:
                    world.pause = chance.randrange(8), chance.choice([0.06, 1.5])
                case _:
                    user = Process(world, rate=user.rate, lease_ms=400)
            for _ in range(chance.choice([0, 3, 40])):
                if world.stopped:
                    world.release(0)
        world.close()
        if world.violations:
            return world.violations
    return []


@pytest.mark.parametrize(("count", "episodes"), [(2, 200), (3, 100)])
def test_no_interleaving_accepts_a_revoked_credential(count: int, episodes: int) -> None:
    assert explore(Process, episodes, count=count) == []


@pytest.mark.parametrize("runs", [60, pytest.param(300, marks=pytest.mark.faults)])
def test_the_search_of_the_register_finds_nothing_in_the_real_rules(runs: int) -> None:
    assert explore_the_register(runs) == []


@pytest.mark.parametrize(
    "mutant",
    [
        StartsTheLeaseAfterTheReads,
        ReadsTheLongestLeaseBeforeTheCommit,
        WaitsForItsOwnLeaseOnly,
        UsesTheLeaseBeforeItIsRecorded,
    ],
)
def test_it_finds_every_broken_rule(
    mutant: type[Leases[str] | LeaseCache[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authenticator, mutant.__mro__[1].__name__, mutant)
    # Either there is a lease or there is none: what breaks shows sooner than with a shorter one between them.
    assert explore(Process, 4000, leases=[None, 400]) != []


def test_it_finds_a_process_that_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leasing, "LeaseRegisterView", RecordsItselfOnce)
    assert explore_the_register(4000) != []


# What takes several rare events in one order is played through, with the real rules and with one of them broken.


class Play:
    """A process that uses leases and one that only revokes, in an order that a test decides."""

    def __init__(self) -> None:
        self.world = World()
        self.user = Process(self.world, rate=1.0, lease_ms=400)
        self.writer = Process(self.world, rate=1.0, lease_ms=None)

    def settle(self, process: Process) -> None:
        """Let a process do all that it has begun."""
        while mine := [n for n, entry in enumerate(self.world.stopped) if entry[0] is process]:
            self.world.release(mine[0])

    def verify(self) -> None:
        self.user.start(self.user.verify())
        self.settle(self.user)

    def look_at_the_register(self) -> None:
        self.writer.start(self.writer.authenticator.await_lease_expiry())
        self.settle(self.writer)

    def revoke(self, process: Process | None = None) -> None:
        process = process or self.writer
        process.start(process.revoke())
        self.settle(process)

    def end(self) -> list[str]:
        self.verify()
        self.world.close()
        return self.world.violations


def restore_what_no_writer_has_seen() -> list[str]:
    play = Play()
    play.world.back_up()
    play.verify()
    play.world.restore(0.5)
    play.verify()
    play.revoke()
    return play.end()


def restore_long_after_the_last_look(*, has_an_old_mark: bool) -> list[str]:
    play = Play()
    play.world.back_up()
    play.verify()
    if has_an_old_mark:
        play.world.back_up()
    play.look_at_the_register()
    for _ in range(4):
        play.world.advance(0.9)
        play.verify()
    play.world.restore(0.001)
    play.revoke()
    return play.end()


def restore_a_register_without_the_lease() -> list[str]:
    play = Play()
    play.world.back_up()
    play.verify()
    play.look_at_the_register()
    play.world.restore(0.01)
    play.revoke()
    return play.end()


def forget_what_was_just_recorded_anew() -> list[str]:
    play = Play()
    play.verify()
    for _ in range(3):
        play.look_at_the_register()
        play.world.advance(1.0)
    play.writer.start(play.writer.authenticator.await_lease_expiry())
    for _ in range(2):
        play.world.release(0)
    assert [what for _, what, _ in play.world.stopped] == ["commit that a lease is forgotten"]
    play.verify()
    play.settle(play.writer)
    play.revoke(Process(play.world, rate=1.0, lease_ms=None))
    return play.end()


def pause_before_the_reads(readings: int) -> list[str]:
    play = Play()
    play.verify()
    play.world.advance(0.45)
    play.world.pause = readings, 1.5
    # A backup that lacks the process is restored.
    play.world.during_pause = play.world.register.clear
    play.user.start(play.user.verify())
    while play.world.stopped and play.world.stopped[0][1] != "deliver key":
        play.world.release(0)
    play.revoke()
    play.settle(play.user)
    return play.end()


def test_a_process_that_a_backup_has_lost_records_itself_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert restore_what_no_writer_has_seen() == []
    monkeypatch.setattr(leasing, "LeaseRegisterView", NeverReadsTheRegisterAgain)
    assert restore_what_no_writer_has_seen() != []


@pytest.mark.parametrize("has_an_old_mark", [False, True])
def test_a_process_that_a_writer_has_seen_long_ago_is_waited_for_after_a_restore(
    has_an_old_mark: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert restore_long_after_the_last_look(has_an_old_mark=has_an_old_mark) == []
    monkeypatch.setattr(leasing, "LeaseRegisterView", CountsTheWholeTimeBetweenItsReads)
    assert restore_long_after_the_last_look(has_an_old_mark=has_an_old_mark) != []


def test_a_process_that_a_writer_has_seen_is_waited_for_although_a_backup_has_lost_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert restore_a_register_without_the_lease() == []
    monkeypatch.setattr(leasing, "LeaseRegisterView", KnowsOnlyWhatItReads)
    assert restore_a_register_without_the_lease() != []


def test_a_process_that_has_recorded_itself_anew_is_not_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def forget_lease(self: SimStore, lease: RecordedLease) -> None:
        await self.process.stop("commit that a lease is forgotten")
        self.process.world.register.pop((lease.duration, lease.holder), None)

    assert forget_what_was_just_recorded_anew() == []
    monkeypatch.setattr(SimStore, "forget_lease", forget_lease)
    assert forget_what_was_just_recorded_anew() != []


def test_a_process_that_is_paused_before_its_reads_grants_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert [pause_before_the_reads(readings) for readings in range(12)] == [[]] * 12
    monkeypatch.setattr(authenticator, "Leases", GrantsOnAnOldReading)
    assert any(pause_before_the_reads(readings) for readings in range(12))


def test_it_finds_entries_that_are_used_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authenticator, "LeaseCache", WithoutCheck)
    assert explore(Process, 4000) != []


def test_it_finds_look_ups_that_join_a_read_that_has_begun() -> None:
    class Broken(Process):
        def build(self, lease: timedelta | None) -> AsyncAuthenticator[str]:
            return JoinsAReadThatHasBegun(
                SimStore(self), find_owner=self.find_owner, clock=self, lease=lease
            )

    # An answer has to be under way for as long as a whole revocation takes; without leases that is not long.
    assert explore(Broken, 1000, order=NEWEST_FIRST, leases=[None]) != []
    assert explore(Process, 50, order=NEWEST_FIRST, leases=[None]) == []


def revoke_without_an_answer_of_the_register() -> list[str]:
    play = Play()
    play.verify()
    play.writer.start(play.writer.revoke())
    while play.world.stopped:
        (_, what, _) = play.world.stopped[0]
        (play.world.fail if what == "read the register" else play.world.release)(0)
    return play.end()


def test_an_unknown_lease_is_the_longest_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert revoke_without_an_answer_of_the_register() == []
    monkeypatch.setattr(authenticator, "Leases", TakesAnUnknownLeaseForNone)
    assert revoke_without_an_answer_of_the_register() != []
