"""Service accounts through the API: what administrators do with them, and what no one does."""

from __future__ import annotations

import itertools
from typing import Any

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

from task_service.accounts.roles import RECENT_LOGIN

pytestmark = pytest.mark.anyio

PATH = "/api/admin/service-accounts"


@pytest.fixture
async def bot(admin: Caller) -> dict[str, Any]:
    new = {"name": "deploy-bot", "description": "Deploys from the pipeline"}
    return expect(await admin.post(PATH, new), 201)


def of(account: dict[str, Any], path: str = "/api/keys", **query: str) -> str:
    """A path of the keys of a service account."""
    more = "".join(f"&{name}={value}" for name, value in query.items())
    return f"{path}?on_behalf_of={account['id']}{more}"


async def key_of(admin: Caller, account: dict[str, Any], **body: Any) -> dict[str, Any]:
    return expect(await admin.post(of(account), {"name": "pipeline", **body}), 201)


async def trail(admin: Caller, query: str) -> list[tuple[str, str, str | None]]:
    """Action, actor and target, oldest first."""
    found = expect(await admin.get(f"/api/admin/audit?limit=200&{query}"), 200)["items"]
    return [
        (entry["action"], entry["actor"]["username"], entry["target"]) for entry in reversed(found)
    ]


async def test_an_administrator_creates_describes_disables_and_deletes_one(
    admin: Caller,
) -> None:
    new = {"name": "Deploy-Bot", "description": "Deploys"}
    response = await admin.post(PATH, new)
    bot = expect(response, 201)
    assert response.headers["location"] == f"{PATH}/{bot['id']}"
    assert bot == {
        "id": bot["id"],
        "name": "deploy-bot",
        "description": "Deploys",
        "disabled": False,
        "created_at": bot["created_at"],
        "active_keys": 0,
        "last_used_at": None,
    }
    one = f"{PATH}/{bot['id']}"
    assert expect(await admin.get(one), 200) == bot
    listed = expect(await admin.get(f"{PATH}?count=true&search=BOT&disabled=false"), 200)
    assert listed == {"items": [bot], "next_cursor": None, "total": 1}
    assert expect(await admin.get(PATH), 200) == {"items": [bot], "next_cursor": None}

    changed = expect(await admin.patch(one, {"description": None, "disabled": True}), 200)
    assert changed == {**bot, "description": None, "disabled": True}
    assert expect(await admin.patch(one, {}), 200) == changed
    expect(await admin.patch(one, {"disabled": False}), 200)
    expect(await admin.delete(one), 204)
    for gone in (await admin.get(one), await admin.patch(one, {}), await admin.delete(one)):
        assert problem(gone) == (404, "service_account_not_found")
    assert expect(await admin.get(PATH), 200)["items"] == []
    assert await trail(admin, "action=service_account.") == [
        (f"service_account.{what}", "ada", bot["id"])
        for what in ("created", "described", "disabled", "enabled", "deleted")
    ]


async def test_a_bad_one_is_refused(admin: Caller) -> None:
    for body, fields in (
        ({}, {"name"}),
        ({"name": "a b"}, {"name"}),
        ({"name": 1}, {"name"}),
        ({"name": "bot", "description": "x" * 501}, {"description"}),
        ({"name": "bot", "description": "two\nlines"}, {"description"}),
        ({"name": "bot", "role": "admin"}, {"role"}),
        ({"name": "bot", "password": "nine violet submarines"}, {"password"}),
    ):
        assert wrong_fields(await admin.post(PATH, body)) == fields, body


async def test_names_are_shared_with_users(admin: Caller, bot: dict[str, Any]) -> None:
    for name in ("ULF", "deploy-bot"):
        assert problem(await admin.post(PATH, {"name": name})) == (409, "username_taken")
    new = {"username": "deploy-bot", "role": "user"}
    assert problem(await admin.post("/api/admin/users", new)) == (409, "username_taken")


async def test_giving_access_takes_a_recent_login_and_taking_it_does_not(
    service: Service, admin: Caller, bot: dict[str, Any]
) -> None:
    key = await key_of(admin, bot)
    service.clock.advance(seconds=RECENT_LOGIN.total_seconds() + 1)
    one = f"{PATH}/{bot['id']}"
    refused = [
        await admin.post(PATH, {"name": "another"}),
        await admin.patch(one, {"disabled": False}),
        await admin.delete(one),
        await admin.post(of(bot), {"name": "another"}),
        await admin.post(of(bot, f"/api/keys/{key['id']}/rotate")),
        await admin.post(of(bot, f"/api/keys/{key['id']}/revoke")),
    ]
    for response in refused:
        assert problem(response) == (401, "login_too_old")
        assert 'max_age="900"' in (challenge(response) or "")
    for path in (one, of(bot), of(bot, f"/api/keys/{key['id']}")):
        expect(await admin.get(path), 200)
    assert expect(await admin.patch(one, {"disabled": True}), 200)["disabled"] is True
    again = await service.log_in("ada", ADMIN_PASSWORD)
    expect(await again.patch(one, {"disabled": False}), 200)


