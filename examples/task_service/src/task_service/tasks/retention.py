"""Deletes old rows: finished runs with their logs, idempotency keys, and deleted tasks without runs."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import delete, exists, select

from msk_auth import Clock
from task_service.db.engine import Database
from task_service.db.schema import idempotency, run_log, runs, tasks

from .interfaces import RunConfig
from .models import RunState
from .run_requests import IDEMPOTENCY_LIFETIME

_BATCH = 500
_FINAL = tuple(state for state in RunState if state.is_final)


class Retention:
    """Applies the administrator's `run_retention_days`.

    Args:
        db: The service's database.
        clock: Where to take the time from.
        config: The administrator's live settings.
    """

    def __init__(self, db: Database, clock: Clock, config: RunConfig) -> None:
        self._db = db
        self._clock = clock
        self._config = config

    async def apply(self) -> int:
        """Delete in small transactions, so that other writers wait only briefly.

        Returns:
            How many runs were deleted.

        Raises:
            StoreUnavailable: The database does not answer. The transactions before are committed.
        """
        days = (await self._config.current()).run_retention_days
        now = self._clock.now()
        async with self._db.write() as connection:
            await connection.execute(
                delete(idempotency).where(idempotency.c.created_at <= now - IDEMPOTENCY_LIFETIME)
            )
        deleted = batch = await self._delete_runs(now - timedelta(days=days))
        while batch == _BATCH:
            batch = await self._delete_runs(now - timedelta(days=days))
            deleted += batch
        async with self._db.write() as connection:
            await connection.execute(
                delete(tasks).where(
                    tasks.c.deleted_at.is_not(None),
                    ~exists().where(runs.c.task_id == tasks.c.id),
                )
            )
        return deleted

    async def _delete_runs(self, before: datetime) -> int:
        async with self._db.write() as connection:
            result = await connection.execute(
                select(runs.c.id)
                .where(
                    runs.c.state.in_(_FINAL),
                    # No run ends before it is created; this condition uses the index.
                    runs.c.created_at < before,
                    runs.c.finished_at < before,
                )
                .limit(_BATCH)
            )
            ids = result.scalars().all()
            await connection.execute(delete(run_log).where(run_log.c.run_id.in_(ids)))
            await connection.execute(delete(runs).where(runs.c.id.in_(ids)))
        return len(ids)
