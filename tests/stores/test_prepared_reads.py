"""Statements of the application, read as keys are: the same rows by every way, and what was committed last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import (
    JSON,
    URL,
    Boolean,
    Column,
    Engine,
    Integer,
    Interval,
    MetaData,
    Numeric,
    String,
    Table,
    bindparam,
    create_engine,
    event,
    insert,
    literal,
    select,
    update,
)
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from tests.stores.support import awaited, sqlite_url

from msk_auth.errors import ConfigurationError
from msk_auth.stores.sqlalchemy import AsyncSQLAlchemyKeyStore, SQLAlchemyKeyStore, prepare_sqlite

USERS = Table(
    "prepared_users",
    MetaData(),
    Column("id", String(32), primary_key=True),
    Column("number", Integer, nullable=False),
    Column("roles", JSON, nullable=False),
    Column("is_disabled", Boolean, nullable=False),
    Column("idle", Interval, nullable=False),
    Column("limit_", Numeric(10, 2), nullable=False),
)
ROWS: list[dict[str, Any]] = [
    {
        "id": name,
        "number": number,
        "roles": ["admin", "ü"],
        "is_disabled": False,
        "idle": timedelta(seconds=number),
        "limit_": 1,
    }
    for number, name in enumerate(("ann", 'b"o\\b', "ü"))
]
KNOWN = (USERS.c.id, USERS.c.number, USERS.c.roles, USERS.c.is_disabled, USERS.c.idle)
BY_ID = select(*KNOWN, literal("x").label("tag")).where(USERS.c.id == bindparam("user_id"))
AMOUNT = select(USERS.c.limit_).where(USERS.c.id == bindparam("user_id"))


@pytest.fixture
def url(url: URL) -> Iterator[URL]:
    """With the application's table."""
    engine = create_engine(url)
    USERS.drop(engine, checkfirst=True)
    USERS.create(engine)
    with engine.begin() as connection:
        connection.execute(insert(USERS), ROWS)
    yield url
    USERS.drop(engine)
    engine.dispose()


@contextmanager
def blocking(url: URL) -> Iterator[tuple[Engine, SQLAlchemyKeyStore]]:
    engine = create_engine(url)
    if url.get_backend_name() == "sqlite":
        prepare_sqlite(engine)
    store = SQLAlchemyKeyStore(engine)
    yield engine, store
    store.close()
    engine.dispose()


def expected(number: int) -> tuple[Any, ...]:
    row = ROWS[number]
    return (*(row[column.name] for column in KNOWN), "x")


def test_every_way_returns_the_same_rows(url: URL) -> None:
    with blocking(url) as (_, store):
        find = store.prepare(BY_ID)
        # The first read on SQLite goes through SQLAlchemy, the following ones do not.
        for _ in range(2):
            for number, row in enumerate(ROWS):
                (found,) = find(user_id=row["id"])
                assert tuple(found) == expected(number)
                assert (found.id, found.tag) == (row["id"], "x")
        assert list(find(user_id="nobody")) == []


def test_a_read_sees_what_was_committed_last(url: URL) -> None:
    with blocking(url) as (engine, store):
        find = store.prepare(BY_ID)
        for value in (False, True, False):
            with engine.begin() as connection:
                connection.execute(update(USERS).values(is_disabled=value))
            assert [row.is_disabled for row in find(user_id="ann")] == [value]


def test_types_that_depend_on_each_result_are_read_through_sqlalchemy(url: URL) -> None:
    with blocking(url) as (_, store):
        amount = store.prepare(AMOUNT)
        for _ in range(2):
            assert [row.limit_ for row in amount(user_id="ann")] == [1]


@pytest.mark.parametrize("odd", ["a\0b", "\ud800"])
def test_what_a_driver_refuses_costs_no_connection(url: URL, odd: str) -> None:
    with blocking(url) as (_, store):
        find = store.prepare(BY_ID)
        for _ in range(2):
            find(user_id="ann")
        try:
            assert list(find(user_id=odd)) == []
        except Exception as error:  # noqa: BLE001 - each driver has its own
            assert not type(error).__module__.startswith("msk_auth")  # noqa: PT017
        assert len(find(user_id="ann")) == 1


def test_a_parameter_may_be_a_list(url: URL) -> None:
    listed = select(USERS.c.id).where(USERS.c.id.in_(bindparam("ids", expanding=True)))
    with blocking(url) as (_, store):
        find = store.prepare(listed)
        for ids in (["ann", "ü"], ["ann"], []):
            assert [row.id for row in find(ids=ids)] == ids


@asynccontextmanager
async def awaiting(url: URL) -> AsyncIterator[tuple[AsyncEngine, AsyncSQLAlchemyKeyStore]]:
    engine = create_async_engine(awaited(url))
    store = AsyncSQLAlchemyKeyStore(engine)
    yield engine, store
    await store.aclose()
    await engine.dispose()


