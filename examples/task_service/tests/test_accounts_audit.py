"""The audit log: who did what with which credential, never a secret (ASVS 5.0, section 16)."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from examples.task_service.tests.accounts_support import (
    PASSWORD,
    START,
    World,
    client,
    principal,
    record,
)
from examples.task_service.tests.runs_support import failing, plans_of
from sqlalchemy import insert

from msk_auth import CredentialKind, KeyFormat, Principal
from msk_auth.errors import StoreUnavailable
from task_service.accounts.audit import Actor, Audit, AuditQuery, UsedCredential
from task_service.accounts.users import User
from task_service.db import schema
from task_service.db.paging import PageRequest
from task_service.observability import Metrics
from task_service.request_record import RequestRecord, current_request

pytestmark = pytest.mark.anyio


def _with_key(user: User) -> Principal[User]:
    return replace(principal(user), kind=CredentialKind.API_KEY, key_id="AAAAAAAAAAAA")


# Writing


async def test_an_entry_has_actor_credential_and_address(lite: World) -> None:
    user = await lite.user("ann")
    token = current_request.set(RequestRecord("r1", "192.0.2.1"))
    await record(lite, "one", "tsk_1", by=principal(user, session_id="ses_1"))
    current_request.reset(token)
    await record(lite, "two", by=_with_key(user), n=1)
    await record(lite, "three", anonymous=True)
    await record(lite, "four")
    four, three, two, one = (await lite.audit.list(AuditQuery(), PageRequest(limit=4))).items

    assert one.actor == Actor(id=user.id, username="ann")
    assert one.credential == UsedCredential(kind="interactive", id="ses_1")
    assert (one.at, one.target, one.address) == (lite.clock.now(), "tsk_1", "192.0.2.1")
    assert two.credential == UsedCredential(kind="api_key", id="AAAAAAAAAAAA")
    assert (two.address, two.details) == (None, {"n": 1})
    assert (three.actor, three.credential.kind) == (None, "none")
    assert (four.actor, four.credential.kind) == (None, "system")


async def test_what_looks_like_a_credential_is_masked_wherever_it_stands(lite: World) -> None:
    key = KeyFormat().generate()
    secret = key.reveal()
    user = await lite.user("ann")
    jwt = (await lite.login.log_in("ann", PASSWORD)).token
    more = [{"deep": (f"is {jwt}", 5, None)}]
    await record(lite, "key.created", name=secret, more=more)
    entry = (await lite.audit.list(AuditQuery(), PageRequest(limit=1))).items[0]

    assert secret not in str(entry)
    assert jwt not in str(entry)
    assert key.id in str(entry)
    assert user.id not in str(entry)
    assert entry.details["more"][0]["deep"][1:] == [5, None]


# Reading


async def test_old_entries_are_deleted_and_younger_ones_stay(
    it: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("task_service.accounts.audit._PURGED_AT_ONCE", 2)
    for number in range(6):
        await record(it, f"a{number}")
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
        await record(it, action, f"of {user.username}", by=principal(user))

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


async def test_entries_of_several_actions_are_listed_in_one_order_page_by_page(it: World) -> None:
    ann = await it.user("ann")
    for number in range(12):
        await record(
            it,
            ["key.created", "key.revoked", "user.created"][number % 3],
            # The key's own entry is found by its target and by its credential, and listed once.
            "AAAAAAAAAAAA" if number == 6 else f"t{number}",
            by=_with_key(ann),
        )
    expected = {"key.": [10, 9, 7, 6, 4, 3, 1, 0], "key.created": [9, 6, 3, 0], "nothing.": []}
    for action, numbers in expected.items():
        for query in (
            AuditQuery(action=action),
            AuditQuery(action=action, actor="ann"),
            AuditQuery(action=action, key="AAAAAAAAAAAA"),
        ):
            ids: list[int] = []
            cursor = None
            while True:
                page = await it.audit.list(query, PageRequest(cursor=cursor, limit=3, count=True))
                assert page.total == len(numbers)
                ids += [entry.id for entry in page.items]
                cursor = page.next_cursor
                if cursor is None:
                    break
            first = (await it.audit.list(AuditQuery(), PageRequest(limit=12))).items[-1].id
            assert [entry_id - first for entry_id in ids] == numbers


async def test_entries_of_a_time_are_listed_by_time(it: World) -> None:
    """Also where the clocks of two machines differ, so that ids and times have different orders."""
    start = it.clock.now()
    async with it.db.write() as connection:
        for minutes in (3, 1, 2, 2, 9):
            entry = it.audit.entry(f"at {minutes}")
            at = start + timedelta(minutes=minutes)
            await connection.execute(insert(schema.audit).values({**entry, "at": at}))
    query = AuditQuery(since=start + timedelta(minutes=1), until=start + timedelta(minutes=4))
    listed: list[str] = []
    cursor = None
    while True:
        page = await it.audit.list(query, PageRequest(cursor=cursor, limit=1))
        listed += [entry.action for entry in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break

    assert listed == ["at 3", "at 2", "at 2", "at 1"]


async def test_an_index_has_the_entries_of_each_query(it: World) -> None:
    """However long the log is, and however old the entries are."""
    await _fill(it, await it.user("ann"))
    for query, index in (
        (AuditQuery(action="key.created"), "ix_audit_action_at_id"),
        (AuditQuery(actor="ann"), "ix_audit_actor_id_at_id"),
        (AuditQuery(target="t1"), "ix_audit_target_at_id"),
        (AuditQuery(key="AAAAAAAAAAAA"), "ix_audit_credential_id_at_id"),
        (AuditQuery(until=START), "ix_audit_at"),
    ):
        plans = await plans_of(it.db, it.audit.list(query))
        assert any(index in line for line in plans), plans
        for scan in ("SCAN audit", "Seq Scan on audit", "Scan Backward using pk_audit"):
            assert not any(scan in line for line in plans), plans
    # Entries before an old time are found without those after it. PostgreSQL may sort the few that it finds.
    bounded = re.compile(r"ix_audit_.*\bat<\?|Index Cond: .*\bat < ")
    for query in (
        AuditQuery(action="run.requested", until=START),
        AuditQuery(actor_id="usr_another", until=START),
        AuditQuery(target="t1", until=START),
        AuditQuery(until=START),
    ):
        plans = await plans_of(it.db, it.audit.list(query))
        assert any(bounded.search(line) for line in plans), plans
        assert not any("TEMP B-TREE" in line for line in plans), plans


async def _fill(it: World, user: User) -> None:
    """A log that is long enough for PostgreSQL to use its indexes; what the tests look for is old."""
    common: dict[str, Any] = {
        "at": START + timedelta(days=1),
        "action": "run.requested",
        "actor_id": "usr_another",
        "credential_kind": "interactive",
        "details": {},
    }
    key = {"credential_id": "AAAAAAAAAAAA", "target": "t1"}
    async with it.db.write() as connection:
        for action in ("key.created", "key.revoked"):
            await connection.execute(
                insert(schema.audit).values(
                    {**common, **key, "at": START, "action": action, "actor_id": user.id}
                )
            )
        await connection.execute(
            insert(schema.audit),
            [{**common, "credential_id": f"c{n}", "target": f"x{n}"} for n in range(5000)],
        )
        await connection.exec_driver_sql("ANALYZE audit")


# Without the database


async def test_a_refusal_without_its_entry_is_no_verdict_and_its_entry_is_logged(
    it: World, caplog: pytest.LogCaptureFixture
) -> None:
    user = await it.user("ann")
    with failing(it.db, "INSERT INTO audit"), client("192.0.2.1"):
        with pytest.raises(StoreUnavailable):
            await it.login.log_in("ann", "a wrong password")
        with pytest.raises(StoreUnavailable):
            await it.login.change_password(principal(user), "a wrong password", "another of mine")
    logged = [record.audit_entry for record in caplog.records if hasattr(record, "audit_entry")]

    assert [(line["action"], line["target"], line["address"]) for line in logged] == [
        ("login.failed", user.id, "192.0.2.1"),
        ("user.password_change_failed", user.id, "192.0.2.1"),
    ]
    assert logged[0]["at"] == it.clock.now().isoformat()
    assert await it.actions() == ["user.created"]


async def test_an_entry_that_is_left_out_is_counted(lite: World) -> None:
    metrics = Metrics()
    audit = Audit(lite.db, lite.clock, left_out=metrics.audit_left_out.inc)
    with failing(lite.db, "INSERT INTO audit"), pytest.raises(StoreUnavailable):
        await audit.record_refusal("login.failed", anonymous=True)
    assert b"task_service_audit_left_out_total 1.0" in metrics.render()


async def test_a_login_that_succeeds_needs_its_entry(
    it: World, caplog: pytest.LogCaptureFixture
) -> None:
    await it.user("ann")
    with failing(it.db, "INSERT INTO audit"), pytest.raises(StoreUnavailable):
        await it.login.log_in("ann", PASSWORD)

    assert await it.rows("sessions") == []
    assert not [record for record in caplog.records if hasattr(record, "audit_entry")]
