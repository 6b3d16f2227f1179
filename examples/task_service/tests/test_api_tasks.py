"""Tasks and runs through the API: shapes, ownership, idempotency, mass assignment."""

from __future__ import annotations

import asyncio
from datetime import datetime
from urllib.parse import urlencode

import pytest
from examples.task_service.tests.service_support import (
    Caller,
    Service,
    challenge,
    expect,
    problem,
    wrong_fields,
)
from sqlalchemy import select

from task_service.db.schema import runs

pytestmark = pytest.mark.anyio

HELLO = {"name": "hello", "handler": "command", "params": {"argv": ["echo", "hello"]}}
TASK_MEMBERS = {
    "id",
    "name",
    "handler",
    "params",
    "timeout_seconds",
    "owner_id",
    "owner_name",
    "created_at",
    "updated_at",
    "last_run",
}
RUN_MEMBERS = {
    "id",
    "task_id",
    "number",
    "state",
    "attempt",
    "requested_by",
    "created_at",
    "started_at",
    "finished_at",
    "exit_code",
    "error",
    "log_missing_bytes",
    "log_missing_lines",
}


async def test_a_task_has_these_members(user: Caller) -> None:
    response = await user.post("/api/tasks", HELLO)
    task = expect(response, 201)
    assert task.keys() == TASK_MEMBERS
    assert response.headers["location"] == f"/api/tasks/{task['id']}"
    assert task["created_at"].endswith("Z")
    assert datetime.fromisoformat(task["created_at"]).tzinfo is not None


async def test_a_run_has_these_members_and_names_who_requested_it(
    user: Caller, user_key: Caller
) -> None:
    task = await user.new_task()
    run = expect(await user_key.post(f"/api/tasks/{task['id']}/run"), 202)
    assert run.keys() == RUN_MEMBERS
    assert (run["state"], run["attempt"], run["started_at"]) == ("queued", 0, None)
    assert run["number"] == 1
    me = await user_key.me()
    key = expect(await user.get(f"/api/keys/{me['credential']['key_id']}"), 200)
    assert run["requested_by"] == {
        "user_id": me["user"]["id"],
        "username": "ulf",
        "credential": {"kind": "api_key", "key_id": key["id"], "key_name": key["name"]},
    }
    details = await user_key.wait_for_run(run["id"])
    executed = {name: details.pop(name) for name in ("handler", "params")}
    assert executed == {name: HELLO[name] for name in executed}
    over = details
    assert (over["state"], over["attempt"], over["exit_code"]) == ("succeeded", 1, 0)
    assert expect(await user.get(f"/api/tasks/{task['id']}"), 200)["last_run"] == over
    runs = expect(await user.get(f"/api/tasks/{task['id']}/runs"), 200)
    named = {"task_name": "hello", "owner_id": me["user"]["id"], "owner_name": "ulf"}
    assert runs == {"items": [over | named], "next_cursor": None}


async def test_a_task_is_changed_member_by_member(user: Caller) -> None:
    task = await user.new_task(timeout_seconds=5)
    path = f"/api/tasks/{task['id']}"
    changed = expect(await user.patch(path, {"name": "renamed"}), 200)
    assert changed == {**task, "name": "renamed", "updated_at": changed["updated_at"]}
    assert expect(await user.patch(path, {"timeout_seconds": None}), 200)["timeout_seconds"] is None
    for member in ("name", "handler", "params"):
        assert wrong_fields(await user.patch(path, {member: None})) == {member}


async def test_no_member_can_be_set_that_is_not_for_the_client(user: Caller, admin: Caller) -> None:
    stolen = (await admin.me())["user"]["id"]
    task = await user.new_task()
    path = f"/api/tasks/{task['id']}"
    for member in ("id", "owner_name", "created_at", "last_run", "state", "__class__", "owner"):
        assert wrong_fields(await user.post("/api/tasks", HELLO | {member: stolen})) == {member}
        assert wrong_fields(await user.patch(path, {member: stolen})) == {member}
        assert wrong_fields(await user.post("/api/keys", {"name": "k", member: stolen})) == {member}
    assert expect(await user.get(path), 200) == task