# Its keys


async def test_an_administrator_sees_rotates_edits_and_revokes_its_keys(
    service: Service, admin: Caller, bot: dict[str, Any]
) -> None:
    response = await admin.post(of(bot), {"name": "pipeline", "scopes": ["tasks:read"]})
    key = expect(response, 201)
    assert (key["owner_id"], key["scopes"]) == (bot["id"], ["tasks:read"])
    assert response.headers["location"] == f"/api/keys/{key['id']}?on_behalf_of={bot['id']}"
    shown = {name: value for name, value in key.items() if name != "key"}
    assert expect(await admin.get(response.headers["location"]), 200) == shown
    listed = expect(await admin.get(of(bot, count="true")), 200)
    assert (listed["items"], listed["counts"]["active"]) == ([shown], 1)
    everyones = expect(await admin.get("/api/admin/keys?owner=deploy-bot"), 200)["items"]
    assert [(one["id"], one["owner_name"]) for one in everyones] == [(key["id"], "deploy-bot")]
    assert expect(await admin.get(f"{PATH}/{bot['id']}"), 200)["active_keys"] == 1
    # The administrator's own list is another.
    assert expect(await admin.get("/api/keys"), 200)["items"] == []
    assert problem(await admin.get(f"/api/keys/{key['id']}")) == (404, "key_not_found")
    program = service.caller(key["key"])
    me = await program.me()
    assert me["user"] == {
        "id": bot["id"],
        "username": "deploy-bot",
        "roles": ["user"],
        "service_account": True,
    }
    assert me["permissions"] == ["tasks:read"]

    path = f"/api/keys/{key['id']}"
    edited = expect(await admin.patch(of(bot, path), {"description": "On ci-3"}), 200)
    assert edited["description"] == "On ci-3"
    successor = expect(await admin.post(of(bot, f"{path}/rotate"), {"overlap_seconds": 60}), 201)
    assert successor["owner_id"] == bot["id"]
    assert "key" not in expect(await admin.get(of(bot, f"/api/keys/{successor['id']}")), 200)
    revoked = expect(await admin.post(of(bot, f"{path}/revoke")), 200)
    assert revoked["status"] == "revoked"
    assert problem(await program.get("/api/auth/me")) == (401, "key_revoked")
    activity = expect(await admin.get(of(bot, f"{path}/activity")), 200)
    assert activity.keys() == {"days", "last_request"}
    assert [
        (entry["action"], entry["actor"]["username"], entry["details"]["owner_id"])
        for entry in expect(await admin.get(of(bot, f"{path}/audit")), 200)["items"]
    ] == [
        (action, "ada", bot["id"])
        for action in ("key.revoked", "key.rotated", "key.updated", "key.created")
    ]
    expect(await admin.delete(of(bot, path)), 204)
    assert [one["id"] for one in expect(await admin.get(of(bot)), 200)["items"]] == [
        successor["id"]
    ]


async def test_tasks_and_runs_made_with_its_keys_are_its_own(
    service: Service, admin: Caller, user: Caller, bot: dict[str, Any]
) -> None:
    key = await key_of(admin, bot)
    program = service.caller(key["key"])
    task = await program.new_task()
    assert task["owner_id"] == bot["id"]
    run = expect(await program.post(f"/api/tasks/{task['id']}/run"), 202)
    finished = await program.wait_for_run(run["id"])
    assert finished["state"] == "succeeded"
    assert finished["requested_by"]["username"] == "deploy-bot"
    assert problem(await user.get(f"/api/tasks/{task['id']}")) == (404, "task_not_found")
    found = expect(await admin.get("/api/tasks?owner=deploy-bot"), 200)["items"]
    assert [one["id"] for one in found] == [task["id"]]
    expect(await admin.delete(f"{PATH}/{bot['id']}"), 204)
    assert problem(await program.get("/api/tasks")) == (401, "key_revoked")
    # What it made is still there for the administrators.
    expect(await admin.get(f"/api/tasks/{task['id']}"), 200)


