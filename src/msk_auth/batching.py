"""Look-ups that arrive together share one round trip, and each still sees whatever was committed before it came.

While no read is under way, a look-up is made at once. A look-up that comes while a read is under way waits for the next
one, which asks for all that have come by then: each key once, in one round trip.

Two rules:

- **No look-up joins a read that has begun.** A read that began before a look-up arrived may have seen the state before
  a revocation that had already returned; `docs/explanation/lease.md` has the argument.
- **No look-up waits for a read that stalls.** When the read under way has not answered within :data:`STALL_SECONDS`, the
  next one begins beside it. What is lost on a dead connection delays only the look-ups that were on it.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Final

from .core.model import ApiKey
from .core.store import READ_SECONDS

MAX_BATCH: Final = 256
"""How many keys one round trip asks for at most."""

STALL_SECONDS: Final = 0.25
"""For how long look-ups wait for the read under way before the next one begins without it."""

# How often look-ups that took too long are ended. A timer for each would cost a fifth of what a look-up costs here.
_TICK_SECONDS: Final = 0.25


class BatchedReader:
    """Gathers look-ups; of one event loop or of several.

    Args:
        find: Reads one record, in bounded time.
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
            TimeoutError: Waiting and reading took longer than :data:`~msk_auth.core.store.READ_SECONDS`.
            Exception: What the read raised, to each look-up that shared it.
        """
        queue = self._queue()
        if queue.turn is not None:
            return await queue.join(key_id)
        turn = queue.begin()
        try:
            # Without a task of its own: cancelling this look-up cancels no other.
            return await self._find(key_id)
        finally:
            queue.end(turn)

    def _queue(self) -> _Queue:
        loop = asyncio.get_running_loop()
        queue: _Queue | None = getattr(self._here, "queue", None)
        if queue is None or queue.loop is not loop:
            queue = self._here.queue = _Queue(loop, self._find_many)
        return queue


_Waiter = asyncio.Future[ApiKey | None]


class _Queue:
    """The look-ups of one event loop that wait for the next read.

    Attributes:
        turn: Identifies the read that they wait for; None while a look-up need not wait.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        find_many: Callable[[Sequence[str]], Awaitable[Sequence[ApiKey]]],
    ) -> None:
        self.loop = loop
        self.turn: object | None = None
        self._find_many = find_many
        self._waiting: dict[str, list[_Waiter]] = {}
        self._patience: asyncio.TimerHandle | None = None
        self._due: deque[tuple[float, _Waiter]] = deque()
        self._tick: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self) -> object:
        """Begin a read that later look-ups wait for."""
        turn = self.turn = object()
        return turn

    def end(self, turn: object) -> None:
        """End a read, and begin the next one if look-ups wait for it."""
        if turn is self.turn:
            self._go_on()

    async def join(self, key_id: str) -> ApiKey | None:
        """Wait for a read that has not begun."""
        # A future for each, so that cancelling one cancels no other.
        waiter: _Waiter = self.loop.create_future()
        self._waiting.setdefault(key_id, []).append(waiter)
        if self._patience is None:
            self._patience = self.loop.call_later(STALL_SECONDS, self._go_on)
        self._due.append((self.loop.time() + READ_SECONDS, waiter))
        if self._tick is None:
            self._tick = self.loop.call_later(_TICK_SECONDS, self._expire)
        return await waiter

    def _expire(self) -> None:
        """End the look-ups that took too long."""
        now = self.loop.time()
        while self._due and (self._due[0][1].done() or self._due[0][0] <= now):
            _time_out(self._due.popleft()[1])
        self._tick = self.loop.call_later(_TICK_SECONDS, self._expire) if self._due else None

    def _go_on(self) -> None:
        """Begin the next read: the one before has ended, or it stalls and is not waited for any more."""
        self.turn = None
        if self._waiting:
            # In a context of its own: what belongs to the request that happens to end now is not this one's.
            task = self.loop.create_task(
                self._read_on(self.begin()), name="msk_auth reads", context=contextvars.Context()
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._be_patient()

    async def _read_on(self, turn: object) -> None:
        try:
            while turn is self.turn and (batch := self._take()):
                self._be_patient()
                await self._read(batch)
        except asyncio.CancelledError:
            # The loop is about to end.
            _settle(self._waiting, ConnectionAbortedError("the event loop ends"))
            self._waiting = {}
            raise
        finally:
            if turn is self.turn:
                self.turn = None
                self._be_patient()

    def _be_patient(self) -> None:
        """Give the read that begins, or none, its time; those that it leaves waiting count it from now."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if self._waiting:
            self._patience = self.loop.call_later(STALL_SECONDS, self._go_on)

    def _take(self) -> dict[str, list[_Waiter]]:
        """The look-ups that have come by now, up to the limit. What comes later is not among them."""
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
            # A store of the library keeps this time by itself.
            async with asyncio.timeout(READ_SECONDS):
                found = {record.id: record for record in await self._find_many(tuple(batch))}
        except Exception as error:  # noqa: BLE001 - it is raised in each look-up of the batch
            _settle(batch, error)
            return
        except BaseException:
            _settle(batch, ConnectionAbortedError("the event loop ends"))
            raise
        for key_id, waiters in batch.items():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(found.get(key_id))


def _time_out(waiter: _Waiter) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError("the store did not answer in time"))


def _settle(batch: dict[str, list[_Waiter]], error: Exception) -> None:
    for waiters in batch.values():
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)
