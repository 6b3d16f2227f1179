"""Any sequence of operations, against a model of who may pass (guarantees G2, G3 and G4; ASVS 5.0, 7.4 and 8.3).

The model keeps for each key what was done to it. After every step every key is tried: the
answer must be the model's. So no order of creating, rotating, revoking, expiring, flushing and waiting brings a key
back to life, lets one act beyond its owner, or lets one make another.
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
from tests.core.support import World

from msk_auth import (
    ApiKey,
    InteractiveRequired,
    KeyNotActive,
    KeyNotFound,
    Owner,
    Problem,
)

pytestmark = [pytest.mark.slow, pytest.mark.no_cover]

PERMISSIONS = frozenset({"read", "write", "admin"})
OWNERS = ("ann", "bob")
DAY = timedelta(days=1)

owners = st.sampled_from(OWNERS)
scopes = st.none() | st.frozensets(st.sampled_from(sorted(PERMISSIONS)))
lifetimes = st.sampled_from([timedelta(hours=1), DAY, 30 * DAY, "default"])
keys = Bundle("keys")


@dataclass
class Model:
    """What is known about one key."""

    value: str
    owner_id: str
    scopes: frozenset[str] | None
    expires_at: datetime | None
    revoked: bool = False
    deleted: bool = False
    rotated: bool = False

    def active(self, now: datetime) -> bool:
        return not self.revoked and (self.expires_at is None or now < self.expires_at)


class LifeOfKeys(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.world = World("sync", on_event=None)
        self.models: dict[str, Model] = {}
        for owner_id in OWNERS:
            self.set_owner(owner_id, PERMISSIONS, disabled=False)

    def set_owner(self, owner_id: str, permissions: frozenset[str], *, disabled: bool) -> None:
        self.world.owners[owner_id] = Owner(owner_id, permissions, owner_id, disabled)

    def login(self, owner_id: str) -> Any:
        return self.world.login(owner_id)

    def added(self, created: Any, owner_id: str) -> str:
        record: ApiKey = created.record
        self.models[record.id] = Model(
            created.value.reveal(), owner_id, record.scopes, record.expires_at
        )
        return record.id

    def try_key(self, value: str) -> tuple[str, Any]:
        try:
            return "accepted", self.world.enter(value)
        except Problem as problem:
            return problem.code, None

    @rule(target=keys, owner_id=owners, scopes=scopes, lifetime=lifetimes)
    def create(self, owner_id: str, scopes: frozenset[str] | None, lifetime: Any) -> Any:
        if scopes is not None:
            scopes &= self.world.owners[owner_id].permissions
        created = self.world.call(
            "create_key", self.login(owner_id), name="k", scopes=scopes, lifetime=lifetime
        )
        return self.added(created, owner_id)

    @rule(key_id=keys)
    def revoke(self, key_id: str) -> None:
        model = self.models[key_id]
        if not model.deleted:
            self.world.call("revoke_key", self.login(model.owner_id), key_id)
            model.revoked = True

    @rule(key_id=consumes(keys))
    def delete(self, key_id: str) -> None:
        model = self.models[key_id]
        self.world.call("delete_key", self.login(model.owner_id), key_id)
        model.revoked = model.deleted = True
        with pytest.raises(KeyNotFound):
            self.world.call("get_key", self.login(model.owner_id), key_id)

    @rule(key_id=keys, hours=st.integers(-48, 48))
    def expire(self, key_id: str, hours: int) -> None:
        model = self.models[key_id]
        at = self.world.clock.moment + timedelta(hours=hours)
        self.world.call("expire_key", self.login(model.owner_id), key_id, at=at)
        model.expires_at = at if model.expires_at is None else min(at, model.expires_at)

    @rule(target=keys, key_id=keys, overlap=st.sampled_from([timedelta(0), DAY, 90 * DAY]))
    def rotate(self, key_id: str, overlap: timedelta) -> Any:
        model, now = self.models[key_id], self.world.clock.moment
        caller = self.login(model.owner_id)
        if not model.active(now) or model.rotated:
            with pytest.raises(KeyNotActive):
                self.world.call("rotate_key", caller, key_id, overlap=overlap)
            return multiple()
        created = self.world.call("rotate_key", caller, key_id, overlap=overlap)
        model.rotated = True
        if overlap:
            ends = [end for end in (model.expires_at, now + overlap) if end is not None]
            model.expires_at = min(ends)
        else:
            model.revoked = True
        assert created.record.scopes == model.scopes
        return self.added(created, model.owner_id)

    @rule(key_id=keys, attacker=owners)
    def another_owner_tries(self, key_id: str, attacker: str) -> None:
        if attacker == self.models[key_id].owner_id:
            return
        before = self.world.store.get(key_id)
        for method in ("revoke_key", "delete_key", "rotate_key", "get_key"):
            with pytest.raises(KeyNotFound):
                self.world.call(method, self.login(attacker), key_id)
        assert self.world.store.get(key_id) == before

    @rule(key_id=keys, target=keys, other=keys)
    def a_key_tries_to_manage(self, key_id: str, other: str) -> Any:
        _, caller = self.try_key(self.models[key_id].value)
        if caller is None:
            return multiple()
        before = dict(self.world.store.inner._records)
        for method, options in (
            ("create_key", {"name": "more"}),
            ("rotate_key", {"key_id": other}),
            ("revoke_key", {"key_id": other}),
            ("delete_key", {"key_id": other}),
            ("expire_key", {"key_id": other, "at": self.world.clock.moment}),
        ):
            with pytest.raises(InteractiveRequired):
                self.world.call(method, caller, **options)
        assert self.world.store.inner._records == before
        return multiple()

    @rule(owner_id=owners, permissions=st.frozensets(st.sampled_from(sorted(PERMISSIONS))))
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
        now = self.world.clock.moment
        for key_id, model in self.models.items():
            owner = self.world.owners[model.owner_id]
            if model.revoked:
                expected = "key_revoked"
            elif not model.active(now):
                expected = "key_expired"
            elif owner.disabled:
                expected = "owner_disabled"
            else:
                expected = "accepted"
            answer, principal = self.try_key(model.value)
            assert answer == expected
            if principal is None:
                continue
            assert (principal.key_id, principal.owner) == (key_id, owner)
            granted = PERMISSIONS if model.scopes is None else model.scopes
            assert principal.permissions == owner.permissions & granted
            assert not principal.is_interactive

    @invariant()
    def a_listing_holds_the_owners_keys_that_are_not_deleted(self) -> None:
        for owner_id in OWNERS:
            page = self.world.call("list_keys", self.login(owner_id), limit=200)
            assert {record.id for record in page.items} == {
                key_id
                for key_id, model in self.models.items()
                if model.owner_id == owner_id and not model.deleted
            }


TestLifeOfKeys = LifeOfKeys.TestCase
TestLifeOfKeys.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
