"""Brings a database to the schema of this version. Runs at each start; does nothing if there is nothing to do.

Everything happens in one transaction that no other process can share: on SQLite `BEGIN IMMEDIATE` holds the only write
lock, on PostgreSQL an advisory lock is taken first. Of several processes that start together one migrates, the others
wait and find it done; a process that dies in the middle leaves what was there before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect
from sqlalchemy.ext.asyncio import AsyncConnection

from msk_auth import ConfigurationError

from .engine import Database
from .schema import metadata

# A large table may take its time; another process that migrates it, too.
_SECONDS: Final = 600.0

# Any number that nothing else locks in this database.
_ADVISORY_LOCK: Final = 827_573_784_23


async def migrate(db: Database) -> None:
    """Bring the database to this version's schema. What is in it stays.

    Raises:
        ConfigurationError: A newer version of the service, or another application, made its tables.
        StoreUnavailable: The database cannot answer.
    """
    patient = db.with_patience(_SECONDS)
    try:
        async with patient.write() as connection:
            if connection.dialect.name == "postgresql":
                await connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")
            await connection.run_sync(_upgrade)
    finally:
        await patient.close()


async def is_migrated(db: Database) -> bool:
    """True if the database has this version's schema.

    Raises:
        StoreUnavailable: The database cannot answer.
    """
    async with db.read() as connection:
        revision = await revision_of(connection)
    return revision == ScriptDirectory.from_config(_config()).get_current_head()


async def revision_of(connection: AsyncConnection) -> str | None:
    """The schema that the database has, as the migrations name it; None if it has none."""
    return await connection.run_sync(_revision)


def _upgrade(connection: Connection) -> None:
    config = _config()
    script = ScriptDirectory.from_config(config)
    revision = _revision(connection)
    if revision == script.get_current_head():
        return
    known = {known.revision for known in script.walk_revisions()}
    if revision is not None and revision not in known:
        raise ConfigurationError(
            f"The database has the schema {revision!r} of a newer version of the service. Install that version, or"
            " one that is newer still."
        )
    if revision is None and (
        taken := metadata.tables.keys() & inspect(connection).get_table_names()
    ):
        raise ConfigurationError(
            f"The database holds tables that the service did not make: {', '.join(sorted(taken))}."
            " Give it a database of its own."
        )
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _config() -> Config:
    config = Config()
    folder = str(Path(__file__).with_name("migrations"))
    config.set_main_option("script_location", folder.replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
