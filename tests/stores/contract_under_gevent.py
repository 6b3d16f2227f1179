"""The contract of a blocking store in a process that gevent has patched; run by :mod:`tests.stores.test_gevent`."""

from __future__ import annotations

import os
import sys
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


LOCK = text("LOCK TABLE msk_auth_api_keys IN ACCESS EXCLUSIVE MODE")


def test_a_read_that_waits_keeps_no_other_greenlet_waiting_and_fails_when_it_is_late(
    postgres: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gevent.monkey.is_module_patched("socket")
    with closing(SQLAlchemyKeyStore(postgres)) as store:
        monkeypatch.setattr(SQLAlchemyKeyStore, "read_seconds", 60)
        with postgres.begin() as connection:
            connection.execute(LOCK)
            reading = gevent.spawn(store.find, "absent")
            for _ in range(6):
                gevent.sleep(0.01)
            assert not reading.ready()
        assert reading.get(timeout=60) is None
        monkeypatch.setattr(SQLAlchemyKeyStore, "read_seconds", 0.3)
        with postgres.begin() as connection:
            connection.execute(LOCK)
            with pytest.raises(TimeoutError, match="did not answer in time"):
                gevent.spawn(store.find, "absent").get(timeout=60)


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q", "-p", "no:cacheprovider", "-n", "0"]))