async def test_a_bad_task_is_refused_by_the_fields(user: Caller) -> None:
    for changes, fields in (
        ({"name": ""}, {"name"}),
        ({"name": "n" * 101}, {"name"}),
        ({"name": "two\nlines"}, {"name"}),
        ({"name": "  "}, {"name"}),
        ({"name": "\u202egnp.exe"}, {"name"}),
        ({"name": "nul\x00"}, {"name"}),
        ({"name": 5}, {"name"}),
        ({"handler": "shell"}, {"handler"}),
        ({"handler": "h" * 65}, {"handler"}),
        ({"handler": "http_request", "params": {"url": "http://127.0.0.1/"}}, {"params.url"}),
        ({"params": {}}, {"params.argv"}),
        ({"params": {"argv": "echo hello"}}, {"params.argv"}),
        ({"params": {"argv": ["echo"], "shell": True}}, {"params.shell"}),
        ({"params": []}, {"params"}),
        ({"timeout_seconds": 0}, {"timeout_seconds"}),
        ({"timeout_seconds": True}, {"timeout_seconds"}),
        ({"timeout_seconds": 1.5}, {"timeout_seconds"}),
        ({"timeout_seconds": 86_401}, {"timeout_seconds"}),
        ({"timeout_seconds": 10**30}, {"timeout_seconds"}),
    ):
        assert wrong_fields(await user.post("/api/tasks", HELLO | changes)) == fields, changes
    assert expect(await user.get("/api/tasks"), 200)["items"] == []


async def test_what_one_may_see_and_not_change_is_refused_with_the_reason(
    service: Service, user: Caller, admin: Caller
) -> None:
    task = await user.new_task()
    path = f"/api/tasks/{task['id']}"
    run = expect(await user.post(f"{path}/run"), 202)
    await user.wait_for_run(run["id"])
    scopes = ["tasks:read", "tasks:read_all", "tasks:run", "tasks:write"]
    reader = await service.key_for(admin, scopes=scopes)
    assert expect(await reader.get(path), 200)["owner_name"] == "ulf"
    expect(await reader.get(f"/api/runs/{run['id']}"), 200)
    for response in (
        await reader.patch(path, {"name": "mine"}),
        await reader.delete(path),
        await reader.post(f"{path}/run"),
        await reader.post(f"/api/runs/{run['id']}/rerun"),
        await reader.post(f"/api/runs/{run['id']}/cancel"),
        await reader.post("/api/tasks", HELLO | {"owner_id": task["owner_id"]}),
    ):
        assert problem(response) == (403, "permission_denied")
        assert 'scope="tasks:manage_all"' in challenge(response)
        assert "another owner" in response.json()["detail"]
    # What one may not see does not exist.
    theirs = await admin.new_task()
    assert problem(await user.get(f"/api/tasks/{theirs['id']}")) == (404, "task_not_found")
    assert problem(await user.delete(f"/api/tasks/{theirs['id']}")) == (404, "task_not_found")
    assert problem(await user.post(f"/api/tasks/{theirs['id']}/run")) == (404, "task_not_found")


async def test_an_administrator_changes_runs_and_deletes_every_task(
    user: Caller, admin: Caller
) -> None:
    task = await user.new_task()
    path = f"/api/tasks/{task['id']}"
    assert expect(await admin.patch(path, {"name": "ours"}), 200)["owner_name"] == "ulf"
    again = {"Idempotency-Key": "once"}
    run = expect(await admin.post(f"{path}/run", headers=again), 202)
    assert expect(await admin.post(f"{path}/run", headers=again), 202)["id"] == run["id"]
    # It is a run of the owner, requested by the administrator.
    assert (await user.wait_for_run(run["id"]))["requested_by"]["username"] == "ada"
    assert (await admin.delete(path)).status_code == 204
    for gone in (path, f"{path}/runs"):
        assert problem(await user.get(gone)) == (404, "task_not_found")
    # Its runs stay readable by their ids.
    assert expect(await user.get(f"/api/runs/{run['id']}"), 200)["id"] == run["id"]


