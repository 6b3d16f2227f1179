"""A user leaves: what ends, what is kept for a return, and who gets their tasks."""

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

pytestmark = pytest.mark.anyio


async def _path(user: Caller) -> str:
    return f"/api/admin/users/{(await user.me())['user']['id']}/departure"


async def test_keys_are_revoked_and_tasks_handed_over(
    service: Service, user: Caller, admin: Caller
) -> None:
    keys = [await user.new_key(name=f"key {number}") for number in range(3)]
    expect(await user.post(f"/api/keys/{keys[0]['id']}/revoke"), 200)
    tasks = [await user.new_task() for _ in range(2)]
    run = expect(await user.post(f"/api/tasks/{tasks[0]['id']}/run"), 202)
    path = await _path(user)
    bot = expect(await admin.post("/api/admin/service-accounts", {"name": "bot"}), 201)
    assert expect(await admin.get(path), 200) == {"active_keys": 2, "tasks": 2}

    body = {"revoke_keys": True, "owner_id": bot["id"]}
    done = expect(await admin.post(path, body), 200)
    assert (done["user"]["disabled"], done["revoked_keys"], done["moved_tasks"]) == (True, 2, 2)
    for credential in (user, service.caller(keys[1]["key"])):
        assert (await credential.get("/api/auth/me")).status_code == 401
    for task in tasks:
        assert expect(await admin.get(f"/api/tasks/{task['id']}"), 200)["owner_id"] == bot["id"]
    # Its new owner sees what it did.
    bot_key = expect(await admin.post(f"/api/keys?on_behalf_of={bot['id']}", {"name": "k"}), 201)
    as_bot = service.caller(bot_key["key"])
    assert expect(await as_bot.get(f"/api/runs/{run['id']}"), 200)["id"] == run["id"]
    entries = expect(await admin.get("/api/admin/audit?action=task.owner_changed"), 200)["items"]
    assert {entry["target"] for entry in entries} == {task["id"] for task in tasks}
    old = done["user"]["id"]
    assert [entry["details"] for entry in entries] == [{"old": old, "new": bot["id"]}] * 2

    again = expect(await admin.post(path, body), 200)
    assert (again["revoked_keys"], again["moved_tasks"]) == (0, 0)


async def test_keys_and_tasks_are_kept_for_a_return(
    service: Service, user: Caller, admin: Caller
) -> None:
    key, task = await user.new_key(), await user.new_task()
    owner = (await user.me())["user"]
    done = expect(await admin.post(await _path(user), {}), 200)
    assert (done["revoked_keys"], done["moved_tasks"]) == (0, 0)
    as_key = service.caller(key["key"])
    assert problem(await as_key.get("/api/tasks")) == (401, "owner_disabled")
    (listed,) = [
        each
        for each in expect(await admin.get("/api/admin/keys?owner=ulf"), 200)["items"]
        if each["id"] == key["id"]
    ]
    assert (listed["status"], listed["owner_disabled"]) == ("active", True)

    expect(await admin.patch(f"/api/admin/users/{owner['id']}", {"disabled": False}), 200)
    assert expect(await as_key.get(f"/api/tasks/{task['id']}"), 200)["owner_id"] == owner["id"]


async def test_nothing_is_done_when_the_tasks_have_no_other_owner(
    user: Caller, admin: Caller
) -> None:
    path, owner = await _path(user), (await user.me())["user"]
    gone = expect(await admin.post("/api/admin/service-accounts", {"name": "gone"}), 201)
    expect(await admin.delete(f"/api/admin/service-accounts/{gone['id']}"), 204)
    for wrong in ("usr_0123456789abcdef", "", "\x00", owner["id"], gone["id"]):
        answer = await admin.post(path, {"owner_id": wrong})
        assert wrong_fields(answer) == {"owner_id"}
    assert (await user.get("/api/auth/me")).status_code == 200


async def test_it_needs_a_recent_login_of_an_administrator(
    service: Service, user: Caller, admin: Caller
) -> None:
    path, own = await _path(user), await _path(admin)
    assert problem(await user.post(path, {})) == (403, "permission_denied")
    key = await admin.new_key()
    assert problem(await service.caller(key["key"]).post(path, {})) == (403, "interactive_required")
    assert problem(await admin.post(own, {})) == (409, "last_administrator")
    service.clock.advance(seconds=timedelta(minutes=16).total_seconds())
    assert problem(await admin.post(path, {})) == (401, "login_too_old")
    expect(await (await service.log_in("ada", ADMIN_PASSWORD)).post(path, {}), 200)


async def test_a_viewer_sees_every_task_and_changes_none(
    service: Service, user: Caller, admin: Caller
) -> None:
    task = await admin.new_task()
    owner = (await user.me())["user"]
    changed = await admin.patch(f"/api/admin/users/{owner['id']}", {"roles": ["viewer"]})
    assert expect(changed, 200)["roles"] == ["viewer"]
    key = service.caller((await user.new_key())["key"])
    for viewer in (user, key):
        assert expect(await viewer.get(f"/api/tasks/{task['id']}"), 200)["id"] == task["id"]
        for refused in (
            await viewer.post("/api/tasks", {"name": "a", "handler": "command"}),
            await viewer.post(f"/api/tasks/{task['id']}/run"),
            await viewer.delete(f"/api/tasks/{task['id']}"),
        ):
            assert problem(refused) == (403, "permission_denied")
