"""The hook of a store gets the event of each change, in the change; `on_event` gets an equal one after it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.cases import refused_with
from tests.core.support import NOW, SECOND, MakeWorld, ScriptedStore, World

from msk_auth import ApiKey, Authenticator
from msk_auth.errors import ConfigurationError, PermissionDenied
from msk_auth.events import KeyEvent, LeakedKey, LeakLocation
from msk_auth.stores.memory import MemoryKeyStore

HERE = LeakLocation("github", "commit", "https://example.com/a")
THERE = LeakLocation("github", "commit", "https://example.com/b")


class Audited:
    """An environment whose store has a hook."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.changes: list[KeyEvent] = []
        self.error: Exception | None = None
        self.world.store.inner = MemoryKeyStore(on_change=self._on_change)

    def _on_change(self, connection: None, event: KeyEvent) -> None:
        assert connection is None
        if self.error is not None:
            raise self.error
        # `on_event` is called only after the write.
        assert event not in self.world.events
        self.changes.append(event)

    def call(self, method: str, *args: object, **options: object) -> Any:
        """What an operation returns; forgets the events before it."""
        self.changes.clear()
        self.world.events.clear()
        return self.world.call(method, *args, **options)


@pytest.fixture
def audited(world: World) -> Audited:
    return Audited(world)


