"""How often a password may be guessed.

Three windows of 15 minutes count wrong passwords: for one account from one address, for one address, and for one
account from anywhere (at most 100, NIST SP 800-63B-4, section 3.2.2). An attempt counts before it is checked, so a
storm of parallel guesses is worth no more than the same guesses one by one; a right password takes its count back. An
attempt that is refused is not counted and writes nothing: the names that a refused address tries leave no rows.
Accounts that do not exist are counted like those that do. What is counted is named by a keyed digest: people type their
password where the name belongs, and it must not be found in a database or in Redis.
"""

from __future__ import annotations

import hmac
import math
import secrets
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final, TypeAlias

from limits import RateLimitItem, RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage, Storage
from limits.aio.strategies import FixedWindowRateLimiter

from msk_auth import Clock, StoreUnavailable, TooManyAttempts

WINDOW_MINUTES: Final = 15
PER_PAIR: Final = 10
PER_ADDRESS: Final = 50
PER_ACCOUNT: Final = 100

_Limit: TypeAlias = tuple[RateLimitItem, tuple[str, ...]]


class LoginThrottle:
    """Counts attempts to log in.

    Args:
        clock: The machine's own; the storage has one of its own too.
        storage: Where the counts are; in this process's memory by default.
        key: For the digests; the same in all processes that share a storage.

    Every method raises StoreUnavailable when the storage does not answer: what cannot be counted is not tried.
    """

    def __init__(
        self, clock: Clock, storage: Storage | None = None, *, key: bytes | None = None
    ) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(32) if key is None else key
        self._limiter = FixedWindowRateLimiter(MemoryStorage() if storage is None else storage)

    async def attempt(self, account: str, address: str | None) -> None:
        """Count an attempt before the password is looked at.

        Args:
            account: What was typed as the name, normalised.
            address: Where it came from.

        Raises:
            TooManyAttempts: There were too many. The password must not be looked at.
        """
        limits = self._limits(account, address)
        by_pair, by_address, by_account = limits
        # Read before anything is written, and the address first: it is refused for every name it tries.
        for limit, identifiers in (by_address, by_pair, by_account):
            if not await self._limiter.test(limit, *identifiers):
                raise TooManyAttempts(await self._seconds_left(limit, identifiers))
        # Parallel attempts may all have passed the test; counting decides.
        for limit, identifiers in limits:
            if not await self._limiter.hit(limit, *identifiers):
                # Those after it are not counted: hammering on one's own closed door closes no other.
                raise TooManyAttempts(await self._seconds_left(limit, identifiers))

    async def succeeded(self, account: str, address: str | None) -> None:
        """The password was right: forget all attempts of this account from this address, and this one elsewhere."""
        (pair, identifiers), *others = self._limits(account, address)
        await self._limiter.clear(pair, *identifiers)
        await self._take_back(others)

    async def withdrawn(self, account: str, address: str | None) -> None:
        """The password was not looked at after all: forget this attempt."""
        with suppress(StoreUnavailable):
            # It may be the reason why nothing was looked at. The count is forgotten with its window.
            await self._take_back(self._limits(account, address))

    async def _take_back(self, limits: Iterable[_Limit]) -> None:
        for limit, identifiers in limits:
            await self._limiter.hit(limit, *identifiers, cost=-1)

    async def _seconds_left(self, limit: RateLimitItem, identifiers: tuple[str, ...]) -> int:
        stats = await self._limiter.get_window_stats(limit, *identifiers)
        left = math.ceil(stats.reset_time - self._clock.now().timestamp())
        return min(max(left, 1), limit.get_expiry())

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
        # With their lengths, so that no two lists of values look alike.
        told = "".join(f"{len(value)}:{value}" for value in (kind, *values))
        return kind, hmac.digest(self._key, told.encode("utf-8", "replace"), "sha256").hex()[:40]


def throttled_network(address: str | None) -> str:
    """What counts as one address: an IPv4 address, or the /64 that one subscriber of IPv6 can choose from."""
    try:
        parsed = ip_address(address or "")
    except ValueError:
        return "unknown"
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ip_network((int(parsed), 64), strict=False))
    return str(parsed)
