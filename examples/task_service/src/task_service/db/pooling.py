"""Detects a pooler that shares sessions between connections, such as PgBouncer with `pool_mode=transaction`.

The service keeps state in its sessions: durable commits, even if the server's default is weaker, the lock of a migration, prepared
statements, and the channel that notifies workers. If connections share sessions, this state is lost or, worse, another
process gets it. So the service refuses to start, and `task-service doctor` reports the pooler. A pooler that gives each
connection its own session (`pool_mode=session`) is like PostgreSQL itself.
"""

from __future__ import annotations

import secrets
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from msk_auth.errors import ConfigurationError

from .engine import Database

REMEDY: Final = (
    "a pooler shares PostgreSQL's sessions between connections (PgBouncer with pool_mode=transaction), and the"
    " service keeps state in its own; set pool_mode=session for this database, or name PostgreSQL's own port in"
    " TASK_SERVICE_DATABASE_URL"
)
"""The problem and its remedy, as a part of a sentence."""

# Another client of the pooler may have taken the marked session at that moment.
_ATTEMPTS: Final = 5

_PID: Final = text("SELECT pg_backend_pid()")
_MARK: Final = text("SELECT set_config('task_service.session', :marker, false)")
_READ_MARK: Final = text("SELECT current_setting('task_service.session', true)")


async def refuse_shared_sessions(db: Database) -> None:
    """Check that each connection has its own session.

    Args:
        db: A PostgreSQL database.

    Raises:
        ConfigurationError: A pooler shares sessions.
        StoreUnavailable: The database does not answer.
    """
    if await shares_sessions(db):
        raise ConfigurationError(f"The service cannot work with this database: {REMEDY}.")


async def shares_sessions(db: Database) -> bool:
    """True if connections share their sessions: one connection reads a setting of another.

    Args:
        db: A PostgreSQL database.

    Raises:
        StoreUnavailable: The database does not answer.
    """
    for _ in range(_ATTEMPTS):
        async with db.read() as one:
            if await _is_direct(one):
                return False
            marker = secrets.token_hex(8)
            await one.execute(_MARK, {"marker": marker})
            # While `one` is open, so that its own session cannot have been given to another connection.
            async with db.read() as other:
                if await other.scalar(_READ_MARK) == marker:
                    return True
    return False


async def _is_direct(connection: AsyncConnection) -> bool:
    """True if PostgreSQL itself answers: a pooler gives its clients its own numbers for cancel requests."""
    driver = (await connection.get_raw_connection()).driver_connection
    assert driver is not None  # noqa: S101 - it is connected
    announced: int = driver.info.backend_pid
    actual: int = (await connection.execute(_PID)).scalar_one()
    return announced == actual
