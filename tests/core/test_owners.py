"""Ids that are given out twice: a predecessor's keys and logins are not the successor's, and forgetting an owner ends all keys."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from tests.cases import refused_with
from tests.core.support import MICROSECOND, NOW, SECOND, MakeWorld, World, token

from msk_auth import ApiKey, Login, Owner, Principal, Session
from msk_auth.errors import StoreUnavailable
from msk_auth.events import KeyEvent, Refusal
from msk_auth.stores import KeyQuery

MAX_PAGE = 200
HOUR = timedelta(hours=1)
LEASE = timedelta(milliseconds=250)


def ann(since: datetime | None) -> Owner[str]:
    return Owner("ann", frozenset({"tasks:read", "tasks:run"}), "Ann", since=since)


def verify_again(world: World, principal: Principal[Any]) -> Principal[Any]:
    """As an open connection is verified again."""
    return world.verify_again(principal)


# A key that is older than its owner.


def test_a_key_of_a_predecessor_with_the_same_id_is_refused(world: World) -> None:
    created = world.create()
    world.clock.advance(HOUR)
    world.owners["ann"] = ann(since=world.clock.moment)
    world.forget_calls()
    with refused_with("owner_disabled") as refused:
        world.enter(created.value.reveal())
    assert refused.value.key_id == created.record.id
    assert world.events == [Refusal(NOW + HOUR, "owner_disabled", created.record.id)]
    # The successor's own keys work.
    assert world.enter(world.create().value.reveal()).owner.id == "ann"


@pytest.mark.parametrize(
    ("since", "is_accepted"),
    [
        (None, True),
        (NOW - HOUR, True),
        (NOW, True),
        (NOW.astimezone(timezone(timedelta(hours=9))), True),
        (NOW + MICROSECOND, False),
        (NOW + SECOND, False),
    ],
)
def test_a_key_is_its_owners_from_the_very_moment_on_that_the_owner_began(
    world: World, since: datetime | None, *, is_accepted: bool
) -> None:
    created = world.create()
    world.owners["ann"] = ann(since)
    if is_accepted:
        assert world.enter(created.value.reveal()).key_id == created.record.id
        return
    with refused_with("owner_disabled"):
        world.enter(created.value.reveal())


@pytest.mark.parametrize("ahead", [MICROSECOND, timedelta(milliseconds=500), SECOND])
def test_a_clock_that_lags_behind_the_users_locks_no_owner_out(
    world: World, ahead: timedelta
) -> None:
    """A database with a clock of its own, or one that rounds to whole seconds, may date the user's beginning later than now."""
    world.owners["ann"] = ann(since=NOW + ahead)
    created = world.create(lifetime=HOUR)
    assert created.record.created_at == NOW + ahead
    assert created.record.expires_at == NOW + ahead + HOUR
    assert world.enter(created.value.reveal()).key_id == created.record.id
    successor = world.call("rotate_key", world.login(), created.record.id)
    assert successor.record.created_at == NOW + ahead
    assert successor.record.expires_at == NOW + ahead + HOUR
    assert world.enter(successor.value.reveal()).key_id == successor.record.id
    world.clock.advance(HOUR)
    assert world.create().record.created_at == NOW + HOUR


@pytest.mark.parametrize("presented", ["key", "token"])
def test_a_predecessors_open_connection_ends_too(world: World, presented: str) -> None:
    credential = world.create().value.reveal() if presented == "key" else token()
    principal = world.enter(credential)
    world.clock.advance(SECOND)
    world.owners["ann"] = ann(since=world.clock.moment)
    with refused_with("owner_disabled" if presented == "key" else "token_revoked"):
        verify_again(world, principal)


# A login from before its owner.


@pytest.mark.parametrize(
    ("auth_time", "since", "is_accepted"),
    [
        (0, None, True),
        (0, NOW - SECOND, True),
        (0, NOW, True),
        # A token has whole seconds only: a login of the same second may be the owner's.
        (0, NOW + MICROSECOND, True),
        (0, NOW + SECOND - MICROSECOND, True),
        (0, NOW + SECOND, False),
        (-1, NOW - MICROSECOND, True),
        (-1, NOW, False),
        (-3600, NOW, False),
    ],
)
def test_a_login_from_before_its_owner_is_refused(
    world: World, auth_time: int, since: datetime | None, *, is_accepted: bool
) -> None:
    world.owners["ann"] = ann(since)
    # Renewing moves `iat`, and does not make the login any younger.
    credential = token(auth_time=int(NOW.timestamp()) + auth_time)
    if is_accepted:
        principal = world.enter(credential)
        assert principal.is_interactive
        assert verify_again(world, principal).owner.since == since
        return
    with refused_with("token_revoked"):
        world.enter(credential)
    assert world.events == [Refusal(NOW, "token_revoked", None)]


