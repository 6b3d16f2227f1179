# Generated from src/msk_auth/_async/leases.py by tools/generate_sync.py: change that, and run this.
"""Leases of requests, and the wait for them when a call ends access. `msk_auth.leases` has the rules.

A call that ends access reads a register of leases to learn how long it must wait. So the register must list every process
that uses leases, and should drop processes that have ended, without comparing clocks of two machines. Each process has an entry
with a mark, which it changes:

- **A process that grants leases** changes its mark at least every :data:`RECORD_SECONDS`, and reads the register at least
  every :data:`LOOK_SECONDS`. If its entry is missing, or does not have its latest mark, an older database
  was restored, and the process writes a new entry.
- **A process removes an entry** after it has observed the entry's mark unchanged for longer than twice `RECORD_SECONDS` and one
  lease of the entry, and only if the mark is still the same. The time between two reads counts for `RECORD_SECONDS` at most: a
  restored backup may have brought the mark back.
- **A missing entry** counts as an entry with an unchanged mark, unless its process has written another: a restored backup may
  have lost it.

A process never writes the same mark twice, so a mark from after a restore differs from all marks from before.
`docs/explanation/lease.md` has the argument.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from itertools import count
from typing import Final, Generic, NamedTuple, cast

from msk_auth._failures import log_failure
from msk_auth._fork import after_fork_in_child
from msk_auth.clock import Clock
from msk_auth.core.authentication import Authenticated, Presented
from msk_auth.core.logins import RequestLogins
from msk_auth.core.model import Principal, UserT
from msk_auth.core.store import RecordedLease
from msk_auth.leases import (
    DRIFT,
    Flight,
    LeaseCache,
    SingleFlight,
    seconds_to_wait,
    usual_header,
)

from . import primitives
from .store import KeyStore

RECORD_SECONDS: Final = 60.0
"""How long a process may grant leases after it wrote its entry."""

LOOK_SECONDS: Final = 0.1
"""How long a process may grant leases after it saw its entry in the register."""

MAX_WAIT_SECONDS: Final = 1.0
"""How long a request waits for another request's verification before it verifies itself: a hanging read delays no other."""
# After a failure no lease is granted for this time, so that not every request waits for the register.
_RETRY_SECONDS: Final = 1.0


class _Confirmation(NamedTuple):
    """A process's knowledge of its own entry. The times are from its monotonic clock, before each step."""

    recorded: RecordedLease | None
    recorded_at: float
    seen_at: float


class _Observation(NamedTuple):
    """A process's observations of all entries.

    Attributes:
        read_at: The monotonic clock after the last read, in seconds.
        unchanged: The seconds for which each entry was observed with the same mark, or missing.
    """

    read_at: float
    unchanged: Mapping[RecordedLease, float]


class LeaseRegisterView:
    """The register as known to a process; thread-safe. A forked child begins without knowledge.

    Args:
        register: The store with the register.
        clock: The source of time.
    """

    def __init__(self, register: KeyStore, clock: Clock) -> None:
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
        """True if leases may be granted for reads that begin at this time of the monotonic clock."""
        _, recorded_at, seen_at = self._confirmation
        return at - recorded_at <= RECORD_SECONDS and at - seen_at <= LOOK_SECONDS

    def confirm(self, duration: timedelta) -> None:
        """Make sure that the register lists this process, so that it may grant leases. A failure is logged."""
        if self._clock.monotonic() < self._retry_at:
            return
        try:
            recorded, recorded_at, _ = self._confirmation
            began = self._clock.monotonic()
            in_use = self.read()
            if recorded not in in_use or began - recorded_at > RECORD_SECONDS / 2:
                recorded = RecordedLease(duration, self._holder, next(self._marks))
                recorded_at = self._clock.monotonic()
                self._register.record_lease(recorded)
            self._confirmation = _Confirmation(recorded, recorded_at, began)
        except Exception as error:  # noqa: BLE001 - without a lease no verification is reused, which is safe
            self._retry_at = self._clock.monotonic() + _RETRY_SECONDS
            log_failure(
                logging.WARNING,
                "could not record the lease; verifying each request by the store",
                error,
            )

    def read(self) -> Collection[RecordedLease]:
        """The leases that may be in use in any process that this process has seen. Others are removed."""
        began = self._clock.monotonic()
        leases = self._register.recorded_leases()
        ended = self._clock.monotonic()
        read_at, known = self._observation
        # From after the last read to before this read. Negative if another thread has read meanwhile.
        passed = min(began - read_at, RECORD_SECONDS)
        holders = {self._holder, *(lease.holder for lease in leases)}
        # A restored backup may lack a process that this process has seen. Another process may have removed it, too.
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
                self._forget(lease)
        return in_use

    def _forget(self, lease: RecordedLease) -> None:
        try:
            self._register.forget_lease(lease)
        except Exception as error:  # noqa: BLE001 - no call waits for this lease, removed or not
            log_failure(logging.WARNING, "could not remove a lease that is not in use", error)


