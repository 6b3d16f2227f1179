"""Counts in memory what keys do, to be written in batches, as times of last use are.

A request adds to a number; it waits for nothing, and no decision reads it. A crash loses at most the last minute.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Final, NamedTuple, TypeAlias

from msk_auth._failures import log_failure
from msk_auth._fork import after_fork_in_child
from msk_auth.core import steps
from msk_auth.core.activity import (
    MAX_TEXT,
    ActivityEntry,
    ActivitySettings,
    LastRequest,
    entry_to_keep,
)
from msk_auth.core.steps import Flow
from msk_auth.core.store import ACTIVITY_BATCH

DELETED_AT_ONCE: Final = 1_000
"""How many old rows one transaction deletes."""

MAX_DELETIONS: Final = 10
"""How many such transactions one flush makes at most: under Flask a response waits for it."""

_Place: TypeAlias = tuple[str, date]
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
class _Count:
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
    """

    def __init__(self, settings: ActivitySettings | Callable[[], Any]) -> None:
        self._settings = settings
        self._cleaned_on: date | None = None
        self._renew()
        after_fork_in_child(self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[_Place, _Count] = {}

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
                count = self._counts[key_id, day] = _Count(at)
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

    def flush(self, now: datetime) -> Flow[None]:
        """Write what was counted, and once a day delete what is older than it is kept.

        What cannot be written is kept for the next call. An error is logged and not raised, since no request depends on it. A
        cancellation or an interrupt is raised.
        """
        with self._lock:
            counts, self._counts = self._counts, {}
        try:
            yield from self._write(counts, now.date())
        except BaseException as error:
            with self._lock:
                for place, count in counts.items():
                    newer = self._counts.setdefault(place, count)
                    if newer is not count:
                        newer.accepted += count.accepted
                        newer.refused += count.refused
            if not isinstance(error, Exception):
                raise
            log_failure(logging.WARNING, "could not write what keys did; will retry", error)

    def _write(self, counts: dict[_Place, _Count], today: date) -> Flow[None]:
        """Write counts, and remove from them what is written."""
        if not counts and self._cleaned_on == today:
            return
        settings: ActivitySettings
        if isinstance(self._settings, ActivitySettings):
            settings = self._settings
        else:
            read = self._settings
            settings = yield lambda _ports: read()
        # In one order everywhere: two processes that write the same keys wait for each other instead of deadlocking.
        ordered = sorted(counts)
        for start in range(0, len(ordered), ACTIVITY_BATCH):
            batch = ordered[start : start + ACTIVITY_BATCH]
            yield from steps.record_activity(
                [entry_to_keep(_entry(place, counts[place]), settings) for place in batch]
            )
            for place in batch:
                del counts[place]
        if self._cleaned_on != today and (yield from _delete_old(settings, today)):
            self._cleaned_on = today


def _entry(place: _Place, count: _Count) -> ActivityEntry:
    key_id, day = place
    last = LastRequest(count.at, count.route, count.address, count.user_agent)
    return ActivityEntry(key_id, day, count.accepted, count.refused, last)


def _delete_old(settings: ActivitySettings, today: date) -> Flow[bool]:
    """Delete what is older than it is kept. Returns whether nothing is left to delete."""
    before = today - timedelta(days=settings.keep_days)
    for _ in range(MAX_DELETIONS):
        if not (yield from steps.delete_activity(before, DELETED_AT_ONCE)):
            return True
    return False
