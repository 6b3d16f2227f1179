"""Waiting for what nothing announces, such as a row, a process's end or what is written after an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


async def eventually(condition: Callable[[], object]) -> None:
    """Wait until a function or a coroutine returns what is true, for a minute at most."""

    async def holds() -> object:
        found = condition()
        return await found if isinstance(found, Awaitable) else found

    async with asyncio.timeout(60):
        while not await holds():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.01)
