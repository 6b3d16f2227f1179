"""What a hook writes commits with the key or not at all, on every database and with both kinds of engine."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    insert,
    select,
    text,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection
from tests.stores.support import async_engine_on, empty_tables

from msk_auth import ApiKey
from msk_auth.events import KeyEvent
from msk_auth.stores import KeyStore
from msk_auth.stores.sqlalchemy import AsyncSQLAlchemyKeyStore, SQLAlchemyKeyStore
from msk_auth.testing import BackgroundLoop
from msk_auth.testing._store_contract import NOW, OWNER, make_record

AUDIT = Table(
    "audit_of_keys",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("key_id", String(64), nullable=False),
)
Hook = Callable[[Connection, KeyEvent], None]


class Site:
    """A store with a hook, and a table of the application beside it.

    Attributes:
        hook: What the store's hook does, on a blocking connection in both kinds of store.
    """

    def __init__(self, url: URL, driver: str) -> None:
        self.hook: Hook = write_row
        self.url = url
        self._loop: BackgroundLoop | None = None
        self.store: KeyStore
        if driver == "blocking":
            empty_tables(url)
            self._engine: Any = create_engine(url)
            self.store = SQLAlchemyKeyStore(self._engine, on_change=self._call_hook)
        else:
            self._loop = BackgroundLoop().__enter__()
            self._engine = async_engine_on(url)
            self._async_store = AsyncSQLAlchemyKeyStore(self._engine, on_change=self._await_hook)
            self.store = self._loop.blocking(self._async_store)
        self.plain = create_engine(url)
        AUDIT.metadata.drop_all(self.plain)
        AUDIT.metadata.create_all(self.plain)

    def _call_hook(self, connection: Connection, event: KeyEvent) -> None:
        self.hook(connection, event)

    async def _await_hook(self, connection: AsyncConnection, event: KeyEvent) -> None:
        await connection.run_sync(self.hook, event)

    def close(self) -> None:
        if self._loop is None:
            self._engine.dispose()
        else:
            self._loop.run(self._async_store.aclose())
            self._loop.run(self._engine.dispose())
            self._loop.__exit__(None, None, None)
        AUDIT.metadata.drop_all(self.plain)
        self.plain.dispose()

    def rows(self) -> list[str]:
        return rows_of(self.plain)

    def insert(self, key_id: str = "k") -> ApiKey:
        record = make_record(key_id)
        self.store.insert(record, max_active=9, now=NOW, change=change)
        return record


def rows_of(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(select(AUDIT.c.key_id).order_by(AUDIT.c.id)))


def change(record: ApiKey) -> tuple[KeyEvent, ...]:
    return (KeyEvent("revoked", NOW, record, cause="owner"),)


def write_row(connection: Connection, event: KeyEvent) -> None:
    connection.execute(insert(AUDIT).values(key_id=event.record.id))


@pytest.fixture(params=["blocking", "async"])
def site(url: URL, request: pytest.FixtureRequest) -> Iterator[Site]:
    site = Site(url, request.param)
    yield site
    site.close()


def test_the_row_commits_with_the_key(site: Site) -> None:
    found: list[str] = []

    def look_and_write(connection: Connection, event: KeyEvent) -> None:
        # The change is there, on the hook's connection.
        owners = text("SELECT owner_id FROM msk_auth_api_keys WHERE id = :id")
        found.extend(connection.scalars(owners, {"id": event.record.id}))
        write_row(connection, event)

    site.hook = look_and_write
    record = site.insert()
    assert site.store.find("k") == record
    assert site.rows() == ["k"]
    site.store.revoke("k", owner_id=OWNER, at=NOW, change=change)
    site.store.revoke("k", owner_id=OWNER, at=NOW, change=change)
    assert site.rows() == ["k", "k"]
    assert found == [OWNER] * 2


def test_what_the_hook_has_written_is_rolled_back_with_the_key(site: Site) -> None:
    def write_and_fail(connection: Connection, event: KeyEvent) -> None:
        write_row(connection, event)
        raise LookupError("the application's")

    record = site.insert()
    site.hook = write_and_fail
    with pytest.raises(LookupError):
        site.insert("next")
    with pytest.raises(LookupError):
        site.store.revoke("k", owner_id=OWNER, at=NOW, change=change)
    assert site.store.find("next") is None
    assert site.store.find("k") == record
    assert site.rows() == ["k"]
    site.hook = write_row
    site.insert("next")
    assert site.rows() == ["k", "next"]


def test_an_error_that_the_hook_catches_costs_its_savepoint_alone(site: Site) -> None:
    def try_in_a_savepoint(connection: Connection, event: KeyEvent) -> None:
        write_row(connection, event)
        with suppress(DBAPIError), connection.begin_nested():
            connection.execute(insert(AUDIT).values(id=1, key_id=None))

    site.hook = try_in_a_savepoint
    record = site.insert()
    assert site.store.find("k") == record
    assert site.rows() == ["k"]


def test_a_transaction_that_the_hook_ended_is_not_reported_as_success(site: Site) -> None:
    """Guarantee G8: some databases would report a commit that commits nothing."""

    def roll_back(connection: Connection, _event: KeyEvent) -> None:
        driver: Any = connection.connection
        if site._loop is None:
            driver.rollback()
        else:
            connection.exec_driver_sql("ROLLBACK")

    site.hook = roll_back
    with pytest.raises(Exception, match="on_change"):
        site.insert()
    assert site.store.find("k") is None


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_on_postgresql_an_error_without_a_savepoint_cannot_be_caught(site: Site) -> None:
    """PostgreSQL answers the commit of a failed transaction with a rollback, and the driver with success."""

    def catch(connection: Connection, _event: KeyEvent) -> None:
        with suppress(DBAPIError):
            connection.execute(insert(AUDIT).values(id=1, key_id=None))

    site.hook = catch
    with pytest.raises(DBAPIError, match="aborted"):
        site.insert()
    assert site.store.find("k") is None


@pytest.mark.faults
@pytest.mark.parametrize("site", ["blocking"], indirect=True)
@pytest.mark.parametrize("write", ["insert", "revoke", "rotate"])
@pytest.mark.parametrize("moment", ["before the row", "after the row"])
def test_a_process_that_is_killed_between_key_and_row_leaves_neither(
    site: Site, write: str, moment: str
) -> None:
    record = site.insert()

    def end_the_process(connection: Connection, event: KeyEvent) -> None:
        if moment == "after the row":
            write_row(connection, event)
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:  # pragma: no cover - it ends by the signal
        try:
            store = SQLAlchemyKeyStore(create_engine(site.url), on_change=end_the_process)
            if write == "insert":
                store.insert(make_record("next"), max_active=9, now=NOW, change=change)
            elif write == "revoke":
                store.revoke("k", owner_id=OWNER, at=NOW, change=change)
            else:
                successor = make_record("next")
                store.rotate(
                    "k", successor=successor, ends_at=NOW, max_active=9, now=NOW, change=change
                )
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert site.store.find("k") == record
    assert site.store.find("next") is None
    assert site.rows() == ["k"]
    # What the killed process had locked is released.
    revoked = site.store.revoke("k", owner_id=OWNER, at=NOW, change=change)
    assert revoked == replace(record, revoked_at=NOW)
    assert site.rows() == ["k", "k"]
