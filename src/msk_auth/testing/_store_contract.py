"""The contract of stores, as tests for your own store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import pytest

from msk_auth import ApiKey, KeyStatus
from msk_auth.core.fields import EDITABLE, FIELD_OF, KEY_FIELDS, FieldKind, KeyField
from msk_auth.errors import KeyLimitReached, KeyNotActive
from msk_auth.events import KeyEvent
from msk_auth.stores import (
    AsyncKeyStore,
    ExpiryQuery,
    KeyChange,
    KeyQuery,
    KeyStore,
    RecordedLease,
)

T = TypeVar("T")

_LONGEST_SECONDS = 60


class BackgroundLoop:
    """An event loop in a separate thread during a `with` block."""

    def __enter__(self) -> BackgroundLoop:
        self._runner = asyncio.Runner()
        self._loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="background-loop")
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._runner.close()

    def blocking(self, store: AsyncKeyStore) -> KeyStore:
        """A store on this loop, with blocking methods for :class:`StoreContract`."""
        return cast("KeyStore", _Blocking(store, self))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result; calls from several threads run as concurrent tasks.

        Raises:
            TimeoutError: The coroutine took longer than a minute.
        """
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_LONGEST_SECONDS)


NOW = datetime(2026, 3, 1, 12, 30, 15, 123457, tzinfo=UTC)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
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
    """Insert a record from :func:`make_record` without a limit."""
    record = make_record(key_id, **fields)
    store.insert(record, max_active=None, now=NOW, change=change)
    return record


def ids(store: KeyStore, **query: Any) -> list[str]:
    """The ids of a listing, in order."""
    return [record.id for record in store.list(replace(KeyQuery(OWNER, NOW), **query))]


def count_active(store: KeyStore) -> int:
    """The number of the owner's active keys."""
    return len(ids(store, status=KeyStatus.ACTIVE, limit=10_000))


def found(store: KeyStore, key_id: str) -> ApiKey:
    """The record with an id, which must exist."""
    record = store.find(key_id)
    assert record is not None
    return record


def _list_own(
    status: KeyStatus | None, store: KeyStore, last: ApiKey | None, limit: int
) -> Sequence[ApiKey]:
    after = None if last is None else (last.created_at, last.id)
    return store.list(KeyQuery(OWNER, NOW, status, after, limit))


def _list_all(store: KeyStore, last: ApiKey | None, limit: int) -> Sequence[ApiKey]:
    after = None if last is None else (last.owner_id, last.created_at, last.id)
    return store.list_all(after=after, limit=limit)


def _list_expiring(store: KeyStore, last: ApiKey | None, limit: int) -> Sequence[ApiKey]:
    after = None if last is None else (cast("datetime", last.expires_at), last.id)
    return store.list_expiring(ExpiryQuery(NOW, NOW + 2 * HOUR, None, after, limit))


LISTINGS: dict[str, Callable[[KeyStore, ApiKey | None, int], Sequence[ApiKey]]] = {
    **{f"own {status}": partial(_list_own, status) for status in (None, *KeyStatus)},
    "all": _list_all,
    "expiring": _list_expiring,
}
"""Each kind of listing, as a function that reads the page after a record."""


def in_parallel(
    call: Callable[[int], T], numbers: Iterable[int], *refusals: type[Exception]
) -> list[T | Exception]:
    """The results of concurrent calls, each in a thread; a refusal counts as a result."""
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
    """An `on_change` hook that keeps its events.

    Attributes:
        events: The events, in order.
        error: Raised by the next calls; None keeps the event.
    """

    def __init__(self) -> None:
        self.events: list[KeyEvent] = []
        self.error: Exception | None = None

    def __call__(self, connection: object, event: KeyEvent) -> None:
        """Keep the event."""
        if self.error is not None:
            raise self.error
        self.events.append(event)

    async def awaited(self, connection: object, event: KeyEvent) -> None:
        """Keep the event: the hook of an asynchronous store."""
        await asyncio.sleep(0)
        self(connection, event)


def revocation_of(record: ApiKey) -> tuple[KeyEvent, ...]:
    """A `change` for a store: the events, in order."""
    return KeyEvent("revoked", NOW, record, cause="owner"), KeyEvent(
        "revoked", NOW + SECOND, record, cause="owner"
    )


