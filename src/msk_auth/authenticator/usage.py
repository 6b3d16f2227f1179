"""Collects times of last use and upgraded digests in memory, to be written in batches.

Neither belongs into the path of a request: a write for each request is what makes other libraries slow. A crash loses at
most the last minute of them, which does no harm.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from typing import NamedTuple

from msk_auth._failures import log_failure
from msk_auth._fork import after_fork_in_child


class Batch(NamedTuple):
    """What one flush writes.

    Attributes:
        last_used: From key id to the moment of its last use.
        upgrades: From key id to the stored digest and the one to replace it with.
    """

    last_used: dict[str, datetime]
    upgrades: dict[str, tuple[str, str]]


class UsageBuffer:
    """What was collected; safe to use from several threads. A forked child begins with an empty buffer."""

    def __init__(self) -> None:
        self._renew()
        after_fork_in_child(self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._batch = Batch({}, {})

    def note(self, key_id: str, at: datetime, upgrade: tuple[str, str] | None) -> None:
        """Collect a time of last use, and an upgraded digest if there is one."""
        with self._lock:
            self._batch.last_used[key_id] = at
            if upgrade is not None:
                self._batch.upgrades[key_id] = upgrade

    @contextmanager
    def batch(self) -> Generator[Batch]:
        """Everything collected so far, to be written in the block.

        If the block fails, all of it is kept for the next call; what was collected meanwhile is newer and wins. An error
        is logged and not raised, since no request depends on it. A cancellation or an interrupt is raised.
        """
        with self._lock:
            batch, self._batch = self._batch, Batch({}, {})
        try:
            yield batch
        except BaseException as error:
            with self._lock:
                self._batch = Batch(
                    batch.last_used | self._batch.last_used, batch.upgrades | self._batch.upgrades
                )
            if not isinstance(error, Exception):
                raise
            what = "could not write when keys were last used; will retry"
            log_failure(logging.WARNING, what, error)
