"""Runs the migrations in the transaction that `task_service.db.migrate` has begun."""

from alembic import context

from task_service.db.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
