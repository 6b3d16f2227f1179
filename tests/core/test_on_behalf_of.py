"""Keys of another owner, such as a service account: who manages them, and what such a key may get at most."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import case, refused_with
from tests.core.support import BLOCKING, NOW, SECOND, MakeWorld, World, token
from tests.core.test_key_management import OPERATIONS as METHODS

from msk_auth import CredentialKind, KeyLimits, Owner, Principal, Session
from msk_auth.errors import (
    ConfigurationError,
    InputInvalid,
    InteractiveRequired,
    KeyNotFound,
    PermissionDenied,
    StoreUnavailable,
)
from msk_auth.events import KeyEvent
from msk_auth.keys import CreatedKey

DAY = timedelta(days=1)
ACME = "org:acme"
READ, RUN = "tasks:read", "tasks:run"
MAKING = ["create_key", "rotate_key"]


class Team:
    """The people who act for a service account, by the rule of an application.

    Attributes:
        handed: What each of them may hand out; an exception is raised.
        asked: The person and the owner of each question.
        meanwhile: What happens right after the first question.
    """

    def __init__(self, make_world: MakeWorld) -> None:
        self.handed: dict[str, Any] = {"ann": {READ, RUN, "admin:config"}}
        self.asked: list[tuple[Principal[Any], str]] = []
        self.meanwhile: Callable[[], object] = lambda: None
        self.world = make_world(may_act_for=self._may_act_for)
        self.world.owners[ACME] = Owner(ACME, {READ, RUN}, "Acme")

    def _may_act_for(self, principal: Principal[Any], owner: Owner[Any]) -> Any:
        self.asked.append((principal, owner.id))
        answer = self.handed.get(principal.owner.id) if owner.id == ACME else None
        if len(self.asked) == 1:
            self.meanwhile()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def call(self, method: str, *args: object, by: Any = "ann", **options: object) -> Any:
        """An operation of a person on the keys of the service account."""
        caller = self.world.login(by) if isinstance(by, str) else by
        return self.world.call(method, caller, *args, on_behalf_of=ACME, **options)

    def create(self, **options: Any) -> CreatedKey:
        created: CreatedKey = self.call("create_key", **{"name": "deploy", **options})
        return created

    def written(self) -> list[str]:
        """The writes since the calls were forgotten."""
        writes = {"insert", "revoke", "delete", "expire", "rotate", "update"}
        return [name for name in self.world.store.calls if name in writes]

    def forget(self) -> None:
        self.world.forget_calls()
        self.asked.clear()


@pytest.fixture
def team() -> Team:
    return Team(BLOCKING)


def test_a_person_makes_a_key_that_is_the_accounts(team: Team) -> None:
    ann = team.world.login()
    created = team.create(scopes=[READ])
    assert (created.record.owner_id, created.record.scopes) == (ACME, {READ})
    assert team.world.events == [KeyEvent("created", NOW, created.record, ann)]
    principal = team.world.enter(created.value.reveal())
    assert (principal.owner.id, principal.permissions) == (ACME, {READ})


def test_each_event_names_the_person_and_the_account(make_world: MakeWorld) -> None:
    team = Team(make_world)
    world, ann = team.world, team.world.login()
    created = team.create()
    successor = team.call("rotate_key", created.record.id)
    expired = team.call("expire_key", successor.record.id, at=NOW + DAY)
    edited = team.call("update_key", successor.record.id, labels=["env:prod"])
    revoked = team.call("revoke_key", successor.record.id)
    team.call("delete_key", successor.record.id)
    other = team.create()
    ended = team.call("expire_key", other.record.id, at=NOW)
    assert world.events == [
        KeyEvent("created", NOW, created.record, ann),
        KeyEvent(
            "rotated", NOW, world.store.get(created.record.id), ann, successor=successor.record
        ),
        KeyEvent("expiry_set", NOW, expired, ann),
        KeyEvent("updated", NOW, edited, ann, fields=("labels",)),
        KeyEvent("revoked", NOW, revoked, ann, cause="delegate"),
        KeyEvent("deleted", NOW, world.store.get(successor.record.id), ann),
        KeyEvent("created", NOW, other.record, ann),
        KeyEvent("revoked", NOW, ended, ann, cause="delegate"),
    ]
    assert {event.record.owner_id for event in world.events} == {ACME}


def test_a_person_reads_the_accounts_keys_and_their_own_apart(team: Team) -> None:
    theirs, own = team.create().record, team.world.create().record
    assert team.call("list_keys").items == (theirs,)
    assert team.world.call("list_keys", team.world.login()).items == (own,)
    assert team.call("get_key", theirs.id) == theirs
    for method in ("get_key", "rotate_key", "update_key", "revoke_key", "delete_key"):
        args, options = METHODS[method](own.id)
        with pytest.raises(KeyNotFound):
            team.call(method, *args, **options)
        with pytest.raises(KeyNotFound):
            team.world.call(method, team.world.login(), theirs.id, **options)


# G3: only a person acts for another owner.


@pytest.mark.parametrize("method", METHODS)
def test_only_a_login_acts_for_another_owner(team: Team, method: str) -> None:
    created = team.create()
    team.forget()
    args, options = METHODS[method](created.record.id)
    kinds: tuple[Any, ...] = (CredentialKind.API_KEY, CredentialKind.TOKEN, None)
    for kind in kinds:
        with case(kind):
            caller = replace(team.world.login(), kind=kind)
            with pytest.raises(InteractiveRequired):
                team.call(method, *args, by=caller, **options)
            assert (team.asked, team.world.store.calls, team.world.asked_owners) == ([], [], [])


# Who may act: the application says so, each time.

NO_OWNER = ["", "\x00", "org:acme\n", "\ud800", "A" * 256, "A" * 1_000_000]


@pytest.mark.parametrize("method", METHODS)
def test_an_unknown_owner_is_answered_as_one_of_others(team: Team, method: str) -> None:
    created = team.create()
    team.forget()
    args, options = METHODS[method](created.record.id)
    answers = set()
    for by, owner_id in [("bob", ACME), ("ann", "nobody"), ("ann", "bob"), ("ann", "ann")]:
        caller = team.world.login(by)
        with pytest.raises(PermissionDenied) as refused:
            team.world.call(method, caller, *args, on_behalf_of=owner_id, **options)
        answers.add((refused.value.detail, refused.value.required))
    assert answers == {("You may not act on behalf of this owner.", ())}
    assert (team.world.store.calls, team.world.events) == ([], [])


@pytest.mark.parametrize("owner_id", NO_OWNER, ids=range(len(NO_OWNER)))
def test_what_cannot_be_an_id_is_looked_up_nowhere(team: Team, owner_id: str) -> None:
    with pytest.raises(PermissionDenied):
        team.world.call("list_keys", team.world.login(), on_behalf_of=owner_id)
    assert (team.asked, team.world.asked_owners) == ([], ["ann"])


@pytest.mark.parametrize("length", [1, 255])
def test_the_shortest_and_the_longest_id_are_looked_up(team: Team, length: int) -> None:
    with pytest.raises(PermissionDenied):
        team.world.call("list_keys", team.world.login(), on_behalf_of="A" * length)
    assert team.world.asked_owners == ["ann", "A" * length]


def test_the_rule_gets_the_person_as_they_are_now(team: Team) -> None:
    caller = team.world.login()
    team.world.owners["ann"] = Owner("ann", frozenset(), "Ann after her move")
    team.call("list_keys", by=caller)
    ((asked, _),) = team.asked
    assert (asked.user, asked.permissions) == ("Ann after her move", frozenset())


@pytest.mark.parametrize("method", METHODS)
def test_an_application_without_the_rule_has_no_such_operation(world: World, method: str) -> None:
    world.owners[ACME] = Owner(ACME, {READ}, "Acme")
    args, options = METHODS[method]("A" * 12)
    with pytest.raises(ConfigurationError, match="may_act_for="):
        world.call(method, world.login(), *args, on_behalf_of=ACME, **options)
    assert world.store.calls == []


@pytest.mark.parametrize("method", METHODS)
def test_a_rule_that_fails_permits_nothing(team: Team, method: str) -> None:
    created = team.create()
    args, options = METHODS[method](created.record.id)
    for answer in (LookupError(), True, READ, {READ: True}, [1]):
        with case(answer):
            team.forget()
            team.handed["ann"] = answer
            with pytest.raises(StoreUnavailable):
                team.call(method, *args, **options)
            assert (team.world.store.calls, team.world.events) == ([], [])


GIVING: dict[str, Callable[[str], tuple[str, tuple[Any, ...], dict[str, Any]]]] = {
    "a key": lambda _: ("create_key", (), {"name": "more"}),
    "a key without scopes": lambda _: ("create_key", (), {"name": "more", "scopes": []}),
    "a key with scopes": lambda _: ("create_key", (), {"name": "more", "scopes": [READ]}),
    "a successor": lambda key_id: ("rotate_key", (key_id,), {}),
    "a name": lambda key_id: ("update_key", (key_id,), {"name": "edited"}),
    "a label": lambda key_id: ("update_key", (key_id,), {"labels": ["env:prod"]}),
    "networks": lambda key_id: ("update_key", (key_id,), {"networks": ["10.0.0.0/8"]}),
    "every network": lambda key_id: ("update_key", (key_id,), {"networks": None}),
}


@pytest.mark.parametrize("scopes", [[READ, RUN], []], ids=["a key", "a key without scopes"])
@pytest.mark.parametrize("handed", [[], ["admin:config"]], ids=["nothing", "what it has not"])
def test_a_person_who_may_hand_out_nothing_gives_nothing(
    team: Team, handed: list[str], scopes: list[str]
) -> None:
    created = team.create(scopes=scopes, networks=["192.0.2.0/24"])
    team.forget()
    team.handed["ann"] = handed
    for what, giving in GIVING.items():
        with case(what):
            method, args, options = giving(created.record.id)
            with pytest.raises(PermissionDenied) as refused:
                team.call(method, *args, **options)
            assert refused.value.required == ()
            assert (team.written(), team.world.events) == ([], [])


@pytest.mark.parametrize("handed", [[], ["admin:config"]], ids=["nothing", "what it has not"])
def test_a_person_who_may_hand_out_nothing_reads_and_ends_keys(
    team: Team, handed: list[str]
) -> None:
    created, other = team.create(), team.create()
    team.handed["ann"] = handed
    assert set(team.call("list_keys").items) == {created.record, other.record}
    assert team.call("get_key", created.record.id) == created.record
    assert team.call("expire_key", created.record.id, at=NOW + DAY).expires_at == NOW + DAY
    assert team.call("revoke_key", created.record.id).revoked_at == NOW
    team.call("delete_key", other.record.id)
    assert team.world.store.get(other.record.id).revoked_at == NOW


@pytest.mark.parametrize("networks", [None, ["0.0.0.0/0"], ["192.0.2.7/32"]], ids=str)
def test_changing_networks_takes_the_right_to_hand_out_all_scopes(
    team: Team, networks: list[str] | None
) -> None:
    created = team.create(scopes=[READ, RUN], networks=["192.0.2.0/24"])
    team.forget()
    team.handed["ann"] = {READ}
    key_id = created.record.id
    with pytest.raises(PermissionDenied) as refused:
        team.call("update_key", key_id, networks=networks, name="edited")
    assert refused.value.required == (READ, RUN)
    assert (team.written(), team.world.events) == ([], [])
    # Its name gives nothing.
    assert team.call("update_key", key_id, name="edited").name == "edited"
    # The account may get back what it has lost, and the key with it.
    team.world.owners[ACME] = Owner(ACME, {READ}, "Acme")
    with pytest.raises(PermissionDenied):
        team.call("update_key", key_id, networks=networks)
    team.handed["ann"] = {READ, RUN}
    changed = team.call("update_key", key_id, networks=networks)
    assert changed.networks == (None if networks is None else set(networks))


def test_networks_of_a_key_with_all_permissions_of_its_owner_stay(team: Team) -> None:
    created = _key_of_the_account_itself(team)
    with pytest.raises(PermissionDenied):
        team.call("update_key", created.record.id, networks=None)
    assert team.call("update_key", created.record.id, name="edited").name == "edited"


def test_networks_of_no_key_of_the_account_are_not_found(team: Team) -> None:
    own = team.world.create()
    with pytest.raises(KeyNotFound):
        team.call("update_key", own.record.id, networks=None)


# Before the write the rule is asked again: a key of an account outlives the person who made it.


def _end_session(world: World) -> None:
    world.sessions["s1"] = Session("s1", "ann", ended_at=NOW)


MEANWHILE: dict[str, tuple[Callable[[Team], object], str]] = {
    "the person is disabled": (
        lambda team: team.world.owners.update(
            ann=replace_owner(team.world.owners["ann"], disabled=True)
        ),
        "token_revoked",
    ),
    "the person is deleted": (lambda team: team.world.owners.pop("ann"), "token_revoked"),
    "the person logs out": (lambda team: _end_session(team.world), "token_revoked"),
    "the person leaves the team": (lambda team: team.handed.pop("ann"), "permission_denied"),
    "the person loses a permission": (
        lambda team: team.handed.update(ann={READ}),
        "permission_denied",
    ),
    "the account loses a permission": (
        lambda team: team.world.owners.update({ACME: Owner(ACME, {READ}, "Acme")}),
        "permission_denied",
    ),
    "the account is disabled": (
        lambda team: team.world.owners.update(
            {ACME: replace_owner(team.world.owners[ACME], disabled=True)}
        ),
        "input_invalid",
    ),
    "the account is deleted": (lambda team: team.world.owners.pop(ACME), "permission_denied"),
    "the person may hand out nothing": (
        lambda team: team.handed.update(ann=()),
        "permission_denied",
    ),
}


def replace_owner(owner: Owner[Any], **changes: Any) -> Owner[Any]:
    known = {name: getattr(owner, name) for name in ("id", "permissions", "user", "since")}
    return Owner(**known, **changes)


@pytest.mark.parametrize(
    ("method", "what"),
    [
        *itertools.product(MAKING, MEANWHILE),
        *(("update_key", what) for what in MEANWHILE if what.startswith("the person")),
    ],
)
def test_no_key_is_made_for_a_person_who_may_not_any_more(
    make_world: MakeWorld, method: str, what: str
) -> None:
    """Nor given other networks."""
    team = Team(make_world)
    created = team.create(networks=["192.0.2.0/24"])
    team.forget()
    caller = replace(team.world.login(), session_id="s1")
    happen, error = MEANWHILE[what]
    team.meanwhile = lambda: happen(team)
    args, options = METHODS[method](created.record.id)
    if method == "update_key":
        options = {"networks": None}
    with refused_with(error):
        team.call(method, *args, by=caller, **options)
    assert (team.written(), team.world.events) == ([], [])
    assert team.world.store.get(created.record.id) == created.record


def test_the_refusal_names_the_scopes_of_the_key_that_was_not_made(team: Team) -> None:
    team.meanwhile = lambda: team.handed.update(ann={READ})
    with pytest.raises(PermissionDenied) as refused:
        team.create(scopes=[RUN, READ])
    assert refused.value.required == (READ, RUN)


@pytest.mark.parametrize("method", METHODS)
def test_a_login_that_has_ended_since_acts_for_no_one(team: Team, method: str) -> None:
    created = team.create()
    team.forget()
    caller = replace(team.world.login(), expires_at=NOW + SECOND)
    team.world.clock.advance(SECOND)
    args, options = METHODS[method](created.record.id)
    with refused_with("token_expired"):
        team.call(method, *args, by=caller, **options)
    assert (team.asked, team.world.store.calls) == ([], [])


@pytest.mark.parametrize("method", MAKING)
def test_no_key_is_made_by_a_login_that_ends_meanwhile(team: Team, method: str) -> None:
    created = team.create()
    team.forget()
    caller = replace(team.world.login(), expires_at=NOW + DAY)
    args, options = METHODS[method](created.record.id)
    # The time of the operation is the one at which it began.
    team.meanwhile = lambda: team.world.clock.advance(DAY)
    assert team.call(method, *args, by=caller, **options).record.created_at == NOW


def test_a_disabled_account_gets_no_key_and_loses_those_it_has(team: Team) -> None:
    created = team.create()
    team.forget()
    team.world.owners[ACME] = replace_owner(team.world.owners[ACME], disabled=True)
    for method in MAKING:
        args, options = METHODS[method](created.record.id)
        with pytest.raises(InputInvalid) as refused:
            team.call(method, *args, **options)
        assert refused.value.errors[0].field == "on_behalf_of"
    assert team.written() == []
    assert team.call("revoke_key", created.record.id).revoked_at == NOW


# G4: a key gets at most what its owner has and the person may hand out.

PERMISSIONS = ["a", "b", "c", "d"]
some = st.frozensets(st.sampled_from(PERMISSIONS))


@given(owned=some, handed=some, wanted=st.none() | some, later=some, rotated_by=some)
def test_no_key_gets_more_than_the_owner_has_and_the_person_may_hand_out(
    owned: frozenset[str],
    handed: frozenset[str],
    wanted: frozenset[str] | None,
    later: frozenset[str],
    rotated_by: frozenset[str],
) -> None:
    with closing(World("sync", may_act_for=lambda *_: rule[0])) as world:
        rule: list[Any] = [handed]
        world.owners[ACME] = Owner(ACME, owned, "Acme")
        ceiling = owned & handed
        make = {"name": "deploy", "scopes": wanted, "on_behalf_of": ACME}
        if not ceiling:
            with pytest.raises(PermissionDenied):
                world.call("create_key", world.login(), **make)
            return
        if wanted is not None and not wanted <= ceiling:
            with pytest.raises(InputInvalid):
                world.call("create_key", world.login(), **make)
            return
        created = world.call("create_key", world.login(), **make)
        assert created.record.scopes == (ceiling if wanted is None else wanted)
        # Whatever the owner gets later, the key does not.
        world.owners[ACME] = Owner(ACME, PERMISSIONS, "Acme")
        assert world.enter(created.value.reveal()).permissions == created.record.scopes
        # Nor does another manager get more by rotating it than they may hand out.
        world.owners[ACME] = Owner(ACME, later, "Acme")
        live, rule[0] = created.record.scopes & later, rotated_by
        if not live <= rotated_by or not later & rotated_by:
            with pytest.raises(PermissionDenied) as refused:
                world.call("rotate_key", world.login(), created.record.id, on_behalf_of=ACME)
            assert refused.value.required == (tuple(sorted(live)) if later & rotated_by else ())
            return
        successor = world.call("rotate_key", world.login(), created.record.id, on_behalf_of=ACME)
        assert successor.record.scopes == live


def test_a_key_with_all_permissions_of_its_owner_is_not_rotated_on_its_behalf(team: Team) -> None:
    created = _key_of_the_account_itself(team)
    with pytest.raises(PermissionDenied, match="Create a key with scopes"):
        team.call("rotate_key", created.record.id)
    assert team.call("revoke_key", created.record.id).revoked_at == NOW


def _key_of_the_account_itself(team: Team) -> CreatedKey:
    """One that the account got from the application's own code."""
    account = team.world.owners[ACME]
    caller = Principal(account, CredentialKind.INTERACTIVE, account.permissions, NOW)
    created: CreatedKey = team.world.call("create_key", caller, name="old")
    assert created.record.scopes is None
    return created


