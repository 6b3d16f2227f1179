"""The bounded cache of verified credentials, and the wait that keeps revocation exact.

A process may reuse a verification for at most `duration`, measured on the monotonic clock from *before* its reads. A call
that ends access (revokes a key, disables an owner, ends a session) commits first, and then waits until every lease that
may have been granted before the commit has ended. So a verification that starts after `revoke` returned finds either no
entry, or one whose reads began after the commit. No message is sent to other processes, so none can be lost.

The rules, each of which is needed (`docs/explanation/lease.md` has the argument, `tests/lease/` the mutants):

1. A lease starts before the first read of the verification it covers.
2. The end of a lease is checked after the entry was found, just before the entry is used.
3. Only successes are cached, each until its own end (`valid_until`) at the latest.
4. The wait covers the longest lease of the deployment, read from the register in the store *after* the commit.
5. A process grants leases only while it knows that the register lists it: it wrote its entry within the last minute, and
   saw it there within the last tenth of a second before the reads.
6. A process that cannot read the longest lease waits for `MAX_LEASE`.
7. A process that uses leases waits at least for its own, even if the register does not list it.
8. A process is removed from the register, and not waited for, only after its mark was observed unchanged for twice as long as
   an entry is valid, and one lease more. Of the time between two reads no more counts than an entry is valid.

`msk_auth._async.leases` keeps rules 1 and 4 to 8: what has to wait is there, and nothing here blocks or awaits.

Of several requests with the same credential one verifies it, and the others wait for the entry that it caches. That saves
reads and decides nothing: a request that has waited looks for the entry of a lease, and verifies the credential itself if
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
"""The longest lease that can be configured, and the time to wait if the longest lease in use is unknown."""

MAX_ENTRIES: Final = 10_000
"""How many verifications are kept; each takes about 1 KiB. A full cache drops the entry that ends first."""

_MARGIN_SECONDS: Final = 0.005

DRIFT: Final = 1.01
"""Clocks may run at rates that differ by up to one percent."""

# More than a person has sessions at a time, and too few to matter among all entries.
_MAX_SPELLINGS: Final = 64


class Fingerprint(NamedTuple):
    """What identifies a credential within one cache.

    Attributes:
        slot: The place of its entry: Python's own hash of the usual header. It finds an entry and proves nothing.
        digest: A keyed hash of that header's exact bytes, which proves that the entry belongs to it.
    """

    slot: int
    digest: bytes


class Entry(NamedTuple, Generic[UserT]):
    """A credential that was verified.

    Attributes:
        digest: That of its fingerprint.
        principal: The outcome.
        usable_until: On the monotonic clock, in seconds: the end of the lease.
        valid_until: On the wall clock: when the key, token or session itself ends; None means it does not.
    """

    digest: bytes
    principal: Principal[UserT]
    usable_until: float
    valid_until: datetime | None


class LeaseCache(Generic[UserT]):
    """The cache of one process; safe to use from several threads. An entry takes about 1 KiB.

    A credential is found by a keyed hash of `Bearer <credential>`, so the cache holds no key and no token, and each
    credential has one entry at most, however its header is spelled. Where the credential itself may have several spellings, its
    owner's logins have 64 entries together. A forked child begins with no entry.

    Args:
        duration: How long an entry may be used; more than zero and at most `MAX_LEASE`.
        clock: Where the time comes from.

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
        # A prefix keys BLAKE2 safely, which has no length extension, and an API key still fits into the first block. The
        # keyed mode (RFC 7693, section 2.9) would need a block more.
        self._secret = secrets.token_bytes(32)
        self._renew()
        after_fork_in_child(self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        # Every fill goes to the end, and all leases are equally long: the first entry is the one that ends first.
        self._entries: dict[int, Entry[UserT]] = {}
        # The slots of the credentials that may have several spellings, by owner and in the order of `_entries`.
        self._spellings: dict[str, dict[int, None]] = {}

    def fingerprint(self, header: str | bytes) -> Fingerprint:
        """What identifies a credential here, by its header in the usual spelling."""
        sent = header if isinstance(header, bytes) else _encoded(header)
        return Fingerprint(hash(header), hashlib.blake2b(self._secret + sent).digest())

    # In one function, because most requests need nothing else.
    def find(
        self, authorization: Sequence[str | bytes], checks_address: bool = False
    ) -> Principal[UserT] | None:
        """The principal that was verified for these header values, if neither the lease nor the credential has ended.

        None for a header in another spelling than :func:`usual_header`, even if its credential was verified.

        Args:
            authorization: The header values.
            checks_address: Whether the caller holds the address of the request against the key's networks. Otherwise a key
                that has networks is not found.
        """
        if len(authorization) != 1:
            return None
        header = authorization[0]
        entry = self._entries.get(hash(header))
        # An unverified header costs one look-up in a dictionary and no cryptography.
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
        """Keep an outcome.

        Args:
            fingerprint: Of the credential.
            began: The monotonic clock before the first read, in seconds.
            principal: The outcome.
            valid_until: When the credential itself ends.
            has_spellings: Whether other texts may be the same credential. The entries of its owner are then bounded, so
                that one person cannot push out all others with spellings of one login.
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

    def __len__(self) -> int:
        return len(self._entries)


def _encoded(header: str) -> bytes:
    # A header that is not ASCII was never verified; the encoding only has to be unambiguous.
    return header.encode(errors="surrogatepass")


def usual_header(presented: Presented) -> str:
    """The header in the spelling under which a credential is kept: RFC 6750's own, with one space."""
    return f"Bearer {presented.reveal()}"


def seconds_to_wait(longest: timedelta | None) -> float:
    """How long a writer waits after its commit.

    Args:
        longest: The longest lease of the deployment, as read from the store after the commit; zero if none is used,
            None if it could not be read.
    """
    covered = MAX_LEASE if longest is None else longest
    if covered <= timedelta(0):
        return 0.0
    return covered.total_seconds() * DRIFT + _MARGIN_SECONDS


class Flight(NamedTuple):
    """One verification, shared by the requests that arrive while it runs.

    Attributes:
        key: Identifies it in the table.
        finished: A `threading.Event` or an `asyncio.Event`, set when the verification has succeeded or failed.
        leads: True for the request that verifies, False for one that waits.
    """

    key: Hashable
    finished: Any
    leads: bool


class SingleFlight:
    """The verifications that run in one process; safe to use from several threads and event loops.

    Args:
        make_event: Makes what the other requests wait for: `threading.Event` or `asyncio.Event`.
        scope: Returns what the requests that may wait for each other have in common. Each event loop is a scope of its
            own, so that no loop depends on whether another one still runs.
    """

    def __init__(self, make_event: Callable[[], Any], scope: Callable[[], Hashable]) -> None:
        self._make_event = make_event
        self._scope = scope
        self._flights: dict[Hashable, Any] = {}
        after_fork_in_child(self._renew)

    def join(self, what: Hashable) -> Flight:
        """The flight for `what`: the one that runs, or a new one that the caller leads. End it with :meth:`finish`."""
        key = (self._scope(), what)
        event = self._make_event()
        # One operation of the dictionary, so that one of several threads leads.
        finished = self._flights.setdefault(key, event)
        return Flight(key, finished, leads=finished is event)

    def finish(self, flight: Flight) -> None:
        """End a flight and wake the requests that wait for it. Has no effect for a request that does not lead it."""
        if not flight.leads:
            return
        self._flights.pop(flight.key, None)
        # If its event loop was closed, nothing can be woken, and no request of that loop waits any more.
        with suppress(RuntimeError):
            flight.finished.set()

    def _renew(self) -> None:
        self._flights = {}
