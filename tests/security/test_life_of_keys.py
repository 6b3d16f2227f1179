"""Any sequence of operations, against a model of who may pass (guarantees G2, G3 and G4; ASVS 5.0, 7.4 and 8.3).

The model keeps for each key what was done to it. After every step every key is tried, and every reference that was made of
one: the answer must be the model's. So no order of creating, rotating, revoking, expiring, flushing and waiting brings a key
back to life, lets one act beyond its owner or from outside of its networks, or lets one make another; queued work ends with
its key; and who acts for a service account hands out no more than the application says. Carl may act for the account, with all
that it may do; whether Bob may, and with what, changes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)
from tests.cases import refused_with
from tests.core.support import SECRET, World

from msk_auth import ApiKey, KeyHasher, Owner, PepperRing, Principal, require
from msk_auth.errors import (
    InputInvalid,
    InteractiveRequired,
    KeyNotFound,
    PermissionDenied,
    Problem,
)

pytestmark = [pytest.mark.slow, pytest.mark.no_cover]

PERMISSIONS = frozenset({"read", "write", "admin"})
PEOPLE = ("ann", "bob")
ACCOUNT = "org:acme"
OWNERS = (*PEOPLE, ACCOUNT)
ROOT = "root"
# Acts for the account, and may hand out all of its permissions.
STEWARD = "carl"
DAY = timedelta(days=1)

owners = st.sampled_from(OWNERS)
scopes = st.none() | st.frozensets(st.sampled_from(sorted(PERMISSIONS)))
lifetimes = st.sampled_from([timedelta(hours=1), DAY, 30 * DAY, "default"])
permissions_of = st.frozensets(st.sampled_from(sorted(PERMISSIONS)))
# From each list to the addresses that are in it.
INSIDE: dict[frozenset[str] | None, tuple[str | None, ...]] = {
    None: (None, "192.0.2.9", "2001:db8::9"),
    frozenset({"192.0.2.0/24"}): ("192.0.2.9", "::ffff:192.0.2.9"),
    frozenset({"2001:db8::/32", "198.51.100.7/32"}): ("198.51.100.7", "2001:db8::9"),
}
ADDRESSES = sorted({address for some in INSIDE.values() for address in some if address is not None})
networks_of_keys = st.sampled_from(list(INSIDE))
resources_of_keys = st.sampled_from([None, frozenset[str](), frozenset({"task:1", "task:2"})])
keys = Bundle("keys")


@dataclass
class Model:
    """What is known about one key."""

    value: str
    owner_id: str
    scopes: frozenset[str] | None
    expires_at: datetime | None
    networks: frozenset[str] | None
    resources: frozenset[str] | None
    revoked: bool = False
    deleted: bool = False
    rotated: bool = False

    def active(self, now: datetime) -> bool:
        return not self.revoked and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True)
class QueuedWork:
    """A reference, and what it stands for: a key, or the login of a person until a moment."""

    text: str
    key_id: str | None
    owner_id: str
    ends_at: datetime | None = None


class LifeOfKeys(RuleBasedStateMachine):
    @initialize(target=keys, bob_hands_out=permissions_of, some=scopes)
    def begin(self, bob_hands_out: frozenset[str], some: frozenset[str] | None) -> Any:
        self.world = World(
            "sync",
            on_event=None,
            hasher=KeyHasher(PepperRing({"1": SECRET}, current="1")),
            may_act_for=self.may_act_for,
        )
        self.admin = self.world.auth.admin_keys("keys:admin")
        self.models: dict[str, Model] = {}
        self.work: list[QueuedWork] = []
        self.bob_hands_out: frozenset[str] | None = bob_hands_out
        for owner_id in OWNERS:
            self.set_owner(owner_id, PERMISSIONS, disabled=False)
        self.set_owner(STEWARD, frozenset(), disabled=False)
        self.set_owner(ROOT, frozenset({"keys:admin"}), disabled=False)
        # Without them most of a search would pass before there is something to act on.
        made = [self.create(owner_id, some, "default") for owner_id in OWNERS]
        for key_id in made:
            self.queue_work_of_a_key(key_id)
        self.queue_work_of_a_login("ann", DAY)
        return multiple(*made)

    def may_act_for(self, principal: Principal[Any], owner: Owner[Any]) -> frozenset[str] | None:
        if owner.id != ACCOUNT:
            return None
        return {STEWARD: PERMISSIONS, "bob": self.bob_hands_out}.get(principal.owner.id)

    def set_owner(self, owner_id: str, permissions: frozenset[str], *, disabled: bool) -> None:
        self.world.owners[owner_id] = Owner(owner_id, permissions, owner_id, disabled)

    def login(self, owner_id: str) -> Any:
        return self.world.login(owner_id)

    def manage(self, method: str, owner_id: str, *args: Any, **options: Any) -> Any:
        """An operation of the owner, or of Carl for the account."""
        if owner_id != ACCOUNT:
            return self.world.call(method, self.login(owner_id), *args, **options)
        return self.world.call(method, self.login(STEWARD), *args, on_behalf_of=ACCOUNT, **options)

    def added(self, created: Any, owner_id: str) -> str:
        record: ApiKey = created.record
        self.models[record.id] = Model(
            created.value.reveal(),
            owner_id,
            record.scopes,
            record.expires_at,
            record.networks,
            record.resources,
        )
        return record.id

    def try_key(self, key_id: str) -> tuple[str, Any]:
        """From an address that the key works from."""
        model = self.models[key_id]
        return self.try_from(INSIDE[model.networks][0], model.value)

    def try_from(self, address: str | None, value: str) -> tuple[str, Any]:
        try:
            return "accepted", self.world.call("authenticate", [f"Bearer {value}"], address=address)
        except Problem as problem:
            return problem.code, None

    @rule(
        target=keys,
        owner_id=owners,
        scopes=scopes,
        lifetime=lifetimes,
        networks=networks_of_keys,
        resources=resources_of_keys,
    )
    def create(
        self,
        owner_id: str,
        scopes: frozenset[str] | None,
        lifetime: Any,
        networks: frozenset[str] | None = None,
        resources: frozenset[str] | None = None,
    ) -> Any:
        owner = self.world.owners[owner_id]
        if scopes is not None:
            scopes &= owner.permissions
        options = {"name": "k", "scopes": scopes, "lifetime": lifetime, "networks": networks}
        options["resources"] = resources
        if owner_id == ACCOUNT and (owner.disabled or not owner.permissions):
            with pytest.raises(InputInvalid if owner.permissions else PermissionDenied):
                self.manage("create_key", owner_id, **options)
            return multiple()
        created = self.manage("create_key", owner_id, **options)
        if owner_id == ACCOUNT:
            # All that the account may do now, and not later.
            assert created.record.scopes == (owner.permissions if scopes is None else scopes)
        return self.added(created, owner_id)

    @rule(key_id=keys, networks=networks_of_keys)
    def change_networks(self, key_id: str, networks: frozenset[str] | None) -> None:
        model = self.models[key_id]
        if model.deleted:
            return
        if model.owner_id == ACCOUNT and not self.world.owners[ACCOUNT].permissions:
            with pytest.raises(PermissionDenied):
                self.manage("update_key", model.owner_id, key_id, networks=networks)
            return
        self.manage("update_key", model.owner_id, key_id, networks=networks)
        model.networks = networks

    @rule(key_id=keys)
    def revoke(self, key_id: str) -> None:
        model = self.models[key_id]
        if not model.deleted:
            self.manage("revoke_key", model.owner_id, key_id)
            model.revoked = True

    @rule(key_id=consumes(keys))
    def delete(self, key_id: str) -> None:
        model = self.models[key_id]
        if model.deleted:
            return
        self.manage("delete_key", model.owner_id, key_id)
        model.revoked = model.deleted = True
        with pytest.raises(KeyNotFound):
            self.manage("get_key", model.owner_id, key_id)

    @rule(key_id=keys, hours=st.integers(-48, 48))
    def expire(self, key_id: str, hours: int) -> None:
        model = self.models[key_id]
        if model.deleted:
            return
        at = self.world.clock.moment + timedelta(hours=hours)
        self.manage("expire_key", model.owner_id, key_id, at=at)
        if hours <= 0:
            model.revoked = True
        else:
            model.expires_at = at if model.expires_at is None else min(at, model.expires_at)

    @rule(target=keys, key_id=keys, overlap=st.sampled_from([timedelta(0), DAY, 90 * DAY]))
    def rotate(self, key_id: str, overlap: timedelta) -> Any:
        model, now = self.models[key_id], self.world.clock.moment
        if model.deleted:
            return multiple()
        owner, acted_for = self.world.owners[model.owner_id], model.owner_id == ACCOUNT
        refusal: str | None = None
        if acted_for and not owner.permissions:
            refusal = "permission_denied"
        elif not model.active(now) or model.rotated:
            refusal = "key_not_active"
        elif acted_for and owner.disabled:
            refusal = "input_invalid"
        if refusal is not None:
            with refused_with(refusal):
                self.manage("rotate_key", model.owner_id, key_id, overlap=overlap)
            return multiple()
        created = self.manage("rotate_key", model.owner_id, key_id, overlap=overlap)
        model.rotated = True
        if overlap:
            ends = [end for end in (model.expires_at, now + overlap) if end is not None]
            model.expires_at = min(ends)
        else:
            model.revoked = True
        assert created.record.scopes == (
            model.scopes & owner.permissions
            if acted_for and model.scopes is not None
            else model.scopes
        )
        assert created.record.networks == model.networks
        assert created.record.resources == model.resources
        return self.added(created, model.owner_id)

    @rule(key_id=keys, attacker=st.sampled_from(PEOPLE))
    def another_owner_tries(self, key_id: str, attacker: str) -> None:
        owner_id = self.models[key_id].owner_id
        if attacker == owner_id:
            return
        before = self.world.store.get(key_id)
        for method in ("revoke_key", "delete_key", "rotate_key", "get_key"):
            with pytest.raises(KeyNotFound):
                self.world.call(method, self.login(attacker), key_id)
            if owner_id != ACCOUNT or attacker == "ann":
                with refused_with("permission_denied", "token_revoked"):
                    self.world.call(method, self.login(attacker), key_id, on_behalf_of=owner_id)
        assert self.world.store.get(key_id) == before

    @rule(permissions=st.none() | permissions_of)
    def say_what_bob_hands_out(self, permissions: frozenset[str] | None) -> None:
        self.bob_hands_out = permissions

    @rule(target=keys, key_id=keys, rotates=st.booleans())
    def bob_makes_a_key_of_the_account(self, key_id: str, rotates: bool) -> Any:
        now, bob, account = self.world.clock.moment, self.login("bob"), self.world.owners[ACCOUNT]
        model = self.models[key_id]
        rotates = rotates and model.owner_id == ACCOUNT and model.active(now) and not model.rotated
        method, args = ("rotate_key", (key_id,)) if rotates else ("create_key", ())
        options: dict[str, Any] = {"on_behalf_of": ACCOUNT}
        options |= {} if rotates else {"name": "k", "lifetime": DAY}
        handed = self.bob_hands_out
        refusal: str | None = None
        if bob.owner.disabled:
            refusal = "token_revoked"
        elif not (handed and handed & account.permissions) or (
            rotates and not (model.scopes or frozenset()) & account.permissions <= handed
        ):
            refusal = "permission_denied"
        elif account.disabled:
            refusal = "input_invalid"
        if handed is None or refusal is not None:
            before = dict(self.world.store.inner._records)
            with refused_with(refusal or "permission_denied"):
                self.world.call(method, bob, *args, **options)
            assert self.world.store.inner._records == before
            return multiple()
        created = self.world.call(method, bob, *args, **options)
        assert created.record.scopes <= handed & account.permissions
        if rotates:
            model.rotated = model.revoked = True
        return self.added(created, ACCOUNT)

    @rule(key_id=keys, method=st.sampled_from(["revoke_key", "delete_key"]))
    def bob_ends_a_key_of_the_account(self, key_id: str, method: str) -> None:
        model = self.models[key_id]
        if model.owner_id != ACCOUNT or model.deleted:
            return
        bob = self.login("bob")
        if self.bob_hands_out is None or bob.owner.disabled:
            with refused_with("permission_denied", "token_revoked"):
                self.world.call(method, bob, key_id, on_behalf_of=ACCOUNT)
            return
        self.world.call(method, bob, key_id, on_behalf_of=ACCOUNT)
        model.revoked = True
        model.deleted = method == "delete_key"

    @rule(some=st.lists(keys, min_size=1, max_size=3))
    def an_administrator_revokes(self, some: list[str]) -> None:
        revoked = self.admin.revoke_keys(self.login(ROOT), some)
        for key_id, record in zip(some, revoked, strict=True):
            model = self.models[key_id]
            assert (record is None) == model.deleted
            model.revoked = True

    @rule(key_id=keys)
    def queue_work_of_a_key(self, key_id: str) -> None:
        _, principal = self.try_key(key_id)
        if principal is not None:
            text = self.world.auth.reference(principal)
            self.work.append(QueuedWork(text, key_id, self.models[key_id].owner_id))

    @rule(owner_id=st.sampled_from(PEOPLE), age=st.sampled_from([timedelta(hours=5), DAY]))
    def queue_work_of_a_login(self, owner_id: str, age: timedelta) -> None:
        now = self.world.clock.moment
        text = self.world.auth.reference(self.login(owner_id), max_age=age)
        self.work.append(QueuedWork(text, None, owner_id, now.replace(microsecond=0) + age))

    @rule(key_id=keys, target=keys, other=keys)
    def a_key_tries_to_manage(self, key_id: str, other: str) -> Any:
        _, caller = self.try_key(key_id)
        if caller is None:
            return multiple()
        before = dict(self.world.store.inner._records)
        for method, options in (
            ("create_key", {"name": "more"}),
            ("create_key", {"name": "more", "on_behalf_of": ACCOUNT}),
            ("revoke_key", {"key_id": other, "on_behalf_of": ACCOUNT}),
            ("rotate_key", {"key_id": other}),
            ("revoke_key", {"key_id": other}),
            ("delete_key", {"key_id": other}),
            ("expire_key", {"key_id": other, "at": self.world.clock.moment}),
            ("update_key", {"key_id": other, "networks": None}),
        ):
            with pytest.raises(InteractiveRequired):
                self.world.call(method, caller, **options)
        with pytest.raises(InteractiveRequired):
            self.admin.revoke_keys(caller, [other])
        assert self.world.store.inner._records == before
        return multiple()

    @rule(owner_id=owners, permissions=permissions_of)
    def change_permissions(self, owner_id: str, permissions: frozenset[str]) -> None:
        self.set_owner(owner_id, permissions, disabled=self.world.owners[owner_id].disabled)

    @rule(owner_id=owners)
    def disable_or_enable(self, owner_id: str) -> None:
        owner = self.world.owners[owner_id]
        self.world.owners[owner_id] = replace(owner, disabled=not owner.disabled)

    @rule(hours=st.integers(0, 30))
    def wait(self, hours: int) -> None:
        self.world.clock.advance(timedelta(hours=hours))

    @rule()
    def flush(self) -> None:
        self.world.call("flush")

    @invariant()
    def every_key_gets_the_answer_of_the_model(self) -> None:
        for key_id, model in self.models.items():
            for address in (None, *ADDRESSES):
                answer, principal = self.try_from(address, model.value)
                if model.networks is None or address in INSIDE[model.networks]:
                    self.check_key(key_id, answer, principal)
                else:
                    assert principal is None
                    self.check_key(key_id, answer, principal, accepted="address_not_allowed")

    def check_key(
        self, key_id: str, answer: str, principal: Any, *, accepted: str = "accepted"
    ) -> None:
        now, model = self.world.clock.moment, self.models[key_id]
        owner = self.world.owners[model.owner_id]
        if model.revoked:
            expected = "key_revoked"
        elif not model.active(now):
            expected = "key_expired"
        elif owner.disabled:
            expected = "owner_disabled"
        else:
            expected = accepted
        assert answer == expected
        if principal is None:
            return
        assert (principal.key_id, principal.owner) == (key_id, owner)
        granted = PERMISSIONS if model.scopes is None else model.scopes
        assert principal.permissions == owner.permissions & granted
        assert not principal.is_interactive
        for task in ("task:1", "task:3"):
            reaches = model.resources is None or task in model.resources
            assert principal.reaches(task) == reaches
            try:
                require(resource="task:{id}").check(
                    replace(principal, scopes=None), now, {"id": task[5:]}
                )
            except PermissionDenied:
                assert not reaches
            else:
                assert reaches

    @invariant()
    def queued_work_may_do_what_its_key_or_its_person_may_now(self) -> None:
        for work in self.work:
            try:
                answer, principal = "accepted", self.world.auth.resume(work.text)
            except Problem as problem:
                answer, principal = problem.code, None
            if work.key_id is not None:
                self.check_key(work.key_id, answer, principal)
                continue
            owner = self.world.owners[work.owner_id]
            ended = work.ends_at is not None and work.ends_at <= self.world.clock.moment
            assert (principal is None) == (ended or owner.disabled)
            assert answer in {"accepted", "token_expired", "token_revoked"}
            if principal is not None:
                assert (principal.owner, principal.permissions) == (owner, owner.permissions)
                assert not principal.is_interactive

    @invariant()
    def a_listing_holds_the_owners_keys_that_are_not_deleted(self) -> None:
        for owner_id in OWNERS:
            page = self.manage("list_keys", owner_id, limit=200)
            assert {record.id for record in page.items} == {
                key_id
                for key_id, model in self.models.items()
                if model.owner_id == owner_id and not model.deleted
            }

    @invariant()
    def an_administrator_sees_every_key_that_is_not_deleted(self) -> None:
        page = self.admin.list_keys(self.login(ROOT), limit=200)
        assert {record.id for record in page.items} == {
            key_id for key_id, model in self.models.items() if not model.deleted
        }


TestLifeOfKeys = LifeOfKeys.TestCase
TestLifeOfKeys.settings = settings(stateful_step_count=40)
