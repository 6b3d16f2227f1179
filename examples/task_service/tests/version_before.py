"""A database as the version before this one made it.

`schema_REVISION.sql` is what that version's tables are made with on PostgreSQL, and its rows about the schema. A maintainer who
adds a migration replaces it, before the tables in `schema.py` change::

    metadata.create_all(create_mock_engine("postgresql://", lambda ddl, *_, **__: print(ddl.compile(dialect=dialect()), ";")))
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection

REVISION = "0019"

_ON_SQLITE = {
    "BIGSERIAL": "INTEGER",
    ' COLLATE "C"': "",
    "external_login BOOLEAN DEFAULT false": "external_login BOOLEAN DEFAULT 0",
    "service_account BOOLEAN DEFAULT false": "service_account BOOLEAN DEFAULT 0",
}


def create_schema(connection: Connection) -> None:
    """Make the tables, without the queue's, in an empty database."""
    script = Path(__file__).with_name(f"schema_{REVISION}.sql").read_text("utf-8")
    if connection.dialect.name == "sqlite":
        for of_postgresql, of_sqlite in _ON_SQLITE.items():
            script = script.replace(of_postgresql, of_sqlite)
    for statement in script.split(";"):
        if statement.strip():
            connection.exec_driver_sql(statement)
