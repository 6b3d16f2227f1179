"""Watches: verify open connections, such as websockets and event streams, as long as they last.

One rule: an open connection ends as soon as a new request with its credential would be refused, within two seconds.

A request is verified once, but a websocket or an event stream stays open. A watch verifies its principal again, by the
public ids of key, session and owner, for as long as it is used. In detail:

1. A watch is verified when it begins, since its principal may have been admitted long before, and then at least once in each
   interval, which is at most a second, by records that were read less than two intervals before. So a revocation that
   has returned takes effect within two seconds. One that begins where its principal was verified, as in the gate of MCP
   servers, is first verified after an interval.
2. On an event loop each key, session and owner is read once in an interval, however many watches depend on it. Watches that
   begin read beside that, and share their reads for a tenth of an interval. A thread reads for its own watch alone.
3. A refusal ends a watch for good. A failed look-up does not, but a watch that could not be verified for
   :data:`MAX_UNVERIFIED` ends with :class:`~msk_auth.errors.StoreUnavailable`: fail closed. On an event loop a look-up that
   hangs counts as failed, and delays no watch that does not depend on it, except for those that begin together, by one
   interval; and neither a block nor a stream begins before it was verified.

Leases are not used here: watches read the records themselves.

:class:`Watched` decides from the records that were read whether access has ended, for this module and `_async.watch`. The two
are written by hand: here each thread verifies its own watches; an event loop makes rounds.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Final, Generic, TypeVar

from msk_auth._failures import log_failure
from msk_auth.clock import Clock
from msk_auth.core.authentication import Rules
from msk_auth.core.errors import ConfigurationError, PermissionDenied, Problem, StoreUnavailable
from msk_auth.core.model import Principal, UserT
from msk_auth.core.policy import Policy, lasting

from .verification import Reads, Verifier

T = TypeVar("T")

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
        turn_at: On the monotonic clock, before the reads of the last verification that succeeded, failed or had the time to.
        refusal: The reason why access has ended; None while it lasts.
    """

    def __init__(self, principal: Principal[UserT], policy: Policy | None, began_at: float) -> None:
        self.principal = principal
        self.policy: Policy | None = None if policy is None else lasting(policy)
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
            Exception: A look-up failed: the result is unknown.
        """
        try:
            principal: Principal[UserT] = Verifier(rules, reads).verify_again(self.principal, now)
            if self.policy is not None:
                self.policy.check(principal, now)
                return None
        except Problem as refusal:
            if isinstance(refusal, StoreUnavailable):
                raise
            return refusal
        lost = self.principal.permissions - principal.permissions
        return PermissionDenied(lost) if lost else None


class Watch(Watched[UserT]):
    """Verifies whether a principal still has access. Made by :meth:`Authenticator.watch`.

    For a streaming response, such as an event stream from a generator::

        watch = authenticator.watch(principal)
        return Response(watch.stream(events()), mimetype="text/event-stream")

    Attributes:
        refusal: The reason why access has ended, as of the last :meth:`check`; None while it lasts.
    """

    def __init__(
        self, watches: Watches[UserT], principal: Principal[UserT], policy: Policy | None
    ) -> None:
        super().__init__(principal, policy, watches.clock.monotonic())
        self._watches = watches

    def check(self) -> None:
        """Return while access lasts, by records that were read less than two seconds ago.

        Call it before each item that you send, and at least once a second. The first call verifies too.

        Raises:
            CredentialRefused: A request with the same credential would be refused now; the subclass says why.
            PermissionDenied: The principal lost a permission; or another refusal of the policy.
            StoreUnavailable: The principal could not be verified for five seconds.
        """
        self._watches.verify(self)
        if self.refusal is not None:
            # Without the frames of the verification that found it.
            raise self.refusal.with_traceback(None)

    def stream(self, source: Iterable[T]) -> Iterator[T]:
        """The items of `source` until it or access ends: calls :meth:`check` before each. :attr:`refusal` has the reason."""
        try:
            for item in source:
                self._watches.verify(self)
                if self.refusal is not None:
                    return
                yield item
        finally:
            close: Callable[[], None] | None = getattr(source, "close", None)
            if close is not None:
                close()


class Watches(Generic[UserT]):
    """Verifies the watches of an authenticator, each in the thread that uses it.

    Args:
        rules: As the authenticator has them.
        reads: Where keys, sessions and owners are looked up.
        clock: Where the time comes from.
        interval: How often a watch is verified, in seconds.
    """

    def __init__(self, rules: Rules, reads: Reads, clock: Clock, interval: float) -> None:
        self.clock = clock
        self._rules = rules
        self._reads = reads
        self._interval = interval

    def verify(self, watch: Watch[UserT]) -> None:
        """Verify a watch, unless it has ended or was verified within the last interval."""
        began = self.clock.monotonic()
        if watch.refusal is not None or began - watch.turn_at < self._interval:
            return
        watch.turn_at = began
        try:
            refusal = watch.verdict(self._rules, self._reads, self.clock.now())
        except Exception as error:  # noqa: BLE001 - after any error the result is unknown
            log_failure(logging.WARNING, "could not verify open connections", error)
            if not watch.is_overdue(self.clock.monotonic(), self._interval):
                return
            refusal = StoreUnavailable()
        if refusal is None:
            watch.note_verified(began)
        else:
            watch.end(refusal)
