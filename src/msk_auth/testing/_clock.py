"""A clock that stands still until a test advances it."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta


class FrozenClock:
    """A :class:`~msk_auth.Clock` for tests: time passes only by :meth:`advance`, and sleeping takes no real time.

    Args:
        at: The moment at which it begins.

    Raises:
        ValueError: `at` has no time zone.
    """

    def __init__(self, at: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        if at.tzinfo is None:
            raise ValueError("at has no time zone. Write datetime(…, tzinfo=UTC).")
        self._lock = threading.Lock()
        self._began = at.astimezone(UTC)
        self._passed = timedelta(0)

    def now(self) -> datetime:
        """See :class:`~msk_auth.Clock`."""
        return self._began + self._passed

    def monotonic(self) -> float:
        """The seconds that have passed since this clock began."""
        return self._passed.total_seconds()

    def advance(self, by: timedelta) -> datetime:
        """Let time pass.

        Args:
            by: How much; not negative.

        Returns:
            The new moment.

        Raises:
            ValueError: Time would go back.
        """
        if by < timedelta(0):
            raise ValueError("time does not go back")
        with self._lock:
            self._passed += by
        return self.now()

    def sleep(self, seconds: float) -> None:
        """Advance the clock at once."""
        self.advance(timedelta(seconds=seconds))

    async def async_sleep(self, seconds: float) -> None:
        """Advance the clock at once, and let other tasks run."""
        self.advance(timedelta(seconds=seconds))
        await asyncio.sleep(0)
