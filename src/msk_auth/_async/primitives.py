"""What truly differs between awaiting and blocking, written by hand; `_sync.primitives` has the same names.

`asyncio` takes as long to import as the rest of the library, and a blocking application does not need it. The functions
import it, where an event loop runs.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

from msk_auth._fork import abandon, after_fork_in_child
from msk_auth.core.events import KeyEvent
from msk_auth.core.model import ApiKey
from msk_auth.core.store import offered

from .store import AsyncKeyStore

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future, ThreadPoolExecutor

T = TypeVar("T")

AWAITS: Final = True
"""Whether the application's functions are awaited."""

MaybeAwaitable: TypeAlias = T | Awaitable[T]
"""The result of a function of the application that may be async."""

# How many Argon2id verifications of imported keys run at once: each takes a core and 19 MiB.
_SLOW_AT_ONCE: Final = 2

_PAUSE_SECONDS: Final = 0.001


async def result_of(answer: MaybeAwaitable[T]) -> T:
    """What a function of the application returned, awaited if it has to be."""
    return await cast("Awaitable[T]", answer) if isinstance(answer, Awaitable) else answer


async def call_on_change(
    on_change: Callable[[None, KeyEvent], Awaitable[None]], events: Sequence[KeyEvent]
) -> None:
    """Call the hook of a store for each event, in order."""
    for event in events:
        await on_change(None, event)


def make_event() -> asyncio.Event:
    """What requests wait for that need the work of another one."""
    import asyncio

    return asyncio.Event()


def scope() -> Hashable:
    """What the requests that may wait for each other have in common: their event loop."""
    import asyncio

    return asyncio.get_running_loop()


async def wait_for_event(event: asyncio.Event, seconds: float) -> None:
    """Wait until an event is set, for so long at most."""
    import asyncio

    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def wait_for_future(future: Future[None], seconds: float) -> None:
    """Wait until a future is done, for so long at most. It cancels nothing: other requests wait for the same."""
    import asyncio

    await asyncio.wait([asyncio.wrap_future(future)], timeout=seconds)


class KeyReader:
    """Reads records of keys; those that are read at the same time share a round trip, if the store can do that.

    Attributes:
        at_once: How many keys one call of :meth:`find_many` may look up.
    """

    def __init__(self, store: AsyncKeyStore) -> None:
        from msk_auth.batching import MAX_BATCH, BatchedReader

        self._store = store
        self._find_many: Callable[[Sequence[str]], Awaitable[Sequence[ApiKey]]] | None
        self._find_many = offered(store, "find_many")
        self._batches = (
            None
            if self._find_many is None
            else BatchedReader(store.find, self._find_many, offered(store, "may_share_reads"))
        )
        self.at_once: int = 1 if self._find_many is None else MAX_BATCH

    def find(self, key_id: str) -> Awaitable[ApiKey | None]:
        """The record with this id."""
        return self._store.find(key_id) if self._batches is None else self._batches.find(key_id)

    async def find_many(self, key_ids: Sequence[str]) -> Sequence[ApiKey | None]:
        """The records with these ids."""
        if self._find_many is None:
            return [await self._store.find(key_id) for key_id in key_ids]
        return await self._find_many(key_ids)


class _SlowThreads:
    """Threads for what takes a core for long. They serve every event loop of the process."""

    def __init__(self) -> None:
        self.executor: ThreadPoolExecutor | None = None
        after_fork_in_child(self._renew)

    def _renew(self) -> None:
        abandon(self.executor)
        self.executor = None


_slow: Final = _SlowThreads()


async def run_slowly(work: Callable[..., T], *arguments: Any) -> T:
    """The result of a function that takes a core for long, in a thread of its own."""
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    if _slow.executor is None:
        _slow.executor = ThreadPoolExecutor(_SLOW_AT_ONCE, "msk_auth argon2")
    return await asyncio.get_running_loop().run_in_executor(_slow.executor, work, *arguments)


@asynccontextmanager
async def holding(lock: threading.Lock) -> AsyncGenerator[None]:
    """Hold a lock that several event loops share, which one of asyncio cannot be.

    Only a hook that waits keeps it for longer than a few microseconds.
    """
    import asyncio

    while not lock.acquire(blocking=False):  # noqa: ASYNC110 - another thread releases it
        await asyncio.sleep(_PAUSE_SECONDS)
    try:
        yield
    finally:
        lock.release()
