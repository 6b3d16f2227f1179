"""A key that is limited to tasks: it sees and uses these, and nothing else of its owner."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from examples.task_service.tests.service_support import Caller, Service, expect, problem

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


@pytest.mark.parametrize("resources", [[], ["project:1"]])
async def test_a_key_that_reaches_no_task_sees_none(
    service: Service, it: World, resources: list[str]
) -> None:
    bound = await service.key_for(it.user, resources=resources)
    assert expect(await bound.get("/api/tasks"), 200)["items"] == []
    assert expect(await bound.get("/api/runs"), 200)["items"] == []
    assert problem(await bound.get(f"/api/tasks/{it.task}")) == (403, "permission_denied")
