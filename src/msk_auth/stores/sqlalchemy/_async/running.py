"""The handwritten differences between the asynchronous and the blocking store; `_sync.running` has the same names."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.util import await_only, greenlet_spawn

from msk_auth.core.events import KeyEvent
from msk_auth.stores.sqlalchemy._servers import (
    CANCEL_SECONDS,
    CURRENT,
    Use,
    can_cancel,
    no_answer,
    no_turn,
)

# Where the source of the generated twin imports them from.
__all__ = ["AsyncConnection", "AsyncEngine", "AsyncSession"]

T = TypeVar("T")

outside_forks: Final = nullcontext
"""The threads of an asynchronous driver pass the gate with each call: see `_sqlite`."""


class Uses:
    """The uses of the database by a store, each in a separate task."""

    def __init__(self) -> None:
        # All running tasks, since a loop references its tasks weakly. Tasks that end a use have no use.
        self._tasks: dict[asyncio.Task[Any], Use | None] = {}

    async def within(self, seconds: float | None, work: Callable[[], T]) -> T:
        """The result of code that uses a blocking connection of an asynchronous engine; late code is abandoned.

        If the caller is cancelled, the task continues until the deadline: a cancelled driver may wait for its server for
        as long again, and an old SQLAlchemy that is cancelled while it returns a connection leaves it to the garbage
        collector. Without a deadline the task continues only for a moment: a hook of the application may wait for ever, and the
        other writers with it.

        Args:
            seconds: The time limit; None means that no server can fall silent.
            work: The code. It must return its connection when it fails.

        Raises:
            TimeoutError: There was no result in time.
        """
        use = Use()
        task = self._start(_use(use, work), use)
        try:
            await asyncio.wait((task,), timeout=seconds)
        except asyncio.CancelledError:
            self._start(_end(task, use, CANCEL_SECONDS if seconds is None else seconds))
            raise
        if not task.done():
            self._start(_end(task, use, 0.0))
            raise no_answer()
        return task.result()

    async def end(self) -> None:
        """Let the uses on this event loop end, within moments.

        The application is about to dispose of the engine. Connections that return afterwards would stay open in the pool.
        """
        loop = asyncio.get_running_loop()
        # A copy: another event loop may begin a use meanwhile.
        uses = self._tasks.copy().items()
        ends = (
            _end(task, use, CANCEL_SECONDS)
            for task, use in uses
            if use is not None and task.get_loop() is loop
        )
        await asyncio.gather(*ends)

    def _start(self, work: Coroutine[Any, Any, T], use: Use | None = None) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = use
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if not task.cancelled():
            # Perhaps no caller waits for the exception, and asyncio need not log it.
            task.exception()


async def _use(use: Use, work: Callable[[], T]) -> T:
    CURRENT.set(use)
    # One greenlet for checking out, all statements and checking in: each greenlet costs a tenth of a read.
    return await greenlet_spawn(work)


async def _end(task: asyncio.Task[Any], use: Use, seconds: float) -> None:
    """End a task after this time."""
    await asyncio.wait((task,), timeout=seconds)
    if task.done():
        return
    use.is_late = True
    if can_cancel(use.driver):
        with suppress(Exception):
            await use.driver.cancel_safe(timeout=CANCEL_SECONDS)
        await asyncio.wait((task,), timeout=CANCEL_SECONDS)
    if use.shut_down():
        await asyncio.wait((task,), timeout=CANCEL_SECONDS)
    # The task waits for the pool, or for a hook of the application; or the driver ends when it is cancelled.
    task.cancel()
    await asyncio.wait((task,), timeout=CANCEL_SECONDS)


class Turns:
    """Lets the writers of an event loop take turns. The database separates writers of several loops."""

    def __init__(self) -> None:
        # A lock belongs to one event loop.
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )

    @contextmanager
    def take(self, seconds: float) -> Generator[None]:
        """Wait for a turn, in a greenlet, and keep it during a block.

        Raises:
            TimeoutError: The wait took longer than `seconds`.
        """
        turn = self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        try:
            await_only(asyncio.wait_for(turn.acquire(), seconds))
        except TimeoutError as error:
            raise no_turn() from error
        try:
            yield
        finally:
            turn.release()


def call_on_change(
    on_change: Callable[[AsyncConnection, KeyEvent], Awaitable[None]],
    connection: Connection,
    events: Sequence[KeyEvent],
) -> None:
    """Call the hook of the application for each event, in order, and wait for it in a greenlet."""
    awaited = AsyncConnection(AsyncEngine(connection.engine), connection)
    for event in events:
        await_only(on_change(awaited, event))
