"""Opening and closing an authenticator on an event loop, written by hand; `_sync.lifecycle` is its counterpart."""

from __future__ import annotations

import functools
import inspect
import threading
from abc import abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from msk_auth._fork import abandon, after_fork_in_child
from msk_auth.authenticator.base import FLUSH_SECONDS, BaseAuthenticator
from msk_auth.core.errors import ConfigurationError
from msk_auth.core.model import UserT

from .watch import AsyncWatches

# Importing `asyncio` takes as long as importing the rest of the library, and a blocking application does not need it. The
# functions below import it, where an event loop runs.
if TYPE_CHECKING:
    import asyncio

R = TypeVar("R")
SelfT = TypeVar("SelfT", bound="AsyncLifecycle[Any]")
P = ParamSpec("P")


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


def check_kind(name: str, authenticator: object) -> None:
    """Refuse an authenticator that blocks, for a class that awaits.

    Args:
        name: Of the class.
        authenticator: What it was given.

    Raises:
        ConfigurationError: It is no `AsyncAuthenticator` with ports of its own. What an adapter makes of an `Authenticator`
            has none.
    """
    if not hasattr(authenticator, "_ports") or not isinstance(authenticator, AsyncLifecycle):
        raise ConfigurationError(
            f"{name} takes an AsyncAuthenticator. Give an Authenticator to {name.removeprefix('Async')}, and call that in a"
            " thread."
        )


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
