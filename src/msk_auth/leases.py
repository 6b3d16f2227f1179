"""The bounded cache of verified credentials, and the wait that keeps revocation exact.

A process may reuse a verification for at most `duration`, measured on the monotonic clock from *before* its reads. A call
that ends access (revokes a key, disables an owner, ends a session) commits first, and then waits until every lease that
may have been granted before the commit has ended. So a verification that starts after `revoke` returned finds either no
entry, or an entry whose reads began after the commit. Processes send each other no messages, so none can be lost.

All of these rules are needed (`docs/explanation/lease.md` has the argument, `tests/lease/` the mutants):

1. A lease starts before the first read of its verification.
2. The end of a lease is checked after the entry was found, just before its use.
3. Only successes are cached, at most until their own end (`valid_until`).
4. The wait covers the longest lease of the deployment, read from the register in the store *after* the commit.
5. A process grants leases only while it knows that the register lists it: it wrote its entry within the last minute, and
   saw the entry within the last tenth of a second before the reads.
6. A process that cannot read the longest lease waits for `MAX_LEASE`.
7. A process that uses leases waits at least for its own lease, even if the register does not list it.
8. A process is removed from the register, and no longer waited for, only after its mark was observed unchanged for twice the
   validity of an entry, plus one lease. The time between two reads counts at most for the validity of an entry.

`msk_auth._async.leases` implements rules 1 and 4 to 8, which wait; nothing here blocks or awaits.

Of several requests with the same credential, one verifies it, and the others wait for its cached entry. This saves
reads and decides nothing: a waiting request then looks for the entry of a lease, and verifies the credential itself if
there is none.

Leases are an application of C. Gray and D. Cheriton, "Leases" (1989), with the writer waiting.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final, Generic, NamedTuple, cast

from msk_auth._fork import after_fork_in_child
from msk_auth.clock import Clock
from msk_auth.core.authentication import Presented
from msk_auth.core.errors import ConfigurationError
from msk_auth.core.model import Principal, UserT

MAX_LEASE: Final = timedelta(seconds=5)
"""The longest configurable lease, and the time to wait if the longest lease in use is unknown."""

MAX_ENTRIES: Final = 10_000
"""The number of cached verifications; each takes about 1 KiB. A full cache drops the entry that ends first."""

_MARGIN_SECONDS: Final = 0.005

DRIFT: Final = 1.01
"""The accepted difference of clock rates: one percent."""

# More than a person's concurrent sessions, and too few to matter among all entries.
_MAX_SPELLINGS: Final = 64


class Fingerprint(NamedTuple):
    """Identifies a credential within a cache.

    Attributes:
        slot: The place of its entry: Python's own hash of the usual header, which proves nothing.
        digest: A keyed hash of the header's exact bytes, which proves that the entry belongs to it.
    """

    slot: int
    digest: bytes


class Entry(NamedTuple, Generic[UserT]):
    """A verified credential.

    Attributes:
        digest: The digest of its fingerprint.
        principal: The outcome.
        usable_until: The end of the lease, on the monotonic clock in seconds.
        valid_until: The end of the key, token or session itself, on the wall clock; None means that it does not end.
    """

    digest: bytes
    principal: Principal[UserT]
    usable_until: float
    valid_until: datetime | None


class LeaseCache(Generic[UserT]):
    """The cache of a process; thread-safe. An entry takes about 1 KiB.

    A credential is found by a keyed hash of `Bearer <credential>`, so the cache contains no key and no token, and each
    credential has at most one entry, however its header is spelled. If the credential itself may have several spellings, its
    owner's logins share 64 entries. A forked child begins with an empty cache.

    Args:
        duration: How long an entry may be used; more than zero and at most `MAX_LEASE`.
        clock: The source of time.

    Raises:
        ConfigurationError: A setting is out of range.
    """

    def __init__(self, duration: timedelta, *, clock: Clock) -> None:
        is_duration = isinstance(cast("object", duration), timedelta)
        if not is_duration or not timedelta(0) < duration <= MAX_LEASE:
            raise ConfigurationError(
                f"A lease must be longer than 0 and at most {MAX_LEASE.total_seconds():g} seconds,"
                " such as timedelta(milliseconds=250). Leave it out to use no lease."
            )
        self.duration = duration
        self._clock = clock
        self._seconds = duration.total_seconds()
        # A prefix is a safe key for BLAKE2, which has no length extension, and an API key still fits into the first block. The
        # keyed mode (RFC 7693, section 2.9) would need another block.
        self._secret = secrets.token_bytes(32)
        self._renew()
        after_fork_in_child(self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        # Every fill appends, and all leases are equally long: the first entry ends first.
        self._entries: dict[int, Entry[UserT]] = {}
        # The slots of credentials that may have several spellings, by owner and in the order of `_entries`.
        self._spellings: dict[str, dict[int, None]] = {}

    def fingerprint(self, header: str | bytes) -> Fingerprint:
        """The fingerprint of a credential, by its header in the usual spelling."""
        sent = header if isinstance(header, bytes) else _encoded(header)
        return Fingerprint(hash(header), hashlib.blake2b(self._secret + sent).digest())

    # One function, because most requests need only this one.
    def find(
        self, authorization: Sequence[str | bytes], checks_address: bool = False
    ) -> Principal[UserT] | None:
        """The cached principal for these header values, if neither the lease nor the credential has ended.

        None for a header in another spelling than :func:`usual_header`, even if its credential was verified.

        Args:
            authorization: The header values.
            checks_address: True if the caller compares the request's address with the key's networks. Otherwise a key
                with networks is not found.
        """
        if len(authorization) != 1:
            return None
        header = authorization[0]
        entry = self._entries.get(hash(header))
        # An unverified header costs a look-up in a dictionary and no cryptography.
        if entry is None:
            return None
        digest, principal, usable_until, valid_until = entry
        sent = header if isinstance(header, bytes) else _encoded(header)
        # Two headers may share a slot. The later entry stays, and the other header is verified again.
        if not hmac.compare_digest(hashlib.blake2b(self._secret + sent).digest(), digest):
            return None
        if self._clock.monotonic() >= usable_until:
            return None
        if valid_until is not None and self._clock.now() >= valid_until:
            return None
        return principal if principal.networks is None or checks_address else None

    def fill(
        self,
        fingerprint: Fingerprint,
        began: float,
        principal: Principal[UserT],
        valid_until: datetime | None,
        *,
        has_spellings: bool,
    ) -> None:
        """Cache an outcome.

        Args:
            fingerprint: The fingerprint of the credential.
            began: The monotonic clock before the first read, in seconds.
            principal: The outcome.
            valid_until: The end of the credential itself.
            has_spellings: True if other texts may be the same credential. The entries of its owner are then limited, so
                that one person cannot evict all others with spellings of a login.
        """
        entry = Entry(fingerprint.digest, principal, began + self._seconds, valid_until)
        with self._lock:
            present = self._entries.get(fingerprint.slot)
            if present is not None:
                # An entry whose reads began earlier must not replace a newer one.
                if present.usable_until > entry.usable_until:
                    return
                self._remove(fingerprint.slot)
            if has_spellings:
                slots = self._spellings.get(principal.owner.id, {})
                if len(slots) >= _MAX_SPELLINGS:
                    self._remove(next(iter(slots)))
            if len(self._entries) >= MAX_ENTRIES:
                self._remove(next(iter(self._entries)))
            self._entries[fingerprint.slot] = entry
            if has_spellings:
                self._spellings.setdefault(principal.owner.id, {})[fingerprint.slot] = None

    def _remove(self, slot: int) -> None:
        owner_id = self._entries.pop(slot).principal.owner.id
        slots = self._spellings.get(owner_id)
        if slots is not None:
            slots.pop(slot, None)
            if not slots:
                del self._spellings[owner_id]

    def clear(self) -> None:
        """Remove all entries, so that this process need not wait for its own leases."""
        with self._lock:
            self._entries.clear()
            self._spellings.clear()


def _encoded(header: str) -> bytes:
    # A header that is not ASCII was never verified; the encoding must only be unambiguous.
    return header.encode(errors="surrogatepass")


def usual_header(presented: Presented) -> str:
    """The header in the spelling of the cache: RFC 6750's own, with one space."""
    return f"Bearer {presented.reveal()}"


