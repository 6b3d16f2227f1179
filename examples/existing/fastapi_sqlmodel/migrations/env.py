from alembic import context
from inventory import models
from inventory.db import engine
from sqlmodel import SQLModel

__all__ = ["models"]

with engine.connect() as connection:
    context.configure(connection=connection, target_metadata=SQLModel.metadata)
    with context.begin_transaction():
        context.run_migrations()
