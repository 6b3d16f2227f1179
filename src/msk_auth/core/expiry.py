"""The end of keys: list those that end soon, and announce each end once at 30, 7 and 1 days.

No principal is asked for: these are operations of the application itself, for its scheduled jobs. People list keys
through `AdminKeys`.

What was announced is a column of the key. The keys with one value of it are a *stretch*, which an index holds in the order
of their ends. So what has to be announced stands at the beginning of a few stretches, and reading it takes no longer with
ten million keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Final, cast

from .cursor import PageCursor
from .errors import FieldError, InputInvalid
from .model import ApiKey, ExpiryQuery, KeyPage

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


def check_query(before: datetime, limit: int) -> None:
    """Refuse a moment or a limit that is not acceptable.

    Raises:
        InputInvalid: It is not.
    """
    wrong: list[FieldError] = []
    if before.utcoffset() is None:
        wrong.append(FieldError("before", "Give the time with its offset from UTC."))
    if not 1 <= limit <= BATCH:
        wrong.append(FieldError("limit", f"Choose between 1 and {BATCH}."))
    if wrong:
        raise InputInvalid(wrong)


def page_of(found: Iterable[ApiKey], limit: int) -> KeyPage:
    """The first of what was found, in the order of their ends."""
    ordered = sorted(found, key=position)
    items = tuple(ordered[:limit])
    more = len(ordered) > limit
    return KeyPage(items, PageCursor.encode(*position(items[-1])) if more else None)


def stretches(now: datetime) -> Iterator[tuple[int, ExpiryQuery]]:
    """What has to be announced, the most urgent first: for how many days before the end, and where it stands."""
    for days in NOTICE_DAYS:
        # A key with exactly so many days left is one of them.
        before = now + timedelta(days=days, microseconds=1)
        for announced in (*(more for more in NOTICE_DAYS if more > days), None):
            yield days, ExpiryQuery(now, before, announced, limit=BATCH)


def position(record: ApiKey) -> tuple[datetime, str]:
    """Where a record stands in a stretch."""
    # Only keys that end are listed.
    return cast("datetime", record.expires_at), record.id
