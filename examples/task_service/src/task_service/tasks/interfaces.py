"""What tasks and runs require of the rest of the service: live settings, and hooks for the audit log and the metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

from sqlalchemy.ext.asyncio import AsyncConnection

from msk_auth import Principal
from task_service.request_record import request_address


class RunSettings(Protocol):
    """The administrator's settings at one moment."""

    @property
    def run_timeout_seconds(self) -> int:
        """The longest a run may take, and the timeout of a task that names none."""
        ...

    @property
    def max_concurrent_runs_per_user(self) -> int:
        """How many runs of one user's tasks may be running at once; the others wait."""
        ...

    @property
    def run_retention_days(self) -> int:
        """How long finished runs and their logs are kept."""
        ...

    @property
    def allowed_commands(self) -> Sequence[str]:
        """What the handler `command` may run."""
        ...


class RunConfig(Protocol):
    """The source of the settings. Each decision reads them again, so that a change takes effect at once."""

    async def current(self) -> RunSettings:
        """The settings now."""
        ...


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a task or a run.

    Attributes:
        principal: Who made it.
        action: Its kind, such as `task.created`.
        target: The id of the task or run that was changed.
        details: Further members of the audit entry.
        address: Where the request came from.
    """

    principal: Principal[Any]
    action: str
    target: str
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])
    address: str | None = field(default_factory=request_address)


class OnChange(Protocol):
    """Called with changes inside their own transaction, so that a change and its audit entry are kept, or neither."""

    async def __call__(self, connection: AsyncConnection, changes: Sequence[Change]) -> None:
        """Record changes.

        Args:
            connection: In the transaction of the changes.
            changes: In their order.

        Raises:
            StoreUnavailable: The entries cannot be written. The changes are rolled back.
        """
        ...


class RunObserver(Protocol):
    """Called with what a process executes, for its metrics."""

    def started(self, waited: timedelta) -> None:
        """A run starts, so long after it was requested."""
        ...

    def ended(self, state: str, seconds: float) -> None:
        """A run has ended in this final state, so long after its start in this process."""
        ...


async def ignore_change(connection: AsyncConnection, changes: Sequence[Change]) -> None:
    """For a deployment without an audit log."""