async def test_a_task_is_made_for_a_service_account_and_handed_over_with_its_runs(
    user: Caller, admin: Caller
) -> None:
    account = expect(await admin.post("/api/admin/service-accounts", {"name": "nightly"}), 201)
    task = expect(await admin.post("/api/tasks", HELLO | {"owner_id": account["id"]}), 201)
    assert (task["owner_id"], task["owner_name"]) == (account["id"], "nightly")
    path = f"/api/tasks/{task['id']}"
    run = expect(await admin.post(f"{path}/run"), 202)
    await admin.wait_for_run(run["id"])
    assert problem(await user.get(f"/api/runs/{run['id']}")) == (404, "run_not_found")

    me = (await user.me())["user"]["id"]
    assert expect(await admin.patch(path, {"owner_id": me}), 200)["owner_name"] == "ulf"
    expect(await user.get(f"/api/runs/{run['id']}"), 200)
    entry = expect(await admin.get(f"/api/admin/audit?target={task['id']}"), 200)["items"][0]
    assert entry["details"] == {"fields": ["owner_id"], "owner_id": [account["id"], me]}
    assert problem(await user.patch(path, {"owner_id": account["id"]})) == (
        403,
        "permission_denied",
    )

    for nobody in ("usr_0000000000000000", "x"):
        assert wrong_fields(await admin.patch(path, {"owner_id": nobody})) == {"owner_id"}
    expect(await admin.patch(f"/api/admin/users/{me}", {"disabled": True}), 200)
    assert wrong_fields(await admin.post("/api/tasks", HELLO | {"owner_id": me})) == {"owner_id"}
    assert problem(await admin.post(f"{path}/run")) == (409, "task_owner_disabled")


async def test_a_query_parameter_that_is_not_known_is_refused(user: Caller) -> None:
    response = await user.get("/api/tasks?stat=failed&limit=5")
    assert wrong_fields(response) == {"stat"}
    assert "Allowed: count, cursor, id, limit, owner" in response.text
    task = await user.new_task()
    assert wrong_fields(await user.delete(f"/api/tasks/{task['id']}?force=1")) == {"force"}
    expect(await user.get(f"/api/tasks/{task['id']}"), 200)


async def test_runs_of_all_tasks_are_found_by_state_owner_task_key_and_time(
    service: Service, user: Caller, user_key: Caller, admin: Caller
) -> None:
    mine, theirs = await user.new_task(name="mine"), await admin.new_task(name="theirs")
    with_key = expect(await user_key.post(f"/api/tasks/{mine['id']}/run"), 202)
    await user.wait_for_run(with_key["id"])
    with_login = expect(await user.post(f"/api/tasks/{mine['id']}/run"), 202)
    foreign = expect(await admin.post(f"/api/tasks/{theirs['id']}/run"), 202)
    for run in (with_login, foreign):
        await admin.wait_for_run(run["id"])
    key_id = with_key["requested_by"]["credential"]["key_id"]
    middle = with_login["created_at"].replace("+00:00", "Z")

    async def found(caller: Caller, **query: str) -> list[str]:
        listed = expect(await caller.get(f"/api/runs?{urlencode(query)}"), 200)
        return [run["id"] for run in listed["items"]]

    everything = [foreign["id"], with_login["id"], with_key["id"]]
    assert await found(admin) == everything
    assert await found(user) == everything[1:]
    for query, ids in (
        ({"owner": "ULF"}, everything[1:]),
        ({"task": theirs["id"]}, everything[:1]),
        ({"key": key_id}, everything[2:]),
        ({"since": middle}, everything[:2]),
        ({"until": middle}, everything[2:]),
        ({"state": "failed"}, []),
        ({"state": "succeeded", "owner": "ulf", "since": middle}, everything[1:2]),
    ):
        assert await found(admin, **query) == ids, query
    page = expect(await admin.get("/api/runs?state=failed&state=succeeded&limit=2&count=true"), 200)
    assert page["total"] == 3
    cursor = page["next_cursor"]
    rest = expect(
        await admin.get(f"/api/runs?state=failed&state=succeeded&cursor={cursor}&limit=2"), 200
    )
    (last,) = rest["items"]
    assert last.keys() == RUN_MEMBERS | {"task_name", "owner_id", "owner_name"}
    assert (last["id"], last["task_name"], last["owner_name"]) == (with_key["id"], "mine", "ulf")
    assert wrong_fields(await admin.get(f"/api/runs?cursor={cursor}")) == {"cursor"}


