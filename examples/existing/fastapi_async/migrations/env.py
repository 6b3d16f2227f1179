import asyncio

from alembic import context
from helpdesk.database import Base, engine
from helpdesk.tickets import models as tickets
from helpdesk.users import models as users
from sqlalchemy import Connection

__all__ = ["tickets", "users"]


def run(connection: Connection) -> None:
    context.configure(connection=connection, target_metadata=Base.metadata)
    with context.begin_transaction():
        context.run_migrations()


async def main() -> None:
    async with engine.connect() as connection:
        await connection.run_sync(run)
        await connection.commit()
    await engine.dispose()


asyncio.run(main())
