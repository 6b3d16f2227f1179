from alembic import context
from inventory import keys, models
from inventory.db import engine
from sqlmodel import SQLModel

__all__ = ["keys", "models"]

with engine.connect() as connection:
    context.configure(connection=connection, target_metadata=SQLModel.metadata)
    with context.begin_transaction():
        context.run_migrations()
