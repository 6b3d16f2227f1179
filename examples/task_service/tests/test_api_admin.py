"""The live configuration, users and the audit log."""

from __future__ import annotations

import json

import httpx2
import pytest
from examples.task_service.tests.service_support import (
    ADMIN_PASSWORD,
    Caller,
    Service,
    challenge,
    expect,
    problem,
    wrong_fields,
)

from task_service.accounts.config import ServiceConfig

pytestmark = pytest.mark.anyio

DEFAULTS = ServiceConfig().model_dump(mode="json")


async def audit(admin: Caller, query: str = "") -> list[dict]:
    return expect(await admin.get(f"/api/admin/audit?limit=200{query}"), 200)["items"]


# Configuration


async def test_any_subset_of_it_can_be_changed(admin: Caller) -> None:
    assert expect(await admin.get("/api/admin/config"), 200) == DEFAULTS
    change = {"max_keys_per_user": 5, "run_retention_days": 7}
    config = expect(await admin.patch("/api/admin/config", change), 200)
    assert config == DEFAULTS | change
    assert expect(await admin.get("/api/admin/config"), 200) == config
    assert expect(await admin.patch("/api/admin/config", {}), 200) == config


async def test_a_bad_change_changes_nothing(admin: Caller) -> None:
    before = expect(await admin.get("/api/admin/config"), 200)
    for change, fields in (
        ({"max_keys_per_user": "5"}, {"max_keys_per_user"}),
        ({"max_keys_per_user": 10**400}, {"max_keys_per_user"}),
        ({"no_such_setting": 1}, {"no_such_setting"}),
        ({"\ud800": 1}, {""}),
        ({"allowed_commands": ["\x00"]}, {"allowed_commands.0"}),
    ):
        body = json.dumps({"run_retention_days": 7} | change).encode()
        response = await admin.patch(
            "/api/admin/config", content=body, headers={"Content-Type": "application/json"}
        )
        assert wrong_fields(response) == fields, change
    assert expect(await admin.get("/api/admin/config"), 200) == before


async def test_lifetimes_of_keys_take_effect_at_once(admin: Caller, user: Caller) -> None:
    assert (await user.new_key())["expires_at"] is None
    change = {"default_key_lifetime_days": 7, "max_key_lifetime_days": 30}
    expect(await admin.patch("/api/admin/config", change), 200)
    assert (await user.new_key())["expires_at"] is not None
    for days in (31, None):
        body = {"name": "k", "expires_in_days": days}
        assert wrong_fields(await user.post("/api/keys", body)) == {"expires_in_days"}


async def test_a_command_that_is_no_longer_allowed_does_not_run(
    admin: Caller, user: Caller
) -> None:
    task = await user.new_task()
    expect(await admin.patch("/api/admin/config", {"allowed_commands": ["true"]}), 200)
    run = expect(await user.post(f"/api/tasks/{task['id']}/run"), 202)
    assert (await user.wait_for_run(run["id"]))["state"] == "failed"
    assert wrong_fields(
        await user.post(
            "/api/tasks",
            {"name": "n", "handler": "command", "params": {"argv": ["echo"]}},
        )
    )


# Users


async def test_a_user_is_created_shown_changed_and_listed(admin: Caller) -> None:
    response = await admin.post("/api/admin/users", {"username": "Eva", "role": "user"})
    created = expect(response, 201)
    shown = created["user"]
    assert shown.keys() == {
        "id",
        "username",
        "roles",
        "disabled",
        "created_at",
        "last_login_at",
        "has_password",
        "external_login",
        "service_account",
    }
    assert (shown["username"], shown["roles"], shown["has_password"]) == ("eva", ["user"], False)
    assert created["invitation_url"].startswith("http://127.0.0.1:8000/set-password#")
    path = f"/api/admin/users/{shown['id']}"
    assert response.headers["location"] == path
    assert expect(await admin.get(path), 200) == shown
    changed = expect(await admin.patch(path, {"roles": ["admin"], "disabled": True}), 200)
    assert changed == {**shown, "roles": ["admin"], "disabled": True}
    listed = expect(await admin.get("/api/admin/users"), 200)["items"]
    assert [each["username"] for each in listed] == ["eva", "ulf", "ada"]


async def test_users_are_searched_and_filtered(admin: Caller) -> None:
    for query, names in (
        ("search=UL", ["ulf"]),
        ("search=", ["ulf", "ada"]),
        ("role=admin", ["ada"]),
        ("disabled=false&search=a", ["ada"]),
        ("disabled=true", []),
    ):
        found = expect(await admin.get(f"/api/admin/users?{query}"), 200)
        assert [user["username"] for user in found["items"]] == names, query
    for query, field in (
        ("role=root", "role"),
        ("disabled=perhaps", "disabled"),
        ("search=" + "x" * 101, "search"),
    ):
        assert wrong_fields(await admin.get(f"/api/admin/users?{query}")) == {field}


