"""The audit log: who did what with which credential, never a secret (ASVS 5.0, section 16)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from examples.task_service.tests.accounts_support import (
    KINDS,
    PASSWORD,
    World,
    principal,
    world,
)

from msk_auth import CredentialKind, InputInvalid, KeyFormat, Principal
from task_service.accounts.audit import AuditQuery
from task_service.accounts.users import User
from task_service.request_record import RequestRecord, current_request

pytestmark = pytest.mark.anyio


@pytest.fixture(params=KINDS)
async def it(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with world(request.param, tmp_path) as it:
        yield it


def _with_key(user: User) -> Principal[User]:
    return replace(principal(user), kind=CredentialKind.API_KEY, key_id="AAAAAAAAAAAA")


# Writing


async def test_an_entry_has_actor_credential_and_address(it: World) -> None:
    user = await it.user("ann")
    token = current_request.set(RequestRecord("r1", "192.0.2.1"))
    await it.audit.record("one", principal=principal(user, session_id="ses_1"), target="tsk_1")
    current_request.reset(token)
    await it.audit.record("two", principal=_with_key(user), details={"n": 1})
    await it.audit.record("three", anonymous=True)
    await it.audit.record("four")
    four, three, two, one = (await it.audit.list(AuditQuery(), limit=4)).items

    assert (one.actor_id, one.actor_name, one.credential_kind, one.credential_id) == (
        user.id,
        "ann",
        "interactive",
        "ses_1",
    )
    assert (one.at, one.target, one.address) == (it.clock.now(), "tsk_1", "192.0.2.1")
    assert (two.credential_kind, two.credential_id, two.address, two.details) == (
        "api_key",
        "AAAAAAAAAAAA",
        None,
        {"n": 1},
    )
    assert (three.actor_id, three.credential_kind) == (None, "none")
    assert (four.actor_id, four.credential_kind) == (None, "system")


async def test_an_entry_commits_or_rolls_back_with_its_change(it: World) -> None:
    async def fail() -> None:
        async with it.db.write() as connection:
            await it.audit.record("lost", connection=connection)
            raise LookupError

    with pytest.raises(LookupError):
        await fail()

    assert await it.actions() == []


async def test_what_looks_like_a_credential_is_masked_wherever_it_stands(it: World) -> None:
    key = KeyFormat().generate()
    secret = key.reveal()
    user = await it.user("ann")
    jwt = (await it.login.log_in("ann", PASSWORD)).token
    await it.audit.record(
        "key.created", details={"name": secret, "more": [{"deep": (f"is {jwt}", 5, None)}]}
    )
    entry = (await it.audit.list(AuditQuery(), limit=1)).items[0]

    assert secret not in str(entry)
    assert jwt not in str(entry)
    assert key.id in str(entry)
    assert user.id not in str(entry)
    assert entry.details["more"][0]["deep"][1:] == [5, None]


# Reading


async def test_entries_are_listed_page_by_page_newest_first(it: World) -> None:
    for number in range(5):
        await it.audit.record(f"a{number}")
    actions: list[str] = []
    cursor = None
    while True:
        page = await it.audit.list(AuditQuery(), cursor=cursor, limit=2)
        actions += [entry.action for entry in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break

    assert actions == ["a4", "a3", "a2", "a1", "a0"]


async def test_old_entries_are_deleted_and_younger_ones_stay(
    it: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("task_service.accounts.audit._PURGED_AT_ONCE", 2)
    for number in range(6):
        await it.audit.record(f"a{number}")
        it.clock.sleep(60)
    before = it.clock.now() - timedelta(seconds=60)

    assert await it.audit.purge(before=before) == 5
    assert [entry.action for entry in (await it.audit.list(AuditQuery())).items] == ["a5"]
    assert await it.audit.purge(before=before) == 0


async def test_entries_are_found_by_each_of_their_fields(it: World) -> None:
    ann, bob = await it.user("ann"), await it.user("bob")
    start = it.clock.now()
    for action, user in (
        ("key.created", ann),
        ("key.revoked", bob),
        ("keys.x", ann),
        ("k%y.", bob),
    ):
        it.clock.sleep(60)
        await it.audit.record(action, principal=principal(user), target=f"of {user.username}")

    async def found(query: AuditQuery) -> list[str]:
        return [entry.action for entry in (await it.audit.list(query)).items]

    assert await found(AuditQuery(actor_id=ann.id)) == ["keys.x", "key.created"]
    assert await found(AuditQuery(action="key.created")) == ["key.created"]
    assert await found(AuditQuery(action="key.")) == ["key.revoked", "key.created"]
    assert await found(AuditQuery(action="k%y.")) == ["k%y."]
    assert await found(AuditQuery(action="key")) == []
    assert await found(AuditQuery(target="of bob", action="key.")) == ["key.revoked"]
    assert await found(
        AuditQuery(since=start + timedelta(minutes=2), until=start + timedelta(minutes=4))
    ) == ["keys.x", "key.revoked"]


async def test_a_listing_that_cannot_be_given_is_refused(it: World) -> None:
    for cursor in ("", "0", "-1", "x", "1" * 19, "١"):
        with pytest.raises(InputInvalid):
            await it.audit.list(AuditQuery(), cursor=cursor)
    for limit in (0, 201):
        with pytest.raises(InputInvalid):
            await it.audit.list(AuditQuery(), limit=limit)
