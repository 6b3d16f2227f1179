"""The contract of stores, as tests to run against yours."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from types import TracebackType
from typing import Any, TypeVar, cast

import pytest

from msk_auth import ApiKey, KeyStatus
from msk_auth.core.fields import EDITABLE, FIELD_OF, KEY_FIELDS, FieldKind, KeyField
from msk_auth.errors import KeyLimitReached, KeyNotActive
from msk_auth.events import KeyEvent, KeyExpiring, KeyRevocation
from msk_auth.stores import (
    AsyncKeyStore,
    ExpiryQuery,
    KeyChange,
    KeyQuery,
    KeyStore,
    KeyUpdate,
    RecordedLease,
)

T = TypeVar("T")

_LONGEST_SECONDS = 60


class BackgroundLoop:
    """An event loop in a thread of its own while the `with` block lasts."""

    def __enter__(self) -> BackgroundLoop:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="background-loop")
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.run(_cancel_what_is_left())
        self.run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result; from several threads they run as tasks side by side.

        Raises:
            TimeoutError: It took longer than a minute.
        """
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_LONGEST_SECONDS)


async def _cancel_what_is_left() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


NOW = datetime(2026, 3, 1, 12, 30, 15, 123457, tzinfo=UTC)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
MICROSECOND = timedelta(microseconds=1)

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


def count_active(store: KeyStore) -> int:
    """How many active keys the owner has."""
    return len(ids(store, status=KeyStatus.ACTIVE, limit=10_000))


def found(store: KeyStore, key_id: str) -> ApiKey:
    """The record with an id, which there has to be."""
    record = store.find(key_id)
    assert record is not None
    return record


def paged(
    read: Callable[[Any, int], Sequence[ApiKey]], after: Callable[[ApiKey], object], size: int
) -> list[str]:
    """The ids on all pages of a listing. `after`: where the page goes on that follows a record."""
    records: list[ApiKey] = []
    while page := read(after(records[-1]) if records else None, size):
        assert len(page) <= size
        records += page
    return [record.id for record in records]


def in_parallel(
    call: Callable[[int], T], numbers: Iterable[int], *refusals: type[Exception]
) -> list[T | Exception]:
    """The results of calls that begin together, each in a thread; the refusal of one is its result."""
    calls = list(numbers)
    start = threading.Barrier(len(calls))

    def run(number: int) -> T | Exception:
        start.wait()
        try:
            return call(number)
        except refusals as error:
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


CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "revoke": ("revoke", {"at": NOW}),
    "delete": ("delete", {"at": NOW}),
    "expire": ("expire", {"at": NOW + HOUR}),
    "update": ("update", {"fields": {"name": "another"}}),
    "rotate": ("rotate", {"ends_at": NOW}),
    "overlap": ("rotate", {"ends_at": NOW + HOUR}),
}
"""Each way to change a key that is in the store: the method, and what it takes beside the key."""

WRITES = ("insert", *CHANGES)
"""Each way to change the keys of the store."""


def write(
    name: str,
    store: KeyStore,
    key_id: str,
    change: KeyChange | None = None,
    owner_id: str = OWNER,
) -> object:
    """Change a key, or insert one whose id is made from this one."""
    other = make_record(f"new-{key_id}", owner_id=owner_id)
    if name == "insert":
        store.insert(other, max_active=99, now=NOW, change=change)
        return None
    method, options = CHANGES[name]
    if method == "rotate":
        return rotate(store, key_id, other, change=change, **options)
    return getattr(store, method)(key_id, owner_id=owner_id, change=change, **options)


