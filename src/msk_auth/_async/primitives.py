"""The handwritten differences between awaiting and blocking; `_sync.primitives` has the same names.

`asyncio` takes as long to import as the rest of the library, and a blocking application does not need it. So the functions
import it, when an event loop runs.
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

# The number of concurrent Argon2id verifications of imported keys: each takes a core and 19 MiB.
_SLOW_AT_ONCE: Final = 2

_PAUSE_SECONDS: Final = 0.001


def refuse_async(_functions: Mapping[str, object]) -> None:
    """Accept the functions of the application: all of them are awaited."""


async def result_of(answer: MaybeAwaitable[T]) -> T:
    """The result of a function of the application, awaited if necessary."""
    return await cast("Awaitable[T]", answer) if isinstance(answer, Awaitable) else answer


async def call_on_change(
    on_change: Callable[[None, KeyEvent], Awaitable[None]], events: Sequence[KeyEvent]
) -> None:
    """Call the hook of a store for each event, in order."""
    for event in events:
        await on_change(None, event)


def make_event() -> asyncio.Event:
    """An event for requests that wait for the work of another request."""
    import asyncio

    return asyncio.Event()


def scope() -> Hashable:
    """The common scope of requests that may wait for each other: their event loop."""
    import asyncio

    return asyncio.get_running_loop()


async def wait_for_event(event: asyncio.Event, seconds: float) -> None:
    """Wait until an event is set, at most this long."""
    import asyncio

    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def wait_for_future(future: Future[None], seconds: float) -> None:
    """Wait until a future is done, at most this long, without cancelling it: other requests wait for it too."""
    import asyncio

    await asyncio.wait([asyncio.wrap_future(future)], timeout=seconds)


class _SlowThreads:
    """Threads for long computations. They serve every event loop of the process."""

    def __init__(self) -> None:
        self.executor: ThreadPoolExecutor | None = None
        after_fork_in_child(self._renew)

    def _renew(self) -> None:
        abandon(self.executor)
        self.executor = None


_slow: Final = _SlowThreads()


async def run_slowly(work: Callable[..., T], *arguments: Any) -> T:
    """The result of a long computation, in a separate thread."""
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    if _slow.executor is None:
        _slow.executor = ThreadPoolExecutor(_SLOW_AT_ONCE, "msk_auth argon2")
    return await asyncio.get_running_loop().run_in_executor(_slow.executor, work, *arguments)


@asynccontextmanager
async def holding(lock: threading.Lock) -> AsyncGenerator[None]:
    """Hold a lock that several event loops share; locks of asyncio cannot be shared.

    Only a hook that waits keeps the lock for longer than a few microseconds.
    """
    import asyncio

    while not lock.acquire(blocking=False):  # noqa: ASYNC110 - another thread releases it
        await asyncio.sleep(_PAUSE_SECONDS)
    try:
        yield
    finally:
        lock.release()


def is_beside_loop() -> bool:
    """True in a thread without an event loop, such as a framework's thread for a `def` route.

    Always False in the main thread: a test or a script may start a loop there.
    """
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return threading.current_thread() is not threading.main_thread()
    return False


def awaited(method: Callable[Concatenate[SelfT, P], R]) -> Callable[Concatenate[SelfT, P], R]:
    """Refuse a call from a `def` route, which cannot await it: access would stay unchanged, without an error."""

    @functools.wraps(method)
    def called(self: SelfT, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self.is_open and is_beside_loop():
            raise ConfigurationError(
                f"{method.__name__} was called in a thread without an event loop, which cannot await it, so it would"
                " do nothing. Await it in an `async def` route, or build a synchronous application on Authenticator."
            )
        return method(self, *args, **kwargs)

    # Since Python 3.12, for code that checks whether a function must be awaited.
    mark: Any = getattr(inspect, "markcoroutinefunction", None)
    return called if mark is None else mark(called)


class AsyncLifecycle(BaseAuthenticator[UserT]):
    """The lifecycle of an open authenticator: a task for each event loop flushes it."""

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
                "AsyncAuthenticator needs asyncio, and this event loop is another one, such as trio's. Run the application"
                " on asyncio: anyio.run(…, backend='asyncio'), or the worker class asyncio or uvloop of Hypercorn."
            ) from error
        self._open_issuers()
        # An application and its adapter may both open the authenticator.
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
        # A task can be awaited only on its own loop, so each loop has a task. A loop changes only its own entry.
        self._flushers: dict[asyncio.AbstractEventLoop, asyncio.Task[None]] = {}
        after_fork_in_child(self._leave_the_parents_flushers)

    def _leave_the_parents_flushers(self) -> None:
        # The parent's tasks never run in the child. Destroying their loops would close sockets and selectors of the parent.
        abandon(self._flushers)
        self._flushers = {}

    async def _flush_forever(self) -> None:
        import asyncio

        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            await self.flush()

    def _note_flush(self) -> None:
        """Nothing to do: the flushing task measures its own time."""