class Case(NamedTuple):
    """A change of one key.

    Attributes:
        method: The store's method.
        options: Its arguments besides the key.
        changes: The changed fields. Empty if the store changes nothing.
        before: Fields of the key before, if it is not an ordinary key.
    """

    method: str
    options: dict[str, Any]
    changes: dict[str, Any]
    before: dict[str, Any] = {}  # noqa: RUF012 - nothing changes it


CHANGES = {
    "revoke": Case("revoke", {"at": NOW}, {"revoked_at": NOW}),
    "delete": Case("delete", {"at": NOW}, {"revoked_at": NOW, "deleted_at": NOW}),
    "expire": Case("expire", {"at": NOW + HOUR}, {"expires_at": NOW + HOUR}),
    "update": Case("update", {"fields": {"name": "another"}}, {"name": "another"}),
    "rotate": Case("rotate", {"ends_at": NOW}, {"revoked_at": NOW}),
    "overlap": Case("rotate", {"ends_at": NOW + HOUR}, {"expires_at": NOW + HOUR}),
    "announce": Case("announce_expiry", {"days": 7}, {"announced_days": 7}),
}
"""Each way to change an ordinary stored key. A rotated key has `replaced_by` as well."""

WRITES = {"insert": Case("insert", {"max_active": 99, "now": NOW}, {}), **CHANGES}
"""Each way to change the keys of the store. A new key has an id made from the id of another."""


def write(name: str, store: KeyStore, key_id: str, *more: Any) -> object:
    """Change a key, or insert a key, with the further arguments of :func:`run`."""
    return run(WRITES[name], store, key_id, *more)


def run(
    case: Case,
    store: KeyStore,
    key_id: str,
    change: KeyChange | None = None,
    owner_id: str = OWNER,
) -> ApiKey | None:
    """Make a change. A new key has an id made from `key_id`."""
    options = dict(case.options)
    new = make_record(f"new-{key_id}", owner_id=owner_id)
    match case.method:
        case "insert":
            store.insert(new, change=change, **options)
            return None
        case "rotate":
            return rotate(store, key_id, new, change=change, **options)
        case "announce_expiry":
            return store.announce_expiry(key_id, change=change, **options)
        case "touch":
            store.touch({key_id: options["at"]})
            return None
        case "replace_digest":
            store.replace_digest(key_id, **options)
            return None
        case method:
            changed: ApiKey | None = getattr(store, method)(
                key_id, owner_id=owner_id, change=change, **options
            )
            return changed


def check_unchanged(
    store: KeyStore, key_id: str, owner_id: str = OWNER, change: KeyChange | None = None
) -> None:
    """Check that no method changes a key that this owner does not have."""
    before = store.find(key_id)
    for name, case in CHANGES.items():
        # The library announces keys of any owner.
        if case.method != "announce_expiry" or owner_id == OWNER:
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
        NOW.astimezone(timezone(timedelta(hours=5, minutes=45))),
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(1969, 7, 20, 20, 17, 40, 1, UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
    ],
    FieldKind.TEXTS: [
        frozenset[str](),
        frozenset({"tasks:read", "2001:db8::/32"}),
        frozenset({"two words", 'quote"', "comma,", "ünï"}),
        frozenset(f"text-{number}" for number in range(20)),
    ],
    FieldKind.NUMBER: [7],
}
"""Values that each kind of field must keep."""


def samples(field: KeyField) -> list[Any]:
    """The values that a store must keep in a field."""
    return [*SAMPLES[field.kind], *([] if field.is_required else [field.empty])]


# The id is the records' name.
KEPT = [field for field in KEY_FIELDS if field.name != "id"]

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


DELETED: dict[str, Any] = {"revoked_at": NOW - HOUR, "deleted_at": NOW - HOUR}

NOT_HELD = [("deleted", OWNER), ("k", "owner-2"), ("unknown", OWNER)]
"""Keys and owners who do not have them."""

STATES: dict[str, dict[str, Any]] = {
    "active": {},
    "revoked": {"revoked_at": NOW - HOUR},
    "expired": {"expires_at": NOW},
    "rotated": {"replaced_by": "other"},
}
"""The states of a key."""


def edit_of(fields: dict[str, Any], before: dict[str, Any]) -> Case:
    """The case of an edit of these fields."""
    return Case("update", {"fields": fields}, fields, before)


