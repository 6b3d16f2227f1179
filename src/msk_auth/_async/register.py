"""The register of leases, as one process sees it: the leases of all processes, and whether its own is among them.

A call that ends access reads the register to learn how long it has to wait. So the register must list every process
that uses leases, and should drop those that have ended. This compares no clocks of two machines. Each process has an entry
with a mark, which it changes:

- **A process that grants leases** changes its mark at least every :data:`RECORD_SECONDS`, and reads the register at least
  every :data:`LOOK_SECONDS`. If its entry is gone, or has another mark than the one that it wrote last, the database was
  replaced by an older one, and the process writes a new entry.
- **An entry is removed** by a process that has observed its mark unchanged for longer than twice `RECORD_SECONDS` and one such
  lease, and only if the mark is still the same. The time between two reads counts for `RECORD_SECONDS` at most: a backup that
  was restored in between may have brought the mark back.
- **An entry that is gone** counts for as long as it would if its mark stood still, unless its process has written another: it may
  have been lost with a backup that was restored.

A process never writes the same mark twice, so a mark from after a restore differs from all marks from before.
`docs/explanation/lease.md` has the argument.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Collection, Mapping
from datetime import timedelta
from itertools import count
from typing import Final, NamedTuple

from msk_auth._failures import log_failure
from msk_auth._fork import after_fork_in_child
from msk_auth.clock import Clock
from msk_auth.core.store import RecordedLease
from msk_auth.leases.cache import DRIFT

from .store import AsyncLeaseRegister

RECORD_SECONDS: Final = 60.0
"""How long a process may grant leases after it wrote its entry."""

LOOK_SECONDS: Final = 0.1
"""How long a process may grant leases after it saw its entry in the register."""

# After a failure no lease is granted for this long, so that not every request waits for the register.
_RETRY_SECONDS: Final = 1.0


class _Confirmation(NamedTuple):
    """What a process knows of its own entry. The times are from its monotonic clock, before each step."""

    recorded: RecordedLease | None
    recorded_at: float
    seen_at: float


class _Observation(NamedTuple):
    """What a process has seen of all entries.

    Attributes:
        read_at: The monotonic clock after the last read, in seconds.
        unchanged: For how many seconds each entry was observed with the same mark, or gone.
    """

    read_at: float
    unchanged: Mapping[RecordedLease, float]


class LeaseRegisterView:
    """The register as one process knows it; safe to use from several threads. A forked child begins without knowledge.

    Args:
        register: The store's.
        clock: Where the time comes from.
    """

    def __init__(self, register: AsyncLeaseRegister, clock: Clock) -> None:
        self._register = register
        self._clock = clock
        self._renew()
        after_fork_in_child(self._renew)

    def _renew(self) -> None:
        # Threads replace each of these as a whole. If one thread overwrites the other's state, the process only reads again.
        self._holder = secrets.token_hex(8)
        self._marks = count(1)
        self._confirmation = _Confirmation(None, -math.inf, -math.inf)
        self._retry_at = -math.inf
        self._observation = _Observation(-math.inf, {})

    def allows_leases(self, at: float) -> bool:
        """Whether leases may be granted for reads that begin at this time of the monotonic clock."""
        _, recorded_at, seen_at = self._confirmation
        return at - recorded_at <= RECORD_SECONDS and at - seen_at <= LOOK_SECONDS

    async def confirm(self, duration: timedelta) -> None:
        """Make sure that the register lists this process, so that it may grant leases. A failure is logged."""
        if self._clock.monotonic() < self._retry_at:
            return
        try:
            recorded, recorded_at, _ = self._confirmation
            began = self._clock.monotonic()
            in_use = await self.read()
            if recorded not in in_use or began - recorded_at > RECORD_SECONDS / 2:
                recorded = RecordedLease(duration, self._holder, next(self._marks))
                recorded_at = self._clock.monotonic()
                await self._register.record_lease(recorded)
            self._confirmation = _Confirmation(recorded, recorded_at, began)
        except Exception as error:  # noqa: BLE001 - without a lease no verification is reused, which is safe
            self._retry_at = self._clock.monotonic() + _RETRY_SECONDS
            log_failure(
                logging.WARNING,
                "could not record the lease; verifying each request by the store",
                error,
            )

    async def read(self) -> Collection[RecordedLease]:
        """The leases that may be in use in any process, as far as this one has seen them. Others are removed."""
        began = self._clock.monotonic()
        leases = await self._register.recorded_leases()
        ended = self._clock.monotonic()
        read_at, known = self._observation
        # From after the last read to before this one. It is less than zero if another thread has read meanwhile.
        passed = min(began - read_at, RECORD_SECONDS)
        holders = {self._holder, *(lease.holder for lease in leases)}
        # A backup that was restored may lack a process that this one has seen. Another process may have removed it, too.
        lost = [lease for lease in known if lease.holder not in holders]
        unchanged = {
            lease: known[lease] + passed if lease in known else 0.0 for lease in (*leases, *lost)
        }
        in_use = [
            lease
            for lease, seconds in unchanged.items()
            if seconds <= _seconds_until_unused(lease.duration)
        ]
        self._observation = _Observation(
            ended, {lease: unchanged[lease] for lease in (*leases, *in_use)}
        )
        for lease in leases:
            if lease not in in_use:
                await self._forget(lease)
        return in_use

    async def _forget(self, lease: RecordedLease) -> None:
        try:
            await self._register.forget_lease(lease)
        except Exception as error:  # noqa: BLE001 - no call waits for this lease, removed or not
            log_failure(logging.WARNING, "could not remove a lease that is not in use", error)


def _seconds_until_unused(duration: timedelta) -> float:
    """For how long a mark has to be observed unchanged until every lease that was granted on it, or on a lost one, has ended."""
    return (2 * RECORD_SECONDS + LOOK_SECONDS + duration.total_seconds()) * DRIFT