def check_unchanged(
    store: KeyStore, key_id: str, owner_id: str = OWNER, change: KeyChange | None = None
) -> None:
    """Check that nothing changes a key that this owner does not have."""
    before = store.find(key_id)
    for name in CHANGES:
        assert write(name, store, key_id, change, owner_id) is None, name
    assert store.find(key_id) == before
    assert store.find(f"new-{key_id}") is None


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
        assert found(store, "k") == make_record("k", created_at=NOW, expires_at=NOW + HOUR)

    @pytest.mark.parametrize("name", ["cut\x00here", "lone \ud800 surrogate"])
    def test_a_name_is_kept_whole_or_refused(self, store: KeyStore, name: str) -> None:
        try:
            add(store, "k", name=name)
        except Exception:  # noqa: BLE001 - with any error, it must not have kept a part
            assert store.find("k") is None
        else:
            assert found(store, "k").name == name

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

    # The last limit was lowered: it refuses new keys and keeps the existing ones.
    @pytest.mark.parametrize(("present", "limit"), [(0, 0), (3, 3), (5, 2)])
    def test_a_limit_that_is_reached_is_not_passed(
        self, store: KeyStore, present: int, limit: int
    ) -> None:
        for number in range(present):
            store.insert(make_record(f"k{number}"), max_active=present, now=NOW)
        with pytest.raises(KeyLimitReached) as caught:
            store.insert(make_record("new"), max_active=limit, now=NOW)
        assert caught.value.code == "key_limit_reached"
        assert store.find("new") is None
        assert count_active(store) == present
        add(store, "new")  # a limit of None is no limit
        assert count_active(store) == present + 1

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

    def test_the_limit_is_exact_under_parallel_inserts_and_rotations(self, store: KeyStore) -> None:
        for number in range(8):
            add(store, f"old{number}")

        def insert_or_rotate(number: int) -> None:
            successor = make_record(f"new{number}")
            if number < 8:
                rotate(store, f"old{number}", successor, ends_at=NOW + HOUR, max_active=18)
            else:
                store.insert(successor, max_active=18, now=NOW)

        outcomes = in_parallel(insert_or_rotate, range(50), KeyLimitReached)
        assert sum(isinstance(outcome, KeyLimitReached) for outcome in outcomes) == 40
        assert count_active(store) == 18

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
            query = KeyQuery(OWNER, NOW, status)

            def read(after: Any, size: int, query: KeyQuery = query) -> Sequence[ApiKey]:
                return store.list(replace(query, after=after, limit=size))

            assert paged(read, lambda last: (last.created_at, last.id), 4) == whole

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
        assert store.revoke("k", owner_id=OWNER, at=NOW) == expected == store.find("k")

    def test_revoking_again_changes_nothing(self, store: KeyStore) -> None:
        record = add(store, "k")
        store.revoke("k", owner_id=OWNER, at=NOW)
        expected = replace(record, revoked_at=NOW)
        for again in (NOW - HOUR, NOW, NOW + HOUR):
            assert store.revoke("k", owner_id=OWNER, at=again) == expected == store.find("k")

    def test_a_key_of_another_owner_cannot_be_changed(self, store: KeyStore) -> None:
        record = add(store, "k")
        check_unchanged(store, "k", "owner-2")
        assert store.find("k") == record

    def test_an_unknown_key_cannot_be_changed(self, store: KeyStore) -> None:
        store.touch({"k": NOW})
        store.replace_digest("k", old="sha256:k", new="sha256:other")
        check_unchanged(store, "k")
        assert store.find("k") is None

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
        record = found(store, "k")
        assert (record.revoked_at, record.replaced_by) == (NOW, None)

    def test_a_revocation_survives_any_number_of_writers_beside_it(self, store: KeyStore) -> None:
        record = add(store, "k")

        def change(number: int) -> ApiKey | None:
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

        outcomes = in_parallel(change, range(40))
        revocations = {outcome.revoked_at for outcome in outcomes if isinstance(outcome, ApiKey)}
        after = found(store, "k")
        assert revocations == {after.revoked_at}
        assert after.last_used_at == NOW + 35 * SECOND

    # Deleting

    def test_deleting_revokes_and_keeps_the_record(self, store: KeyStore) -> None:
        record = add(store, "k")
        expected = replace(record, revoked_at=NOW, deleted_at=NOW)
        assert store.delete("k", owner_id=OWNER, at=NOW) == expected == store.find("k")
        assert ids(store) == ids(store, status=KeyStatus.REVOKED) == []

    def test_deleting_a_revoked_key_keeps_the_moment_of_revocation(self, store: KeyStore) -> None:
        record = add(store, "k")
        store.revoke("k", owner_id=OWNER, at=NOW)
        expected = replace(record, revoked_at=NOW, deleted_at=NOW + HOUR)
        assert store.delete("k", owner_id=OWNER, at=NOW + HOUR) == expected

    def test_a_deleted_key_counts_as_none(self, store: KeyStore) -> None:
        add(store, "k")
        store.delete("k", owner_id=OWNER, at=NOW - SECOND)
        check_unchanged(store, "k")
        store.insert(make_record("new"), max_active=1, now=NOW)

    # Expiring

    def test_a_key_can_be_made_to_expire_earlier(self, store: KeyStore) -> None:
        for key_id, before in (("endless", None), ("ending", NOW + HOUR + MICROSECOND)):
            record = add(store, key_id, expires_at=before)
            expected = replace(record, expires_at=NOW + HOUR)
            ended = store.expire(key_id, owner_id=OWNER, at=NOW + HOUR)
            assert ended == expected == store.find(key_id)

    def test_a_key_is_never_made_to_expire_later(self, store: KeyStore) -> None:
        for key_id, before in (("expired", NOW - HOUR), ("same", NOW + HOUR)):
            record = add(store, key_id, expires_at=before)
            ended = store.expire(key_id, owner_id=OWNER, at=NOW + HOUR)
            assert ended == record == store.find(key_id)

    # Rotating

    def test_rotating_without_overlap_revokes_the_predecessor(self, store: KeyStore) -> None:
        record, successor = add(store, "k"), make_record("next", created_at=NOW)
        expected = replace(record, revoked_at=NOW, replaced_by="next")
        assert rotate(store, "k", successor, ends_at=NOW) == expected == store.find("k")
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
            rotated = rotate(store, key_id, successor, ends_at=NOW + HOUR)
            assert rotated == expected == store.find(key_id)
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
            KeyNotActive,
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
        edits = [("active", fields) for fields in EDITS]
        edits += [(state, EDITS[-1]) for state in STATES]
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
                assert edit(store, record.id, **fields) == expected == store.find(record.id)
        assert store.find("other") == other

    def test_parallel_edits_of_different_fields_lose_none(self, store: KeyStore) -> None:
        record = add(store, "k")
        edited = EDITS[-1]
        edits: list[dict[str, Any]] = [{name: value} for name, value in edited.items()]
        in_parallel(lambda number: edit(store, "k", **edits[number % len(edits)]), range(12))
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

        in_parallel(touch, range(12))
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
        for name in WRITES:
            add(audited_store, name, change=lambda _: ())
            assert on_change.events == []
            write(name, audited_store, name, revocation_of)
            record = found(audited_store, "new-insert" if name == "insert" else name)
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
                write(record.id, audited_store, record.id, revocation_of)
            assert audited_store.find(record.id) == record
            assert audited_store.find(f"new-{record.id}") is None
        assert set(ids(audited_store)) == set(WRITES)
        # The store still works.
        on_change.error = None
        on_change.events.clear()
        for number, name in enumerate(WRITES, 1):
            write(name, audited_store, name, revocation_of)
            assert len(on_change.events) == number

    def test_a_store_with_a_hook_refuses_a_change_without_events(
        self, audited_store: KeyStore
    ) -> None:
        for name in WRITES:
            record = add(audited_store, name, change=revocation_of)
            with pytest.raises(Exception):  # noqa: B017, PT011 - each store has its own
                write(name, audited_store, name)
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
            check_unchanged(audited_store, key_id, owner_id, change)
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

        def change(number: int) -> object:
            return write(same[number % 4], audited_store, same[number % 4], revocation_of)

        in_parallel(change, range(40))
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

        outcomes = in_parallel(rotate_or_insert, range(20), KeyNotActive, KeyLimitReached)
        succeeded = [outcome for outcome in outcomes if not isinstance(outcome, Exception)]
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
        register = able(store, "record_lease")
        assert list(register.recorded_leases()) == []
        register.forget_lease(RecordedLease(SECOND, "a", 1))
        # Other counters of a store are no leases.
        store.insert(make_record("k"), max_active=1, now=NOW)
        assert list(register.recorded_leases()) == []

    def test_each_process_has_an_entry_with_its_last_mark(self, store: KeyStore) -> None:
        register = able(store, "record_lease")
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
        register = able(store, "record_lease")
        leases = [RecordedLease(SECOND, f"p{number}", number) for number in range(8)]
        in_parallel(lambda number: register.record_lease(leases[number]), range(8))
        assert set(register.recorded_leases()) == set(leases)

    def test_an_entry_is_forgotten_if_its_mark_is_still_the_same(self, store: KeyStore) -> None:
        register = able(store, "record_lease")
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
        list_all = able(store, "list_all").list_all
        owners = ["b", "a", "A", "a b", "ab", "é", "ß", "org:1", "\U0001f5dd"]
        for number, owner_id in enumerate(owners):
            for place, age in enumerate((2, 1, 1, 3)):
                created_at = NOW - (age + number % 2) * SECOND
                add(store, f"k{number * 4 + place}", owner_id=owner_id, created_at=created_at)
        add(store, "deleted", owner_id="zz", revoked_at=NOW, deleted_at=NOW)
        add(store, "revoked", owner_id="a", revoked_at=NOW)
        listed = [(key.owner_id, key.created_at, key.id) for key in list_all(after=None, limit=99)]
        assert listed == sorted(listed, reverse=True)
        assert {key_id for _, _, key_id in listed} == {f"k{n}" for n in range(36)} | {"revoked"}

    def test_the_pages_of_all_owners_hold_every_key_once(self, store: KeyStore) -> None:
        list_all = able(store, "list_all").list_all
        for number in range(37):
            # Several keys share an owner and a moment, so that pages end in the middle of both.
            created_at = NOW - (number // 9) * MICROSECOND
            add(store, f"k{number}", owner_id=f"owner-{number % 4}", created_at=created_at)
        whole = [key.id for key in list_all(after=None, limit=99)]
        assert len(set(whole)) == 37
        for size in (1, 5, 37, 99):
            assert whole == paged(
                lambda after, limit: list_all(after=after, limit=limit),
                lambda last: (last.owner_id, last.created_at, last.id),
                size,
            )

    def test_a_page_goes_on_where_a_key_is_gone(self, store: KeyStore) -> None:
        list_all = able(store, "list_all").list_all
        for key_id, owner_id in (("k1", "a"), ("k2", "b"), ("k3", "b"), ("k4", "c")):
            add(store, key_id, owner_id=owner_id, created_at=NOW)
        store.delete("k3", owner_id="b", at=NOW)
        assert [key.id for key in list_all(after=("b", NOW, "k3"), limit=9)] == ["k2", "k1"]
        assert [key.id for key in list_all(after=("bb", NOW, "k3"), limit=9)] == ["k2", "k1"]
        assert list(list_all(after=("a", NOW, "k1"), limit=9)) == []

    # Announcing the end of keys, if the store can (ExpiryStore)

    @pytest.mark.parametrize("announced", [None, 30, 7])
    def test_keys_that_end_soon_are_listed_by_their_end(
        self, store: KeyStore, announced: int | None
    ) -> None:
        expiring = able(store, "announce_expiry")
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
        listed = expiring.list_expiring(ExpiryQuery(NOW, NOW + 4 * HOUR, announced))
        assert [key.id for key in listed] == ["late", "K1", "k1", "k2", "k3"]
        assert list(listed) == [store.find(key.id) for key in listed]

    def test_the_pages_of_keys_that_end_soon_hold_each_once(self, store: KeyStore) -> None:
        expiring = able(store, "announce_expiry")
        for number in range(23):
            # Several end at one moment, so that pages end among them.
            add_ending(store, f"k{number:02}", HOUR + (number // 4) * MICROSECOND)
        for size in (1, 5, 23, 99):
            assert [f"k{number:02}" for number in range(23)] == paged(
                lambda after, limit: expiring.list_expiring(
                    ExpiryQuery(NOW, NOW + 2 * HOUR, None, after, limit)
                ),
                lambda last: (last.expires_at, last.id),
                size,
            )

    def test_announcing_sets_the_days_once_and_changes_nothing_else(self, store: KeyStore) -> None:
        expiring = able(store, "announce_expiry")
        record = add_ending(store, "k", HOUR, scopes=frozenset({"a"}), last_used_at=NOW)
        other = add_ending(store, "K", HOUR)
        for days in (30, 7, 1):
            expected = replace(record, announced_days=days)
            assert expiring.announce_expiry("k", days=days) == expected
            for same_or_more in {30, 7, 1} - set(range(days)):
                assert expiring.announce_expiry("k", days=same_or_more) is None
            assert store.find("k") == expected
        assert store.find("K") == other
        # It may be announced for few days at once.
        assert expiring.announce_expiry("K", days=1) == replace(other, announced_days=1)
        assert expiring.announce_expiry("K", days=30) is None

    def test_what_ended_or_was_replaced_is_not_announced(self, store: KeyStore) -> None:
        expiring = able(store, "announce_expiry")
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
        expiring = able(store, "announce_expiry")
        for number in range(5):
            add_ending(store, f"k{number}", HOUR)
        outcomes = in_parallel(lambda n: expiring.announce_expiry(f"k{n % 5}", days=7), range(20))
        announced = sorted(record.id for record in outcomes if isinstance(record, ApiKey))
        assert announced == [f"k{number}" for number in range(5)]
        assert outcomes.count(None) == 15

    def test_an_announcement_and_its_event_are_one_change(
        self, audited_store: KeyStore, on_change: ChangeRecorder
    ) -> None:
        expiring = able(audited_store, "announce_expiry")
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
        records = find_many(["unknown", "k1", "K1", "NULL", "' OR '1'='1", "k3"])
        assert {record.id: record for record in records} == {"k1": first, "K1": second}
        assert list(find_many(["k2"])) == []

    def test_several_are_found_as_they_are_now(self, store: KeyStore) -> None:
        find_many = batch_finder(store)
        for number in range(20):
            add(store, f"k{number}")
        for number in range(0, 20, 4):
            store.revoke(f"k{number}", owner_id=OWNER, at=NOW)
            records = {record.id: record for record in find_many([f"k{n}" for n in range(20)])}
            assert len(records) == 20
            revoked = {key_id for key_id, record in records.items() if record.revoked_at == NOW}
            assert revoked == {f"k{n}" for n in range(0, number + 1, 4)}


class _Blocking:
    """The methods of an asynchronous store, as blocking calls."""

    def __init__(self, store: AsyncKeyStore, loop: BackgroundLoop) -> None:
        self._store = store
        self._loop = loop

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Coroutine[Any, Any, Any]] = getattr(self._store, name)
        return lambda *args, **kwargs: self._loop.run(method(*args, **kwargs))


def rotate(store: KeyStore, key_id: str, successor: ApiKey, **options: Any) -> ApiKey | None:
    """Rotate a key now, by default without an overlap and without a limit."""
    ordinary: dict[str, Any] = {"ends_at": NOW, "max_active": None, "now": NOW}
    return store.rotate(key_id, successor=successor, **(ordinary | options))


def edit(
    store: KeyStore,
    key_id: str,
    *,
    owner_id: str = OWNER,
    change: KeyChange | None = None,
    **fields: Any,
) -> ApiKey | None:
    """Set these fields of a key."""
    return store.update(key_id, owner_id=owner_id, fields=cast("KeyUpdate", fields), change=change)


def add_ending(store: KeyStore, key_id: str, left: timedelta, **more: Any) -> ApiKey:
    """Insert a record that ends after this time."""
    return add(store, key_id, expires_at=NOW + left, **more)


def batch_finder(store: KeyStore) -> Callable[[Sequence[str]], Sequence[ApiKey]]:
    """The store's `find_many`, or what calls `find` in its place."""
    found: Callable[[Sequence[str]], Sequence[ApiKey]] | None = getattr(store, "find_many", None)
    if found is not None:
        return found
    return lambda key_ids: [record for key_id in key_ids if (record := store.find(key_id))]


def able(store: KeyStore, method: str) -> Any:
    """The store, if it has a method that not every store needs; otherwise the test is skipped."""
    if not hasattr(store, method):
        pytest.skip(f"this store has no {method}")
    return store
