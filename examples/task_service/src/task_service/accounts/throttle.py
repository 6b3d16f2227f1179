"""How often a client may guess passwords, and call the routes that need no login.

Three windows of 15 minutes count wrong passwords: for one account from one address, for one address, and for one
account from anywhere (at most 100, NIST SP 800-63B-4, section 3.2.2). An attempt is counted before the password is
verified, so parallel guesses gain nothing over sequential ones; a correct password removes its count. Accounts that do
not exist are counted like those that do. Counts are named by a keyed digest: users mistakenly type their password as their
name, and neither the database nor Redis may hold it.

Everything else that a client without a login can make the service write, such as the audit entry of a refused login at the identity
provider, has a window of its own for each address. A request over a limit is not counted and writes nothing.
"""

from __future__ import annotations

import hmac
import math
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final, TypeAlias

from limits import RateLimitItem, RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage, Storage
from limits.aio.strategies import FixedWindowRateLimiter

from msk_auth import Clock
from msk_auth.errors import StoreUnavailable, TooManyAttempts

WINDOW_MINUTES: Final = 15
PER_PAIR: Final = 10
PER_ADDRESS: Final = 50
PER_ACCOUNT: Final = 100

REVOCATIONS: Final = 60
"""How many keys one address may revoke by possession in a window."""

LEAK_REPORTS: Final = 300
"""How many reports one address may send in a window. GitHub gathers many matches into one."""

REFUSED_LOGINS: Final = 50
"""How many refused logins at the identity provider one address may have in a window."""

STRAY_ANSWERS: Final = 50
"""How many answers of the identity provider one address may send in a window to logins that its browsers did not begin."""

_Limit: TypeAlias = tuple[RateLimitItem, tuple[str, ...]]


class _Windows:
    """Tests every limit before it counts, so that a refused request writes nothing."""

    def __init__(self, clock: Clock, storage: Storage) -> None:
        self._clock = clock
        self._limiter = FixedWindowRateLimiter(storage)

    async def check(self, limits: Iterable[_Limit]) -> None:
        for limit, identifiers in limits:
            if not await self._limiter.test(limit, *identifiers):
                raise TooManyAttempts(await self._seconds_left(limit, identifiers))

    async def count(self, limits: Sequence[_Limit]) -> None:
        await self.check(limits)
        # Parallel requests may all have passed the test; counting decides.
        for number, (limit, identifiers) in enumerate(limits):
            if not await self._limiter.hit(limit, *identifiers):
                # A refused client must not use up the limits of others, such as that of its address.
                await self.uncount(limits[:number])
                raise TooManyAttempts(await self._seconds_left(limit, identifiers))

    async def uncount(self, limits: Iterable[_Limit]) -> None:
        for limit, identifiers in limits:
            await self._limiter.hit(limit, *identifiers, cost=-1)

    async def clear(self, limit: _Limit) -> None:
        item, identifiers = limit
        await self._limiter.clear(item, *identifiers)

    async def _seconds_left(self, limit: RateLimitItem, identifiers: tuple[str, ...]) -> int:
        stats = await self._limiter.get_window_stats(limit, *identifiers)
        left = math.ceil(stats.reset_time - self._clock.now().timestamp())
        return min(max(left, 1), limit.get_expiry())


class LoginThrottle:
    """Counts attempts to log in.

    Args:
        clock: The machine's own; the storage has one of its own too.
        storage: Holds the counts; this process's memory by default.
        key: For the digests; the same in all processes that share a storage.

    Every method raises StoreUnavailable when the storage does not answer: an attempt that cannot be counted is refused.
    """

    def __init__(
        self, clock: Clock, storage: Storage | None = None, *, key: bytes | None = None
    ) -> None:
        self._key = secrets.token_bytes(32) if key is None else key
        self._windows = _Windows(clock, MemoryStorage() if storage is None else storage)

    async def attempt(self, account: str, address: str | None) -> None:
        """Count an attempt before its password is verified.

        Args:
            account: The typed name, normalised.
            address: The client's address.

        Raises:
            TooManyAttempts: There were too many. The caller must not verify the password.
        """
        by_pair, by_address, by_account = self._limits(account, address)
        # The address first: a refused address is refused for every name, and writes none of them.
        await self._windows.count((by_address, by_pair, by_account))

    async def succeeded(self, account: str, address: str | None) -> None:
        """Clear the attempts on this account from this address, and remove this attempt from the other counts."""
        pair, *others = self._limits(account, address)
        await self._windows.clear(pair)
        await self._windows.uncount(others)

    async def withdraw(self, account: str, address: str | None) -> None:
        """Remove an attempt whose password was not verified."""
        with suppress(StoreUnavailable):
            # The storage may be the reason why it was not verified. The count then ends with its window.
            await self._windows.uncount(self._limits(account, address))

    def _limits(self, account: str, address: str | None) -> list[_Limit]:
        network = throttled_network(address)
        return [
            (
                RateLimitItemPerMinute(PER_PAIR, WINDOW_MINUTES),
                self._name("pair", account, network),
            ),
            (RateLimitItemPerMinute(PER_ADDRESS, WINDOW_MINUTES), self._name("address", network)),
            (RateLimitItemPerMinute(PER_ACCOUNT, WINDOW_MINUTES), self._name("account", account)),
        ]

    def _name(self, kind: str, *values: str) -> tuple[str, ...]:
        # Prefixed with their lengths, so that two lists of values never give the same text.
        text = "".join(f"{len(value)}:{value}" for value in (kind, *values))
        return kind, hmac.digest(self._key, text.encode("utf-8", "replace"), "sha256").hex()[:40]


class PublicThrottle:
    """Counts the requests of each address for one purpose.

    Args:
        purpose: Names the count.
        most: How many requests one address may send in a window.
        clock: The machine's own; the storage has one of its own too.
        storage: Holds the counts.
    """

    def __init__(self, purpose: str, most: int, *, clock: Clock, storage: Storage) -> None:
        self._purpose = purpose
        self._limit = RateLimitItemPerMinute(most, WINDOW_MINUTES)
        self._windows = _Windows(clock, storage)

    async def check(self, address: str | None) -> None:
        """Raise as :meth:`count`, but count nothing: for requests of which only the refused ones are counted."""
        await self._windows.check([self._limit_of(address)])

    async def count(self, address: str | None) -> None:
        """Count a request.

        Args:
            address: The client's address; those of one IPv6 subscriber count as one.

        Raises:
            TooManyAttempts: The address has reached its limit.
            StoreUnavailable: The storage does not answer.
        """
        await self._windows.count([self._limit_of(address)])

    def _limit_of(self, address: str | None) -> _Limit:
        return self._limit, (self._purpose, throttled_network(address))


@lru_cache(maxsize=1024)
def throttled_network(address: str | None) -> str:
    """The network that counts as one client: an IPv4 address, or the /64 of one IPv6 subscriber."""
    try:
        parsed = ip_address(address or "")
    except ValueError:
        return "unknown"
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ip_network((int(parsed), 64), strict=False))
    return str(parsed)
