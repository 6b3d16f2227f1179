"""What a use of the database and its deadline share, for blocking and for asynchronous engines.

A use that is late loses its connection. First the server gets a cancel request, so that its process does not go on
waiting, for a lock for example. Then the connection's socket is shut down: the driver's wait ends with an error, and the
pool replaces the connection. This needs a driver whose connections have `fileno()`: psycopg and psycopg2.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Final

from sqlalchemy.engine import Connection

CANCEL_SECONDS: Final = 0.25
"""How long a cancel request may take, and what it cancels afterwards."""


class Use:
    """One use of the database, from checking a connection out of the pool until it is back.

    Attributes:
        driver: The driver's connection that is in use; None before there is one, and once it is back in the pool.
        is_late: Whether its deadline has passed.
    """

    def __init__(self) -> None:
        self.driver: Any = None
        self.is_late = False
        # A connection that is back in the pool must not be shut down.
        self._lock = threading.Lock()

    def check(self) -> None:
        """Raise `TimeoutError` if it is late: it begins nothing more."""
        if self.is_late:
            raise no_answer()

    @contextmanager
    def of(self, driver: Any) -> Generator[None]:
        """The connection is in use for the length of a block."""
        before, self.driver = self.driver, driver
        try:
            yield
        finally:
            with self._lock:
                self.driver = before

    def shut_down(self) -> bool:
        """Shut the socket of the connection down, if one is in use; returns whether there is one."""
        with self._lock:
            fileno = getattr(self.driver, "fileno", None)
            if fileno is None:
                return False
            # A connection that is closed has none any more.
            with suppress(Exception), socket.socket(fileno=os.dup(fileno())) as end:
                end.shutdown(socket.SHUT_RDWR)
            return True


CURRENT: Final[ContextVar[Use | None]] = ContextVar("msk_auth_use", default=None)
"""The use that the running code is part of."""


@contextmanager
def in_use(connection: Connection) -> Generator[None]:
    """Make a connection that of the current use for the length of a block, if there is a use.

    psycopg prepares nothing meanwhile. It numbers prepared statements on every connection alike, and behind a pooler that
    mixes connections another one's statement would answer.
    """
    driver: Any = connection.connection.driver_connection
    use, threshold = CURRENT.get(), getattr(driver, "prepare_threshold", None)
    if use is None:
        yield
        return
    with use.of(driver):
        if threshold is None:
            yield
            return
        driver.prepare_threshold = None
        try:
            yield
        finally:
            driver.prepare_threshold = threshold


def is_late() -> bool:
    """Whether the deadline of the current use has passed."""
    use = CURRENT.get()
    return use is not None and use.is_late


def no_answer() -> TimeoutError:
    return TimeoutError("the database did not answer in time")


def no_turn() -> TimeoutError:
    return TimeoutError("the database is still busy with earlier writes")


def can_cancel(driver: Any) -> bool:
    """Whether a query of this connection can be cancelled on the server in bounded time (psycopg with libpq 17)."""
    if not hasattr(driver, "cancel_safe"):
        return False
    import psycopg

    has_cancel_safe = getattr(getattr(psycopg, "capabilities", None), "has_cancel_safe", None)
    return has_cancel_safe is not None and has_cancel_safe()