@pytest.mark.parametrize("claim", ["auth_time", "iat"])
def test_a_login_of_the_applications_own_is_compared_where_its_moment_is_known(claim: str) -> None:
    """The guide says what to do about the others. `iat` is when a token was renewed, and no moment of a login."""
    claims = {"sub": "ann", claim: int(NOW.timestamp())}
    world = World("sync", logins=[lambda _credential: Login.from_claims(claims)])
    world.owners["ann"] = ann(NOW + SECOND)
    if claim == "iat":
        assert world.enter("a-login").owner.since == NOW + SECOND
        return
    with refused_with("token_revoked"):
        world.enter("a-login")


def test_the_latest_time_that_a_token_can_have_is_compared_without_overflow(world: World) -> None:
    world.owners["ann"] = ann(NOW)
    with refused_with("token_invalid"):
        world.enter(token(auth_time=253_402_300_799))


# Forgetting an owner.


def keys_of(world: World, owner_id: str = "ann") -> list[ApiKey]:
    return [key for key in world.store.inner._records.values() if key.owner_id == owner_id]


def test_forgetting_an_owner_revokes_every_key_and_empties_the_list(world: World) -> None:
    first, second = world.create(), world.create()
    revoked, deleted, others = world.create(), world.create(), world.create("bob")
    expired = world.create(lifetime=SECOND)
    world.call("revoke_key", world.login(), revoked.record.id)
    world.call("delete_key", world.login(), deleted.record.id)
    world.clock.advance(HOUR)
    # The application has deleted the user.
    del world.owners["ann"]
    world.forget_calls()
    assert world.call("forget_owner", "ann") == 3
    assert world.asked_owners == []
    for key in (first, second, expired):
        assert world.store.get(key.record.id).revoked_at == NOW + HOUR
    for key in (revoked, deleted):
        assert world.store.get(key.record.id).revoked_at == NOW
    assert set(world.events) == {
        *(
            KeyEvent("revoked", NOW + HOUR, world.store.get(key.record.id), cause="forgotten")
            for key in (first, second, expired)
        ),
        # It was on the list, and is taken off it.
        KeyEvent("deleted", NOW + HOUR, world.store.get(revoked.record.id)),
    }
    assert world.enter(others.value.reveal()).owner.id == "bob"
    # A successor neither sees nor uses what was there before.
    world.owners["ann"] = ann(since=None)
    assert world.call("list_keys", world.login()).items == ()
    for key in (first, second, revoked, deleted, expired):
        with refused_with("key_revoked"):
            world.enter(key.value.reveal())


def test_forgetting_again_changes_nothing(world: World) -> None:
    created = world.create()
    assert world.call("forget_owner", "ann") == 1
    before = world.store.get(created.record.id)
    world.clock.advance(HOUR)
    world.forget_calls()
    assert world.call("forget_owner", "ann") == 0
    assert world.store.get(created.record.id) == before
    assert world.events == []


@pytest.mark.parametrize("owner_id", ["bob", "nobody", "", "\x00", "x" * 1000])
def test_an_owner_without_keys_is_forgotten_too(owner_id: str) -> None:
    world = World("sync", lease=LEASE)
    created = world.create()
    assert world.call("forget_owner", owner_id) == 0
    # What the application did before it called this is as good as a revocation.
    assert len(world.clock.slept) == 1
    assert world.enter(created.value.reveal()).owner.id == "ann"


def test_many_keys_are_forgotten_page_by_page_with_one_wait(make_world: MakeWorld) -> None:
    world = make_world(lease=LEASE)
    template = world.create().record
    world.enter(token())
    for number in range(2 * MAX_PAGE + 1):
        world.store.put(replace(template, id=f"k{number}", created_at=NOW + number * SECOND))
    world.forget_calls()
    assert world.call("forget_owner", "ann") == 2 * MAX_PAGE + 2
    assert all(key.deleted_at == NOW for key in keys_of(world))
    queries = [
        query
        for arguments, _ in world.store.arguments
        for query in arguments
        if isinstance(query, KeyQuery)
    ]
    assert {(query.limit, query.now) for query in queries} == {(MAX_PAGE, NOW)}
    # Three pages, their end, and a last look after the wait.
    assert world.store.calls.count("list") == 5
    assert len(world.clock.slept) == 1
    assert len(world.events) == 2 * MAX_PAGE + 2


def test_what_a_login_under_a_lease_makes_meanwhile_is_forgotten_too(make_world: MakeWorld) -> None:
    world = make_world(lease=LEASE)
    world.create()
    template = world.create().record
    world.enter(token())
    late = [replace(template, id=f"late{number}") for number in range(2)]

    # Others use the time for which the leases are waited out.
    def sleep(seconds: float) -> None:
        world.clock.slept.append(seconds)
        if late:
            world.store.put(late.pop())

    async def async_sleep(seconds: float) -> None:
        sleep(seconds)

    world.clock.sleep, world.clock.async_sleep = sleep, async_sleep  # type: ignore[method-assign]
    assert world.call("forget_owner", "ann") == 4
    assert all(key.deleted_at == NOW for key in keys_of(world))
    assert len(world.clock.slept) == 3