async def test_a_key_that_may_run_a_task_reads_the_runs_that_it_has_started(
    service: Service, user: Caller
) -> None:
    task = await user.new_task()
    starter = await service.key_for(user, scopes=["tasks:run"])
    its_own = expect(await starter.post(f"/api/tasks/{task['id']}/run"), 202)
    other = expect(await user.post(f"/api/tasks/{task['id']}/run"), 202)
    path = f"/api/runs/{its_own['id']}"
    assert (await starter.wait_for_run(its_own["id"]))["state"] == "succeeded"
    log = await starter.get(f"{path}/log", headers={"Accept": "text/plain"})
    assert log.text == "hello\n"
    assert [run["id"] for run in expect(await starter.get("/api/runs"), 200)["items"]] == [
        its_own["id"]
    ]
    for suffix in ("", "/log"):
        response = await starter.get(f"/api/runs/{other['id']}{suffix}")
        assert problem(response) == (404, "run_not_found")
    writer = await service.key_for(user, scopes=["tasks:write"])
    assert problem(await writer.get(path)) == (403, "permission_denied")


async def test_the_same_idempotency_key_makes_one_run(user: Caller) -> None:
    task, other = await user.new_task(), await user.new_task()
    headers = {"Idempotency-Key": "deploy-42"}
    answers = await asyncio.gather(
        *(user.post(f"/api/tasks/{task['id']}/run", headers=headers) for _ in range(5))
    )
    assert len({expect(answer, 202)["id"] for answer in answers}) == 1
    response = await user.post(f"/api/tasks/{other['id']}/run", headers=headers)
    assert problem(response) == (422, "idempotency_key_reused")
    fresh = {"Idempotency-Key": "deploy-43"}
    run = expect(await user.post(f"/api/tasks/{task['id']}/run", headers=fresh), 202)
    assert run["id"] != answers[0].json()["id"]
    longest = {"Idempotency-Key": "~" * 255}
    twice = [
        expect(await user.post(f"/api/tasks/{task['id']}/run", headers=longest), 202) for _ in "12"
    ]
    assert twice[0]["id"] == twice[1]["id"]
    for bad in ("", "a b", "a" * 256):
        response = await user.post(f"/api/tasks/{task['id']}/run", headers={"Idempotency-Key": bad})
        assert wrong_fields(response) == {"Idempotency-Key"}


