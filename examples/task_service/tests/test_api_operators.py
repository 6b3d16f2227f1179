"""What the pages of administrators and of one's own account ask beside the rest: export, system, sessions, trails."""

from __future__ import annotations

import csv
import io
import json

import pytest
from examples.task_service.tests.accounts_support import record
from examples.task_service.tests.service_support import (
    USER_PASSWORD,
    Caller,
    Service,
    expect,
    problem,
    secrets_in,
    wrong_fields,
)

pytestmark = pytest.mark.anyio

FORMULA = "=1+1"


# Sessions


async def test_all_other_sessions_end_and_the_own_one_goes_on(
    service: Service, user: Caller, admin: Caller, user_key: Caller
) -> None:
    others = [await service.log_in("ulf", USER_PASSWORD) for _ in range(2)]
    assert (await user.delete("/api/auth/sessions")).status_code == 204
    for other in others:
        assert problem(await other.get("/api/auth/me")) == (401, "token_revoked")
    (left,) = expect(await user.get("/api/auth/sessions"), 200)["items"]
    assert left["current"]
    expect(await user_key.get("/api/auth/me"), 200)
    expect(await admin.get("/api/auth/me"), 200)
    # Revoking again is no error, and is not recorded.
    assert (await user.delete("/api/auth/sessions")).status_code == 204
    entries = expect(await admin.get("/api/admin/audit?action=session.all_ended"), 200)["items"]
    assert [entry["details"] for entry in entries] == [{"ended": 2}]


async def test_an_administrator_ends_all_sessions_of_a_user(
    service: Service, user: Caller, admin: Caller, user_key: Caller
) -> None:
    user_id = (await user.me())["user"]["id"]
    assert (await admin.delete(f"/api/admin/users/{user_id}/sessions")).status_code == 204
    assert problem(await user.get("/api/auth/me")) == (401, "token_revoked")
    expect(await user_key.get("/api/auth/me"), 200)
    expect(await (await service.log_in("ulf", USER_PASSWORD)).get("/api/auth/me"), 200)
    path = "/api/admin/users/usr_0000000000000000/sessions"
    assert problem(await admin.delete(path)) == (404, "user_not_found")


# The trail of a key


async def test_a_keys_trail_lists_changes_and_uses(
    service: Service, user: Caller, admin: Caller
) -> None:
    created = await user.new_key(name="CI")
    await service.caller(created["key"]).new_task()
    await user.new_key(name="another")
    successor = expect(await user.post(f"/api/keys/{created['id']}/rotate"), 201)
    path = f"/api/keys/{created['id']}/audit"
    page = expect(await user.get(path), 200)
    assert [entry["action"] for entry in page["items"]] == [
        "key.rotated",
        "task.created",
        "key.created",
    ]
    assert page["items"][0]["details"]["successor"] == successor["id"]
    (origin,) = expect(await user.get(f"/api/keys/{successor['id']}/audit"), 200)["items"]
    assert (origin["action"], origin["details"]["predecessor"]) == ("key.created", created["id"])
    first = expect(await user.get(f"{path}?limit=2"), 200)
    second = expect(await user.get(f"{path}?limit=2&cursor={first['next_cursor']}"), 200)
    assert first["items"] + second["items"] == page["items"]
    # An administrator reads the whole log; no one else reads the trail of another owner's key.
    assert problem(await admin.get(path)) == (404, "key_not_found")
    assert problem(await service.caller(created["key"]).get(path))[0] in {401, 403}


# The audit log as a file


async def test_the_log_is_exported_as_lines_of_json(admin: Caller, user: Caller) -> None:
    for _ in range(3):
        await user.new_key()
    listed = expect(await admin.get("/api/admin/audit?action=key."), 200)["items"]
    answer = await admin.get("/api/admin/audit/export?format=jsonl&action=key.")
    assert answer.headers["content-type"] == "application/jsonl"
    assert answer.headers["content-disposition"] == 'attachment; filename="audit.jsonl"'
    assert answer.headers["cache-control"] == "no-store"
    assert [json.loads(line) for line in answer.text.splitlines()] == listed
    assert not secrets_in(answer.text)


async def test_the_log_is_exported_as_a_table_that_no_spreadsheet_executes(
    admin: Caller, user: Caller
) -> None:
    await user.new_key(name=FORMULA)
    expect(await admin.post("/api/admin/users", {"username": FORMULA, "role": "user"}), 201)
    answer = await admin.get("/api/admin/audit/export")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    listed = expect(await admin.get("/api/admin/audit?limit=200"), 200)["items"]
    assert [int(row["id"]) for row in rows] == [entry["id"] for entry in listed]
    assert [json.loads(row["details"]) for row in rows] == [entry["details"] for entry in listed]
    assert all(not cell.startswith(("=", "+", "-", "@")) for row in rows for cell in row.values())


async def test_an_export_goes_beyond_one_page(
    service: Service, admin: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("task_service.accounts.audit.EXPORT_PAGE", 20)
    for number in range(45):
        await record(service.services, "test.counted", number=number)
    answer = await admin.get("/api/admin/audit/export?format=jsonl&action=test.counted")
    numbers = [json.loads(line)["details"]["number"] for line in answer.text.splitlines()]
    assert numbers == list(reversed(range(45)))


async def test_a_bad_export_is_refused_by_the_field(admin: Caller) -> None:
    path = "/api/admin/audit/export"
    assert wrong_fields(await admin.get(f"{path}?format=xml")) == {"format"}
    assert wrong_fields(await admin.get(f"{path}?since=yesterday")) == {"since"}


async def test_the_log_is_searched_by_the_name_of_the_actor(admin: Caller, user: Caller) -> None:
    await user.new_key()
    found = expect(await admin.get("/api/admin/audit?actor=ULF"), 200)["items"]
    assert {entry["actor"]["username"] for entry in found} == {"ulf"}
    assert expect(await admin.get("/api/admin/audit?actor=nobody"), 200)["items"] == []


# The system


async def test_the_system_reports_versions_database_queue_and_leases(admin: Caller) -> None:
    idle = expect(await admin.get("/api/admin/system"), 200)
    assert idle["service"]["version"]
    assert idle["database"]["kind"] == "sqlite"
    assert idle["database"]["revision"]
    assert idle["database"]["size_bytes"] > 0
    assert idle["queue"] == {"queued": 0, "running": 0, "oldest_queued_at": None}
    assert idle["worker"]["elsewhere"] is None
    assert idle["worker"]["concurrency"] >= 1
    assert idle["leases"] == []
