"""Whatever is done in whatever order, every store answers as the model does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar, cast

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sqlalchemy import URL, Engine
from tests.stores.model import Model
from tests.stores.support import (
    METADATA,
    NOW,
    SECOND,
    async_engine_on,
    engine_on,
    make_record,
    sqlite_url,
)

from msk_auth import KeyStatus
from msk_auth.errors import MskAuthError
from msk_auth.stores import (
    ExpiryQuery,
    KeyQuery,
    KeyStore,
    RecordedLease,
)
from msk_auth.stores.memory import AsyncMemoryKeyStore, MemoryKeyStore
from msk_auth.stores.sqlalchemy import AsyncSQLAlchemyKeyStore, SQLAlchemyKeyStore
from msk_auth.testing import BackgroundLoop

pytestmark = [pytest.mark.slow, pytest.mark.no_cover]

OWNERS = ("ann", "Ann", "bob")
MOMENTS = st.integers(-5, 5).map(lambda seconds: NOW + seconds * SECOND)
KEY_IDS = st.sampled_from([f"{letter}{number}" for letter in "kK" for number in range(6)])
LABELS = st.frozensets(st.sampled_from(["a", "a-b", "a_b"]))
LIMITS = st.none() | st.integers(0, 4)
DAYS = st.sampled_from([30, 7, 1])


class Comparison(RuleBasedStateMachine):
    """Does everything twice, to a store and to the model."""

    new_store: ClassVar[Callable[[], AbstractContextManager[KeyStore]]]

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.context = type(self).new_store()
        self.store = self.context.__enter__()
        self.now = NOW

    def teardown(self) -> None:
        self.context.__exit__(None, None, None)

    def both(self, method: str, *args: Any, **kwargs: Any) -> None:
        expected = outcome(getattr(self.model, method), *args, **kwargs)
        assert outcome(getattr(self.store, method), *args, **kwargs) == expected

    @rule(seconds=st.integers(1, 3))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds * SECOND

    @rule(
        key_id=KEY_IDS,
        owner_id=st.sampled_from(OWNERS),
        scopes=st.none() | st.frozensets(st.sampled_from(["a", "b c"])),
        created_at=MOMENTS,
        expires_at=st.none() | MOMENTS,
        labels=LABELS,
        announced_days=st.none() | DAYS,
        max_active=LIMITS,
    )
    def insert(self, key_id: str, max_active: int | None, **fields: Any) -> None:
        if self.model.find(key_id) is None:
            self.both("insert", make_record(key_id, **fields), max_active=max_active, now=self.now)

    @rule(key_id=KEY_IDS, owner_id=st.sampled_from(OWNERS), at=MOMENTS)
    def revoke(self, key_id: str, owner_id: str, at: Any) -> None:
        self.both("revoke", key_id, owner_id=owner_id, at=at)

    @rule(key_id=KEY_IDS, owner_id=st.sampled_from(OWNERS), at=MOMENTS)
    def delete(self, key_id: str, owner_id: str, at: Any) -> None:
        self.both("delete", key_id, owner_id=owner_id, at=at)

    @rule(key_id=KEY_IDS, owner_id=st.sampled_from(OWNERS), at=MOMENTS)
    def expire(self, key_id: str, owner_id: str, at: Any) -> None:
        self.both("expire", key_id, owner_id=owner_id, at=at)

    @precondition(lambda self: self.model.records)
    @rule(data=st.data(), new_id=KEY_IDS, overlap=st.integers(-1, 4), max_active=LIMITS)
    def rotate(self, data: Any, new_id: str, overlap: int, max_active: int | None) -> None:
        record = data.draw(st.sampled_from(self.model.records))
        if self.model.find(new_id) is not None:
            return
        self.both(
            "rotate",
            record.id,
            successor=make_record(new_id, owner_id=record.owner_id, created_at=self.now),
            ends_at=self.now + overlap * SECOND,
            max_active=max_active,
            now=self.now,
        )

    @rule(
        key_id=KEY_IDS,
        owner_id=st.sampled_from(OWNERS),
        fields=st.fixed_dictionaries(
            {},
            optional={
                "name": st.sampled_from(["one", "One", "two"]),
                "description": st.none() | st.sampled_from(["one", "One"]),
                "labels": LABELS,
                "networks": st.none() | st.sampled_from([frozenset(), frozenset({"192.0.2.1/32"})]),
            },
        ).filter(bool),
    )
    def update(self, key_id: str, owner_id: str, fields: Any) -> None:
        self.both("update", key_id, owner_id=owner_id, fields=fields)

    @rule(key_id=KEY_IDS, days=DAYS)
    def announce_expiry(self, key_id: str, days: int) -> None:
        self.both("announce_expiry", key_id, days=days)

    @rule(
        left=st.integers(1, 8),
        announced_days=st.none() | DAYS,
        after=st.none() | st.tuples(MOMENTS, KEY_IDS),
        limit=st.integers(1, 4),
    )
    def list_what_ends_soon(self, left: int, announced_days: Any, after: Any, limit: int) -> None:
        before = self.now + left * SECOND
        query = ExpiryQuery(self.now, before, announced_days, after, limit)
        found = self.store.list_expiring(query)
        assert list(found) == list(self.model.list_expiring(query))

    @rule(last_used=st.dictionaries(KEY_IDS, MOMENTS))
    def touch(self, last_used: Any) -> None:
        self.both("touch", last_used)

    @rule(key_id=KEY_IDS, old=KEY_IDS, new=KEY_IDS)
    def replace_digest(self, key_id: str, old: str, new: str) -> None:
        self.both("replace_digest", key_id, old=f"sha256:{old}", new=f"sha256:{new}")

    @rule(
        name=st.sampled_from(["record_lease", "forget_lease"]),
        seconds=st.integers(1, 2),
        holder=st.sampled_from("ab"),
        mark=st.integers(1, 2),
    )
    def change_the_register_of_leases(
        self, name: str, seconds: int, holder: str, mark: int
    ) -> None:
        self.both(name, RecordedLease(seconds * SECOND, holder, mark))
        assert set(self.store.recorded_leases()) == self.model.leases

    @rule(
        owner_id=st.sampled_from(OWNERS),
        status=st.none() | st.sampled_from(KeyStatus),
        after=st.none() | st.tuples(MOMENTS, KEY_IDS),
        limit=st.integers(1, 4),
        label=st.none() | st.sampled_from(["a", "a-b", "b"]),
    )
    def list_a_page(
        self, owner_id: str, status: Any, after: Any, limit: int, label: str | None
    ) -> None:
        query = KeyQuery(owner_id, self.now, status, after, limit, label)
        assert list(self.store.list(query)) == list(self.model.list(query))

    @invariant()
    def the_records_are_the_same(self) -> None:
        for record in self.model.records:
            assert self.store.find(record.id) == record

    @invariant()
    def every_deleted_key_is_revoked(self) -> None:
        assert all(r.revoked_at for r in self.model.records if r.deleted_at)


def outcome(call: Callable[..., Any], *args: Any, **kwargs: Any) -> object:
    """What a call gives, or the class and text of the refusal that it raises."""
    try:
        return call(*args, **kwargs)
    except MskAuthError as refusal:
        return type(refusal), str(refusal)


def compare(new_store: Callable[[], AbstractContextManager[KeyStore]], *, share: int = 1) -> None:
    """Search for a difference; what is slow gets one in `share` of the examples that the profile has."""
    machine = cast(
        "type[RuleBasedStateMachine]",
        type("Comparison", (Comparison,), {"new_store": staticmethod(new_store)}),
    )
    machine.TestCase.settings = settings(
        max_examples=settings.default.max_examples // share,
        stateful_step_count=40,
    )
    machine.TestCase().runTest()


def emptied(engine: Engine) -> None:
    with engine.begin() as connection:
        for table in METADATA.sorted_tables:
            connection.execute(table.delete())


def test_memory() -> None:
    @contextmanager
    def new_store() -> Iterator[KeyStore]:
        yield MemoryKeyStore()

    compare(new_store)


def test_asynchronous_memory() -> None:
    with BackgroundLoop() as loop:

        @contextmanager
        def new_store() -> Iterator[KeyStore]:
            yield loop.blocking(AsyncMemoryKeyStore())

        compare(new_store, share=5)


@pytest.mark.parametrize("database", ["sqlite", "postgres", "mariadb"])
def test_databases(database: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with (
        engine_on(url_of(database, request, tmp_path)) as engine,
        closing(SQLAlchemyKeyStore(engine)) as store,
    ):

        @contextmanager
        def new_store() -> Iterator[KeyStore]:
            emptied(engine)
            yield store

        compare(new_store, share=5)


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_asynchronous_databases(
    database: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = url_of(database, request, tmp_path)
    with BackgroundLoop() as loop, engine_on(url) as emptying:
        engine = async_engine_on(url)
        store = AsyncSQLAlchemyKeyStore(engine)

        @contextmanager
        def new_store() -> Iterator[KeyStore]:
            emptied(emptying)
            yield loop.blocking(store)

        compare(new_store, share=8)
        loop.run(store.aclose())
        loop.run(engine.dispose())


def url_of(database: str, request: pytest.FixtureRequest, folder: Path) -> URL:
    if database == "sqlite":
        return sqlite_url(folder)
    url: URL = request.getfixturevalue("postgres_url" if database == "postgres" else "mysql_url")
    return url
