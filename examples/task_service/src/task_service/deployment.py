"""What the processes on one database know of the deployment that they are: its id.

The id is made at the first start and is part of the `aud` of login tokens. Two deployments whose secrets were copied from
one another do not take each other's logins (RFC 7519, section 4.1.3). It is in the database and not in the data folder,
because that is what distinguishes deployments: processes on one database are one, wherever their secrets came from.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from sqlalchemy import delete, select
from sqlalchemy.dialects import postgresql, sqlite

from task_service.db.engine import Database
from task_service.db.schema import deployment
from task_service.ids import new_id

_ID: Final = "id"
_COLUMNS: Final = deployment.c


async def deployment_id(db: Database, now: datetime) -> str:
    """The id of the deployment; made if there is none. Processes that start at the same moment agree.

    Args:
        db: A database of this version's schema.
        now: When an id is made.

    Raises:
        StoreUnavailable: The database cannot answer.
    """
    wanted = select(_COLUMNS.value).where(_COLUMNS.name == _ID)
    async with db.read() as connection:
        found: str | None = await connection.scalar(wanted)
    if found is not None:
        return found
    dialect = sqlite if db.engine.dialect.name == "sqlite" else postgresql
    first = dialect.insert(deployment).values(name=_ID, value=new_id("dep"), noted_at=now)
    async with db.write() as connection:
        # The first one wins. Another process that inserts at this moment is waited for.
        await connection.execute(first.on_conflict_do_nothing(index_elements=[_COLUMNS.name]))
        made: str = (await connection.execute(wanted)).scalar_one()
    return made


async def forget_deployment_id(db: Database) -> None:
    """Let the next process that serves make another id: the logins of the present one end.

    Raises:
        StoreUnavailable: The database cannot answer.
    """
    async with db.write() as connection:
        await connection.execute(delete(deployment).where(_COLUMNS.name == _ID))
