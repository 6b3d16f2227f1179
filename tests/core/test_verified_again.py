"""What the flows of authentication return beside the principal, and how one is verified again without its credential."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from tests.cases import refused_with
from tests.core.support import MICROSECOND, NOW, SECOND, World, token

from msk_auth import (
    CredentialKind,
    ExternalIdentity,
    Owner,
    Principal,
    Session,
)
from msk_auth._sync.verification import Verifier
from msk_auth.core import authentication
from msk_auth.core.immutability import NotShareable
from msk_auth.errors import CredentialRefused

HOUR = timedelta(hours=1)
IDENTITY = ExternalIdentity("https://login.example", "00u1", {})


@pytest.fixture
def world() -> World:
    return World("sync")


def verifier(world: World) -> Verifier:
    """What verifies in a world, where `ext` is the owner of every external identity."""

    def find_external_owner(identity: ExternalIdentity) -> Owner[Any] | None:
        return world.owners.get("ext") if identity == IDENTITY else None

    reads: Any = SimpleNamespace(
        find_key=world.store.inner.find,
        find_owner=world._find_owner,
        find_session=world._find_session,
        find_external_owner=find_external_owner,
    )
    return Verifier(world.auth.rules, reads)


def authenticated(world: World, credential: str) -> authentication.Authenticated:
    presented = authentication.read_credential(world.auth.rules, [f"Bearer {credential}"])
    return verifier(world).authenticate(presented, world.clock.moment)


def again(world: World, principal: Principal[Any]) -> Principal[Any]:
    return verifier(world).verify_again(principal, world.clock.moment)


# Until when it may be reused.


@pytest.mark.parametrize("lifetime", [HOUR, "unlimited"])
def test_a_key_is_valid_until_it_expires(world: World, lifetime: Any) -> None:
    outcome = authenticated(world, world.create(lifetime=lifetime).value.reveal())
    ends = None if lifetime == "unlimited" else NOW + HOUR
    assert outcome.valid_until == outcome.principal.expires_at == ends


@pytest.mark.parametrize(
    ("session_ends", "valid_until"),
    [
        (None, NOW + HOUR),
        (NOW + 2 * HOUR, NOW + HOUR),
        (NOW + SECOND, NOW + SECOND),
    ],
)
def test_a_login_is_valid_until_its_token_or_its_session_ends(
    world: World, session_ends: datetime | None, valid_until: datetime
) -> None:
    world.sessions["s1"] = Session("s1", "ann", expires_at=session_ends)
    outcome = authenticated(world, token())
    assert outcome.valid_until == valid_until
    assert outcome.principal.expires_at == NOW + HOUR


def test_under_a_lease_an_owner_that_a_request_could_change_is_refused() -> None:
    world = World("sync", lease=SECOND)
    world.owners["ann"] = Owner("ann", frozenset({"tasks:read"}), ["a list"])
    with pytest.raises(NotShareable, match=r"owner\.user can change"):
        authenticated(world, token())


# A key.


def test_a_key_that_is_verified_again_has_its_owners_permissions_now(world: World) -> None:
    principal = world.key_principal(scopes=["tasks:read", "tasks:run"], lifetime=HOUR)
    world.owners["ann"] = Owner("ann", frozenset({"tasks:run", "admin:config"}), "Ann")
    world.clock.advance(SECOND)
    assert again(world, principal) == Principal(
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
    world: World, end: Any, error: str
) -> None:
    principal = world.key_principal(lifetime=HOUR)
    end(world, principal.key_id)
    with pytest.raises(CredentialRefused) as refused:
        again(world, principal)
    assert refused.value.code == error
    assert refused.value.key_id == principal.key_id


# A login.


def test_a_login_that_is_verified_again_has_its_owner_and_permissions_now(world: World) -> None:
    principal = world.enter(token())
    world.owners["ann"] = Owner("ann", frozenset({"tasks:read"}), "Ann, renamed")
    world.clock.advance(HOUR - MICROSECOND)
    assert again(world, principal) == replace(
        principal, owner=world.owners["ann"], permissions=frozenset({"tasks:read"})
    )


def test_a_login_ends_with_its_token(world: World) -> None:
    principal = world.enter(token())
    world.clock.advance(HOUR)
    with refused_with("token_expired"):
        again(world, principal)


@pytest.mark.parametrize(
    "session",
    [
        None,
        Session("s1", "bob"),
        Session("s1", "ann", ended_at=NOW),
        Session("s1", "ann", expires_at=NOW),
    ],
)
def test_a_login_ends_with_its_session(world: World, session: Session | None) -> None:
    principal = world.enter(token())
    world.sessions["s1"] = Session("s1", "ann", expires_at=NOW + MICROSECOND)
    assert again(world, principal) == principal
    world.sessions["s1"] = session
    with refused_with("token_revoked"):
        again(world, principal)


def test_a_login_without_a_session_needs_none(world: World) -> None:
    principal = world.login()
    assert principal.session_id is None
    assert again(world, principal) == principal


def test_an_application_without_sessions_is_asked_for_none() -> None:
    world = World("sync", find_session=None)
    principal = world.enter(token())
    world.sessions.clear()
    assert again(world, principal) == principal


def external(world: World) -> Principal[str]:
    """The person with the identity of another issuer."""
    owner = world.owners["ext"] = Owner("usr_1", frozenset({"tasks:read"}), "Eve")
    return Principal(
        owner,
        CredentialKind.INTERACTIVE,
        owner.permissions,
        None,
        expires_at=NOW + HOUR,
        identity=IDENTITY,
    )


def test_an_external_identity_is_looked_for_as_such(world: World) -> None:
    principal = external(world)
    assert again(world, principal) == principal
    del world.owners["ext"]
    with refused_with("token_revoked"):
        again(world, principal)


def test_an_external_identity_that_has_another_owner_now_is_refused(world: World) -> None:
    principal = external(world)
    world.owners["ext"] = Owner("usr_2", frozenset({"tasks:read"}), "Bob")
    with refused_with("token_revoked"):
        again(world, principal)
