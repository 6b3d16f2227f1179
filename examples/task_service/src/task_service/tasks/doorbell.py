"""Tells workers on other machines that a run waits.

Only a doorbell. The row of the run is the truth: a bell that rings twice finds nothing to claim, and a run whose bell was
lost is found by every worker's own look into the table.
"""

from __future__ import annotations

from typing import Protocol

from sqlalchemy.ext.asyncio import AsyncConnection


class Doorbell(Protocol):
    """What is said about a run, in the very transaction that says the same of its row."""

    async def ring(self, connection: AsyncConnection, run_id: str, rank: int) -> None:
        """The run waits for a worker.

        Args:
            connection: In the transaction that queues the run: both become true, or neither.
            run_id: Which one.
            rank: The lower, the sooner.

        Raises:
            StoreUnavailable: The database cannot answer.
        """
        ...

    async def unring(self, connection: AsyncConnection, run_id: str) -> None:
        """The run does not wait any more, though nobody may have heard its bell.

        Raises:
            StoreUnavailable: The database cannot answer.
        """
        ...


class SilentDoorbell:
    """For one machine: whoever queues a run wakes the worker in its own process."""

    async def ring(self, connection: AsyncConnection, run_id: str, rank: int) -> None:
        """Nothing."""

    async def unring(self, connection: AsyncConnection, run_id: str) -> None:
        """Nothing."""
