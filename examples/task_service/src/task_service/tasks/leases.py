"""What a worker holds, and how others judge whether it is still alive.

A claim is a lease that its worker renews. `lease_expires_at` is written by the worker's clock and never compared
with another machine's: :class:`LeaseWatch` takes a worker for dead when it has seen the same lease for the lease's
whole length on its own monotonic clock. So neither clocks that differ nor one that is set by an hour take a run from
a living worker or leave a dead one's run lying.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from msk_auth import Clock

from .shapes import RunState


@dataclass(frozen=True, slots=True)
class Claim:
    """A run that a worker holds, with what it needs to execute it."""

    run_id: str
    worker_id: str
    attempt: int
    handler: str
    params: Any
    timeout_seconds: int
    last_seq: int
    log_bytes: int
    log_truncated: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: a final state, and what the handler said."""

    state: RunState
    exit_code: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Sighting:
    """A lease as it was seen: as long as nothing in it changes, nobody has renewed it."""

    run_id: str
    worker_id: str
    attempt: int
    lease_expires_at: datetime


class LeaseWatch:
    """Judges whether workers are alive by watching their leases.

    Args:
        clock: Only its monotonic side is used.
        lease: The length of a lease; the same in every process of a deployment.
    """

    def __init__(self, clock: Clock, lease: timedelta) -> None:
        self._clock = clock
        self._lease = lease.total_seconds()
        self._since: dict[Sighting, float] = {}
        self._looked_at = clock.monotonic()

    def expired(self, seen: Iterable[Sighting]) -> list[Sighting]:
        """Those that have stood still for a lease's length, given all that are in the database now."""
        now = self._clock.monotonic()
        if now - self._looked_at > self._lease / 2:
            # Whatever kept this process from looking (a sleeping machine, a stopped database) may have kept the
            # workers from renewing: they get a whole lease again.
            self._since = {}
        self._looked_at = now
        self._since = {each: self._since.get(each, now) for each in seen}
        return [each for each, since in self._since.items() if now - since >= self._lease]
