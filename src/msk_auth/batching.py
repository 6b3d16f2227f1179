"""Concurrent look-ups share a round trip, and each sees every commit from before it arrived.

If no read is running, a look-up starts at once. A look-up that arrives during a read waits for the next read, which reads the
records of all waiting look-ups in one round trip, each once.

Two rules:

- **No look-up joins a read that has begun.** A read that began before a look-up arrived may have seen the state before
  a revocation that had already returned; `docs/explanation/lease.md` has the argument.
- **No look-up waits for a stalled read.** If a read has not returned within :data:`STALL_SECONDS`, the next read begins
  beside it. A dead connection delays only its own look-ups.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from .core.store import READ_SECONDS, WrongRecord


class Record(Protocol):
    """A record with an id, such as an :class:`~msk_auth.ApiKey`."""

    @property
    def id(self) -> str:
        """Unique among the records."""
        ...


RecordT = TypeVar("RecordT", bound=Record)

_LookUps: TypeAlias = "dict[asyncio.Future[RecordT | None], str]"
"""The id that each look-up waits for."""

MAX_BATCH: Final = 256
"""The maximum number of records in a round trip."""

STALL_SECONDS: Final = 0.25
"""How long look-ups wait for the running read before the next read begins beside it."""


class BatchedReader(Generic[RecordT]):
    """Batches the look-ups of one or several event loops.

    Args:
        find: Reads one record, in bounded time.
        find_many: Reads the existing records with these ids.
        may_share: Returns True if a look-up may share a read with other requests; None means always.
    """

    def __init__(
        self,
        find: Callable[[str], Awaitable[RecordT | None]],
        find_many: Callable[[Sequence[str]], Awaitable[Sequence[RecordT]]],
        may_share: Callable[[], bool] | None = None,
    ) -> None:
        self._find = find
        self._find_many = find_many
        self._may_share = may_share
        # A thread runs one loop at a time.
        self._here = threading.local()

    async def find(self, record_id: str) -> RecordT | None:
        """The record with this id, or None, from a read that begins after this call.

        Raises:
            TimeoutError: Waiting and reading took longer than :data:`~msk_auth.core.store.READ_SECONDS`.
            Exception: The error of the read, in each look-up that shared it.
        """
        if self._may_share is not None and not self._may_share():
            return await self._find(record_id)
        queue = self._queue()
        if queue.turn is not None:
            return await queue.join(record_id)
        turn = queue.begin()
        try:
            # Not in a separate task: cancelling this look-up affects no other.
            return await self._find(record_id)
        finally:
            queue.end(turn)

    def _queue(self) -> _Queue[RecordT]:
        loop = asyncio.get_running_loop()
        queue: _Queue[RecordT] | None = getattr(self._here, "queue", None)
        if queue is None or queue.loop is not loop:
            queue = self._here.queue = _Queue(loop, self._find_many)
        return queue


class _Queue(Generic[RecordT]):
    """The look-ups of one event loop that wait for the next read.

    Attributes:
        turn: Identifies the read for which they wait; None while no read runs.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        find_many: Callable[[Sequence[str]], Awaitable[Sequence[RecordT]]],
    ) -> None:
        self.loop = loop
        self.turn: object | None = None
        self._find_many = find_many
        # The ids in the order of their arrival. A future for each look-up, so that cancelling one affects no other.
        self._waiting: _LookUps[RecordT] = {}
        self._stall_timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self) -> object:
        """Begin a read. Later look-ups wait for it."""
        turn = self.turn = object()
        return turn

    def end(self, turn: object) -> None:
        """End a read, and begin the next read if look-ups wait."""
        if turn is self.turn:
            self._begin_next()

    async def join(self, record_id: str) -> RecordT | None:
        """Wait for a read that has not begun."""
        waiter: asyncio.Future[RecordT | None] = self.loop.create_future()
        self._waiting[waiter] = record_id
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(STALL_SECONDS, self._begin_next)
        late = TimeoutError("the store did not answer in time")
        time_limit = self.loop.call_later(READ_SECONDS, _settle, (waiter,), late)
        try:
            return await waiter
        finally:
            time_limit.cancel()
            self._waiting.pop(waiter, None)

    def _begin_next(self) -> None:
        """Begin the next read, because the previous read has ended or stalls."""
        self.turn = None
        self._be_patient()
        if self._waiting:
            # In a new context: this task must not see the context variables of the request that ends here.
            task = self.loop.create_task(
                self._read_on(self.begin()), name="msk_auth reads", context=contextvars.Context()
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _read_on(self, turn: object) -> None:
        try:
            while turn is self.turn and self._waiting:
                batch = dict(islice(self._waiting.items(), MAX_BATCH))
                for waiter in batch:
                    del self._waiting[waiter]
                self._be_patient()
                await self._read(batch)
        except asyncio.CancelledError:
            # The loop is about to end.
            _settle(self._waiting, ConnectionAbortedError("the event loop has ended"))
            self._waiting = {}
            raise
        finally:
            self.end(turn)

    def _be_patient(self) -> None:
        """Restart the time limit for a stalled read, for a beginning read or for none."""
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        if self._waiting:
            self._stall_timer = self.loop.call_later(STALL_SECONDS, self._begin_next)

    async def _read(self, batch: _LookUps[RecordT]) -> None:
        wanted = dict.fromkeys(batch.values())
        try:
            # The stores of the library keep this limit themselves.
            async with asyncio.timeout(READ_SECONDS):
                found = {record.id: record for record in await self._find_many(tuple(wanted))}
        except Exception as error:  # noqa: BLE001 - it is raised in each look-up of the batch
            _settle(batch, error)
            return
        except BaseException:
            _settle(batch, ConnectionAbortedError("the event loop has ended"))
            raise
        if not found.keys() <= wanted.keys():
            # The result of another statement. A missing record may exist.
            _settle(batch, WrongRecord("records"))
            return
        for waiter, record_id in batch.items():
            if not waiter.done():
                waiter.set_result(found.get(record_id))


def _settle(waiters: Iterable[asyncio.Future[RecordT | None]], error: Exception) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_exception(error)