async def test_revoking_a_key_of_it_may_cancel_its_runs(
    service: Service, admin: Caller, bot: dict[str, Any]
) -> None:
    key = await key_of(admin, bot)
    program = service.caller(key["key"])
    expect(await admin.patch("/api/admin/config", {"allowed_commands": ["sleep"]}), 200)
    task = await program.new_task(params={"argv": ["sleep", "60"]})
    run = expect(await program.post(f"/api/tasks/{task['id']}/run"), 202)
    body = {"cancel_runs": True}
    expect(await admin.post(of(bot, f"/api/keys/{key['id']}/revoke"), body), 200)
    assert (await admin.wait_for_run(run["id"]))["state"] == "cancelled"


# Attacks


async def test_it_cannot_log_in_in_any_way(admin: Caller, bot: dict[str, Any]) -> None:
    for password in ("", "deploy-bot", ADMIN_PASSWORD):
        body = {"username": "deploy-bot", "password": password}
        assert problem(await admin.post("/api/auth/login", body))[1] == "login_failed"
    one = f"/api/admin/users/{bot['id']}"
    for response in (
        await admin.get(one),
        await admin.post(f"{one}/invitation"),
        await admin.delete(f"{one}/sessions"),
        await admin.patch(one, {"roles": ["admin"]}),
        await admin.patch(one, {"disabled": False}),
    ):
        assert problem(response) == (404, "user_not_found")
    users = expect(await admin.get("/api/admin/users?count=true&search=deploy"), 200)
    assert (users["items"], users["total"]) == ([], 0)


async def test_a_login_token_of_it_is_refused(
    service: Service, admin: Caller, bot: dict[str, Any]
) -> None:
    """As someone with the token key could make it, with the administrator's session or without one."""
    sessions = expect(await admin.get("/api/auth/sessions"), 200)["items"]
    now = service.clock.now()
    for session_id in (sessions[0]["id"], "ses_0000000000000000"):
        token = service.services.tokens.issue(
            subject=bot["id"],
            now=now,
            lifetime=RECENT_LOGIN,
            authenticated_at=now,
            session_id=session_id,
        )
        response = await service.caller(token).get("/api/auth/me")
        assert response.status_code == 401
        assert problem(response)[1] in {"token_invalid", "token_revoked"}


async def test_neither_its_key_nor_one_of_an_administrator_can_escalate(
    service: Service, admin: Caller, admin_key: Caller, user: Caller, bot: dict[str, Any]
) -> None:
    """A key reaches none of the routes for logins, as test_api_access.py shows: here, the service's own for its owner."""
    key = await key_of(admin, bot)
    program = service.caller(key["key"])
    its = f"/api/keys/{key['id']}"
    for caller, path in itertools.product(
        (program, admin_key),
        (of(bot), of(bot, f"{its}/audit"), of(bot, f"{its}/activity")),
    ):
        response = await caller.get(path)
        assert problem(response) == (403, "interactive_required"), path
    task = await user.new_task()
    assert problem(await program.get(f"/api/tasks/{task['id']}")) == (404, "task_not_found")
    for scopes in (["tasks:read_all"], ["keys:manage"], ["admin:users"]):
        response = await admin.post(of(bot), {"name": "more", "scopes": scopes})
        assert wrong_fields(response) == {"scopes"}


async def test_who_is_no_administrator_reaches_none_of_its_keys(
    admin: Caller, user: Caller, bot: dict[str, Any]
) -> None:
    key = await key_of(admin, bot)
    own = await user.new_key()
    its = f"/api/keys/{key['id']}"
    for response in (
        await user.get(of(bot)),
        await user.post(of(bot), {"name": "mine"}),
        await user.get(of(bot, f"{its}/audit")),
        await user.get(of(bot, f"{its}/activity")),
        await user.post(of(bot, f"{its}/revoke")),
        # Not even with a key of their own in the path.
        await user.post(of(bot, f"/api/keys/{own['id']}/revoke")),
    ):
        assert problem(response) == (403, "permission_denied"), response.request.url
    # An administrator acts for service accounts, and for no person.
    person = (await user.me())["user"]
    assert problem(await admin.post(of(person), {"name": "theirs"})) == (403, "permission_denied")
    assert problem(await admin.get(of(person))) == (403, "permission_denied")


async def test_disabling_it_stops_its_key_with_the_answer(
    service: Service, admin: Caller, bot: dict[str, Any]
) -> None:
    program = service.caller((await key_of(admin, bot))["key"])
    expect(await program.get("/api/tasks"), 200)
    one = f"{PATH}/{bot['id']}"
    expect(await admin.patch(one, {"disabled": True}), 200)
    assert problem(await program.get("/api/tasks")) == (401, "owner_disabled")
    response = await admin.post(of(bot), {"name": "another"})
    assert wrong_fields(response) == {"on_behalf_of"}
    expect(await admin.patch(one, {"disabled": False}), 200)
    expect(await program.get("/api/tasks"), 200)
