"""The library's own migrations, for applications that let the library own its tables.

One rule: a migration touches only the library's own tables.

Call :func:`upgrade` at start, in every process: one of them migrates and the others wait. The
migrations have their own version table, `msk_auth_alembic_version`.

If the application uses alembic too, give it :func:`include_object`: autogenerate proposes to drop every table
that the application's metadata does not have. Or add the tables to that metadata with
:func:`~msk_auth.stores.sqlalchemy.api_key_table`, and do not call :func:`upgrade`.
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
"""The table that records the migrations."""

_FOLDER: Final = Path(__file__).parent

_TABLES: Final = frozenset(
    {
        "msk_auth_api_keys",
        "msk_auth_api_keys_registers",
        VERSION_TABLE,
    }
)

_LOCK: Final = 0x6D736B5F61757468
"""An arbitrary number: the name of the lock on PostgreSQL."""

_MAX_WAIT_SECONDS: Final = 60
"""How long a process waits for another process to finish migrating, on MariaDB and MySQL."""


def upgrade(bind: Engine | Connection) -> None:
    """Migrate the library's tables; an up-to-date database stays unchanged.

    From asynchronous code: `await connection.run_sync(upgrade)`.

    Args:
        bind: An engine, or an unused connection, which is committed.

    Raises:
        sqlalchemy.exc.DBAPIError: The database refused. Repeat the call: on SQLite and PostgreSQL nothing was
            changed, on MariaDB and MySQL earlier steps stay done.
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
    `Migrate(app, db, include_object=include_object)`. If you have such a function, call both, and return True only if both
    returned True.

    Returns:
        False for a table of the library that is in the database and not in the application's metadata, otherwise True.
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
    # On these databases every change of a table commits, so the lock must outlast the transactions, including the one that
    # records the version; otherwise the waiting process would repeat all steps.
    wait = {"name": VERSION_TABLE, "seconds": _MAX_WAIT_SECONDS}
    with connection.begin():
        if connection.scalar(text("SELECT GET_LOCK(:name, :seconds)"), wait) != 1:
            raise TimeoutError("another process takes too long to migrate the tables")
    try:
        with connection.begin():
            yield
    finally:
        with connection.begin():
            connection.execute(text("SELECT RELEASE_LOCK(:name)"), {"name": VERSION_TABLE})