def test_the_limits_are_those_of_the_account(team: Team) -> None:
    team.world.limits = KeyLimits(max_active=1, max_lifetime=DAY)
    team.world.create()
    created = team.create()
    assert created.record.expires_at == NOW + DAY


# A key lives and dies with its account alone.


def test_a_key_belongs_to_the_account_that_is_there_when_it_is_made(team: Team) -> None:
    world = team.world
    # The account's clock may be ahead.
    world.owners[ACME] = Owner(ACME, {READ}, "Acme", since=NOW + SECOND)
    created = team.create()
    assert created.record.created_at == NOW + SECOND
    world.clock.advance(DAY)
    # The person's id goes to another person: that is nothing to the key.
    world.owners["ann"] = Owner("ann", frozenset(), "Another Ann", since=NOW + DAY)
    assert world.enter(created.value.reveal()).owner.id == ACME
    # The account's id goes to another account: the key is not theirs.
    world.owners[ACME] = Owner(ACME, {READ}, "Another Acme", since=NOW + DAY)
    with refused_with("owner_disabled"):
        world.enter(created.value.reveal())


def test_forgetting_the_person_leaves_the_keys_of_the_account(team: Team) -> None:
    created, own = team.create(), team.world.create()
    del team.world.owners["ann"]
    assert team.world.call("forget_owner", "ann") == 1
    assert team.world.store.get(own.record.id).revoked_at == NOW
    assert team.world.enter(created.value.reveal()).owner.id == ACME


def test_a_login_with_a_session_acts_where_no_sessions_are_looked_up() -> None:
    world = World("sync", find_session=None, may_act_for=lambda _principal, _owner: {READ})
    world.owners[ACME] = Owner(ACME, {READ}, "Acme")
    login = world.enter(token())
    assert login.session_id == "s1"
    created: CreatedKey = world.call("create_key", login, name="ci", on_behalf_of=ACME)
    assert created.record.owner_id == ACME
