"""How the cost of an operation grows with the table, from a thousand keys to a million, or to ten with `--full`.

The tables of all sizes are there at once and take turns, so that a growth is a ratio of one run. The measure is the
bare driver's own read of a row by its primary key: a verification should not grow faster than that. A tenth of each
table is one owner's, whose keys are in every state. An administrator lists the keys of all owners; of a filter that no key
matches, one page reads 10,000 records.
"""

from __future__ import annotations

import gc
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import cycle
from typing import Any

import psycopg
from sqlalchemy import URL, Engine

from msk_auth import (
    AdminKeys,
    Authenticator,
    KeyLimits,
    KeyStatus,
    Owner,
    SystemClock,
    local_principal,
)
from msk_auth.errors import KeyLimitReached
from msk_auth.keys import KeyFilter
from msk_auth.stores.sqlalchemy import SQLAlchemyKeyStore

from . import subjects
from .growth_tables import BIG_OWNER, Filled, fill
from .machine import describe
from .result import Aim, Chart, Column, Result, Row, Spread, number
from .timing import Scale, ratios

SIZES = (1_000, 10_000, 100_000, 1_000_000)
QUICK_SIZES = (1_000, 2_000)
TEN_MILLION = 10_000_000
LIMIT = 40
READ = "bare driver's read"
VERIFY = "verification"
MOST_GROWTH = 1.2
# Calls of each operation in each round; what writes waits for the disk, so it is called less often.
READS, WRITES = 40, 4
_NOTHING: frozenset[str] = frozenset()
_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
# Its keys are in the middle of those of all owners.
_MIDDLE = "owner-5"

Operation = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Operations:
    """What is measured on one table; each call of an operation is about another key."""

    by_name: dict[str, tuple[Operation, int]]


def find_owner(owner_id: str) -> Owner[str]:
    """Any owner there could be, at no cost."""
    return Owner(owner_id, _NOTHING, owner_id)


