"""What successful verifications leave to be written, collected in memory and written in batches.

Neither a key's last use nor the upgrade of its digest belongs into a request's path: a write per
request is what makes other libraries slow. Losing the last minute of them in a crash harms nobody.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Batch:
    """What one flush writes.

    Attributes:
        last_used: From key id to the moment of its last use.
        upgrades: From key id to the stored digest and the one to replace it with.
    """

    last_used: dict[str, datetime] = field(default_factory=dict[str, datetime])
    upgrades: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])

    def __bool__(self) -> bool:
        return bool(self.last_used or self.upgrades)


class Touches:
    """The collection; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batch = Batch()

    def note(self, key_id: str, at: datetime, upgrade: tuple[str, str] | None) -> None:
        """Remember that a key was used, and perhaps a better digest for it."""
        with self._lock:
            self._batch.last_used[key_id] = at
            if upgrade is not None:
                self._batch.upgrades[key_id] = upgrade

    def take(self) -> Batch:
        """Everything collected so far, which is then the caller's to write."""
        with self._lock:
            batch, self._batch = self._batch, Batch()
        return batch

    def put_back(self, batch: Batch) -> None:
        """Return what could not be written; what was noted meanwhile is newer and stays."""
        with self._lock:
            self._batch = Batch(
                batch.last_used | self._batch.last_used, batch.upgrades | self._batch.upgrades
            )
