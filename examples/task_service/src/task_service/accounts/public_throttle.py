"""How often an address may ask for what needs no login."""

from __future__ import annotations

import math
from typing import Final

from limits import RateLimitItemPerMinute
from limits.aio.storage import Storage
from limits.aio.strategies import FixedWindowRateLimiter

from msk_auth import Clock, TooManyAttempts

from .throttle import throttled_network

WINDOW_MINUTES: Final = 15

REVOCATIONS: Final = 60
"""How many keys one address may revoke by possession in a window."""

LEAK_REPORTS: Final = 300
"""How many reports one address may send in a window. GitHub gathers many matches into one."""


class PublicThrottle:
    """Counts the requests of each address for one purpose.

    Args:
        purpose: What they ask for.
        most: How many may come in a window.
        clock: The machine's own; the storage has one of its own too.
        storage: Where the counts are.
    """

    def __init__(self, purpose: str, most: int, *, clock: Clock, storage: Storage) -> None:
        self._purpose = purpose
        self._limit = RateLimitItemPerMinute(most, WINDOW_MINUTES)
        self._clock = clock
        self._limiter = FixedWindowRateLimiter(storage)

    async def count(self, address: str | None) -> None:
        """Count a request.

        Args:
            address: Where it came from; those of one IPv6 subscriber count as one.

        Raises:
            TooManyAttempts: It is one too many.
            StoreUnavailable: The storage does not answer.
        """
        identifiers = (self._purpose, throttled_network(address))
        # Read before anything is written: a refused request costs no write.
        admitted = await self._limiter.test(self._limit, *identifiers)
        if not (admitted and await self._limiter.hit(self._limit, *identifiers)):
            stats = await self._limiter.get_window_stats(self._limit, *identifiers)
            left = math.ceil(stats.reset_time - self._clock.now().timestamp())
            raise TooManyAttempts(min(max(left, 1), self._limit.get_expiry()))
