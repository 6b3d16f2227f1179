"""Wakes whoever waits in this process: the runner for work, and readers of a log for more of it.

Only a doorbell. The database is the truth, everybody also looks there once a second, and other processes ring no
bells here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager, suppress


class Signals:
    """The bells of one process; all its tasks share one instance."""

    def __init__(self) -> None:
        self.bell = asyncio.Event()
        """Set when the runner has something to look at."""
        self._cancelled: set[str] = set()
        self._listeners: dict[str, set[asyncio.Event]] = {}

    def run_queued(self) -> None:
        """A run was queued, or a place to run it became free."""
        self.bell.set()

    def cancel_requested(self, run_id: str) -> None:
        """Somebody wants this running run to stop."""
        self._cancelled.add(run_id)
        self.bell.set()

    def take_cancelled(self) -> frozenset[str]:
        """The ids that :meth:`cancel_requested` was called with since the last time."""
        taken = frozenset(self._cancelled)
        self._cancelled.clear()
        return taken

    def run_changed(self, run_id: str) -> None:
        """The run has more log, or another state."""
        for event in self._listeners.get(run_id, ()):
            event.set()

    @contextmanager
    def listening(self, run_id: str) -> Generator[asyncio.Event]:
        """An event that is set whenever the run changes; the listener clears it."""
        event = asyncio.Event()
        self._listeners.setdefault(run_id, set()).add(event)
        try:
            yield event
        finally:
            self._listeners[run_id].discard(event)
            if not self._listeners[run_id]:
                del self._listeners[run_id]


async def wait_for_event(event: asyncio.Event, seconds: float) -> None:
    """Return when the event is set, or after so many seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
