"""Connections to PostgreSQL on which nobody waits for ever.

A server that is frozen, or at the other end of a cut cable, keeps its connections: the kernel goes on acknowledging
what is sent, so neither keepalives nor `tcp_user_timeout` notice anything. Whatever uses the pool, the store of API keys
included, is therefore bounded here, at the connection itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from psycopg import AsyncConnection, OperationalError
from psycopg.abc import PQGen

T = TypeVar("T")

_CANCEL_SECONDS: Final = 1.0
# As the driver's own: how often it looks whether it was interrupted.
_INTERVAL: Final = 0.1


class ImpatientConnection(AsyncConnection[Any]):
    """A connection that gives up a statement, and itself, when the server is silent for too long.

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

        A server that does not even take this request is not asked any further.
        """
        try:
            await super().cancel_safe(timeout=min(timeout, _CANCEL_SECONDS))
        except Exception:
            self.pgconn.finish()
            raise


def connecting(statement_seconds: float) -> Callable[..., Awaitable[ImpatientConnection]]:
    """A function that connects, for SQLAlchemy's `async_creator_fn`.

    Args:
        statement_seconds: How long one statement may take.
    """

    async def connect(*words: Any, **settings: Any) -> ImpatientConnection:
        connection = await ImpatientConnection.connect(*words, **settings)
        connection.statement_seconds = statement_seconds
        return connection

    return connect
