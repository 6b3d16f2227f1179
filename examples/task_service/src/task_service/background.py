"""Background tasks that run beside requests, from the start of their owner to its end."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, ClassVar, Self

_log = logging.getLogger(__name__)


def begin(work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
    """Start a task that runs until :func:`end`. An error that ends it earlier is logged immediately.

    Args:
        work: The coroutine, which handles expected failures itself.
        name: Its name in the log.
    """
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_log_failure)
    return task


async def end(*tasks: asyncio.Task[None], grace: float = 0.0) -> None:
    """Cancel tasks, such as those of :func:`begin`, and wait until they have ended.

    Args:
        tasks: The tasks to end.
        grace: The seconds that tasks may take to finish before they are cancelled. A driver that is cancelled while it opens a
            connection leaves the connection to the garbage collector.

    Raises:
        asyncio.CancelledError: The caller itself was cancelled; the tasks' own ends raise nothing.
    """
    if grace:
        await asyncio.wait(tasks, timeout=grace)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


class Flushing(ABC):
    """Collects data in memory, and writes it once a minute and at the end, so that no request waits for the write."""

    flush_seconds: ClassVar[float] = 60.0
    _flusher: asyncio.Task[None] | None = None

    @abstractmethod
    async def flush(self) -> None:
        """Write the collected data, or keep it for the next call if the database does not answer."""

    async def __aenter__(self) -> Self:
        self._flusher = begin(self._flush_periodically(), name=f"flush {type(self).__name__}")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._flusher is not None:
            await end(self._flusher)
            self._flusher = None
        await self.flush()

    async def _flush_periodically(self) -> None:
        while True:
            await asyncio.sleep(self.flush_seconds)
            await self.flush()


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error(
            "the background task %r failed and is off until the next start",
            task.get_name(),
            exc_info=error,
        )
