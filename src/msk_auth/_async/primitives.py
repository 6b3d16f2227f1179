"""What truly differs between awaiting and blocking, written by hand; `_sync.primitives` has the same names.

`asyncio` takes as long to import as the rest of the library, and a blocking application does not need it. The functions
import it, where an event loop runs.
"""

from __future__ import annotations

import functools
import inspect
import threading
from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Self, TypeAlias, TypeVar, cast

from msk_auth._fork import abandon, after_fork_in_child
from msk_auth.authenticator import FLUSH_SECONDS, BaseAuthenticator
from msk_auth.core.errors import ConfigurationError
from msk_auth.core.events import KeyEvent
from msk_auth.core.model import UserT

from .watch import AsyncWatches

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future, ThreadPoolExecutor

T = TypeVar("T")
R = TypeVar("R")
SelfT = TypeVar("SelfT", bound="AsyncLifecycle[Any]")
P = ParamSpec("P")

MaybeAwaitable: TypeAlias = T | Awaitable[T]
"""The result of a function of the application that may be async."""

# How many Argon2id verifications of imported keys run at once: each takes a core and 19 MiB.
_SLOW_AT_ONCE: Final = 2

_PAUSE_SECONDS: Final = 0.001


def refuse_async(_functions: Mapping[str, object]) -> None:
    """Accept the functions of the application: all of them are awaited."""


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


def is_beside_loop() -> bool:
    """True in a thread that runs no event loop, such as the one in which a framework runs a `def` route.

    The main thread is none of these: a test or a script may start a loop there.
    """
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return threading.current_thread() is not threading.main_thread()
    return False


def awaited(method: Callable[Concatenate[SelfT, P], R]) -> Callable[Concatenate[SelfT, P], R]:
    """Refuse a call from a `def` route, which cannot await it: access would stay as it is, without an error."""

    @functools.wraps(method)
    def called(self: SelfT, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self.is_open and is_beside_loop():
            raise ConfigurationError(
                f"{method.__name__} was called in a thread beside the event loop, where nothing awaits it, so it would"
                " do nothing. Await it in an `async def` route, or build a synchronous application on Authenticator."
            )
        return method(self, *args, **kwargs)

    # Known to Python from 3.12 on, for code that asks whether a function has to be awaited.
    mark: Any = getattr(inspect, "markcoroutinefunction", None)
    return called if mark is None else mark(called)


class AsyncLifecycle(BaseAuthenticator[UserT]):
    """What an authenticator does between its opening and its closing: one task for each event loop flushes it."""

    _watches: AsyncWatches[UserT]

    @property
    def is_open(self) -> bool:
        """True between the beginning and the end of an `async with` of this authenticator, on any event loop of this process."""
        return bool(self._flushers)

    @abstractmethod
    async def flush(self) -> None:
        """See :class:`AsyncAuthenticator`."""

    async def __aenter__(self) -> Self:
        import asyncio

        try:
            loop = asyncio.get_running_loop()
        except RuntimeError as error:
            raise ConfigurationError(
                "AsyncAuthenticator runs on asyncio, and this event loop is another one, such as trio's. Run the application"
                " on asyncio: anyio.run(…, backend='asyncio'), or the worker class asyncio or uvloop of Hypercorn."
            ) from error
        self._open_issuers()
        # An application and its adapter may both open it.
        if loop not in self._flushers:
            self._flushers[loop] = loop.create_task(self._flush_forever(), name="msk_auth flush")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        import asyncio

        self._close_issuers()
        flusher = self._flushers.pop(asyncio.get_running_loop(), None)
        if flusher is not None:
            flusher.cancel()
            # `wait` does not raise the task's errors, but a cancellation of the caller still has its effect.
            await asyncio.wait([flusher])
        await self._watches.close()
        await self.flush()

    def _begin_closed(self) -> None:
        # A task can be awaited only on its own loop, so each loop has one. A loop changes no entry but its own.
        self._flushers: dict[asyncio.AbstractEventLoop, asyncio.Task[None]] = {}
        after_fork_in_child(self._leave_the_parents_flushers)

    def _leave_the_parents_flushers(self) -> None:
        # They never run in the child. Destroying their loops would close sockets and selectors of the parent.
        abandon(self._flushers)
        self._flushers = {}

    async def _flush_forever(self) -> None:
        import asyncio

        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            await self.flush()

    def _note_flush(self) -> None:
        """The task above measures its own time."""
