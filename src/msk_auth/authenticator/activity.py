"""Counts in memory what keys do, to be written in batches, as times of last use are.

A request adds to a number; it waits for nothing, and no decision reads it. A crash loses at most the last minute.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final, NamedTuple, TypeAlias

from msk_auth._fork import after_fork_in_child
from msk_auth.core.activity import (
    MAX_TEXT,
    ActivityEntry,
    ActivitySettings,
    LastRequest,
)

Place: TypeAlias = tuple[str, date]
"""A key and a day."""


class Counted(NamedTuple):
    """How a request was counted.

    Attributes:
        log: By which log: a mounted application may have one of its own.
        key_id: The key.
        day: For which it was counted.
        is_accepted: Whether as accepted.
        route: As it was known then.
    """

    log: ActivityLog
    key_id: str
    day: date
    is_accepted: bool
    route: str | None


@dataclass(slots=True)
class Count:
    """The requests of one key on one day, as :class:`ActivityEntry` has them."""

    at: datetime
    accepted: int = 0
    refused: int = 0
    route: str | None = None
    address: str | None = None
    user_agent: str | None = None


class ActivityLog:
    """What was counted; safe to use from several threads. A forked child begins with nothing.

    Args:
        settings: What is kept, or the application's function that returns it: read with each flush, so that a change takes
            effect at once.

    Attributes:
        settings: As given.
        cleaned_on: The day on which what was too old was deleted last.
    """

    def __init__(self, settings: ActivitySettings | Callable[[], Any]) -> None:
        self.settings: Final = settings
        self.cleaned_on: date | None = None
        self._renew()
        after_fork_in_child(self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Place, Count] = {}

    def count(
        self,
        key_id: str,
        at: datetime,
        *,
        is_accepted: bool,
        route: str | None,
        address: str | None,
        user_agent: str | None,
        before: Counted | None = None,
    ) -> Counted:
        """Count a request.

        Args:
            key_id: The key.
            at: The moment.
            is_accepted: Whether the request was accepted, so far: a later guard may refuse it.
            route: Its method and the pattern of its route.
            address: Of the client.
            user_agent: What the client calls itself.
            before: How the same request was counted at an earlier guard. It is one request.
        """
        day = at.date() if before is None else before.day
        with self._lock:
            count = self._counts.get((key_id, day))
            if count is None:
                count = self._counts[key_id, day] = Count(at)
            if is_accepted:
                count.accepted += before is None
            else:
                count.refused += 1
                count.accepted -= before is not None
            count.at = at
            count.route = route
            count.address = address
            # A client may send a long one, and it stays in memory until the next flush.
            count.user_agent = None if user_agent is None else user_agent[:MAX_TEXT]
        return Counted(self, key_id, day, is_accepted, route)

    def take(self) -> dict[Place, Count]:
        """What was counted, which is not kept here any more."""
        with self._lock:
            counts, self._counts = self._counts, {}
        return counts

    def put_back(self, counts: dict[Place, Count]) -> None:
        """Keep counts that could not be written."""
        with self._lock:
            for place, count in counts.items():
                newer = self._counts.setdefault(place, count)
                if newer is not count:
                    newer.accepted += count.accepted
                    newer.refused += count.refused


def entry_of(place: Place, count: Count) -> ActivityEntry:
    """What a store adds for these counts."""
    key_id, day = place
    last = LastRequest(count.at, count.route, count.address, count.user_agent)
    return ActivityEntry(key_id, day, count.accepted, count.refused, last)
