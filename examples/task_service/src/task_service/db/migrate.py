"""Brings a database to the schema of this version. Runs at each start; does nothing if there is nothing to do.

Everything happens in one transaction that no other process can share: on SQLite `BEGIN IMMEDIATE` holds the only write
lock, on PostgreSQL see :mod:`task_service.db.migrate_online`. Of several processes that start together one migrates, the
others wait and find it done; a process that dies in the middle leaves what was there before.

Old and new processes work side by side while a deployment is brought to a new version. A migration that only adds
(tables, indexes, columns that may be missing or have a default) says so in `schema_works_with`: which older versions go
on with the schema that it makes, and may even be started anew. What takes something away belongs into a version after
the one that stopped using it.
"""

from __future__ import annotations

import logging
from enum import Enum
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, select
from sqlalchemy.ext.asyncio import AsyncConnection

from msk_auth import ConfigurationError

from .engine import Database
from .schema import metadata, schema_works_with

# A large table may take its time; another process that migrates it, too.
_SECONDS: Final = 600.0

_log = logging.getLogger(__name__)


class SchemaState(Enum):
    """What the schema of a database is to this version of the service."""

    MISSING = "there is none"
    FOREIGN = "tables of another application are in the way"
    OLDER = "an older version made it"
    CURRENT = "it is this version's"
    NEWER_BUT_FITTING = "a newer version made it, and this one goes on with it"
    NEWER = "a newer version made it"


async def migrate(db: Database, *, finish: bool = False) -> list[str]:
    """Bring the database to this version's schema. What is in it stays, and who uses it hardly waits.

    Args:
        db: The database.
        finish: Whether to apply also what processes of an older version cannot live with. Say so after the last of
            them has stopped.

    Returns:
        The migrations that are left for that moment.

    Raises:
        ConfigurationError: A newer version of the service, or another application, made its tables.
        StoreUnavailable: The database cannot answer.
    """
    patient = db.with_patience(_SECONDS)
    try:
        if db.engine.dialect.name == "postgresql":
            # What only PostgreSQL needs, the queue's package with it, is loaded where there is one.
            from .migrate_online import migrate_online

            return await migrate_online(patient, _upgrade, finish=finish)
        async with patient.write() as connection:
            await connection.run_sync(_upgrade)
        return []
    finally:
        await patient.close()


async def waiting_for_finish(db: Database) -> list[str]:
    """The migrations that `migrate(db, finish=True)` would apply to a database of this version's schema.

    Raises:
        StoreUnavailable: The database cannot answer.
    """
    if db.engine.dialect.name != "postgresql":
        return []
    from .queue_schema import queue_migrations_left

    async with db.read() as connection:
        return await queue_migrations_left(connection)


async def waiting_for_start(db: Database) -> list[str]:
    """The indexes that could not be built beside long transactions, and that the next start tries to build.

    Raises:
        StoreUnavailable: The database cannot answer.
    """
    if db.engine.dialect.name != "postgresql":
        return []
    from .migrate_online import indexes_left

    async with db.read() as connection:
        return await indexes_left(connection)


async def schema_state(db: Database) -> SchemaState:
    """What the schema of the database is to this version. Changes nothing.

    Raises:
        StoreUnavailable: The database cannot answer.
    """
    async with db.read() as connection:
        return await connection.run_sync(_state)


async def is_migrated(db: Database) -> bool:
    """True if the database has this version's schema.

    Raises:
        StoreUnavailable: The database cannot answer.
    """
    return await schema_state(db) is SchemaState.CURRENT


async def revision_of(connection: AsyncConnection) -> str | None:
    """The schema that the database has, as the migrations name it; None if it has none."""
    return await connection.run_sync(_revision)


def _upgrade(connection: Connection) -> None:
    match _state(connection):
        case SchemaState.CURRENT | SchemaState.NEWER_BUT_FITTING:
            return
        case SchemaState.NEWER:
            raise ConfigurationError(
                f"The database has the schema {_revision(connection)!r} of a newer version of the service. Install that"
                " version, or one that is newer still."
            )
        case SchemaState.FOREIGN:
            raise ConfigurationError(
                "The database holds tables that the service did not make:"
                f" {', '.join(_foreign_tables(connection))}. Give it a database of its own."
            )
        case SchemaState.MISSING | SchemaState.OLDER:
            config = _config()
            config.attributes["connection"] = connection
            before = _revision(connection)
            command.upgrade(config, "head")
            _log.info(
                "brought the database from the schema %s to %s", before, _revision(connection)
            )


def _state(connection: Connection) -> SchemaState:
    script = ScriptDirectory.from_config(_config())
    head = script.get_current_head()
    revision = _revision(connection)
    if revision is None:
        return SchemaState.FOREIGN if _foreign_tables(connection) else SchemaState.MISSING
    if revision == head:
        return SchemaState.CURRENT
    if revision in {known.revision for known in script.walk_revisions()}:
        return SchemaState.OLDER
    if not inspect(connection).has_table(schema_works_with.name):
        # Not a version of this service at all: its own record of migrations has the same name.
        return SchemaState.FOREIGN if _foreign_tables(connection) else SchemaState.NEWER
    fits = connection.scalar(
        select(schema_works_with.c.code).where(
            schema_works_with.c.revision == revision, schema_works_with.c.code == head
        )
    )
    return SchemaState.NEWER if fits is None else SchemaState.NEWER_BUT_FITTING


def _foreign_tables(connection: Connection) -> list[str]:
    return sorted(metadata.tables.keys() & inspect(connection).get_table_names())


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _config() -> Config:
    config = Config()
    folder = str(Path(__file__).with_name("migrations"))
    config.set_main_option("script_location", folder.replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
