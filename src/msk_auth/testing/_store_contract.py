"""The contract of stores, as tests to run against yours."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, TypeVar, Unpack, cast

import pytest

from msk_auth import (
    ApiKey,
    DailyRequests,
    KeyActivity,
    KeyStatus,
    LastRequest,
)
from msk_auth.core.fields import EDITABLE, FIELD_OF, KEY_FIELDS, FieldKind, KeyField
from msk_auth.errors import KeyLimitReached, KeyNotActive
from msk_auth.events import KeyEvent, KeyExpiring, KeyRevocation
from msk_auth.stores import (
    ActivityEntry,
    ActivityStore,
    AsyncKeyStore,
    ExpiryQuery,
    ExpiryStore,
    KeyChange,
    KeyQuery,
    KeyStore,
    KeyUpdate,
    LeaseRegister,
    RecordedLease,
)

from ._loop import BackgroundLoop

T = TypeVar("T")

NOW = datetime(2026, 3, 1, 12, 30, 15, 123457, tzinfo=UTC)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
MICROSECOND = timedelta(microseconds=1)

TODAY = NOW.date()
OWNER = "owner-1"


def make_record(key_id: str, **fields: Any) -> ApiKey:
    """A record with this id and otherwise ordinary fields."""
    ordinary: dict[str, Any] = {
        "name": f"name of {key_id}",
        "owner_id": OWNER,
        "digest": f"sha256:{key_id}",
        "scopes": None,
        "created_at": NOW - HOUR,
    }
    return ApiKey(id=key_id, **(ordinary | fields))


def add(store: KeyStore, key_id: str, change: KeyChange | None = None, **fields: Any) -> ApiKey:
    """Insert such a record without a limit."""
    record = make_record(key_id, **fields)
    store.insert(record, max_active=None, now=NOW, change=change)
    return record


def ids(store: KeyStore, **query: Any) -> list[str]:
    """The ids of a listing in its order."""
    return [record.id for record in store.list(replace(KeyQuery(OWNER, NOW), **query))]


def count_active(store: KeyStore, owner_id: str = OWNER) -> int:
    """How many active keys the owner has."""
    return len(ids(store, owner_id=owner_id, status=KeyStatus.ACTIVE, limit=10_000))


def in_parallel(call: Callable[[int], T], numbers: Iterable[int]) -> list[T | Exception]:
    """The results of calls that begin together, each in a thread; what one raised is its result."""
    calls = list(numbers)
    start = threading.Barrier(len(calls))

    def run(number: int) -> T | Exception:
        start.wait()
        try:
            return call(number)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            return error

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(run, calls))


class ChangeRecorder:
    """An `on_change` hook that keeps what it gets.

    Attributes:
        events: What it got, in order.
        error: Raised by the next calls instead; None keeps the event.
    """

    def __init__(self) -> None:
        self.events: list[KeyEvent] = []
        self.error: Exception | None = None

    def __call__(self, connection: object, event: KeyEvent) -> None:
        """Keep the event."""
        if self.error is not None:
            raise self.error
        self.events.append(event)


class AsyncChangeRecorder(ChangeRecorder):
    """An asynchronous `on_change` hook that keeps what it gets.

    Attributes:
        events: What it got, in order.
        error: Raised by the next calls instead; None keeps the event.
    """

    async def __call__(self, connection: object, event: KeyEvent) -> None:  # type: ignore[override]
        """Keep the event."""
        await asyncio.sleep(0)
        super().__call__(connection, event)


def revocation_of(record: ApiKey) -> tuple[KeyEvent, ...]:
    """A change, as a store gets it."""
    return (KeyRevocation(NOW, None, record),)


WRITES: dict[str, Callable[[KeyStore, str, KeyChange | None], object]] = {
    "insert": lambda store, key_id, change: store.insert(
        make_record(f"new-{key_id}"), max_active=99, now=NOW, change=change
    ),
    "revoke": lambda store, key_id, change: store.revoke(
        key_id, owner_id=OWNER, at=NOW, change=change
    ),
    "delete": lambda store, key_id, change: store.delete(
        key_id, owner_id=OWNER, at=NOW, change=change
    ),
    "expire": lambda store, key_id, change: store.expire(
        key_id, owner_id=OWNER, at=NOW + HOUR, change=change
    ),
    "rotate": lambda store, key_id, change: rotate(
        store, key_id, make_record(f"new-{key_id}"), change=change
    ),
    "overlap": lambda store, key_id, change: rotate(
        store, key_id, make_record(f"new-{key_id}"), ends_at=NOW + HOUR, change=change
    ),
    "update": lambda store, key_id, change: edit(store, key_id, change=change, name="another"),
}
"""Each way to change a key of the store. What inserts a key makes its id from the one that is given."""


SAMPLES: dict[FieldKind, list[Any]] = {
    FieldKind.ID: ["auth0|5f7c8ec7c33c6c004bbafe82 x@example.com"],
    FieldKind.TEXT: [
        "a'b\"c\\d %s :x ? ; -- <b> \t end ",
        "Ω 秘密 🔑 e\u0301 \u200f \u2028",
        "Before",
        "before ",
        "x" * 1000,
    ],
    FieldKind.MOMENT: [
        NOW + MICROSECOND,
        datetime(1969, 7, 20, 20, 17, 40, 1, UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
    ],
    FieldKind.TEXTS: [
        frozenset[str](),
        frozenset({"tasks:read", "2001:db8::/32"}),
        frozenset({"two words", 'quote"', "comma,", "ünï"}),
        frozenset(f"text-{number}" for number in range(20)),
    ],
}
"""Values that each kind of field has to keep."""


def samples(field: KeyField) -> list[Any]:
    """The values that a store has to keep in a field."""
    return [*SAMPLES[field.kind], *([] if field.is_required else [field.empty])]


# The id is the records' name, and only an ExpiryStore keeps `announced_days`: its own tests write it.
KEPT = [field for field in KEY_FIELDS if field.name not in {"id", "announced_days"}]

RECORDS = [
    make_record("plain"),
    *(
        make_record(f"{field.name.replace('_', '')}{number}", **{field.name: value})
        for field in KEPT
        for number, value in enumerate(samples(field))
    ),
    make_record("everything", **{field.name: samples(field)[0] for field in KEPT}),
]
"""A record for each value of each field, and one with all fields."""


STATES: dict[str, dict[str, Any]] = {
    "active": {},
    "revoked": {"revoked_at": NOW - HOUR},
    "expired": {"expires_at": NOW},
    "rotated": {"replaced_by": "other"},
}
"""What a key can have become."""


EDITS: list[KeyUpdate] = [
    *(cast("KeyUpdate", {name: value}) for name in EDITABLE for value in samples(FIELD_OF[name])),
    cast("KeyUpdate", {name: samples(FIELD_OF[name])[1] for name in EDITABLE}),
]
"""Each way to edit a key. The last one sets all fields."""


class StoreContract:
    """Tests of a :class:`~msk_auth.stores.KeyStore`: subclass it and override the fixture that makes your store.

    ::

        class TestMyStore(StoreContract):
            @pytest.fixture
            def store(self) -> Iterator[KeyStore]:
                store = MyStore()  # empty
                yield store
                store.close()

            @pytest.fixture
            def audited_store(self, on_change: ChangeRecorder) -> KeyStore:
                return MyStore(on_change=on_change)

    Leave `audited_store` out if your store takes no `on_change`: its tests are skipped.

    Many tests call the store from up to 50 threads. They need pytest and nothing else.
    """

    @pytest.fixture
    def store(self) -> KeyStore:
        """The store under test, empty. Override it."""
        raise NotImplementedError("give your test class a fixture named `store`")

    @pytest.fixture
    def on_change(self) -> ChangeRecorder:
        """The hook of `audited_store`."""
        return ChangeRecorder()

    @pytest.fixture
    def audited_store(self, on_change: ChangeRecorder) -> KeyStore:
        """The store under test, empty and with this hook. Override it if your store takes an `on_change`."""
        pytest.skip("this store takes no on_change")

    # Finding

    def test_an_unknown_id_is_not_found(self, store: KeyStore) -> None:
        add(store, "known1")
        for key_id in ("", "unknown", "%", "known_", "' OR '1'='1", "k" * 300):
            assert store.find(key_id) is None

    def test_a_record_comes_back_as_it_was_inserted(self, store: KeyStore) -> None:
        for record in RECORDS:
            store.insert(record, max_active=None, now=NOW)
        assert {record.id: store.find(record.id) for record in RECORDS} == {
            record.id: record for record in RECORDS
        }

    def test_times_come_back_in_utc(self, store: KeyStore) -> None:
        elsewhere = NOW.astimezone(timezone(timedelta(hours=5, minutes=45)))
        add(store, "k", created_at=elsewhere, expires_at=elsewhere + HOUR)
        found = store.find("k")
        assert found is not None
        assert found.expires_at is not None
        assert (found.created_at, found.expires_at) == (NOW, NOW + HOUR)

    @pytest.mark.parametrize("name", ["cut\x00here", "lone \ud800 surrogate"])
    def test_a_name_is_kept_whole_or_refused(self, store: KeyStore, name: str) -> None:
        try:
            add(store, "k", name=name)
        except Exception:  # noqa: BLE001 - with any error, it must not have kept a part
            assert store.find("k") is None
        else:
            found = store.find("k")
            assert found is not None
            assert found.name == name

    def test_ids_that_differ_in_case_are_different(self, store: KeyStore) -> None:
        upper, lower = add(store, "KEY"), add(store, "key")
        store.revoke("key", owner_id=OWNER, at=NOW)
        assert store.find("KEY") == upper
        assert store.find("key") == replace(lower, revoked_at=NOW)
        assert store.find("Key") is None

    def test_owners_that_look_alike_are_different(self, store: KeyStore) -> None:
        add(store, "mine")
        others = ["OWNER-1", "owner-1 ", " owner-1", "owner-", "öwner-1"]
        for number, other in enumerate(others):
            add(store, f"other{number}", owner_id=other)
        assert ids(store) == ["mine"]
        for number, other in enumerate(others):
            assert ids(store, owner_id=other) == [f"other{number}"]
            assert store.revoke("mine", owner_id=other, at=NOW) is None
        store.insert(make_record("second"), max_active=2, now=NOW)

    # Inserting

    def test_an_id_is_used_once(self, store: KeyStore) -> None:
        first = add(store, "k")
        with pytest.raises(Exception):  # noqa: B017, PT011 - each store raises its own error
            add(store, "k", owner_id="another owner", digest="planted")
        assert store.find("k") == first
        assert ids(store, owner_id="another owner") == []

    def test_the_limit_is_reached_and_not_passed(self, store: KeyStore) -> None:
        for number in range(3):
            store.insert(make_record(f"k{number}"), max_active=3, now=NOW)
        with pytest.raises(KeyLimitReached) as caught:
            store.insert(make_record("k3"), max_active=3, now=NOW)
        assert caught.value.code == "key_limit_reached"
        assert store.find("k3") is None
        assert count_active(store) == 3

    def test_a_limit_of_none_is_no_limit(self, store: KeyStore) -> None:
        store.insert(make_record("k0"), max_active=1, now=NOW)
        store.insert(make_record("k1"), max_active=None, now=NOW)
        assert count_active(store) == 2

    def test_a_limit_of_zero_refuses_the_first_key(self, store: KeyStore) -> None:
        with pytest.raises(KeyLimitReached):
            store.insert(make_record("k"), max_active=0, now=NOW)
        assert store.find("k") is None

    def test_a_lowered_limit_refuses_new_keys_and_keeps_existing_ones(
        self, store: KeyStore
    ) -> None:
        for number in range(5):
            add(store, f"k{number}")
        with pytest.raises(KeyLimitReached):
            store.insert(make_record("k5"), max_active=2, now=NOW)
        assert count_active(store) == 5

    def test_only_the_owners_own_active_keys_count(self, store: KeyStore) -> None:
        add(store, "revoked", revoked_at=NOW - HOUR)
        add(store, "deleted", revoked_at=NOW - HOUR, deleted_at=NOW - HOUR)
        add(store, "expired", expires_at=NOW)
        add(store, "foreign", owner_id="owner-2")
        add(store, "expiring", expires_at=NOW + MICROSECOND)
        store.insert(make_record("second"), max_active=2, now=NOW)
        with pytest.raises(KeyLimitReached):
            store.insert(make_record("third"), max_active=2, now=NOW)
        # An expired key does not count.
        store.insert(make_record("third"), max_active=2, now=NOW + MICROSECOND)

    def test_the_limit_is_exact_under_parallel_inserts(self, store: KeyStore) -> None:
        def insert(number: int) -> None:
            store.insert(make_record(f"k{number}"), max_active=10, now=NOW)

        outcomes = in_parallel(insert, range(50))
        assert outcomes.count(None) == 10
        assert [o for o in outcomes if o is not None and not isinstance(o, KeyLimitReached)] == []
        assert count_active(store) == 10

    def test_the_limit_is_exact_under_parallel_inserts_and_rotations(self, store: KeyStore) -> None:
        for number in range(8):
            add(store, f"old{number}")

        def insert_or_rotate(number: int) -> None:
            successor = make_record(f"new{number}")
            if number < 8:
                store.rotate(
                    f"old{number}",
                    successor=successor,
                    ends_at=NOW + HOUR,
                    max_active=12,
                    now=NOW,
                )
            else:
                store.insert(successor, max_active=12, now=NOW)

        outcomes = in_parallel(insert_or_rotate, range(24))
        refused = [outcome for outcome in outcomes if isinstance(outcome, KeyLimitReached)]
        failed = [o for o in outcomes if isinstance(o, Exception) and o not in refused]
        assert failed == []
        assert len(refused) == len(outcomes) - 4
        assert count_active(store) == 12

    # Listing

    def test_a_listing_is_newest_first_and_ordered_by_id_within_a_moment(
        self, store: KeyStore
    ) -> None:
        for key_id, age in [("b", 1), ("a", 3), ("B", 2), ("c", 2), ("a1", 2), ("Z", 2)]:
            add(store, key_id, created_at=NOW - age * MICROSECOND)
        assert ids(store) == ["b", "c", "a1", "Z", "B", "a"]

    def test_a_listing_holds_the_owners_keys_that_are_not_deleted(self, store: KeyStore) -> None:
        add(store, "mine")
        add(store, "foreign", owner_id="owner-2")
        add(store, "deleted", revoked_at=NOW, deleted_at=NOW)
        assert ids(store) == ["mine"]
        assert ids(store, owner_id="owner-3") == []

    def test_a_listing_can_be_of_one_status(self, store: KeyStore) -> None:
        add(store, "forever", created_at=NOW - 1 * HOUR)
        add(store, "expiring", created_at=NOW - 2 * HOUR, expires_at=NOW + MICROSECOND)
        add(store, "expired", created_at=NOW - 3 * HOUR, expires_at=NOW)
        add(store, "revoked", created_at=NOW - 4 * HOUR, revoked_at=NOW)
        add(store, "both", created_at=NOW - 5 * HOUR, revoked_at=NOW, expires_at=NOW)
        assert ids(store) == ["forever", "expiring", "expired", "revoked", "both"]
        assert ids(store, status=KeyStatus.ACTIVE) == ["forever", "expiring"]
        assert ids(store, status=KeyStatus.EXPIRED) == ["expired"]
        assert ids(store, status=KeyStatus.REVOKED) == ["revoked", "both"]

    def test_a_listing_can_be_of_one_label(self, store: KeyStore) -> None:
        labels = ["env:prod", "env:pro", "env_prod", "env:prod-2", "a"]
        for number, label in enumerate(labels):
            created_at = NOW - number * SECOND
            add(store, f"k{number}", labels=frozenset({label, "all"}), created_at=created_at)
        add(store, "none", created_at=NOW - HOUR)
        add(store, "foreign", owner_id="owner-2", labels=frozenset({"all"}))
        add(store, "ended", labels=frozenset({"all"}), revoked_at=NOW, created_at=NOW - HOUR)
        active = [f"k{number}" for number in range(5)]
        for status, everything in ((None, [*active, "ended"]), (KeyStatus.ACTIVE, active)):
            for number, label in enumerate(labels):
                assert ids(store, label=label, status=status) == [f"k{number}"]
            assert ids(store, label="all", status=status) == everything
            after = (NOW - SECOND, "k1")
            assert ids(store, label="all", status=status, after=after, limit=2) == ["k2", "k3"]
            for label in ("env", "prod", "%", "_", "", "unknown", "env:prod-"):
                assert ids(store, label=label, status=status) == []

    def test_pages_hold_every_key_once(self, store: KeyStore) -> None:
        # Several keys share a moment, so that a page ends in the middle of it.
        for number in range(30):
            end = {1: NOW, 2: NOW + HOUR}.get(number % 3)
            revoked_at = NOW if number % 5 == 0 else None
            created_at = NOW - (number // 7) * SECOND
            add(store, f"k{number}", created_at=created_at, expires_at=end, revoked_at=revoked_at)
        for status in (None, *KeyStatus):
            whole = ids(store, status=status, limit=100)
            assert len(whole) > 4
            paged: list[str] = []
            after: tuple[datetime, str] | None = None
            while page := store.list(KeyQuery(OWNER, NOW, status, after, limit=4)):
                assert len(page) <= 4
                paged += [record.id for record in page]
                after = (page[-1].created_at, page[-1].id)
            assert paged == whole

    def test_keys_that_come_and_go_between_pages_move_no_other(self, store: KeyStore) -> None:
        for number in range(9):
            add(store, f"k{number}", created_at=NOW - number * SECOND)
        first = store.list(KeyQuery(OWNER, NOW, limit=3))
        assert [record.id for record in first] == ["k0", "k1", "k2"]
        add(store, "newer", created_at=NOW + SECOND)
        store.delete("k2", owner_id=OWNER, at=NOW)
        store.delete("k4", owner_id=OWNER, at=NOW)
        after = (first[-1].created_at, first[-1].id)
        assert ids(store, after=after, limit=3) == ["k3", "k5", "k6"]

    # Revoking

    def test_revoking_sets_the_moment_and_nothing_else(self, store: KeyStore) -> None:
        record = add(store, "k", expires_at=NOW + HOUR, scopes=frozenset({"a"}))
        expected = replace(record, revoked_at=NOW)
        assert store.revoke("k", owner_id=OWNER, at=NOW) == expected
        assert store.find("k") == expected

    def test_revoking_again_changes_nothing(self, store: KeyStore) -> None:
        record = add(store, "k")
        store.revoke("k", owner_id=OWNER, at=NOW)
        expected = replace(record, revoked_at=NOW)
        for again in (NOW - HOUR, NOW, NOW + HOUR):
            assert store.revoke("k", owner_id=OWNER, at=again) == expected
            assert store.find("k") == expected

    def test_a_key_of_another_owner_cannot_be_changed(self, store: KeyStore) -> None:
        record = add(store, "k")
        other = "owner-2"
        assert store.revoke("k", owner_id=other, at=NOW) is None
        assert store.delete("k", owner_id=other, at=NOW) is None
        assert store.expire("k", owner_id=other, at=NOW) is None
        assert edit(store, "k", owner_id=other, name="theirs") is None
        successor = make_record("next", owner_id=other)
        assert rotate(store, "k", successor) is None
        assert store.find("k") == record
        assert store.find("next") is None

    def test_an_unknown_key_cannot_be_changed(self, store: KeyStore) -> None:
        assert store.revoke("k", owner_id=OWNER, at=NOW) is None
        assert store.delete("k", owner_id=OWNER, at=NOW) is None
        assert store.expire("k", owner_id=OWNER, at=NOW) is None
        assert edit(store, "k", name="unknown") is None
        assert rotate(store, "k", make_record("next")) is None
        store.touch({"k": NOW})
        store.replace_digest("k", old="sha256:k", new="sha256:other")
        assert store.find("k") is None
        assert store.find("next") is None

    def test_a_revoked_key_stays_revoked_whatever_is_written_later(self, store: KeyStore) -> None:
        stale = add(store, "k")
        store.revoke("k", owner_id=OWNER, at=NOW)
        # A process that read the record before may still write these.
        store.touch({"k": NOW + SECOND})
        store.replace_digest("k", old=stale.digest, new="sha256:new")
        store.expire("k", owner_id=OWNER, at=NOW + HOUR)
        edit(store, "k", name="edited", description="later", labels=frozenset({"late"}))
        with pytest.raises(KeyNotActive):
            rotate(store, "k", make_record("next"))
        store.revoke("k", owner_id=OWNER, at=NOW + HOUR)
        found = store.find("k")
        assert found is not None
        assert found.revoked_at == NOW
        assert found.replaced_by is None

    def test_a_revocation_survives_any_number_of_writers_beside_it(self, store: KeyStore) -> None:
        record = add(store, "k")

        def write(number: int) -> ApiKey | None:
            at = NOW + number * SECOND
            match number % 5:
                case 4:
                    edit(store, "k", name=f"name {number}")
                case 0:
                    store.touch({"k": at})
                case 1:
                    store.expire("k", owner_id=OWNER, at=at + HOUR)
                case 2:
                    store.replace_digest("k", old=record.digest, new=f"sha256:{number}")
                case _:
                    return store.revoke("k", owner_id=OWNER, at=at)
            return None

        outcomes = in_parallel(write, range(40))
        assert [outcome for outcome in outcomes if isinstance(outcome, Exception)] == []
        revocations = {outcome.revoked_at for outcome in outcomes if isinstance(outcome, ApiKey)}
        assert len(revocations) == 1
        found = store.find("k")
        assert found is not None
        assert found.revoked_at in revocations
        assert found.last_used_at == NOW + 35 * SECOND

    # Deleting

    def test_deleting_revokes_and_keeps_the_record(self, store: KeyStore) -> None:
        record = add(store, "k")
        expected = replace(record, revoked_at=NOW, deleted_at=NOW)
        assert store.delete("k", owner_id=OWNER, at=NOW) == expected
        assert store.find("k") == expected
        assert ids(store) == []
        assert ids(store, status=KeyStatus.REVOKED) == []

    def test_deleting_a_revoked_key_keeps_the_moment_of_revocation(self, store: KeyStore) -> None:
        record = add(store, "k")
        store.revoke("k", owner_id=OWNER, at=NOW)
        expected = replace(record, revoked_at=NOW, deleted_at=NOW + HOUR)
        assert store.delete("k", owner_id=OWNER, at=NOW + HOUR) == expected

    def test_a_deleted_key_counts_as_none(self, store: KeyStore) -> None:
        add(store, "k")
        deleted = store.delete("k", owner_id=OWNER, at=NOW)
        assert store.delete("k", owner_id=OWNER, at=NOW + HOUR) is None
        assert store.revoke("k", owner_id=OWNER, at=NOW + HOUR) is None
        assert store.expire("k", owner_id=OWNER, at=NOW) is None
        assert edit(store, "k", name="deleted") is None
        assert rotate(store, "k", make_record("next")) is None
        assert store.find("k") == deleted
        store.insert(make_record("new"), max_active=1, now=NOW)

    # Expiring

    def test_a_key_can_be_made_to_expire_earlier(self, store: KeyStore) -> None:
        for key_id, before in (("endless", None), ("ending", NOW + HOUR + MICROSECOND)):
            record = add(store, key_id, expires_at=before)
            expected = replace(record, expires_at=NOW + HOUR)
            assert store.expire(key_id, owner_id=OWNER, at=NOW + HOUR) == expected
            assert store.find(key_id) == expected

    def test_a_key_is_never_made_to_expire_later(self, store: KeyStore) -> None:
        for key_id, before in (("expired", NOW - HOUR), ("same", NOW + HOUR)):
            record = add(store, key_id, expires_at=before)
            assert store.expire(key_id, owner_id=OWNER, at=NOW + HOUR) == record
            assert store.find(key_id) == record

    # Rotating

    def test_rotating_without_overlap_revokes_the_predecessor(self, store: KeyStore) -> None:
        record, successor = add(store, "k"), make_record("next", created_at=NOW)
        expected = replace(record, revoked_at=NOW, replaced_by="next")
        assert rotate(store, "k", successor, ends_at=NOW) == expected
        assert store.find("k") == expected
        assert store.find("next") == successor

    def test_rotating_with_overlap_ends_the_predecessor_later_but_not_past_its_own_end(
        self, store: KeyStore
    ) -> None:
        for key_id, before, afterwards in (
            ("endless", None, NOW + HOUR),
            ("later", NOW + 2 * HOUR, NOW + HOUR),
            ("sooner", NOW + MICROSECOND, NOW + MICROSECOND),
        ):
            record = add(store, key_id, expires_at=before)
            successor = make_record(f"after-{key_id}")
            expected = replace(record, expires_at=afterwards, replaced_by=successor.id)
            assert rotate(store, key_id, successor, ends_at=NOW + HOUR) == expected
            assert store.find(key_id) == expected
            assert store.find(successor.id) == successor

    def test_only_an_active_key_is_rotated(self, store: KeyStore) -> None:
        for state in ("revoked", "expired", "rotated"):
            record = add(store, state, **STATES[state])
            with pytest.raises(KeyNotActive) as caught:
                rotate(store, state, make_record("next"))
            assert caught.value.code == "key_not_active"
            assert store.find(state) == record
            assert store.find("next") is None

    def test_a_rotation_that_fails_changes_neither_key(self, store: KeyStore) -> None:
        record, taken = add(store, "k"), add(store, "taken", owner_id="owner-2")
        with pytest.raises(Exception):  # noqa: B017, PT011 - each store raises its own error
            rotate(store, "k", make_record("taken"))
        assert store.find("k") == record
        assert store.find("taken") == taken

    def test_a_predecessor_in_its_overlap_counts(self, store: KeyStore) -> None:
        record = add(store, "k")
        with pytest.raises(KeyLimitReached):
            rotate(store, "k", make_record("next"), ends_at=NOW + HOUR, max_active=1)
        assert store.find("k") == record
        assert store.find("next") is None
        assert rotate(store, "k", make_record("next"), ends_at=NOW + HOUR, max_active=2) is not None

    def test_a_full_account_can_rotate_without_overlap(self, store: KeyStore) -> None:
        add(store, "k")
        assert rotate(store, "k", make_record("next"), ends_at=NOW, max_active=1) is not None
        assert ids(store, status=KeyStatus.ACTIVE) == ["next"]

    def test_of_parallel_rotations_one_succeeds(self, store: KeyStore) -> None:
        add(store, "k")
        outcomes = in_parallel(
            lambda number: rotate(store, "k", make_record(f"next{number}"), ends_at=NOW + HOUR),
            range(20),
        )
        winners = [outcome for outcome in outcomes if isinstance(outcome, ApiKey)]
        assert len(winners) == 1
        assert sum(isinstance(outcome, KeyNotActive) for outcome in outcomes) == 19
        assert sorted(ids(store)) == sorted(["k", str(winners[0].replaced_by)])

    # Editing

    def test_an_edit_sets_its_fields_and_nothing_else(self, store: KeyStore) -> None:
        labels = frozenset({"a", "env:test"})
        other = add(store, "other", labels=labels)
        # Each edit of an active key, and the one of all fields of every other. An empty store for each would take
        # longer than all of them, so each has a key.
        edits = [
            *(("active", fields) for fields in EDITS),
            *((state, EDITS[-1]) for state in STATES),
        ]
        for number, (state, fields) in enumerate(edits):
            record = add(
                store,
                f"{state}{number}",
                name="name of k",
                description="before",
                labels=labels,
                networks=frozenset({"192.0.2.1/32"}),
                scopes=frozenset({"s"}),
                **STATES[state],
            )
            expected = replace(record, **fields)
            for _ in range(2):
                assert edit(store, record.id, **fields) == expected
                assert store.find(record.id) == expected
        assert store.find("other") == other

    def test_parallel_edits_of_different_fields_lose_none(self, store: KeyStore) -> None:
        record = add(store, "k")
        edited = EDITS[-1]
        edits = [cast("KeyUpdate", {name: value}) for name, value in edited.items()]

        def write(number: int) -> None:
            edit(store, "k", **edits[number % len(edits)])

        assert in_parallel(write, range(12)) == [None] * 12
        assert store.find("k") == replace(record, **edited)

    # Touching

    def test_the_last_use_moves_forward_only(self, store: KeyStore) -> None:
        record = add(store, "k")
        for at, expected in [
            (NOW, NOW),
            (NOW - HOUR, NOW),
            (NOW, NOW),
            (NOW + MICROSECOND, NOW + MICROSECOND),
        ]:
            store.touch({"k": at})
            assert store.find("k") == replace(record, last_used_at=expected)

    def test_a_batch_skips_unknown_ids(self, store: KeyStore) -> None:
        for number in range(3):
            add(store, f"k{number}")
        store.touch({})
        store.touch({f"k{number}": NOW + number * SECOND for number in (2, 9, 0)})
        used = {record.id: record.last_used_at for record in store.list(KeyQuery(OWNER, NOW))}
        assert used == {"k0": NOW, "k1": None, "k2": NOW + 2 * SECOND}
        assert store.find("k9") is None

    def test_a_batch_may_be_large(self, store: KeyStore) -> None:
        add(store, "first")
        add(store, "last")
        store.touch({"first": NOW, **{f"g{number}": NOW for number in range(1200)}, "last": NOW})
        used = [record.last_used_at for record in store.list(KeyQuery(OWNER, NOW))]
        assert used == [NOW, NOW]

    def test_batches_in_any_order_do_not_block_each_other(self, store: KeyStore) -> None:
        keys = [add(store, f"k{number:02}").id for number in range(20)]

        def touch(number: int) -> None:
            order = keys if number % 2 else reversed(keys)
            store.touch(dict.fromkeys(order, NOW + number * SECOND))

        assert in_parallel(touch, range(12)) == [None] * 12
        latest = {record.last_used_at for record in store.list(KeyQuery(OWNER, NOW))}
        assert latest == {NOW + 11 * SECOND}

    def test_writing_a_last_use_does_not_reactivate_a_revoked_key(self, store: KeyStore) -> None:
        record = add(store, "k", expires_at=NOW)
        store.delete("k", owner_id=OWNER, at=NOW)
        store.touch({"k": NOW + HOUR})
        expected = replace(record, revoked_at=NOW, deleted_at=NOW, last_used_at=NOW + HOUR)
        assert store.find("k") == expected

    # Replacing digests

    def test_a_digest_is_replaced_if_it_is_still_the_old_one(self, store: KeyStore) -> None:
        record = add(store, "k", digest="sha256:AB")
        store.replace_digest("k", old="sha256:ab", new="sha256:stale")
        store.replace_digest("k", old="sha256:A", new="sha256:stale")
        assert store.find("k") == record
        store.replace_digest("k", old="sha256:AB", new="hmac-sha256:p:cd")
        assert store.find("k") == replace(record, digest="hmac-sha256:p:cd")

    # The hook `on_change`; a store without it skips these tests.

    def test_the_hook_gets_the_record_as_the_change_leaves_it(
        self, audited_store: KeyStore, on_change: ChangeRecorder
    ) -> None:
        for name, write in WRITES.items():
            add(audited_store, name, change=lambda _: ())
            assert on_change.events == []
            write(audited_store, name, revocation_of)
            record = audited_store.find("new-insert" if name == "insert" else name)
            assert record is not None
            assert on_change.events == [KeyRevocation(NOW, None, record)]
            on_change.events.clear()

    def test_the_hook_gets_all_events_of_a_change_in_order(
        self, audited_store: KeyStore, on_change: ChangeRecorder
    ) -> None:
        later = NOW + SECOND
        add(
            audited_store,
            "k",
            change=lambda record: (*revocation_of(record), KeyRevocation(later, None, record)),
        )
        assert [event.at for event in on_change.events] == [NOW, later]

    def test_a_change_whose_hook_raises_does_not_happen(
        self, audited_store: KeyStore, on_change: ChangeRecorder
    ) -> None:
        records = [add(audited_store, name, change=revocation_of) for name in WRITES]
        on_change.error = LookupError("the application's")
        for record in records:
            with pytest.raises(LookupError, match="the application's"):
                WRITES[record.id](audited_store, record.id, revocation_of)
            assert audited_store.find(record.id) == record
            assert audited_store.find(f"new-{record.id}") is None
        assert set(ids(audited_store)) == WRITES.keys()
        # The store still works.
        on_change.error = None
        on_change.events.clear()
        for number, (name, write) in enumerate(WRITES.items(), 1):
            write(audited_store, name, revocation_of)
            assert len(on_change.events) == number

    def test_a_store_with_a_hook_refuses_a_change_without_events(
        self, audited_store: KeyStore
    ) -> None:
        for name, write in WRITES.items():
            record = add(audited_store, name, change=revocation_of)
            with pytest.raises(Exception):  # noqa: B017, PT011 - each store has its own
                write(audited_store, name, None)
            assert audited_store.find(name) == record
            assert audited_store.find(f"new-{name}") is None

    def test_what_changes_nothing_calls_no_hook(
        self, audited_store: KeyStore, on_change: ChangeRecorder
    ) -> None:
        def change(_: ApiKey) -> tuple[KeyEvent, ...]:
            raise AssertionError("nothing has changed")

        add(audited_store, "k", expires_at=NOW + HOUR, change=lambda _: ())
        add(audited_store, "revoked", revoked_at=NOW, change=lambda _: ())
        add(audited_store, "deleted", revoked_at=NOW, deleted_at=NOW, change=lambda _: ())
        for at in (NOW + HOUR, NOW + 2 * HOUR):
            assert audited_store.expire("k", owner_id=OWNER, at=at, change=change) is not None
        for at in (NOW - HOUR, NOW, NOW + HOUR):
            assert audited_store.revoke("revoked", owner_id=OWNER, at=at, change=change) is not None
        same = KeyUpdate(name="name of k", description=None, labels=frozenset(), networks=None)
        assert edit(audited_store, "k", change=change, **same) is not None
        for key_id, owner_id in [("deleted", OWNER), ("k", "owner-2"), ("unknown", OWNER)]:
            assert edit(audited_store, key_id, owner_id=owner_id, change=change, name="a") is None
            assert audited_store.revoke(key_id, owner_id=owner_id, at=NOW, change=change) is None
            assert audited_store.delete(key_id, owner_id=owner_id, at=NOW, change=change) is None
            assert audited_store.expire(key_id, owner_id=owner_id, at=NOW, change=change) is None
            successor = make_record("new", owner_id=owner_id)
            assert rotate(audited_store, key_id, successor, change=change) is None
        with pytest.raises(KeyNotActive):
            rotate(audited_store, "revoked", make_record("new"), change=change)
        with pytest.raises(KeyLimitReached):
            audited_store.insert(make_record("new"), max_active=1, now=NOW, change=change)
        audited_store.touch({"k": NOW})
        audited_store.replace_digest("k", old="sha256:k", new="sha256:new")
        assert on_change.events == []

    def test_of_parallel_changes_that_mean_the_same_the_hook_gets_one(
        self, audited_store: KeyStore, on_change: ChangeRecorder
    ) -> None:
        same = ["revoke", "delete", "expire", "update"]
        for name in same:
            add(audited_store, name, change=lambda _: ())

        def write(number: int) -> object:
            name = same[number % 4]
            return WRITES[name](audited_store, name, revocation_of)

        outcomes = in_parallel(write, range(40))
        assert [outcome for outcome in outcomes if isinstance(outcome, Exception)] == []
        assert sorted(event.record.id for event in on_change.events) == sorted(same)

    def test_a_lost_race_is_not_handed_over(
        self, audited_store: KeyStore, on_change: ChangeRecorder
    ) -> None:
        add(audited_store, "k", change=lambda _: ())

        def rotate_or_insert(number: int) -> object:
            successor = make_record(f"new{number}")
            if number % 2:
                audited_store.insert(successor, max_active=6, now=NOW, change=revocation_of)
                return None
            return rotate(audited_store, "k", successor, max_active=6, change=revocation_of)

        outcomes = in_parallel(rotate_or_insert, range(20))
        refused = (KeyNotActive, KeyLimitReached)
        succeeded = [outcome for outcome in outcomes if not isinstance(outcome, refused)]
        assert [outcome for outcome in succeeded if isinstance(outcome, Exception)] == []
        stored = [
            record.id
            for record in audited_store.list(KeyQuery(OWNER, NOW))
            if record.id != "k" or record.replaced_by is not None
        ]
        rotated = [event for event in on_change.events if event.record.id == "k"]
        assert len(rotated) == 1
        # The rotated key and its successor are one change.
        assert len(on_change.events) == len(succeeded) == len(stored) - 1

    # Leases; a store without them skips these tests.

    def test_no_lease_is_recorded_at_first(self, store: KeyStore) -> None:
        register = lease_register(store)
        assert list(register.recorded_leases()) == []
        register.forget_lease(RecordedLease(SECOND, "a", 1))
        # Other counters of a store are no leases.
        store.insert(make_record("k"), max_active=1, now=NOW)
        assert list(register.recorded_leases()) == []

    def test_each_process_has_an_entry_with_its_last_mark(self, store: KeyStore) -> None:
        register = lease_register(store)
        leases = [
            RecordedLease(SECOND, "a", 1),
            RecordedLease(SECOND, "b" * 32, 1),
            RecordedLease(MICROSECOND, "a", 2**62),
        ]
        for lease in leases:
            register.record_lease(lease._replace(mark=7))
            register.record_lease(lease)
        assert set(register.recorded_leases()) == set(leases)

    def test_parallel_records_lose_none(self, store: KeyStore) -> None:
        register = lease_register(store)
        leases = [RecordedLease(SECOND, f"p{number}", number) for number in range(8)]
        outcomes = in_parallel(lambda number: register.record_lease(leases[number]), range(8))
        assert outcomes == [None] * 8
        assert set(register.recorded_leases()) == set(leases)

    def test_an_entry_is_forgotten_if_its_mark_is_still_the_same(self, store: KeyStore) -> None:
        register = lease_register(store)
        lease, other = RecordedLease(SECOND, "a", 5), RecordedLease(SECOND, "b", 5)
        register.record_lease(lease)
        register.record_lease(other)
        for mark in (4, 6):
            register.forget_lease(lease._replace(mark=mark))
        assert set(register.recorded_leases()) == {lease, other}
        register.forget_lease(lease)
        register.forget_lease(lease)
        assert list(register.recorded_leases()) == [other]

    # Listing the keys of all owners, if the store can (AdminStore)

    def test_the_keys_of_all_owners_are_in_one_order(self, store: KeyStore) -> None:
        list_all = admin_lister(store)
        owners = ["b", "a", "A", "a b", "ab", "é", "ß", "org:1", "\U0001f5dd"]
        for number, owner_id in enumerate(owners):
            for place, age in enumerate((2, 1, 1, 3)):
                created_at = NOW - (age + number % 2) * SECOND
                add(store, f"k{number * 4 + place}", owner_id=owner_id, created_at=created_at)
        add(store, "deleted", owner_id="zz", revoked_at=NOW, deleted_at=NOW)
        add(store, "revoked", owner_id="a", revoked_at=NOW)
        found = [(key.owner_id, key.created_at, key.id) for key in list_all(after=None, limit=99)]
        assert found == sorted(found, reverse=True)
        assert {key_id for _, _, key_id in found} == {f"k{n}" for n in range(36)} | {"revoked"}

    def test_the_pages_of_all_owners_hold_every_key_once(self, store: KeyStore) -> None:
        list_all = admin_lister(store)
        for number in range(37):
            # Several keys share an owner and a moment, so that pages end in the middle of both.
            created_at = NOW - (number // 9) * MICROSECOND
            add(store, f"k{number}", owner_id=f"owner-{number % 4}", created_at=created_at)
        whole = list(list_all(after=None, limit=99))
        assert len({key.id for key in whole}) == 37
        for size in (1, 5, 37, 99):
            paged: list[ApiKey] = []
            while page := list_all(
                after=(paged[-1].owner_id, paged[-1].created_at, paged[-1].id) if paged else None,
                limit=size,
            ):
                assert len(page) <= size
                paged += page
            assert paged == whole

    def test_a_page_goes_on_where_a_key_is_gone(self, store: KeyStore) -> None:
        list_all = admin_lister(store)
        for key_id, owner_id in (("k1", "a"), ("k2", "b"), ("k3", "b"), ("k4", "c")):
            add(store, key_id, owner_id=owner_id, created_at=NOW)
        store.delete("k3", owner_id="b", at=NOW)
        assert [key.id for key in list_all(after=("b", NOW, "k3"), limit=9)] == ["k2", "k1"]
        assert [key.id for key in list_all(after=("bb", NOW, "k3"), limit=9)] == ["k2", "k1"]
        assert list(list_all(after=("a", NOW, "k1"), limit=9)) == []

    # Activity

    def test_a_key_that_did_nothing_has_no_activity(self, store: KeyStore) -> None:
        activity = activity_store(store)
        add(store, "k")
        assert activity.activity("k", since=None) == KeyActivity((), None)
        assert activity.activity("unknown", since=TODAY) == KeyActivity((), None)

    def test_activity_adds_up_and_belongs_to_its_key_and_day(self, store: KeyStore) -> None:
        activity = activity_store(store)
        activity.record_activity([did("k", 2, 1), did("K", 5, 0), did("k", 7, 0, day=-1)])
        activity.record_activity([did("k", 1, 3, last=NOW + SECOND)])
        # A request that was counted as accepted, and refused later.
        activity.record_activity([did("k", -1, 1, last=NOW + SECOND)])
        yesterday = DailyRequests(TODAY - DAY, 7, 0)
        today = DailyRequests(TODAY, 2, 5)
        last = LastRequest(NOW + SECOND)
        assert activity.activity("k", since=None) == KeyActivity((yesterday, today), last)
        assert activity.activity("k", since=TODAY) == KeyActivity((today,), last)
        assert activity.activity("k", since=TODAY + DAY) == KeyActivity((), last)
        assert activity.activity("K", since=None).days == (DailyRequests(TODAY, 5, 0),)

    def test_recording_activity_changes_no_key(self, store: KeyStore) -> None:
        record = add(store, "k", revoked_at=NOW)
        activity_store(store).record_activity([did("k", 1, 1), did("unknown", 1, 1)])
        assert store.find("k") == record
        assert store.find("unknown") is None

    def test_the_last_request_comes_back_as_it_was(self, store: KeyStore) -> None:
        activity = activity_store(store)
        odd = "\u4f60\u597d \U0001f5dd %s ' \" \\ " + "x" * 180
        for key_id, last in (
            ("bare", LastRequest(NOW)),
            ("whole", LastRequest(NOW, "GET /tasks/{id}", "2001:db8::1", "curl/8.5")),
            ("address", LastRequest(NOW + MICROSECOND, None, "203.0.113.7", None)),
            ("odd", LastRequest(NOW, "GET /\u00e9", None, odd)),
        ):
            activity.record_activity([ActivityEntry(key_id, TODAY, 1, 0, last)])
            assert activity.activity(key_id, since=None).last == last

    def test_the_last_request_is_replaced_whole_by_one_that_is_not_earlier(
        self, store: KeyStore
    ) -> None:
        activity = activity_store(store)
        first = LastRequest(NOW, "GET /first", "203.0.113.1", "first")
        earlier = LastRequest(NOW - SECOND, "GET /earlier", "203.0.113.2", "earlier")
        same = LastRequest(NOW, "GET /same", "203.0.113.3", None)
        later = LastRequest(NOW + SECOND, None, None, "later")
        for last, expected in [(first, first), (earlier, first), (same, same), (later, later)]:
            activity.record_activity([ActivityEntry("k", TODAY, 1, 0, last)])
            assert activity.activity("k", since=None).last == expected

    def test_a_batch_of_activity_may_be_as_large_as_promised(self, store: KeyStore) -> None:
        activity = activity_store(store)
        activity.record_activity([did(f"k{number:03}", number, 1) for number in range(500)])
        for number in (0, 250, 499):
            days = activity.activity(f"k{number:03}", since=None).days
            assert days == (DailyRequests(TODAY, number, 1),)

    def test_parallel_batches_of_activity_lose_no_count(self, store: KeyStore) -> None:
        activity = activity_store(store)
        keys = [f"k{number:02}" for number in range(20)]

        def record(number: int) -> None:
            last = NOW + number * SECOND
            activity.record_activity([did(key_id, 1, number, last=last) for key_id in keys])

        assert in_parallel(record, range(12)) == [None] * 12
        expected = KeyActivity((DailyRequests(TODAY, 12, 66),), LastRequest(NOW + 11 * SECOND))
        assert [activity.activity(key_id, since=None) for key_id in keys] == [expected] * 20

    def test_old_activity_is_deleted_in_parts(self, store: KeyStore) -> None:
        activity = activity_store(store)
        # All days of one key, and the last request of another one, are old.
        activity.record_activity([did(f"k{number}", 1, 0, day=-number) for number in range(6)])
        activity.record_activity([did("k0", 1, 0, day=-5, last=NOW)])
        midnight = NOW.replace(hour=0, minute=0, second=0, microsecond=0)
        activity.record_activity([did("edge", 1, 0, day=-2, last=midnight - 2 * DAY)])
        before = TODAY - 2 * DAY
        deleted: list[int] = []
        while not deleted or deleted[-1]:
            deleted.append(activity.delete_activity(before=before, limit=2))
        assert sum(deleted) == 4 + 3  # days of k3, k4, k5 and k0; last requests of k3, k4 and k5
        assert max(deleted) <= 4
        kept = {
            key_id: activity.activity(key_id, since=None)
            for key_id in ("k0", "k1", "k2", "k3", "k4", "k5", "edge")
        }
        days = {key_id: [each.day for each in found.days] for key_id, found in kept.items()}
        assert days == {
            "k0": [TODAY], "k1": [TODAY - DAY], "k2": [before], "k3": [], "k4": [], "k5": [], "edge": [before],
        }  # fmt: skip
        assert [key_id for key_id, found in kept.items() if found.last is None] == [
            "k3",
            "k4",
            "k5",
        ]

    # Announcing the end of keys, if the store can (ExpiryStore)

    @pytest.mark.parametrize("announced", [None, 30, 7])
    def test_keys_that_end_soon_are_listed_by_their_end(
        self, store: KeyStore, announced: int | None
    ) -> None:
        expiring = expiry_store(store)
        ends = {"k3": 3 * HOUR, "k1": HOUR, "K1": HOUR, "k2": 2 * HOUR, "late": MICROSECOND}
        for number, (key_id, left) in enumerate(ends.items()):
            add_ending(store, key_id, left, owner_id=f"owner-{number}", announced_days=announced)
        for other in {None, 30, 7, 1} - {announced}:
            add_ending(store, f"other{other}", HOUR, announced_days=other)
        add_ending(store, "bound", 4 * HOUR, announced_days=announced)
        add_ending(store, "expired", timedelta(0), announced_days=announced)
        add_ending(store, "revoked", HOUR, announced_days=announced, revoked_at=NOW)
        add_ending(store, "replaced", HOUR, announced_days=announced, replaced_by="k1")
        gone = {"revoked_at": NOW, "deleted_at": NOW}
        add_ending(store, "deleted", HOUR, announced_days=announced, **gone)
        add(store, "endless", announced_days=announced)
        found = expiring.list_expiring(ExpiryQuery(NOW, NOW + 4 * HOUR, announced))
        assert [key.id for key in found] == ["late", "K1", "k1", "k2", "k3"]
        assert list(found) == [store.find(key.id) for key in found]

    def test_the_pages_of_keys_that_end_soon_hold_each_once(self, store: KeyStore) -> None:
        expiring = expiry_store(store)
        for number in range(23):
            # Several end at one moment, so that pages end among them.
            add_ending(store, f"k{number:02}", HOUR + (number // 4) * MICROSECOND)
        for size in (1, 5, 23, 99):
            query = ExpiryQuery(NOW, NOW + 2 * HOUR, None, limit=size)
            paged: list[str] = []
            while page := expiring.list_expiring(query):
                assert len(page) <= size
                paged += [key.id for key in page]
                query = replace(query, after=(cast("datetime", page[-1].expires_at), page[-1].id))
            assert paged == [f"k{number:02}" for number in range(23)]

    def test_announcing_sets_the_days_once_and_changes_nothing_else(self, store: KeyStore) -> None:
        expiring = expiry_store(store)
        record = add_ending(store, "k", HOUR, scopes=frozenset({"a"}), last_used_at=NOW)
        other = add_ending(store, "K", HOUR)
        for days in (30, 7, 1):
            expected = replace(record, announced_days=days)
            assert expiring.announce_expiry("k", days=days) == expected
            for same_or_more in {30, 7, 1} - set(range(days)):
                assert expiring.announce_expiry("k", days=same_or_more) is None
            assert store.find("k") == expected
        assert store.find("K") == other

    def test_a_key_may_be_announced_for_few_days_at_once(self, store: KeyStore) -> None:
        expiring = expiry_store(store)
        add_ending(store, "k", HOUR)
        assert expiring.announce_expiry("k", days=1) is not None
        assert [expiring.announce_expiry("k", days=days) for days in (30, 7, 1)] == [None] * 3

    def test_what_ended_or_was_replaced_is_not_announced(self, store: KeyStore) -> None:
        expiring = expiry_store(store)
        records = [
            add_ending(store, "revoked", HOUR, revoked_at=NOW),
            add_ending(store, "replaced", HOUR, replaced_by="next"),
            add_ending(store, "deleted", HOUR, revoked_at=NOW, deleted_at=NOW),
        ]
        for record in records:
            assert expiring.announce_expiry(record.id, days=1) is None
            assert store.find(record.id) == record
        assert expiring.announce_expiry("unknown", days=1) is None

    def test_of_parallel_announcements_one_is_first(self, store: KeyStore) -> None:
        expiring = expiry_store(store)
        for number in range(5):
            add_ending(store, f"k{number}", HOUR)
        outcomes = in_parallel(lambda n: expiring.announce_expiry(f"k{n % 5}", days=7), range(20))
        announced = sorted(record.id for record in outcomes if isinstance(record, ApiKey))
        assert announced == [f"k{number}" for number in range(5)]
        assert outcomes.count(None) == 15

    def test_an_announcement_and_its_event_are_one_change(
        self, audited_store: KeyStore, on_change: ChangeRecorder
    ) -> None:
        expiring = expiry_store(audited_store)
        record = add_ending(audited_store, "k", HOUR, change=revocation_of)
        on_change.events.clear()

        def change(after: ApiKey) -> tuple[KeyEvent, ...]:
            return (KeyExpiring(NOW, after, 7),)

        on_change.error = ValueError("no")
        with pytest.raises(ValueError, match="no"):
            expiring.announce_expiry("k", days=7, change=change)
        assert audited_store.find("k") == record
        on_change.error = None
        with pytest.raises(Exception):  # noqa: B017, PT011 - each store has its own
            expiring.announce_expiry("k", days=7)
        assert audited_store.find("k") == record
        announced = expiring.announce_expiry("k", days=7, change=change)
        assert expiring.announce_expiry("k", days=7, change=change) is None
        assert on_change.events == [KeyExpiring(NOW, replace(record, announced_days=7), 7)]
        assert announced == replace(record, announced_days=7)


class AsyncStoreContract(StoreContract):
    """The same tests for an :class:`~msk_auth.stores.AsyncKeyStore`: subclass it and override the fixture that makes your store.

    The store lives on an event loop in a thread of its own. Parallel calls are tasks on that loop; `loop.run`
    runs what your fixture has to await.

    ::

        class TestMyStore(AsyncStoreContract):
            @pytest.fixture
            def async_store(self, loop: BackgroundLoop) -> Iterator[AsyncKeyStore]:
                store = MyStore()  # empty
                yield store
                loop.run(store.aclose())

            @pytest.fixture
            def async_audited_store(self, on_change: AsyncChangeRecorder) -> AsyncKeyStore:
                return MyStore(on_change=on_change)
    """

    @pytest.fixture
    def loop(self) -> Iterator[BackgroundLoop]:
        """The event loop of the store."""
        with BackgroundLoop() as loop:
            yield loop

    @pytest.fixture
    def async_store(self, loop: BackgroundLoop) -> AsyncKeyStore:
        """The store under test, empty. Override it."""
        raise NotImplementedError("give your test class a fixture named `async_store`")

    @pytest.fixture
    def store(self, async_store: AsyncKeyStore, loop: BackgroundLoop) -> KeyStore:
        """The store as the tests call it."""
        return cast("KeyStore", _Blocking(async_store, loop))

    @pytest.fixture
    def on_change(self) -> AsyncChangeRecorder:
        """The hook of `async_audited_store`."""
        return AsyncChangeRecorder()

    @pytest.fixture
    def async_audited_store(self, on_change: AsyncChangeRecorder) -> AsyncKeyStore:
        """The store under test, empty and with this hook. Override it if your store takes an `on_change`."""
        pytest.skip("this store takes no on_change")

    @pytest.fixture
    def audited_store(self, async_audited_store: AsyncKeyStore, loop: BackgroundLoop) -> KeyStore:
        """The store as the tests call it."""
        return cast("KeyStore", _Blocking(async_audited_store, loop))

    # Finding several at once, if the store can (AsyncBatchStore)

    def test_several_are_found_at_once(self, store: KeyStore) -> None:
        find_many = batch_finder(store)
        first = add(store, "k1", scopes=frozenset({"a"}), expires_at=NOW)
        second = add(store, "K1", owner_id="another owner")
        found = find_many(["unknown", "k1", "K1", "NULL", "' OR '1'='1", "k3"])
        assert {record.id: record for record in found} == {"k1": first, "K1": second}
        assert list(find_many(["k2"])) == []

    def test_several_are_found_as_they_are_now(self, store: KeyStore) -> None:
        find_many = batch_finder(store)
        for number in range(20):
            add(store, f"k{number}")
        for number in range(0, 20, 4):
            store.revoke(f"k{number}", owner_id=OWNER, at=NOW)
            found = {record.id: record for record in find_many([f"k{n}" for n in range(20)])}
            assert len(found) == 20
            revoked = {key_id for key_id, record in found.items() if record.revoked_at == NOW}
            assert revoked == {f"k{n}" for n in range(0, number + 1, 4)}


class _Blocking:
    """The methods of an asynchronous store, as blocking calls."""

    def __init__(self, store: AsyncKeyStore, loop: BackgroundLoop) -> None:
        self._store = store
        self._loop = loop

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Coroutine[Any, Any, Any]] = getattr(self._store, name)
        return lambda *args, **kwargs: self._loop.run(method(*args, **kwargs))


def rotate(
    store: KeyStore,
    key_id: str,
    successor: ApiKey,
    *,
    ends_at: datetime = NOW,
    max_active: int | None = None,
    change: KeyChange | None = None,
) -> ApiKey | None:
    """Rotate a key now."""
    return store.rotate(
        key_id,
        successor=successor,
        ends_at=ends_at,
        max_active=max_active,
        now=NOW,
        change=change,
    )


def edit(
    store: KeyStore,
    key_id: str,
    *,
    owner_id: str = OWNER,
    change: KeyChange | None = None,
    **fields: Unpack[KeyUpdate],
) -> ApiKey | None:
    """Set these fields of a key."""
    return store.update(key_id, owner_id=owner_id, fields=fields, change=change)


def batch_finder(store: KeyStore) -> Callable[[Sequence[str]], Sequence[ApiKey]]:
    """The store's `find_many`, or a replacement that calls `find`."""
    if hasattr(store, "find_many"):
        find_many: Callable[[Sequence[str]], Sequence[ApiKey]] = cast("Any", store).find_many
        return find_many
    return lambda key_ids: [record for record in map(store.find, key_ids) if record is not None]


