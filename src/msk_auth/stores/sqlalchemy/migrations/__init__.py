"""The library's own migrations, for applications that leave its tables to it.

One rule: a migration touches the library's own tables and no others.

Call :func:`upgrade` at start, in as many processes as there are: one of them does the work and the others wait. The
migrations keep their own version table, `msk_auth_alembic_version`, and touch no other table.

If the application has an alembic of its own, give it :func:`include_object`: autogenerate proposes to drop every table
that the application's metadata does not have. Or add the tables to that metadata with
:func:`~msk_auth.stores.sqlalchemy.api_key_table`, and leave :func:`upgrade` out.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.config import Config
from sqlalchemy import text
from sqlalchemy.engine import Connection, Engine

from msk_auth.stores.sqlalchemy._sqlite import begin_immediate

__all__ = ["include_object", "upgrade"]

VERSION_TABLE: Final = "msk_auth_alembic_version"
"""Where it is kept which migrations have run."""

_FOLDER: Final = Path(__file__).parent

_TABLES: Final = frozenset(
    {
        "msk_auth_api_keys",
        "msk_auth_api_keys_registers",
        VERSION_TABLE,
    }
)

_LOCK: Final = 0x6D736B5F61757468
"""Of no meaning but ours: the name of the lock on PostgreSQL."""

_MAX_WAIT_SECONDS: Final = 60
"""How long a process waits for another one to finish migrating, on MariaDB and MySQL."""


def upgrade(bind: Engine | Connection) -> None:
    """Bring the library's tables up to date; a database that is up to date is left as it is.

    From asynchronous code: `await connection.run_sync(upgrade)`.

    Args:
        bind: An engine, or a connection that nothing has been done with yet; it is committed.

    Raises:
        sqlalchemy.exc.DBAPIError: The database refused. Run it again: on SQLite and PostgreSQL nothing was
            changed, on MariaDB and MySQL the steps before stay done.
    """
    if isinstance(bind, Engine):
        with bind.connect() as connection:
            upgrade(connection)
        return
    with _alone(bind):
        config = Config()
        config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
        config.attributes["connection"] = bind
        command.upgrade(config, "head")


def include_object(
    _object: Any, name: str | None, type_: str, _reflected: bool, compare_to: Any
) -> bool:
    """Keep an application's alembic from dropping the tables that :func:`upgrade` made.

    For alembic's `context.configure(include_object=include_object)`, or Flask-Migrate's
    `Migrate(app, db, include_object=include_object)`. With a function of your own: call both, and return whether both
    returned True.

    Returns:
        False for a table of the library that is in the database and not in the application's metadata, else True.
    """
    return type_ != "table" or name not in _TABLES or not _reflected or compare_to is not None


@contextmanager
def _alone(connection: Connection) -> Generator[None]:
    """Let one process migrate at a time."""
    if connection.dialect.name in {"sqlite", "postgresql"}:
        with connection.begin():
            if connection.dialect.name == "sqlite":
                begin_immediate(connection)
            else:
                connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
            yield
        return
    # Every change of a table commits there, so the lock must outlast the transaction: also the one that records the
    # version, or the process that waits repeats all of it.
    wait = {"name": VERSION_TABLE, "seconds": _MAX_WAIT_SECONDS}
    with connection.begin():
        if connection.scalar(text("SELECT GET_LOCK(:name, :seconds)"), wait) != 1:
            raise TimeoutError("another process is migrating the tables for too long")
    try:
        with connection.begin():
            yield
    finally:
        with connection.begin():
            connection.execute(text("SELECT RELEASE_LOCK(:name)"), {"name": VERSION_TABLE})
