"""The contract of a blocking store in a process that gevent has patched; run by :mod:`tests.stores.test_gevent`."""

from __future__ import annotations

import sys
from contextlib import closing

import gevent
import gevent.monkey
import pytest
from sqlalchemy import URL, text
from tests.stores.support import engine_on
from tests.stores.test_contract import TestPostgres, TestSQLite

from msk_auth.stores.sqlalchemy import SQLAlchemyKeyStore, prepare_postgresql

__all__ = ["TestPostgres", "TestSQLite"]

LOCK = text("LOCK TABLE msk_auth_api_keys IN ACCESS EXCLUSIVE MODE")


def test_a_read_that_waits_keeps_no_other_greenlet_waiting_and_fails_when_it_is_late(
    postgres_url: URL,
) -> None:
    assert gevent.monkey.is_module_patched("socket")
    with engine_on(postgres_url) as engine, closing(SQLAlchemyKeyStore(engine)) as store:
        prepare_postgresql(engine)
        with engine.begin() as connection:
            connection.execute(LOCK)
            reading = gevent.spawn(store.find, "absent")
            for _ in range(6):
                gevent.sleep(0.01)
            assert not reading.ready()
        assert reading.get(timeout=60) is None
        store.read_seconds = 0.3
        with engine.begin() as connection:
            connection.execute(LOCK)
            with pytest.raises(TimeoutError, match="did not answer in time"):
                gevent.spawn(store.find, "absent").get(timeout=60)


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q", "-p", "no:cacheprovider", "-n", "0"]))
