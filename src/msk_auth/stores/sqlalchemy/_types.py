"""Column types that mean the same on SQLite, PostgreSQL, MariaDB and MySQL."""

from __future__ import annotations

import json
from collections.abc import Set
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

from sqlalchemy import BigInteger, Dialect, String, Text
from sqlalchemy.dialects.mysql import VARCHAR
from sqlalchemy.dialects.mysql.base import MySQLDialect
from sqlalchemy.types import TypeDecorator, TypeEngine

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class UtcMicroseconds(TypeDecorator[datetime]):
    """An aware `datetime`, kept as whole microseconds since the Unix epoch.

    A number compares, sorts and indexes alike in every database, where their own types for times differ in
    precision and in what they make of a time zone. What comes back is in UTC.

    Raises:
        ValueError: A value without a time zone is to be stored (SQLAlchemy wraps it in a `StatementError`).
    """

    impl: TypeEngine[Any] | type[TypeEngine[Any]] = BigInteger
    cache_ok: bool | None = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        """From a `datetime` to microseconds."""
        return None if value is None else to_microseconds(value)

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:
        """From microseconds to a `datetime`."""
        return None if value is None else from_microseconds(value)


class ExactText(TypeDecorator[str]):
    """Text that is equal only if every character is, and sorts by code point.

    MariaDB and MySQL compare without regard to case and to spaces at the end unless they are told otherwise, and
    PostgreSQL sorts by the rules of a language. An id needs neither.

    Args:
        length: How many characters it may have.
    """

    impl = String
    cache_ok = True

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self._length = length

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """The type in this database."""
        text: TypeEngine[Any]
        match dialect.name:
            case "mysql" | "mariadb":
                # Both know a collation that does not pad; each knows only its own.
                is_mariadb = cast("MySQLDialect", dialect).is_mariadb
                collation = "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"
                text = VARCHAR(self._length, charset="utf8mb4", collation=collation)
            case "postgresql":
                text = String(self._length, collation="C")
            case _:
                text = String(self._length)
        return dialect.type_descriptor(text)


class ScopeSet(TypeDecorator[Set[str]]):
    """A set of scopes as a JSON array in text, or NULL for "all of the owner's".

    JSON rather than words with spaces between, because a scope is any string of the application: one that
    holds a space must not come back as two.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Set[str] | None, dialect: Dialect) -> str | None:
        """From a set to text."""
        return None if value is None else json.dumps(sorted(value), separators=(",", ":"))

    def process_result_value(self, value: str | None, dialect: Dialect) -> frozenset[str] | None:
        """From text to a set."""
        return parse_scopes(value)


def to_microseconds(moment: datetime) -> int:
    """Microseconds since the epoch.

    Raises:
        ValueError: The moment has no time zone.
    """
    if moment.tzinfo is None:
        raise ValueError("a time without a time zone cannot be stored; use datetime.now(UTC)")
    return (moment - _EPOCH) // _MICROSECOND


def from_microseconds(value: int) -> datetime:
    """The moment, in UTC."""
    return _EPOCH + timedelta(0, 0, value)  # by position: it is done for every record that is read


def parse_scopes(text: str | None) -> frozenset[str] | None:
    """The set of scopes behind a stored text.

    Raises:
        ValueError: It is not what this library writes. A key of which it is not known what it may do must
            not be accepted.
    """
    if text is None:
        return None
    scopes: object = json.loads(text)
    if not isinstance(scopes, list) or not all(
        isinstance(scope, str) for scope in cast("list[object]", scopes)
    ):
        raise ValueError("the scopes of a stored key are not a JSON array of strings")
    return frozenset(cast("list[str]", scopes))
