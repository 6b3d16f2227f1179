"""What a process does beside its requests for as long as something is open: begun with it, and ended with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

_log = logging.getLogger(__name__)


def begin(work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
    """Let something run until :func:`end`. A mistake that ends it earlier is logged at that moment.

    Args:
        work: What to do; it handles the failures it expects.
        name: What the log calls it.
    """
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_tell)
    return task


async def end(task: asyncio.Task[None]) -> None:
    """Cancel what :func:`begin` began, and wait until it has ended.

    Raises:
        asyncio.CancelledError: The caller itself was cancelled; the task's own end raises nothing.
    """
    task.cancel()
    await asyncio.wait([task])


def _tell(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("%s has stopped working until the next start", task.get_name(), exc_info=error)
