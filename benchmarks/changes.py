"""What the hook `on_change` adds to a write of the store: creating a key and revoking it, with a row of an audit log.

The three stores are on tables of one database and take turns. Without a lease a revocation is its commit alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from sqlalchemy import URL, Column, Connection, Engine, MetaData, String, Table

from msk_auth import Authenticator
from msk_auth.events import KeyEvent
from msk_auth.stores.sqlalchemy import SQLAlchemyKeyStore, api_key_table

from . import subjects
from .machine import describe
from .result import Chart, Result, Row, Spread
from .result import Column as Figure
from .timing import Scale, ratios

NONE, NOTHING, AUDIT = "no hook", "hook that does nothing", "hook that writes a row"
CREATE, REVOKE = "create", "revoke"
# What writes waits for the disk, so that a round is a few calls.
CALLS = 8

Hook = Callable[[Connection, KeyEvent], None]


def hooks(audit: Table) -> dict[str, Hook | None]:
    """From the name of a row to the hook of its store."""
    insert = audit.insert()

    def write(connection: Connection, event: KeyEvent) -> None:
        connection.execute(insert, {"event": type(event).__name__, "key_id": event.record.id})

    return {NONE: None, NOTHING: lambda _connection, _event: None, AUDIT: write}


@contextmanager
def authenticators(engine: Engine) -> Generator[dict[str, Authenticator[str]]]:
    """One for each hook, each on a table of its own."""
    metadata = MetaData()
    audit = Table("audit", metadata, Column("event", String(40)), Column("key_id", String(12)))
    made: dict[str, SQLAlchemyKeyStore] = {}
    for number, (name, hook) in enumerate(hooks(audit).items()):
        table = api_key_table(metadata, f"changes_{number}")
        made[name] = SQLAlchemyKeyStore(engine, table, on_change=hook)
    metadata.create_all(engine)
    yield {name: subjects.authenticator(store) for name, store in made.items()}
    for store in made.values():
        store.close()


def one_round(auth: Authenticator[str], calls: int) -> tuple[float, float]:
    """Microseconds of a created key and of a revoked one."""
    who = subjects.interactive()
    began = time.perf_counter()
    created = [auth.create_key(who, name="benchmark").value.id for _ in range(calls)]
    between = time.perf_counter()
    for key_id in created:
        auth.revoke_key(who, key_id)
    ended = time.perf_counter()
    return (between - began) / calls * 1e6, (ended - between) / calls * 1e6


def measure(database: str, url: URL, scale: Scale) -> list[Row]:
    """The rows of one database."""
    samples: dict[tuple[str, str], list[float]] = {}
    with subjects.engine_of(url) as engine, authenticators(engine) as by_hook:
        for number in range(scale.pick(1, 60) + 1):
            for hook, auth in by_hook.items():
                times = one_round(auth, scale.pick(1, CALLS))
                for operation, took in zip((CREATE, REVOKE), times, strict=True):
                    if number > 0:
                        samples.setdefault((operation, hook), []).append(took)
    return [
        _row(database, operation, hook, samples)
        for operation in (CREATE, REVOKE)
        for hook in (NONE, NOTHING, AUDIT)
    ]


def _row(
    database: str, operation: str, hook: str, samples: dict[tuple[str, str], list[float]]
) -> Row:
    own, bare = samples[operation, hook], samples[operation, NONE]
    cells = {"time": Spread.of(own)}
    if hook != NONE:
        cells["ratio"] = Spread.of(ratios(own, bare))
    against = "" if hook == NONE else f"{operation}, {NONE}"
    return Row(database, f"{operation}, {hook}", cells, against)


def run(scale: Scale) -> Result:
    """Measure it."""
    measured = describe("sqlalchemy", "psycopg")
    with subjects.sqlite_url(is_empty=True) as url:
        rows = measure("SQLite", url, scale)
    with subjects.postgres_url(is_empty=True) as postgres:
        if postgres is not None:
            rows += measure("PostgreSQL", postgres, scale)
    return Result(
        name="changes",
        title="Writes with the hook on_change",
        method="Time of one call, which includes the commit. The hook runs in the transaction of the write, and the row of"
        " an audit log is one INSERT.",
        columns=[Figure("time", "Time", "µs"), Figure("ratio", "Ratio")],
        rows=rows,
        chart=Chart("bars", "time of one write, µs", "time"),
        measured=measured,
    )