def admin_lister(store: KeyStore) -> Callable[..., Sequence[ApiKey]]:
    """The store's `list_all`; skips the test if it has none."""
    if not hasattr(store, "list_all"):
        pytest.skip("this store does not list the keys of all owners")
    list_all: Callable[..., Sequence[ApiKey]] = cast("Any", store).list_all
    return list_all


def did(
    key_id: str, accepted: int, refused: int, *, day: int = 0, last: datetime | None = None
) -> ActivityEntry:
    """Requests of a key on a day, counted from today."""
    at = NOW + day * DAY if last is None else last
    return ActivityEntry(key_id, TODAY + day * DAY, accepted, refused, LastRequest(at))


def activity_store(store: KeyStore) -> ActivityStore:
    """The store as one of activity; skips the test if it is none."""
    if not hasattr(store, "record_activity"):
        pytest.skip("this store does not keep what keys did")
    return cast("ActivityStore", store)


def add_ending(store: KeyStore, key_id: str, left: timedelta, **more: Any) -> ApiKey:
    """Insert a record that ends after this time."""
    return add(store, key_id, expires_at=NOW + left, **more)


def expiry_store(store: KeyStore) -> ExpiryStore:
    """The store as one that announces the end of keys; skips the test if it cannot."""
    if not hasattr(store, "announce_expiry"):
        pytest.skip("this store does not announce the end of keys")
    return cast("ExpiryStore", store)


def lease_register(store: KeyStore) -> LeaseRegister:
    """The store as a register of leases; skips the test if it is none."""
    if not hasattr(store, "record_lease"):
        pytest.skip("this store does not record leases")
    return cast("LeaseRegister", store)
