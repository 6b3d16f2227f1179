"""Every asynchronous store of this library keeps the contract, on every database and every way of opening it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest
from sqlalchemy import URL, Table
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.stores.support import (
    METADATA,
    TABLE,
    async_engine_on,
    begin_nothing,
    sqlite_url,
    untouched,
)

from msk_auth.stores import KeyStore
from msk_auth.stores.memory import AsyncMemoryKeyStore
from msk_auth.stores.sqlalchemy import AsyncSQLAlchemyKeyStore
from msk_auth.testing import BackgroundLoop, ChangeRecorder, StoreContract

pytestmark = pytest.mark.slow


class TestAsyncMemory(StoreContract):
    @pytest.fixture
    def store(self, loop: BackgroundLoop) -> KeyStore:
        return loop.blocking(AsyncMemoryKeyStore())

    @pytest.fixture
    def audited_store(self, loop: BackgroundLoop, on_change: ChangeRecorder) -> KeyStore:
        return loop.blocking(AsyncMemoryKeyStore(on_change=on_change.awaited))


class OnAsyncEngine(StoreContract):
    """As :class:`OnEngine`, on one event loop.

    A fixture `url` of the class says where the database is.

    Attributes:
        table: What the stores are given.
    """

    table: ClassVar[Table | None] = None

    @pytest.fixture(scope="class")
    @classmethod
    def loop(cls) -> Iterator[BackgroundLoop]:
        with BackgroundLoop() as loop:
            yield loop

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, url: URL, loop: BackgroundLoop) -> Iterator[AsyncEngine]:
        engine = async_engine_on(url)
        yield engine
        loop.run(engine.dispose())

    @pytest.fixture
    def emptied(self, engine: AsyncEngine, loop: BackgroundLoop) -> AsyncEngine:
        """The engine, with nothing in the tables."""

        async def empty() -> None:
            async with engine.begin() as connection:
                for table in METADATA.sorted_tables:
                    await connection.execute(table.delete())

        loop.run(empty())
        return engine

    @pytest.fixture
    def store(self, emptied: AsyncEngine, loop: BackgroundLoop) -> Iterator[KeyStore]:
        store = AsyncSQLAlchemyKeyStore(emptied, self.table)
        yield loop.blocking(store)
        loop.run(store.aclose())

    @pytest.fixture
    def audited_store(
        self, emptied: AsyncEngine, loop: BackgroundLoop, on_change: ChangeRecorder
    ) -> Iterator[KeyStore]:
        store = AsyncSQLAlchemyKeyStore(emptied, self.table, on_change=on_change.awaited)
        yield loop.blocking(store)
        loop.run(store.aclose())


class TestAsyncSQLite(OnAsyncEngine):
    @pytest.fixture(scope="class")
    @classmethod
    def url(cls, tmp_path_factory: pytest.TempPathFactory) -> URL:
        return sqlite_url(tmp_path_factory.mktemp("keys"))

    @pytest.fixture(
        scope="class",
        params=[untouched, pytest.param(begin_nothing, marks=pytest.mark.faults)],
        ids=lambda way: way.__name__,
    )
    @classmethod
    def engine(
        cls, url: URL, loop: BackgroundLoop, request: pytest.FixtureRequest
    ) -> Iterator[AsyncEngine]:
        engine = async_engine_on(url)
        request.param(engine)
        yield engine
        loop.run(engine.dispose())


@pytest.mark.faults
class TestAsyncSQLiteInMemory(OnAsyncEngine):
    table = TABLE

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, loop: BackgroundLoop) -> Iterator[AsyncEngine]:
        engine = async_engine_on(URL.create("sqlite"))

        async def create_tables() -> None:
            async with engine.begin() as connection:
                await connection.run_sync(METADATA.create_all)

        loop.run(create_tables())
        yield engine
        loop.run(engine.dispose())


class TestAsyncPostgres(OnAsyncEngine):
    @pytest.fixture(scope="class")
    @classmethod
    def url(cls, postgres_url: URL) -> URL:
        return postgres_url


class TestAsyncMariaDB(OnAsyncEngine):
    @pytest.fixture(scope="class")
    @classmethod
    def url(cls, mariadb_url: URL) -> URL:
        return mariadb_url
