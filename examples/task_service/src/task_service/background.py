"""Background tasks that run beside requests, from the start of their owner to its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

_log = logging.getLogger(__name__)


def begin(work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
    """Start a task that runs until :func:`end`. An error that ends it earlier is logged at once.

    Args:
        work: The coroutine; it handles the failures it expects.
        name: Its name in the log.
    """
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_log_failure)
    return task


async def end(task: asyncio.Task[None]) -> None:
    """Cancel a task of :func:`begin`, and wait until it has ended.

    Raises:
        asyncio.CancelledError: The caller itself was cancelled; the task's own end raises nothing.
    """
    task.cancel()
    await asyncio.wait([task])


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error(
            "the background task %r failed and is off until the next start",
            task.get_name(),
            exc_info=error,
        )
