"""A simulated deployment: processes with drifting clocks, one database, and a scheduler that may do anything.

The processes are real `AsyncAuthenticator`s. Their store stops before every read and write, and before every answer
is delivered; a test decides which of the stopped steps goes on next, and how far time moves. So every interleaving of
read start, read, delivery, fill, hit, commit, wait and return can be reached, and each can be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any

from msk_auth import (
    ApiKey,
    AsyncAuthenticator,
    KeyFormat,
    KeyHasher,
    Owner,
    local_principal,
)
from msk_auth._async import leases as leasing
from msk_auth.errors import Problem
from msk_auth.leases import Flight
from msk_auth.stores import RecordedLease

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
KEY = KeyFormat().generate()
HEADER = [f"Bearer {KEY.reveal()}"]
OWNER_ID = "owner"

# The longest of the leases that the tests use.
LONGEST_SECONDS = 0.4

# Two clocks may differ by 0.8 %; the library allows for 1 %.
RATES = (0.996, 1.0, 1.004)


class World:
    """What all processes share: the true time, the database, and everything that is stopped."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.time = 1000.0
        self.record = ApiKey(KEY.id, "ci", OWNER_ID, KeyHasher().digest(KEY.reveal()), None, EPOCH)
        self.owner_disabled = False
        self.register: dict[tuple[timedelta, str], RecordedLease] = {}
        # What a backup holds, and how often one was restored: what was promised of the state before is void.
        self.backup: tuple[ApiKey, dict[tuple[timedelta, str], RecordedLease], bool] | None = None
        self.restores = 0
        self.processes: list[Process] = []
        # Of each holder in the register: since when it has been there without a break, and when it last wrote its mark.
        self.recorded: dict[str, tuple[float, float]] = {}
        # After this many readings of a clock the process that reads it is paused for so long.
        self.pause: tuple[int, float] | None = None
        self.during_pause: Callable[[], None] = lambda: None
        self.stopped: list[tuple[Process, str, asyncio.Future[None]]] = []
        self.sleeping: list[tuple[Process, float, asyncio.Future[None]]] = []
        # True once a revocation, or disabling the owner, returned to its caller.
        self.revoked = False
        self.violations: list[str] = []

    def pump(self) -> None:
        """Let every task run until all are stopped, asleep or done."""
        # One turn of the loop runs what is ready; a gate that opens makes its waiter ready for the next.
        for _ in range(6):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()

    def release(self, index: int) -> None:
        """Let one stopped step go on."""
        _, _, gate = self.stopped.pop(index % len(self.stopped))
        if not gate.done():
            gate.set_result(None)
        self.pump()

    def release_all(self) -> None:
        """Let everything go on until it ends or sleeps."""
        while self.stopped:
            self.release(0)

    def fail(self, index: int) -> None:
        """Let one stopped step fail, as a lost connection would."""
        _, _, gate = self.stopped.pop(index % len(self.stopped))
        if not gate.done():
            gate.set_exception(ConnectionError("lost"))
        self.pump()

    def advance(self, seconds: float) -> None:
        """Move the true time on, and wake every process whose sleep is over by its own clock."""
        self.time += seconds
        for sleeper in list(self.sleeping):
            process, until, gate = sleeper
            if process.monotonic() >= until:
                self.sleeping.remove(sleeper)
                if not gate.done():
                    gate.set_result(None)
        self.pump()

    def back_up(self) -> None:
        """Copy the database."""
        self.backup = self.record, dict(self.register), self.owner_disabled

    def restore(self, away: float) -> None:
        """Put the last copy in the place of the database, which is away for a while: what was under way is lost."""
        if self.backup is None:
            return
        lost_at = self.time
        while self.stopped:
            self.fail(0)
        self.advance(away)
        while self.stopped:
            self.fail(0)
        self.record, register, self.owner_disabled = self.backup
        self.register = dict(register)
        self.restores += 1
        self.revoked = False
        for process in self.processes:
            if self._has_missed_a_lease(process):
                process.promises_from = lost_at + leasing.LOOK_SECONDS + LONGEST_SECONDS
        # What a process writes from now on is there without a break from now on.
        self.recorded = {holder: (self.time, at) for holder, (_, at) in self.recorded.items()}

    def _has_missed_a_lease(self, process: Process) -> bool:
        """Whether a process cannot know of a lease that another one may use now, because it has not seen its entry."""
        return any(
            process.seen.get(holder, -inf) < since
            for holder, (since, at) in self.recorded.items()
            if self.time - at <= 1.01 * (leasing.RECORD_SECONDS + LONGEST_SECONDS)
        )

    def note_recorded(self, holder: str) -> None:
        """A holder has written its mark."""
        since, at = self.recorded.get(holder, (-inf, -inf))
        if self.time - at > leasing.RECORD_SECONDS:
            since = self.time
        self.recorded[holder] = since, self.time

    def read_clock(self) -> float:
        """The true time, after which the process that asked may be paused."""
        time = self.time
        if self.pause is not None:
            readings, seconds = self.pause
            self.pause = (readings - 1, seconds) if readings > 0 else None
            if readings == 0:
                self.time += seconds
                self.during_pause()
        return time

    def close(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.pump()
        self.loop.close()


class Process:
    """One process: its clock, its view of the database, and its authenticator."""

    def __init__(self, world: World, *, rate: float, lease_ms: int | None) -> None:
        self.world = world
        self.rate = rate
        self.lease_ms = lease_ms
        self.tasks: list[asyncio.Task[Any]] = []
        # When it read of each holder. Its own entry is among them, and it knows of its own lease in any case.
        self.seen: dict[str, float] = {}
        # After a restore that lost a lease of which it cannot know, what it revokes is not promised for a while.
        self.promises_from = -inf
        world.processes.append(self)
        self.authenticator = self.build(
            None if lease_ms is None else timedelta(milliseconds=lease_ms)
        )

    def build(self, lease: timedelta | None) -> AsyncAuthenticator[str]:
        authenticator = AsyncAuthenticator(
            SimStore(self), find_owner=self.find_owner, clock=self, lease=lease
        )
        authenticator._leases.wait_for = self.wait_for  # type: ignore[method-assign]
        return authenticator

    async def wait_for(self, flight: Flight) -> None:
        """Until the flight has ended, or the scheduler decides that it took too long."""
        finished = asyncio.ensure_future(flight.finished.wait())
        gives_up = asyncio.ensure_future(self.stop("give up waiting"))
        try:
            await asyncio.wait([finished, gives_up], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiting in (finished, gives_up):
                waiting.cancel()

    # The clock.

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.world.time)

    def monotonic(self) -> float:
        return self.world.read_clock() * self.rate

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing blocks here")

    async def async_sleep(self, seconds: float) -> None:
        if seconds > 0:
            gate: asyncio.Future[None] = self.world.loop.create_future()
            self.world.sleeping.append((self, self.monotonic() + seconds, gate))
            await gate

    async def stop(self, what: str) -> None:
        gate: asyncio.Future[None] = self.world.loop.create_future()
        self.world.stopped.append((self, what, gate))
        await gate

    async def find_owner(self, owner_id: str) -> Owner[str]:
        await self.stop("read owner")
        owner = Owner(owner_id, frozenset({"run"}), owner_id, disabled=self.world.owner_disabled)
        await self.stop("deliver owner")
        return owner

    # What a test lets it do.

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(self.world.loop.create_task(work))
        self.world.pump()

    def crash(self) -> None:
        for task in self.tasks:
            task.cancel()
        self.world.stopped = [entry for entry in self.world.stopped if entry[0] is not self]
        self.world.sleeping = [entry for entry in self.world.sleeping if entry[0] is not self]
        self.world.pump()

    async def verify(self) -> None:
        must_refuse, restores = self.world.revoked, self.world.restores
        try:
            await self.authenticator.authenticate(HEADER)
        except Problem:
            return
        if must_refuse and restores == self.world.restores:
            self.world.violations.append(f"accepted at {self.world.time} although it was revoked")

    async def revoke(self) -> None:
        owner = Owner(OWNER_ID, frozenset({"run"}), OWNER_ID)
        restores, promises = self.world.restores, self.world.time >= self.promises_from
        try:
            await self.authenticator.revoke_key(
                local_principal(owner, at=self.now(), interactive=True), KEY.id
            )
        except Problem:
            return  # not known whether it was revoked: nothing is promised
        self.world.revoked |= promises and restores == self.world.restores

    async def disable_owner(self) -> None:
        try:
            await self.stop("commit owner")
        except ConnectionError:
            return
        self.world.owner_disabled = True
        restores, promises = self.world.restores, self.world.time >= self.promises_from
        await self.authenticator.await_lease_expiry()
        self.world.revoked |= promises and restores == self.world.restores


@dataclass
class SimStore:
    """The part of a store that leases are about."""

    process: Process

    async def find(self, key_id: str) -> ApiKey | None:
        await self.process.stop("read key")
        record = self.process.world.record
        await self.process.stop("deliver key")
        return record if record.id == key_id else None

    async def find_many(self, key_ids: Sequence[str]) -> list[ApiKey]:
        await self.process.stop("read keys")
        record = self.process.world.record
        await self.process.stop("deliver keys")
        return [record] if record.id in key_ids else []

    async def revoke(
        self, key_id: str, *, owner_id: str, at: datetime, change: object
    ) -> ApiKey | None:
        await self.process.stop("commit key")
        world = self.process.world
        if world.record.revoked_at is None:
            world.record = replace(world.record, revoked_at=at)
        await self.process.stop("deliver commit")
        return world.record

    async def update(self, *_args: object, **_named: object) -> None:
        raise AssertionError("the simulation edits no key")

    async def recorded_leases(self) -> Sequence[RecordedLease]:
        await self.process.stop("read the register")
        leases, at = tuple(self.process.world.register.values()), self.process.world.time
        await self.process.stop("deliver the register")
        self.process.seen |= {lease.holder: at for lease in leases}
        return leases

    async def record_lease(self, lease: RecordedLease) -> None:
        await self.process.stop("commit a lease")
        self.process.world.register[lease.duration, lease.holder] = lease
        self.process.world.note_recorded(lease.holder)
        self.process.seen[lease.holder] = self.process.world.time
        await self.process.stop("deliver the commit of a lease")

    async def forget_lease(self, lease: RecordedLease) -> None:
        await self.process.stop("commit that a lease is forgotten")
        register = self.process.world.register
        if register.get((lease.duration, lease.holder)) == lease:
            del register[lease.duration, lease.holder]
        await self.process.stop("deliver that a lease is forgotten")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the simulation does not need {name}")