BY_OWN_ID = select(*KNOWN, literal("x").label("tag"))


@pytest.mark.anyio
async def test_an_asynchronous_store_returns_the_same_rows(url: URL) -> None:
    async with awaiting(url) as (engine, store):
        find, amount = store.prepare(BY_ID), store.prepare(AMOUNT)
        for _ in range(2):
            for number, row in enumerate(ROWS):
                (found,) = await find(user_id=row["id"])
                assert tuple(found) == expected(number)
            assert await find(user_id="nobody") == []
            assert [row.limit_ for row in await amount(user_id="ann")] == [1]
        late = AsyncSQLAlchemyKeyStore(lambda: engine)
        assert [row.id for row in await late.prepare(BY_ID)(user_id="ann")] == ["ann"]
        await late.aclose()


@pytest.mark.anyio
async def test_rows_are_looked_up_by_id_on_every_database(url: URL) -> None:
    async with awaiting(url) as (engine, store):
        for each in (store, AsyncSQLAlchemyKeyStore(lambda: engine)):
            find = each.prepare_by_id(BY_OWN_ID)
            # The first look-up on SQLite goes through SQLAlchemy, the following ones do not.
            for _ in range(2):
                known = [find(row["id"]) for row in ROWS]
                found = await asyncio.gather(*known, find("nobody"), find("ann"))
                assert [row and tuple(row) for row in found] == [
                    *map(expected, range(len(ROWS))),
                    None,
                    expected(0),
                ]
            await each.aclose()


@pytest.mark.anyio
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
async def test_look_ups_by_id_share_round_trips_and_see_what_was_committed_before(url: URL) -> None:
    async with awaiting(url) as (engine, store):
        reads: list[str] = []
        event.listen(
            engine.sync_engine,
            "before_cursor_execute",
            lambda *args: reads.append(args[2]) if args[2].startswith("SELECT prep") else None,
        )
        find = store.prepare_by_id(BY_OWN_ID)
        began = asyncio.ensure_future(find("ann"))
        # It reads, or opens a connection.
        await asyncio.sleep(0)
        async with engine.begin() as connection:
            await connection.execute(update(USERS).values(number=7))
        wanted = ["ann", *(["ann", 'b"o\\b', "nobody"] * 20)]
        found = await asyncio.gather(*(find(each) for each in wanted))
        assert [row and (row.id, row.number) for row in found] == [
            None if each == "nobody" else (each, 7) for each in wanted
        ]
        assert await began is not None
        assert 1 < len(reads) < 5
        # A driver refuses this one, which fails alone.
        odd, fine = await asyncio.gather(find("a\0b"), find("ann"), return_exceptions=True)
        assert isinstance(odd, Exception)
        assert not isinstance(fine, BaseException | None)


@pytest.mark.anyio
@pytest.mark.parametrize("url", ["mariadb"], indirect=True)
async def test_another_spelling_of_an_id_harms_no_look_up_beside_it(url: URL) -> None:
    """To the column's collation, capitals are the same: the row that it finds has another id than the look-up."""
    async with awaiting(url) as (_, store):
        find = store.prepare_by_id(BY_OWN_ID)
        # The first reads alone. The others wait for it, and then share a read.
        found = await asyncio.gather(*map(find, ('b"o\\b', "ANN", 'b"o\\b', "zoe")))
        assert [row and row.id for row in found] == ['b"o\\b', "ann", 'b"o\\b', None]


@pytest.mark.parametrize("columns", [(USERS.c.number,), (USERS.c.number.label("id"),)])
def test_a_look_up_by_id_needs_a_column_of_text_with_that_name(
    tmp_path: Path, columns: Any
) -> None:
    engine = create_async_engine(awaited(sqlite_url(tmp_path)))
    store = AsyncSQLAlchemyKeyStore(engine)
    with pytest.raises(ConfigurationError, match="column `id` of text"):
        store.prepare_by_id(select(*columns))


def test_a_server_that_cannot_be_reached_is_an_error_of_sqlalchemy() -> None:
    engine = create_engine("postgresql+psycopg://127.0.0.1:1/nothing")
    store = SQLAlchemyKeyStore(engine)
    with pytest.raises(OperationalError):
        store.prepare(BY_ID)(user_id="ann")
    with pytest.raises(OperationalError):
        store.find("k1")


@pytest.mark.anyio
async def test_a_server_that_cannot_be_reached_is_an_error_of_sqlalchemy_to_an_asynchronous_store() -> (
    None
):
    engine = create_async_engine("postgresql+psycopg://127.0.0.1:1/nothing")
    store = AsyncSQLAlchemyKeyStore(engine)
    with pytest.raises(OperationalError):
        await store.prepare(BY_ID)(user_id="ann")
    with pytest.raises(OperationalError):
        await store.find("k1")
    with pytest.raises(OperationalError):
        await store.find_many(["k1"])
