"""What a store makes of settings of PostgreSQL: a standby is not read, and writes are durable (guarantees G2 and G8)."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import URL, Connection, create_engine, event, text
from sqlalchemy.ext.asyncio import create_async_engine
from tests.stores.support import async_engine_on, engine_on

from msk_auth import AsyncAuthenticator, Owner
from msk_auth.errors import StoreUnavailable
from msk_auth.stores.sqlalchemy import (
    AsyncSQLAlchemyKeyStore,
    SQLAlchemyKeyStore,
    _servers,
    commit_durably,
)
from msk_auth.stores.sqlalchemy._servers import check_primary
from msk_auth.testing._store_contract import NOW, OWNER, make_record

pytestmark = pytest.mark.anyio


class Reported:
    """What a server has reported to a connection."""

    def __init__(self, status: str | None) -> None:
        self._status = status

    def parameter_status(self, name: str) -> str | None:
        return self._status if name == "in_hot_standby" else None


def drivers(status: str | None) -> list[Any]:
    settings = SimpleNamespace() if status is None else SimpleNamespace(in_hot_standby=status)
    return [SimpleNamespace(info=Reported(status)), SimpleNamespace(get_settings=lambda: settings)]


@pytest.mark.parametrize("status", ["off", None])
def test_a_primary_and_a_server_that_reports_nothing_are_read(status: str | None) -> None:
    for driver in (*drivers(status), object()):
        check_primary(driver)


def test_a_connection_that_reports_a_standby_is_refused_with_what_to_do() -> None:
    for driver in drivers("on"):
        with pytest.raises(ConnectionError, match="add target_session_attrs=read-write"):
            check_primary(driver)


@pytest.fixture
def standby(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The connections that lead to a standby, of whatever kind they are; all of them once the list has "all"."""
    known: list[object] = []
    check = _servers.check_primary

    def check_or_standby(driver: Any) -> None:
        check(SimpleNamespace(info=Reported("on")) if "all" in known or driver in known else driver)

    monkeypatch.setattr(_servers, "check_primary", check_or_standby)
    return known


def test_a_store_reads_and_writes_nothing_on_a_standby(
    postgres_url: URL, standby: list[object]
) -> None:
    with engine_on(postgres_url) as engine:
        store = SQLAlchemyKeyStore(engine)
        store.insert(make_record("k1"), max_active=None, now=NOW)
        assert store.find("k1") == make_record("k1")
        # A server cannot become one on a live connection, but behind a pooler it can be another server.
        standby.append("all")
        for _ in range(2):
            with pytest.raises(ConnectionError, match="hot standby"):
                store.find("k1")
        with pytest.raises(ConnectionError, match="hot standby"):
            store.recorded_leases()
        with pytest.raises(ConnectionError, match="hot standby"):
            store.revoke("k1", owner_id=OWNER, at=NOW)
        standby.clear()
        assert store.find("k1") == make_record("k1")
        store.close()


async def test_only_the_connections_that_lead_to_a_standby_are_given_up(
    postgres_url: URL, standby: list[object]
) -> None:
    engine = async_engine_on(postgres_url)
    store = AsyncSQLAlchemyKeyStore(engine)
    await store.insert(make_record("k1"), max_active=None, now=NOW)
    assert await store.find("k1") == make_record("k1")
    async with engine.connect() as connection:
        pooled = await connection.get_raw_connection()
        driver: Any = pooled.driver_connection
    standby.append(driver)
    with pytest.raises(ConnectionError, match="hot standby"):
        await store.find("k1")
    assert driver.closed
    # The next one leads to the primary.
    assert await store.find("k1") == make_record("k1")
    await store.aclose()
    await engine.dispose()


async def test_a_request_that_reaches_a_standby_is_503_and_the_log_says_what_to_do(
    postgres_url: URL, standby: list[object], caplog: pytest.LogCaptureFixture
) -> None:
    async def find_owner(owner_id: str) -> Owner[str]:
        return Owner(owner_id, frozenset(), owner_id)

    engine = async_engine_on(postgres_url)
    store = AsyncSQLAlchemyKeyStore(engine)
    authenticator = AsyncAuthenticator(store, find_owner=find_owner)
    standby.append("all")
    with pytest.raises(StoreUnavailable):
        await authenticator.authenticate(
            [f"Bearer {authenticator.rules.key_format.generate().reveal()}"]
        )
    assert "hot standby" in caplog.text
    assert "target_session_attrs=read-write" in caplog.text
    assert "Traceback" not in caplog.text
    await store.aclose()
    await engine.dispose()


@pytest.mark.parametrize(
    ("setting", "inside"),
    [
        ("off", "on"),
        ("local", "local"),
        ("on", "on"),
        ("remote_write", "remote_write"),
        ("remote_apply", "remote_apply"),
    ],
)
def test_a_transaction_that_writes_is_durable_and_never_less_so_than_before(
    postgres_url: URL, setting: str, inside: str
) -> None:
    url = postgres_url.update_query_dict({"options": f"-c synchronous_commit={setting}"})
    with engine_on(url) as engine:
        store = SQLAlchemyKeyStore(engine)
        seen: list[object] = []

        @event.listens_for(engine, "commit")
        def _show(connection: Connection) -> None:
            seen.append(connection.scalar(text("SHOW synchronous_commit")))

        store.insert(make_record("k1"), max_active=9, now=NOW)
        store.expire("k1", owner_id=OWNER, at=NOW)
        store.rotate(
            "k1",
            successor=make_record("k2"),
            ends_at=NOW,
            max_active=None,
            now=NOW - timedelta(days=1),
        )
        store.revoke("k2", owner_id=OWNER, at=NOW)
        store.delete("k2", owner_id=OWNER, at=NOW)
        assert seen == [inside] * 5
        with engine.connect() as connection:
            # The application's own transactions are what they were.
            assert connection.scalar(text("SHOW synchronous_commit")) == setting
        store.close()


async def test_an_application_can_have_its_own_transactions_durable(postgres_url: URL) -> None:
    url = postgres_url.update_query_dict({"options": "-c synchronous_commit=off"})
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        await connection.run_sync(commit_durably)
        assert await connection.scalar(text("SHOW synchronous_commit")) == "on"
    async with engine.begin() as connection:
        assert await connection.scalar(text("SHOW synchronous_commit")) == "off"
    await engine.dispose()


def test_other_databases_have_no_such_setting() -> None:
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        commit_durably(connection)
    engine.dispose()
