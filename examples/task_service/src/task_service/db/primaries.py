"""Refuses two writable servers with one database, if the URL names several hosts.

After a failover the former primary may return and be writable. `target_session_attrs=read-write` then takes the first
answer, so processes write to different copies: a key that is revoked on one server works on the other. Copies have
the same system identifier; a server with two names has the same time of start for both.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

import psycopg

from msk_auth.errors import ConfigurationError

from .engine import Database

_CONNECT_SECONDS: Final = 3
_QUERY: Final = (
    "SELECT system_identifier::text, pg_postmaster_start_time()::text"
    " FROM pg_control_system() WHERE NOT pg_is_in_recovery()"
)


async def refuse_two_primaries(db: Database) -> None:
    """Ask each host of the database's URL whether it is writable. Hosts that do not answer are skipped.

    Args:
        db: A PostgreSQL database.

    Raises:
        ConfigurationError: Two servers are writable, and have copies of one database.
    """
    _, options = db.engine.dialect.create_connect_args(db.engine.url)
    hosts = str(options.get("host", "")).split(",")
    if len(hosts) < 2:
        return
    ports = str(options.get("port", "5432")).split(",")
    if len(ports) == 1:
        ports *= len(hosts)
    found = await asyncio.gather(
        *(_ask(options, host, port) for host, port in zip(hosts, ports, strict=True))
    )
    writable: dict[str, dict[str, str]] = defaultdict(dict)
    for host, port, answer in zip(hosts, ports, found, strict=True):
        if answer is not None:
            identifier, started = answer
            writable[identifier].setdefault(started, f"{host}:{port}")
    for servers in writable.values():
        if len(servers) > 1:
            raise ConfigurationError(
                f"{' and '.join(servers.values())} are both writable and hold copies of one database, so what is revoked at"
                " one of them is not revoked at the other. Stop the one that was not promoted and keep it from starting, then"
                " make a standby of it with pg_rewind or pg_basebackup."
            )


async def _ask(options: Mapping[str, Any], host: str, port: str) -> tuple[str, str] | None:
    """The system identifier and the start time of a writable server; None if it is not writable, or does not answer."""
    one: dict[str, Any] = {**options, "host": host, "port": port}
    one |= {"connect_timeout": _CONNECT_SECONDS, "target_session_attrs": "any"}
    try:
        async with (
            asyncio.timeout(2 * _CONNECT_SECONDS),
            await psycopg.AsyncConnection.connect(**one, autocommit=True) as connection,
        ):
            row: tuple[str, str] | None = await (await connection.execute(_QUERY)).fetchone()
            return row
    except (psycopg.Error, TimeoutError):
        return None
