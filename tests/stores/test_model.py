"""In any order of operations, a store in a database answers as the one in memory does, which shares no code with it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any, ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import URL, Engine
from tests.stores.support import METADATA, engine_on

from msk_auth import ApiKey, KeyStatus
from msk_auth.errors import MskAuthError
from msk_auth.stores import ExpiryQuery, KeyQuery, RecordedLease
from msk_auth.stores.memory import MemoryKeyStore
from msk_auth.stores.sqlalchemy import SQLAlchemyKeyStore
from msk_auth.testing._store_contract import NOW, SECOND, make_record

pytestmark = [pytest.mark.slow, pytest.mark.no_cover]

OWNERS = ("ann", "Ann", "bob")
MOMENTS = st.integers(-5, 5).map(lambda seconds: NOW + seconds * SECOND)
IDS = [f"{letter}{number}" for letter in "kK" for number in range(6)]
KEY_IDS = st.sampled_from(IDS)
LABELS = st.frozensets(st.sampled_from(["a", "a-b", "a_b"]))
LIMITS = st.none() | st.integers(0, 4)
DAYS = st.sampled_from([30, 7, 1])


class Comparison(RuleBasedStateMachine):
    """Does everything twice: to the store in a database, and to the one in memory."""

    engine: ClassVar[Engine]
    store: ClassVar[SQLAlchemyKeyStore]

    def __init__(self) -> None:
        super().__init__()
        self.model = MemoryKeyStore()
        self.now = NOW
        with self.engine.begin() as connection:
            for table in METADATA.sorted_tables:
                connection.execute(table.delete())

    @property
    def records(self) -> list[ApiKey]:
        return [record for key_id in IDS if (record := self.model.find(key_id))]

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

    @precondition(lambda self: self.records)
    @rule(data=st.data(), new_id=KEY_IDS, overlap=st.integers(-1, 4), max_active=LIMITS)
    def rotate(self, data: Any, new_id: str, overlap: int, max_active: int | None) -> None:
        record = data.draw(st.sampled_from(self.records))
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
        assert set(self.store.recorded_leases()) == set(self.model.recorded_leases())

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
        for record in self.records:
            assert self.store.find(record.id) == record
            assert record.deleted_at is None or record.revoked_at is not None


def outcome(call: Callable[..., Any], *args: Any, **kwargs: Any) -> object:
    """What a call gives, or the class and text of the refusal that it raises."""
    try:
        return call(*args, **kwargs)
    except MskAuthError as refusal:
        return type(refusal), str(refusal)


def test_a_database_answers_as_the_memory_does(url: URL) -> None:
    with engine_on(url) as on, closing(SQLAlchemyKeyStore(on)) as compared:

        class OnDatabase(Comparison):
            engine, store = on, compared

        share = 2 if url.get_backend_name() == "sqlite" else 5
        examples = settings.default.max_examples // share
        search = settings(max_examples=examples, stateful_step_count=40)
        run_state_machine_as_test(OnDatabase, settings=search)
