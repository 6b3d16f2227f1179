"""What one verification costs that reads the store each time, against the bare driver's own read of the same row.

On SQLite the reference is the read and the least work for a key together: there the read is so short that the HMAC
counts. On PostgreSQL it is a prepared statement on a connection that is held, by whose round trip everything is bound.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
from sqlalchemy import URL
from sqlalchemy.ext.asyncio import create_async_engine

from msk_auth.stores.sqlalchemy import (
    AsyncSQLAlchemyKeyStore,
    SQLAlchemyKeyStore,
    prepare_sqlite,
)

from . import subjects
from .machine import describe
from .result import Column, Result
from .timing import Call, Scale, Work, rows, take_turns
from .verification import least_for_a_key

TABLE = "msk_auth_api_keys"
READ = (
    "SELECT id, name, owner_id, digest, scopes, created_at, expires_at, last_used_at, revoked_at,"
    f" replaced_by, deleted_at, description, labels, networks, announced_days FROM {TABLE} WHERE id = "
)
SQLITE_READ = "SQLite driver's read"
SQLITE_LEAST = "SQLite driver's read, and least work"
POSTGRES_READ = "PostgreSQL driver's read"
POSTGRES_READ_AWAITED = "PostgreSQL driver's read, awaited"


@contextmanager
def blocking(url: URL) -> Iterator[tuple[str, Call]]:
    """A fresh key in a database, and its verification."""
    with subjects.engine_of(url) as engine:
        store = SQLAlchemyKeyStore(engine)
        auth = subjects.authenticator(store)
        key = auth.create_key(subjects.interactive(), name="benchmark").value.reveal()
        header = [f"Bearer {key}".encode()]
        yield key, lambda: auth.authenticate(header)
        store.close()


@contextmanager
def awaited(url: URL, key: str, runner: asyncio.Runner) -> Iterator[Call]:
    """The verification of a key that is in the database, on an event loop."""
    engine = create_async_engine(url)
    if engine.dialect.name == "sqlite":
        prepare_sqlite(engine)
    store = AsyncSQLAlchemyKeyStore(engine)
    auth = subjects.async_authenticator(store)
    header = [f"Bearer {key}".encode()]

    async def work() -> object:
        return await auth.authenticate(header)

    async def close() -> None:
        await store.aclose()
        await engine.dispose()

    try:
        yield work
    finally:
        runner.run(close())


def on_sqlite(stack: ExitStack, runner: asyncio.Runner) -> Iterator[Work]:
    """The works of SQLite."""
    url = stack.enter_context(subjects.sqlite_url())
    key, verify = stack.enter_context(blocking(url))
    verify_awaited = stack.enter_context(
        awaited(url.set(drivername="sqlite+aiosqlite"), key, runner)
    )
    connection = sqlite3.connect(str(url.database), isolation_level=None)
    stack.callback(connection.close)
    least = least_for_a_key(key)

    def read() -> None:
        rows = connection.execute(f"{READ}?", (key[4:16],)).fetchall()
        assert len(rows) == 1

    def read_and_least() -> None:
        read()
        least()

    yield Work("SQLite", SQLITE_READ, read)
    yield Work("SQLite", SQLITE_LEAST, read_and_least)
    yield Work("SQLite", "SQLite, verification", verify, SQLITE_LEAST, 3.0)
    yield Work(
        "SQLite", "SQLite, verification awaited", verify_awaited, SQLITE_LEAST, 3.0, is_async=True
    )


def on_postgres(stack: ExitStack, runner: asyncio.Runner, url: URL) -> Iterator[Work]:
    """The works of PostgreSQL."""
    key, verify = stack.enter_context(blocking(url))
    verify_awaited = stack.enter_context(awaited(url, key, runner))
    address = url.set(drivername="postgresql").render_as_string(hide_password=False)
    connection = stack.enter_context(psycopg.connect(address, autocommit=True))

    async def connect() -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(address, autocommit=True)

    other = runner.run(connect())
    stack.callback(lambda: runner.run(other.close()))
    statement, parameters = f"{READ}%s", (key[4:16],)

    def read() -> None:
        rows = connection.execute(statement, parameters, prepare=True).fetchall()
        assert len(rows) == 1

    async def read_awaited() -> None:
        cursor = await other.execute(statement, parameters, prepare=True)
        assert len(await cursor.fetchall()) == 1

    yield Work("PostgreSQL", POSTGRES_READ, read)
    yield Work("PostgreSQL", "PostgreSQL, verification", verify, POSTGRES_READ, 1.3)
    yield Work("PostgreSQL", POSTGRES_READ_AWAITED, read_awaited, is_async=True)
    yield Work(
        "PostgreSQL",
        "PostgreSQL, verification awaited",
        verify_awaited,
        POSTGRES_READ_AWAITED,
        1.3,
        is_async=True,
    )


def run(scale: Scale) -> Result:
    """Measure it."""
    measured = describe("sqlalchemy", "psycopg", "aiosqlite")
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        made = list(on_sqlite(stack, runner))
        url = stack.enter_context(subjects.postgres_url())
        if url is not None:
            made += on_postgres(stack, runner, url)
        samples = take_turns(
            made,
            rounds=scale.pick(2, 60),
            seconds=scale.pick(1, 40) / 1000,
            clock=time.perf_counter,
            runner=runner,
        )
    return Result(
        name="authoritative",
        title="One verification that reads the database",
        method="Time of one call of `authenticate` without a lease, by the clock on the wall. The database is on the"
        " same machine; one connection, one call at a time.",
        columns=[Column("time", "Time", "µs"), Column("ratio", "Ratio")],
        rows=rows(made, samples),
        measured=measured,
    )
