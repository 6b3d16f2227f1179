"""What truly differs between blocking and awaiting, written by hand; `_async.primitives` has the same names."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msk_auth.core import store as store_hooks
from msk_auth.core.events import KeyEvent
from msk_auth.core.model import ApiKey

from .store import KeyStore

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")

AWAITS: Final = False
"""Whether the application's functions are awaited."""

make_event = threading.Event


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


class KeyReader:
    """Reads records of keys."""

    def __init__(self, store: KeyStore) -> None:
        self._store = store

    def find(self, key_id: str) -> ApiKey | None:
        """The record with this id."""
        return self._store.find(key_id)


def run_slowly(work: Callable[..., T], *arguments: Any) -> T:
    """The result of a function that takes a core for long: in the thread of the request."""
    return work(*arguments)


def holding(lock: threading.Lock) -> threading.Lock:
    """Hold a lock."""
    return lock
