"""Detects a pooler that hands the session of one connection to another, such as PgBouncer with `pool_mode=transaction`.

The service keeps state in its sessions: commits that are durable whatever the server's default, the lock of a migration, the
statements that are prepared, and the channel on which workers are notified. Where other connections share that state, it is
lost or, worse, another process's. So the service refuses to start there, and `task-service doctor` reports it. A pooler that
gives each connection a session of its own (`pool_mode=session`) is no different from PostgreSQL itself.
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
"""What is wrong and what to do, as a part of a sentence."""

# Another client of the pooler may have taken the marked session at that moment.
_ATTEMPTS: Final = 5

_PID: Final = text("SELECT pg_backend_pid()")
_MARK: Final = text("SELECT set_config('task_service.session', :marker, false)")
_READ_MARK: Final = text("SELECT current_setting('task_service.session', true)")


async def refuse_shared_sessions(db: Database) -> None:
    """Check that each connection has a session of its own.

    Args:
        db: On PostgreSQL.

    Raises:
        ConfigurationError: A pooler shares them.
        StoreUnavailable: The database does not answer.
    """
    if await shares_sessions(db):
        raise ConfigurationError(f"The service cannot work with this database: {REMEDY}.")


async def shares_sessions(db: Database) -> bool:
    """Whether connections share their sessions: what one of them sets, another one reads.

    Args:
        db: On PostgreSQL.

    Raises:
        StoreUnavailable: The database does not answer.
    """
    for _ in range(_ATTEMPTS):
        async with db.read() as one:
            if await _is_direct(one):
                return False
            marker = secrets.token_hex(8)
            await one.execute(_MARK, {"marker": marker})
            # While `one` is open, so that a session of its own cannot have been given to another.
            async with db.read() as other:
                if await other.scalar(_READ_MARK) == marker:
                    return True
    return False


async def _is_direct(connection: AsyncConnection) -> bool:
    """Whether PostgreSQL itself answers: a pooler gives its clients numbers of its own making for cancel requests."""
    driver = (await connection.get_raw_connection()).driver_connection
    assert driver is not None  # noqa: S101 - it is connected
    announced: int = driver.info.backend_pid
    actual: int = (await connection.execute(_PID)).scalar_one()
    return announced == actual
