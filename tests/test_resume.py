"""Work that outlives its request: a reference is verified afresh, and what ended access has ended it as well."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from tests.cases import case, refused_with
from tests.core.support import NOW, OTHER_SECRET, SECOND, SECRET, World, token

from msk_auth import (
    CredentialKind,
    ExternalIdentity,
    KeyHasher,
    Owner,
    PepperRing,
    Principal,
    Session,
    require,
    require_interactive,
    require_key,
)
from msk_auth.errors import (
    ConfigurationError,
    CredentialRefused,
    InteractiveRequired,
    PermissionDenied,
    StoreUnavailable,
)
from msk_auth.events import CredentialUsed, Refusal

MakeWorld = Callable[..., World]
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
HASHER = KeyHasher(PepperRing({"2026": SECRET}, current="2026"))


@pytest.fixture
def make_world(make_world: MakeWorld) -> MakeWorld:
    return partial(make_world, hasher=HASHER)


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    return make_world()


def login(world: World) -> Principal[Any]:
    principal: Principal[Any] = world.enter(token())
    return principal


def refusal_of(world: World, reference: object) -> CredentialRefused:
    """The refusal of a reference, which is reported as that of a request is, and leaves nothing behind."""
    world.call("flush")
    world.forget_calls()
    with pytest.raises(CredentialRefused) as refused:
        world.call("resume", reference)
    (event,) = world.events
    assert event == Refusal(world.clock.moment, refused.value.code, refused.value.key_id)
    world.call("flush")
    assert "touch" not in world.store.calls
    return refused.value


# A key.


def test_the_reference_of_a_key_acts_as_the_key_does_now(world: World) -> None:
    principal = world.key_principal(scopes=["tasks:read", "tasks:run"], lifetime=DAY)
    reference = world.auth.reference(principal)
    world.owners["ann"] = Owner("ann", frozenset({"tasks:run", "tasks:new"}), "Ann, renamed")
    world.clock.advance(HOUR)
    assert world.call("resume", reference) == replace(
        principal,
        owner=world.owners["ann"],
        permissions=frozenset({"tasks:run"}),
        authenticated_at=NOW + HOUR,
        resumed=True,
    )


def test_a_resumed_key_passes_what_the_key_passes_and_nothing_interactive(world: World) -> None:
    reference = world.auth.reference(world.key_principal(scopes=["tasks:read"]))
    principal = world.call("resume", reference)
    for passed in (require("tasks:read"), require_key("tasks:read")):
        world.auth.authorize(principal, passed)
    for refused in (require(), require("tasks:run")):
        with pytest.raises(PermissionDenied):
            world.auth.authorize(principal, refused)
    with pytest.raises(InteractiveRequired):
        world.auth.authorize(principal, require_interactive())
    for change in (
        lambda: world.call("create_key", principal, name="another"),
        lambda: world.call("revoke_key", principal, principal.key_id),
        lambda: world.call("rotate_key", principal, principal.key_id),
    ):
        with pytest.raises(InteractiveRequired):
            change()


def test_using_a_reference_is_a_use_of_its_key(world: World) -> None:
    principal = world.key_principal()
    reference = world.auth.reference(principal)
    world.clock.advance(HOUR)
    world.forget_calls()
    resumed = world.call("resume", reference)
    assert world.events == [CredentialUsed(NOW + HOUR, resumed)]
    assert world.store.calls == ["find"]
    world.call("flush")
    assert world.store.get(principal.key_id).last_used_at == NOW + HOUR


def disable_owner(world: World, _principal: Principal[Any]) -> None:
    world.owners["ann"] = Owner("ann", frozenset(), "Ann", disabled=True)


# A key is verified as that of an open connection is: `tests/core/test_verified_again.py` has all the ways in which it ends.
def test_queued_work_of_a_key_that_has_ended_is_refused(world: World) -> None:
    principal = world.key_principal()
    reference = world.auth.reference(principal)
    assert world.call("resume", reference).resumed
    world.call("revoke_key", world.login(), principal.key_id)
    refused = refusal_of(world, reference)
    assert (refused.code, refused.key_id) == ("key_revoked", principal.key_id)


def test_no_lease_covers_queued_work(make_world: MakeWorld) -> None:
    """Guarantee G2: the worker holds a lease on the key's verification while another process revokes the key."""
    worker = make_world(lease=SECOND)
    credential = worker.create().value.reveal()
    principal = worker.enter(credential)
    reference = worker.auth.reference(principal)
    assert worker.call("resume", reference).resumed
    # The other process has committed; its call returns when the lease is over.
    worker.store.inner.revoke(principal.key_id, owner_id="ann", at=NOW, change=lambda _: ())
    assert worker.enter(credential) == principal
    assert refusal_of(worker, reference).code == "key_revoked"


