"""The tables: one of keys, and a small one of numbers that processes share."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import BigInteger, Column, Index, MetaData, Table, Text

from msk_auth.core.errors import ConfigurationError

from ._types import ExactText, ScopeSet, UtcMicroseconds

_MAX_ID: Final = 64
_MAX_OWNER_ID: Final = 255
_MAX_DIGEST: Final = 255
_REGISTERS: Final = "_registers"

# Without it MariaDB and MySQL take the server's default, which may know no emoji and no transactions.
_MYSQL: Final[dict[str, Any]] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (("engine", "InnoDB"), ("charset", "utf8mb4"))
}


def api_key_table(metadata: MetaData, name: str = "msk_auth_api_keys") -> Table:
    """Add the library's two tables to a metadata: the keys, and their registers (`<name>_registers`).

    The registers hold numbers that processes share: whose turn it is to add a key for an owner, and which leases
    are in use.

    Args:
        metadata: Of the application, whose migrations then make these tables with its own.
        name: Of the table of keys.

    Returns:
        The table of keys, to be handed to a store.
    """
    table = Table(
        name,
        metadata,
        Column("id", ExactText(_MAX_ID), primary_key=True),
        Column("name", Text, nullable=False),
        Column("owner_id", ExactText(_MAX_OWNER_ID), nullable=False),
        Column("digest", ExactText(_MAX_DIGEST), nullable=False),
        # NULL: everything the owner may. An empty array: nothing.
        Column("scopes", ScopeSet),
        Column("created_at", UtcMicroseconds, nullable=False),
        Column("expires_at", UtcMicroseconds),
        Column("last_used_at", UtcMicroseconds),
        Column("revoked_at", UtcMicroseconds),
        Column("replaced_by", ExactText(_MAX_ID)),
        Column("deleted_at", UtcMicroseconds),
        # A page of a listing is read off this one from its end, past no deleted key.
        Index(f"ix_{name}_listed", "owner_id", "deleted_at", "created_at", "id"),
        # The active ones are two stretches of this one (no expiry, and a later one), past no ended key.
        Index(f"ix_{name}_active", "owner_id", "revoked_at", "expires_at", "created_at", "id"),
        **_MYSQL,
    )
    Table(
        f"{name}{_REGISTERS}",
        metadata,
        Column("name", ExactText(_MAX_ID + _MAX_OWNER_ID), primary_key=True),
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
            f"The table {table.key!r} has no registers beside it: make it with api_key_table(metadata)."
        )
    return registers
