"""Reads the machine's clocks; no other module does."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Final, Protocol

# CLOCK_MONOTONIC stands still while a Linux machine sleeps; CLOCK_BOOTTIME does not.
_MONOTONIC: Final[Callable[[], float]] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic
)


class Clock(Protocol):
    """The source of time; for tests use `msk_auth.testing.FrozenClock`."""

    def now(self) -> datetime:
        """The current time, aware and in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds since a fixed time; never goes back, and continues while the machine sleeps."""
        ...

    def sleep(self, seconds: float) -> None:
        """Return when `seconds` have passed by :meth:`monotonic`, or a little later."""
        ...

    async def async_sleep(self, seconds: float) -> None:
        """Wait at least this long, without blocking the event loop."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        """See :class:`Clock`."""
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        """See :class:`Clock`."""
        end = self.monotonic() + seconds
        while (remaining := end - self.monotonic()) > 0:
            time.sleep(remaining)

    async def async_sleep(self, seconds: float) -> None:
        """See :class:`Clock`."""
        import asyncio  # not before a loop runs: it takes long to load

        end = self.monotonic() + seconds
        while (remaining := end - self.monotonic()) > 0:  # noqa: ASYNC110 - it waits for the time itself
            await asyncio.sleep(remaining)

    # Not wrapped in a Python function, since every request calls it.
    monotonic: staticmethod[[], float] = staticmethod(_MONOTONIC)