# A login.


def test_the_reference_of_a_login_acts_for_its_owner_now_and_is_not_interactive(
    world: World,
) -> None:
    principal = login(world)
    assert principal.is_interactive
    reference = world.auth.reference(principal)
    world.owners["ann"] = Owner("ann", frozenset({"tasks:run"}), "Ann, renamed")
    world.clock.advance(HOUR + SECOND)
    # Its token has expired.
    with refused_with("token_expired"):
        login(world)
    resumed = world.call("resume", reference)
    assert resumed == Principal(
        world.owners["ann"],
        CredentialKind.TOKEN,
        frozenset({"tasks:run"}),
        authenticated_at=NOW,
        session_id="s1",
        expires_at=NOW + DAY,
        resumed=True,
    )
    with pytest.raises(InteractiveRequired):
        world.auth.authorize(resumed, require_interactive())
    with pytest.raises(InteractiveRequired):
        world.call("create_key", resumed, name="by a worker")
    world.auth.authorize(resumed, require("tasks:run"))


def end_by_age(world: World, _principal: Principal[Any]) -> None:
    world.clock.advance(DAY)


def end_session(world: World, _principal: Principal[Any]) -> None:
    world.sessions["s1"] = Session("s1", "ann", ended_at=NOW)


def give_session_away(world: World, _principal: Principal[Any]) -> None:
    world.sessions["s1"] = Session("s1", "bob")


def make_owner_anew(world: World, _principal: Principal[Any]) -> None:
    """Another person who was given the same id later."""
    world.owners["ann"] = Owner("ann", frozenset({"tasks:run"}), "Ann II", since=NOW + SECOND)


ENDS = [
    (end_by_age, "token_expired"),
    (disable_owner, "token_revoked"),
    (make_owner_anew, "token_revoked"),
]
SESSION_ENDS = [(end_session, "token_revoked"), (give_session_away, "token_revoked")]


@pytest.mark.parametrize(("end", "error"), [*ENDS, *SESSION_ENDS])
def test_queued_work_of_a_login_that_has_ended_is_refused(
    world: World, end: Any, error: str
) -> None:
    principal = login(world)
    reference = world.auth.reference(principal)
    assert world.call("resume", reference).resumed
    end(world, principal)
    assert refusal_of(world, reference).code == error


def test_work_that_outlives_its_session_goes_on(world: World) -> None:
    reference = world.auth.reference(login(world), outlives_session=True)
    world.sessions.clear()
    assert world.call("resume", reference).session_id is None


@pytest.mark.parametrize(("end", "error"), ENDS)
def test_work_that_outlives_its_session_ends_with_its_age_and_its_owner(
    world: World, end: Any, error: str
) -> None:
    principal = login(world)
    reference = world.auth.reference(principal, outlives_session=True)
    end(world, principal)
    assert refusal_of(world, reference).code == error


def test_the_age_of_a_reference_can_be_chosen(world: World) -> None:
    reference = world.auth.reference(login(world), max_age=10 * SECOND)
    world.clock.advance(10 * SECOND - timedelta(microseconds=1))
    world.call("resume", reference)
    world.clock.advance(timedelta(microseconds=1))
    assert refusal_of(world, reference).code == "token_expired"


def test_work_goes_on_after_a_backup_spells_the_uuid_of_its_owner_in_another_way(
    world: World,
) -> None:
    before, now = "0190a6e41b7c7def8abc0123456789ab", "0190a6e4-1b7c-7def-8abc-0123456789ab"
    world.owners[before] = Owner(before, (), "Ann")
    world.sessions["s1"] = Session("s1", before)
    reference = world.auth.reference(world.enter(token(sub=before)))
    world.owners[before] = Owner(now, (), "Ann")
    assert world.call("resume", reference).owner.id == now


def test_an_application_without_sessions_needs_none(make_world: MakeWorld) -> None:
    world = make_world(find_session=None)
    reference = world.auth.reference(login(world))
    world.sessions.clear()
    assert world.call("resume", reference).session_id is None


