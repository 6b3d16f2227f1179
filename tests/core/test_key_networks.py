"""Keys that work from some networks only: in the one order of checks, and for each request, under a lease too."""

from __future__ import annotations

import secrets
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.cases import refused_with
from tests.core.support import NOW, SECOND, MakeWorld, World, token

from msk_auth import KeyHasher, Owner, PepperRing
from msk_auth.errors import Forbidden, InputInvalid, StoreUnavailable
from msk_auth.events import CredentialUsed, KeyEvent, Refusal
from msk_auth.keys import CreatedKey

LEASE = timedelta(milliseconds=250)
INSIDE, MAPPED, OUTSIDE = "203.0.113.7", "::ffff:203.0.113.7", "198.51.100.1"
NETWORKS = ["203.0.113.0/24", "2001:db8::/32"]
NOT_FROM = [OUTSIDE, "::ffff:198.51.100.1", "2001:db9::1", None, "", "testclient", "2001:db8::1%eth0", "0313.0.113.7"]  # fmt: skip


def enter(world: World, created: CreatedKey, address: str | None) -> Any:
    return world.call("authenticate", [f"Bearer {created.value.reveal()}"], address=address)


def refused(world: World, created: CreatedKey, address: str | None) -> Forbidden:
    with pytest.raises(Forbidden) as caught:
        enter(world, created, address)
    assert caught.value.code == "address_not_allowed"
    return caught.value


@pytest.fixture(params=[None, LEASE], ids=["without a lease", "with a lease"])
def lease(request: pytest.FixtureRequest) -> timedelta | None:
    given: timedelta | None = request.param
    return given


@pytest.mark.parametrize("address", [INSIDE, MAPPED, "2001:db8::1", "203.0.113.255"])
def test_a_key_works_from_its_networks(lease: timedelta | None, address: str) -> None:
    world = World("sync", lease=lease)
    created = world.create(networks=NETWORKS)
    for _ in range(3):
        principal = enter(world, created, address)
        assert (principal.key_id, principal.address) == (created.record.id, address)
        assert principal.networks == set(NETWORKS)


@pytest.mark.parametrize("address", NOT_FROM, ids=repr)
def test_a_key_works_from_nowhere_else(lease: timedelta | None, address: str | None) -> None:
    world = World("sync", lease=lease)
    created = world.create(networks=NETWORKS)
    world.forget_calls()
    for _ in range(3):
        problem = refused(world, created, address)
        assert (problem.status, problem.challenge()) == (403, None)
    assert world.events == [Refusal(NOW, "address_not_allowed", created.record.id)] * 3
    # It was not used.
    world.call("flush")
    assert "touch" not in world.store.calls


def test_a_list_holds_for_each_request_under_a_warm_lease(make_world: MakeWorld) -> None:
    """Known from elsewhere: the list is checked when an entry is made, and skipped where it is found."""
    world = make_world(lease=LEASE)
    created = world.create(networks=NETWORKS)
    enter(world, created, INSIDE)
    world.forget_calls()
    refused(world, created, OUTSIDE)
    assert enter(world, created, "2001:db8::1").address == "2001:db8::1"
    refused(world, created, None)
    assert enter(world, created, INSIDE).address == INSIDE
    # All of it from the entry.
    assert world.store.calls == []
    codes = [each.code if isinstance(each, Refusal) else "used" for each in world.events]
    assert codes == ["address_not_allowed", "used", "address_not_allowed", "used"]


def test_a_request_from_outside_does_not_keep_others_from_the_lease() -> None:
    world = World("sync", lease=LEASE)
    created = world.create(networks=NETWORKS)
    refused(world, created, OUTSIDE)
    world.forget_calls()
    assert enter(world, created, INSIDE).key_id == created.record.id
    assert world.store.calls == []


