"""The register of leases, as one process sees it: how long those of all processes are, and whether it is in there itself.

A writer that narrowed access reads the register to learn how long it has to wait. So the register must have every
process that uses leases, and should lose those that are gone. No clocks of two machines are compared for that. Each
process has an entry with a mark, which it changes:

- **A process that grants leases** changes its mark at least every :data:`RECORD_SECONDS`, and looks at the register at
  least every :data:`LOOK_SECONDS`. If its entry is gone, or has another mark than the one it wrote last, the database was
  replaced by an older one, and it records itself anew.
- **An entry is removed** by a process that has seen its mark stand still for longer than `RECORD_SECONDS` and one such
  lease, and only if it still stands there.

A process never writes the same mark twice, so one that was written after a restore is never taken for one of before.
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
from msk_auth.core import steps
from msk_auth.core.steps import Flow
from msk_auth.core.store import RecordedLease

RECORD_SECONDS: Final = 60.0
"""For how long leases may be granted on one record in the register."""

LOOK_SECONDS: Final = 0.1
"""For how long leases may be granted on one look at the register."""

# After an attempt that failed. No lease is granted in the meantime; a request must not wait for the register each time.
_RETRY_SECONDS: Final = 1.0

DRIFT: Final = 1.01
"""Clocks may run at rates that differ by up to one percent."""


class _Confirmation(NamedTuple):
    """What a process knows of its own entry, by its monotonic clock from before each step."""

    recorded: RecordedLease | None
    recorded_at: float
    seen_at: float


class LeaseRegisterView:
    """What one process knows of the register; safe to use from several threads. A forked child begins anew.

    Args:
        clock: Where the time comes from.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._renew()
        after_fork_in_child(self._renew)

    def _renew(self) -> None:
        # Threads replace each of these as a whole. A state that another thread replaced only makes a process look again.
        self._holder = secrets.token_hex(8)
        self._marks = count(1)
        self._confirmation = _Confirmation(None, -math.inf, -math.inf)
        self._retry_at = -math.inf
        self._standing_since: Mapping[RecordedLease, float] = {}

    def allows_leases(self, at: float) -> bool:
        """Whether leases may be granted for reads that begin at this time of the monotonic clock."""
        _, recorded_at, seen_at = self._confirmation
        return at - recorded_at <= RECORD_SECONDS and at - seen_at <= LOOK_SECONDS

    def confirm(self, duration: timedelta) -> Flow[None]:
        """Make sure that the register has this process, so that it may grant leases. A failure is logged."""
        if self._clock.monotonic() < self._retry_at:
            return
        try:
            recorded, recorded_at, _ = self._confirmation
            began = self._clock.monotonic()
            in_use = yield from self.read()
            if recorded not in in_use or began - recorded_at > RECORD_SECONDS / 2:
                recorded = RecordedLease(duration, self._holder, next(self._marks))
                recorded_at = self._clock.monotonic()
                yield from steps.record_lease(recorded)
            self._confirmation = _Confirmation(recorded, recorded_at, began)
        except Exception as error:  # noqa: BLE001 - without a lease nothing is reused, which is safe
            self._retry_at = self._clock.monotonic() + _RETRY_SECONDS
            log_failure(logging.WARNING, "the lease could not be recorded; not using it", error)

    def read(self) -> Flow[Collection[RecordedLease]]:
        """What may be in use anywhere. What is not any more is removed."""
        began = self._clock.monotonic()
        leases = yield from steps.recorded_leases()
        ended = self._clock.monotonic()
        # From after the first read that had it, to before this one.
        known = self._standing_since
        self._standing_since = {lease: known.get(lease, ended) for lease in leases}
        in_use = [
            lease
            for lease, since in self._standing_since.items()
            if began - since <= _seconds_until_unused(lease.duration)
        ]
        for lease in leases:
            if lease not in in_use:
                yield from self._forget(lease)
        return in_use

    def _forget(self, lease: RecordedLease) -> Flow[None]:
        try:
            yield from steps.forget_lease(lease)
        except Exception as error:  # noqa: BLE001 - it is not waited for, whether the register still has it or not
            log_failure(logging.WARNING, "a lease that is not in use could not be removed", error)


def _seconds_until_unused(duration: timedelta) -> float:
    """How long a mark stands still before no lease can be alive that was granted on it."""
    return (RECORD_SECONDS + duration.total_seconds()) * DRIFT