def seconds_to_wait(longest: timedelta | None) -> float:
    """How long a writer waits after its commit.

    Args:
        longest: The longest lease of the deployment, read from the store after the commit; zero without leases,
            None if it could not be read.
    """
    covered = MAX_LEASE if longest is None else longest
    if covered <= timedelta(0):
        return 0.0
    return covered.total_seconds() * DRIFT + _MARGIN_SECONDS


class Flight(NamedTuple):
    """A verification, shared by the requests that arrive while it runs.

    Attributes:
        key: Identifies the flight in the table.
        finished: A `threading.Event` or an `asyncio.Event`, set when the verification has succeeded or failed.
        leads: True for the request that verifies, False for a waiting request.
    """

    key: Hashable
    finished: Any
    leads: bool


class SingleFlight:
    """The running verifications of a process; safe for several threads and event loops.

    Args:
        make_event: Makes the event for waiting requests: `threading.Event` or `asyncio.Event`.
        scope: Returns the scope of requests that may wait for each other. Each event loop is a separate
            scope, so that no loop depends on another that may have ended.
    """

    def __init__(self, make_event: Callable[[], Any], scope: Callable[[], Hashable]) -> None:
        self._make_event = make_event
        self._scope = scope
        self._flights: dict[Hashable, Any] = {}
        after_fork_in_child(self._renew)

    def join(self, what: Hashable) -> Flight:
        """The flight for `what`: the running flight, or a new flight that the caller leads. End it with :meth:`finish`."""
        key = (self._scope(), what)
        event = self._make_event()
        # A single operation of the dictionary, so that only one of several threads leads.
        finished = self._flights.setdefault(key, event)
        return Flight(key, finished, leads=finished is event)

    def finish(self, flight: Flight) -> None:
        """End a flight and wake the waiting requests. Has no effect for a request that does not lead the flight."""
        if not flight.leads:
            return
        self._flights.pop(flight.key, None)
        # If its event loop was closed, no request of that loop waits any more.
        with suppress(RuntimeError):
            flight.finished.set()

    def _renew(self) -> None:
        self._flights = {}
