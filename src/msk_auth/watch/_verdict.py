"""Decides from the records that were read whether access has ended. It neither blocks nor awaits."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Any, Final, Generic, Protocol, cast

from msk_auth.core import authentication
from msk_auth.core.authentication import Rules
from msk_auth.core.errors import ConfigurationError, PermissionDenied, Problem
from msk_auth.core.model import ApiKey, ExternalIdentity, Owner, Principal, Session, UserT
from msk_auth.core.policy import Policy
from msk_auth.core.steps import Ports

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


class WatchedReads(Protocol):
    """The look-ups that the verification of a watch may make."""

    def find_key(self, key_id: str, /) -> ApiKey | None: ...
    def find_session(self, session_id: str) -> Session | None: ...
    def find_owner(self, owner_id: str) -> Owner[Any] | None: ...
    def find_external_owner(self, identity: ExternalIdentity) -> Owner[Any] | None: ...


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

    def verdict(self, rules: Rules, reads: WatchedReads, now: datetime) -> Problem | None:
        """The refusal that a new request with the same credential would get now; None if it would be admitted.

        Raises:
            Exception: Any error of `reads` other than a problem: the result is unknown.
        """
        flow = authentication.verify_again(rules, self.principal, now)
        ports = cast("Ports", reads)
        answer: Any = None
        try:
            while True:
                try:
                    step = flow.send(answer)
                except StopIteration as stop:
                    principal: Principal[UserT] = stop.value
                    break
                answer = step(ports)
            if self.policy is not None:
                self.policy.check(principal, now)
                return None
        except Problem as refusal:
            return refusal
        lost = self.principal.permissions - principal.permissions
        return PermissionDenied(lost) if lost else None