def _seconds_until_unused(duration: timedelta) -> float:
    """How long a mark must be observed unchanged until every lease that was granted on it, or on a lost mark, has ended."""
    return (2 * RECORD_SECONDS + LOOK_SECONDS + duration.total_seconds()) * DRIFT


class Leases(Generic[UserT]):
    """Implements the rules of `msk_auth.leases`.

    Args:
        cache: The cache of verifications; None if this process uses no lease.
        store: The store with the register of leases.
        clock: The source of time.
    """

    def __init__(
        self,
        cache: LeaseCache[UserT] | None,
        store: KeyStore,
        clock: Clock,
    ) -> None:
        self.cache = cache
        self._clock = clock
        self._single_flight = SingleFlight(primitives.make_event, primitives.scope)
        self._register = LeaseRegisterView(store, clock)

    def find_or_verify(
        self, presented: Presented | RequestLogins, verify: Callable[[], Authenticated]
    ) -> Principal[UserT] | Authenticated:
        """The cached principal of a credential, or the outcome of its verification, which is then cached.

        The cache must exist. Of several requests with the same credential one verifies it, and the others wait for a bounded
        time.
        """
        cache = cast("LeaseCache[UserT]", self.cache)
        # Only the application can identify the login of a request, so no lease covers it.
        if isinstance(presented, RequestLogins):
            return verify()
        header = usual_header(presented)
        usual = (header,)
        # The credential may have been verified with another spelling of its header.
        principal = cache.find(usual, checks_address=True)
        if principal is not None:
            return principal
        fingerprint = cache.fingerprint(header)
        flight = self._single_flight.join(fingerprint.digest)
        try:
            if not flight.leads:
                self.wait_for(flight)
                principal = cache.find(usual, checks_address=True)
                if principal is not None:
                    return principal
            began = self._begin(cache.duration)
            outcome = verify()
            if began is not None and outcome.reusable:
                cache.fill(
                    fingerprint,
                    began,
                    outcome.principal,
                    outcome.valid_until,
                    has_spellings=outcome.has_spellings,
                )
            return outcome
        finally:
            self._single_flight.finish(flight)

    def _begin(self, duration: timedelta) -> float | None:
        """The beginning of a lease, on the monotonic clock in seconds; None if no lease is granted."""
        if not self._register.allows_leases(self._clock.monotonic()):
            self._confirm(duration)
        # Rule 1: before the first read, and after each wait. Rule 5: may a lease begin at this time?
        began = self._clock.monotonic()
        return began if self._register.allows_leases(began) else None

    def wait_for(self, flight: Flight) -> None:
        """Wait until another request's flight has ended, for a bounded time, so that a hanging read delays no other."""
        primitives.wait_for_event(flight.finished, MAX_WAIT_SECONDS)

    def _confirm(self, duration: timedelta) -> None:
        flight = self._single_flight.join(LeaseRegisterView)
        try:
            if flight.leads:
                self._register.confirm(duration)
            else:
                self.wait_for(flight)
        finally:
            self._single_flight.finish(flight)

    def await_expiry(self) -> None:
        """Wait until no process can use reads from before this call."""
        if self.cache is not None:
            self.cache.clear()
        self._clock.sleep(seconds_to_wait(self._longest()))

    def _longest(self) -> timedelta | None:
        own = timedelta(0) if self.cache is None else self.cache.duration
        try:
            in_use = self._register.read()
        except Exception as error:  # noqa: BLE001 - the change is committed, so wait for the longest possible lease
            what = "could not read the longest lease; waiting for the allowed maximum"
            log_failure(logging.WARNING, what, error)
            return None
        # Rule 7: at least its own lease, even if the register does not list it.
        return max(own, *(lease.duration for lease in in_use)) if in_use else own