def test_forgetting_is_exact_under_a_lease(make_world: MakeWorld) -> None:
    world = make_world(lease=LEASE, on_event=None)
    created = world.create()
    presented = created.value.reveal()
    world.enter(presented)
    del world.owners["ann"]
    assert world.call("forget_owner", "ann") == 1
    with refused_with("key_revoked"):
        world.enter(presented)
    (waited,) = world.clock.slept
    assert waited > LEASE.total_seconds()


@pytest.mark.parametrize("method", ["list", "delete"])
def test_a_store_that_fails_is_tried_again(world: World, method: str) -> None:
    created = world.create()
    world.store.fails = {method: OSError("gone")}
    with pytest.raises(StoreUnavailable):
        world.call("forget_owner", "ann")
    world.store.fails = {}
    assert world.call("forget_owner", "ann") == 1
    assert world.store.get(created.record.id).revoked_at == NOW


def test_a_key_that_another_process_deletes_at_the_same_time_is_no_error(world: World) -> None:
    created = world.create()
    record = created.record
    original = world.store._call

    def racing(name: str, *args: Any, **options: Any) -> Any:
        if name == "delete":
            world.store.inner.delete(record.id, owner_id="ann", at=NOW)
        return original(name, *args, **options)

    world.store._call = racing  # type: ignore[method-assign]
    assert world.call("forget_owner", "ann") == 0


# What the application's look-ups cannot read, or fail on.


class DataError(Exception):
    """As drivers name what a column cannot hold (PEP 249)."""


class StatementError(Exception):
    """As SQLAlchemy has one, for what a type raised before the statement was sent."""

    orig = ValueError("badly formed hexadecimal UUID string")


@pytest.mark.parametrize("place", ["owner of a key", "owner of a token", "session"])
@pytest.mark.parametrize("number", range(4))
def test_an_id_that_a_look_up_cannot_read_is_nobodys(
    make_world: MakeWorld, place: str, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world()
    failure = [
        ValueError("for int()"),
        DataError("out of range"),
        OverflowError("out of range"),
        StatementError(),
    ][number]
    credential = world.create().value.reveal() if place == "owner of a key" else token()
    table = world.sessions if place == "session" else world.owners
    table["s1" if place == "session" else "ann"] = failure
    caplog.clear()
    for _ in range(2):
        with refused_with("owner_disabled" if place == "owner of a key" else "token_revoked"):
            world.enter(credential)
    (logged,) = caplog.records
    name = "find_session" if place == "session" else "find_owner"
    raised = f"the application's {name} raised {type(failure).__name__} at "
    assert logged.levelno == logging.WARNING
    assert logged.getMessage().startswith(raised)
    assert "of range" not in caplog.text


@pytest.mark.parametrize(
    "failure", [json.JSONDecodeError("Expecting value", "<html>", 0), KeyError("ann")]
)
def test_a_look_up_that_fails_in_another_way_is_named_in_the_log(
    world: World, failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    credential = world.create().value.reveal()
    world.owners["ann"] = failure
    with pytest.raises(StoreUnavailable):
        world.enter(credential)
    (logged,) = caplog.records
    assert logged.levelno == logging.ERROR
    assert logged.getMessage() == (f"the application's find_owner raised: {type(failure).__name__}")
    assert logged.exc_info is not None


UUID = "0190a6e4-1b7c-7def-8abc-0123456789ab"


@pytest.mark.parametrize("spelling", [UUID.upper(), UUID.replace("-", ""), UUID])
def test_a_uuid_is_the_same_owner_in_any_spelling(world: World, spelling: str) -> None:
    owner = Owner(UUID, {"tasks:read"}, "Ann")
    world.owners |= {UUID: owner, spelling: owner}
    world.sessions["s1"] = Session("s1", UUID)
    principal = world.enter(token(sub=spelling))
    assert principal.owner.id == UUID
    assert verify_again(world, principal).owner is owner
    created = world.call("create_key", principal, name="ci")
    assert created.record.owner_id == UUID


@pytest.mark.parametrize("other", ["x" * 32, UUID.replace("-", "")[:-1], UUID[:-1] + "c", "7"])
def test_what_is_no_spelling_of_the_same_uuid_is_another_owner(world: World, other: str) -> None:
    world.owners[other] = Owner(UUID, (), "Ann")
    world.owners["X" * 32] = Owner("x" * 32, (), "Ann")
    for subject in (other, "X" * 32):
        world.sessions["s1"] = Session("s1", subject)
        with pytest.raises(StoreUnavailable):
            world.enter(token(sub=subject))