async def test_a_bad_user_is_refused_by_the_fields(admin: Caller, user: Caller) -> None:
    for body, fields in (
        ({}, {"username", "role"}),
        ({"username": "eva", "role": "root"}, {"role"}),
        ({"username": "", "role": "user"}, {"username"}),
        ({"username": "e v a", "role": "user"}, {"username"}),
        ({"username": "e" * 65, "role": "user"}, {"username"}),
        ({"username": "eva", "role": "user", "password": "chosen for her"}, {"password"}),
        ({"username": "eva", "role": "user", "id": "usr_1"}, {"id"}),
    ):
        assert wrong_fields(await admin.post("/api/admin/users", body)) == fields, body
    user_id = (await user.me())["user"]["id"]
    for roles, field in (([], "roles"), (["user", "root"], "roles.1")):
        response = await admin.patch(f"/api/admin/users/{user_id}", {"roles": roles})
        assert wrong_fields(response) == {field}


async def test_an_unknown_user_is_not_found(admin: Caller) -> None:
    for path in ("usr_0000000000000000", "nonsense", "%00"):
        address = f"/api/admin/users/{path}"
        assert problem(await admin.get(address)) == (404, "user_not_found")
        assert problem(await admin.patch(address, {"disabled": True})) == (404, "user_not_found")
        assert problem(await admin.post(f"{address}/invitation")) == (404, "user_not_found")


# Operations that need a recent login (RFC 9470)


async def sensitive(admin: Caller, user_id: str, username: str = "eva") -> list[httpx2.Response]:
    """Making an administrator, changing roles, and setting up another's password, in that order."""
    path = f"/api/admin/users/{user_id}"
    return [
        await admin.post("/api/admin/users", {"username": username, "role": "admin"}),
        await admin.patch(path, {"roles": ["admin"]}),
        await admin.patch(path, {"roles": ["user"], "disabled": False}),
        await admin.post(f"{path}/invitation"),
    ]


async def test_what_makes_administrators_or_passwords_needs_a_login_of_the_last_15_minutes(
    service: Service, admin: Caller, user: Caller
) -> None:
    user_id = (await user.me())["user"]["id"]
    service.clock.advance(minutes=14)
    assert [each.status_code for each in await sensitive(admin, user_id)] == [201, 200, 200, 201]
    service.clock.advance(minutes=1, seconds=1)
    before = len(await audit(admin))
    refused = await sensitive(admin, user_id)
    assert {problem(each) for each in refused} == {(401, "login_too_old")}
    assert {challenge(each) for each in refused} == {
        'Bearer realm="task-service", error="insufficient_user_authentication", max_age="900"'
    }
    assert len(await audit(admin)) == before
    # Everything else needs any login.
    key = await admin.new_key()
    rotated = expect(await admin.post(f"/api/keys/{key['id']}/rotate"), 201)
    expect(await admin.post(f"/api/keys/{rotated['id']}/revoke"), 200)
    expect(await admin.patch("/api/admin/config", {"run_retention_days": 7}), 200)
    expect(await admin.post("/api/admin/users", {"username": "bea", "role": "user"}), 201)
    # Stopping a user must not wait for a password.
    path = f"/api/admin/users/{user_id}"
    expect(await admin.patch(path, {"disabled": True}), 200)
    expect(await admin.patch(path, {"disabled": False}), 200)
    assert (await admin.delete(f"{path}/sessions")).status_code == 204
    # The login is recent again once the password is confirmed.
    body = {"password": ADMIN_PASSWORD}
    token = expect(await admin.post("/api/auth/reauthenticate", body), 200)["access_token"]
    fresh = service.caller(token)
    again = await sensitive(fresh, user_id, "fay")
    assert [each.status_code for each in again] == [201, 200, 200, 201]


# Audit


async def test_the_audit_log_can_be_searched_and_paged(admin: Caller, user: Caller) -> None:
    created = [await user.new_key() for _ in range(3)]
    for key in created:
        expect(await user.post(f"/api/keys/{key['id']}/revoke"), 200)
    mine = (await user.me())["user"]["id"]
    assert {entry["action"] for entry in await audit(admin, "&action=key.")} == {
        "key.created",
        "key.revoked",
    }
    assert len(await audit(admin, "&action=key.revoked")) == 3
    assert len(await audit(admin, f"&target={created[0]['id']}")) == 2
    assert {entry["actor"]["id"] for entry in await audit(admin, f"&actor_id={mine}")} == {mine}
    at = (await audit(admin))[0]["at"].replace("+", "%2B")
    assert len(await audit(admin, f"&since={at}")) == 1
    assert at not in {entry["at"] for entry in await audit(admin, f"&until={at}")}
    page = expect(await admin.get("/api/admin/audit?limit=2"), 200)
    seen = [entry["id"] for entry in page["items"]]
    page = expect(await admin.get(f"/api/admin/audit?limit=2&cursor={page['next_cursor']}"), 200)
    seen += [entry["id"] for entry in page["items"]]
    assert seen == sorted(set(seen), reverse=True)
    assert len(seen) == 4


async def test_a_bad_search_is_refused_by_the_field(admin: Caller) -> None:
    for query, field in (
        ("cursor=%00", "cursor"),
        ("since=yesterday", "since"),
        ("since=2026-01-01T00:00:00", "since"),
    ):
        assert wrong_fields(await admin.get(f"/api/admin/audit?{query}")) == {field}, query
