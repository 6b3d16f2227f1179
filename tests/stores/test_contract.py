"""Every blocking store of this library keeps the contract, on every database and every way of opening it.

These tests run with SQLAlchemy 1.4 too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import MetaData
from sqlalchemy.engine import URL, Engine
from sqlalchemy.pool import StaticPool
from tests.stores.support import (
    METADATA,
    TABLE,
    OnEngine,
    begin_deferred,
    engine_on,
    prepared,
    sqlite_url,
)

from msk_auth.stores import KeyStore
from msk_auth.stores.memory import MemoryKeyStore
from msk_auth.stores.sqlalchemy import api_key_table
from msk_auth.testing import ChangeRecorder, StoreContract

pytestmark = pytest.mark.slow


class TestMemory(StoreContract):
    @pytest.fixture
    def store(self) -> KeyStore:
        return MemoryKeyStore()

    @pytest.fixture
    def audited_store(self, on_change: ChangeRecorder) -> KeyStore:
        return MemoryKeyStore(on_change=on_change)


class TestSQLite(OnEngine):
    # The application's own: another name, in the application's metadata with its own names of constraints.
    table = api_key_table(MetaData(naming_convention={"pk": "pk_%(table_name)s"}), "api keys")

    @pytest.fixture(
        scope="class",
        params=[prepared, pytest.param(begin_deferred, marks=pytest.mark.faults)],
        ids=lambda way: way.__name__,
    )
    @classmethod
    def engine(
        cls, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
    ) -> Iterator[Engine]:
        with engine_on(sqlite_url(tmp_path_factory.mktemp("keys"))) as engine:
            request.param(engine)
            cls.table.metadata.create_all(engine)
            yield engine


@pytest.mark.faults
class TestSQLiteInMemory(OnEngine):
    table = TABLE

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls) -> Iterator[Engine]:
        shared: dict[str, Any] = {
            "poolclass": StaticPool,
            "connect_args": {"check_same_thread": False},
        }
        with engine_on(URL.create("sqlite"), **shared) as engine:
            METADATA.create_all(engine)
            yield engine


class TestPostgres(OnEngine):
    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, postgres_url: URL) -> Iterator[Engine]:
        with engine_on(postgres_url) as engine:
            yield engine


class TestMariaDB(OnEngine):
    """Under the name of MySQL, as most URLs have it. The asynchronous driver has the other name."""

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, mariadb_url: URL) -> Iterator[Engine]:
        with engine_on(mariadb_url.set(drivername="mysql+pymysql")) as engine:
            yield engine
