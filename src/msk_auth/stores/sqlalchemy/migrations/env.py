"""Run by alembic, on the connection of `upgrade`."""

from __future__ import annotations

from alembic import context

from msk_auth.stores.sqlalchemy.migrations import VERSION_TABLE

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    version_table=VERSION_TABLE,
    # SQLite rolls back changes of tables like PostgreSQL, but alembic does not assume this.
    transactional_ddl=True if connection.dialect.name == "sqlite" else None,
)
context.run_migrations()
