"""Migrated PostgreSQL databases that one test after another uses: to make and drop one takes half a second."""

from __future__ import annotations

import atexit
import contextlib
import secrets
from collections.abc import Callable, Iterator

import psycopg

from task_service.db import schema

_FILLED = ("alembic_version", "schema_works_with", "queue_migrations")
"""What migrations write into. A borrower may not."""

_EMPTIED = (
    "procrastinate_events",
    "procrastinate_periodic_defers",
    "procrastinate_jobs",
    "procrastinate_workers",
    # Who refers to others comes before them.
    *(table.name for table in reversed(schema.metadata.sorted_tables) if table.name not in _FILLED),
)

# What `DROP DATABASE … WITH (FORCE)` does to connections that a test left open; it waits until they are gone.
_END_OTHERS = (
    "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)
_COUNT_ANEW = (
    "SELECT setval(format('%I', sequencename)::regclass, start_value, false) FROM pg_sequences"
)
_COLUMNS = (
    "SELECT string_agg(format('%s.%s %s', attrelid::regclass, attname, atttypid), ',' ORDER BY attrelid, attnum)"
    " FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid"
    " WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND attnum > 0"
)
_SHAPE = [
    _COLUMNS,
    *(f"SELECT string_agg(each::text, ',' ORDER BY each) FROM {name} AS each" for name in _FILLED),
]


class PostgresPool:
    """Lends databases, and takes them back without what their borrowers wrote.

    Args:
        server: A database on the server, to be connected to for making and dropping the others.
        migrate: Migrates the empty database at a URL.
    """

    def __init__(self, server: str, migrate: Callable[[str], None]) -> None:
        self._server = server
        self._migrate = migrate
        self._idle: list[str] = []
        self._shapes: dict[str, list[object]] = {}

    @contextlib.contextmanager
    def borrow(self) -> Iterator[str]:
        """The URL of a migrated database without data.

        A database is dropped if its test fails, changes the tables, or changes the rows that migrations inserted.
        """
        name = self._idle.pop() if self._idle else self._make()
        try:
            yield self._url(name)
            fresh = self._empty(name)
        except BaseException:
            self._drop(name)
            raise
        if fresh:
            self._idle.append(name)
        else:
            self._drop(name)

    def _make(self) -> str:
        name = f"task_service_{secrets.token_hex(6)}"
        self._execute(f'CREATE DATABASE "{name}"')
        if not self._shapes:
            atexit.register(self._drop_all)
        self._shapes[name] = []
        # As with SQLite: no test pulls the plug, and none waits for the disk.
        self._execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
        self._migrate(self._url(name))
        with psycopg.connect(self._url(name)) as connection:
            self._shapes[name] = _shape(connection)
        return name

    def _empty(self, name: str) -> bool:
        """False if it cannot be as it was when it was made."""
        with psycopg.connect(self._url(name)) as connection:
            connection.execute(_END_OTHERS)
            if _shape(connection) != self._shapes[name]:
                return False
            connection.execute(";".join(f"DELETE FROM {table}" for table in _EMPTIED))
            connection.execute(_COUNT_ANEW)
        return True

    def _drop(self, name: str) -> None:
        self._execute(f'DROP DATABASE "{name}" WITH (FORCE)')
        del self._shapes[name]

    def _drop_all(self) -> None:
        for name in list(self._shapes):
            self._drop(name)

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self._server, autocommit=True) as admin:
            admin.execute(statement)

    def _url(self, name: str) -> str:
        return f"{self._server.rpartition('/')[0]}/{name}"


def _shape(connection: psycopg.Connection) -> list[object]:
    return [connection.execute(query).fetchone() for query in _SHAPE]