async def test_an_administrator_sees_and_cancels_the_run_of_any_user(
    user: Caller, admin: Caller
) -> None:
    expect(await admin.patch("/api/admin/config", {"max_concurrent_runs_per_user": 1}), 200)
    expect(await admin.patch("/api/admin/config", {"allowed_commands": ["echo", "sleep"]}), 200)
    task = await user.new_task(params={"argv": ["sleep", "60"]})
    runs = [expect(await user.post(f"/api/tasks/{task['id']}/run"), 202) for _ in range(2)]
    for run in runs:
        assert expect(await admin.get(f"/api/runs/{run['id']}"), 200)["id"] == run["id"]
        expect(await admin.post(f"/api/runs/{run['id']}/cancel"), 200)
        over = await user.wait_for_run(run["id"])
        assert (over["state"], over["error"]) == (
            "cancelled",
            "An administrator cancelled the run.",
        )
    entries = expect(await admin.get("/api/admin/audit?action=run.cancelled"), 200)["items"]
    assert [entry["target"] for entry in entries] == [run["id"] for run in reversed(runs)]
    # The other way round there is no such run.
    theirs = await admin.new_task()
    run = expect(await admin.post(f"/api/tasks/{theirs['id']}/run"), 202)
    assert problem(await user.post(f"/api/runs/{run['id']}/cancel")) == (404, "run_not_found")


async def test_an_urgent_run_needs_its_permission(
    service: Service, user: Caller, admin: Caller
) -> None:
    urgent = {"priority": "urgent"}
    task = await user.new_task()
    refused = await user.post(f"/api/tasks/{task['id']}/run", urgent)
    assert problem(refused) == (403, "permission_denied")
    assert 'scope="runs:prioritize"' in (challenge(refused) or "")
    assert expect(await user.get(f"/api/tasks/{task['id']}/runs"), 200)["items"] == []
    theirs = await admin.new_task()
    restricted = await service.key_for(admin, scopes=["tasks:run"])
    path = f"/api/tasks/{theirs['id']}/run"
    assert problem(await restricted.post(path, urgent)) == (403, "permission_denied")
    for ordinary in ("high", "normal", "low"):
        expect(await restricted.post(path, {"priority": ordinary}), 202)
    expect(await admin.post(path, urgent), 202)
    async with service.services.db.read() as connection:
        assert sorted(await connection.scalars(select(runs.c.rank))) == [-20, -10, 0, 10]
    for body in ({"priority": "first"}, {"priority": 1}, {"speed": "high"}):
        assert wrong_fields(await admin.post(path, body)) == body.keys()


async def test_a_run_is_repeated_with_its_own_parameters_or_with_others(user: Caller) -> None:
    task = await user.new_task()
    path = f"/api/tasks/{task['id']}"
    first = expect(await user.post(f"{path}/run"), 202)
    later = {"argv": ["echo", "later"]}
    changed = expect(await user.patch(path, {"params": later}), 200)

    response = await user.post(f"/api/runs/{first['id']}/rerun")
    same = expect(response, 202)
    assert response.headers["location"] == f"/api/runs/{same['id']}"
    assert (same["task_id"], same["number"]) == (task["id"], 2)
    assert (await user.wait_for_run(same["id"]))["params"] == HELLO["params"]

    others = {"argv": ["echo", "once"]}
    other = expect(await user.post(f"/api/runs/{same['id']}/rerun", {"params": others}), 202)
    assert (await user.wait_for_run(other["id"]))["params"] == others
    # The task is as it was, and so is what a run of it executes.
    after = expect(await user.get(path), 200)
    assert after == {**changed, "last_run": after["last_run"]}
    plain = expect(await user.post(f"{path}/run"), 202)
    assert (await user.wait_for_run(plain["id"]))["params"] == later


async def test_parameters_of_a_repeated_run_are_validated_as_those_of_a_task(
    user: Caller, admin: Caller
) -> None:
    expect(await admin.patch("/api/admin/config", {"allowed_commands": ["echo", "uptime"]}), 200)
    task = await user.new_task(params={"argv": ["uptime"]})
    run = expect(await user.post(f"/api/tasks/{task['id']}/run"), 202)
    path = f"/api/runs/{run['id']}/rerun"
    for params in ({}, {"argv": ["rm"]}):
        assert wrong_fields(await user.post(path, {"params": params})) == {"params.argv"}
    assert wrong_fields(await user.post(path, {"command": "ls"})) == {"command"}
    # What was allowed at the time of the run may not be any more.
    expect(await admin.patch("/api/admin/config", {"allowed_commands": ["echo"]}), 200)
    assert wrong_fields(await user.post(path)) == {"params.argv"}
    runs = expect(await user.get(f"/api/tasks/{task['id']}/runs?count=true"), 200)
    assert runs["total"] == 1


