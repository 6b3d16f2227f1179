"""What truly differs between the blocking store and the asynchronous one; `_async.running` has the same names."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final, TypeVar

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.orm import Session

from msk_auth._fork import after_fork_in_child
from msk_auth.clock import SystemClock
from msk_auth.core.store import call_on_change
from msk_auth.stores.sqlalchemy._servers import (
    CANCEL_SECONDS,
    CURRENT,
    Use,
    can_cancel,
    no_answer,
    no_turn,
)
from msk_auth.stores.sqlalchemy._sqlite import FORK_GATE

__all__ = [
    "Connection",
    "Engine",
    "Session",
    "Turns",
    "Uses",
    "call_on_change",
    "outside_forks",
]

T = TypeVar("T")

outside_forks: Final = FORK_GATE.inside
"""Lets no other thread fork during a block."""

_CLOCK: Final = SystemClock()
_TICK_SECONDS: Final = 0.25


def within(seconds: float | None, work: Callable[[], T]) -> T:
    """The result of `work`, which fails when it is late, where its connection can be shut down.

    Args:
        seconds: How long it may take, to a quarter of a second; None means that there is no server that could fall silent.
        work: What to do. It gives its connection back when it fails.

    Raises:
        TimeoutError: It was late, and failed.
    """
    if seconds is None:
        return work()
    use = Use()
    token = CURRENT.set(use)
    try:
        _watch.add(use, _CLOCK.monotonic() + seconds)
        return work()
    except Exception as error:
        if use.is_late:
            raise no_answer() from error
        raise
    finally:
        _watch.remove(use)
        CURRENT.reset(token)


class Uses:
    """The uses of the database by one store: each runs in the thread of its caller."""

    within = staticmethod(within)


class _Watch:
    """Ends the uses that are late, from a thread that lives as long as there are any."""

    def __init__(self) -> None:
        self._begin()
        after_fork_in_child(self._begin)

    def _begin(self) -> None:
        self._deadlines: dict[Use, float] = {}
        self._lock = threading.Lock()
        self._is_running = False

    def add(self, use: Use, deadline: float) -> None:
        self._deadlines[use] = deadline
        if self._is_running:
            return
        with self._lock:
            if not self._is_running:
                # A daemon, since a use may never end: not every driver's connection can be shut down.
                thread = threading.Thread(target=self._run, name="msk_auth deadlines", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    if threading.main_thread().is_alive():
                        raise
                    # Python 3.12 starts no thread in what runs at exit, which then has no deadline.
                    return
                # Only now: a process that is out of threads tries again with the next use.
                self._is_running = True

    def remove(self, use: Use) -> None:
        self._deadlines.pop(use, None)

    def _run(self) -> None:
        while True:
            time.sleep(_TICK_SECONDS)
            self._end_late()
            with self._lock:
                # In this order: a use that comes now starts the next thread, or is seen by this one.
                self._is_running = False
                if not self._deadlines:
                    return
                self._is_running = True

    def _end_late(self) -> None:
        now = _CLOCK.monotonic()
        can_wait = True
        for use, deadline in list(self._deadlines.items()):
            if deadline > now:
                continue
            if not use.is_late and can_wait and can_cancel(use.driver):
                # What is cancelled has until the next look to end, and keeps its connection.
                use.is_late = True
                try:
                    use.driver.cancel_safe(timeout=CANCEL_SECONDS)
                except Exception:  # noqa: BLE001 - it is shut down instead
                    # Nor does the server answer the other requests.
                    can_wait = False
                else:
                    continue
            use.is_late = True
            use.shut_down()


_watch: Final = _Watch()


class Turns:
    """Lets the writers of a process take turns."""

    def __init__(self) -> None:
        self._renew()
        after_fork_in_child(self._renew)

    def _renew(self) -> None:
        self._turn = threading.Lock()

    @contextmanager
    def take(self, seconds: float) -> Generator[None]:
        """Wait for a turn and have it for the length of a block.

        Raises:
            TimeoutError: It took longer than `seconds`.
        """
        # In a child that is forked meanwhile it is another one.
        turn = self._turn
        if not turn.acquire(timeout=seconds):
            raise no_turn()
        try:
            yield
        finally:
            turn.release()
