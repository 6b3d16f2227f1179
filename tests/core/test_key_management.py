"""Creating, listing, revoking, rotating, expiring and deleting keys: who may, what is accepted, what is stored."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import case, refused_with
from tests.core.support import MICROSECOND, NOW, SECOND, MakeWorld, World, b64

from msk_auth import ApiKey, CredentialKind, KeyLimits, KeyStatus, Owner
from msk_auth.errors import (
    ConfigurationError,
    InputInvalid,
    InteractiveRequired,
    KeyLimitReached,
    KeyNotActive,
    KeyNotFound,
    Problem,
)
from msk_auth.events import KeyEvent

DAY = timedelta(days=1)


def wrong_fields(
    world: World, method: str, *args: Any, **options: Any
) -> tuple[tuple[str, str], ...]:
    """The errors about input that must be refused before anything is written."""
    world.forget_calls()
    with pytest.raises(InputInvalid) as refused:
        world.call(method, world.login(), *args, **options)
    assert not {"insert", "revoke", "delete", "expire", "rotate", "update"} & set(world.store.calls)
    assert world.events == []
    return refused.value.errors


def wrong_field(world: World, method: str, *args: Any, **options: Any) -> str:
    (error,) = wrong_fields(world, method, *args, **options)
    return error.field


# Guarantee G3 and the specification, section 5, rule 4: no key makes, ends or replaces keys.

MANAGE: dict[str, Callable[[str], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "create_key": lambda _: ((), {"name": "more"}),
    "rotate_key": lambda key_id: ((key_id,), {}),
    "revoke_key": lambda key_id: ((key_id,), {}),
    "delete_key": lambda key_id: ((key_id,), {}),
    "expire_key": lambda key_id: ((key_id,), {"at": NOW + DAY}),
    "update_key": lambda key_id: ((key_id,), {"name": "edited"}),
}
READ: dict[str, Callable[[str], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "get_key": lambda key_id: ((key_id,), {}),
    "list_keys": lambda _: ((), {}),
}
OPERATIONS = MANAGE | READ
OF_ONE_KEY = [name for name in OPERATIONS if name not in {"create_key", "list_keys"}]


# A key cannot probe with names, ids and times: the refusal comes before any look at them.
WRONG: dict[str, dict[str, Any]] = {
    "create_key": {"name": "", "scopes": "x", "lifetime": timedelta(0)},
    "rotate_key": {"key_id": "\x00", "overlap": -DAY},
    "revoke_key": {"key_id": "\x00"},
    "delete_key": {"key_id": "\x00"},
    "expire_key": {"key_id": "\x00", "at": NOW.replace(tzinfo=None)},
    "update_key": {"key_id": "\x00", "name": "", "labels": "x"},
}


@pytest.mark.parametrize("method", MANAGE)
def test_only_a_login_manages_keys(make_world: MakeWorld, method: str) -> None:
    world = make_world()
    created = world.create()
    world.forget_calls()
    kinds: list[Any] = [CredentialKind.API_KEY, CredentialKind.TOKEN, "interactive", None]
    inputs = MANAGE[method](created.record.id), ((), WRONG[method])
    for kind, (args, options) in itertools.product(kinds, inputs):
        with case(kind, options), pytest.raises(InteractiveRequired) as refused:
            world.call(method, replace(world.login(), kind=kind), *args, **options)
        assert refused.value.status == 403
        assert refused.value.challenge() == {"error": "insufficient_user_authentication"}
        assert (world.store.calls, world.events) == ([], [])
    assert world.store.get(created.record.id) == created.record


def test_every_credential_may_look_at_its_owners_keys(world: World) -> None:
    created = world.create()
    for kind in CredentialKind:
        caller = replace(world.login(), kind=kind)
        assert world.call("get_key", caller, created.record.id) == created.record
        assert world.call("list_keys", caller).items == (created.record,)


def test_a_login_of_any_age_manages_keys(world: World) -> None:
    caller = world.login(age=timedelta(days=999))
    assert world.call("create_key", caller, name="ci").record.name == "ci"


# Other owners' keys, and ids that are none: one answer for both, and no look-up for the latter.

NO_ID = ["", " ", "a b", "%", "_" * 12, "*", "A" * 65, "A" * 1_000_000, "A\x00", "A\n", "é", "٣", "\ud800", "../x", "' OR 1=1 --", "msk_AAAAAAAAAAAA_x"]  # fmt: skip


@pytest.mark.parametrize("method", OF_ONE_KEY)
def test_the_key_of_another_owner_is_answered_like_an_unknown_one(
    world: World, method: str
) -> None:
    created = world.create("ann")
    world.forget_calls()
    answers = []
    for key_id in (created.record.id, "Z" * 12, "Z"):
        args, options = OPERATIONS[method](key_id)
        with pytest.raises(KeyNotFound) as refused:
            world.call(method, world.login("bob"), *args, **options)
        answers.append((refused.value.status, refused.value.detail, refused.value.challenge()))
    assert answers == [(404, "You have no API key with this id.", None)] * 3
    assert world.events == []
    assert world.store.get(created.record.id) == created.record


def test_what_cannot_be_an_id_is_not_looked_for(world: World) -> None:
    for method, key_id in itertools.product(OF_ONE_KEY, NO_ID):
        args, options = OPERATIONS[method](key_id)
        with case(method, key_id[:99]), pytest.raises(KeyNotFound):
            world.call(method, world.login(), *args, **options)
    assert world.store.calls == []


def test_a_deleted_key_is_not_there_any_more(world: World) -> None:
    created = world.create()
    world.call("delete_key", world.login(), created.record.id)
    for method in OF_ONE_KEY:
        args, options = OPERATIONS[method](created.record.id)
        with case(method), pytest.raises(KeyNotFound):
            world.call(method, world.login(), *args, **options)


# Creating.


def test_a_created_key_is_stored_as_a_digest_and_shown_once(world: World) -> None:
    created = world.call(
        "create_key", world.login(), name="ci", scopes=["tasks:read"], lifetime=30 * DAY
    )
    record = created.record
    assert record == ApiKey(
        id=created.value.id,
        name="ci",
        owner_id="ann",
        digest=world.auth.rules.hasher.digest(created.value.reveal()),
        scopes=frozenset({"tasks:read"}),
        created_at=NOW,
        expires_at=NOW + 30 * DAY,
        announced_days=30,
    )
    assert world.store.get(record.id) == record
    assert world.events == [KeyEvent("created", NOW, record, world.login())]
    secret = created.value.reveal()[17:]
    assert secret not in f"{created!r} {record!r} {world.events!r} {vars(world.store.inner)!r}"


@pytest.mark.parametrize(
    ("given_name", "stored"),
    [
        ("x", "x"),
        ("  build server  ", "build server"),
        ("\t\n ci \u3000", "ci"),
        ("Cafe\u0301", "Café"),
        ("\u1112\u1161\u11ab", "한"),
        ("x" * 100, "x" * 100),
        ("e\u0301" * 100, "é" * 100),
        ("\u1f82" * 100, "\u1f82" * 100),
        ("\u03b1\u0313\u0300\u0345" * 100, "\u1f82" * 100),
        ("名前 Ü ß 🚀", "名前 Ü ß 🚀"),
        ("❤\ufe0f", "❤\ufe0f"),
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),
        ("'; DROP TABLE keys; --", "'; DROP TABLE keys; --"),
        ("null", "null"),
    ],
)
def test_a_name_is_normalised_and_otherwise_kept(
    world: World, given_name: str, stored: str
) -> None:
    assert world.create(name=given_name).record.name == stored


UNSEEN_OR_TOO_LONG = [
    "",
    " ",
    "\t\r\n",
    "\u3000\u2003",
    "x" * 101,
    "e\u0301" * 101,
    "x" * 100 + " y",
    "x" + " " * 1000 + "y",
    "a\x00b",
    "a\nb",
    "a\tb",
    "a\x7fb",
    "a\u0085b",
    "a\u00a0b",  # NO-BREAK SPACE
    "\u200b",  # ZERO WIDTH SPACE
    "ci\u200b",
    "\ufeffci",
    "\u202eic",  # RIGHT-TO-LEFT OVERRIDE
    "a\u2066b",  # LEFT-TO-RIGHT ISOLATE
    "a\u2028b",
    "a\u00adb",  # SOFT HYPHEN
    "\ud800",
    "a\udfffb",
    "\ue000",  # private use
    "\U000e0041",  # tag characters
    "\uffff",
    "\u3164",  # HANGUL FILLER
    "\u2800",  # BRAILLE PATTERN BLANK
    "a\u115fb",
    "a\u034fb",
]


def test_a_name_that_cannot_be_seen_or_is_too_long_is_refused(world: World) -> None:
    for name in UNSEEN_OR_TOO_LONG:
        with case(name):
            assert wrong_field(world, "create_key", name=name) == "name"


def test_a_hostile_name_is_refused_in_linear_time(world: World) -> None:
    # Normalising runs of combining characters takes quadratic time: seconds for these.
    start = time.thread_time()
    assert wrong_field(world, "create_key", name="a" + "\u0301\u0316" * 200_000) == "name"
    assert time.thread_time() - start < 0.5


@given(st.text())
def test_any_text_is_refused_or_a_printable_name(name: str) -> None:
    world = World("sync")
    try:
        stored = world.create(name=name).record.name
    except InputInvalid as problem:
        refused = [error.field for error in problem.errors]
    else:
        refused = []
    if refused:
        assert refused == ["name"]
        assert world.store.calls == []
        return
    assert 1 <= len(stored) <= 100
    assert stored.isprintable()
    assert stored == stored.strip()


@pytest.mark.parametrize(
    ("scopes", "stored"),
    [
        (None, None),
        ([], set()),
        (set(), set()),
        (("tasks:read", "tasks:read"), {"tasks:read"}),
        (["tasks:run", "tasks:read"], {"tasks:read", "tasks:run"}),
        ({"tasks:read": True}.keys(), {"tasks:read"}),
    ],
)
def test_scopes_are_kept_as_a_set_and_none_is_not_empty(
    world: World, scopes: Any, stored: set[str] | None
) -> None:
    assert world.create(scopes=scopes).record.scopes == stored


@pytest.mark.parametrize(
    ("scopes", "message"),
    [
        (["tasks:write"], "You do not have all of these permissions yourself: tasks:write."),
        (
            ["z", "tasks:read", "b"],
            "You do not have all of these permissions yourself: b, z.",
        ),
        ([""], "You do not have all of these permissions yourself."),
        (["\x00"], "You do not have all of these permissions yourself."),
        (["<b>", "\u202e", "x" * 101], "You do not have all of these permissions yourself: <b>."),
        (["*"], "You do not have all of these permissions yourself: *."),
        ([f"p{i}" for i in range(101)], "Choose at most 100 scopes."),
        ("tasks:read", "Give a list of scopes as texts, or null for all of yours."),
        ("", "Give a list of scopes as texts, or null for all of yours."),
    ],
)
def test_scopes_beyond_ones_own_permissions_are_refused(
    world: World, scopes: Any, message: str
) -> None:
    assert wrong_fields(world, "create_key", name="ci", scopes=scopes) == (("scopes", message),)


def test_a_hundred_scopes_are_not_too_many(world: World) -> None:
    scopes = frozenset(f"p{i}" for i in range(100))
    world.owners["ann"] = Owner("ann", scopes, "Ann")
    assert world.create(scopes=scopes).record.scopes == scopes


def days(number: float) -> timedelta:
    return timedelta(days=number)


LIFETIMES = [
    # default, maximum, asked for, the key's lifetime
    (None, None, "default", None),
    (None, None, "unlimited", None),
    (None, None, days(30), days(30)),
    (None, None, MICROSECOND, MICROSECOND),
    (None, None, days(36_500), days(36_500)),
    (days(30), None, "default", days(30)),
    (days(30), None, "unlimited", None),
    (days(30), None, days(60), days(60)),
    (None, days(90), "default", days(90)),
    (None, days(90), days(90), days(90)),
    (days(30), days(90), "default", days(30)),
    (days(30), days(90), days(90), days(90)),
    (days(90), days(30), "default", days(30)),  # the default gives way
    (None, days(40_000), "default", days(36_500)),
    (None, timedelta.max, "default", days(36_500)),
    (timedelta.max, None, "default", days(36_500)),
]


@pytest.mark.parametrize(("default", "longest", "asked", "expected"), LIFETIMES)
def test_a_requested_lifetime_is_used_within_the_limits(
    world: World,
    default: timedelta | None,
    longest: timedelta | None,
    asked: Any,
    expected: timedelta | None,
) -> None:
    world.limits = KeyLimits(default_lifetime=default, max_lifetime=longest)
    expires_at = world.create(lifetime=asked).record.expires_at
    assert expires_at == (None if expected is None else NOW + expected)


@pytest.mark.parametrize(
    ("longest", "asked", "message"),
    [
        (None, timedelta(0), "Choose more than 0 and at most 36500 days."),
        (None, -MICROSECOND, "Choose more than 0 and at most 36500 days."),
        (None, timedelta.min, "Choose more than 0 and at most 36500 days."),
        (None, days(36_500) + MICROSECOND, "Choose more than 0 and at most 36500 days."),
        (None, timedelta.max, "Choose more than 0 and at most 36500 days."),
        (days(90), days(90) + MICROSECOND, "Choose more than 0 and at most 90 days."),
        (days(0.5), days(1), "Choose more than 0 and at most 0.5 days."),
        (days(90), "unlimited", "Keys must expire here, after 90 days at most."),
        (days(0), "default", "Choose more than 0 and at most 0 days."),
    ],
)
def test_a_lifetime_beyond_the_limits_is_refused(
    world: World, longest: timedelta | None, asked: Any, message: str
) -> None:
    world.limits = KeyLimits(max_lifetime=longest)
    assert wrong_fields(world, "create_key", name="ci", lifetime=asked) == (
        ("expires_in_days", message),
    )


@pytest.mark.parametrize("given", [30, None, "forever"])
def test_a_lifetime_of_another_kind_is_a_mistake_of_the_application(
    world: World, given: Any
) -> None:
    message = f"lifetime={given!r} does not work. Write a timedelta"
    with pytest.raises(ConfigurationError, match=message):
        world.create(lifetime=given)


def test_all_invalid_fields_are_reported_together(world: World) -> None:
    errors = wrong_fields(world, "create_key", name="", scopes=["x"], lifetime=timedelta(0))
    assert [error.field for error in errors] == ["name", "scopes", "expires_in_days"]


@pytest.mark.parametrize("limits", [KeyLimits(max_active=1), None])
def test_limits_are_a_value_or_a_function_called_for_each_key(
    make_world: MakeWorld, limits: Any
) -> None:
    world = make_world() if limits is None else make_world(key_limits=limits)
    world.limits = KeyLimits(max_active=1)
    world.create()
    world.forget_calls()
    with pytest.raises(KeyLimitReached) as refused:
        world.create()
    assert (refused.value.status, refused.value.limit) == (409, 1)
    assert world.events == []
    # The limit is each owner's.
    world.create("bob")
    for most in (2, 0):
        world.limits = KeyLimits(max_active=most)
        if limits is None and most:
            world.create()
        else:
            with pytest.raises(KeyLimitReached):
                world.create()


# Revoking, deleting, expiring.


def test_a_revoked_key_is_refused_at_once_and_permanently(make_world: MakeWorld) -> None:
    world = make_world()
    created = world.create()
    world.forget_calls()
    record = world.call("revoke_key", world.login(), created.record.id)
    assert record == replace(created.record, revoked_at=NOW)
    assert world.events == [KeyEvent("revoked", NOW, record, world.login(), cause="owner")]
    with refused_with("key_revoked"):
        world.enter(created.value.reveal())
    world.clock.advance(DAY)
    assert world.call("revoke_key", world.login(), created.record.id) == record
    world.call("expire_key", world.login(), created.record.id, at=NOW + 9 * DAY)
    with refused_with("key_revoked"):
        world.enter(created.value.reveal())


def test_a_deleted_key_is_revoked_unlisted_and_remembered(world: World) -> None:
    created = world.create()
    world.forget_calls()
    assert world.call("delete_key", world.login(), created.record.id) is None
    stored = world.store.get(created.record.id)
    assert (stored.revoked_at, stored.deleted_at) == (NOW, NOW)
    assert world.events == [KeyEvent("deleted", NOW, stored, world.login())]
    assert world.call("list_keys", world.login()).items == ()
    with refused_with("key_revoked"):
        world.enter(created.value.reveal())


def test_a_key_can_be_made_to_expire_earlier_and_never_later(world: World) -> None:
    created = world.create(lifetime=10 * DAY)
    world.forget_calls()
    sooner = world.call("expire_key", world.login(), created.record.id, at=NOW + DAY)
    assert sooner.expires_at == NOW + DAY
    assert world.events == [KeyEvent("expiry_set", NOW, sooner, world.login())]
    later = world.call("expire_key", world.login(), created.record.id, at=NOW + 20 * DAY)
    assert later.expires_at == NOW + DAY
    world.clock.advance(DAY)
    with refused_with("key_expired"):
        world.enter(created.value.reveal())


@pytest.mark.parametrize("at", [NOW, NOW - DAY])
def test_an_end_that_is_not_in_the_future_is_a_revocation(world: World, at: datetime) -> None:
    created = world.create(lifetime=10 * DAY)
    world.forget_calls()
    record = world.call("expire_key", world.login(), created.record.id, at=at)
    assert record == replace(created.record, revoked_at=NOW)
    assert world.events == [KeyEvent("revoked", NOW, record, world.login(), cause="owner")]
    assert world.call("expire_key", world.login(), created.record.id, at=at) == record


@pytest.mark.parametrize("lease", [None, timedelta(seconds=1)])
def test_an_end_that_is_now_holds_where_the_clock_is_behind(
    make_world: MakeWorld, lease: timedelta | None
) -> None:
    world = make_world(lease=lease)
    created = world.create()
    behind = make_world(store=world.store, lease=lease)
    behind.clock.advance(-3 * SECOND)
    behind.enter(created.value.reveal())
    world.call("expire_key", world.login(), created.record.id, at=world.clock.now())
    if lease is not None:
        # What the other process read before the write is used up by now.
        assert world.clock.slept[-1] >= lease.total_seconds()
        behind.clock.advance(timedelta(seconds=world.clock.slept[-1]))
    with refused_with("key_revoked"):
        behind.enter(created.value.reveal())


def test_an_end_that_has_no_time_in_utc_is_refused_wherever_the_server_stands(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = world.create()
    last = datetime.max.replace(tzinfo=timezone(-timedelta(hours=1)))
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    assert wrong_field(world, "expire_key", created.record.id, at=last) == "expires_at"
    earlier = last - timedelta(hours=1)
    expiring = world.call("expire_key", world.login(), created.record.id, at=earlier)
    monkeypatch.undo()
    time.tzset()
    assert expiring.expires_at == datetime.max.replace(tzinfo=UTC)


def test_an_end_without_a_time_zone_is_refused(world: World) -> None:
    created = world.create()
    naive = datetime(2026, 5, 2, 12, 0)  # noqa: DTZ001
    assert wrong_field(world, "expire_key", created.record.id, at=naive) == "expires_at"


# Editing.


def test_an_edit_changes_what_is_given_and_nothing_else(world: World) -> None:
    created = world.create(
        scopes=["tasks:read"], lifetime=9 * DAY, description=" For CI. ", labels=["env:prod", "a"]
    )
    record = created.record
    assert (record.description, record.labels) == ("For CI.", {"env:prod", "a"})
    world.clock.advance(SECOND)
    world.forget_calls()
    key_id = record.id
    for fields, expected in [
        ({"name": " nightly "}, {"name": "nightly"}),
        ({"description": "e\u0301"}, {"description": "\u00e9"}),
        ({"labels": iter(["b", "b"])}, {"labels": frozenset({"b"})}),
        ({"description": None, "labels": ()}, {"description": None, "labels": frozenset()}),
        ({"description": " "}, {}),
        ({"name": "x", "description": "y", "labels": {"z"}}, {"name": "x", "description": "y", "labels": frozenset("z")}),
    ]:  # fmt: skip
        record = replace(record, **expected)  # type: ignore[arg-type]
        world.events.clear()
        assert world.call("update_key", world.login(), key_id, **fields) == record
        at = NOW + SECOND
        assert world.events == [
            KeyEvent("updated", at, record, world.login(), fields=tuple(fields))
        ]
        assert world.store.get(key_id) == record
    # Nothing that a lease covers has changed.
    assert world.clock.slept == []
    assert world.enter(created.value.reveal()).permissions == {"tasks:read"}


@pytest.mark.parametrize("state", [{"revoked_at": NOW}, {"expires_at": NOW}], ids=str)
def test_a_key_that_has_ended_can_be_edited_and_stays_ended(
    world: World, state: dict[str, Any]
) -> None:
    created = world.create()
    ended = replace(created.record, **state)
    world.store.put(ended)
    edited = world.call("update_key", world.login(), ended.id, name="leaked in May")
    assert edited == replace(ended, name="leaked in May")
    with refused_with("key_revoked" if ended.revoked_at else "key_expired"):
        world.enter(created.value.reveal())


NO_LABELS: list[Any] = [
    [""], ["A"], ["env prod"], ["env,prod"], ['"a"'], ["a\\b"], ["-a"], [":a"], ["/a"], ["a" * 51], ["\u00e4"], ["\u0661"],
    ["a\n"], ["\n"], ["a", ""], [1], [None], "env:prod", [f"a{number}" for number in range(21)],
]  # fmt: skip


def test_labels_that_cannot_be_searched_by_are_refused(world: World) -> None:
    created = world.create()
    for method, args in (("create_key", ()), ("update_key", (created.record.id,))):
        for labels in NO_LABELS:
            with case(method, labels):
                assert wrong_field(world, method, *args, name="ci", labels=labels) == "labels"


@pytest.mark.parametrize("label", ["0", "a", "env:prod", "team/a.b-c_d", "a" * 50])
def test_labels_are_kept_as_they_are(world: World, label: str) -> None:
    assert world.create(labels=[label]).record.labels == {label}


def test_twenty_labels_are_not_too_many(world: World) -> None:
    labels = {f"a{number}" for number in range(20)}
    assert world.create(labels=labels).record.labels == labels


@pytest.mark.parametrize(
    "description", ["x" * 501, "a\nb", "a\x00b", "\u202ea", "\ud800", "\u3164"]
)
def test_a_description_that_cannot_be_seen_or_is_too_long_is_refused(
    world: World, description: str
) -> None:
    created = world.create(description="x" * 500)
    for method, args in (("create_key", ()), ("update_key", (created.record.id,))):
        field = wrong_field(world, method, *args, name="ci", description=description)
        assert field == "description"


def test_an_edit_of_nothing_is_refused(world: World) -> None:
    assert wrong_field(world, "update_key", world.create().record.id) == ""


def test_everything_wrong_with_an_edit_is_reported(world: World) -> None:
    errors = wrong_fields(world, "update_key", "\x00", name="", description="\x00", labels=["A"])
    assert [error.field for error in errors] == ["name", "description", "labels"]
    assert errors[2].message.startswith("A label has 1 to 50 lower-case letters")


def test_what_a_key_may_do_and_when_it_ends_cannot_be_edited(world: World) -> None:
    created = world.create()
    for field in ("scopes", "expires_at", "lifetime", "owner_id", "digest", "revoked_at"):
        with case(field), pytest.raises(TypeError, match=f"no field '{field}' to set"):
            world.call("update_key", world.login(), created.record.id, name="a", **{field: None})
    assert world.store.get(created.record.id) == created.record


def test_a_label_that_no_key_has_is_refused(world: World) -> None:
    for label in ("", "A", "%", "a" * 51, "\x00"):
        (error,) = wrong_fields(world, "list_keys", label=label)
        assert error.field == "label"
        assert error.message.startswith("A label has 1 to 50 lower-case letters")


# Rotating.


def test_a_successor_takes_over_at_once_by_default(world: World) -> None:
    created = world.create(
        scopes=["tasks:read"],
        lifetime=10 * DAY,
        description="For CI.",
        labels=["a"],
        resources=["task:42"],
    )
    edited = world.call("update_key", world.login(), created.record.id, name="nightly")
    world.clock.advance(DAY)
    world.forget_calls()
    caller = world.login()
    successor = world.call("rotate_key", caller, created.record.id)
    now = world.clock.moment
    assert replace(successor.record, id="", digest="", created_at=NOW, expires_at=None) == replace(
        edited, id="", digest="", expires_at=None
    )
    assert (successor.record.created_at, successor.record.expires_at) == (now, now + 10 * DAY)
    predecessor = world.store.get(created.record.id)
    assert (predecessor.revoked_at, predecessor.replaced_by) == (now, successor.record.id)
    assert world.events == [
        KeyEvent("rotated", now, predecessor, caller, successor=successor.record)
    ]
    assert world.enter(successor.value.reveal()).key_id == successor.record.id
    with refused_with("key_revoked"):
        world.enter(created.value.reveal())


def test_with_an_overlap_both_keys_work_until_it_ends(world: World) -> None:
    created = world.create()
    successor = world.call("rotate_key", world.login(), created.record.id, overlap=DAY)
    assert world.store.get(created.record.id).expires_at == NOW + DAY
    world.clock.moment = NOW + DAY - MICROSECOND
    assert world.enter(created.value.reveal()).key_id == created.record.id
    assert world.enter(successor.value.reveal()).key_id == successor.record.id
    world.clock.moment = NOW + DAY
    with refused_with("key_expired"):
        world.enter(created.value.reveal())


def test_an_overlap_ends_at_the_latest_when_the_predecessor_expires(world: World) -> None:
    created = world.create(lifetime=DAY)
    world.call("rotate_key", world.login(), created.record.id, overlap=30 * DAY)
    assert world.store.get(created.record.id).expires_at == NOW + DAY


@pytest.mark.parametrize(
    "overlap", [-MICROSECOND, timedelta.min, 90 * DAY + MICROSECOND, timedelta.max]
)
def test_an_overlap_out_of_range_is_refused(world: World, overlap: timedelta) -> None:
    created = world.create()
    (error,) = wrong_fields(world, "rotate_key", created.record.id, overlap=overlap)
    assert error == ("overlap_seconds", "Choose between 0 and 7776000 seconds.")


def test_an_overlap_within_the_range_is_taken(world: World) -> None:
    for overlap in (timedelta(0), SECOND, 90 * DAY):
        world.call("rotate_key", world.login(), world.create().record.id, overlap=overlap)


SUCCESSORS = [
    # the predecessor's lifetime, the maximum now, the successor's lifetime
    (None, None, None),
    (10 * DAY, None, 10 * DAY),
    (10 * DAY, 5 * DAY, 5 * DAY),
    (10 * DAY, 20 * DAY, 10 * DAY),
    (None, 5 * DAY, 5 * DAY),
    (None, timedelta.max, 36_500 * DAY),
]


@pytest.mark.parametrize(("lived", "longest", "expected"), SUCCESSORS)
def test_a_successor_lives_as_long_as_its_predecessor_was_meant_to(
    world: World, lived: timedelta | None, longest: timedelta | None, expected: timedelta | None
) -> None:
    created = world.create(lifetime="unlimited" if lived is None else lived)
    world.limits = KeyLimits(max_lifetime=longest)
    successor = world.call("rotate_key", world.login(), created.record.id)
    assert successor.record.expires_at == (None if expected is None else NOW + expected)


def test_a_key_imported_with_an_end_far_away_can_be_rotated(world: World) -> None:
    created = world.create()
    world.store.put(replace(created.record, expires_at=NOW.replace(year=9999)))
    successor = world.call("rotate_key", world.login(), created.record.id)
    assert successor.record.expires_at == NOW + 36_500 * DAY


@pytest.mark.parametrize(
    "changes",
    [{"revoked_at": NOW}, {"expires_at": NOW}, {"replaced_by": "B" * 12}],
    ids=["revoked", "expired", "rotated"],
)
def test_only_an_active_key_is_rotated_and_only_once(world: World, changes: dict[str, Any]) -> None:
    created = world.create()
    world.store.put(replace(created.record, **changes))
    world.forget_calls()
    with pytest.raises(KeyNotActive) as refused:
        world.call("rotate_key", world.login(), created.record.id)
    assert refused.value.status == 409
    assert (world.store.calls, world.events) == (["find"], [])


def test_two_rotations_at_once_make_one_successor(world: World) -> None:
    # The second one read the record before the first one wrote: the store has the last word.
    created = world.create()
    world.call("rotate_key", world.login(), created.record.id)
    world.store.answers["find"] = created.record
    with pytest.raises(KeyNotActive):
        world.call("rotate_key", world.login(), created.record.id)


def test_a_key_that_vanishes_while_it_is_rotated_is_not_found(world: World) -> None:
    created = world.create()
    world.store.answers["rotate"] = None
    world.forget_calls()
    with pytest.raises(KeyNotFound):
        world.call("rotate_key", world.login(), created.record.id)
    assert world.events == []


def test_rotation_counts_towards_the_limit_while_both_keys_are_active(world: World) -> None:
    world.limits = KeyLimits(max_active=1)
    created = world.create()
    with pytest.raises(KeyLimitReached):
        world.call("rotate_key", world.login(), created.record.id, overlap=SECOND)
    assert world.store.get(created.record.id) == created.record
    world.call("rotate_key", world.login(), created.record.id)


def test_rotation_grants_nothing_new(world: World) -> None:
    created = world.create(scopes=["tasks:read"])
    world.owners["ann"] = Owner("ann", frozenset({"admin:config"}), "Ann")
    successor = world.call("rotate_key", world.login(), created.record.id)
    assert successor.record.scopes == {"tasks:read"}
    assert world.enter(successor.value.reveal()).permissions == frozenset()


# Listing.


@pytest.mark.parametrize(("keys", "more"), [(0, False), (1, False), (2, False), (3, True)])
def test_there_is_a_next_page_only_where_something_is_left(
    world: World, keys: int, more: bool
) -> None:
    for _ in range(keys):
        world.clock.advance(SECOND)
        world.create()
    page = world.call("list_keys", world.login(), limit=2)
    assert len(page.items) == min(keys, 2)
    assert (page.next_cursor is not None) is more


@pytest.mark.parametrize("limit", [0, -1, 201, 10**9])
def test_a_page_size_out_of_range_is_refused(world: World, limit: int) -> None:
    (error,) = wrong_fields(world, "list_keys", limit=limit)
    assert error == ("limit", "Choose between 1 and 200.")
    assert world.store.calls == []


def test_the_store_filters_and_reads_one_item_more_than_the_page(world: World) -> None:
    record = world.create(labels=["a"]).record
    wanted: dict[str, Any]
    for most, wanted in (
        (50, {}),
        (1, {"limit": 1}),
        (200, {"limit": 200, "status": KeyStatus.ACTIVE, "label": "a"}),
    ):
        assert world.call("list_keys", world.login(), **wanted).items == (record,)
        ((query,), _) = world.store.arguments[-1]
        assert (query.owner_id, query.limit, query.now) == ("ann", most + 1, NOW)
        assert (query.after, query.status) == (None, wanted.get("status"))
        assert query.label == wanted.get("label")


@pytest.mark.parametrize("key_id", ["W", "aW", "aaW", "x" * 64, "_-"])
def test_a_page_goes_on_at_the_microsecond_and_the_id(world: World, key_id: str) -> None:
    record = world.create().record
    for created_at in (NOW + MICROSECOND, NOW, NOW - MICROSECOND):
        world.store.put(
            replace(record, id=f"{key_id}{created_at.microsecond}"[-64:], created_at=created_at)
        )
    # Before the epoch. Two at one moment: a cursor that lost the end of its id would skip the second one.
    landing = datetime(1969, 7, 20, 20, 17, 40, 1, UTC)
    world.store.put(replace(record, id=key_id, created_at=landing))
    world.store.put(replace(record, id=f"{key_id[:-1]}A", created_at=landing))
    seen: set[str] = set()
    cursor = None
    for _ in range(6):
        page = world.call("list_keys", world.login(), cursor=cursor, limit=1)
        seen |= {each.id for each in page.items}
        cursor = page.next_cursor
        # It stands in a query as it is.
        assert cursor is None or re.fullmatch(r"[A-Za-z0-9_-]+", cursor)
    assert (len(seen), cursor) == (6, None)


# Encoded in base64: what is no position.
NO_POSITIONS = [
    b"", b".", b"1", b"1.", b".a", b"1.a.b", b"01.a", b"-0.a", b"+1.a", b"1e3.a", b"1.5.a", b" 1.a", b"1 .a", b"1.a ",
    b"1.a\n", b"1.a\x00", b"1.%", b"1.a'; DROP TABLE keys; --", b"1." + b"a" * 65, "١.a".encode(), b"\xff.a", "1.é".encode(),
    # beyond the year 9999
    *(sign + b"9" * digits + b".a" for sign in (b"", b"-") for digits in (18, 19, 5000)),
]  # fmt: skip
NO_CURSORS = ["", "=", "====", "A", "null", "0", "é", "\ud800", "a b", "MS5h\n", "MS5h\x00", "../etc", "%", "A" * 1_000_000]  # fmt: skip


def test_what_is_no_cursor_is_refused_without_touching_the_store(world: World) -> None:
    for cursor in (*map(b64, NO_POSITIONS), *NO_CURSORS):
        with case(cursor[:99]):
            assert wrong_field(world, "list_keys", cursor=cursor) == "cursor"
            assert world.store.calls == []


@given(st.text() | st.binary().map(b64))
def test_any_text_is_refused_or_a_position(cursor: str) -> None:
    world = World("sync")
    with suppress(InputInvalid):
        assert world.call("list_keys", world.login(), cursor=cursor).items == ()


# A change that ends access waits for the leases of other processes; one that grants access does not.


@pytest.mark.parametrize("method", OPERATIONS)
def test_a_store_that_fails_is_unavailable_and_nothing_is_reported(
    make_world: MakeWorld, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world()
    created = world.create()
    world.forget_calls()
    world.store.fail(ConnectionError("the database is gone"))
    args, options = OPERATIONS[method](created.record.id)
    with pytest.raises(Problem) as refused:
        world.call(method, world.login(), *args, **options)
    assert (refused.value.status, refused.value.retry_after) == (503, 5)
    assert "database" not in refused.value.detail
    assert isinstance(refused.value.__cause__, ConnectionError)
    assert world.events == []
    assert "the database is gone" in caplog.text
