"""Tokens of other issuers: their owners are found by issuer and subject, and their age may be unknown."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.cases import refused_with
from tests.core.support import (
    ANN,
    BLOCKING,
    NOW,
    PROVIDER,
    SECOND,
    SECRET,
    MakeWorld,
    StubIssuer,
    World,
    external_token,
    profile,
    token,
)

from msk_auth import (
    Authenticator,
    CredentialKind,
    ExternalIdentity,
    KeyHasher,
    Owner,
    PepperRing,
    Principal,
    Users,
    require,
    require_interactive,
)
from msk_auth.errors import (
    ConfigurationError,
    InputInvalid,
    LoginTooOld,
    PermissionDenied,
    StoreUnavailable,
)
from msk_auth.stores.memory import MemoryKeyStore
from msk_auth.users import RequestSession


def external_world(
    issuer: StubIssuer | None = None, *, make: MakeWorld = BLOCKING, **options: Any
) -> tuple[World, dict[tuple[str, str], Any], list[ExternalIdentity]]:
    """A world, the owners of its external identities, and the identities that were looked up."""
    table: dict[tuple[str, str], Any] = {
        (PROVIDER, "00u1"): Owner("ann", frozenset({"tasks:read"}), "Ann")
    }
    looked_up: list[ExternalIdentity] = []

    def find(identity: ExternalIdentity) -> Any:
        looked_up.append(identity)
        answer = table.get((identity.issuer, identity.subject))
        if isinstance(answer, Exception):
            raise answer
        return answer

    world = make(issuers=[issuer or StubIssuer()], find_external_owner=find, **options)
    return world, table, looked_up


def test_the_owner_is_found_by_issuer_and_subject_and_never_by_the_subject_alone(
    make_world: MakeWorld,
) -> None:
    world, _, looked_up = external_world(make=make_world)
    principal = world.enter(external_token())
    assert (principal.owner.id, principal.user) == ("ann", "Ann")
    assert principal.kind is CredentialKind.INTERACTIVE
    assert principal.permissions == {"tasks:read"}
    assert (principal.authenticated_at, principal.session_id) == (NOW, None)
    assert principal.identity == ANN
    assert principal.identity.claims == {"email": "ann@example.com"}
    assert looked_up == [ANN]
    assert world.asked_owners == []


def test_a_find_external_owner_that_returns_no_owner_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, table, _ = external_world()
    table[PROVIDER, "00u1"] = {"id": "ann"}
    with pytest.raises(StoreUnavailable):
        world.enter(external_token())
    assert "find_external_owner returned dict. Return Owner of msk_auth, or None." in caplog.text


def test_an_identity_is_its_issuer_and_its_subject() -> None:
    assert ExternalIdentity(PROVIDER, "00u1", {}) == ANN
    assert (
        len({ANN, ExternalIdentity(PROVIDER, "00u1", {}), ExternalIdentity("x", "00u1", {})}) == 2
    )
    assert "ann@example.com" not in repr(ANN)


def test_tokens_of_this_application_have_no_external_identity() -> None:
    world, _, looked_up = external_world()
    principal = world.enter(token())
    assert (principal.owner.id, principal.identity) == ("ann", None)
    assert (world.asked_owners, looked_up) == (["ann"], [])


def test_a_token_of_no_known_issuer_is_refused() -> None:
    world, _, looked_up = external_world()
    with refused_with("token_invalid"):
        world.enter(token(iss="https://other.example"))
    assert looked_up == []


@pytest.mark.parametrize(
    "owner",
    [None, Owner("ann", frozenset(), "Ann", disabled=True), ValueError("for int()")],
    ids=["none", "disabled", "unreadable subject"],
)
def test_without_an_enabled_owner_the_token_is_refused(owner: Any) -> None:
    world, table, _ = external_world()
    table[PROVIDER, "00u1"] = owner
    with refused_with("token_revoked"):
        world.enter(external_token())


def test_a_look_up_that_fails_makes_the_store_unavailable(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world, table, _ = external_world(make=make_world)
    for error in (OSError("no database"), KeyError("a mistake")):
        table[PROVIDER, "00u1"] = error
        with pytest.raises(StoreUnavailable):
            world.enter(external_token())
    assert "the application's find_external_owner raised: KeyError" in caplog.text


def test_an_owner_that_the_look_up_has_just_made_is_accepted() -> None:
    world, table, _ = external_world(StubIssuer(NOW - timedelta(days=3)))
    table[PROVIDER, "00u1"] = Owner("ann", frozenset(), "Ann", since=NOW)
    assert world.enter(external_token()).owner.since == NOW


def test_a_login_of_unknown_age_fails_a_max_age_and_nothing_else() -> None:
    world, _, _ = external_world(StubIssuer(None))
    principal = world.enter(external_token())
    assert principal.authenticated_at is None
    world.auth.authorize(principal, require("tasks:read"))
    world.auth.authorize(principal, require_interactive())
    with pytest.raises(LoginTooOld) as refused:
        world.auth.authorize(principal, require_interactive(max_age=timedelta(days=900)))
    assert (refused.value.status, refused.value.code) == (401, "login_too_old")
    with pytest.raises(LoginTooOld):
        profile().exchange(principal, now=NOW, lifetime=timedelta(minutes=5))


# What the token was granted (G4).

GRANTED = [
    (None, {"tasks:read"}),
    (frozenset({"tasks:read", "openid"}), {"tasks:read"}),
    (frozenset({"openid"}), set[str]()),
    (frozenset[str](), set[str]()),
]


@pytest.mark.parametrize(("scopes", "effective"), GRANTED)
@pytest.mark.parametrize("lease", [None, timedelta(milliseconds=100)])
def test_effective_permissions_are_those_of_the_owner_that_were_granted(
    scopes: frozenset[str] | None,
    effective: set[str],
    lease: timedelta | None,
) -> None:
    world, table, _ = external_world(StubIssuer(scopes=scopes), lease=lease)
    principal = world.enter(external_token())
    assert (principal.permissions, principal.scopes) == (effective, scopes)
    assert world.enter(external_token()).permissions == effective
    # Both change at once: the owner's permissions now, and never more than was granted.
    table[PROVIDER, "00u1"] = Owner("ann", frozenset({"tasks:run", "openid"}), "Ann")
    again = world.verify_again(principal)
    assert again.permissions == {"tasks:run", "openid"} & (
        {"tasks:run", "openid"} if scopes is None else scopes
    )
    assert again.scopes == scopes


def test_an_identity_that_has_another_owner_now_is_refused_again() -> None:
    world, table, _ = external_world()
    principal = world.enter(external_token())
    table[PROVIDER, "00u1"] = Owner("bob", frozenset({"tasks:read"}), "Bob")
    with refused_with("token_revoked"):
        world.verify_again(principal)


def test_a_person_cannot_give_a_key_more_than_their_token_was_granted() -> None:
    issuer = StubIssuer(scopes=frozenset({"tasks:read"}))
    world, table, _ = external_world(issuer)
    owner = world.owners["ann"]
    table[PROVIDER, "00u1"] = owner
    principal = world.enter(external_token())
    with pytest.raises(InputInvalid):
        world.call("create_key", principal, name="ci", scopes=["tasks:run"])
    created = world.call("create_key", principal, name="ci")
    assert created.record.scopes == {"tasks:read"}
    assert created.record.scopes < owner.permissions
    # Nor by rotating one that has it.
    for scopes in (None, ["tasks:read", "tasks:run"]):
        wider = world.create(scopes=scopes).record
        with pytest.raises(PermissionDenied):
            world.call("rotate_key", principal, wider.id)
        # Without its networks it could be used from everywhere.
        with pytest.raises(PermissionDenied):
            world.call("update_key", principal, wider.id, networks=None)
        assert world.call("update_key", principal, wider.id, name="renamed").name == "renamed"
    assert world.call("rotate_key", principal, created.record.id).record.scopes == {"tasks:read"}


def test_a_person_cannot_give_a_key_of_another_owner_more_than_their_token_was_granted(
    make_world: MakeWorld,
) -> None:
    both = frozenset({"tasks:read", "tasks:run"})
    issuer = StubIssuer(scopes=frozenset({"tasks:read"}))
    world, table, _ = external_world(
        issuer, make=make_world, may_act_for=lambda _person, _owner: both
    )
    world.owners["svc"] = Owner("svc", both, None)
    table[PROVIDER, "00u1"] = world.owners["ann"]
    wider = world.call("create_key", world.login(), name="ci", on_behalf_of="svc").record
    assert wider.scopes == both
    principal = world.enter(external_token())
    with pytest.raises(InputInvalid):
        world.call("create_key", principal, name="ci", scopes=both, on_behalf_of="svc")
    created = world.call("create_key", principal, name="ci", on_behalf_of="svc").record
    assert created.scopes == {"tasks:read"}
    with pytest.raises(PermissionDenied):
        world.call("rotate_key", principal, wider.id, on_behalf_of="svc")
    with pytest.raises(PermissionDenied):
        world.call("update_key", principal, wider.id, networks=None, on_behalf_of="svc")
    # One that was granted nothing of the account's lists keys and ends them.
    issuer.scopes = frozenset({"openid"})
    nothing = world.enter(external_token())
    with pytest.raises(PermissionDenied):
        world.call("create_key", nothing, name="ci", on_behalf_of="svc")
    assert world.call("revoke_key", nothing, wider.id, on_behalf_of="svc").revoked_at is not None


def test_grants_of_a_token_give_no_more_than_the_person_may_hand_out() -> None:
    both, read = frozenset({"tasks:read", "tasks:run"}), frozenset({"tasks:read"})
    issuer = StubIssuer(scopes=both)
    world, table, _ = external_world(issuer, may_act_for=lambda _person, _owner: read)
    world.owners["svc"] = Owner("svc", both, None)
    table[PROVIDER, "00u1"] = world.owners["ann"]
    principal = world.enter(external_token())
    with pytest.raises(InputInvalid):
        world.call("create_key", principal, name="ci", scopes=both, on_behalf_of="svc")
    assert world.call("create_key", principal, name="ci", on_behalf_of="svc").record.scopes == read


def test_an_exchanged_token_and_a_reference_stay_limited(make_world: MakeWorld) -> None:
    issuer = StubIssuer(scopes=frozenset({"tasks:read", "openid"}))
    world, table, _ = external_world(
        issuer,
        make=make_world,
        find_session=None,
        hasher=KeyHasher(PepperRing({"2026": SECRET}, current="2026")),
    )
    table[PROVIDER, "00u1"] = world.owners["ann"]
    principal = world.enter(external_token())
    own = profile().exchange(principal, now=NOW, lifetime=timedelta(minutes=5))
    exchanged = world.enter(own)
    assert (exchanged.scopes, exchanged.permissions) == ({"tasks:read", "openid"}, {"tasks:read"})
    for each in (principal, exchanged):
        resumed = world.call("resume", world.auth.reference(each))
        assert resumed.permissions == {"tasks:read"}


def test_under_a_lease_an_owner_that_can_change_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, table, _ = external_world(lease=timedelta(milliseconds=100))
    table[PROVIDER, "00u1"] = Owner("ann", frozenset(), user=["changes"])
    with pytest.raises(StoreUnavailable):
        world.enter(external_token())
    assert "owner.user can change: it is a list" in caplog.text


def test_the_owner_of_a_subject_is_read_in_the_session_of_the_request() -> None:
    session, read_in = object(), list[object]()

    def load_user(found: object, identity: ExternalIdentity) -> ExternalIdentity:
        read_in.append(found)
        return identity

    def owner_of(identity: ExternalIdentity) -> Owner[None]:
        return Owner(f"owner of {identity.subject}", frozenset(), None)

    def new_session() -> Any:
        raise AssertionError("the request has a session")

    authenticator = Authenticator(
        MemoryKeyStore(),
        find_owner=lambda _: None,
        find_external_owner=Users(load_user, owner_of, new_session),
        issuers=[StubIssuer()],
    )
    principal = authenticator.authenticate(
        [f"Bearer {external_token()}"], request=RequestSession(lambda: session)
    )
    assert principal.owner.id == f"owner of {ANN.subject}"
    assert read_in == [session]


def test_without_external_owners_no_identity_has_one(make_world: MakeWorld) -> None:
    world = make_world()
    with refused_with("token_revoked"):
        world.verify_again(replace(world.login(), identity=ANN))


@pytest.mark.parametrize(
    "options",
    [
        {"issuers": [StubIssuer()]},
        {"find_external_owner": lambda _: None},
        {"issuers": [StubIssuer(), StubIssuer()], "find_external_owner": lambda _: None},
    ],
)
def test_a_set_up_that_cannot_work_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"issuer|find_external_owner"):
        Authenticator(MemoryKeyStore(), find_owner=lambda _: None, **options)


def test_a_principal_without_an_age_can_be_made_by_hand() -> None:
    owner = Owner("ann", frozenset[str](), "Ann")
    principal = Principal(owner, CredentialKind.INTERACTIVE, frozenset(), None)
    with pytest.raises(LoginTooOld):
        require_interactive(max_age=SECOND).check(principal, NOW)


def test_a_login_of_unknown_age_may_be_an_owners_of_the_application() -> None:
    world, _, looked_up = external_world(StubIssuer(None, subject="ann"))
    principal = world.enter(external_token())
    assert (principal.owner.id, principal.identity) == ("ann", None)
    assert principal.authenticated_at is None
    assert (world.asked_owners, looked_up) == (["ann"], [])
