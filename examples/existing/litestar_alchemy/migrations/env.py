import asyncio
from typing import TYPE_CHECKING, cast

from advanced_alchemy.base import metadata_registry
from alembic import context
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncEngine

if TYPE_CHECKING:
    from advanced_alchemy.alembic.commands import AlembicCommandConfig

config = cast("AlembicCommandConfig", context.config)


def run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata_registry.get(config.bind_key),
        compare_type=config.compare_type,
        version_table=config.version_table_name,
        user_module_prefix=config.user_module_prefix,
        render_as_batch=config.render_as_batch,
    )
    with context.begin_transaction():
        context.run_migrations()


async def main() -> None:
    engine = cast("AsyncEngine", config.engine)
    async with engine.connect() as connection:
        await connection.run_sync(run)
        await connection.commit()
    await engine.dispose()


asyncio.run(main())
