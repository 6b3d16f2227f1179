"""The tables: one of keys, a small one of numbers that processes share, and two of what keys did.

Their columns are of SQLAlchemy's own types, so that a migration that alembic generates from them runs as it is and
imports nothing of the library. What the values mean, and how they become a record, is in `_rows`.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import BigInteger, Column, Date, Index, Integer, MetaData, String, Table, Text

from msk_auth.core.errors import ConfigurationError
from msk_auth.core.fields import KEY_FIELDS, MAX_OWNER_ID_LENGTH, FieldKind, KeyField

_MAX_ID: Final = 64
_REGISTERS: Final = "_registers"
_ACTIVITY: Final = "_activity"
_LAST_REQUESTS: Final = "_last_requests"

# Without it MariaDB and MySQL take the server's default, which may know no emoji and no transactions.
_MYSQL: Final[dict[str, Any]] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (("engine", "InnoDB"), ("charset", "utf8mb4"))
}


def exact_text(length: int) -> String:
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
        .with_variant(String(length, collation="utf8mb4_bin"), "mysql", "mariadb")
    )


def _column(field: KeyField) -> Column[Any]:
    """The column of a field of a key. NULL is the field's empty value.

    All times are whole microseconds since the Unix epoch: a number compares, sorts and indexes alike in every database, where
    their own types differ in precision and in what they make of a time zone. A set is a JSON array.
    """
    types: dict[FieldKind, Any] = {
        FieldKind.ID: exact_text(field.length),
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
    key for an owner, and which leases are in use. What keys did is in `<name>_activity`, a row for each key and day, and in
    `<name>_last_requests`; both stay empty without `activity=` of the authenticator.

    Args:
        metadata: Of the application, whose migrations then make these tables with its own.
        name: Of the table of keys.

    Returns:
        The table of keys, to be handed to a store.
    """
    table = Table(
        name,
        metadata,
        *(_column(field) for field in KEY_FIELDS),
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
        Column("name", exact_text(_MAX_ID + MAX_OWNER_ID_LENGTH), primary_key=True),
        Column("value", BigInteger, nullable=False),
        **_MYSQL,
    )
    Table(
        f"{name}{_ACTIVITY}",
        metadata,
        Column("key_id", exact_text(_MAX_ID), primary_key=True),
        Column("day", Date, primary_key=True),
        Column("accepted", BigInteger, nullable=False),
        Column("refused", BigInteger, nullable=False),
        # The old ones are deleted.
        Index(f"ix_{name}{_ACTIVITY}_day", "day"),
        **_MYSQL,
    )
    Table(
        f"{name}{_LAST_REQUESTS}",
        metadata,
        Column("key_id", exact_text(_MAX_ID), primary_key=True),
        Column("at", BigInteger, nullable=False),
        Column("route", Text),
        Column("address", Text),
        Column("user_agent", Text),
        Index(f"ix_{name}{_LAST_REQUESTS}_at", "at"),
        **_MYSQL,
    )
    return table


def registers_of(table: Table) -> Table:
    """The registers that belong to a table of keys.

    Raises:
        ConfigurationError: The table was not made by :func:`api_key_table`.
    """
    return _beside(table, _REGISTERS)


def activity_of(table: Table) -> tuple[Table, Table]:
    """The tables of what the keys of a table did on each day, and of their last requests.

    Raises:
        ConfigurationError: The table was not made by :func:`api_key_table`.
    """
    return _beside(table, _ACTIVITY), _beside(table, _LAST_REQUESTS)


def _beside(table: Table, suffix: str) -> Table:
    found = table.metadata.tables.get(f"{table.key}{suffix}")
    if found is None:
        raise ConfigurationError(
            f"The table {table.key!r} has no table {table.key + suffix!r} beside it: make it with api_key_table(metadata)."
        )
    return found
