"""The end of keys: list those that end soon, and announce each end once at 30, 7 and 1 days.

Written once for both authenticators.

No principal is asked for: these are operations of the application itself, for its scheduled jobs. People list keys
through `AdminKeys`.

What was announced is a column of the key. The keys with one value of it are a *stretch*, which an index holds in the order
of their ends. So what has to be announced stands at the beginning of a few stretches, and reading it takes no longer with
ten million keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, cast

from . import steps
from .cursor import PageCursor
from .errors import FieldError, InputInvalid
from .events import Event, KeyExpiring
from .model import ApiKey, ExpiryQuery, KeyPage
from .steps import Flow

NOTICE_DAYS: Final = (1, 7, 30)
"""How many days before its end a key is announced."""

BATCH: Final = 500
"""How many records are read at once, and the greatest page."""


def notice_days(lifetime: timedelta) -> int | None:
    """What counts as announced when a key is made: a person who makes a key for a week needs no reminder of that at once.

    Returns:
        The least of :data:`NOTICE_DAYS` that is not shorter than its life; None if all are.
    """
    return next((days for days in NOTICE_DAYS if lifetime <= timedelta(days=days)), None)


def list_expiring(
    *, before: datetime, cursor: str | None, limit: int, now: datetime
) -> Flow[KeyPage]:
    """A page of the active keys of all owners that end before a moment and are not replaced, the first to end first."""
    wrong: list[FieldError] = []
    if before.utcoffset() is None:
        wrong.append(FieldError("before", "Give the time with its offset from UTC."))
    if not 1 <= limit <= BATCH:
        wrong.append(FieldError("limit", f"Choose between 1 and {BATCH}."))
    if wrong:
        raise InputInvalid(wrong)
    after = None if cursor is None else PageCursor.decode(cursor)
    found: dict[str, ApiKey] = {}
    # From one stretch to the next, as a key moves that is announced meanwhile: it may be met twice, and is not missed.
    for announced in (None, *reversed(NOTICE_DAYS)):
        query = ExpiryQuery(now, before, announced, after, limit + 1)
        found.update((record.id, record) for record in (yield from steps.list_expiring(query)))
    ordered = sorted(found.values(), key=_position)
    items = tuple(ordered[:limit])
    more = len(ordered) > limit
    return KeyPage(items, PageCursor.encode(*_position(items[-1])) if more else None)


def announce(emit: Callable[[Event], Any], now: datetime) -> Flow[int]:
    """Announce what has to be, the most urgent first, and return how many keys that were.

    Each key is noted in a transaction of its own, with the event for `on_change`; `emit` gets the event after the commit.
    Of several processes the one whose write changed the key announces it.
    """
    count = 0
    for days in NOTICE_DAYS:
        # A key with exactly so many days left is one of them.
        before = now + timedelta(days=days, microseconds=1)
        for announced in (*(more for more in NOTICE_DAYS if more > days), None):
            stretch = ExpiryQuery(now, before, announced, limit=BATCH)
            count += yield from _announce_stretch(stretch, days, emit)
    return count


def _announce_stretch(query: ExpiryQuery, days: int, emit: Callable[[Event], Any]) -> Flow[int]:
    def event(record: ApiKey) -> KeyExpiring:
        return KeyExpiring(query.now, record, days)

    count = 0
    while batch := (yield from steps.list_expiring(query)):
        for record in batch:
            noted = yield from steps.announce_expiry(record.id, days, lambda after: (event(after),))
            if noted is not None:
                yield from steps.emit(emit, event(noted))
                count += 1
        query = replace(query, after=_position(batch[-1]))
    return count


def _position(record: ApiKey) -> tuple[datetime, str]:
    # Only keys that end are listed.
    return cast("datetime", record.expires_at), record.id
