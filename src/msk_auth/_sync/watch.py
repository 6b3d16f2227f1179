"""Watches for blocking applications: each thread verifies its own watches, and all threads share the reads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar, cast

from msk_auth._failures import log_failure
from msk_auth._fork import after_fork_in_child
from msk_auth.clock import Clock
from msk_auth.core.authentication import Rules
from msk_auth.core.errors import Problem, StoreUnavailable
from msk_auth.core.model import ApiKey, ExternalIdentity, Owner, Principal, Session, UserT
from msk_auth.core.policy import Policy

from .verdict import Watched
from .verification import Reads

T = TypeVar("T")
NameT = TypeVar("NameT", bound=Hashable)


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
