"""Revoking one's own key through the API, with and without what it has started."""

from __future__ import annotations

import pytest
from examples.task_service.tests.service_support import (
    Caller,
    Service,
    expect,
    problem,
    wrong_fields,
)

pytestmark = pytest.mark.anyio


async def started_by_a_key(
    service: Service, user: Caller, admin: Caller
) -> tuple[str, str, Caller]:
    """A key's path and id of a run that it has started, and goes on; and the program that has the key."""
    expect(await admin.patch("/api/admin/config", {"allowed_commands": ["sleep"]}), 200)
    task = await user.new_task(params={"argv": ["sleep", "60"]})
    program = await service.key_for(user)
    key_id = (await program.me())["credential"]["key_id"]
    run = expect(await program.post(f"/api/tasks/{task['id']}/run"), 202)
    return f"/api/keys/{key_id}", run["id"], program


async def test_revoking_a_key_does_not_cancel_its_runs_by_itself(
    service: Service, user: Caller, admin: Caller
) -> None:
    for body in (None, {}, {"cancel_runs": False}):
        key, run_id, program = await started_by_a_key(service, user, admin)
        # Before it has started, the run would be refused.
        await user.wait_for_run(run_id, "running")
        revoked = expect(await user.post(f"{key}/revoke", body), 200)
        assert (revoked["status"], revoked["id"]) == ("revoked", key.rpartition("/")[2])
        assert problem(await program.get("/api/auth/me")) == (401, "key_revoked")
        expect(await user.post(f"/api/runs/{run_id}/cancel"), 200)
        over = await user.wait_for_run(run_id)
        # Its owner has cancelled it, and nothing else.
        assert (over["state"], over["error"]) == ("cancelled", None), body


async def test_revoking_a_key_cancels_its_runs_where_the_request_says_so(
    service: Service, user: Caller, admin: Caller
) -> None:
    key, run_id, _ = await started_by_a_key(service, user, admin)
    mine = expect(await user.post(f"/api/tasks/{await task_of(user, run_id)}/run"), 202)
    response = await user.post(f"{key}/revoke", {"cancel_runs": True})
    assert response.headers["cache-control"] == "no-store"
    revoked = expect(response, 200)
    # The answer is the key, as reading it gives.
    assert revoked == expect(await user.get(key), 200)
    over = await user.wait_for_run(run_id)
    assert over["state"] == "cancelled"
    assert "revoked the API key" in over["error"] or "was revoked" in over["error"]
    assert expect(await user.get(f"/api/runs/{mine['id']}"), 200)["state"] in {"queued", "running"}
    expect(await user.post(f"/api/runs/{mine['id']}/cancel"), 200)
    await user.wait_for_run(mine["id"])
    # Repeating it is no error.
    again = await user.post(f"{key}/revoke", {"cancel_runs": True})
    assert expect(again, 200)["revoked_at"] == revoked["revoked_at"]


async def task_of(user: Caller, run_id: str) -> str:
    task_id: str = expect(await user.get(f"/api/runs/{run_id}"), 200)["task_id"]
    return task_id


async def test_another_body_is_refused_and_revokes_nothing(user: Caller) -> None:
    created = expect(await user.post("/api/keys", {"name": "ci"}), 201)
    for body in ({"cancel_runs": "yes"}, {"cancel_run": True}):
        response = await user.post(f"/api/keys/{created['id']}/revoke", body)
        assert wrong_fields(response) == body.keys()
    assert expect(await user.get(f"/api/keys/{created['id']}"), 200)["status"] == "active"
