"""The column type of the service's times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import BigInteger, Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class UtcMicroseconds(TypeDecorator[datetime]):
    """An aware `datetime`, kept as whole microseconds since the Unix epoch; read back in UTC.

    A number compares, sorts and indexes alike on SQLite and PostgreSQL. The library keeps the times of keys in the same way.

    Raises:
        ValueError: A value without a time zone is to be stored (SQLAlchemy wraps it in a `StatementError`).
    """

    impl: TypeEngine[Any] | type[TypeEngine[Any]] = BigInteger
    cache_ok: bool | None = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        """From a `datetime` to microseconds."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("A time without a time zone cannot be stored. Use datetime.now(UTC).")
        return (value - _EPOCH) // _MICROSECOND

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:
        """From microseconds to a `datetime`."""
        return None if value is None else _EPOCH + timedelta(microseconds=value)
