"""Many verifications at once that all read PostgreSQL: reads that travel together against one read for each.

The verifications are of different keys, on one event loop; a wave of them starts together, as requests do that a
server reads from its sockets in one go.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import psycopg
from sqlalchemy import URL
from sqlalchemy.ext.asyncio import create_async_engine

from msk_auth.stores import AsyncKeyStore
from msk_auth.stores.sqlalchemy import AsyncSQLAlchemyKeyStore, SQLAlchemyKeyStore

from . import subjects
from .authoritative import READ
from .machine import describe
from .result import Aim, Chart, Column, Result, Row, Spread
from .timing import Scale, ratios

AT_ONCE = (1, 8, 64)
CONNECTIONS = 16
BARE, EACH, TOGETHER = "bare driver, one read for each", "one read for each", "reads together"
LEAST_GAIN = 4.0


class BareDriver:
    """One read for each on connections of the bare driver, and the least work: what could be written by hand."""

    def __init__(self, connections: Sequence[psycopg.AsyncConnection[Any]]) -> None:
        self._free = asyncio.Queue[psycopg.AsyncConnection[Any]]()
        for connection in connections:
            self._free.put_nowait(connection)

    async def authenticate(self, authorization: Sequence[bytes]) -> object:
        """As an authenticator does, though nothing is decided."""
        key = authorization[0].decode().split(" ")[1]
        connection = await self._free.get()
        try:
            cursor = await connection.execute(f"{READ}%s", (key[4:16],), prepare=True)
            [row] = await cursor.fetchall()
        finally:
            self._free.put_nowait(connection)
        hmac.digest(subjects.PEPPER, key.encode(), "sha256")
        return row


class OneByOne:
    """A store that can find one key at a time only, over one that can find several."""

    def __init__(self, store: AsyncKeyStore) -> None:
        self._store = store

    async def find(self, key_id: str) -> Any:
        """See `AsyncKeyStore`."""
        return await self._store.find(key_id)

    def __getattr__(self, name: str) -> Any:
        if name == "find_many":
            raise AttributeError(name)
        return getattr(self._store, name)


def make_keys(url: URL, count: int) -> list[str]:
    """Fresh keys that the database has."""
    with subjects.engine_of(url) as engine:
        store = SQLAlchemyKeyStore(engine)
        auth = subjects.authenticator(store)
        who = subjects.interactive()
        keys = [auth.create_key(who, name="benchmark").value.reveal() for _ in range(count)]
        store.close()
    return keys


async def wave(
    authenticate: Callable[[Sequence[bytes]], Awaitable[object]], headers: Sequence[bytes]
) -> None:
    """All of them at once."""
    async with asyncio.TaskGroup() as group:
        for header in headers:
            group.create_task(_one(authenticate, header))


async def measure(url: URL, keys: Sequence[str], scale: Scale) -> list[Row]:
    """The rows."""
    headers = [f"Bearer {key}".encode() for key in keys]
    async with AsyncExitStack() as stack:
        address = url.set(drivername="postgresql").render_as_string(hide_password=False)
        connections: list[psycopg.AsyncConnection[Any]] = []
        for _ in range(CONNECTIONS):
            opened = await psycopg.AsyncConnection.connect(address, autocommit=True)
            connections.append(await stack.enter_async_context(opened))
        authenticators: dict[str, Any] = {BARE: BareDriver(connections)}
        for name in (EACH, TOGETHER):
            # As many connections as an application would give it.
            engine = create_async_engine(url, pool_size=CONNECTIONS, max_overflow=0)
            stack.push_async_callback(engine.dispose)
            store = AsyncSQLAlchemyKeyStore(engine)
            stack.push_async_callback(store.aclose)
            given: Any = store if name == TOGETHER else OneByOne(store)
            authenticators[name] = subjects.async_authenticator(given)
        rates: dict[tuple[int, str], list[float]] = {}
        waves = scale.pick(1, 12)
        for number in range(scale.pick(1, 30) + 1):
            for at_once in AT_ONCE:
                for name, authenticator in authenticators.items():
                    began = time.perf_counter()
                    for _ in range(waves):
                        await wave(authenticator.authenticate, headers[:at_once])
                    took = time.perf_counter() - began
                    if number > 0:
                        rates.setdefault((at_once, name), []).append(at_once * waves / took)
    return [_row(at_once, name, rates) for at_once in AT_ONCE for name in (BARE, EACH, TOGETHER)]


def run(scale: Scale) -> Result:
    """Measure it."""
    measured = describe("sqlalchemy", "psycopg")
    rows: list[Row] = []
    with subjects.postgres_url() as url:
        if url is not None:
            keys = make_keys(url, max(AT_ONCE))
            rows = asyncio.run(measure(url, keys, scale))
    return Result(
        name="concurrency",
        title="Verifications that arrive together",
        method="Waves of verifications of different keys on one event loop, all reading PostgreSQL, without a lease."
        f" Each way has up to {CONNECTIONS} connections.",
        columns=[
            Column("rate", "Verifications per second"),
            Column("ratio", "Ratio"),
            Column("bare", "Ratio to the bare driver"),
        ],
        rows=rows,
        chart=Chart("bars", "verifications per second", "rate"),
        measured=measured,
    )


async def _one(authenticate: Callable[[Sequence[bytes]], Awaitable[object]], header: bytes) -> None:
    await authenticate([header])


def _row(at_once: int, name: str, rates: dict[tuple[int, str], list[float]]) -> Row:
    own = rates[at_once, name]
    cells = {"rate": Spread.of(own)}
    group = f"{at_once} at once"
    if name != TOGETHER:
        return Row(group, name, cells)
    cells["ratio"] = Spread.of(ratios(own, rates[at_once, EACH]))
    cells["bare"] = Spread.of(ratios(own, rates[at_once, BARE]))
    aim = Aim("ratio", "at least", LEAST_GAIN) if at_once == max(AT_ONCE) else None
    return Row(group, name, cells, EACH, aim)
