"""What happens to keys is in the audit log, or did not happen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from examples.task_service.tests.accounts_support import (
    OTHER_PASSWORD,
    World,
    principal,
)
from examples.task_service.tests.runs_support import failing
from examples.task_service.tests.service_support import refused_with

from msk_auth import (
    AsyncAuthenticator,
    KeyFormat,
    Owner,
    Principal,
)
from msk_auth.errors import (
    KeyNotActive,
    KeyNotFound,
    PermissionDenied,
    StoreUnavailable,
)
from msk_auth.events import Event, KeyEvent, LeakedKey, LeakLocation
from msk_auth.stores.sqlalchemy import AsyncSQLAlchemyKeyStore
from task_service.accounts.audit import Actor, AuditEntry, AuditQuery, UsedCredential
from task_service.accounts.changes import Change
from task_service.accounts.key_audit import MAX_LEAKS, KeyAudit
from task_service.accounts.users import User
from task_service.db import schema
from task_service.db.paging import PageRequest
from task_service.request_record import RequestRecord, current_request

pytestmark = pytest.mark.anyio


@dataclass
class Keys:
    """A user who is logged in, and what they can do with their keys."""

    it: World
    authenticator: AsyncAuthenticator[User]
    store: AsyncSQLAlchemyKeyStore
    ann: Principal[User]

    async def trail(self) -> list[tuple[str, str | None, dict[str, Any]]]:
        return [(entry.action, entry.target, dict(entry.details)) for entry in await self.entries()]

    async def entries(self) -> list[AuditEntry]:
        """What happened to keys, oldest first."""
        page = await self.it.audit.list(AuditQuery(action="key."), PageRequest(limit=200))
        return list(reversed(page.items))

    async def records(self) -> list[tuple[Any, ...]]:
        """Every key as it is stored, without when it was last used."""
        rows = await self.it.rows("msk_auth_api_keys", order_by="id")
        names = ("id", "name", "expires_at", "revoked_at", "replaced_by", "deleted_at")
        return [tuple(row[name] for name in names) for row in rows]


@pytest.fixture
async def keys(it: World) -> AsyncIterator[Keys]:
    audit = KeyAudit(it.db, it.audit)
    store = AsyncSQLAlchemyKeyStore(it.db.engine, schema.api_keys, on_change=audit.on_change)

    async def on_event(event: Event) -> None:
        if isinstance(event, KeyEvent) and event.location is not None:
            await audit.on_leak(event, event.location)

    async def may_act_for(_person: Principal[User], owner: Owner[User]) -> frozenset[str]:
        return owner.permissions

    authenticator = AsyncAuthenticator(
        store,
        find_owner=it.users.find_owner,
        find_session=it.sessions.find_session,
        may_act_for=may_act_for,
        tokens=it.tokens,
        on_event=on_event,
        clock=it.clock,
    )
    ann = await it.logged_in(await it.user("ann"))
    it.clock.sleep(600)
    yield Keys(it, authenticator, store, ann)
    await store.aclose()


async def test_an_entry_of_a_key_of_another_owner_names_the_person_and_the_owner(
    keys: Keys,
) -> None:
    account = str((await keys.it.user("deploy")).id)
    root = await keys.it.logged_in(await keys.it.user("root", "admin"))
    created = await keys.authenticator.create_key(
        root, name="CI", scopes=["tasks:run"], on_behalf_of=account
    )
    await keys.authenticator.revoke_key(root, created.record.id, on_behalf_of=account)
    assert await keys.trail() == [
        (
            "key.created",
            created.record.id,
            {"name": "CI", "scopes": ["tasks:run"], "owner_id": account},
        ),
        (
            "key.revoked",
            created.record.id,
            {"name": "CI", "cause": "delegate", "owner_id": account},
        ),
    ]
    assert {entry.actor and entry.actor.id for entry in await keys.entries()} == {root.owner.id}


async def test_what_happens_to_keys_is_recorded_as_it_happens(keys: Keys) -> None:
    it, ann, authenticator = keys.it, keys.ann, keys.authenticator
    token = current_request.set(RequestRecord("r1", "192.0.2.1"))
    first = await authenticator.create_key(ann, name="CI", scopes=["tasks:read"])
    it.clock.sleep(1)
    second = await authenticator.rotate_key(ann, first.record.id)
    await authenticator.expire_key(ann, second.record.id, at=it.clock.now() + timedelta(days=1))
    await authenticator.update_key(ann, second.record.id, name="CI 2")
    for _ in range(2):
        await authenticator.update_key(
            ann,
            second.record.id,
            description="nightly",
            labels=["env:prod", "a"],
            networks=["203.0.113.0/24"],
        )
    await authenticator.revoke_key(ann, second.record.id)
    it.clock.sleep(1)
    await authenticator.revoke_key(ann, second.record.id)
    await authenticator.delete_key(ann, second.record.id)
    current_request.reset(token)

    assert await keys.trail() == [
        ("key.created", first.record.id, {"name": "CI", "scopes": ["tasks:read"]}),
        (
            "key.created",
            second.record.id,
            {"name": "CI", "scopes": ["tasks:read"], "predecessor": first.record.id},
        ),
        ("key.rotated", first.record.id, {"name": "CI", "successor": second.record.id}),
        (
            "key.expiry_set",
            second.record.id,
            {"name": "CI", "expires_at": "2026-01-02T00:10:01+00:00"},
        ),
        (
            "key.updated",
            second.record.id,
            {"name": "CI 2", "changed": {"name": {"old": "CI", "new": "CI 2"}}},
        ),
        (
            "key.updated",
            second.record.id,
            {
                "name": "CI 2",
                "changed": {
                    "description": {"old": None, "new": "nightly"},
                    "labels": {"old": None, "new": ["a", "env:prod"]},
                    "networks": {"old": None, "new": ["203.0.113.0/24"]},
                },
            },
        ),
        ("key.revoked", second.record.id, {"name": "CI 2"}),
        ("key.deleted", second.record.id, {"name": "CI 2"}),
    ]
    actor = Actor(id=ann.owner.id, username="ann")
    used = UsedCredential(kind="interactive", id=ann.session_id)
    for entry in await keys.entries():
        assert (entry.actor, entry.credential, entry.address) == (actor, used, "192.0.2.1")


async def test_the_end_of_a_key_is_recorded_as_what_the_service_announces(keys: Keys) -> None:
    announce = keys.authenticator.announce_expiry
    made = await keys.authenticator.create_key(keys.ann, name="CI", lifetime=timedelta(days=90))
    keys.it.clock.sleep(60 * 86_400)
    with failing(keys.it.db, "INSERT INTO audit") as refused, pytest.raises(StoreUnavailable):
        await announce()
    assert len(refused) == 1
    assert [await announce() for _ in range(2)] == [1, 0]
    keys.it.clock.sleep(23 * 86_400)
    assert await announce() == 1
    created, *announced = await keys.entries()
    assert created.action == "key.created"
    assert [(entry.action, entry.target, dict(entry.details)) for entry in announced] == [
        ("key.expiring", made.record.id, {"name": "CI", "days": 30}),
        ("key.expiring", made.record.id, {"name": "CI", "days": 7}),
    ]
    assert {(entry.actor, entry.credential.kind) for entry in announced} == {(None, "system")}


async def test_what_was_refused_leaves_no_entry(keys: Keys) -> None:
    authenticator, ann = keys.authenticator, keys.ann
    bob = principal(await keys.it.user("bob"))
    made = (await authenticator.create_key(ann, name="CI")).record
    before = await keys.trail()
    unknown = "AAAAAAAAAAAA"
    for refused in (
        authenticator.revoke_key(bob, made.id),
        authenticator.delete_key(bob, made.id),
        authenticator.expire_key(bob, made.id, at=keys.it.clock.now()),
        authenticator.rotate_key(bob, made.id),
        authenticator.revoke_key(ann, unknown),
        authenticator.delete_key(ann, unknown),
    ):
        with pytest.raises(KeyNotFound):
            await refused
    assert await authenticator.revoke_presented_key(KeyFormat().generate().reveal()) is None
    await authenticator.revoke_key(ann, made.id)
    with pytest.raises(KeyNotActive):
        await authenticator.rotate_key(ann, made.id)
    actions = [action for action, *_ in (await keys.trail())[len(before) :]]
    assert actions == ["key.revoked"]


async def test_no_key_is_created_or_edited_for_a_login_that_has_ended_meanwhile(
    keys: Keys,
) -> None:
    it, authenticator, ann = keys.it, keys.authenticator, keys.ann
    made = (await authenticator.create_key(ann, name="CI", networks=["192.0.2.0/24"])).record
    before = await keys.records(), await keys.trail()
    # As a request finds it that was authenticated a moment before.
    link = await it.invitations.create(ann.owner.id)
    await it.invitations.redeem(link.token, OTHER_PASSWORD)
    for deed in (
        authenticator.create_key(ann, name="of an attacker"),
        authenticator.rotate_key(ann, made.id),
        authenticator.update_key(ann, made.id, networks=None),
    ):
        with refused_with("token_revoked"):
            await deed

    assert (await keys.records(), await keys.trail()) == before
    assert (await keys.store.find(made.id)).networks == made.networks  # type: ignore[union-attr]


async def test_a_former_administrator_changes_no_key_of_another_owner(keys: Keys) -> None:
    """A user who is demoted after the request was authorized, at the moment in which the key is written."""
    it = keys.it
    account = (await it.user("deploy")).id
    await it.user("root", "admin")
    attacker = await it.logged_in(await it.user("attacker", "admin"))
    made = await keys.authenticator.create_key(
        attacker, name="CI", scopes=["tasks:run"], on_behalf_of=account
    )
    before = await keys.records(), await keys.trail()
    await it.users.change(attacker.owner.id, roles=["user"])
    deeds: list[Awaitable[object]] = [
        keys.authenticator.create_key(
            attacker, name="x", scopes=["tasks:run"], on_behalf_of=account
        ),
        keys.authenticator.rotate_key(attacker, made.record.id, on_behalf_of=account),
        keys.authenticator.update_key(attacker, made.record.id, name="x", on_behalf_of=account),
        keys.authenticator.revoke_key(attacker, made.record.id, on_behalf_of=account),
    ]
    for deed in deeds:
        with pytest.raises(PermissionDenied) as denied:
            await deed
        assert denied.value.required == ("admin:keys",)

    assert (await keys.records(), await keys.trail()) == before


async def test_a_change_whose_entry_cannot_be_written_does_not_happen(keys: Keys) -> None:
    it, ann, authenticator = keys.it, keys.ann, keys.authenticator
    created = await authenticator.create_key(ann, name="CI")
    made, shown = created.record, created.value.reveal()
    found = LeakedKey(shown, LeakLocation("github", "commit", "https://example.com/a"))
    before, trail = await keys.records(), await keys.trail()
    soon = it.clock.now() + timedelta(days=1)
    changes: list[Callable[[], Awaitable[object]]] = [
        lambda: authenticator.create_key(ann, name="next"),
        lambda: authenticator.rotate_key(ann, made.id),
        lambda: authenticator.rotate_key(ann, made.id, overlap=timedelta(hours=1)),
        lambda: authenticator.expire_key(ann, made.id, at=soon),
        lambda: authenticator.update_key(ann, made.id, name="next"),
        lambda: authenticator.revoke_presented_key(shown),
        lambda: authenticator.revoke_leaked([found]),
        lambda: authenticator.revoke_key(ann, made.id),
        lambda: authenticator.delete_key(ann, made.id),
    ]
    for number, change in enumerate(changes):
        with failing(it.db, "INSERT INTO audit") as refused, pytest.raises(StoreUnavailable):
            await change()
        assert len(refused) == 1, f"change {number}"
        assert await keys.records() == before, f"change {number}"
    assert await keys.trail() == trail
    # The database is back, and the same connections serve.
    await authenticator.delete_key(ann, made.id)
    assert [action for action, *_ in await keys.trail()] == ["key.created", "key.deleted"]


async def test_keys_that_end_without_a_login_are_recorded_once(keys: Keys) -> None:
    authenticator = keys.authenticator
    first = await authenticator.create_key(keys.ann, name="n")
    second = await authenticator.create_key(keys.ann, name="m")
    for _ in range(2):
        await authenticator.revoke_presented_key(first.value.reveal())
        for url in ("https://example.com/a", "https://example.com/b", None, None):
            location = LeakLocation("github", "commit", url)
            for created in (first, second):
                await authenticator.revoke_leaked([LeakedKey(created.value.reveal(), location)])
        keys.it.clock.sleep(1)

    entries = (await keys.entries())[2:]
    of_first = [entry for entry in entries if entry.target == first.record.id]
    assert [(entry.action, entry.details.get("url")) for entry in of_first] == [
        ("key.revoked", None),
        ("key.leaked", "https://example.com/a"),
        ("key.leaked", "https://example.com/b"),
        ("key.leaked", None),
    ]
    assert {(entry.credential.kind, entry.actor) for entry in entries} == {("none", None)}
    assert of_first[0].details == {"name": "n", "cause": "possession"}
    of_second = [entry.details for entry in entries if entry.target == second.record.id]
    assert of_second[0] == {
        "name": "m",
        "reporter": "github",
        "source": "commit",
        "url": "https://example.com/a",
        "revoked": True,
    }
    assert {details["revoked"] for details in of_second[1:]} <= {True, False}
    # Many in one report, and one more in another.
    for numbers in (range(MAX_LEAKS), (MAX_LEAKS,)):
        urls = [f"https://example.com/{number}" for number in numbers]
        locations = [LeakLocation("github", "commit", url) for url in urls]
        await authenticator.revoke_leaked(
            [LeakedKey(first.value.reveal(), location) for location in locations]
        )
    leaks = await keys.it.audit.list(
        AuditQuery(action="key.leaked", target=first.record.id), PageRequest(limit=200)
    )
    assert len(leaks.items) == MAX_LEAKS


async def test_forgetting_an_owner_is_recorded_as_done_by_the_service(keys: Keys) -> None:
    active = (await keys.authenticator.create_key(keys.ann, name="active")).record.id
    revoked = (await keys.authenticator.create_key(keys.ann, name="revoked")).record.id
    await keys.authenticator.revoke_key(keys.ann, revoked)
    keys.it.clock.sleep(1)
    assert await keys.authenticator.forget_owner(keys.ann.owner.id) == 1

    entries = (await keys.entries())[3:]
    assert {(entry.action, entry.target, entry.details.get("cause")) for entry in entries} == {
        ("key.revoked", active, "forgotten"),
        ("key.deleted", revoked, None),
    }
    assert {(entry.credential.kind, entry.actor) for entry in entries} == {("system", None)}


@pytest.mark.parametrize("end", ["revoke_key", "delete_key"])
async def test_a_leak_of_an_ended_key_is_logged_if_its_entry_cannot_be_written(
    keys: Keys, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The report changes no key, so nothing can be undone."""
    created = await keys.authenticator.create_key(keys.ann, name="CI")
    await getattr(keys.authenticator, end)(keys.ann, created.record.id)
    place = LeakLocation("github", "commit", "https://example.com/a")
    with failing(keys.it.db, "INSERT INTO audit") as refused:
        (record,) = await keys.authenticator.revoke_leaked(
            [LeakedKey(created.value.reveal(), place)]
        )
    assert record is not None
    assert len(refused) == 1
    assert "key.leaked" not in [action for action, *_ in await keys.trail()]
    (entry,) = [record.audit_entry for record in caplog.records if hasattr(record, "audit_entry")]
    assert (entry["target"], entry["credential_kind"]) == (created.record.id, "none")
    assert entry["details"] == {
        "name": "CI",
        "reporter": "github",
        "source": "commit",
        "url": "https://example.com/a",
        "revoked": False,
    }


async def test_a_request_that_ends_between_key_and_entry_leaves_neither(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = (await keys.authenticator.create_key(keys.ann, name="CI")).record
    before = await keys.records(), await keys.trail()
    reached = asyncio.Event()

    async def stop_here(*_: object, **__: object) -> None:
        reached.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(Change, "record", stop_here)
        # On PostgreSQL a write whose request has ended is abandoned when it is late, which it is not before.
        patch.setattr(keys.store, "write_seconds", 3)
        task = asyncio.create_task(keys.authenticator.rotate_key(keys.ann, made.id))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (await keys.records(), await keys.trail()) == before
    # The next change does not wait for the one that was lost.
    await keys.authenticator.delete_key(keys.ann, made.id)
    assert (await keys.trail())[-1][0] == "key.deleted"
