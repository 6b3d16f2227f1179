"""A key that is limited to tasks: it sees and uses these, and nothing else of its owner."""

from __future__ import annotations

from dataclasses import dataclass

import httpx2
import pytest
from examples.task_service.tests.service_support import (
    Caller,
    Service,
    expect,
    problem,
    wrong_fields,
)

pytestmark = pytest.mark.anyio


@dataclass
class World:
    """Two tasks of one user, with a run each, and a key for the first."""

    user: Caller
    bound: Caller
    task: str
    other: str
    run: str
    other_run: str


@pytest.fixture
async def it(service: Service, user: Caller) -> World:
    task, other = [(await user.new_task())["id"] for _ in range(2)]
    run, other_run = [
        expect(await user.post(f"/api/tasks/{each}/run"), 202)["id"] for each in (task, other)
    ]
    bound = await service.key_for(user, resources=[f"task:{task}"])
    return World(user, bound, task, other, run, other_run)


async def test_it_reads_changes_and_runs_its_task(it: World) -> None:
    path = f"/api/tasks/{it.task}"
    assert expect(await it.bound.get(path), 200)["id"] == it.task
    assert expect(await it.bound.patch(path, {"name": "changed"}), 200)["name"] == "changed"
    started = expect(await it.bound.post(f"{path}/run"), 202)["id"]
    listed = expect(await it.bound.get(f"{path}/runs"), 200)["items"]
    assert {each["id"] for each in listed} == {it.run, started}
    for run in (it.run, started):
        assert expect(await it.bound.get(f"/api/runs/{run}"), 200)["id"] == run
    again = expect(await it.bound.post(f"/api/runs/{it.run}/rerun", {}), 202)
    assert again["task_id"] == it.task
    await it.bound.wait_for_run(it.run)
    cancelled = await it.bound.post(f"/api/runs/{it.run}/cancel")
    assert problem(cancelled) == (409, "run_finished")


async def test_lists_have_only_its_task_and_the_runs_of_it(it: World) -> None:
    tasks = expect(await it.bound.get("/api/tasks?count=true"), 200)
    assert ([each["id"] for each in tasks["items"]], tasks["total"]) == ([it.task], 1)
    for query in ("", f"&task={it.task}"):
        runs = expect(await it.bound.get(f"/api/runs?count=true{query}"), 200)
        assert ([each["id"] for each in runs["items"]], runs["total"]) == ([it.run], 1)
    assert expect(await it.bound.get(f"/api/runs?task={it.other}"), 200)["items"] == []


async def test_another_task_of_its_owner_is_out_of_reach(it: World) -> None:
    path = f"/api/tasks/{it.other}"
    for method, address in [
        ("GET", path),
        ("PATCH", path),
        ("DELETE", path),
        ("POST", f"{path}/run"),
        ("GET", f"{path}/runs"),
        ("POST", "/api/tasks"),
    ]:
        response = await it.bound.request(method, address)
        assert problem(response) == (403, "permission_denied"), (method, address)
    for method, address in [
        ("GET", f"/api/runs/{it.other_run}"),
        ("GET", f"/api/runs/{it.other_run}/log"),
        ("POST", f"/api/runs/{it.other_run}/cancel"),
        ("POST", f"/api/runs/{it.other_run}/rerun"),
    ]:
        response = await it.bound.request(method, address)
        assert problem(response) == (404, "run_not_found"), (method, address)
    assert (await it.user.wait_for_run(it.other_run))["state"] == "succeeded"


async def test_a_permission_for_all_tasks_reaches_no_further(
    service: Service, admin: Caller, it: World
) -> None:
    bound = await service.key_for(admin, resources=[f"task:{it.task}"])
    assert expect(await bound.get(f"/api/runs/{it.run}"), 200)["id"] == it.run
    listed = expect(await bound.get("/api/tasks"), 200)["items"]
    assert [each["id"] for each in listed] == [it.task]
    cancelled = await bound.post(f"/api/runs/{it.other_run}/cancel")
    assert problem(cancelled) == (404, "run_not_found")


async def test_a_key_that_reaches_no_task_sees_none(service: Service, it: World) -> None:
    bound = await service.key_for(it.user, resources=[])
    assert expect(await bound.get("/api/tasks"), 200)["items"] == []
    assert expect(await bound.get("/api/runs"), 200)["items"] == []
    assert problem(await bound.get(f"/api/tasks/{it.task}")) == (403, "permission_denied")


