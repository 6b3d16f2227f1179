"""Brings a database to the schema of this version. Runs at each start, and does nothing on a current schema.

A migration is one transaction. On SQLite `BEGIN IMMEDIATE` takes the only write lock; on PostgreSQL see
:mod:`task_service.db.migrate_postgresql`. If several processes start together, one migrates, and the others wait. A
process that dies during a migration changes nothing.

An empty database gets the tables of `schema.py` directly, and existing databases get migrations (alembic's recipe
"Building an Up to Date Database from Scratch"). A test compares the results.

Old and new processes work side by side during an upgrade. A migration that only adds (tables, indexes, columns that are
nullable or have a default) names in `works_with` the older versions that work with its schema, even after a restart;
they find themselves in the table `schema_works_with`. A migration that removes something names none. It waits for
`task-service migrate --finish`, and until then this version works with the previous schema.
"""

from __future__ import annotations

import logging
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection, insert, inspect, select
from sqlalchemy.ext.asyncio import AsyncConnection

from msk_auth.errors import ConfigurationError

from .engine import Database
from .schema import metadata, schema_works_with

# For large tables, and to wait for another process that migrates.
_TIMEOUT_SECONDS: Final = 600.0

_log = logging.getLogger(__name__)


class SchemaState(Enum):
    """The schema of a database that this version can use, or bring to its own."""

    OLDER = "there is none, or an older version created it"
    CURRENT = "it is this version's"
    NEWER = "a newer version created it, and this version works with it"


async def migrate(db: Database, *, finish: bool = False) -> list[str]:
    """Bring the database to this version's schema. Its data stays, and other processes wait only briefly.

    Args:
        db: The database.
        finish: Also apply the migrations with which processes of an older version do not work. Pass True after the
            last of these processes has stopped.

    Returns:
        The migrations that are left for `finish`.

    Raises:
        ConfigurationError: A newer version of the service, a much older one, or another application created its tables; or
            a pooler shares the sessions of its connections; or two servers of the URL are writable.
        StoreUnavailable: The database cannot answer.
    """
    extended = db.with_timeout(_TIMEOUT_SECONDS)
    try:
        if db.engine.dialect.name == "postgresql":
            # Imported here, because a service on SQLite does not need the queue's package.
            from .migrate_postgresql import migrate_postgresql
            from .servers import refuse_shared_sessions, refuse_two_primaries

            # Every process calls this before it uses its database.
            await refuse_two_primaries(db)
            await refuse_shared_sessions(db)
            await migrate_postgresql(extended, partial(_upgrade, finish=finish), finish=finish)
        else:
            async with extended.write() as connection:
                await connection.run_sync(_upgrade, finish=finish)
        return await waiting_for_finish(extended)
    finally:
        await extended.close()


async def waiting_for_finish(db: Database) -> list[str]:
    """The migrations that `migrate(db, finish=True)` would apply to a database of this version's schema.

    Raises:
        StoreUnavailable: The database cannot answer.
    """
    async with db.read() as connection:
        waiting = await connection.run_sync(_waiting)
        if connection.dialect.name == "postgresql":
            from .migrate_postgresql import queue_migrations_left

            waiting += await queue_migrations_left(connection)
    return waiting


async def schema_state(db: Database) -> SchemaState:
    """Compare the schema of the database with this version's. Changes nothing.

    Raises:
        ConfigurationError: As for :func:`migrate`.
        StoreUnavailable: The database cannot answer.
    """
    async with db.read() as connection:
        return await connection.run_sync(_state)


async def revision_of(connection: AsyncConnection) -> str | None:
    """The latest applied migration of the database; None if there is no schema."""
    return await connection.run_sync(_revision)


def _upgrade(connection: Connection, *, finish: bool) -> None:
    if _state(connection) is not SchemaState.OLDER and not (finish and _waiting(connection)):
        return
    config = _config()
    config.attributes["connection"] = connection
    before = _revision(connection)
    usable = _usable(ScriptDirectory.from_config(config))
    target = usable[0] if finish or before is None else usable[-1]
    if before is None:
        metadata.create_all(connection)
        command.stamp(config, target.revision)
        _log.info("created the schema %s in the empty database", target.revision)
    else:
        command.upgrade(config, target.revision)
        _log.info("migrated the database from the schema %s to %s", before, target.revision)
    for code in target.module.works_with:
        connection.execute(insert(schema_works_with).values(revision=target.revision, code=code))


def _usable(script: ScriptDirectory) -> list[Script]:
    """The schemas that work with this version, the newest first. All but the last wait for `finish`."""
    usable: list[Script] = []
    for each in script.walk_revisions():
        usable.append(each)
        if each.module.works_with:
            break
    return usable


def _waiting(connection: Connection) -> list[str]:
    """The service's own migrations that wait for `finish`; none if a newer version made the schema."""
    revisions = [each.revision for each in _usable(ScriptDirectory.from_config(_config()))]
    revision = _revision(connection)
    return revisions[: revisions.index(revision)] if revision in revisions else []


def _state(connection: Connection) -> SchemaState:
    script = ScriptDirectory.from_config(_config())
    head = script.get_current_head()
    revision = _revision(connection)
    if revision in {each.revision for each in _usable(script)}:
        return SchemaState.CURRENT
    if revision in {known.revision for known in script.walk_revisions()}:
        return SchemaState.OLDER
    if revision is not None and revision.isdecimal() and revision < str(script.get_base()):
        raise ConfigurationError(
            f"The database has the schema {revision!r}, and this version migrates only later schemas."
            " Start the previous version with it first."
        )
    # Another application's table of revisions has the same name.
    is_ours = inspect(connection).has_table(schema_works_with.name)
    foreign = sorted(metadata.tables.keys() & inspect(connection).get_table_names())
    if foreign and (revision is None or not is_ours):
        raise ConfigurationError(
            f"The database has tables that the service did not create: {', '.join(foreign)}. Give the service its own"
            " database."
        )
    if revision is None:
        return SchemaState.OLDER
    works = select(schema_works_with.c.code).where(
        schema_works_with.c.revision == revision, schema_works_with.c.code == head
    )
    if not is_ours or connection.scalar(works) is None:
        raise ConfigurationError(
            f"The database has the schema {revision!r} of a newer version of the service. Install that version, or a"
            " later version."
        )
    return SchemaState.NEWER


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _config() -> Config:
    config = Config()
    folder = str(Path(__file__).with_name("migrations"))
    config.set_main_option("script_location", folder.replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
