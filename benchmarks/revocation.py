"""How long `revoke_key` takes: it commits, and then waits until no process can still use what it read before.

Each lease has a table of its own, since the longest lease of a deployment is remembered.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from sqlalchemy import URL, MetaData

from msk_auth import Authenticator
from msk_auth.stores.sqlalchemy import SQLAlchemyKeyStore, api_key_table

from . import subjects
from .machine import describe
from .result import Chart, Column, Result, Row, Spread
from .timing import Scale

LEASES_MS = (0, 50, 250)


@contextmanager
def deployment(url: URL, lease_ms: int) -> Iterator[Authenticator[str]]:
    """An authenticator over a fresh table, which knows the lease."""
    with subjects.engine_of(url) as engine:
        metadata = MetaData()
        table = api_key_table(metadata, f"revocation_{lease_ms}")
        metadata.create_all(engine)
        store = SQLAlchemyKeyStore(engine, table)
        yield subjects.authenticator(
            store, lease=timedelta(milliseconds=lease_ms) if lease_ms else None
        )
        store.close()


def revoke_fresh(auth: Authenticator[str]) -> float:
    """Milliseconds of one revocation, of a key that is in use."""
    who = subjects.interactive()
    created = auth.create_key(who, name="benchmark").value
    auth.authenticate([f"Bearer {created.reveal()}"])
    began = time.perf_counter()
    auth.revoke_key(who, created.id)
    return (time.perf_counter() - began) * 1e3


def measure(database: str, url: URL, scale: Scale) -> list[Row]:
    """The rows of one database."""
    times: dict[int, list[float]] = {lease: [] for lease in LEASES_MS}
    for number in range(scale.pick(1, 20) + 1):
        for lease in LEASES_MS:
            with deployment(url, lease) as auth:
                took = revoke_fresh(auth)
            if number > 0 or scale.is_quick:
                times[lease].append(took)
    return [
        Row(
            database,
            f"lease of {lease} ms" if lease else "no lease",
            {
                "time": Spread.of(own),
                "beyond": Spread.of([each - lease for each in own]),
            },
        )
        for lease, own in times.items()
    ]


def run(scale: Scale) -> Result:
    """Measure it."""
    measured = describe("sqlalchemy", "psycopg")
    with subjects.sqlite_url(is_empty=True) as url:
        rows = measure("SQLite", url, scale)
    with subjects.postgres_url(is_empty=True) as postgres:
        if postgres is not None:
            rows += measure("PostgreSQL", postgres, scale)
    return Result(
        name="revocation",
        title="One revocation",
        method="Time from the call of `revoke_key` until it returns, from when on no process anywhere accepts the key."
        " Without a lease it is the commit alone; with one, one percent for clocks that run apart and 5 ms are added.",
        columns=[Column("time", "Time", "ms"), Column("beyond", "Beyond the lease", "ms")],
        rows=rows,
        chart=Chart("bars", "time of one revocation, ms", "time"),
        measured=measured,
    )
