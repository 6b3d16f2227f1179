"""The list of a user's API keys, searched, filtered, sorted and counted by the database.

The library lists keys newest first, by state. This module reads the same table for people who look for a key among
hundreds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict
from sqlalchemy import Row, and_, case, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import ColumnElement

from msk_auth import ApiKey, Clock, KeyFormat, KeyStatus
from msk_auth.errors import KeyNotFound
from msk_auth.stores.sqlalchemy import read_record
from task_service.db import schema
from task_service.db.engine import Database
from task_service.db.paging import FIRST_PAGE, IfAny, Order, PageRequest, Paging, contains_text
from task_service.validation import Search

EXPIRING: Final = timedelta(days=7)
"""The time before a key's end in which its owner is warned."""

_KEYS = schema.api_keys.c
_FORMAT: Final = KeyFormat()
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


def _add_document(schema: dict[str, Any]) -> None:
    document = ApiKey.document_schema()
    schema["properties"] = document["properties"] | schema["properties"]
    schema["required"] = document["required"] + schema["required"]
    del schema["additionalProperties"]


class KeyDocument(BaseModel):
    """An API key, without its value: the library's document of a key, with `mask` and `status`."""

    model_config = ConfigDict(extra="allow", json_schema_extra=_add_document)

    mask: str
    status: KeyStatus

    @classmethod
    def of(cls, record: ApiKey, at: datetime, **more: Any) -> Self:
        """A key for the API.

        Args:
            record: The key.
            at: The time of its status.
            more: Members of a subclass.
        """
        mask = _FORMAT.mask(record.id)
        return cls(**record.document(), mask=mask, status=record.status(at), **more)


class KeyListPage(BaseModel):
    """A page of keys.

    `counts` has the numbers of keys found in each state, on all pages, and `expiring` the number of active keys that end
    within 7 days and are not replaced; both are present if the request has `count=true`.
    """

    items: list[KeyDocument]
    next_cursor: str | None
    counts: Annotated[dict[KeyStatus, int] | None, IfAny] = None
    expiring: Annotated[int | None, IfAny] = None


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
        paging = Paging(_ORDERS[query.sort], query, replace(wanted, count=False))
        found = _found(owner_id, query.search)
        statement = select(*_KEYS).where(found)
        if query.status is not None:
            statement = statement.where(in_state(query.status, schema.to_microseconds(at)))

        def document(row: Row[Any]) -> KeyDocument:
            # The last column is the key of the order.
            return KeyDocument.of(read_record(row[:-1]), at)

        async with self._db.read() as connection:
            page = await paging.read(connection, statement, document)
            counts = await _count(connection, found, at) if wanted.count else {}
        return KeyListPage(items=page.items, next_cursor=page.next_cursor, **counts)


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


async def _count(
    connection: AsyncConnection, found: ColumnElement[bool], at: datetime
) -> dict[str, Any]:
    """The numbers of keys in each state, and of keys that end soon."""
    now = schema.to_microseconds(at)
    state = case(*((in_state(status, now), status.value) for status in KeyStatus)).label("state")
    ends_soon = and_(
        in_state(KeyStatus.ACTIVE, now),
        _KEYS.replaced_by.is_(None),
        _KEYS.expires_at <= schema.to_microseconds(at + EXPIRING),
    )
    expiring = func.count(case((ends_soon, 1)))
    counting = select(state, func.count(), expiring).where(found).group_by(state)
    rows = (await connection.execute(counting)).all()
    numbers = {state: number for state, number, _ in rows}
    return {
        "counts": {status: numbers.get(status.value, 0) for status in KeyStatus},
        "expiring": sum(number for _, _, number in rows),
    }
