"""Engines of every kind that an application may hand to a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest
from sqlalchemy import MetaData, Table, create_engine, event
from sqlalchemy.engine import URL, Engine
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from msk_auth.stores import KeyStore
from msk_auth.stores.sqlalchemy import SQLAlchemyKeyStore, api_key_table, prepare_sqlite
from msk_auth.testing import ChangeRecorder, StoreContract

METADATA = MetaData()
TABLE = api_key_table(METADATA)


def empty_tables(url: URL) -> None:
    """Make the tables if they are not there, and leave nothing in them."""
    if url.get_backend_name() == "sqlite":
        if url.database is not None:
            Path(url.database).write_bytes(_empty_sqlite())
        return
    with _emptying(url).begin() as connection:
        for table in METADATA.sorted_tables:
            connection.execute(table.delete())


@cache
def _emptying(url: URL) -> Engine:
    """What empties the tables of a database on a server, where they are. Each connection is closed after its use."""
    engine = create_engine(url, poolclass=NullPool)
    METADATA.create_all(engine)
    return engine


@cache
def _empty_sqlite() -> bytes:
    """A file with the tables, made once: each `CREATE` waits for the disk."""
    engine = create_engine("sqlite://")
    METADATA.create_all(engine)
    with engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        content: bytes = driver.serialize()
    engine.dispose()
    return content


@contextmanager
def engine_on(url: URL, **options: Any) -> Iterator[Engine]:
    """A blocking engine on empty tables."""
    empty_tables(url)
    engine = create_engine(url, **options)
    yield engine
    engine.dispose()


def async_engine_on(url: URL, **options: Any) -> AsyncEngine:
    """An asynchronous engine on empty tables, to be disposed of on its loop."""
    empty_tables(url)
    return create_async_engine(awaited(url), **options)


def awaited(url: URL) -> URL:
    """The URL of the same database for an asynchronous driver."""
    drivers = {"sqlite": "sqlite+aiosqlite", "mariadb": "mariadb+aiomysql"}
    drivers["mysql"] = "mysql+aiomysql"
    return url.set(drivername=drivers.get(url.get_backend_name(), url.drivername))


def sqlite_url(folder: Path) -> URL:
    return URL.create("sqlite", database=str(folder / "keys of ünits?#%41.db"))


def prepared(engine: Engine | AsyncEngine) -> None:
    prepare_sqlite(engine)


def begin_deferred(engine: Engine | AsyncEngine) -> None:
    """As SQLAlchemy's documentation advises for savepoints: the engine begins every transaction itself."""
    sync = engine.sync_engine if isinstance(engine, AsyncEngine) else engine

    @event.listens_for(sync, "connect")
    def _connect(connection: Any, _record: object) -> None:
        connection.isolation_level = None

    @event.listens_for(sync, "begin")
    def _begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")


def begin_nothing(engine: Engine | AsyncEngine) -> None:
    """The driver in autocommit mode, without any BEGIN."""
    sync = engine.sync_engine if isinstance(engine, AsyncEngine) else engine

    @event.listens_for(sync, "connect")
    def _connect(connection: Any, _record: object) -> None:
        connection.isolation_level = None


def untouched(_engine: Engine | AsyncEngine) -> None:
    """As `create_engine` makes it."""


class OnEngine(StoreContract):
    """The contract on one engine for all tests: what it compiles for the first one takes longer than a test.

    A fixture `engine` of the class makes it.

    Attributes:
        table: What the stores are given.
    """

    table: ClassVar[Table | None] = None

    @pytest.fixture
    def emptied(self, engine: Engine) -> Engine:
        """The engine, with nothing in the tables."""
        metadata = METADATA if self.table is None else self.table.metadata
        with engine.begin() as connection:
            for table in metadata.sorted_tables:
                connection.execute(table.delete())
        return engine

    @pytest.fixture
    def store(self, emptied: Engine) -> Iterator[KeyStore]:
        with closing(SQLAlchemyKeyStore(emptied, self.table)) as store:
            yield store

    @pytest.fixture
    def audited_store(self, emptied: Engine, on_change: ChangeRecorder) -> Iterator[KeyStore]:
        with closing(SQLAlchemyKeyStore(emptied, self.table, on_change=on_change)) as store:
            yield store
