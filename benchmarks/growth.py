"""How the cost of an operation grows with the table: a thousand keys against a million, a tenth of them one owner's.

    python -m benchmarks.growth [URL]

The measure is the bare driver's own read of a row by its primary key: nothing should grow faster than that. Without a
URL it is SQLite in a temporary folder; a PostgreSQL URL must name a database in which two tables may be made and dropped.
"""

from __future__ import annotations

import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, MetaData, create_engine, insert, make_url, text

from msk_auth import ApiKey, KeyQuery, KeyStatus
from msk_auth.stores.sqlalchemy import SQLAlchemyKeyStore, api_key_table, prepare_sqlite

SIZES = (1_000, 1_000_000)
ROUNDS = 300
NOW = datetime(2026, 1, 1, tzinfo=UTC)
OWNER = "the-owner"
_METADATA = MetaData()
_TABLE = api_key_table(_METADATA, "growth_keys")


def new_id(number: int) -> str:
    # Spread over the whole index, as real ids are.
    return f"{number * 2_654_435_761 % 2**32:08x}{number:06d}"


def record(number: int, owner_id: str) -> ApiKey:
    return ApiKey(
        id=new_id(number),
        name="name of a key",
        owner_id=owner_id,
        digest=f"sha256:{secrets.token_hex(32)}",
        scopes=None,
        created_at=NOW + timedelta(seconds=number),
        # The owner has keys in every state; half of them are active.
        revoked_at=NOW if number % 4 == 1 else None,
        expires_at=NOW if number % 4 == 3 else None,
    )


def fill(engine: Engine, first: int, end: int) -> None:
    """Add the records with these numbers; every tenth is the owner's."""
    columns = _TABLE.c.keys()
    for start in range(first, end, 20_000):
        rows: list[dict[str, Any]] = []
        for number in range(start, min(start + 20_000, end)):
            made = record(number, OWNER if number % 10 < 1 else f"owner-{number // 20}")
            rows.append({name: getattr(made, name) for name in columns})
        with engine.begin() as connection:
            connection.execute(insert(_TABLE), rows)
    with engine.begin() as connection:
        connection.execute(text("ANALYZE"))


def measure(operation: Callable[[int], object]) -> float:
    """The median time of an operation, in microseconds."""
    times: list[float] = []
    for round_number in range(ROUNDS):
        began = time.perf_counter()
        operation(round_number)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


def operations(
    engine: Engine, store: SQLAlchemyKeyStore, size: int
) -> Iterator[tuple[str, Callable[[int], object]]]:
    raw = engine.raw_connection()
    driver: Any = raw.driver_connection
    place = "?" if engine.dialect.name == "sqlite" else "%s"
    by_key = f"SELECT * FROM growth_keys WHERE id = {place}"

    def anywhere(number: int) -> int:
        return number * 7919 % size

    yield (
        "bare driver, by primary key",
        lambda n: driver.execute(by_key, (new_id(anywhere(n)),)).fetchall(),
    )
    raw.close()
    yield "find (authenticate)", lambda n: store.find(new_id(anywhere(n)))
    yield "list a page", lambda _: store.list(KeyQuery(OWNER, NOW, limit=51))

    def list_in_the_middle(_number: int) -> object:
        after = (NOW + timedelta(seconds=size // 2), "")
        return store.list(KeyQuery(OWNER, NOW, after=after, limit=51))

    yield "list a page in the middle", list_in_the_middle
    yield "list active keys", lambda _: store.list(KeyQuery(OWNER, NOW, KeyStatus.ACTIVE, limit=51))

    def create(number: int) -> object:
        made = record(10_000_000 + size + number, f"new-{number // 50}")
        return store.insert(made, max_active=100, now=NOW)

    yield "create, limit 100", create

    def create_for_the_owner(number: int) -> object:
        made = record(20_000_000 + size + number, OWNER)
        return store.insert(made, max_active=None, now=NOW)

    yield "create for the owner", create_for_the_owner

    def refuse(number: int) -> object:
        try:
            return store.insert(record(30_000_000 + number * 4, OWNER), max_active=40, now=NOW)
        except Exception as limit_reached:  # noqa: BLE001 - the limit, which is what is measured
            return limit_reached

    yield "refuse the owner's 41st", refuse

    def revoke(number: int) -> object:
        return store.revoke(new_id(20_000_000 + size + number), owner_id=OWNER, at=NOW)

    yield "revoke", revoke


def run(engine: Engine) -> None:
    """Measure at each size and print how the times grew."""
    _METADATA.drop_all(engine)
    _METADATA.create_all(engine)
    results: list[dict[str, float]] = []
    filled = 0
    for size in SIZES:
        fill(engine, filled, size)
        filled = size
        store = SQLAlchemyKeyStore(engine, _TABLE)
        store.find("")
        results.append({name: measure(work) for name, work in operations(engine, store, size)})
        store.close()
    print(f"{'median, µs':32}" + "".join(f"{size:>12,}" for size in SIZES) + f"{'growth':>10}")
    for name, few in results[0].items():
        many = results[1][name]
        print(f"{name:32}{few:12.1f}{many:12.1f}{many / few:10.2f}")
    _METADATA.drop_all(engine)


def main() -> None:
    """Run on the database that was named, or on SQLite."""
    if len(sys.argv) > 1:
        engine = create_engine(make_url(sys.argv[1]))
        run(engine)
        engine.dispose()
        return
    with tempfile.TemporaryDirectory() as folder:
        engine = create_engine(f"sqlite:///{Path(folder) / 'growth.db'}")
        prepare_sqlite(engine)
        run(engine)
        engine.dispose()


if __name__ == "__main__":
    main()
