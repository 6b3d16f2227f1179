"""Run by alembic, on the connection that `upgrade` hands in."""

from __future__ import annotations

from alembic import context

from msk_auth.stores.sqlalchemy.migrations import VERSION_TABLE

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    version_table=VERSION_TABLE,
    # SQLite rolls back the change of a table as well as PostgreSQL does; alembic does not count on it.
    transactional_ddl=True if connection.dialect.name == "sqlite" else None,
)
context.run_migrations()