def test_each_change_by_a_login_has_its_event_with_the_principal(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    audited = Audited(world)
    ann = world.login()
    created = audited.call("create_key", ann, name="ci")
    expected: list[KeyEvent] = [KeyEvent("created", NOW, created.record, ann)]
    assert audited.changes == expected == world.events

    successor = audited.call("rotate_key", ann, created.record.id, overlap=SECOND)
    predecessor = world.store.get(created.record.id)
    expected = [KeyEvent("rotated", NOW, predecessor, ann, successor=successor.record)]
    assert predecessor.replaced_by == successor.record.id
    assert audited.changes == expected == world.events

    key_id = successor.record.id
    record = audited.call("expire_key", ann, key_id, at=NOW + timedelta(days=1))
    expected = [KeyEvent("expiry_set", NOW, record, ann)]
    assert audited.changes == expected == world.events

    record = audited.call("update_key", ann, key_id, name="ci-2", labels=["a"])
    expected = [KeyEvent("updated", NOW, record, ann, fields=("name", "labels"))]
    assert audited.changes == expected == world.events

    record = audited.call("revoke_key", ann, key_id)
    expected = [KeyEvent("revoked", NOW, record, ann, cause="owner")]
    assert audited.changes == expected == world.events

    audited.call("delete_key", ann, key_id)
    expected = [KeyEvent("deleted", NOW, world.store.get(key_id), ann)]
    assert audited.changes == expected == world.events


def test_what_is_repeated_reaches_on_event_alone(audited: Audited) -> None:
    world = audited.world
    ann, key_id = world.login(), world.create().record.id
    end = NOW + timedelta(days=1)
    editing: dict[str, object] = {"description": "nightly"}
    for method, options in (
        ("expire_key", {"at": end}),
        ("update_key", editing),
        ("revoke_key", {}),
    ):
        audited.call(method, ann, key_id, **options)
        assert len(audited.changes) == 1
        audited.call(method, ann, key_id, **options)
        assert audited.changes == []
        assert len(world.events) == 1


def test_a_presented_key_is_revoked_with_its_cause(audited: Audited) -> None:
    key = audited.world.create().value.reveal()
    record = audited.call("revoke_presented_key", key)
    expected = [KeyEvent("revoked", NOW, record, cause="possession")]
    assert audited.changes == expected == audited.world.events
    audited.call("revoke_presented_key", key)
    assert audited.changes == []


def test_a_leaked_key_is_revoked_with_each_of_its_places(audited: Audited) -> None:
    one, two = audited.world.create(), audited.world.create()
    audited.call(
        "revoke_leaked",
        [
            LeakedKey(one.value.reveal(), HERE),
            LeakedKey(two.value.reveal(), HERE),
            LeakedKey("msk_nothing", THERE),
            LeakedKey(one.value.reveal(), THERE),
        ],
    )
    first, second = (audited.world.store.get(each.record.id) for each in (one, two))
    assert audited.changes == [
        KeyEvent("leaked", NOW, first, location=HERE),
        KeyEvent("leaked", NOW, first, location=THERE),
        KeyEvent("leaked", NOW, second, location=HERE),
    ]
    assert len(audited.world.events) == 3
    # A report of a revoked key changes no key.
    audited.call("revoke_leaked", [LeakedKey(one.value.reveal(), THERE)])
    assert audited.changes == []
    assert audited.world.events == [KeyEvent("leaked", NOW, first, location=THERE)]


def test_a_key_that_its_owner_revokes_meanwhile_is_not_revoked_by_forgetting(
    audited: Audited, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = audited.world
    key_id = world.create().record.id
    listed = world.store.inner.list
    world.clock.advance(SECOND)

    def list_and_lose_the_race(query: Any) -> Any:
        page = listed(query)
        world.store.inner.revoke(key_id, owner_id="ann", at=NOW, change=lambda _: ())
        return page

    monkeypatch.setattr(world.store.inner, "list", list_and_lose_the_race)
    assert audited.call("forget_owner", "ann") == 0
    expected = [KeyEvent("deleted", NOW + SECOND, world.store.get(key_id))]
    assert audited.changes == expected == world.events


def changes(world: World) -> list[Callable[[Callable[..., Any]], Any]]:
    created = world.create()
    key, ann, key_id = created.value.reveal(), world.login(), created.record.id
    return [
        lambda call: call("create_key", ann, name="next"),
        lambda call: call("rotate_key", ann, key_id),
        lambda call: call("expire_key", ann, key_id, at=NOW + SECOND),
        lambda call: call("update_key", ann, key_id, name="next"),
        lambda call: call("revoke_key", ann, key_id),
        lambda call: call("delete_key", ann, key_id),
        lambda call: call("revoke_presented_key", key),
        lambda call: call("revoke_leaked", [LeakedKey(key, HERE)]),
        lambda call: call("forget_owner", "ann"),
    ]


@pytest.mark.parametrize("number", range(9))
def test_a_hook_that_raises_undoes_the_change(audited: Audited, number: int) -> None:
    """Fail closed: an error is answered like one of the store. An application refuses a change by raising a problem."""
    change = changes(audited.world)[number]
    before = dict(audited.world.store.inner._records)
    for error, code in (
        (LookupError("a mistake of the application"), "store_unavailable"),
        (PermissionDenied({"keys:write"}), "permission_denied"),
    ):
        audited.error = error
        with refused_with(code) as caught:
            change(audited.call)
        assert error in (caught.value, caught.value.__cause__)
        assert audited.world.store.inner._records == before
        assert audited.world.events == []


async def _awaited(_connection: None, _event: KeyEvent) -> None:
    raise AssertionError("it is not called")


def _blocking(_connection: None, _event: KeyEvent) -> None:
    raise AssertionError("it is not called")


async def _no_owner(_owner_id: str) -> None:
    return None


def test_a_hook_of_the_other_kind_is_refused_in_a_store_of_the_application() -> None:
    store = ScriptedStore("sync")
    vars(store)["on_change"] = _awaited
    with pytest.raises(ConfigurationError, match=r"store\.on_change is async"):
        Authenticator(store, find_owner=lambda _: None)


class _Later:
    def __await__(self) -> Any:
        raise AssertionError("nothing awaits it")


@pytest.mark.parametrize("answer", ["coroutine", "awaitable"])
def test_a_hook_that_turns_out_to_be_async_undoes_the_change(answer: str) -> None:
    def on_change(connection: None, event: KeyEvent) -> Any:
        return _awaited(connection, event) if answer == "coroutine" else _Later()

    store = MemoryKeyStore(on_change=on_change)
    record = ApiKey("k", "n", "ann", "sha256:0", None, NOW)
    with pytest.raises(ConfigurationError, match="on_change is async"):
        store.insert(
            record, max_active=None, now=NOW, change=lambda _: (KeyEvent("deleted", NOW, record),)
        )
    assert store.find("k") is None
