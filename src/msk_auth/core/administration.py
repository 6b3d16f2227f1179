"""Decisions about the operations of administrators and scheduled jobs on the keys of all owners.

No operation of `_async.administration` creates or extends a key or shows its value: an administrator ends access and gives none
(G3, G4). Each operation begins with the application's policy, an interactive login with a permission.

A page reads a bounded number of records, even if few of ten million match: it may then have fewer keys than requested,
or none, and has a cursor as long as there are more records.

The application's scheduled jobs announce each end once, at 30, 7 and 1 days, without a principal. A column of the key has its
last announcement. The keys with the same value are a *stretch*, which an index sorts by expiry. So the keys to announce are at
the beginning of a few stretches, and reading them takes no longer with ten million keys.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final, TypeAlias, cast

from .errors import FieldError, InputInvalid
from .fields import MAX_OWNER_ID_LENGTH, is_label
from .key_management import MAX_PAGE, NOTICE_DAYS, cursor_of, not_a_cursor, read_cursor
from .model import ApiKey, ExpiryQuery, KeyFilter

MAX_REVOKED: Final = 200
"""The maximum number of keys that one call revokes."""

BATCH: Final = 500
"""The number of records in one read. More than :data:`MAX_PAGE`, so that most pages take one read."""

MAX_READS: Final = 20
"""The maximum number of batches that one page reads."""

Position: TypeAlias = tuple[str, datetime, str]
"""The end of a page: owner, time of creation and id of its last record."""


def check_filter(wanted: KeyFilter, limit: int) -> None:
    """Refuse an invalid filter or limit.

    Raises:
        InputInvalid: The filter or the limit is invalid.
    """
    wrong = [
        FieldError(name, "Give the time with its offset from UTC.")
        for name in ("created_before", "unused_since", "expires_before")
        if (moment := getattr(wanted, name)) is not None and moment.utcoffset() is None
    ]
    if wanted.owner_id is not None and not _is_owner_id(wanted.owner_id):
        wrong.append(FieldError("owner_id", "This is not the id of an owner."))
    if wanted.label is not None and not is_label(wanted.label):
        wrong.append(FieldError("label", "This is not a label."))
    if not 1 <= limit <= MAX_PAGE:
        wrong.append(FieldError("limit", f"Choose between 1 and {MAX_PAGE}."))
    if wrong:
        raise InputInvalid(wrong)


def check_ids(key_ids: Sequence[str]) -> None:
    """Refuse an empty list, and too many ids.

    Raises:
        InputInvalid: The argument is not a list of 1 to :data:`MAX_REVOKED` ids.
    """
    if isinstance(key_ids, str) or not 1 <= len(key_ids) <= MAX_REVOKED:
        raise InputInvalid.of("ids", f"Give a list of 1 to {MAX_REVOKED} ids.")


def _is_owner_id(text: str) -> bool:
    return 0 < len(text) <= MAX_OWNER_ID_LENGTH and "\x00" not in text


def encode(position: Position) -> str:
    """The cursor of a page that ended at this position."""
    owner_id, created_at, key_id = position
    owner = base64.urlsafe_b64encode(owner_id.encode()).rstrip(b"=").decode()
    return f"{cursor_of(created_at, key_id)}.{owner}"


def decode(cursor: str) -> Position:
    """The end of the previous page.

    Raises:
        InputInvalid: The text is not a cursor of this listing.
    """
    where, _, owner = cursor.partition(".")
    created_at, key_id = read_cursor(where)
    owner_id = ""
    # The decoder alone would skip every other character.
    if re.fullmatch("[0-9A-Za-z_-]+", owner) is not None:
        with suppress(ValueError):
            # The decoder accepts padding that is too long.
            owner_id = base64.urlsafe_b64decode(owner + "==").decode()
    if not _is_owner_id(owner_id):
        raise not_a_cursor()
    return owner_id, created_at, key_id


def stretches(now: datetime) -> Iterator[tuple[int, ExpiryQuery]]:
    """The stretches to announce, the most urgent first: the days before the end, and the query."""
    for days in NOTICE_DAYS:
        # A key with exactly this many days left is included.
        before = now + timedelta(days=days, microseconds=1)
        for announced in (*(more for more in NOTICE_DAYS if more > days), None):
            yield days, ExpiryQuery(now, before, announced, limit=BATCH)


def position(record: ApiKey) -> tuple[datetime, str]:
    """The position of a record in a stretch."""
    # Only keys with an expiry are listed.
    return cast("datetime", record.expires_at), record.id
