"""Copies a whole database into another, such as from SQLite to PostgreSQL: everything or nothing.

Rows keep their ids and times, and API keys their digests; with the same `secrets.json` the keys remain valid.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from sqlalchemy import URL, Table, func, insert, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from msk_auth.errors import ConfigurationError

from .engine import Database, parse_url
from .migrate import SchemaState, migrate, schema_state
from .schema import metadata, queue_migrations, schema_works_with

_BATCH: Final = 500
_TIMEOUT_SECONDS: Final = 3600.0
# The migrations of the target write these.
_SCHEMA_TABLES: Final = frozenset({queue_migrations.name, schema_works_with.name})
TABLES: Final = tuple(table for table in metadata.sorted_tables if table.name not in _SCHEMA_TABLES)
"""The tables to copy, each after the tables that it references."""


async def copy_database(source_url: str, target_url: str) -> dict[str, int]:
    """Copy everything. Other writers of the source wait meanwhile.

    Args:
        source_url: A database with this version's schema, which stays unchanged.
        target_url: An empty database, whose tables are created.

    Returns:
        The number of copied rows by table name.

    Raises:
        ConfigurationError: The source is missing or of another version, or the target is not empty. Nothing was
            copied.
        StoreUnavailable: A database does not answer. Nothing was copied.
    """
    _check_urls(source_url, target_url)
    async with _opened(source_url) as source, _opened(target_url) as target:
        if await schema_state(source) is not SchemaState.CURRENT:
            raise ConfigurationError(
                "The database to copy from does not have this version's schema."
                " Run task-service migrate with it first."
            )
        await migrate(target)
        async with source.write() as reading, target.write() as writing:
            await _refuse_unless_empty(writing)
            for table in TABLES:
                await _copy(table, reading, writing)
            if writing.dialect.name == "postgresql":
                # The next entry continues the copied ones' ids.
                await writing.execute(
                    text(
                        "SELECT setval(pg_get_serial_sequence('audit', 'id'),"
                        " (SELECT coalesce(max(id), 0) + 1 FROM audit), false)"
                    )
                )
            return {table.name: await _verify(table, reading, writing) for table in TABLES}


async def _copy(table: Table, reading: AsyncConnection, writing: AsyncConnection) -> None:
    order = [*table.primary_key.columns]
    async with reading.stream(select(table).order_by(*order)) as result:
        async for rows in result.mappings().partitions(_BATCH):
            await writing.execute(insert(table), [dict(row) for row in rows])


async def _verify(table: Table, reading: AsyncConnection, writing: AsyncConnection) -> int:
    rows, copied = await _count(table, reading), await _count(table, writing)
    if rows != copied:
        raise ConfigurationError(
            f"The table {table.name} has {rows} rows, and its copy {copied}. Nothing was copied. Stop every process that"
            " uses one of the databases."
        )
    return copied


async def _refuse_unless_empty(connection: AsyncConnection) -> None:
    for table in TABLES:
        if await _count(table, connection):
            raise ConfigurationError(
                f"The database to copy to is not empty: {table.name} has rows. Nothing was copied."
                " Name an empty database."
            )


async def _count(table: Table, connection: AsyncConnection) -> int:
    return (await connection.execute(select(func.count()).select_from(table))).scalar_one()


def _check_urls(source_url: str, target_url: str) -> None:
    source, target = map(_resolved, (source_url, target_url))
    # Its own lock would keep the command waiting.
    if source == target:
        raise ConfigurationError(
            "The source and the target are the same database. Name another target."
        )
    if source.get_backend_name() == "sqlite" and not os.access(str(source.database), os.R_OK):
        raise ConfigurationError(
            f"There is no database file {source.database} that this user may read. Check the URL to copy from."
        )


def _resolved(url: str) -> URL:
    """The URL, in which each SQLite file has only one path."""
    parsed = parse_url(url)
    if parsed.get_backend_name() != "sqlite":
        return parsed
    return parsed.set(database=str(Path(str(parsed.database)).resolve()))


@asynccontextmanager
async def _opened(url: str) -> AsyncGenerator[Database]:
    db = Database.open(url, seconds=_TIMEOUT_SECONDS)
    try:
        yield db
    finally:
        await db.close()
