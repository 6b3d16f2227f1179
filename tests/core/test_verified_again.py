"""How a principal is verified again without its credential, as an open connection is, and until when a lease may reuse one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.cases import refused_with
from tests.core.support import MICROSECOND, NOW, SECOND, MakeWorld, StubIssuer, World, token

from msk_auth import CredentialKind, ExternalIdentity, Owner, Principal, Session
from msk_auth.errors import CredentialRefused

HOUR = timedelta(hours=1)
IDENTITY = ExternalIdentity("https://login.example", "00u1", {})


def end_session(world: World) -> str:
    world.sessions["s1"] = Session("s1", "ann", expires_at=NOW + SECOND)
    return token()


# Until when a lease may reuse one: what ends in its time ends it.


@pytest.mark.parametrize(
    ("credential", "code"),
    [
        (lambda world: world.create(lifetime=SECOND).value.reveal(), "key_expired"),
        (lambda _: token(exp=int((NOW + SECOND).timestamp())), "token_expired"),
        (end_session, "token_revoked"),
    ],
)
def test_no_lease_outlasts_its_key_its_token_or_its_session(
    make_world: MakeWorld, credential: Callable[[World], str], code: str
) -> None:
    world = make_world(lease=4 * SECOND)
    sent = credential(world)
    principal = world.enter(sent)
    world.clock.advance(SECOND - MICROSECOND)
    assert world.enter(sent) is principal
    world.clock.advance(MICROSECOND)
    with refused_with(code):
        world.enter(sent)


# A key.


def test_a_key_that_is_verified_again_has_its_owners_permissions_now(make_world: MakeWorld) -> None:
    world = make_world()
    principal = world.key_principal(scopes=["tasks:read", "tasks:run"], lifetime=HOUR)
    world.owners["ann"] = Owner("ann", frozenset({"tasks:run", "admin:config"}), "Ann")
    world.clock.advance(SECOND)
    assert world.verify_again(principal) == Principal(
        world.owners["ann"],
        CredentialKind.API_KEY,
        frozenset({"tasks:run"}),
        NOW + SECOND,
        key_id=principal.key_id,
        expires_at=NOW + HOUR,
        scopes=frozenset({"tasks:read", "tasks:run"}),
    )


def revoke(world: World, key_id: str) -> None:
    world.store.inner.revoke(key_id, owner_id="ann", at=NOW)


def expire(world: World, key_id: str) -> None:
    world.clock.advance(HOUR)


def remove(world: World, key_id: str) -> None:
    world.store.inner._records.clear()


def hand_over(world: World, key_id: str) -> None:
    world.store.put(replace(world.store.get(key_id), owner_id="bob"))


def disable(world: World, key_id: str) -> None:
    del world.owners["ann"]


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (revoke, "key_revoked"),
        (expire, "key_expired"),
        (remove, "key_unknown"),
        (hand_over, "key_unknown"),
        (disable, "owner_disabled"),
    ],
)
def test_a_key_that_has_ended_is_refused_when_it_is_verified_again(
    make_world: MakeWorld, end: Any, error: str
) -> None:
    world = make_world()
    principal = world.key_principal(lifetime=HOUR)
    end(world, principal.key_id)
    with pytest.raises(CredentialRefused) as refused:
        world.verify_again(principal)
    assert refused.value.code == error
    assert refused.value.key_id == principal.key_id


# A login.


def test_a_login_that_is_verified_again_has_its_owner_and_permissions_now(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    principal = world.enter(token())
    world.owners["ann"] = Owner("ann", frozenset({"tasks:read"}), "Ann, renamed")
    world.clock.advance(HOUR - MICROSECOND)
    assert world.verify_again(principal) == replace(
        principal, owner=world.owners["ann"], permissions=frozenset({"tasks:read"})
    )


def test_a_login_ends_with_its_token(make_world: MakeWorld) -> None:
    world = make_world()
    principal = world.enter(token())
    world.clock.advance(HOUR)
    with refused_with("token_expired"):
        world.verify_again(principal)


@pytest.mark.parametrize(
    "session",
    [
        None,
        Session("s1", "bob"),
        Session("s1", "ann", ended_at=NOW),
        Session("s1", "ann", expires_at=NOW),
    ],
)
def test_a_login_ends_with_its_session(make_world: MakeWorld, session: Session | None) -> None:
    world = make_world()
    principal = world.enter(token())
    world.sessions["s1"] = Session("s1", "ann", expires_at=NOW + MICROSECOND)
    assert world.verify_again(principal) == principal
    world.sessions["s1"] = session
    with refused_with("token_revoked"):
        world.verify_again(principal)


def test_a_login_without_a_session_needs_none(world: World) -> None:
    principal = world.login()
    assert principal.session_id is None
    assert world.verify_again(principal) == principal


def test_an_application_without_sessions_is_asked_for_none(make_world: MakeWorld) -> None:
    world = make_world(find_session=None)
    principal = world.enter(token())
    world.sessions.clear()
    assert world.verify_again(principal) == principal


@pytest.mark.parametrize("now", [None, Owner("usr_2", frozenset({"tasks:read"}), "Bob")])
def test_an_external_identity_is_looked_for_as_such(
    make_world: MakeWorld, now: Owner[str] | None
) -> None:
    """And refused when it has no owner any more, or another one."""
    owner = Owner("usr_1", frozenset({"tasks:read"}), "Eve")
    principal = Principal(
        owner,
        CredentialKind.INTERACTIVE,
        owner.permissions,
        None,
        expires_at=NOW + HOUR,
        identity=IDENTITY,
    )
    people: dict[ExternalIdentity, Owner[str] | None] = {IDENTITY: owner}
    world = make_world(find_external_owner=people.get, issuers=[StubIssuer()])
    assert world.verify_again(principal) == principal
    people[IDENTITY] = now
    with refused_with("token_revoked"):
        world.verify_again(principal)