def test_the_look_up_by_header_alone_finds_no_key_with_networks() -> None:
    """`cached_principal` does not know the address; adapters with threads ask it first."""
    world = World("sync", lease=LEASE, on_event=None)
    limited, free = world.create(networks=NETWORKS), world.create()
    for created in (limited, free):
        enter(world, created, INSIDE)
    found = [
        world.auth.cached_principal([f"Bearer {created.value.reveal()}"])
        for created in (limited, free)
    ]
    assert found[0] is None
    assert found[1] is not None
    assert found[1].key_id == free.record.id


def test_a_key_without_networks_and_a_login_work_from_everywhere(lease: timedelta | None) -> None:
    world = World("sync", lease=lease)
    created = world.create()
    for address in (*NOT_FROM, INSIDE):
        principal = enter(world, created, address)
        assert (principal.networks, principal.address) == (None, None)
        world.call("authenticate", [f"Bearer {token()}"], address=address)


# The order of the checks: only the holder of the right secret learns that there is a list.


def test_a_wrong_secret_is_unknown_from_everywhere(lease: timedelta | None) -> None:
    world = World("sync", lease=lease)
    created = world.create(networks=NETWORKS)
    # A well-formed key of a record with the digest of another one.
    forged = world.auth.rules.key_format.generate()
    world.store.put(replace(created.record, id=forged.id))
    answers = set()
    for address in (INSIDE, OUTSIDE, None):
        with refused_with("key_unknown") as unknown:
            world.call("authenticate", [f"Bearer {forged.reveal()}"], address=address)
        answers.add((unknown.value.code, unknown.value.detail))
    assert len(answers) == 1


@pytest.mark.parametrize("address", [INSIDE, OUTSIDE, None])
def test_what_has_ended_is_answered_alike_from_everywhere(
    world: World, address: str | None
) -> None:
    created = world.create(networks=NETWORKS)
    for state, error in (
        ({"revoked_at": NOW}, "key_revoked"),
        ({"expires_at": NOW}, "key_expired"),
    ):
        world.store.put(replace(created.record, **state))  # type: ignore[arg-type]
        with refused_with(error):
            enter(world, created, address)
    world.store.put(created.record)
    world.owners["ann"] = Owner("ann", frozenset(), "Ann", disabled=True)
    with refused_with("owner_disabled"):
        enter(world, created, address)


@pytest.mark.parametrize("networks", [frozenset({"everywhere"}), frozenset({"203.0.113.0/24", ""})])
def test_a_stored_list_that_cannot_be_read_refuses(
    lease: timedelta | None, networks: frozenset[str]
) -> None:
    world = World("sync", lease=lease)
    created = world.create()
    world.store.put(replace(created.record, networks=networks))
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            enter(world, created, OUTSIDE)


def test_an_empty_stored_list_is_nowhere(lease: timedelta | None) -> None:
    world = World("sync", lease=lease)
    created = world.create()
    world.store.put(replace(created.record, networks=frozenset()))
    refused(world, created, INSIDE)


# Giving a key networks, and changing them.


def test_networks_are_normalised_and_handed_on(world: World) -> None:
    given = ["203.0.113.0/24", "::ffff:203.0.113.0/120", "2001:DB8::/32", "192.0.2.1"]
    created = world.create(networks=given)
    expected = {"203.0.113.0/24", "2001:db8::/32", "192.0.2.1/32"}
    assert created.record.networks == expected
    successor = world.call("rotate_key", world.login(), created.record.id)
    assert successor.record.networks == expected


def test_narrowing_the_networks_waits_for_leases_and_holds_at_once(make_world: MakeWorld) -> None:
    """G2: after the call returned no verification from elsewhere succeeds."""
    world = make_world(lease=LEASE)
    created = world.create()
    enter(world, created, OUTSIDE)
    world.forget_calls()
    record = world.call("update_key", world.login(), created.record.id, networks=NETWORKS)
    assert record == replace(created.record, networks=frozenset(NETWORKS))
    assert world.events == [KeyEvent("updated", NOW, record, world.login(), fields=("networks",))]
    assert len(world.clock.slept) == 1
    assert world.clock.slept[0] > LEASE.total_seconds()
    refused(world, created, OUTSIDE)
    assert enter(world, created, INSIDE).key_id == record.id
    world.call("update_key", world.login(), record.id, networks=None)
    assert enter(world, created, OUTSIDE).networks is None


