"""Keyset pages of a listing, in any order, with cursors that belong to one query.

A cursor contains the position at which its page ended and a digest of the query. For another filter or order the position
would be wrong, so such a cursor is refused.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import BigInteger, Row, Select, String, func, tuple_, type_coerce
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import ColumnElement

from msk_auth.errors import InputInvalid

_DIGEST_BYTES: Final = 9
_MAX_CURSOR: Final = 2000
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
_MAX_INTEGER: Final = 2**63 - 1


T = TypeVar("T")


IfAny: Final[Any] = Field(exclude_if=lambda value: value is None)
"""The schema of a member of an answer that is left out if it is None."""


class Page(BaseModel, Generic[T]):
    """A page of a listing.

    `next_cursor` is null on the last page. `total` is the number of items on all pages, if the request has `count=true`.
    """

    model_config = ConfigDict(frozen=True, from_attributes=True)

    items: list[T]
    next_cursor: str | None
    total: Annotated[int | None, IfAny] = None

    @classmethod
    def model_parametrized_name(cls, params: tuple[Any, ...]) -> str:
        """The name of a page for generated clients, such as `TaskPage`."""
        return f"{params[0].__name__}Page"


Cursor = Annotated[
    str | None, Field(min_length=1, description="`next_cursor` of the previous page.")
]
"""The query parameter for a page's position."""

Limit = Annotated[int, Field(ge=1, le=200)]
"""The query parameter for the maximum number of items on a page."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request for a page of a listing.

    Attributes:
        cursor: `next_cursor` of the previous page; None for the first page.
        limit: The maximum number of items.
        count: Also count the items of all pages.
    """

    cursor: Cursor = None
    limit: Limit = 50
    count: bool = False


FIRST_PAGE: Final = PageRequest()


@dataclass(frozen=True, slots=True)
class Order:
    """The order of a listing.

    Attributes:
        key: A number or a text; never NULL.
        id: Decides between rows with the same key; None if the key is unique.
        descending: True if the key and the id descend.
    """

    key: ColumnElement[Any]
    id: ColumnElement[Any] | None = None
    descending: bool = False

    @classmethod
    def by_time(cls, key: ColumnElement[Any], item_id: ColumnElement[Any]) -> Order:
        """Newest first. A time is a number of microseconds, which a cursor contains unchanged."""
        return cls(type_coerce(key, BigInteger), item_id, descending=True)


class Paging:
    """A page of a listing.

    Args:
        order: The order.
        query: The query, including the order: any object with a `repr` that differs between queries.
        wanted: The requested page.

    Raises:
        InputInvalid: Field `cursor`: the cursor is not from :meth:`cut`, or belongs to another query.
    """

    def __init__(self, order: Order, query: object, wanted: PageRequest) -> None:
        self._order = order
        self._place = [order.key] if order.id is None else [order.key, order.id]
        self._limit = wanted.limit
        self._count = wanted.count
        digest = hashlib.sha256(repr(query).encode()).digest()
        self._query = base64.urlsafe_b64encode(digest[:_DIGEST_BYTES]).decode()
        self._after = None if wanted.cursor is None else self._decode(wanted.cursor)

    def apply(self, statement: Select[Any]) -> Select[Any]:
        """The statement's rows of this page, one more if there is a next page, and their sort key as the last column."""
        order, place = self._order, self._place
        if self._after is not None:
            after = tuple_(*self._after, types=[column.type for column in place])
            statement = statement.where(
                tuple_(*place) < after if order.descending else tuple_(*place) > after
            )
        sorting = (column.desc() if order.descending else column.asc() for column in place)
        return (
            statement.add_columns(order.key.label("sort_key"))
            .order_by(*sorting)
            .limit(self._limit + 1)
        )

    def cut(self, rows: Sequence[Row[Any]]) -> tuple[Sequence[Row[Any]], str | None]:
        """The rows of the page, and the cursor of the next page; None on the last page."""
        if len(rows) <= self._limit:
            return rows, None
        last = rows[self._limit - 1]
        place = [last.sort_key] if self._order.id is None else [last.sort_key, last.id]
        position = [self._query, *place]
        raw = json.dumps(position, separators=(",", ":")).encode()
        return rows[: self._limit], base64.urlsafe_b64encode(raw).rstrip(b"=").decode()

    async def read(
        self,
        connection: AsyncConnection,
        statement: Select[Any],
        convert: Callable[[Row[Any]], T],
    ) -> Page[T]:
        """The page of a statement.

        Args:
            connection: The database.
            statement: Selects the rows of all pages.
            convert: Makes an item of a row.
        """
        rows, next_cursor = self.cut((await connection.execute(self.apply(statement))).all())
        total = None
        if self._count:
            counting = statement.with_only_columns(func.count(), maintain_column_froms=True)
            total = (await connection.execute(counting)).scalar_one()
        return Page(items=[convert(row) for row in rows], next_cursor=next_cursor, total=total)

    def _decode(self, cursor: str) -> list[object]:
        try:
            raw = base64.b64decode(
                cursor[:_MAX_CURSOR] + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True
            )
            query, *place = cast("list[object]", json.loads(raw))
        except (ValueError, TypeError, RecursionError):
            query, place = None, []
        is_whole = query == self._query and len(place) == len(self._place)
        if is_whole and all(map(_fits, place, self._place)):
            return place
        raise InputInvalid.of(
            "cursor", "This is not a cursor of this query. Begin again without a cursor."
        )


def _fits(value: object, column: ColumnElement[Any]) -> bool:
    """True if the database can compare a value, perhaps invented by a client, with a column."""
    if isinstance(column.type, String):
        return isinstance(value, str) and _UNSTORABLE.search(value) is None
    return type(value) is int and abs(value) <= _MAX_INTEGER


def contains_text(column: ColumnElement[str], search: str) -> ColumnElement[bool]:
    """A condition: a column contains a text, in any case of letters. SQLite knows only the case of ASCII letters."""
    return column.icontains(search, autoescape=True)
