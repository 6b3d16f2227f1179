"""What one verification costs the processor that reads the store each time.

On SQLite it is compared with the least work for a key, which reads a dictionary. On PostgreSQL with the bare driver's own
read of the same row, a prepared statement on a connection that is held: for one client, and for 32 at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
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
SQLITE_LEAST = "least work for a key"
POSTGRES_READ = "PostgreSQL driver's read"
POSTGRES_READ_AWAITED = "PostgreSQL driver's read, awaited"
CLIENTS = 32
POSTGRES_READS = f"PostgreSQL driver's reads of {CLIENTS} clients"


@contextmanager
def blocking(url: URL) -> Iterator[tuple[Sequence[str], Call]]:
    """A fresh key in a database for each client, and the verification of the first."""
    with subjects.engine_of(url) as engine:
        store = SQLAlchemyKeyStore(engine)
        auth = subjects.authenticator(store)
        person = subjects.interactive()
        keys = [auth.create_key(person, name="benchmark").value.reveal() for _ in range(CLIENTS)]
        header = [f"Bearer {keys[0]}".encode()]
        yield keys, lambda: auth.authenticate(header)
        store.close()


@contextmanager
def awaited(url: URL, runner: asyncio.Runner) -> Iterator[Callable[[str], Awaitable[object]]]:
    """The verification of keys that are in the database, on an event loop."""
    engine = create_async_engine(url)
    if engine.dialect.name == "sqlite":
        prepare_sqlite(engine)
    store = AsyncSQLAlchemyKeyStore(engine)
    auth = subjects.async_authenticator(store)

    async def close() -> None:
        await store.aclose()
        await engine.dispose()

    try:
        yield lambda key: auth.authenticate([f"Bearer {key}".encode()])
    finally:
        runner.run(close())


def on_sqlite(stack: ExitStack, runner: asyncio.Runner) -> Iterator[Work]:
    """The works of SQLite."""
    url = stack.enter_context(subjects.sqlite_url())
    (key, *_), verify = stack.enter_context(blocking(url))
    verify_awaited = stack.enter_context(awaited(url.set(drivername="sqlite+aiosqlite"), runner))
    yield Work("SQLite", SQLITE_LEAST, least_for_a_key(key))
    yield Work("SQLite", "SQLite, verification", verify, SQLITE_LEAST, 8.0)
    yield Work(
        "SQLite",
        "SQLite, verification awaited",
        lambda: verify_awaited(key),
        SQLITE_LEAST,
        8.0,
        is_async=True,
    )


def on_postgres(stack: ExitStack, runner: asyncio.Runner, url: URL) -> Iterator[Work]:
    """The works of PostgreSQL."""
    keys, verify = stack.enter_context(blocking(url))
    verify_awaited = stack.enter_context(awaited(url, runner))
    address = url.set(drivername="postgresql").render_as_string(hide_password=False)
    connection = stack.enter_context(psycopg.connect(address, autocommit=True))

    async def connect() -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(address, autocommit=True)

    others = [runner.run(connect()) for _ in keys]
    for other in others:
        stack.callback(lambda each=other: runner.run(each.close()))

    def read() -> None:
        rows = connection.execute(f"{READ}%s", (keys[0][4:16],), prepare=True).fetchall()
        assert len(rows) == 1

    async def read_awaited(other: psycopg.AsyncConnection[Any], key: str) -> None:
        cursor = await other.execute(f"{READ}%s", (key[4:16],), prepare=True)
        assert len(await cursor.fetchall()) == 1

    async def read_all() -> None:
        await asyncio.gather(*map(read_awaited, others, keys))

    async def verify_all() -> None:
        await asyncio.gather(*map(verify_awaited, keys))

    def work(
        name: str, call: Callable[[], object], against: str = "", at_most: float | None = None
    ) -> Work:
        return Work("PostgreSQL", name, call, against, at_most, is_async=True)

    yield Work("PostgreSQL", POSTGRES_READ, read)
    yield Work("PostgreSQL", "PostgreSQL, verification", verify, POSTGRES_READ, 3.0)
    yield work(POSTGRES_READ_AWAITED, lambda: read_awaited(others[0], keys[0]))
    yield work(
        "PostgreSQL, verification awaited",
        lambda: verify_awaited(keys[0]),
        POSTGRES_READ_AWAITED,
        3.0,
    )
    yield work(POSTGRES_READS, read_all)
    yield work(f"PostgreSQL, {CLIENTS} verifications at once", verify_all, POSTGRES_READS, 1.3)


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
            runner=runner,
        )
    return Result(
        name="authoritative",
        title="One verification that reads the database",
        method="Processor time of one call of `authenticate` without a lease, in the application's process alone; one call at a"
        f" time, or {CLIENTS} of different keys at once. The database is on the same machine.",
        columns=[Column("time", "Time", "µs"), Column("ratio", "Ratio")],
        rows=rows(made, samples),
        measured=measured,
    )
