"""The API keys of all users: what administrators see of them, and that they end them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from examples.task_service.tests.service_support import (
    ADMIN_PASSWORD,
    Caller,
    Service,
    expect,
    problem,
    wrong_fields,
)

from task_service.api.admin import RECENT_LOGIN

pytestmark = pytest.mark.anyio

PATH = "/api/admin/keys"


async def test_an_administrator_lists_the_keys_of_all_users_by_name(
    service: Service, user: Caller, admin: Caller
) -> None:
    theirs = [await user.new_key(name=name) for name in ("one", "two", "three")]
    own = await admin.new_key(name="own", expires_in_days=3)
    found = await admin.list_all(PATH)
    assert {(key["owner_name"], key["name"]) for key in found} == {
        ("ulf", "one"), ("ulf", "two"), ("ulf", "three"), ("ada", "own"),
    }  # fmt: skip
    assert [key["name"] for key in await admin.list_all(PATH, owner="ULF")] == [
        "three",
        "two",
        "one",
    ]
    assert await admin.list_all(PATH, owner="unknown") == []
    # As its owner sees it, and without a value.
    shown = expect(await user.get(f"/api/keys/{theirs[0]['id']}"), 200)
    (seen,) = [key for key in found if key["id"] == theirs[0]["id"]]
    assert seen == {**shown, "owner_name": "ulf", "owner_disabled": False}
    response = await admin.get(PATH)
    assert response.headers["cache-control"] == "no-store"
    assert not any(key["key"] in response.text for key in (*theirs, own))

    service.clock.advance(days=2)
    again = await service.log_in("ada", ADMIN_PASSWORD)
    soon = (service.clock.now() + timedelta(days=2)).isoformat().replace("+00:00", "Z")
    now = service.clock.now().isoformat().replace("+00:00", "Z")
    assert [key["name"] for key in await again.list_all(PATH, expires_before=soon)] == ["own"]
    assert len(await again.list_all(PATH, created_before=now, unused_since=now)) == 4
    expect(await again.post(f"{PATH}/{own['id']}/revoke"), 200)
    assert [key["name"] for key in await again.list_all(PATH, status="revoked")] == ["own"]


async def test_a_query_that_cannot_be_read_is_refused(admin: Caller) -> None:
    for query, field in (
        ("limit=0", "limit"),
        ("cursor=x", "cursor"),
        ("status=dead", "status"),
        ("label=A", "label"),
        ("created_before=2026-01-01", "created_before"),
        ("unused_since=2026-01-01T00:00:00", "unused_since"),
    ):
        assert wrong_fields(await admin.get(f"{PATH}?{query}")) == {field}, query


async def test_an_administrator_revokes_keys_of_others_and_the_audit_log_names_both(
    service: Service, user: Caller, admin: Caller
) -> None:
    one, two, kept = [await user.new_key(name=name) for name in ("one", "two", "kept")]
    person = (await user.me())["user"]
    programs = [service.caller(key["key"]) for key in (one, two, kept)]
    revoked = expect(await admin.post(f"{PATH}/{one['id']}/revoke"), 200)
    assert (revoked["status"], revoked["owner_id"]) == ("revoked", person["id"])
    body = {"ids": [two["id"], "000000000000"]}
    several = expect(await admin.post(f"{PATH}/revoke", body), 200)
    assert [key["id"] for key in several["items"]] == [two["id"]]
    assert several["not_found"] == ["000000000000"]
    for program in programs[:2]:
        assert problem(await program.get("/api/auth/me")) == (401, "key_revoked")
    expect(await programs[2].get("/api/auth/me"), 200)
    entries = expect(await admin.get("/api/admin/audit?action=key.revoked"), 200)["items"]
    assert [
        (entry["target"], entry["actor"]["username"], entry["credential"]["kind"])
        for entry in entries
    ] == [(two["id"], "ada", "interactive"), (one["id"], "ada", "interactive")]
    for entry in entries:
        assert entry["details"]["owner_id"] == person["id"]
        assert entry["details"]["cause"] == "administrator"
    # The owner sees who it was.
    (newest, *_) = expect(await user.get(f"/api/keys/{one['id']}/audit"), 200)["items"]
    assert (newest["action"], newest["actor"]["username"]) == ("key.revoked", "ada")


async def test_revoking_takes_a_login_of_the_last_quarter_of_an_hour(
    service: Service, user: Caller, admin: Caller
) -> None:
    key = await user.new_key()
    service.clock.advance(seconds=RECENT_LOGIN.total_seconds() + 1)
    expect(await admin.get(PATH), 200)
    for path, body in (
        (f"{PATH}/{key['id']}/revoke", None),
        (f"{PATH}/revoke", {"ids": [key["id"]]}),
    ):
        assert problem(await admin.post(path, body)) == (401, "login_too_old")
    expect(await service.caller(key["key"]).get("/api/auth/me"), 200)


async def test_an_administrator_reads_which_key_did_what(
    service: Service, user: Caller, admin: Caller
) -> None:
    key = await user.new_key(name="nightly")
    task = await user.new_task()
    as_key = service.caller(key["key"])
    expect(await as_key.post(f"/api/tasks/{task['id']}/run"), 202)
    expect(await user.patch(f"/api/keys/{key['id']}", {"labels": ["a"]}), 200)
    expect(await user.patch(f"/api/keys/{key['id']}", {"labels": ["b"], "name": "daily"}), 200)
    await service.services.key_activity.flush()

    one = f"{PATH}/{key['id']}"
    shown = expect(await admin.get(one), 200)
    assert (shown["name"], shown["owner_name"], shown["owner_disabled"]) == ("daily", "ulf", False)
    activity = expect(await admin.get(f"{one}/activity"), 200)
    assert activity == expect(await user.get(f"/api/keys/{key['id']}/activity"), 200)
    assert activity["last_request"]["route"] == "POST /api/tasks/{taskId}/run"
    entries = expect(await admin.get(f"/api/admin/audit?key={key['id']}"), 200)["items"]
    assert [entry["action"] for entry in entries] == [
        "key.updated", "key.updated", "run.requested", "key.created",
    ]  # fmt: skip
    assert entries[0]["details"]["changed"] == {
        "labels": {"old": ["a"], "new": ["b"]},
        "name": {"old": "nightly", "new": "daily"},
    }
    assert entries[2]["credential"] == {"kind": "api_key", "id": key["id"], "name": "daily"}
    for path in (f"/api/admin/audit?key={key['id']}&", f"/api/keys/{key['id']}/audit?"):
        caller = admin if "admin" in path else user
        changes = expect(await caller.get(f"{path}routine=false"), 200)["items"]
        assert changes == [entries[0], entries[1], entries[3]]

    for refused in (await user.get(one), await user.get(f"{one}/activity")):
        assert problem(refused) == (403, "permission_denied")
    for path in (f"{PATH}/AAAAAAAAAAAA", f"{PATH}/AAAAAAAAAAAA/activity", f"{PATH}/%00"):
        assert problem(await admin.get(path)) == (404, "key_not_found")
    assert problem(await admin.post(f"{PATH}/AAAAAAAAAAAA/revoke")) == (404, "key_not_found")