@contextmanager
def operations(engine: Engine, filled: Filled) -> Iterator[Operations]:
    """On one table."""
    store = SQLAlchemyKeyStore(engine, filled.table)
    auth = Authenticator(store, find_owner=find_owner, hasher=subjects.hasher())
    limited = Authenticator(store, find_owner=find_owner, key_limits=KeyLimits(max_active=LIMIT))
    owner: Owner[str] = Owner(BIG_OWNER, frozenset(), BIG_OWNER)
    who = local_principal(owner, at=SystemClock().now(), interactive=True)
    admin = AdminKeys(auth, "keys:admin")
    root = local_principal(
        Owner("root", frozenset({"keys:admin"}), "root"), at=SystemClock().now(), interactive=True
    )
    # A cursor says where the page before it has ended.
    deep = admin.list_keys(root, KeyFilter(owner_id=_MIDDLE), limit=1).next_cursor
    keys = cycle(filled.keys)
    created: list[str] = []

    def verify() -> object:
        return auth.authenticate([f"Bearer {next(keys)}".encode()])

    def create() -> None:
        created.append(auth.create_key(who, name="benchmark").value.id)

    def refuse() -> None:
        with suppress(KeyLimitReached):
            limited.create_key(who, name="benchmark")
            raise AssertionError("the owner has as many keys as allowed")

    def revoke() -> object:
        return auth.revoke_key(who, created.pop())

    def listing(name: str, cursor: str | None = None, **wanted: Any) -> dict[str, Any]:
        def list_all() -> object:
            return admin.list_keys(root, KeyFilter(**wanted), cursor=cursor)

        return {f"list all keys, {name}": (list_all, READS // 4)}

    def create_and_revoke() -> object:
        return admin.revoke_key(root, auth.create_key(who, name="benchmark").value.id)

    with reader(engine, filled) as read:
        yield Operations(
            {
                READ: (read, READS),
                VERIFY: (verify, READS),
                "list a page": (lambda: auth.list_keys(who), READS // 4),
                "list active keys": (
                    lambda: auth.list_keys(who, status=KeyStatus.ACTIVE),
                    READS // 4,
                ),
                **listing("first page"),
                **listing("deep page", deep),
                **listing("of one owner", owner_id=BIG_OWNER),
                **listing("revoked", status=KeyStatus.REVOKED),
                **listing("unused", unused_since=_LONG_AGO),
                **listing("none matches", expires_before=_LONG_AGO),
                "create": (create, WRITES),
                # As many as are created just before.
                "revoke": (revoke, WRITES),
                "create, revoke as administrator": (create_and_revoke, WRITES),
                "refuse, limit reached": (refuse, WRITES),
            }
        )
    store.close()


@contextmanager
def reader(engine: Engine, filled: Filled) -> Iterator[Operation]:
    """The bare driver's read of a row by its primary key, on a connection of its own."""
    ids = cycle([key[4:16] for key in filled.keys])
    columns = ", ".join(column.name for column in filled.table.columns)
    statement = f"SELECT {columns} FROM {filled.table.name} WHERE id = "
    connection: Any
    options: dict[str, Any] = {}
    if engine.dialect.name == "sqlite":
        connection = sqlite3.connect(str(engine.url.database), isolation_level=None)
        statement += "?"
    else:
        address = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
        connection = psycopg.connect(address, autocommit=True)
        statement, options = f"{statement}%s", {"prepare": True}

    def read() -> None:
        assert len(connection.execute(statement, (next(ids),), **options).fetchall()) == 1

    try:
        yield read
    finally:
        connection.close()


def measure(tables: dict[int, Operations], scale: Scale) -> dict[tuple[str, int], list[float]]:
    """Microseconds of each operation on each table, one figure for each round."""
    samples: dict[tuple[str, int], list[float]] = {}
    names = list(next(iter(tables.values())).by_name)
    first = 0 if scale.is_quick else -1
    gc.disable()
    for turn in range(first, scale.pick(1, 40)):
        for name in names:
            for size, table in tables.items():
                operation, calls = table.by_name[name]
                calls = 1 if scale.is_quick else calls
                began = time.perf_counter()
                for _ in range(calls):
                    operation()
                took = (time.perf_counter() - began) / calls * 1e6
                if turn >= 0:
                    samples.setdefault((name, size), []).append(took)
        gc.collect()
    gc.enable()
    return samples


def rows(
    database: str, sizes: Sequence[int], samples: dict[tuple[str, int], list[float]]
) -> list[Row]:
    """A row for each operation: its time on each table, how it grew, and that against the bare read."""
    first, last = sizes[0], sizes[-1]
    made: list[Row] = []
    bare = ratios(samples[READ, last], samples[READ, first])
    for name in dict.fromkeys(name for name, _ in samples):
        cells = {str(size): Spread.of(samples[name, size]) for size in sizes}
        growth = ratios(samples[name, last], samples[name, first])
        cells["growth"] = Spread.of(growth)
        aim = None
        if name != READ:
            cells["ratio"] = Spread.of(ratios(growth, bare))
            if name == VERIFY:
                aim = Aim("ratio", "at most", MOST_GROWTH)
        made.append(Row(database, name, cells, aim=aim))
    return made


def on(database: str, url: URL, sizes: Sequence[int], scale: Scale) -> list[Row]:
    """The rows of one database."""
    with subjects.engine_of(url) as engine, ExitStack() as stack:
        tables = {
            size: stack.enter_context(operations(engine, fill(engine, size))) for size in sizes
        }
        return rows(database, sizes, measure(tables, scale))


def run(scale: Scale) -> Result:
    """Measure it."""
    measured = describe("sqlalchemy", "psycopg")
    sizes = QUICK_SIZES if scale.is_quick else SIZES
    if scale.is_full:
        sizes = (*sizes, TEN_MILLION)
    with subjects.sqlite_url(is_empty=True) as url:
        made = on("SQLite", url, sizes, scale)
    with subjects.postgres_url(is_empty=True) as postgres:
        if postgres is not None:
            made += on("PostgreSQL", postgres, sizes, scale)
    return Result(
        name="growth",
        title="Growth with the number of keys",
        method="The tables of all sizes are in one database and take turns. Each call is about another key. A tenth of"
        f" each table is one owner's, whose keys are listed; the limit that it is refused by is {LIMIT}. Growth is the time"
        " on the largest table over that on the smallest; its ratio is that growth over the bare read's.",
        columns=[
            *(Column(str(size), f"{number(size)} keys", "µs", x=size) for size in sizes),
            Column("growth", "Growth"),
            Column("ratio", "Over the bare read's growth"),
        ],
        rows=made,
        chart=Chart("lines", "time of one operation, µs", x_axis="keys in the table"),
        measured=measured,
    )
