"""The task with which a new service begins, so that the first minute ends with something that worked."""

from __future__ import annotations

from sqlalchemy import exists, insert, select

from msk_auth import Clock
from task_service.db.engine import Database, lock_table
from task_service.db.schema import tasks
from task_service.ids import new_id

EXAMPLE_NAME = "Say hello"
EXAMPLE_HANDLER = "command"
EXAMPLE_PARAMS = {
    "argv": ["echo", "Hello! This is your first run: press Run, or start it with an API key."]
}
"""Runs on any machine, without a network, and with the commands that are allowed before anybody has listed one."""


async def add_example_task(db: Database, clock: Clock, owner_id: str) -> None:
    """Give a user the example task, unless there are tasks already, deleted ones included.

    Args:
        db: The service's database.
        clock: Where to take the time from.
        owner_id: The first administrator.

    Raises:
        StoreUnavailable: The database does not answer.
    """
    now = clock.now()
    async with db.write() as connection:
        # Of several processes that start together one adds it.
        await lock_table(connection, tasks)
        if await connection.scalar(select(exists().select_from(tasks))):
            return
        await connection.execute(
            insert(tasks).values(
                id=new_id("tsk"),
                owner_id=owner_id,
                name=EXAMPLE_NAME,
                handler=EXAMPLE_HANDLER,
                params=EXAMPLE_PARAMS,
                created_at=now,
                updated_at=now,
            )
        )
