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

# Where the generated twin imports them from.
__all__ = ["Connection", "Engine", "Session", "call_on_change"]

T = TypeVar("T")

outside_forks: Final = FORK_GATE.inside
"""Lets no other thread fork during a block."""

_CLOCK: Final = SystemClock()
_TICK_SECONDS: Final = 0.25


class Uses:
    """The uses of the database by a store, each in the thread of its caller.

    A thread ends the late uses. It lives as long as there are any.
    """

    def __init__(self) -> None:
        self._renew()
        after_fork_in_child(self._renew)

    def _renew(self) -> None:
        self._deadlines: dict[Use, float] = {}
        self._lock = threading.Lock()
        self._is_watched = False

    def within(self, seconds: float | None, work: Callable[[], T]) -> T:
        """The result of code that uses a connection; late code fails, if its connection can be shut down.

        Args:
            seconds: The time limit, to a quarter of a second; None means that no server can fall silent.
            work: The code. It must return its connection when it fails.

        Raises:
            TimeoutError: The code was late, and failed.
        """
        if seconds is None:
            return work()
        use = Use()
        token = CURRENT.set(use)
        try:
            self._deadlines[use] = _CLOCK.monotonic() + seconds
            self._watch()
            return work()
        except Exception as error:
            if use.is_late:
                raise no_answer() from error
            raise
        finally:
            self._deadlines.pop(use, None)
            CURRENT.reset(token)

    def _watch(self) -> None:
        with self._lock:
            if self._is_watched:
                return
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
            self._is_watched = True

    def _run(self) -> None:
        while True:
            time.sleep(_TICK_SECONDS)
            self._end_late()
            with self._lock:
                # A use that begins now waits for the lock, and starts the next thread.
                self._is_watched = bool(self._deadlines)
                if not self._is_watched:
                    return

    def _end_late(self) -> None:
        now = _CLOCK.monotonic()
        can_wait = True
        for use, deadline in list(self._deadlines.items()):
            if deadline > now:
                continue
            if not use.is_late and can_wait and can_cancel(use.driver):
                # A cancelled statement has until the next tick to end, and then keeps its connection.
                use.is_late = True
                try:
                    use.driver.cancel_safe(timeout=CANCEL_SECONDS)
                except Exception:  # noqa: BLE001 - the connection is shut down instead
                    # The server will not answer the other requests either.
                    can_wait = False
                else:
                    continue
            use.is_late = True
            use.shut_down()


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
