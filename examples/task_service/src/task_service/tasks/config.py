"""What tasks and runs ask of the administrator's live configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class RunSettings(Protocol):
    """The settings at one moment."""

    @property
    def run_timeout_seconds(self) -> int:
        """The longest a run may take; also what a task gets that names no timeout."""
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
    """Where the settings come from; asked anew for each decision, so that a change takes effect at once."""

    async def current(self) -> RunSettings:
        """The settings now."""
        ...
