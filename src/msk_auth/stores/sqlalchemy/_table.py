"""The tables and their rows: a table of keys, and a small table of numbers that processes share.

Their columns have SQLAlchemy's own types, so that a migration that alembic generates from them runs unedited and
imports nothing from the library. This module converts records to rows and rows to records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    bindparam,
    select,
)
from sqlalchemy.sql import ColumnElement, Select

from msk_auth.core.errors import ConfigurationError
from msk_auth.core.fields import (
    FIELD_OF,
    KEY_FIELDS,
    MAX_OWNER_ID_LENGTH,
    FieldKind,
    KeyField,
    KeyUpdate,
)
from msk_auth.core.model import ApiKey

_MAX_ID: Final = 64
_REGISTERS: Final = "_registers"

# Without these options MariaDB and MySQL use the server's default, which may support neither emoji nor transactions.
_MYSQL: Final[dict[str, Any]] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (("engine", "InnoDB"), ("charset", "utf8mb4"))
}


def _exact_text(length: int) -> String:
    """A text type that is compared by code point: ids that differ in case, or in an accent, are different.

    PostgreSQL would sort by the rules of a language, and MariaDB and MySQL would ignore case. `utf8mb4_bin` is the only such
    collation of both MariaDB and MySQL; it ignores trailing spaces, so the operations compare them.

    Args:
        length: The maximum number of characters.
    """
    return (
        String(length)
        .with_variant(String(length, collation="C"), "postgresql")
        .with_variant(String(length, collation="utf8mb4_bin"), "mysql")
        .with_variant(String(length, collation="utf8mb4_bin"), "mariadb")
    )


def _declared(field: KeyField) -> Column[Any]:
    """The column of a field of a key. NULL is the field's empty value.

    All times are whole microseconds since the Unix epoch: a number compares, sorts and indexes alike in every database, but
    their own types differ in precision and in the handling of time zones. A set is a JSON array.
    """
    types: dict[FieldKind, Any] = {
        FieldKind.ID: _exact_text(field.length),
        FieldKind.TEXT: Text(),
        FieldKind.MOMENT: BigInteger(),
        FieldKind.TEXTS: Text(),
        FieldKind.NUMBER: Integer(),
    }
    is_id = field.name == "id"
    return Column(field.name, types[field.kind], nullable=not field.is_required, primary_key=is_id)


def api_key_table(metadata: MetaData, name: str = "msk_auth_api_keys") -> Table:
    """Add the library's tables to a metadata.

    The second table has registers (`<name>_registers`), numbers that processes share: turns for adding an owner's keys, and
    the leases in use.

    Args:
        metadata: The application's metadata, whose migrations then make these tables with its own.
        name: The name of the table of keys.

    Returns:
        The table of keys, to pass to a store.
    """
    table = Table(
        name,
        metadata,
        *(_declared(field) for field in KEY_FIELDS),
        # Serves listings by a backward scan, without reading deleted keys.
        Index(f"ix_{name}_listed", "owner_id", "deleted_at", "created_at", "id"),
        # Active keys are two ranges of this index (no expiry, and a later one), without ended keys.
        Index(f"ix_{name}_active", "owner_id", "revoked_at", "expires_at", "created_at", "id"),
        # Keys due for an announcement are at the beginnings of a few ranges of this index.
        Index(f"ix_{name}_expiring", "announced_days", "revoked_at", "expires_at", "id"),
        **_MYSQL,
    )
    Table(
        f"{name}{_REGISTERS}",
        metadata,
        Column("name", _exact_text(_MAX_ID + MAX_OWNER_ID_LENGTH), primary_key=True),
        Column("value", BigInteger, nullable=False),
        **_MYSQL,
    )
    return table


def registers_of(table: Table) -> Table:
    """The registers of a table of keys.

    Raises:
        ConfigurationError: The table was not made by :func:`api_key_table`.
    """
    registers = table.metadata.tables.get(f"{table.key}{_REGISTERS}")
    if registers is None:
        raise ConfigurationError(
            f"The table {table.key!r} has no table {table.key + _REGISTERS!r}: make both with api_key_table(metadata)."
        )
    return registers


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def select_from_id(table: Table) -> Select[Any]:
    """The rows from the id `key_id` on, of which a look-up reads the first.

    The first row has this id or, if no row has, the next id. So the database does the same work for existing and unknown ids:
    it searches its index and reads a row. Equal time does not reveal which ids exist.
    """
    return select(*table.c).where(table.c.id >= bindparam("key_id")).order_by(table.c.id)


def id_of(statement: Select[Any]) -> ColumnElement[str]:
    """The column `id` of a statement.

    Raises:
        ConfigurationError: The statement has no column `id`, or it is not text.
    """
    column = statement.selected_columns.get("id")
    if column is None or not isinstance(column.type, String):
        raise ConfigurationError(
            "A statement whose rows are looked up by id needs a column `id` of text. Select it, or use prepare()."
        )
    return column


def first_record(rows: Sequence[Sequence[Any]], key_id: str) -> ApiKey | None:
    """The record with this id, None if the first row is another's, in the same time.

    Args:
        rows: The first row of :func:`select_from_id`, if any.
        key_id: The id.
    """
    # No row if all keys come before this id, or there are no keys.
    record = read_record(rows[0] if rows else _DECOY)
    return record if record.id == key_id else None


def records(rows: Sequence[Sequence[Any]], count: int) -> list[ApiKey]:
    """The records in the rows, in the time for `count` records."""
    found = [read_record(row) for row in rows]
    for _ in range(count - len(rows)):
        read_record(_DECOY)
    return found


def read_record(row: Sequence[Any]) -> ApiKey:
    """The record in a row of the table of keys.

    For your own queries, such as a join with your users: `read_record(row)` of `select(*api_keys.c)`.

    Args:
        row: The columns of the table in order: a row of SQLAlchemy or of a driver.

    Raises:
        ValueError: The library did not write these scopes, labels or networks. A key with unknown permissions or networks
            must not be accepted.

    Returns:
        The record. Its times are in UTC.
    """
    values = list(row)
    for index, read, empty in _READ:
        value = values[index]
        values[index] = empty if value is None else read(value)
    return ApiKey(*values)  # by position: fifteen keywords take a quarter of the time longer


def to_row(record: ApiKey) -> dict[str, Any]:
    """The stored columns of a record.

    Raises:
        ValueError: A time has no time zone.
    """
    return {field.name: _column(field, getattr(record, field.name)) for field in KEY_FIELDS}


def to_columns(update: KeyUpdate) -> dict[str, Any]:
    """The stored columns of an update."""
    return {name: _column(FIELD_OF[name], value) for name, value in update.items()}


def _column(field: KeyField, value: Any) -> Any:
    if value is None or value == field.empty:
        return None
    if field.kind is FieldKind.MOMENT:
        return to_microseconds(value)
    return _from_set(value) if field.kind is FieldKind.TEXTS else value


def to_microseconds(moment: datetime) -> int:
    """Microseconds since the Unix epoch.

    Raises:
        ValueError: The time has no time zone.
    """
    if moment.tzinfo is None:
        raise ValueError("A time without a time zone cannot be stored. Use datetime.now(UTC).")
    return (moment - _EPOCH) // _MICROSECOND


def from_microseconds(value: int) -> datetime:
    """The time, in UTC."""
    return _EPOCH + timedelta(0, 0, value)  # by position, since it runs for every record read


def _from_set(texts: frozenset[str]) -> str:
    # JSON rather than words separated by spaces, because a scope is any string of the application: a scope with a space
    # must not become two.
    return json.dumps(sorted(texts), separators=(",", ":"))


def _parse_set(text: str) -> frozenset[str]:
    texts: object = json.loads(text)
    if not isinstance(texts, list) or not all(
        isinstance(each, str) for each in cast("list[object]", texts)
    ):
        raise ValueError("A set of a stored key is not a JSON array of strings.")
    return frozenset(cast("list[str]", texts))


_READERS: Final[dict[FieldKind, Callable[[Any], Any]]] = {
    FieldKind.MOMENT: from_microseconds,
    FieldKind.TEXTS: _parse_set,
}
# For each value that is converted: its position in a row, its reader, and the meaning of NULL.
_READ: Final = tuple(
    (index, _READERS[field.kind], None if field.is_required else field.empty)
    for index, field in enumerate(KEY_FIELDS)
    if field.kind in _READERS
)

# The row of a usual key.
_DECOY: Final = tuple(
    to_row(ApiKey("", "decoy", "decoy", "decoy", None, datetime(2025, 6, 15, tzinfo=UTC))).values()
)
