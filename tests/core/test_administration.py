"""Everybody's keys: what an administrator sees and ends, and that this is all."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import refused_with
from tests.core.support import BLOCKING, NOW, SECOND, MakeWorld

from msk_auth import ApiKey, Authenticator, CredentialKind, KeyStatus, Owner
from msk_auth.core import administration
from msk_auth.errors import (
    ConfigurationError,
    InputInvalid,
    InteractiveRequired,
    KeyNotFound,
    LoginTooOld,
    PermissionDenied,
    StoreUnavailable,
)
from msk_auth.events import KeyEvent
from msk_auth.keys import CreatedKey, KeyFilter
from msk_auth.stores.memory import MemoryKeyStore

DAY = timedelta(days=1)
NO_CURSOR = [
    "",
    ".",
    "x",
    "MS5r",
    "MS5r.",
    "MS5r.!",
    "MS5r.AA==",
    "MS5r./w",
    "MS5r.AA",
    # No base64, and no UTF-8.
    "MS5r.A",
    "MS5r._w",
    "1.k.YQ",
    "é",
]


class Office:
    """An administrator and the keys of several owners."""

    def __init__(self, make_world: MakeWorld, **options: Any) -> None:
        self.world = make_world(**options)
        self.world.owners["root"] = Owner("root", {"keys:admin"}, "Root")
        auth: Any = self.world.auth
        self.keys: Any = auth.admin_keys("keys:admin", max_age=DAY)

    def call(self, method: str, *args: object, by: Any = None, **options: object) -> Any:
        caller = self.world.login("root") if by is None else by
        result = getattr(self.keys, method)(caller, *args, **options)
        runner = self.world._runner
        return result if runner is None else runner.run(result)

    def ids(self, **wanted: Any) -> set[str]:
        page = self.call("list_keys", KeyFilter(**wanted), limit=200)
        assert page.next_cursor is None
        return {record.id for record in page.items}

    def pages(self, wanted: KeyFilter, limit: int) -> Iterator[tuple[ApiKey, ...]]:
        cursor: str | None = None
        while True:
            page = self.call("list_keys", wanted, cursor=cursor, limit=limit)
            yield page.items
            cursor = page.next_cursor
            if cursor is None:
                return

    def put(self, key_id: str, owner_id: str = "ann", **more: Any) -> ApiKey:
        record = ApiKey(key_id, "name", owner_id, "digest", None, **{"created_at": NOW, **more})
        self.world.store.put(record)
        return record


@pytest.fixture
def office() -> Office:
    return Office(BLOCKING)


# Who may: a person with the permission, whose login is young enough.


@pytest.mark.parametrize(
    ("caller", "error"),
    [
        ({"kind": CredentialKind.API_KEY}, InteractiveRequired),
        ({"kind": CredentialKind.TOKEN}, InteractiveRequired),
        ({"permissions": frozenset({"keys:read"})}, PermissionDenied),
        ({"permissions": frozenset[str]()}, PermissionDenied),
        ({"authenticated_at": NOW - DAY - SECOND}, LoginTooOld),
        ({"authenticated_at": None}, LoginTooOld),
    ],
    ids=repr,
)
@pytest.mark.parametrize("method", ["list_keys", "revoke_key", "revoke_keys"])
def test_only_an_administrators_login_may(
    office: Office, method: str, caller: dict[str, Any], error: type[Exception]
) -> None:
    created = office.world.create()
    office.world.forget_calls()
    args = {"list_keys": (), "revoke_key": (created.record.id,), "revoke_keys": (["\x00"],)}
    with pytest.raises(error):
        office.call(method, *args[method], by=replace(office.world.login("root"), **caller))
    assert (office.world.store.calls, office.world.events) == ([], [])


def test_there_is_no_operation_that_makes_extends_or_shows_a_key(office: Office) -> None:
    found = inspect.getmembers(office.keys, inspect.ismethod)
    assert {name for name, _ in found if name[0] != "_"} == {
        "list_keys", "revoke_key", "revoke_keys",
    }  # fmt: skip


# At start


def test_what_is_no_permission_is_refused_at_start() -> None:
    authenticator = Authenticator[None](MemoryKeyStore(), find_owner=lambda _: None)
    with pytest.raises(ConfigurationError, match="is not a permission"):
        authenticator.admin_keys("keys admin")


# Listing


def test_a_page_has_fifty_keys_unless_the_caller_says_otherwise(office: Office) -> None:
    for number in range(51):
        office.put(f"k{number:02}")
    assert len(office.call("list_keys").items) == 50


def test_keys_are_found_by_owner_state_age_last_use_and_expiry(office: Office) -> None:
    office.put("new")
    office.put("old", "bob", created_at=NOW - 9 * DAY, last_used_at=NOW - 8 * DAY)
    office.put("used", created_at=NOW - 9 * DAY, last_used_at=NOW - DAY)
    office.put("ending", created_at=NOW - DAY, expires_at=NOW + DAY)
    office.put("ended", created_at=NOW - DAY, expires_at=NOW)
    office.put("revoked", created_at=NOW - DAY, revoked_at=NOW, labels=frozenset({"env:prod", "b"}))
    office.put("gone", revoked_at=NOW, deleted_at=NOW)
    everything = {"new", "old", "used", "ending", "ended", "revoked"}
    assert office.ids() == everything
    assert office.ids(owner_id="bob") == {"old"}
    assert office.ids(owner_id="nobody") == set()
    assert office.ids(status=KeyStatus.ACTIVE) == {"new", "old", "used", "ending"}
    assert office.ids(status=KeyStatus.EXPIRED) == {"ended"}
    assert office.ids(owner_id="ann", status=KeyStatus.REVOKED) == {"revoked"}
    for owner_id in ("ann", None):
        assert office.ids(owner_id=owner_id, label="env:prod") == {"revoked"}
        assert office.ids(owner_id=owner_id, label="prod") == set()
    assert office.ids(created_before=NOW) == everything - {"new"}
    assert office.ids(created_before=NOW - DAY) == {"old", "used"}
    assert office.ids(unused_since=NOW - DAY) == everything - {"used"}
    assert office.ids(unused_since=NOW - DAY + SECOND) == everything
    assert office.ids(expires_before=NOW + DAY) == {"ended"}
    assert office.ids(expires_before=NOW + DAY + SECOND) == {"ending", "ended"}
    assert office.ids(status=KeyStatus.ACTIVE, unused_since=NOW, created_before=NOW - DAY) == {
        "old",
        "used",
    }


@given(
    st.lists(st.tuples(st.sampled_from(["ann", "bob", "ß"]), st.integers(0, 3)), max_size=20),
    st.integers(1, 7),
    st.integers(1, 5),
    st.booleans(),
)
def test_the_pages_hold_every_key_that_matches_once(
    keys: list[tuple[str, int]], limit: int, batch: int, of_one: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # Small, so that pages end in the middle of a batch, at its end, and at the bound.
        patch.setattr(administration, "BATCH", batch)
        patch.setattr(administration, "MAX_READS", 2)
        office = Office(BLOCKING)
        for number, (owner_id, age) in enumerate(keys):
            ends = NOW if number % 3 else None
            office.put(f"k{number}", owner_id, created_at=NOW - age * DAY, expires_at=ends)
        wanted = KeyFilter(owner_id="ann" if of_one else None, status=KeyStatus.EXPIRED)
        pages = list(office.pages(wanted, limit))
    found = [record for page in pages for record in page]
    assert all(len(page) <= limit for page in pages)
    expected = {f"k{n}" for n, (o, _) in enumerate(keys) if n % 3 and (o == "ann" or not of_one)}
    assert {record.id for record in found} == expected
    positions = [(record.owner_id, record.created_at, record.id) for record in found]
    assert positions == sorted(set(positions), reverse=True)


@pytest.mark.parametrize(
    ("owner_id", "wanted", "read"),
    [
        ("a", KeyFilter(status=KeyStatus.REVOKED), "list_all"),
        # The store leaves nothing out of this owner's keys.
        ("ann", KeyFilter(owner_id="ann", created_before=NOW), "list"),
    ],
    ids=["all owners", "one owner"],
)
def test_a_page_reads_a_bounded_number_of_records(
    make_world: MakeWorld,
    monkeypatch: pytest.MonkeyPatch,
    owner_id: str,
    wanted: KeyFilter,
    read: str,
) -> None:
    office = Office(make_world)
    monkeypatch.setattr(administration, "BATCH", 3)
    monkeypatch.setattr(administration, "MAX_READS", 4)
    for number in range(20):
        office.put(f"k{number:02}")
    office.put("wanted", owner_id, created_at=NOW - DAY, revoked_at=NOW)
    office.world.forget_calls()
    page = office.call("list_keys", wanted)
    assert (page.items, office.world.store.calls) == ((), [read] * 4)
    assert [key.id for key in office.call("list_keys", wanted, cursor=page.next_cursor).items] == [
        "wanted"
    ]


@pytest.mark.parametrize(
    ("wanted", "options", "field"),
    [
        ({}, {"limit": 0}, "limit"),
        ({}, {"limit": 201}, "limit"),
        ({"owner_id": ""}, {}, "owner_id"),
        ({"owner_id": "\x00"}, {}, "owner_id"),
        ({"owner_id": "x" * 256}, {}, "owner_id"),
        ({"label": "A"}, {}, "label"),
        ({"label": ""}, {}, "label"),
        ({"created_before": datetime(2026, 1, 1)}, {}, "created_before"),  # noqa: DTZ001
        ({"unused_since": datetime(2026, 1, 1)}, {}, "unused_since"),  # noqa: DTZ001
        ({"expires_before": datetime(2026, 1, 1)}, {}, "expires_before"),  # noqa: DTZ001
        *(({}, {"cursor": cursor}, "cursor") for cursor in NO_CURSOR),
    ],
)
def test_what_cannot_be_listed_is_refused(
    office: Office, wanted: dict[str, Any], options: dict[str, Any], field: str
) -> None:
    with pytest.raises(InputInvalid) as refused:
        office.call("list_keys", KeyFilter(**wanted), **options)
    assert [error.field for error in refused.value.errors] == [field]
    assert office.world.store.calls == []


# The base64 of the second one ends with a letter that no padding is.
@pytest.mark.parametrize("owner_id", ["x" * 255, "aaW", "ü"])
def test_a_cursor_holds_any_owner(make_world: MakeWorld, owner_id: str) -> None:
    office = Office(make_world)
    for number in range(2):
        office.put(f"k{number}", owner_id)
    for wanted in (KeyFilter(), KeyFilter(owner_id=owner_id)):
        first = office.call("list_keys", wanted, limit=1)
        rest = office.call("list_keys", wanted, cursor=first.next_cursor)
        assert [key.id for key in (*first.items, *rest.items)] == ["k1", "k0"]


# Revoking


def test_a_revoked_key_of_any_owner_is_refused_at_once(make_world: MakeWorld) -> None:
    office = Office(make_world)
    world, root = office.world, office.world.login("root")
    created: CreatedKey = world.create("bob")
    world.events.clear()
    record = office.call("revoke_key", created.record.id)
    assert record.revoked_at == NOW
    assert world.events == [KeyEvent("revoked", NOW, record, root, cause="administrator")]
    with refused_with("key_revoked"):
        world.enter(created.value.reveal())


def test_many_keys_are_revoked_for_one_wait(make_world: MakeWorld) -> None:
    office = Office(make_world, lease=SECOND)
    keys = [office.world.create(owner_id) for owner_id in ("ann", "bob", "ann")]
    for key in keys:
        office.world.enter(key.value.reveal())
    ids = [key.record.id for key in keys]
    office.world.clock.slept.clear()
    revoked = office.call("revoke_keys", [ids[0], "unknown", *ids[1:], ids[0], "\x00"])
    assert len(office.world.clock.slept) == 1
    assert office.world.clock.slept[0] >= 1
    assert [None if key is None else key.id for key in revoked] == [
        ids[0], None, ids[1], ids[2], ids[0], None,
    ]  # fmt: skip
    assert all(office.world.store.get(key_id).revoked_at == NOW for key_id in ids)


def test_the_hook_of_the_store_gets_the_event_of_each_key(office: Office) -> None:
    changes: list[KeyEvent] = []
    office.world.store.inner = MemoryKeyStore(on_change=lambda _, event: changes.append(event))
    keys = [office.world.create(owner_id).record.id for owner_id in ("ann", "bob")]
    changes.clear()
    office.world.events.clear()
    records = office.call("revoke_keys", keys)
    root, cause = office.world.login("root"), "administrator"
    assert changes == [KeyEvent("revoked", NOW, record, root, cause=cause) for record in records]
    assert office.world.events == changes


def test_a_malformed_id_is_not_looked_up(office: Office) -> None:
    assert (
        office.call("revoke_keys", ["\x00"] * administration.MAX_REVOKED)
        == (None,) * administration.MAX_REVOKED
    )
    assert office.world.store.calls == []


def test_revoking_again_keeps_the_first_moment(office: Office) -> None:
    created = office.world.create()
    first = office.call("revoke_key", created.record.id)
    office.world.clock.advance(DAY)
    assert office.call("revoke_key", created.record.id) == first


@pytest.mark.parametrize("key_id", ["unknown", "\x00", "", "deleted", "k" * 1000])
def test_what_is_no_key_is_not_found(office: Office, key_id: str) -> None:
    office.put("deleted", revoked_at=NOW, deleted_at=NOW)
    with pytest.raises(KeyNotFound):
        office.call("revoke_key", key_id)
    assert office.world.events == []


@pytest.mark.parametrize("ids", [[], ["k"] * 201, "k"], ids=["none", "many", "text"])
def test_a_list_of_ids_has_an_end(office: Office, ids: Any) -> None:
    with pytest.raises(InputInvalid) as refused:
        office.call("revoke_keys", ids)
    assert refused.value.errors[0].field == "ids"
    assert office.world.store.calls == []


def test_a_store_that_fails_is_unavailable(office: Office) -> None:
    created = office.world.create()
    office.world.store.fail(OSError("down"))
    for method, args in (("list_keys", ()), ("revoke_key", (created.record.id,))):
        with pytest.raises(StoreUnavailable):
            office.call(method, *args)