def replacing(old: str) -> Case:
    """The case of a digest that is replaced if this is still the old one."""
    new = "hmac-sha256:p:cd"
    changes = {"digest": new} if old == "sha256:AB" else {}
    return Case("replace_digest", {"old": old, "new": new}, changes, {"digest": "sha256:AB"})


FILLED: dict[str, Any] = {
    field.name: samples(field)[1] for field in KEPT if field.input is not None
}
"""Fields that are not empty, so that a write which loses one shows."""

EDIT: dict[str, Any] = {name: samples(FIELD_OF[name])[0] for name in EDITABLE}
"""An edit of all fields at once."""

CASES = [
    *(case._replace(before={"announced_days": 30}) for case in CHANGES.values()),
    # The time of a revocation never changes.
    Case("revoke", {"at": NOW}, {"revoked_at": NOW}, {"expires_at": NOW + HOUR}),
    *(Case("revoke", {"at": NOW + age}, {}, {"revoked_at": NOW}) for age in (-HOUR, HOUR)),
    Case("delete", {"at": NOW}, {"deleted_at": NOW}, {"revoked_at": NOW - HOUR}),
    # An expiry moves earlier, never later.
    *(
        Case(
            "expire",
            {"at": NOW + HOUR},
            {"expires_at": NOW + HOUR} if left > HOUR else {},
            {"expires_at": NOW + left},
        )
        for left in (-HOUR, HOUR, HOUR + MICROSECOND)
    ),
    Case("rotate", {"ends_at": NOW + HOUR}, {}, {"expires_at": NOW + MICROSECOND}),
    CHANGES["overlap"]._replace(before={"expires_at": NOW + 2 * HOUR}),
    # An edit of each field to each value, and of all fields of a key in each state.
    *(edit_of({name: value}, {}) for name in EDITABLE for value in samples(FIELD_OF[name])),
    *(edit_of(EDIT, state) for state in STATES.values()),
    edit_of({}, EDIT)._replace(options={"fields": EDIT}),
    # An end is announced for fewer days each time, and only for active, unreplaced keys.
    Case("announce_expiry", {"days": 1}, {"announced_days": 1}),
    *(Case("announce_expiry", {"days": days}, {}, {"announced_days": 7}) for days in (7, 30)),
    *(
        Case("announce_expiry", {"days": 1}, {}, ended)
        for ended in (STATES["revoked"], STATES["rotated"], DELETED)
    ),
    # The last use moves forward, and a digest is replaced if it is still the old one: for keys in any state, since a process
    # that read the key before may still write these.
    Case("touch", {"at": NOW}, {"last_used_at": NOW}),
    *(Case("touch", {"at": NOW - age}, {}, {"last_used_at": NOW}) for age in (0 * HOUR, HOUR)),
    *(
        case._replace(before=case.before | state)
        for state in STATES.values()
        for case in (
            Case("touch", {"at": NOW}, {"last_used_at": NOW}, {"last_used_at": NOW - MICROSECOND}),
            replacing("sha256:AB"),
        )
    ),
    *(replacing(old) for old in ("sha256:ab", "sha256:A")),
]
"""Changes of a key, with their results."""


