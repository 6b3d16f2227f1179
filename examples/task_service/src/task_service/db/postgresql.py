"""Connections to PostgreSQL that give up soon after they are interrupted.

A frozen server keeps its connections: its kernel still acknowledges packets, so neither keepalives nor
`tcp_user_timeout` detect it.
"""

from __future__ import annotations

import select
from typing import Any, Final

from psycopg import AsyncConnection

_CANCEL_SECONDS: Final = 1.0


def is_stale(connection: AsyncConnection[Any]) -> bool:
    """True if the server has ended an idle connection, for which it sends a packet without a request.

    One system call, without a round trip. Only the next statement detects a lost network.
    """
    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN)
    return bool(poll.poll(0))


class ImpatientConnection(AsyncConnection[Any]):
    """A connection that closes if the server does not end an interrupted statement in time."""

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
