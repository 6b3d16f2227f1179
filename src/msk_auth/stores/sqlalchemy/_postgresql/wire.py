"""What both kinds of held connections are: one question at a time, asked of libpq itself.

They speak through psycopg's `pq` module, which the driver is built on itself. A cursor costs more than the round trip
that it makes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection
    from psycopg.pq.abc import PGconn

ANSWER_SECONDS: Final = 5.0
"""How long the server may take to answer a look-up by primary key."""

CANCEL_SECONDS: Final = 2.0
"""How long is spent on telling a server that an answer is not wanted any more."""

_MAX_IDLE_SECONDS: Final = 60.0
# After a failover a connection may go on to the old primary. It does not do so for long.
_MAX_AGE_SECONDS: Final = 600.0

_UTF8: Final = b"UTF8"


class Lost(Exception):
    """The connection ended before the answer came."""


class Wire:
    """A connection that was taken over from the driver, and belongs to one loop or one pool of threads alone.

    Args:
        driver: Outside of a transaction, and nobody else's.
        clock: In seconds, and never set back.
    """

    def __init__(
        self, driver: AsyncConnection[Any] | Connection[Any], clock: Callable[[], float]
    ) -> None:
        self.is_closed = False
        # psycopg's own switch, which is turned off for poolers that keep no statements.
        self.prepares = driver.prepare_threshold is not None
        self._libpq: PGconn = driver.pgconn
        self._process = os.getpid()
        self._clock = clock
        self._opened = self._used = clock()
        self._held: object = driver

    @property
    def speaks_utf8(self) -> bool:
        """Whether text travels as UTF-8."""
        return self._libpq.parameter_status(b"client_encoding") == _UTF8

    @property
    def is_usable(self) -> bool:
        """False if it was closed, or is so old or was silent for so long that it should not be trusted."""
        now = self._clock()
        return not (
            self.is_closed
            or now - self._used > _MAX_IDLE_SECONDS
            or now - self._opened > _MAX_AGE_SECONDS
        )

    def _hang_up(self) -> None:
        if self._process == os.getpid():
            self._libpq.finish()
        else:
            # After a fork it is the parent's: saying good-bye here would end it there.
            _inherited.append(self._held)


_inherited: Final[list[object]] = []
