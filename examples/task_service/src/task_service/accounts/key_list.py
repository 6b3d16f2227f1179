"""The list of a user's API keys, searched, filtered, sorted and counted by the database.

The library lists keys newest first, by state. This module reads the same table for people who look for a key among
hundreds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import Select, and_, case, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import ColumnElement

from msk_auth import ApiKey, Clock, KeyStatus
from msk_auth.errors import KeyNotFound
from msk_auth.stores.sqlalchemy import read_record
from task_service.db import schema
from task_service.db.engine import Database
from task_service.db.paging import FIRST_PAGE, Order, PageRequest, Paging, contains_text
from task_service.validation import Search

EXPIRING: Final = timedelta(days=7)
"""The time before a key's end in which its owner is warned."""

_KEYS = schema.api_keys.c
# Later than any expiry.
_FOREVER: Final = 2**62


class KeySort(StrEnum):
    """The order of keys: newest first, latest use first, the next to expire first, or by name."""

    CREATED = "created"
    USED = "used"
    EXPIRES = "expires"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class KeyListQuery:
    """The keys to list; None means any.

    Attributes:
        search: A part of the name, of the description or of a label, or the beginning of the id.
        status: Keys in this state.
        sort: The order.
    """

    search: Search = None
    status: KeyStatus | None = None
    sort: KeySort = KeySort.CREATED


@dataclass(frozen=True, slots=True)
class KeyListPage:
    """A page of keys.

    Attributes:
        items: The keys.
        next_cursor: None on the last page.
        at: The time of the keys' states.
        counts: The numbers of keys found in each state, whichever state is listed; None if they were not counted.
        expiring: The number of active keys that end within :data:`EXPIRING` and are not replaced; None if not counted.
    """

    items: tuple[ApiKey, ...]
    next_cursor: str | None
    at: datetime
    counts: Mapping[KeyStatus, int] | None
    expiring: int | None


class KeyList:
    """Lists the keys of one owner at a time.

    Args:
        db: The database of the keys.
        clock: Decides which keys have expired.
    """

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    async def get(self, key_id: str) -> ApiKey:
        """The key of any owner with this id.

        Raises:
            KeyNotFound: There is none, or it is deleted.
            StoreUnavailable: The database does not answer.
        """
        wanted = select(*_KEYS).where(_KEYS.id == key_id, _KEYS.deleted_at.is_(None))
        if key_id.isalnum():
            async with self._db.read() as connection:
                row = (await connection.execute(wanted)).one_or_none()
            if row is not None:
                return read_record(row)
        raise KeyNotFound

    async def page(
        self,
        owner_id: str,
        query: KeyListQuery,
        wanted: PageRequest = FIRST_PAGE,
    ) -> KeyListPage:
        """A page of keys.

        Args:
            owner_id: The id of the owner.
            query: The filter and order.
            wanted: The page, of at most 200 keys; `count` counts the keys that the search finds.

        Raises:
            InputInvalid: Field `cursor`.
            StoreUnavailable: The database does not answer.
        """
        at = self._clock.now()
        now = schema.to_microseconds(at)
        paging = Paging(_ORDERS[query.sort], query, wanted)
        found = _found(owner_id, query.search)
        statement = select(*_KEYS).where(found)
        if query.status is not None:
            statement = statement.where(in_state(query.status, now))
        async with self._db.read() as connection:
            rows = (await connection.execute(paging.apply(statement))).all()
            counted = (
                (await connection.execute(_counting(found, at))).all() if wanted.count else None
            )
        shown, next_cursor = paging.cut(rows)
        counts = expiring = None
        if counted is not None:
            numbers = {str(state): int(number) for state, number, _ in counted}
            counts = {status: numbers.get(status.value, 0) for status in KeyStatus}
            expiring = sum(int(number) for _, _, number in counted)
        records = tuple(read_record(row[:-1]) for row in shown)
        return KeyListPage(records, next_cursor, at, counts, expiring)


_ORDERS: Final = {
    KeySort.CREATED: Order(_KEYS.created_at, _KEYS.id, descending=True),
    KeySort.USED: Order(func.coalesce(_KEYS.last_used_at, 0), _KEYS.id, descending=True),
    KeySort.EXPIRES: Order(func.coalesce(_KEYS.expires_at, _FOREVER), _KEYS.id),
    KeySort.NAME: Order(func.lower(_KEYS.name, type_=_KEYS.name.type), _KEYS.id),
}


def _found(owner_id: str, search: str | None) -> ColumnElement[bool]:
    own = and_(_KEYS.owner_id == owner_id, _KEYS.deleted_at.is_(None))
    if search is None:
        return own
    # People paste the mask, or a part of it.
    key_id = search.removesuffix("…").removesuffix("_").rpartition("_")[2]
    return and_(
        own,
        or_(
            contains_text(_KEYS.name, search),
            contains_text(_KEYS.description, search),
            contains_text(_KEYS.labels, search),
            _KEYS.id.startswith(key_id, autoescape=True),
        ),
    )


def in_state(status: KeyStatus, now: int) -> ColumnElement[bool]:
    """True if a key is in this state at a moment, in microseconds."""
    not_revoked = _KEYS.revoked_at.is_(None)
    match status:
        case KeyStatus.REVOKED:
            return _KEYS.revoked_at.is_not(None)
        case KeyStatus.EXPIRED:
            return and_(not_revoked, _KEYS.expires_at <= now)
        case KeyStatus.ACTIVE:
            return and_(not_revoked, or_(_KEYS.expires_at.is_(None), _KEYS.expires_at > now))


async def count_active(connection: AsyncConnection, owner_id: str, at: datetime) -> int:
    """The number of an owner's active keys."""
    active = and_(_found(owner_id, None), in_state(KeyStatus.ACTIVE, schema.to_microseconds(at)))
    counting = select(func.count()).select_from(schema.api_keys).where(active)
    return await connection.scalar(counting) or 0


def _counting(found: ColumnElement[bool], at: datetime) -> Select[Any, int, int]:
    """The numbers of keys in each state, and of keys that end soon."""
    now = schema.to_microseconds(at)
    state = case(*((in_state(status, now), status.value) for status in KeyStatus)).label("state")
    ends_soon = and_(
        in_state(KeyStatus.ACTIVE, now),
        _KEYS.replaced_by.is_(None),
        _KEYS.expires_at <= schema.to_microseconds(at + EXPIRING),
    )
    expiring = func.count(case((ends_soon, 1)))
    return select(state, func.count(), expiring).where(found).group_by(state)
