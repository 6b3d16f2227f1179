"""Watches: verify open connections, such as websockets and event streams, as long as they last.

One rule: an open connection ends as soon as a new request with its credential would be refused, within two seconds.

A request is verified once, but a websocket or an event stream stays open. A watch verifies its principal again, by the
public ids of key, session and owner, for as long as it is used. In detail:

1. A watch is verified when it begins, since its principal may have been admitted long before, and then at least once in each
   interval, which is at most a second, by records that were read less than two intervals before. So a revocation that
   has returned takes effect within two seconds.
2. Each key, session and owner is read once in an interval, however many watches of the process depend on it. On an event
   loop, watches that begin read beside that, and share their reads for a tenth of an interval.
3. A refusal ends a watch for good. A failed look-up does not, but a watch that could not be verified for
   :data:`MAX_UNVERIFIED` ends with :class:`~msk_auth.errors.StoreUnavailable`: fail closed. A look-up that hangs counts as
   failed, and delays no watch that does not depend on it, except for those that begin together, by one interval. On an
   event loop neither a block nor a stream begins before it was verified.

Leases are not used here: watches read the records themselves.

This module decides from the records that were read whether access has ended, for `_sync.watch` and `_async.watch`. These two are
written by hand: threads verify their own watches, an event loop makes rounds.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Final, Generic

from msk_auth.core.authentication import Rules
from msk_auth.core.errors import ConfigurationError, PermissionDenied, Problem
from msk_auth.core.model import Principal, UserT
from msk_auth.core.policy import Policy

from .verification import Reads, Verifier

MAX_INTERVAL: Final = timedelta(seconds=1)
"""The longest time between two verifications of a watch."""

MAX_UNVERIFIED: Final = timedelta(seconds=5)
"""How long a watch lasts at most while its look-ups fail."""


def check_interval(interval: timedelta) -> float:
    """An interval between verifications, in seconds.

    Raises:
        ConfigurationError: It is out of range.
    """
    if not timedelta(0) < interval <= MAX_INTERVAL:
        raise ConfigurationError(
            "watch_interval must be longer than 0 and at most"
            f" {MAX_INTERVAL.total_seconds():g} second, such as timedelta(milliseconds=500)."
        )
    return interval.total_seconds()


class Watched(Generic[UserT]):
    """The principal of an open connection.

    Attributes:
        principal: The principal that was admitted.
        policy: The policy that it has to meet. None: it has to keep its permissions.
        began_at: On the monotonic clock: from when on a failed look-up counts.
        verified_at: On the monotonic clock, before the reads of the last verification. At first it is never: the principal
            may have been admitted long before.
        turn_at: On the monotonic clock: when the last round began that verified it or had the time to.
        refusal: The reason why access has ended; None while it lasts.
    """

    def __init__(self, principal: Principal[UserT], policy: Policy | None, began_at: float) -> None:
        self.principal = principal
        self.policy = policy
        self.began_at: float = began_at
        self.verified_at: float = -math.inf
        self.turn_at: float = -math.inf
        self.refusal: Problem | None = None

    def is_overdue(self, now: float, interval: float) -> bool:
        """True if the next verification, an interval from now, would come too late.

        Args:
            now: The monotonic clock.
            interval: In seconds.
        """
        last = max(self.began_at, self.verified_at)
        return now + interval - last > MAX_UNVERIFIED.total_seconds()

    def note_begun(self, at: float) -> None:
        """Note that the watch is used from now on.

        Args:
            at: On the monotonic clock.
        """
        self.began_at = at

    def note_verified(self, at: float) -> None:
        """Note that access lasts.

        Args:
            at: On the monotonic clock, before the reads.
        """
        self.verified_at = at

    def end(self, refusal: Problem) -> None:
        """End access. Called once."""
        self.refusal = refusal

    def verdict(self, rules: Rules, reads: Reads, now: datetime) -> Problem | None:
        """The refusal that a new request with the same credential would get now; None if it would be admitted.

        Raises:
            Exception: Any error of `reads` other than a problem: the result is unknown.
        """
        try:
            principal: Principal[UserT] = Verifier(rules, reads).verify_again(self.principal, now)
            if self.policy is not None:
                self.policy.check(principal, now)
                return None
        except Problem as refusal:
            return refusal
        lost = self.principal.permissions - principal.permissions
        return PermissionDenied(lost) if lost else None