async def test_with_tasks_run_alone_it_reads_only_what_it_has_started(
    service: Service, it: World
) -> None:
    runner = await service.key_for(it.user, scopes=["tasks:run"], resources=[f"task:{it.task}"])
    started = expect(await runner.post(f"/api/tasks/{it.task}/run"), 202)["id"]
    assert (await runner.wait_for_run(started))["state"] == "succeeded"
    log = await runner.get(f"/api/runs/{started}/log", headers={"Accept": "text/plain"})
    assert (log.status_code, log.text) == (200, "hello\n")
    listed = expect(await runner.get("/api/runs"), 200)["items"]
    assert [each["id"] for each in listed] == [started]
    for run in (it.run, it.other_run):
        for path in (f"/api/runs/{run}", f"/api/runs/{run}/log"):
            assert problem(await runner.get(path)) == (404, "run_not_found"), path
    for path in ("/api/tasks", f"/api/tasks/{it.task}", f"/api/tasks/{it.task}/runs"):
        assert problem(await runner.get(path)) == (403, "permission_denied"), path
    writer = await service.key_for(it.user, scopes=["tasks:write"])
    for refused in (
        await runner.post(f"/api/tasks/{it.other}/run"),
        await writer.get(f"/api/runs/{it.run}"),
    ):
        assert problem(refused) == (403, "permission_denied")


@pytest.mark.parametrize("limit", ["resources", "scopes"])
async def test_a_limited_key_has_its_idempotency_keys_to_itself(
    service: Service, it: World, limit: str
) -> None:
    """It learns nothing of what its owner used them for, and takes none away."""
    bound = it.bound
    if limit == "scopes":
        bound = await service.key_for(it.user, scopes=["tasks:run"])

    async def run(caller: Caller, task: str, value: str) -> httpx2.Response:
        headers = {"Idempotency-Key": value}
        return await caller.post(f"/api/tasks/{task}/run", headers=headers)

    longest = "x" * 255
    for value in ("nightly", longest):
        its_own = expect(await run(it.user, it.other, value), 202)["id"]
        started = expect(await run(bound, it.task, value), 202)["id"]
        assert expect(await run(bound, it.task, value), 202)["id"] == started
        assert expect(await bound.get(f"/api/runs/{started}"), 200)["id"] == started
        assert expect(await run(it.user, it.other, value), 202)["id"] == its_own
    # A predictable value that it has used is free for its owner, and for another key.
    taken = expect(await run(bound, it.task, "tomorrow"), 202)["id"]
    another = await service.key_for(it.user, resources=[f"task:{it.task}"])
    for caller in (it.user, another):
        assert expect(await run(caller, it.task, "tomorrow"), 202)["id"] != taken


async def test_a_limited_key_does_not_reuse_an_idempotency_key(service: Service, it: World) -> None:
    both = await service.key_for(
        it.user, resources=[f"task:{each}" for each in (it.task, it.other)]
    )
    headers = {"Idempotency-Key": "nightly"}
    expect(await both.post(f"/api/tasks/{it.task}/run", headers=headers), 202)
    refused = await both.post(f"/api/tasks/{it.other}/run", headers=headers)
    assert problem(refused) == (422, "idempotency_key_reused")


async def test_it_is_told_what_it_is_limited_to(it: World) -> None:
    for caller, resources in ((it.bound, [f"task:{it.task}"]), (it.user, None)):
        me = await caller.me()
        assert me["credential"]["resources"] == resources


async def test_a_new_key_is_limited_only_to_tasks_that_its_owner_sees(
    service: Service, user: Caller, admin: Caller, it: World
) -> None:
    of_admin = f"task:{(await admin.new_task())['id']}"
    gone = (await user.new_task())["id"]
    expect(await user.delete(f"/api/tasks/{gone}"), 204)
    for stray in ("task:tsk_unknown", f"task:{gone}", of_admin, "project:1", it.task + ":1"):
        body = {"name": "limited", "resources": [f"task:{it.task}", stray]}
        assert wrong_fields(await user.post("/api/keys", body)) == {"resources"}, stray
    # An administrator sees all tasks, and a service account its own alone.
    resources = [of_admin, f"task:{it.task}"]
    assert (await admin.new_key(resources=resources))["resources"] == sorted(resources)
    account = expect(await admin.post("/api/admin/service-accounts", {"name": "robot"}), 201)
    its_own = f"task:{(await admin.new_task(owner_id=account['id']))['id']}"
    keys = f"/api/keys?on_behalf_of={account['id']}"
    refused = await admin.post(keys, {"name": "limited", "resources": [of_admin]})
    assert wrong_fields(refused) == {"resources"}
    made = expect(await admin.post(keys, {"name": "limited", "resources": [its_own]}), 201)
    assert made["resources"] == [its_own]


async def test_a_rotated_key_keeps_a_task_that_is_gone(service: Service, it: World) -> None:
    key = await it.user.new_key(resources=[f"task:{it.task}"])
    expect(await it.user.delete(f"/api/tasks/{it.task}"), 204)
    successor = expect(await it.user.post(f"/api/keys/{key['id']}/rotate"), 201)
    assert successor["resources"] == [f"task:{it.task}"]
    program = service.caller(successor["key"])
    assert expect(await program.get("/api/tasks"), 200)["items"] == []