WRONG: list[Any] = [
    [], [""], ["203.0.113.7/24"], ["everywhere"], ["203.0.113.0/24", "x"], "203.0.113.0/24", [1], [None],
    [f"10.0.0.{number}" for number in range(51)],
]  # fmt: skip


@pytest.mark.parametrize("networks", WRONG, ids=range(len(WRONG)))
def test_networks_that_mean_nothing_are_refused(world: World, networks: Any) -> None:
    created = world.create()
    world.forget_calls()
    for method, args in (("create_key", ()), ("update_key", (created.record.id,))):
        with pytest.raises(InputInvalid) as invalid:
            world.call(method, world.login(), *args, name="ci", networks=networks)
        assert [error.field for error in invalid.value.errors] == ["networks"]
    assert world.store.calls == []


@pytest.mark.parametrize(
    ("networks", "message"),
    [
        ([], "Give 1 to 50 networks, or none at all"),
        (["everywhere"], "This is not a network. Write a network such as 203.0.113.0/24"),
        (["203.0.113.7/24"], "Write 203.0.113.0/24 for the whole network"),
    ],
)
def test_the_refusal_says_what_to_write(world: World, networks: Any, message: str) -> None:
    with pytest.raises(InputInvalid) as invalid:
        world.create(networks=networks)
    (error,) = invalid.value.errors
    assert error.field == "networks"
    assert message in error.message


def test_fifty_networks_are_accepted(world: World) -> None:
    given = {f"10.0.0.{number}/32" for number in range(50)}
    assert world.create(networks=given).record.networks == given


# What goes on after a request, and what has no address.


def test_what_is_verified_again_keeps_its_address(make_world: MakeWorld) -> None:
    """An open connection ends when its address is taken off the list."""
    world = make_world()
    created = world.create(networks=NETWORKS)
    principal = enter(world, created, INSIDE)

    def again() -> Any:
        return world.verify_again(principal)

    assert again() == principal
    world.store.put(replace(created.record, networks=frozenset({"203.0.113.7/32"})))
    assert again().address == INSIDE
    world.store.put(replace(created.record, networks=frozenset({"198.51.100.0/24"})))
    with refused_with("address_not_allowed"):
        again()
    world.store.put(replace(created.record, networks=None))
    assert again().networks is None


def test_a_connection_ends_when_a_key_gets_networks_that_it_had_not(world: World) -> None:
    created = world.create()
    principal = enter(world, created, INSIDE)
    world.store.put(replace(created.record, networks=frozenset(NETWORKS)))
    with refused_with("address_not_allowed"):
        world.verify_again(principal)


def test_a_reference_is_resumed_without_an_address() -> None:
    """It was made by a request from one of the networks."""
    world = World("sync", hasher=KeyHasher(PepperRing({"p": secrets.token_bytes(32)}, current="p")))
    created = world.create(networks=NETWORKS)
    reference = world.auth.reference(enter(world, created, INSIDE))
    resumed = world.call("resume", reference)
    assert (resumed.key_id, resumed.resumed) == (created.record.id, True)
    assert world.verify_again(resumed).resumed
    world.call("revoke_key", world.login(), created.record.id)
    with refused_with("key_revoked"):
        world.call("resume", reference)


def test_a_key_is_revoked_from_everywhere(world: World) -> None:
    created = world.create(networks=NETWORKS)
    assert world.call("revoke_presented_key", created.value.reveal()).revoked_at == NOW
    with refused_with("key_revoked"):
        enter(world, created, INSIDE)


def test_a_use_is_an_event_of_the_address(world: World) -> None:
    created = world.create(networks=NETWORKS)
    world.forget_calls()
    world.clock.advance(SECOND)
    principal = enter(world, created, INSIDE)
    assert world.events == [CredentialUsed(NOW + SECOND, principal)]
