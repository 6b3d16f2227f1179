"""How far a run has come, on its way from its handler into the database.

A handler may report as often as it likes. Only the latest report is kept, and one is written each second at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from msk_auth import StoreUnavailable
from task_service.handlers import Progress

PAUSE: Final = 1.0
"""How many seconds lie between two writes of one run's progress."""

_MAX_PAUSE: Final = 5.0


@dataclass(frozen=True, slots=True)
class Pulse:
    """What a reader who follows a run needs to know of it.

    Attributes:
        is_over: True if the run has ended, or is not there any more.
        progress: What its handler has reported last; None if it has reported nothing.
    """

    is_over: bool
    progress: Progress | None


class RunProgress:
    """The latest report of one run.

    Args:
        save: Writes a report down; raises StoreUnavailable if that did not succeed.
        pause: How many seconds lie between two writes.
    """

    def __init__(
        self, save: Callable[[Progress], Awaitable[object]], *, pause: float = PAUSE
    ) -> None:
        self._save = save
        self._pause = pause
        self._latest: Progress | None = None
        self._changed = asyncio.Event()

    def report(self, progress: Progress) -> None:
        """Take a report; one that says nothing new costs nothing."""
        if progress != self._latest:
            self._latest = progress
            self._changed.set()

    async def keep_saving(self) -> None:
        """Write what is reported until cancelled. A database that does not answer is asked again."""
        pause = self._pause
        while True:
            await self._changed.wait()
            self._changed.clear()
            assert self._latest is not None  # noqa: S101 - set before the event
            try:
                await self._save(self._latest)
            except StoreUnavailable:
                self._changed.set()
                pause = min(_MAX_PAUSE, 2 * pause)
            else:
                pause = self._pause
            await asyncio.sleep(pause)
