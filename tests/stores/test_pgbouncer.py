"""Behind a real PgBouncer in transaction mode, which hands each statement to whichever session is free."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from sqlalchemy import URL, Select, bindparam, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from tests.databases import pgbouncer
from tests.stores.support import TABLE, async_engine_on

from msk_auth.stores.sqlalchemy import AsyncSQLAlchemyKeyStore
from msk_auth.testing._store_contract import NOW, make_record

pytestmark = pytest.mark.anyio

RECORDS = {key_id: make_record(key_id, name=f"key {key_id}") for key_id in ("k1", "k2", "k3", "k4")}
ROUNDS = 25
_NAME: Select[Any] = select(TABLE.c.id, TABLE.c.name).where(TABLE.c.id == bindparam("key_id"))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _patient_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loaded machine may take longer than five seconds to open twelve connections to three sessions."""
    monkeypatch.setattr(AsyncSQLAlchemyKeyStore, "read_seconds", 60.0)


@pytest.fixture(scope="module")
def pooled_url(postgres_url: URL) -> Iterator[URL]:
    with pgbouncer(postgres_url, "transaction") as url:
        yield url


@pytest.fixture
async def records(postgres_url: URL) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        engine = async_engine_on(postgres_url)
        stack.push_async_callback(engine.dispose)
        store = AsyncSQLAlchemyKeyStore(engine)
        stack.push_async_callback(store.aclose)
        for record in RECORDS.values():
            await store.insert(record, max_active=None, now=NOW)
        yield


@pytest.mark.usefixtures("records")
@pytest.mark.parametrize("is_configured", [True, False], ids=["configured", "by default"])
async def test_each_look_up_returns_what_was_asked_for(
    pooled_url: URL, is_configured: bool
) -> None:
    """Keys, and a statement of the application, over more connections than there are sessions."""
    options = {"connect_args": {"prepare_threshold": None}} if is_configured else {}
    answers = errors = 0

    async def look_up(store: AsyncSQLAlchemyKeyStore, key_id: str) -> None:
        nonlocal answers, errors
        name_of = store.prepare(_NAME)
        for _ in range(ROUNDS):
            try:
                assert await store.find(key_id) == RECORDS[key_id]
                (row,) = await name_of(key_id=key_id)
                assert tuple(row) == (key_id, RECORDS[key_id].name)
                answers += 1
            except DBAPIError:
                # Without the setting a statement that the driver has prepared may be missing in this session.
                errors += 1

    async with AsyncExitStack() as stack:
        stores: list[AsyncSQLAlchemyKeyStore] = []
        for _ in range(3):
            engine = create_async_engine(pooled_url, **options)
            stack.push_async_callback(engine.dispose)
            stores.append(AsyncSQLAlchemyKeyStore(engine))
            stack.push_async_callback(stores[-1].aclose)
        await asyncio.gather(*(look_up(store, key_id) for store in stores for key_id in RECORDS))

    assert answers + errors == len(stores) * len(RECORDS) * ROUNDS
    assert answers > 0
    if is_configured:
        assert errors == 0
