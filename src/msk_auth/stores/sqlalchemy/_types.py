"""Column types that mean the same on SQLite, PostgreSQL, MariaDB and MySQL."""

from __future__ import annotations

import json
from collections.abc import Set
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

from sqlalchemy import BigInteger, Dialect, String, Text
from sqlalchemy.dialects.mysql import VARBINARY
from sqlalchemy.types import TypeDecorator, TypeEngine

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_BYTES_PER_CHARACTER: Final = 4  # at most, in UTF-8


class UtcMicroseconds(TypeDecorator[datetime]):
    """An aware `datetime`, kept as whole microseconds since the Unix epoch.

    A number compares, sorts and indexes alike in every database, where their own types for times differ in
    precision and in what they make of a time zone. What comes back is in UTC.

    Raises:
        ValueError: A value without a time zone is to be stored (SQLAlchemy wraps it in a `StatementError`).
    """

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        """From a `datetime` to microseconds."""
        return None if value is None else to_microseconds(value)

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:
        """From microseconds to a `datetime`."""
        return None if value is None else from_microseconds(value)


class ExactText(TypeDecorator[str]):
    """Text that is equal only if every character is, and sorts by code point.

    MariaDB and MySQL compare without regard to case and to spaces at the end unless the column is binary;
    PostgreSQL sorts by the rules of a language unless it is told otherwise. An id needs neither.

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
        match dialect.name:
            case "mysql" | "mariadb":
                return dialect.type_descriptor(VARBINARY(self._length * _BYTES_PER_CHARACTER))
            case "postgresql":
                return dialect.type_descriptor(String(self._length, collation="C"))
            case _:
                return dialect.type_descriptor(String(self._length))

    def process_bind_param(self, value: str | None, dialect: Dialect) -> Any:
        """From text to what the driver takes."""
        if value is None or dialect.name not in {"mysql", "mariadb"}:
            return value
        return value.encode()

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        """From what the driver gives to text."""
        return value.decode() if isinstance(value, bytes) else cast("str | None", value)


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
    return _EPOCH + timedelta(microseconds=value)


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
