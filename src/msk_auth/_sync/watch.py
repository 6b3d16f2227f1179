"""Watches: verify open connections, such as websockets and event streams, as long as they last.

One rule: an open connection ends as soon as a new request with its credential would be refused, within two seconds.

A request is verified once, but a websocket or an event stream stays open. A watch verifies its principal again, by the
public ids of key, session and owner, for as long as it is used. In detail:

1. A watch is verified when it begins, since its principal may have been admitted long before, and then at least once in each
   interval, which is at most a second, by records that were read less than two intervals before. So a revocation that
   has returned takes effect within two seconds. One that begins where its principal was verified, as in the gate of MCP
   servers, is first verified after an interval.
2. Each key, session and owner is read once in an interval, however many watches of the process depend on it. On an event
   loop, watches that begin read beside that, and share their reads for a tenth of an interval.
3. A refusal ends a watch for good. A failed look-up does not, but a watch that could not be verified for
   :data:`MAX_UNVERIFIED` ends with :class:`~msk_auth.errors.StoreUnavailable`: fail closed. A look-up that hangs counts as
   failed, and delays no watch that does not depend on it, except for those that begin together, by one interval. On an
   event loop neither a block nor a stream begins before it was verified.

Leases are not used here: watches read the records themselves.

:class:`Watched` decides from the records that were read whether access has ended, for this module and `_async.watch`. The two
are written by hand: here each thread verifies its own watches and all threads share the reads; an event loop makes rounds.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

from msk_auth._failures import log_failure
from msk_auth._fork import after_fork_in_child
from msk_auth.clock import Clock
from msk_auth.core.authentication import Rules
from msk_auth.core.errors import ConfigurationError, PermissionDenied, Problem, StoreUnavailable
from msk_auth.core.model import ApiKey, ExternalIdentity, Owner, Principal, Session, UserT
from msk_auth.core.policy import Policy, lasting

from .verification import Reads, Verifier

T = TypeVar("T")
NameT = TypeVar("NameT", bound=Hashable)

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


class Watch(Generic[UserT]):
    """Verifies whether a principal still has access. Made by :meth:`Authenticator.watch`.

    For a streaming response, such as an event stream from a generator::

        watch = authenticator.watch(principal)
        return Response(watch.stream(events()), mimetype="text/event-stream")
    """

    def __init__(self, watches: Watches[UserT], watched: Watched[UserT]) -> None:
        self._watches = watches
        self._watched = watched

    @property
    def refusal(self) -> Problem | None:
        """The reason why access has ended, as of the last :meth:`check`; None while it lasts."""
        return self._watched.refusal

    def check(self) -> None:
        """Return while access lasts, by records that were read less than two seconds ago.

        Call it before each item that you send, and at least once a second. The first call verifies too.

        Raises:
            CredentialRefused: A request with the same credential would be refused now; the subclass says why.
            PermissionDenied: The principal lost a permission; or another refusal of the policy.
            StoreUnavailable: The principal could not be verified for five seconds.
        """
        refusal = self._watches.verify(self._watched)
        if refusal is not None:
            # Without the frames of the verification that found it.
            raise refusal.with_traceback(None)

    def stream(self, source: Iterable[T]) -> Iterator[T]:
        """The items of `source` until it or access ends: calls :meth:`check` before each. :attr:`refusal` has the reason."""
        try:
            for item in source:
                if self._watches.verify(self._watched) is not None:
                    return
                yield item
        finally:
            close: Callable[[], None] | None = getattr(source, "close", None)
            if close is not None:
                close()


class Watches(Generic[UserT]):
    """Verifies the watches of an authenticator.

    Args:
        rules: As the authenticator has them.
        ports: Where keys, sessions and owners are looked up.
        clock: Where the time comes from.
        interval: How long a record counts as fresh, in seconds.
    """

    def __init__(self, rules: Rules, ports: Reads, clock: Clock, interval: float) -> None:
        self._rules = rules
        self._clock = clock
        self._interval = interval
        self._reads: _SharedReads[UserT] = _SharedReads(ports, clock, interval)

    def watch(self, principal: Principal[UserT], policy: Policy | None) -> Watch[UserT]:
        """A watch that is verified on each call."""
        return Watch(self, Watched(principal, policy, self._clock.monotonic()))

    def verify(self, watched: Watched[UserT]) -> Problem | None:
        """The reason why access has ended; None if it lasts."""
        if watched.refusal is not None:
            return watched.refusal
        if self._clock.monotonic() - watched.verified_at < self._interval:
            return None
        reads = _Noted(self._reads, self._clock.monotonic())
        try:
            refusal = watched.verdict(self._rules, reads, self._clock.now())
        except Exception as error:  # noqa: BLE001 - after any error the result is unknown
            if not isinstance(error, _NotRead):
                log_failure(logging.WARNING, _UNVERIFIED, error)
            if not watched.is_overdue(self._clock.monotonic(), self._interval):
                return None
            refusal = StoreUnavailable()
        if refusal is None:
            watched.note_verified(reads.oldest)
        watched.refusal = refusal
        return refusal


_UNVERIFIED = "could not verify open connections"


class _NotRead(Exception):
    """The look-up failed, which was logged."""


class _Answer(NamedTuple):
    """The result of a look-up.

    Attributes:
        began: On the monotonic clock, before the read.
        value: The record; a `_NotRead` if the look-up failed.
    """

    began: float
    value: object


class _SharedReads(Generic[UserT]):
    """Look-ups whose results all threads share for one interval."""

    _forgot_at: float

    def __init__(self, ports: Reads, clock: Clock, interval: float) -> None:
        self.ports = ports
        self._clock = clock
        self._interval = interval
        self._renew()
        after_fork_in_child(self._renew)

    def share(self, what: tuple[str, Hashable], read: Callable[[], object]) -> _Answer:
        """The result of a look-up, not older than two intervals.

        Args:
            what: Kind and id.
            read: Makes the look-up.
        """
        now = self._clock.monotonic()
        with self._lock:
            known = self._answers.get(what)
            if known is not None:
                age = now - known.began
                # While another thread reads it again, the previous result may be used, for one interval more.
                if age < self._interval or (age < 2 * self._interval and what in self._reading):
                    return known
            self._reading.add(what)
        value: object = _NotRead()
        try:
            value = read()
        except Exception as error:  # noqa: BLE001 - after any error nothing was read
            log_failure(logging.WARNING, _UNVERIFIED, error)
        finally:
            with self._lock:
                self._reading.discard(what)
                self._forget_before(now - 2 * self._interval)
                answer = self._answers[what] = _Answer(now, value)
        return answer

    def _forget_before(self, moment: float) -> None:
        if self._forgot_at >= moment:
            return
        self._forgot_at = self._clock.monotonic()
        for what in [what for what, answer in self._answers.items() if answer.began <= moment]:
            del self._answers[what]

    def _renew(self) -> None:
        # Also called in a forked child, since another thread of the parent may have held the lock.
        self._lock = threading.Lock()
        self._answers: dict[tuple[str, Hashable], _Answer] = {}
        self._reading: set[tuple[str, Hashable]] = set()
        self._forgot_at = self._clock.monotonic()


class _Noted(Generic[UserT]):
    """The reads of one verification.

    Attributes:
        oldest: On the monotonic clock: when the oldest read that was used began.
    """

    def __init__(self, reads: _SharedReads[UserT], now: float) -> None:
        self._reads = reads
        self.oldest = now

    def find_key(self, key_id: str, /) -> ApiKey | None:
        return self._note("key", key_id, self._reads.ports.find_key)

    def find_session(self, session_id: str) -> Session | None:
        return self._note("session", session_id, self._reads.ports.find_session)

    def find_owner(self, owner_id: str) -> Owner[Any] | None:
        return self._note("owner", owner_id, self._reads.ports.find_owner)

    def find_external_owner(self, identity: ExternalIdentity) -> Owner[Any] | None:
        return self._note("identity", identity, self._reads.ports.find_external_owner)

    def _note(self, kind: str, name: NameT, find: Callable[[NameT], T]) -> T:
        began, value = self._reads.share((kind, name), lambda: find(name))
        self.oldest = min(self.oldest, began)
        if isinstance(value, _NotRead):
            raise value.with_traceback(None)
        return cast("T", value)
