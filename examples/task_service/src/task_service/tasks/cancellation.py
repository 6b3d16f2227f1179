"""Cancelling many runs at once, in the transaction of the change that makes it necessary.

Workers notice within a second, on whichever machine: they look into the table, and a signal in this process only tells its
own worker sooner.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import ColumnElement

from task_service.db.schema import runs

from .shapes import RunState

OWNER_DISABLED: Final = "The account of the run's owner was disabled."
"""The error of a run that ends because of that."""


async def cancel_runs_of(
    connection: AsyncConnection, owner_id: str, now: datetime
) -> Sequence[str]:
    """End what a disabled owner has queued, and have what is running stopped.

    Args:
        connection: In the transaction that has disabled the owner: a run that is queued or started at the same time
            either comes before, and is found here, or sees that the owner is disabled.
        owner_id: Whose runs.
        now: The moment.

    Returns:
        The ids of the runs.
    """
    return await cancel_runs(connection, runs.c.owner_id == owner_id, now, error=OWNER_DISABLED)


async def cancel_runs(
    connection: AsyncConnection,
    which: ColumnElement[bool],
    now: datetime,
    *,
    error: str | None = None,
) -> Sequence[str]:
    """End those of the runs that are queued, and have those stopped that are running.

    Args:
        connection: In a write transaction.
        which: Of which runs.
        now: The moment.
        error: One line that says why, shown with the run; the reason that was given first stays.

    Returns:
        The ids of the runs.
    """
    # Locked in the order of their ids, as `Claims.renew` does, so that the two cannot block each other.
    unfinished = await connection.execute(
        select(runs.c.id)
        .where(which, runs.c.state.in_((RunState.QUEUED, RunState.RUNNING)))
        .order_by(runs.c.id)
        .with_for_update()
    )
    ids = unfinished.scalars().all()
    await connection.execute(
        update(runs)
        .where(runs.c.id.in_(ids), runs.c.state == RunState.QUEUED)
        .values(state=RunState.CANCELLED, finished_at=now, cancel_requested_at=now, error=error)
    )
    await connection.execute(
        update(runs)
        .where(
            runs.c.id.in_(ids),
            runs.c.state == RunState.RUNNING,
            runs.c.cancel_requested_at.is_(None),
        )
        .values(cancel_requested_at=now, error=error)
    )
    return ids
