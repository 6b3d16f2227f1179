"""Tells workers on other machines that a run waits.

Only a doorbell. The row of the run is the truth: a bell that rings twice finds nothing to acquire, and a run whose bell
was lost is found by every worker's own look into the table. A bell says *that* a run waits; the worker that hears it takes
whichever is next (:mod:`.turns`), so the order of the bells decides nothing.
"""

from __future__ import annotations

from typing import Protocol

from sqlalchemy.ext.asyncio import AsyncConnection


class Doorbell(Protocol):
    """What is said about a run, in the very transaction that says the same of its row."""

    async def ring(self, connection: AsyncConnection, run_id: str) -> None:
        """A run waits for a worker. Which one is next, the worker finds out itself.

        Args:
            connection: In the transaction that queues the run: both become true, or neither.
            run_id: Which one.

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

    async def ring(self, connection: AsyncConnection, run_id: str) -> None:
        """Nothing."""

    async def unring(self, connection: AsyncConnection, run_id: str) -> None:
        """Nothing."""
