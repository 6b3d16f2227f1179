"""What truly differs between blocking and awaiting, written by hand; `_async.primitives` has the same names."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from inspect import iscoroutinefunction
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from msk_auth.authenticator import FLUSH_SECONDS, BaseAuthenticator
from msk_auth.core import store as store_hooks
from msk_auth.core.errors import ConfigurationError
from msk_auth.core.events import KeyEvent
from msk_auth.core.model import UserT

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")

make_event = threading.Event


def refuse_async(functions: Mapping[str, object]) -> None:
    """Refuse functions of the application that have to be awaited: they would do nothing, silently.

    Args:
        functions: By their names as arguments. A type checker finds all others.

    Raises:
        ConfigurationError: One of them is async.
    """
    for name, function in functions.items():
        if iscoroutinefunction(function):
            raise ConfigurationError(
                f"{name} is async. Use AsyncAuthenticator, or pass a plain function."
            )


def result_of(answer: T) -> T:
    """What a function of the application returned."""
    return answer


def call_on_change(on_change: Callable[[None, KeyEvent], None], events: Sequence[KeyEvent]) -> None:
    """Call the hook of a store for each event, in order."""
    store_hooks.call_on_change(on_change, None, events)


def scope() -> None:
    """What the requests that may wait for each other have in common: the process."""


def wait_for_event(event: threading.Event, seconds: float) -> None:
    """Wait until an event is set, for so long at most."""
    event.wait(seconds)


def wait_for_future(future: Future[None], seconds: float) -> None:
    """Wait until a future is done, for so long at most."""
    from concurrent.futures import wait

    wait([future], seconds)


def run_slowly(work: Callable[..., T], *arguments: Any) -> T:
    """The result of a function that takes a core for long: in the thread of the request."""
    return work(*arguments)


def holding(lock: threading.Lock) -> threading.Lock:
    """Hold a lock."""
    return lock


class Lifecycle(BaseAuthenticator[UserT]):
    """What an authenticator does between its opening and its closing: an adapter flushes it after responses."""

    @property
    def is_flush_due(self) -> bool:
        """True if the last :meth:`flush` was a minute ago."""
        return self.clock.monotonic() - self._last_flush >= FLUSH_SECONDS

    def flush_if_due(self) -> None:
        """Call :meth:`flush` if the last call was a minute ago. Adapters do this after a response."""
        if self.is_flush_due:
            self.flush()

    @abstractmethod
    def flush(self) -> None:
        """See :class:`Authenticator`."""

    def __enter__(self) -> Self:
        self._open_issuers()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close_issuers()
        self.flush()

    def _begin_closed(self) -> None:
        self._last_flush = self.clock.monotonic()

    def _note_flush(self) -> None:
        self._last_flush = self.clock.monotonic()
