"""Deletes old rows: finished runs with their logs, idempotency keys, and deleted tasks without runs."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import delete, exists, select

from task_service.db.engine import Database
from task_service.db.schema import idempotency, run_log, runs, tasks

from .models import RunState
from .runs import IDEMPOTENCY_LIFETIME

_BATCH = 500
_FINAL = tuple(state for state in RunState if state.is_final)


async def purge(db: Database, days: int, now: datetime) -> int:
    """Delete in small transactions, so that other writers wait only briefly.

    Args:
        db: The service's database.
        days: The days for which finished runs are kept: the administrator's `run_retention_days`.
        now: The present time.

    Returns:
        The number of deleted runs.

    Raises:
        StoreUnavailable: The database does not answer. Earlier transactions are committed.
    """
    async with db.write() as connection:
        await connection.execute(
            delete(idempotency).where(idempotency.c.created_at <= now - IDEMPOTENCY_LIFETIME)
        )
    before = now - timedelta(days=days)
    old = (
        select(runs.c.id)
        .where(
            runs.c.state.in_(_FINAL),
            # No run ends before it is created; this condition uses the index.
            runs.c.created_at < before,
            runs.c.finished_at < before,
        )
        .limit(_BATCH)
    )
    deleted = 0
    while True:
        async with db.write() as connection:
            ids = (await connection.scalars(old)).all()
            await connection.execute(delete(run_log).where(run_log.c.run_id.in_(ids)))
            await connection.execute(delete(runs).where(runs.c.id.in_(ids)))
        deleted += len(ids)
        if len(ids) < _BATCH:
            break
    async with db.write() as connection:
        await connection.execute(
            delete(tasks).where(
                tasks.c.deleted_at.is_not(None),
                ~exists().where(runs.c.task_id == tasks.c.id),
            )
        )
    return deleted
