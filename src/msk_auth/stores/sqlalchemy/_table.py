"""The tables, and what their rows mean: one of keys, and a small one of numbers that processes share.

Their columns are of SQLAlchemy's own types, so that a migration that alembic generates from them runs as it is and
imports nothing of the library. A record becomes a row here, and a row a record, whichever way it is read.
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

# Without it MariaDB and MySQL take the server's default, which may know no emoji and no transactions.
_MYSQL: Final[dict[str, Any]] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (("engine", "InnoDB"), ("charset", "utf8mb4"))
}


def _exact_text(length: int) -> String:
    """Text that is compared by code point: ids that differ in case, or in an accent, are different.

    PostgreSQL would sort by the rules of a language, and MariaDB and MySQL would ignore case. `utf8mb4_bin` is the one
    collation that MariaDB and MySQL both have; it ignores spaces at the end, which the operations therefore compare
    themselves.

    Args:
        length: How many characters it may have.
    """
    return (
        String(length)
        .with_variant(String(length, collation="C"), "postgresql")
        .with_variant(String(length, collation="utf8mb4_bin"), "mysql")
        .with_variant(String(length, collation="utf8mb4_bin"), "mariadb")
    )


def _declared(field: KeyField) -> Column[Any]:
    """The column of a field of a key. NULL is the field's empty value.

    All times are whole microseconds since the Unix epoch: a number compares, sorts and indexes alike in every database, where
    their own types differ in precision and in what they make of a time zone. A set is a JSON array.
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

    Beside the keys there are their registers (`<name>_registers`), numbers that processes share: whose turn it is to add a
    key for an owner, and which leases are in use.

    Args:
        metadata: Of the application, whose migrations then make these tables with its own.
        name: Of the table of keys.

    Returns:
        The table of keys, to be handed to a store.
    """
    table = Table(
        name,
        metadata,
        *(_declared(field) for field in KEY_FIELDS),
        # A page of a listing is read off this one from its end, past no deleted key.
        Index(f"ix_{name}_listed", "owner_id", "deleted_at", "created_at", "id"),
        # The active ones are two stretches of this one (no expiry, and a later one), past no ended key.
        Index(f"ix_{name}_active", "owner_id", "revoked_at", "expires_at", "created_at", "id"),
        # The keys whose end is to be announced are the beginnings of a few stretches of this one.
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
    """The registers that belong to a table of keys.

    Raises:
        ConfigurationError: The table was not made by :func:`api_key_table`.
    """
    registers = table.metadata.tables.get(f"{table.key}{_REGISTERS}")
    if registers is None:
        raise ConfigurationError(
            f"The table {table.key!r} has no table {table.key + _REGISTERS!r} beside it: make it with api_key_table(metadata)."
        )
    return registers


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class FastPathUnavailable(Exception):
    """The short way is not open at the moment; the long one through SQLAlchemy is."""


def select_from_id(table: Table) -> Select[Any]:
    """The rows from the id `key_id` on, of which a look-up takes the first.

    It is the one with this id or, if there is none, the next one. So the database does the same whether there is such a
    key or not: it goes down its index and reads a row. Equal time does not show which ids exist.
    """
    return select(*table.c).where(table.c.id >= bindparam("key_id")).order_by(table.c.id)


def id_of(statement: Select[Any]) -> ColumnElement[str]:
    """The column `id` of a statement.

    Raises:
        ConfigurationError: It has none, or one that is no text.
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
        rows: The first one that :func:`select_from_id` finds, if there is one.
        key_id: The id.
    """
    # No row, where every key comes before this id, or where there are no keys.
    record = read_record(rows[0] if rows else _DECOY)
    return record if record.id == key_id else None


def records(rows: Sequence[Sequence[Any]], count: int) -> list[ApiKey]:
    """The records in the rows, in the time that it takes to make as many as were looked for."""
    found = [read_record(row) for row in rows]
    for _ in range(count - len(rows)):
        read_record(_DECOY)
    return found


def read_record(row: Sequence[Any]) -> ApiKey:
    """The record that a row of the table of keys holds.

    For queries of your own, such as a join with your users: `read_record(row)` of `select(*api_keys.c)`.

    Args:
        row: The columns of the table in its order: a row of SQLAlchemy, or what a driver returned.

    Raises:
        ValueError: The scopes, labels or networks are not what the library writes. A key of which it is not known what it
            may do, or where, must not be accepted.

    Returns:
        The record. Its times are in UTC.
    """
    values = list(row)
    for index, read, empty in _READ:
        value = values[index]
        values[index] = empty if value is None else read(value)
    return ApiKey(*values)  # by position: fifteen keywords take a quarter of the time longer


def to_row(record: ApiKey) -> dict[str, Any]:
    """The columns of a record, as they are stored.

    Raises:
        ValueError: A time has no time zone.
    """
    return {field.name: _column(field, getattr(record, field.name)) for field in KEY_FIELDS}


def to_columns(update: KeyUpdate) -> dict[str, Any]:
    """The columns of an update, as they are stored."""
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
        ValueError: The moment has no time zone.
    """
    if moment.tzinfo is None:
        raise ValueError("A time without a time zone cannot be stored. Use datetime.now(UTC).")
    return (moment - _EPOCH) // _MICROSECOND


def from_microseconds(value: int) -> datetime:
    """The moment, in UTC."""
    return _EPOCH + timedelta(0, 0, value)  # by position: it is done for every record that is read


def _from_set(texts: frozenset[str]) -> str:
    # JSON rather than words with spaces between, because a scope is any string of the application: one that holds a space
    # must not come back as two.
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
# Where in a row each value is that is not stored as it is, what reads it, and what NULL means.
_READ: Final = tuple(
    (index, _READERS[field.kind], None if field.is_required else field.empty)
    for index, field in enumerate(KEY_FIELDS)
    if field.kind in _READERS
)

# What most keys look like.
_COMMON: Final[dict[str, Any]] = {
    "id": "",
    "name": "decoy",
    "owner_id": "decoy",
    "digest": f"sha256:{'0' * 64}",
    "created_at": 1_750_000_000_000_000,
}
_DECOY: Final = tuple(_COMMON.get(field.name) for field in KEY_FIELDS)
