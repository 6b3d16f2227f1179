"""What tasks and runs tell of themselves, for whoever keeps a log of it."""

from __future__ import annotations

from typing import Any, Protocol

from sqlalchemy.ext.asyncio import AsyncConnection

from msk_auth import Principal


class Witness(Protocol):
    """Told of each change inside its own transaction, so that both are kept or neither."""

    async def __call__(
        self,
        connection: AsyncConnection,
        principal: Principal[Any],
        action: str,
        target: str,
        **details: object,
    ) -> None:
        """Take note.

        Args:
            connection: The transaction of the change.
            principal: Who did it.
            action: What, such as `task.created`.
            target: The id of what it was done to.
            details: What else is worth knowing.

        Raises:
            StoreUnavailable: The note cannot be written; then the change does not happen either.
        """
        ...


async def nobody(
    connection: AsyncConnection,
    principal: Principal[Any],
    action: str,
    target: str,
    **details: object,
) -> None:
    """Where no log is kept."""
