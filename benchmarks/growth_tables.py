"""Tables of keys of any size, filled as fast as a database can: sorted, in bulk, with the indexes made afterwards."""

from __future__ import annotations

import sqlite3
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import psycopg
from sqlalchemy import Engine, MetaData, Table

from msk_auth import KeyFormat
from msk_auth.stores.sqlalchemy import api_key_table

from . import subjects

BIG_OWNER = "the-owner"
SAMPLE = 4_000
COLUMNS = (
    "id",
    "name",
    "owner_id",
    "digest",
    "scopes",
    "created_at",
    "expires_at",
    "last_used_at",
    "revoked_at",
    "replaced_by",
    "deleted_at",
)
_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_IDS = len(_ALPHABET) ** 12
_FIRST = 1_767_225_600_000_000
"""Microseconds from the epoch to the start of 2026, when the oldest key was made."""

_Row = tuple[str, str, str, str, None, int, int | None, None, int | None, None, None]


@dataclass(frozen=True, slots=True)
class Filled:
    """A table, and values of keys that are in it, spread over all of it."""

    table: Table
    keys: Sequence[str]


def fill(engine: Engine, size: int) -> Filled:
    """A fresh table of this many keys."""
    metadata = MetaData()
    table = api_key_table(metadata, f"growth_{size}")
    metadata.create_all(engine)
    for index in table.indexes:
        index.drop(engine)
    keys = [KeyFormat().generate().reveal() for _ in range(min(size // 2, SAMPLE))]
    if engine.dialect.name == "sqlite":
        _fill_sqlite(engine, table, size, keys)
    else:
        _fill_postgres(engine, table, size, keys)
    for index in table.indexes:
        index.create(engine)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        # Otherwise the server would do it in the middle of a measurement.
        is_sqlite = engine.dialect.name == "sqlite"
        connection.exec_driver_sql("ANALYZE" if is_sqlite else f"VACUUM ANALYZE {table.name}")
    return Filled(table, keys)


def _fill_sqlite(engine: Engine, table: Table, size: int, keys: Sequence[str]) -> None:
    connection = sqlite3.connect(str(engine.url.database), isolation_level=None)
    places = ", ".join("?" * len(COLUMNS))
    statement = f"INSERT INTO {table.name} ({', '.join(COLUMNS)}) VALUES ({places})"
    connection.execute("PRAGMA synchronous = OFF")
    for rows in (_strangers(size, len(keys)), _own(keys)):
        while some := list(islice(rows, 50_000)):
            connection.execute("BEGIN")
            connection.executemany(statement, some)
            connection.execute("COMMIT")
    connection.close()


def _fill_postgres(engine: Engine, table: Table, size: int, keys: Sequence[str]) -> None:
    address = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(address) as connection, connection.cursor() as cursor:
        copying = f"COPY {table.name} ({', '.join(COLUMNS)}) FROM STDIN"
        with cursor.copy(copying) as copy:
            for rows in (_strangers(size, len(keys)), _own(keys)):
                while some := list(islice(rows, 5_000)):
                    copy.write("".join(map(_line, some)))


def _strangers(size: int, own: int) -> Iterator[_Row]:
    """All but `own` of the rows, in the order of their ids, which are spread evenly over all that there can be."""
    count = size - own
    for number in range(count):
        owner = BIG_OWNER if number % 10 == 0 else f"owner-{number // 20}"
        # In an order of its own, as keys are not made in the order of their ids.
        created = _FIRST + number * 7919 % count * 1_000_000
        state = number // 10 % 4
        yield (
            _id((number * 2 + 1) * _IDS // (count * 2)),
            "name of a key",
            owner,
            f"sha256:{number:064x}",
            None,
            created,
            created if state == 3 else None,
            None,
            created if state == 1 else None,
            None,
            None,
        )


def _own(keys: Sequence[str]) -> Iterator[_Row]:
    """The keys that will be presented. Every tenth is the big owner's, as of all keys."""
    hasher = subjects.hasher()
    for number, key in enumerate(sorted(keys)):
        owner = BIG_OWNER if number % 10 == 0 else f"own-{number // 20}"
        digest = hasher.digest(key)
        yield (key[4:16], "own", owner, digest, None, _FIRST, None, None, None, None, None)


def _line(row: tuple[Any, ...]) -> str:
    return "\t".join("\\N" if value is None else str(value) for value in row) + "\n"


def _id(number: int) -> str:
    digits: list[str] = []
    for _ in range(12):
        number, value = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[value])
    return "".join(reversed(digits))