async def test_other_parameters_than_the_task_has_now_need_the_permission_to_write(
    service: Service, user: Caller
) -> None:
    task = await user.new_task()
    run = expect(await user.post(f"/api/tasks/{task['id']}/run"), 202)
    path = f"/api/runs/{run['id']}/rerun"
    starter = await service.key_for(user, scopes=["tasks:run"])
    expect(await starter.post(path), 202)
    refused = await starter.post(path, {"params": {"argv": ["echo", "else"]}})
    assert problem(refused) == (403, "permission_denied")
    assert 'scope="tasks:write"' in (challenge(refused) or "")
    # Nor does an old run bring back what the owner has taken out of the task.
    params = {"argv": ["echo", "safe"]}
    expect(await user.patch(f"/api/tasks/{task['id']}", {"params": params}), 200)
    assert problem(await starter.post(path)) == (403, "permission_denied")
    writer = await service.key_for(user, scopes=["tasks:run", "tasks:write"])
    expect(await writer.post(path), 202)


async def test_a_run_is_repeated_by_those_who_may_run_its_task(user: Caller, admin: Caller) -> None:
    task = await user.new_task()
    run = expect(await user.post(f"/api/tasks/{task['id']}/run"), 202)
    path = f"/api/runs/{run['id']}/rerun"
    expect(await admin.post(path), 202)
    theirs = await admin.new_task()
    foreign = expect(await admin.post(f"/api/tasks/{theirs['id']}/run"), 202)
    response = await user.post(f"/api/runs/{foreign['id']}/rerun")
    assert problem(response) == (404, "run_not_found")
    headers = {"Idempotency-Key": "again"}
    both = [expect(await user.post(path, headers=headers), 202) for _ in range(2)]
    assert both[0]["id"] == both[1]["id"]
    entry = expect(await admin.get(f"/api/admin/audit?target={both[0]['id']}"), 200)["items"][0]
    assert entry["details"] == {"task_id": task["id"], "rerun_of": run["id"]}
    assert (await user.delete(f"/api/tasks/{task['id']}")).status_code == 204
    assert problem(await user.post(path)) == (404, "task_not_found")


async def test_the_handlers_describe_their_parameters(user_key: Caller) -> None:
    items = expect(await user_key.get("/api/handlers"), 200)["items"]
    assert [item["name"] for item in items] == ["command", "http_request"]
    assert all(item.keys() == {"name", "title", "description", "params_schema"} for item in items)
    assert items[0]["params_schema"]["required"] == ["argv"]


async def test_a_permission_taken_away_is_gone_from_keys_and_logins_at_once(
    service: Service, admin: Caller
) -> None:
    """Guarantee G4: live permissions."""
    task = await admin.new_task()
    program = await service.key_for(admin)
    mine = (await admin.me())["user"]["id"]
    other = expect(
        await admin.post("/api/admin/users", {"username": "second", "role": "admin"}), 201
    )
    token = other["invitation_url"].split("#")[1]
    body = {"token": token, "password": "nineteen paper boats"}
    assert (await service.caller().post("/api/auth/set-password", body)).status_code == 204
    expect(await admin.patch(f"/api/admin/users/{mine}", {"roles": ["user"]}), 200)
    assert problem(await admin.get("/api/admin/config")) == (403, "permission_denied")
    assert "tasks:read_all" not in (await program.me())["permissions"]
    expect(await program.get(f"/api/tasks/{task['id']}"), 200)
