"""Connections to PostgreSQL with a timeout for every statement.

A frozen server keeps its connections: its kernel still acknowledges what is sent, so neither keepalives nor
`tcp_user_timeout` detect it. So the timeout is on the connection itself, for every user of the pool, the store of API keys
included.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from psycopg import AsyncConnection, OperationalError
from psycopg.abc import PQGen

T = TypeVar("T")

_CANCEL_SECONDS: Final = 1.0
# The driver's default: how often it checks for an interruption.
_INTERVAL: Final = 0.1


def is_stale(connection: AsyncConnection[Any]) -> bool:
    """True if the server has ended an idle connection: it sends nothing else while nothing is asked.

    One system call, without a round trip. A network that was cut is noticed by the next statement only.
    """
    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN)
    return bool(poll.poll(0))


class TimeoutConnection(AsyncConnection[Any]):
    """A connection that closes when the server does not answer a statement in time.

    Attributes:
        statement_seconds: How long one statement may take.
    """

    statement_seconds: float = 8.0

    async def wait(
        self,
        gen: PQGen[T],
        interval: float = _INTERVAL,
        timeout: float | None = None,  # noqa: ASYNC109 - the driver's signature
    ) -> T:
        """See psycopg.

        Raises:
            psycopg.OperationalError: The server did not answer in time; the connection is closed.
        """
        limit = asyncio.timeout(self.statement_seconds if timeout is None else timeout)
        try:
            async with limit:
                return await super().wait(gen, interval)
        except TimeoutError as error:
            if not limit.expired():
                raise
            self.pgconn.finish()
            raise OperationalError(
                f"the server did not answer within {self.statement_seconds:g} seconds"
            ) from error

    async def cancel_safe(
        self,
        *,
        timeout: float = _CANCEL_SECONDS,  # noqa: ASYNC109 - the driver's signature
    ) -> None:
        """See psycopg, which calls this when a statement is interrupted.

        If the server does not accept this request either, the connection is closed.
        """
        try:
            await super().cancel_safe(timeout=min(timeout, _CANCEL_SECONDS))
        except Exception:
            self.pgconn.finish()
            raise


def connector(statement_seconds: float) -> Callable[..., Awaitable[TimeoutConnection]]:
    """A function that connects, for SQLAlchemy's `async_creator_fn`.

    Args:
        statement_seconds: How long one statement may take.
    """

    async def connect(*args: Any, **kwargs: Any) -> TimeoutConnection:
        connection = await TimeoutConnection.connect(*args, **kwargs)
        connection.statement_seconds = statement_seconds
        return connection

    return connect
