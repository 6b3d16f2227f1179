"""Refuses servers of PostgreSQL with which the service cannot keep its guarantees.

The service keeps state in its sessions: durable commits, even if the server's default is weaker, the lock of a migration, prepared
statements, and the channel that notifies workers. A pooler that shares sessions between connections, such as PgBouncer with
`pool_mode=transaction`, loses this state or, worse, gives it to another process. A pooler that gives each connection its
own session (`pool_mode=session`) is like PostgreSQL itself.

After a failover the former primary may return and be writable. If the URL names several hosts,
`target_session_attrs=read-write` then takes the first answer, so processes write to different servers: a key that is revoked
on one server works on the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import psycopg
from sqlalchemy import func, select

from msk_auth.errors import ConfigurationError

from .engine import Database

# Another client of the pooler may take the session that both connections would get.
_ATTEMPTS: Final = 5
_CONNECT_SECONDS: Final = 3
_SESSION: Final = select(func.pg_backend_pid())
_START: Final = "SELECT pg_postmaster_start_time()::text WHERE NOT pg_is_in_recovery()"


async def refuse_shared_sessions(db: Database) -> None:
    """Check that two connections have two sessions.

    Args:
        db: A PostgreSQL database.

    Raises:
        ConfigurationError: A pooler shares sessions.
        StoreUnavailable: The database does not answer.
    """
    async with db.read() as one, db.read() as other:
        for _ in range(_ATTEMPTS):
            if await one.scalar(_SESSION) == await other.scalar(_SESSION):
                raise ConfigurationError(
                    "A pooler shares PostgreSQL's sessions between connections (PgBouncer with pool_mode=transaction), and"
                    " the service keeps state in its own. Set pool_mode=session for this database, or name PostgreSQL's"
                    " own port in TASK_SERVICE_DATABASE_URL."
                )


async def refuse_two_primaries(db: Database) -> None:
    """Check that only one of the hosts in the database's URL is writable. Hosts that do not answer are skipped.

    Args:
        db: A PostgreSQL database.

    Raises:
        ConfigurationError: Two servers are writable.
    """
    _, options = db.engine.dialect.create_connect_args(db.engine.url)
    hosts = str(options.get("host", "")).split(",")
    if len(hosts) < 2:
        return
    ports = str(options.get("port", "5432")).split(",")
    if len(ports) == 1:
        ports *= len(hosts)
    places = list(zip(hosts, ports, strict=True))
    starts = await asyncio.gather(*(_start(options, *place) for place in places))
    # A server with two names has the same time of start for both.
    writable = {
        start: f"{host}:{port}" for (host, port), start in zip(places, starts, strict=True) if start
    }
    if len(writable) > 1:
        raise ConfigurationError(
            f"{' and '.join(writable.values())} are both writable, so what is revoked at one of them is not revoked at the"
            " other. Stop the one that was not promoted and keep it from starting, then make a standby of it with pg_rewind"
            " or pg_basebackup."
        )


async def _start(options: Mapping[str, Any], host: str, port: str) -> str | None:
    """The start time of a writable server; None if it is not writable, or does not answer."""
    one: dict[str, Any] = {**options, "host": host, "port": port}
    one |= {"connect_timeout": _CONNECT_SECONDS, "target_session_attrs": "any"}
    try:
        async with (
            asyncio.timeout(2 * _CONNECT_SECONDS),
            await psycopg.AsyncConnection.connect(**one, autocommit=True) as connection,
        ):
            row: tuple[str] | None = await (await connection.execute(_START)).fetchone()
            return None if row is None else row[0]
    except (psycopg.Error, TimeoutError):
        return None
