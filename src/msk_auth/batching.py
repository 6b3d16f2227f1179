"""Look-ups that arrive together share one round trip, and each still sees whatever was committed before it came.

While nobody reads, a look-up is made at once. Whoever comes while a read is on its way waits for the next one, which
takes everybody along who has come by then: one question for each key, in one round trip.

The one rule: **nobody joins a read that has begun.** A read that began before a look-up arrived may have seen the
state before a revocation that had already returned; `docs/explanation/lease.md` has the argument.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Final

from .core.model import ApiKey

MAX_BATCH: Final = 256
"""How many keys one round trip asks for at most."""


class BatchedReader:
    """Gathers look-ups; of one event loop or of several.

    Args:
        find: Reads one record.
        find_many: Reads those of several ids that there are.
    """

    def __init__(
        self,
        find: Callable[[str], Awaitable[ApiKey | None]],
        find_many: Callable[[Sequence[str]], Awaitable[Sequence[ApiKey]]],
    ) -> None:
        self._find = find
        self._find_many = find_many
        # A thread runs one loop at a time.
        self._here = threading.local()

    async def find(self, key_id: str) -> ApiKey | None:
        """The record with this id, or None if there is none, by a read that begins after this call.

        Raises:
            Exception: Whatever the read raised, to everybody who shared it.
        """
        queue = self._queue()
        if queue.is_reading:
            return await queue.join(key_id)
        queue.is_reading = True
        try:
            # Without a task of its own: cancelling this look-up cancels nobody else's.
            return await self._find(key_id)
        finally:
            queue.is_reading = False
            queue.read_on()

    def _queue(self) -> _Queue:
        loop = asyncio.get_running_loop()
        queue: _Queue | None = getattr(self._here, "queue", None)
        if queue is None or queue.loop is not loop:
            queue = self._here.queue = _Queue(loop, self._find_many)
        return queue


_Waiter = asyncio.Future[ApiKey | None]


class _Queue:
    """Who waits for the next read on one event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        find_many: Callable[[Sequence[str]], Awaitable[Sequence[ApiKey]]],
    ) -> None:
        self.loop = loop
        self.is_reading = False
        self._find_many = find_many
        self._waiting: dict[str, list[_Waiter]] = {}
        self._task: asyncio.Task[None] | None = None

    async def join(self, key_id: str) -> ApiKey | None:
        """Wait for a read that has not begun."""
        # A future for each, so that giving up on one gives up on no other.
        waiter: _Waiter = self.loop.create_future()
        self._waiting.setdefault(key_id, []).append(waiter)
        return await waiter

    def read_on(self) -> None:
        """Begin the next read, if anybody waits for one."""
        if not self._waiting:
            return
        self.is_reading = True
        # In a context of its own: what belongs to the request that happens to end now is not this one's.
        self._task = self.loop.create_task(
            self._read_for_all(), name="msk_auth reads", context=contextvars.Context()
        )

    async def _read_for_all(self) -> None:
        try:
            while batch := self._take():
                await self._read(batch)
        finally:
            self.is_reading = False
            # Only if this task itself was cancelled: its loop is about to end.
            _settle(self._waiting, ConnectionAbortedError("nobody reads any more"))
            self._waiting = {}

    def _take(self) -> dict[str, list[_Waiter]]:
        """Everybody who has come by now, up to the limit. Whoever comes later is not among them."""
        batch = dict(islice(self._waiting.items(), MAX_BATCH))
        for key_id in batch:
            del self._waiting[key_id]
        wanted = {
            key_id: waiters
            for key_id, waiters in batch.items()
            if not all(waiter.done() for waiter in waiters)
        }
        return wanted or (self._take() if self._waiting else {})

    async def _read(self, batch: dict[str, list[_Waiter]]) -> None:
        try:
            found = {record.id: record for record in await self._find_many(tuple(batch))}
        except Exception as error:  # noqa: BLE001 - it goes to whoever asked
            _settle(batch, error)
            return
        except BaseException:
            _settle(batch, ConnectionAbortedError("nobody reads any more"))
            raise
        for key_id, waiters in batch.items():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(found.get(key_id))


def _settle(batch: dict[str, list[_Waiter]], error: Exception) -> None:
    for waiters in batch.values():
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)
