"""How many runs there are in each state, for the metrics."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from sqlalchemy import func, select

from msk_auth import Clock
from task_service.db.engine import Database
from task_service.db.schema import runs

from .shapes import RunState


class RunCensus:
    """Counts runs, and remembers the result for a while: anybody may ask as often as they like.

    Args:
        db: The service's database.
        clock: Its monotonic side measures how old a count is.
        lifetime: How long a count is good for.
    """

    def __init__(
        self, db: Database, clock: Clock, *, lifetime: timedelta = timedelta(seconds=5)
    ) -> None:
        self._db = db
        self._clock = clock
        self._lifetime = lifetime.total_seconds()
        self._turn = asyncio.Lock()
        self._counted_at: float | None = None
        self._counts: dict[str, int] = {}

    async def counts(self) -> dict[str, int]:
        """The number of runs by state, with every state in it.

        Raises:
            StoreUnavailable: The database does not answer.
        """
        async with self._turn:
            now = self._clock.monotonic()
            if self._counted_at is None or now - self._counted_at >= self._lifetime:
                async with self._db.read() as connection:
                    found = await connection.execute(
                        select(runs.c.state, func.count().label("runs")).group_by(runs.c.state)
                    )
                    counted: dict[str, int] = {row.state: row.runs for row in found}
                self._counts = {state.value: counted.get(state.value, 0) for state in RunState}
                self._counted_at = now
            return self._counts
