"""The bounded cache of verified credentials, and the wait that keeps revocation exact.

A process may reuse what it verified for at most `duration`, measured on the monotonic clock from *before* the
reads began. Whoever narrows access (revokes a key, disables an owner, ends a session) commits first and then waits
until every lease that may have been granted before the commit has run out; only then does it return. So a
verification that starts after `revoke` returned finds either no entry, or one whose reads began after the commit.
Nothing is ever sent to other processes, so nothing can be lost on the way.

The rules, each of which is needed (`docs/explanation/lease.md` has the argument, `tests/lease/` the mutants):

1. A lease starts before the first read of the verification it covers.
2. It is checked after the entry was found, just before the entry is used.
3. Only successes are cached, each until its own end (`valid_until`) at the latest.
4. The wait covers the longest lease of the deployment, read from the store *after* the commit.
5. A process records its own lease in the store before its first use of it.
6. A process that cannot learn the longest lease waits for `MAX_LEASE`.

Leases are an application of C. Gray and D. Cheriton, "Leases" (1989), with the writer waiting.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, Generic, NamedTuple

from .clock import Clock
from .core.credentials import MAX_HEADER_LENGTH
from .core.errors import ConfigurationError
from .core.model import Principal, UserT

MAX_LEASE: Final = timedelta(seconds=5)
"""The longest lease that can be configured, and what is waited for when the longest in use is not known."""

# How much longer than the lease the writer waits: clocks may run at rates that differ by up to one percent.
_DRIFT: Final = 1.01
_MARGIN_SECONDS: Final = 0.005


class Fingerprint(NamedTuple):
    """What identifies the header of a request within one cache.

    Attributes:
        slot: Where its entry is kept: Python's own hash of the header. It finds, and proves nothing.
        digest: A keyed hash of its exact bytes, which proves that the entry is its own.
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

    Credentials are found by a keyed hash of their exact bytes, so the cache holds no key and no token.

    Args:
        duration: How long an entry may be used; more than zero and at most `MAX_LEASE`.
        clock: Where the time comes from.
        max_entries: How many entries are kept. When it is full, the one that ends first goes.

    Raises:
        ConfigurationError: A setting is out of range.
    """

    def __init__(self, duration: timedelta, *, clock: Clock, max_entries: int) -> None:
        if not timedelta(0) < duration <= MAX_LEASE:
            raise ConfigurationError(
                f"A lease must be longer than 0 and at most {MAX_LEASE.total_seconds():g} seconds,"
                " such as timedelta(milliseconds=250). Leave it out to have none."
            )
        if max_entries < 1:
            raise ConfigurationError("lease_entries must be at least 1.")
        self.duration = duration
        self._clock = clock
        self._seconds = duration.total_seconds()
        self._max_entries = max_entries
        # In front of what is digested it keys BLAKE2, which knows no length extension, and leaves most keys to its first
        # block; the key of the keyed mode (RFC 7693, section 2.9) takes a block of its own.
        self._secret = secrets.token_bytes(32)
        self._lock = threading.Lock()
        # Every fill goes to the end, and all leases are equally long: the first entry is the one that ends first.
        self._entries: dict[int, Entry[UserT]] = {}

    def fingerprint(self, authorization: Sequence[str | bytes]) -> Fingerprint | None:
        """What identifies these header values here; None if they are none that could ever have been accepted."""
        if len(authorization) != 1 or len(authorization[0]) > MAX_HEADER_LENGTH:
            return None
        header = authorization[0]
        sent = header if isinstance(header, bytes) else _encoded(header)
        return Fingerprint(hash(header), hashlib.blake2b(self._secret + sent).digest())

    # All in one place: this is what most requests come to.
    def find(self, authorization: Sequence[str | bytes]) -> Principal[UserT] | None:
        """What was verified for these header values, if neither the lease nor the credential has ended."""
        if len(authorization) != 1:
            return None
        header = authorization[0]
        entry = self._entries.get(hash(header))
        # What nobody verified, garbage above all, costs one look into a dictionary and no cryptography.
        if entry is None:
            return None
        digest, principal, usable_until, valid_until = entry
        sent = header if isinstance(header, bytes) else _encoded(header)
        # Two headers may share a slot: the later fill has it, and the other one is verified anew.
        if not hmac.compare_digest(hashlib.blake2b(self._secret + sent).digest(), digest):
            return None
        if self._clock.monotonic() >= usable_until:
            return None
        if valid_until is not None and self._clock.now() >= valid_until:
            return None
        return principal

    def fill(
        self,
        fingerprint: Fingerprint,
        principal: Principal[UserT],
        *,
        began: float,
        valid_until: datetime | None,
    ) -> None:
        """Keep an outcome.

        Args:
            fingerprint: Of the credential.
            principal: The outcome.
            began: The monotonic clock before the first read, in seconds.
            valid_until: When the credential itself ends.
        """
        entry = Entry(fingerprint.digest, principal, began + self._seconds, valid_until)
        with self._lock:
            present = self._entries.get(fingerprint.slot)
            # A fill whose reads began earlier must not take the place of what is known by now.
            if present is not None and present.usable_until > entry.usable_until:
                return
            self._entries.pop(fingerprint.slot, None)
            if len(self._entries) >= self._max_entries:
                del self._entries[next(iter(self._entries))]
            self._entries[fingerprint.slot] = entry

    def clear(self) -> None:
        """Forget everything: what this process narrowed it need not wait for."""
        with self._lock:
            self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)


def _encoded(header: str) -> bytes:
    # What is not ASCII was never verified, so any encoding will do that tells all of it apart.
    return header.encode(errors="surrogatepass")


def seconds_to_wait(longest: timedelta | None) -> float:
    """How long a writer waits after its commit.

    Args:
        longest: The longest lease of the deployment, as read from the store after the commit; zero if none is used,
            None if it could not be read.
    """
    covered = MAX_LEASE if longest is None else longest
    if covered <= timedelta(0):
        return 0.0
    return covered.total_seconds() * _DRIFT + _MARGIN_SECONDS