def check_case(
    case: Case, store: KeyStore, key_id: str, change: KeyChange | None = None
) -> ApiKey | None:
    """Check the result of a change; returns the key if it was changed and the hook must be called."""
    record = add(store, key_id, change=lambda _: (), **(FILLED | case.before))
    changes = dict(case.changes)
    if case.method == "rotate":
        changes["replaced_by"] = f"new-{key_id}"
    expected = replace(record, **changes)
    answer = run(case, store, key_id, change)
    is_quiet = case.method in {"touch", "replace_digest"}
    is_none = is_quiet or (case.method == "announce_expiry" and not changes)
    assert answer == (None if is_none else expected)
    assert store.find(key_id) == expected
    if case.method == "rotate":
        assert store.find(f"new-{key_id}") == make_record(f"new-{key_id}")
    if case.method in {"revoke", "expire", "update"}:  # repeated, they change nothing
        assert run(case, store, key_id, change) == expected == store.find(key_id)
    return None if is_quiet or expected == record else expected


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

    An :class:`~msk_auth.stores.AsyncKeyStore` runs on an event loop in a separate thread. Parallel calls are tasks on that loop::

        class TestMyStore(StoreContract):
            @pytest.fixture
            def store(self, loop: BackgroundLoop) -> Iterator[KeyStore]:
                store = MyStore()  # empty
                yield loop.blocking(store)
                loop.run(store.aclose())

            @pytest.fixture
            def audited_store(self, loop: BackgroundLoop, on_change: ChangeRecorder) -> KeyStore:
                return loop.blocking(MyStore(on_change=on_change.awaited))

    Leave `audited_store` out if your store takes no `on_change`: its tests are skipped.

    Many tests call the store from up to 50 threads. They need only pytest.
    """

    @pytest.fixture
    def store(self) -> KeyStore:
        """The store under test, empty. Override it."""
        raise NotImplementedError("give your test class a fixture named `store`")

    @pytest.fixture
    def loop(self) -> Iterator[BackgroundLoop]:
        """The event loop of an asynchronous store."""
        with BackgroundLoop() as loop:
            yield loop

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

    def test_several_are_found_at_once_as_they_are_now(self, store: KeyStore) -> None:
        # By `find_many`, or one by one if the store lacks it.
        def find_each(key_ids: Sequence[str]) -> list[ApiKey]:
            return [record for key_id in key_ids if (record := store.find(key_id))]

        find_many = getattr(store, "find_many", find_each)
        records = {key_id: add(store, key_id) for key_id in ("k1", "K1", "k2")}
        sought = ["unknown", "k1", "K1", "k2", "NULL", "' OR '1'='1"]
        for key_id in records:
            records[key_id] = write("revoke", store, key_id)  # type: ignore[assignment]
            assert {record.id: record for record in find_many(sought)} == records
        assert list(find_many(["unknown"])) == []

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
        add(store, "new")  # None means no limit
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

    def test_a_listing_can_be_of_one_status(self, store: KeyStore) -> None:
        add(store, "forever", created_at=NOW - 1 * HOUR)
        add(store, "expiring", created_at=NOW - 2 * HOUR, expires_at=NOW + MICROSECOND)
        add(store, "expired", created_at=NOW - 3 * HOUR, expires_at=NOW)
        add(store, "revoked", created_at=NOW - 4 * HOUR, revoked_at=NOW)
        add(store, "both", created_at=NOW - 5 * HOUR, revoked_at=NOW, expires_at=NOW)
        add(store, "deleted", **DELETED)
        add(store, "foreign", owner_id="owner-2")
        assert ids(store, owner_id="owner-2") == ["foreign"]
        assert ids(store, owner_id="owner-3") == []
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
        # Several keys share a moment and an end, so that a page ends in the middle of them.
        for number in range(40):
            add(
                store,
                f"k{number}",
                owner_id=OWNER if number % 4 else "owner-2",
                created_at=NOW - (number // 7) * SECOND,
                expires_at={1: NOW, 2: NOW + HOUR + (number // 9) * SECOND}.get(number % 3),
                revoked_at=NOW if number % 5 == 0 else None,
            )
        for listing, read in LISTINGS.items():
            whole = [record.id for record in read(store, None, 99)]
            assert len(set(whole)) == len(whole) > 4, listing
            for size in (1, 4, len(whole)):
                records: list[ApiKey] = []
                while page := read(store, records[-1] if records else None, size):
                    assert len(page) <= size, listing
                    records += page
                assert [record.id for record in records] == whole, listing

    @pytest.mark.parametrize("listing", ["own None", "all", "expiring"])
    def test_keys_that_come_and_go_between_pages_move_no_other(
        self, store: KeyStore, listing: str
    ) -> None:
        read = LISTINGS[listing]
        for number in range(9):
            age = number * SECOND
            add(store, f"k{number}", created_at=NOW - age, expires_at=NOW + HOUR + age)
        first = read(store, None, 3)
        assert [record.id for record in first] == ["k0", "k1", "k2"]
        add(store, "before", created_at=NOW + SECOND, expires_at=NOW + HOUR - SECOND)
        store.delete("k2", owner_id=OWNER, at=NOW)
        store.delete("k4", owner_id=OWNER, at=NOW)
        assert [record.id for record in read(store, first[-1], 3)] == ["k3", "k5", "k6"]

    # Changing

    def test_a_change_sets_its_columns_and_nothing_else(self, store: KeyStore) -> None:
        other = add(store, "other", **FILLED)
        for number, case in enumerate(CASES):
            check_case(case, store, f"k{number}")
        assert store.find("other") == other

    def test_a_key_that_the_owner_does_not_have_cannot_be_changed(self, store: KeyStore) -> None:
        add(store, "k")
        add(store, "deleted", **DELETED)
        for key_id, owner_id in NOT_HELD:
            check_unchanged(store, key_id, owner_id)
        store.touch({"unknown": NOW})
        store.replace_digest("unknown", old="sha256:k", new="sha256:other")
        assert store.find("unknown") is None

    def test_a_revocation_survives_any_number_of_writers_beside_it(self, store: KeyStore) -> None:
        record = add(store, "k")

        def change(number: int) -> ApiKey | None:
            at = NOW + number * SECOND
            match number % 5:
                case 4:
                    store.update("k", owner_id=OWNER, fields={"name": f"name {number}"})
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

    # Rotating

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
        # Without an overlap a full account can rotate.
        assert rotate(store, "next", make_record("last"), max_active=2) is not None
        assert ids(store, status=KeyStatus.ACTIVE) == ["last", "k"]

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

    def test_parallel_edits_of_different_fields_lose_none(self, store: KeyStore) -> None:
        record = add(store, "k")
        edits = [edit_of({name: value}, {}) for name, value in EDIT.items()]
        in_parallel(lambda number: run(edits[number % len(edits)], store, "k"), range(12))
        assert store.find("k") == replace(record, **EDIT)

    # Touching

    def test_a_batch_may_be_large_and_skips_unknown_ids(self, store: KeyStore) -> None:
        for number in range(3):
            add(store, f"k{number}")
        store.touch({})
        store.touch({f"k{number}": NOW + number * SECOND for number in (2, *range(9, 1200), 0)})
        used = {record.id: record.last_used_at for record in store.list(KeyQuery(OWNER, NOW))}
        assert used == {"k0": NOW, "k1": None, "k2": NOW + 2 * SECOND}
        assert store.find("k9") is None

    def test_batches_in_any_order_do_not_block_each_other(self, store: KeyStore) -> None:
        keys = [add(store, f"k{number:02}").id for number in range(20)]

        def touch(number: int) -> None:
            order = keys if number % 2 else reversed(keys)
            store.touch(dict.fromkeys(order, NOW + number * SECOND))

        in_parallel(touch, range(12))
        latest = {record.last_used_at for record in store.list(KeyQuery(OWNER, NOW))}
        assert latest == {NOW + 11 * SECOND}

    # The hook `on_change`; a store without it skips these tests.

    def test_the_hook_gets_each_change_once_as_it_leaves_the_key(
        self, audited_store: KeyStore, on_change: ChangeRecorder
    ) -> None:
        write("insert", audited_store, "k", revocation_of)
        assert on_change.events == list(revocation_of(found(audited_store, "new-k")))
        for number, case in enumerate(CASES):
            on_change.events.clear()
            changed = check_case(case, audited_store, f"k{number}", revocation_of)
            assert on_change.events == ([] if changed is None else list(revocation_of(changed)))

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
        for name in WRITES:
            write(name, audited_store, name, revocation_of)
        assert set(WRITES) < {event.record.id for event in on_change.events}

    def test_a_store_with_a_hook_refuses_a_change_without_events(
        self, audited_store: KeyStore
    ) -> None:
        for name in WRITES:
            record = add(audited_store, name, change=revocation_of)
            with pytest.raises(Exception):  # noqa: B017, PT011 - each store has its own
                write(name, audited_store, name)
            assert audited_store.find(name) == record
            assert audited_store.find(f"new-{name}") is None

    def test_what_is_refused_calls_no_hook(
        self, audited_store: KeyStore, on_change: ChangeRecorder
    ) -> None:
        def change(_: ApiKey) -> tuple[KeyEvent, ...]:
            raise AssertionError("nothing has changed")

        for key_id, state in {"k": {}, **STATES, "deleted": DELETED}.items():
            add(audited_store, key_id, change=lambda _: (), **state)
        for key_id, owner_id in NOT_HELD:
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
        same = ["revoke", "delete", "expire", "update", "announce"]
        for name in same:
            add(audited_store, name, change=lambda _: ())

        def change(number: int) -> object:
            return write(same[number % 5], audited_store, same[number % 5], revocation_of)

        in_parallel(change, range(40))
        assert sorted(event.record.id for event in on_change.events) == sorted(2 * same)

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
        succeeded = sum(not isinstance(outcome, Exception) for outcome in outcomes)
        # The rotated key and its successor are one change.
        assert len(on_change.events) == 2 * succeeded
        assert [event.record.id for event in on_change.events].count("k") == 2

    # Leases

    def test_each_process_has_an_entry_with_its_last_mark(self, store: KeyStore) -> None:
        # The store's own counters are not leases.
        store.insert(make_record("k"), max_active=1, now=NOW)
        assert list(store.recorded_leases()) == []
        leases = [
            RecordedLease(SECOND, "a", 1),
            RecordedLease(SECOND, "b" * 32, 1),
            RecordedLease(MICROSECOND, "a", 2**62),
        ]
        for lease in leases:
            store.record_lease(lease._replace(mark=7))
            store.record_lease(lease)
        assert set(store.recorded_leases()) == set(leases)

    def test_an_entry_is_forgotten_if_its_mark_is_still_the_same(self, store: KeyStore) -> None:
        lease, other = RecordedLease(SECOND, "a", 5), RecordedLease(SECOND, "b", 5)
        store.record_lease(lease)
        store.record_lease(other)
        for mark in (4, 6):
            store.forget_lease(lease._replace(mark=mark))
        assert set(store.recorded_leases()) == {lease, other}
        store.forget_lease(lease)
        store.forget_lease(lease)
        assert list(store.recorded_leases()) == [other]

    def test_parallel_records_lose_none(self, store: KeyStore) -> None:
        leases = [RecordedLease(SECOND, f"p{number}", number) for number in range(8)]
        in_parallel(lambda number: store.record_lease(leases[number]), range(8))
        assert set(store.recorded_leases()) == set(leases)

    # Listing the keys of all owners

    def test_the_keys_of_all_owners_are_in_one_order(self, store: KeyStore) -> None:
        owners = ["b", "a", "A", "a b", "ab", "é", "ß", "org:1", "\U0001f5dd"]
        for number, owner_id in enumerate(owners):
            for place, age in enumerate((2, 1, 1, 3)):
                created_at = NOW - (age + number % 2) * SECOND
                add(store, f"k{number * 4 + place}", owner_id=owner_id, created_at=created_at)
        add(store, "deleted", owner_id="zz", revoked_at=NOW, deleted_at=NOW)
        add(store, "revoked", owner_id="a", revoked_at=NOW)
        listed = [
            (key.owner_id, key.created_at, key.id) for key in store.list_all(after=None, limit=99)
        ]
        assert listed == sorted(listed, reverse=True)
        assert {key_id for _, _, key_id in listed} == {f"k{n}" for n in range(36)} | {"revoked"}

    # Announcing the end of keys

    @pytest.mark.parametrize("announced", [None, 30, 7])
    def test_keys_that_end_soon_are_listed_by_their_end(
        self, store: KeyStore, announced: int | None
    ) -> None:
        ending: dict[str, Any] = {"expires_at": NOW + HOUR, "announced_days": announced}
        ends = {"k3": 3 * HOUR, "k1": HOUR, "K1": HOUR, "k2": 2 * HOUR, "late": MICROSECOND}
        for key_id, left in ends.items():
            own: dict[str, Any] = {"expires_at": NOW + left, "owner_id": f"of {key_id}"}
            add(store, key_id, **ending | own)
        others: dict[str, dict[str, Any]] = {
            f"other{days}": {"announced_days": days} for days in {None, 30, 1} - {announced}
        }
        others |= STATES | {"bound": {"expires_at": NOW + 4 * HOUR}, "deleted": DELETED}
        others["active"] = {"expires_at": None}
        for key_id, state in others.items():
            add(store, key_id, **ending | state)
        listed = store.list_expiring(ExpiryQuery(NOW, NOW + 4 * HOUR, announced))
        assert [key.id for key in listed] == ["late", "K1", "k1", "k2", "k3"]
        assert list(listed) == [store.find(key.id) for key in listed]

    def test_of_parallel_announcements_one_is_first(self, store: KeyStore) -> None:
        for number in range(5):
            add(store, f"k{number}", expires_at=NOW + HOUR)
        outcomes = in_parallel(lambda n: store.announce_expiry(f"k{n % 5}", days=7), range(20))
        announced = sorted(record.id for record in outcomes if isinstance(record, ApiKey))
        assert announced == [f"k{number}" for number in range(5)]
        assert outcomes.count(None) == 15


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
