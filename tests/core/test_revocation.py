"""Revoking keys without a login: who can, what others learn, and that the revocation holds once it is answered."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.cases import refused_with
from tests.contract.world import checksum
from tests.core.support import NOW, SECOND, MakeWorld, World

from msk_auth import ApiKey, KeyFormat
from msk_auth.errors import StoreUnavailable
from msk_auth.events import KeyEvent, LeakedKey, LeakLocation

LEASE = timedelta(milliseconds=250)
PLACE = LeakLocation("github", "commit", "https://example.com/a/b/blob/main/.env")


def test_a_client_that_presents_a_key_can_revoke_it(world: World) -> None:
    created = world.create()
    world.forget_calls()
    world.clock.advance(SECOND)
    record: ApiKey = world.call("revoke_presented_key", created.value.reveal())
    assert record.revoked_at == NOW + SECOND
    assert record == world.store.get(created.record.id)
    # There is no login, and no owner was looked up.
    assert world.asked_owners == []
    assert world.events == [
        KeyEvent("revoked", NOW + SECOND, record, cause="possession"),
    ]
    with refused_with("key_revoked"):
        world.enter(created.value.reveal())


def test_revoking_a_key_again_changes_nothing(world: World) -> None:
    key = world.create().value.reveal()
    first = world.call("revoke_presented_key", key)
    world.clock.advance(SECOND)
    assert world.call("revoke_presented_key", key) == first
    assert first.revoked_at == NOW


@pytest.mark.parametrize("end", ["revoke_key", "delete_key"])
def test_a_key_that_its_owner_revoked_or_deleted_stays_so(world: World, end: str) -> None:
    created = world.create()
    world.call(end, world.login(), created.record.id)
    world.clock.advance(SECOND)
    record = world.call("revoke_presented_key", created.value.reveal())
    assert (record.id, record.revoked_at) == (created.record.id, NOW)


@pytest.mark.parametrize("way", [0, 1])
def test_a_key_that_is_deleted_meanwhile_is_answered_as_it_was_found(
    world: World, way: int
) -> None:
    created = world.create()
    world.forget_calls()
    world.store.answers["revoke"] = None
    method, arguments = ways(created.value.reveal())[way]
    assert world.call(method, *arguments) == (created.record, (created.record,))[way]
    assert [event.record for event in world.events] == [created.record]


def test_an_expired_key_and_that_of_a_disabled_owner_can_be_revoked(world: World) -> None:
    created = world.create(lifetime=SECOND)
    world.clock.advance(2 * SECOND)
    world.owners.clear()
    assert world.call("revoke_presented_key", created.value.reveal()).revoked_at == NOW + 2 * SECOND


def wrong_secret(key: str) -> str:
    """The id of one key with the secret of another, as a well-formed key."""
    body = key[:17] + KeyFormat().generate().reveal()[17:-6]
    return body + checksum(body)


def test_without_the_secret_nothing_changes_and_nothing_is_revealed(world: World) -> None:
    """That both take the same steps is in `test_authentication.py`."""
    created = world.create()
    learnt = []
    for key in (KeyFormat().generate().reveal(), wrong_secret(created.value.reveal())):
        world.forget_calls()
        answer = world.call("revoke_presented_key", key)
        learnt.append((answer, world.store.calls.copy(), world.events.copy()))
    assert learnt == [(None, ["find"], [])] * 2
    assert world.store.get(created.record.id) == created.record


@pytest.mark.parametrize(
    "wrong", ["", "msk_", "x", "\x00", "a.b.c", "msk_AAAAAAAAAAAA_", "cut", "typo"]
)
def test_a_malformed_key_is_refused_without_a_look_up(world: World, wrong: str) -> None:
    key = world.create().value.reveal()
    world.forget_calls()
    shown = {"cut": key[:-1], "typo": key[:-6] + "000000"}.get(wrong, wrong)
    with refused_with("key_malformed"):
        world.call("revoke_presented_key", shown)
    assert (world.store.calls, world.events) == ([], [])


@pytest.mark.parametrize("method", ["find", "revoke"])
def test_a_failing_store_is_not_reported_as_success(world: World, method: str) -> None:
    """Guarantee G5: a caller must be able to rely on the answer that a key is revoked."""
    key = world.create().value.reveal()
    world.forget_calls()
    world.store.fails[method] = ConnectionError("gone")
    with pytest.raises(StoreUnavailable):
        world.call("revoke_presented_key", key)
    with pytest.raises(StoreUnavailable):
        world.call("revoke_leaked", [LeakedKey(key, PLACE)])
    assert world.events == []


def ways(key: str) -> list[tuple[str, tuple[Any, ...]]]:
    return [("revoke_presented_key", (key,)), ("revoke_leaked", ([LeakedKey(key, PLACE)],))]


@pytest.mark.parametrize("way", [0, 1])
def test_it_returns_when_no_lease_can_be_running(make_world: MakeWorld, way: int) -> None:
    """Guarantee G2, and for a key that another request is revoking at this moment as well."""
    world = make_world(lease=LEASE)
    key = world.create().value.reveal()
    world.enter(key)
    method, arguments = ways(key)[way]
    for _ in range(2):
        world.forget_calls()
        world.clock.slept.clear()
        world.call(method, *arguments)
        assert world.store.calls == ["find", "revoke", "recorded_leases"]
        assert world.clock.slept == [pytest.approx(0.2575)]


def test_leaked_keys_are_revoked_together(make_world: MakeWorld) -> None:
    world = make_world(lease=LEASE)
    one, two = world.create(), world.create("bob")
    untouched = world.create()
    world.enter(one.value.reveal())
    world.forget_calls()
    world.clock.slept.clear()
    elsewhere = LeakLocation("github", "issue_comment", None)
    records = world.call(
        "revoke_leaked",
        [
            LeakedKey(one.value.reveal(), PLACE),
            LeakedKey("no key", PLACE),
            LeakedKey(two.value.reveal(), PLACE),
            LeakedKey(KeyFormat().generate().reveal(), PLACE),
            LeakedKey(one.value.reveal(), elsewhere),
        ],
    )
    ends = [None if record is None else (record.owner_id, record.revoked_at) for record in records]
    assert ends == [("ann", NOW), None, ("bob", NOW), None, ("ann", NOW)]
    assert world.events == [
        KeyEvent("leaked", NOW, records[0], location=PLACE),
        KeyEvent("leaked", NOW, records[2], location=PLACE),
        KeyEvent("leaked", NOW, records[4], location=elsewhere),
    ]
    # Each key is looked for once, garbage never, and there is one wait for all of them.
    assert sorted(world.store.calls) == ["find"] * 3 + ["recorded_leases"] + ["revoke"] * 2
    assert len(world.clock.slept) == 1
    assert world.store.get(untouched.record.id).revoked_at is None


def test_an_empty_report_waits_for_no_lease(world: World) -> None:
    assert world.call("revoke_leaked", []) == ()
    assert world.call("revoke_leaked", [LeakedKey("no key", PLACE)]) == (None,)
    assert (world.store.calls, world.clock.slept, world.events) == ([], [], [])


def test_a_leaked_key_shows_its_value_in_one_attribute_only() -> None:
    key = KeyFormat().generate().reveal()
    leaked = LeakedKey(key, PLACE)
    assert key not in repr(leaked)
    assert leaked.key == key
