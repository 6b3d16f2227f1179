"""The contract of a blocking store in a process that gevent has patched; run by :mod:`tests.stores.test_gevent`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import gevent
import gevent.monkey
import pytest
from sqlalchemy import Engine, create_engine, make_url, text
from tests.stores.support import METADATA, OnEngine, sqlite_url

from msk_auth.stores.sqlalchemy import (
    SQLAlchemyKeyStore,
    _store,
    prepare_postgresql,
    prepare_sqlite,
)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Engine]:
    engine = create_engine(make_url(os.environ["TEST_POSTGRES_URL"]))
    prepare_postgresql(engine)
    METADATA.create_all(engine)
    yield engine
    engine.dispose()


class TestSQLite(OnEngine):
    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
        engine = create_engine(sqlite_url(Path(tmp_path_factory.mktemp("keys"))))
        prepare_sqlite(engine)
        METADATA.create_all(engine)
        yield engine
        engine.dispose()


class TestPostgres(OnEngine):
    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, postgres: Engine) -> Engine:
        return postgres


def test_a_late_read_fails_and_keeps_no_other_greenlet_waiting(
    postgres: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gevent.monkey.is_module_patched("socket")
    turns: list[float] = []

    def count() -> None:
        while True:
            turns.append(time.monotonic())
            gevent.sleep(0.01)

    with closing(SQLAlchemyKeyStore(postgres)) as store, postgres.begin() as connection:
        monkeypatch.setattr(_store, "READ_SECONDS", 0.3)
        connection.execute(text("LOCK TABLE msk_auth_api_keys IN ACCESS EXCLUSIVE MODE"))
        counting = gevent.spawn(count)
        reading = gevent.spawn(store.find, "k1")
        with pytest.raises(TimeoutError, match="did not answer in time"):
            reading.get(timeout=60)
        counting.kill()
    assert len(turns) > 5


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q", "-p", "no:cacheprovider", "-n", "0"]))
