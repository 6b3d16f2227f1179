"""Every store of this library keeps the contract, on every database and every way of opening it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from sqlalchemy import URL, Engine, StaticPool
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.stores.support import (
    METADATA,
    TABLE,
    async_engine_on,
    begin_deferred,
    begin_nothing,
    empty_tables,
    engine_on,
    prepared,
    sqlite_url,
    untouched,
)

from msk_auth import AsyncKeyStore, KeyStore
from msk_auth.stores.memory import AsyncMemoryKeyStore, MemoryKeyStore
from msk_auth.stores.sqlalchemy import AsyncSQLAlchemyKeyStore, SQLAlchemyKeyStore
from msk_auth.testing import (
    AsyncChangeRecorder,
    AsyncStoreContract,
    BackgroundLoop,
    ChangeRecorder,
    StoreContract,
)

pytestmark = pytest.mark.slow


class TestMemory(StoreContract):
    @pytest.fixture
    def store(self) -> KeyStore:
        return MemoryKeyStore()

    @pytest.fixture
    def audited_store(self, on_change: ChangeRecorder) -> KeyStore:
        return MemoryKeyStore(on_change=on_change)


class TestAsyncMemory(AsyncStoreContract):
    @pytest.fixture
    def async_store(self) -> AsyncKeyStore:
        return AsyncMemoryKeyStore()

    @pytest.fixture
    def async_audited_store(self, on_change: AsyncChangeRecorder) -> AsyncKeyStore:
        return AsyncMemoryKeyStore(on_change=on_change)


class TestSQLite(StoreContract):
    @pytest.fixture(params=[prepared, begin_deferred], ids=lambda way: way.__name__)
    def store(self, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[KeyStore]:
        with engine_on(sqlite_url(tmp_path)) as engine:
            request.param(engine)
            store = SQLAlchemyKeyStore(engine)
            yield store
            store.close()

    @pytest.fixture(params=[prepared, begin_deferred], ids=lambda way: way.__name__)
    def audited_store(
        self, tmp_path: Path, request: pytest.FixtureRequest, on_change: ChangeRecorder
    ) -> Iterator[KeyStore]:
        with engine_on(sqlite_url(tmp_path)) as engine:
            request.param(engine)
            store = SQLAlchemyKeyStore(engine, on_change=on_change)
            yield store
            store.close()


class TestAsyncSQLite(AsyncStoreContract):
    @pytest.fixture(params=[untouched, begin_nothing], ids=lambda way: way.__name__)
    def async_store(
        self, tmp_path: Path, loop: BackgroundLoop, request: pytest.FixtureRequest
    ) -> Iterator[AsyncKeyStore]:
        engine = async_engine_on(sqlite_url(tmp_path))
        request.param(engine)
        store = AsyncSQLAlchemyKeyStore(engine)
        yield store
        loop.run(store.aclose())
        loop.run(engine.dispose())

    @pytest.fixture(params=[untouched, begin_nothing], ids=lambda way: way.__name__)
    def async_audited_store(
        self,
        tmp_path: Path,
        loop: BackgroundLoop,
        request: pytest.FixtureRequest,
        on_change: AsyncChangeRecorder,
    ) -> Iterator[AsyncKeyStore]:
        engine = async_engine_on(sqlite_url(tmp_path))
        request.param(engine)
        store = AsyncSQLAlchemyKeyStore(engine, on_change=on_change)
        yield store
        loop.run(store.aclose())
        loop.run(engine.dispose())


class TestSQLiteInMemory(StoreContract):
    @pytest.fixture
    def engine(self) -> Iterator[Engine]:
        shared: dict[str, Any] = {
            "poolclass": StaticPool,
            "connect_args": {"check_same_thread": False},
        }
        with engine_on(URL.create("sqlite"), **shared) as engine:
            METADATA.create_all(engine)
            yield engine

    @pytest.fixture
    def store(self, engine: Engine) -> KeyStore:
        return SQLAlchemyKeyStore(engine, TABLE)

    @pytest.fixture
    def audited_store(self, engine: Engine, on_change: ChangeRecorder) -> KeyStore:
        return SQLAlchemyKeyStore(engine, TABLE, on_change=on_change)


class TestAsyncSQLiteInMemory(AsyncStoreContract):
    @pytest.fixture
    def engine(self, loop: BackgroundLoop) -> Iterator[AsyncEngine]:
        engine = async_engine_on(URL.create("sqlite"))

        async def create_tables() -> None:
            async with engine.begin() as connection:
                await connection.run_sync(METADATA.create_all)

        loop.run(create_tables())
        yield engine
        loop.run(engine.dispose())

    @pytest.fixture
    def async_store(self, engine: AsyncEngine) -> AsyncKeyStore:
        return AsyncSQLAlchemyKeyStore(engine, TABLE)

    @pytest.fixture
    def async_audited_store(
        self, engine: AsyncEngine, on_change: AsyncChangeRecorder
    ) -> AsyncKeyStore:
        return AsyncSQLAlchemyKeyStore(engine, TABLE, on_change=on_change)


class OnServer(StoreContract):
    """The contract on one engine for all tests: what it compiles for the first one takes longer than a test.

    Attributes:
        server: The fixture of the database's URL.
    """

    server: ClassVar[str]

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, request: pytest.FixtureRequest) -> Iterator[Engine]:
        with engine_on(request.getfixturevalue(cls.server)) as engine:
            yield engine

    @pytest.fixture
    def store(self, engine: Engine) -> Iterator[KeyStore]:
        empty_tables(engine.url)
        store = SQLAlchemyKeyStore(engine)
        yield store
        store.close()

    @pytest.fixture
    def audited_store(self, engine: Engine, on_change: ChangeRecorder) -> Iterator[KeyStore]:
        empty_tables(engine.url)
        store = SQLAlchemyKeyStore(engine, on_change=on_change)
        yield store
        store.close()


class OnAsyncServer(AsyncStoreContract):
    """As above. Each test has an event loop, so the connections are closed after each.

    Attributes:
        server: The fixture of the database's URL.
    """

    server: ClassVar[str]

    @pytest.fixture(scope="class")
    @classmethod
    def url(cls, request: pytest.FixtureRequest) -> URL:
        url: URL = request.getfixturevalue(cls.server)
        return url

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, url: URL) -> AsyncEngine:
        return async_engine_on(url)

    @pytest.fixture
    def async_store(
        self, url: URL, engine: AsyncEngine, loop: BackgroundLoop
    ) -> Iterator[AsyncKeyStore]:
        empty_tables(url)
        store = AsyncSQLAlchemyKeyStore(engine)
        yield store
        loop.run(store.aclose())
        loop.run(engine.dispose())

    @pytest.fixture
    def async_audited_store(
        self, url: URL, engine: AsyncEngine, loop: BackgroundLoop, on_change: AsyncChangeRecorder
    ) -> Iterator[AsyncKeyStore]:
        empty_tables(url)
        store = AsyncSQLAlchemyKeyStore(engine, on_change=on_change)
        yield store
        loop.run(store.aclose())
        loop.run(engine.dispose())


class TestPostgres(OnServer):
    server = "postgres_url"


class TestAsyncPostgres(OnAsyncServer):
    server = "postgres_url"


class TestMariaDB(OnServer):
    server = "mysql_url"


class TestMariaDBUnderTheNameOfMySQL(OnServer):
    """As most URLs have it."""

    server = "mysql_url"

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, request: pytest.FixtureRequest) -> Iterator[Engine]:
        url: URL = request.getfixturevalue(cls.server)
        with engine_on(url.set(drivername="mysql+pymysql")) as engine:
            yield engine


class TestAsyncMariaDB(OnAsyncServer):
    server = "mysql_url"
