"""Stores that are made before their engine, and that go on with another one."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Engine, create_engine, select, text
from sqlalchemy.ext.asyncio import create_async_engine
from tests.cases import case
from tests.stores.support import engine_on, sqlite_url

from msk_auth.errors import ConfigurationError
from msk_auth.stores import ExpiryQuery, KeyQuery, RecordedLease
from msk_auth.stores.sqlalchemy import AsyncSQLAlchemyKeyStore, SQLAlchemyKeyStore, _shared
from msk_auth.testing import BackgroundLoop
from msk_auth.testing._store_contract import HOUR, NOW, OWNER, add, in_parallel, make_record, rotate

USES: dict[str, Any] = {
    "find": lambda store: store.find("k"),
    "list": lambda store: store.list(KeyQuery(OWNER, NOW)),
    "list_all": lambda store: store.list_all(after=None, limit=9),
    "list_expiring": lambda store: store.list_expiring(ExpiryQuery(NOW, NOW + HOUR, None)),
    "announce_expiry": lambda store: store.announce_expiry("k", days=7),
    "insert": lambda store: store.insert(make_record("new"), max_active=9, now=NOW),
    "revoke": lambda store: store.revoke("k", owner_id=OWNER, at=NOW),
    "delete": lambda store: store.delete("k", owner_id=OWNER, at=NOW),
    "expire": lambda store: store.expire("k", owner_id=OWNER, at=NOW),
    "rotate": lambda store: rotate(store, "k", make_record("new")),
    "update": lambda store: store.update("k", owner_id=OWNER, fields={"name": "another"}),
    "replace_digest": lambda store: store.replace_digest("k", old="sha256:k", new="sha256:n"),
    "touch": lambda store: store.touch({"k": NOW}),
    "recorded_leases": lambda store: store.recorded_leases(),
    "record_lease": lambda store: store.record_lease(
        RecordedLease(timedelta(seconds=1), "holder", 1)
    ),
    "forget_lease": lambda store: store.forget_lease(
        RecordedLease(timedelta(seconds=1), "holder", 1)
    ),
}


def test_threads_that_use_a_store_first_together_prepare_its_engine_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[Engine] = []

    def prepare(engine: Engine) -> None:
        prepared.append(engine)
        time.sleep(0.05)  # as long as the others need to arrive

    monkeypatch.setattr(_shared, "listen_to_connections", prepare)
    with (
        engine_on(sqlite_url(tmp_path)) as engine,
        closing(SQLAlchemyKeyStore(lambda: engine)) as store,
    ):
        assert in_parallel(lambda number: store.find(f"k{number}"), range(8)) == [None] * 8
        assert prepared == [engine]


def test_a_store_goes_on_with_an_engine_of_another_database(
    tmp_path: Path, postgres_url: URL, mariadb_url: URL
) -> None:
    current: list[Engine] = []
    store = SQLAlchemyKeyStore(lambda: current[-1])
    with ExitStack() as stack:
        for number, url in enumerate(
            (postgres_url, sqlite_url(tmp_path), mariadb_url, postgres_url)
        ):
            current.append(stack.enter_context(engine_on(url)))
            add(store, f"k{number}")
            assert store.find(f"k{number}") == make_record(f"k{number}")
            assert store.find(f"k{number - 1}") is None
        store.close()


def test_a_store_that_was_never_used_is_closed() -> None:
    SQLAlchemyKeyStore(lambda: pytest.fail("called")).close()
    asyncio.run(AsyncSQLAlchemyKeyStore(lambda: pytest.fail("called")).aclose())


WRONG = "cannot use 'NoneType' as its engine.*takes an AsyncEngine.*SQLAlchemyKeyStore an Engine"


def test_an_engine_of_the_wrong_kind_is_refused_while_the_store_is_made() -> None:
    none: Any = None
    blocking: Any = create_engine("sqlite://")
    awaited: Any = create_async_engine("sqlite+aiosqlite://")
    with pytest.raises(ConfigurationError, match=WRONG):
        SQLAlchemyKeyStore(none)
    with pytest.raises(ConfigurationError, match="cannot use 'AsyncEngine' as its engine"):
        SQLAlchemyKeyStore(awaited)
    with pytest.raises(ConfigurationError, match="cannot use 'Engine' as its engine"):
        AsyncSQLAlchemyKeyStore(blocking)


def test_each_use_looks_for_the_engine_first() -> None:
    none: Any = lambda: None  # noqa: E731
    with BackgroundLoop() as loop:
        for name, use in USES.items():
            with case(name):
                with pytest.raises(ConfigurationError, match=WRONG):
                    use(SQLAlchemyKeyStore(none))
                with pytest.raises(ConfigurationError, match=WRONG):
                    use(loop.blocking(AsyncSQLAlchemyKeyStore(none)))
        with pytest.raises(ConfigurationError, match=WRONG):
            loop.run(AsyncSQLAlchemyKeyStore(none).find_many(["k"]))
    with pytest.raises(ConfigurationError, match=WRONG):
        SQLAlchemyKeyStore(none).prepare(select(text("1")))()
