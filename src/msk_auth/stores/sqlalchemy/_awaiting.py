"""What the asynchronous store does otherwise than the blocking one; :mod:`._blocking` has the same names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from typing import Any, Concatenate, Final, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection

from msk_auth.core.events import KeyEvent

from ._deadlines import CANCEL_SECONDS, CURRENT, Use, can_cancel, no_answer

P = ParamSpec("P")
T = TypeVar("T")

# A loop holds its tasks weakly.
_tasks: Final[set[asyncio.Task[Any]]] = set()


async def run(
    connection: AsyncConnection,
    work: Callable[Concatenate[Connection, P], T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Call a function with the synchronous connection."""
    return await connection.run_sync(work, *args, **kwargs)


async def within(
    seconds: float, work: Callable[[], Coroutine[Any, Any, T]], *, ends_with_caller: bool
) -> T:
    """The result of `work`, which is abandoned when it is late.

    A driver that is cancelled may wait for its server for as long again, so `work` has a task of its own. When it is late,
    its connection is shut down, and it ends by itself.

    Args:
        seconds: How long it may take.
        work: What to do. It gives its connection back when it fails.
        ends_with_caller: Whether `work` is cancelled with its caller. Otherwise it ends by itself, within the same time, and
            its connection stays usable.

    Raises:
        TimeoutError: There is no result by then.
    """
    use = Use()
    task = _start(_begin(use, work))
    timer = asyncio.get_running_loop().call_later(seconds, _abandon, task, use)
    task.add_done_callback(lambda _: timer.cancel())
    try:
        await asyncio.wait((task,), timeout=seconds)
    except asyncio.CancelledError:
        if ends_with_caller:
            task.cancel()
        raise
    if not task.done() or (use.is_late and task.cancelled()):
        raise no_answer()
    if use.is_late and task.exception() is not None:
        raise no_answer() from task.exception()
    return task.result()


async def _begin(use: Use, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    CURRENT.set(use)
    return await work()


def _start(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    task = asyncio.get_running_loop().create_task(work)
    _tasks.add(task)
    task.add_done_callback(_forget)
    return task


def _forget(task: asyncio.Task[Any]) -> None:
    _tasks.discard(task)
    if not task.cancelled():
        # Perhaps no caller waits for it any more, and asyncio need not log it.
        task.exception()


def _abandon(task: asyncio.Task[Any], use: Use) -> None:
    if not task.done():
        use.is_late = True
        _start(_end(task, use))


async def _end(task: asyncio.Task[Any], use: Use) -> None:
    if can_cancel(use.driver):
        with suppress(Exception):
            await use.driver.cancel_safe(timeout=CANCEL_SECONDS)
        await asyncio.wait((task,), timeout=CANCEL_SECONDS)
    if hasattr(use.driver, "fileno"):
        use.shut_down()
        await asyncio.wait((task,), timeout=CANCEL_SECONDS)
    # It waits for the pool, or for a hook of the application; or the driver ends what is cancelled by itself.
    task.cancel()


class Turns:
    """Lets the writers of an event loop take turns. The database keeps those of several loops apart."""

    def __init__(self) -> None:
        # A lock belongs to one event loop.
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )

    def take(self, are_taken: bool, seconds: float) -> AbstractAsyncContextManager[None]:
        """Wait for a turn and have it for the length of a block, unless none are taken here.

        Raises:
            TimeoutError: It took longer than `seconds`.
        """
        return self._take(seconds) if are_taken else nullcontext()

    @asynccontextmanager
    async def _take(self, seconds: float) -> AsyncGenerator[None]:
        turn = self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with asyncio.timeout(seconds):
            await turn.acquire()
        try:
            yield
        finally:
            turn.release()


async def call_on_change(
    on_change: Callable[[AsyncConnection, KeyEvent], Awaitable[None]],
    connection: AsyncConnection,
    events: Sequence[KeyEvent],
) -> None:
    """Call the hook of the application for each event, in order."""
    for event in events:
        await on_change(connection, event)