def test_a_worker_that_cannot_look_sessions_up_refuses_what_ends_with_one(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    reference = make_world().auth.reference(login(make_world()))
    worker = make_world(find_session=None)
    with caplog.at_level(logging.ERROR, "msk_auth"), pytest.raises(StoreUnavailable):
        worker.call("resume", reference)
    assert "find_session" in caplog.text
    assert worker.events == [Refusal(NOW, "store_unavailable", None)]


def test_the_token_of_another_issuer_gets_no_more_than_it_had(world: World) -> None:
    """What the token's claims granted is less than what the owner's own keys may do."""
    identity = ExternalIdentity("https://ci.example", "job", {})
    principal = Principal(
        world.owners["ann"],
        CredentialKind.TOKEN,
        frozenset({"tasks:read", "tasks:gone"}),
        NOW,
        identity=identity,
    )
    resumed = world.call("resume", world.auth.reference(principal))
    assert resumed.permissions == {"tasks:read"}
    assert resumed.scopes == {"tasks:read", "tasks:gone"}
    assert world.verify_again(resumed) == resumed
    with pytest.raises(PermissionDenied):
        world.auth.authorize(resumed, require("tasks:run"))


# What is no reference of this application.


def test_a_reference_of_another_application_is_refused(make_world: MakeWorld) -> None:
    other = make_world(hasher=KeyHasher(PepperRing({"2026": OTHER_SECRET}, current="2026")))
    reference = other.auth.reference(other.key_principal())
    world = make_world()
    assert refusal_of(world, reference).code == "reference_invalid"
    assert (world.store.calls, world.asked_owners) == ([], [])


def test_what_is_no_reference_is_refused_without_touching_the_store(world: World) -> None:
    forged = "mskref1:2026:e30:" + "0" * 64
    for text in ("", forged, "x" * 100_000, None, b"mskref1:", 7, {"owner": "ann"}):
        world.events.clear()
        with case(text):
            assert refusal_of(world, text).code == "reference_invalid"
            assert (world.store.calls, world.asked_owners) == ([], [])


def test_a_reference_is_no_credential_of_a_request(world: World) -> None:
    reference = world.auth.reference(login(world))
    for header in (reference, f"Bearer {reference}", f"mskref1 {reference}"):
        with pytest.raises(Exception) as refused:  # noqa: PT011 - the code says which
            world.call("authenticate", [header])
        assert refused.value.code in {"request_malformed", "credentials_missing"}  # type: ignore[attr-defined]


def test_a_resumed_principal_makes_no_reference(world: World) -> None:
    for principal in (login(world), world.key_principal()):
        resumed = world.call("resume", world.auth.reference(principal))
        with pytest.raises(ConfigurationError, match="Pass that reference on"):
            world.auth.reference(resumed)


def test_without_a_pepper_there_are_no_references(make_world: MakeWorld) -> None:
    world = make_world(hasher=None)
    message = r"hasher=KeyHasher\(PepperRing"
    with pytest.raises(ConfigurationError, match=message):
        world.auth.reference(login(world))
    with pytest.raises(ConfigurationError, match=message):
        world.call("resume", "mskref1:2026:e30:" + "0" * 64)


# Fail closed (guarantee G5).


def test_when_nothing_can_be_read_work_is_refused_and_may_be_tried_again(world: World) -> None:
    reference = world.auth.reference(world.key_principal())
    world.forget_calls()
    world.store.fail(OSError("gone"))
    with pytest.raises(StoreUnavailable):
        world.call("resume", reference)
    assert world.events == [Refusal(NOW, "store_unavailable", None)]
    world.store.fails.clear()
    assert world.call("resume", reference).resumed


def test_under_a_lease_an_owner_that_a_request_could_change_is_refused(
    make_world: MakeWorld,
) -> None:
    world = make_world(lease=SECOND)
    reference = world.auth.reference(login(world))
    world.owners["ann"] = Owner("ann", frozenset(), ["a list"])
    with pytest.raises(StoreUnavailable):
        world.call("resume", reference)


# Work that lasts.


@pytest.mark.parametrize("kind", ["key", "login"])
def test_a_resumed_principal_that_is_verified_again_stays_what_it_is(
    world: World, kind: str
) -> None:

    principal = world.key_principal() if kind == "key" else login(world)
    resumed = world.call("resume", world.auth.reference(principal))
    assert world.verify_again(resumed) == resumed
