"""The table of answers, with challenge and body, as the service gives them (RFC 6750, RFC 9457).

What the library answers is in the contract of its adapters, `tests/contract/answer_cases.py`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from examples.task_service.tests.service_support import (
    ADMIN_PASSWORD,
    Caller,
    Service,
    challenge,
    expect,
    problem,
    running_service,
    secrets_in,
)

pytestmark = pytest.mark.anyio

INVALID_TOKEN = 'Bearer realm="task-service", error="invalid_token"'


async def test_a_session_that_has_reached_its_longest_time(service: Service, user: Caller) -> None:
    # Used every now and then, so that it is never idle.
    for _ in range(15):
        service.clock.advance(minutes=50)
        response = await user.get("/api/auth/me")
    assert problem(response) == (401, "token_expired")
    assert challenge(response) == INVALID_TOKEN


async def test_resources_of_others_and_unknown_ones_are_not_found(
    service: Service, user: Caller, admin: Caller
) -> None:
    task, key = await admin.new_task(), await admin.new_key()
    run = expect(await admin.post(f"/api/tasks/{task['id']}/run"), 202)
    for path, code in (
        (f"/api/tasks/{task['id']}", "task_not_found"),
        ("/api/tasks/tsk_0000000000000000", "task_not_found"),
        ("/api/tasks/%00", "task_not_found"),
        (f"/api/tasks/{task['id']}/runs", "task_not_found"),
        (f"/api/runs/{run['id']}", "run_not_found"),
        (f"/api/runs/{run['id']}/log", "run_not_found"),
        ("/api/runs/'", "run_not_found"),
        (f"/api/keys/{key['id']}", "key_not_found"),
        ("/api/keys/%25", "key_not_found"),
        ("/api/nothing", "not_found"),
    ):
        response = await user.get(path)
        assert problem(response) == (404, code), path
        assert challenge(response) is None
    for operation in ("rotate", "revoke"):
        response = await user.post(f"/api/keys/{key['id']}/{operation}")
        assert problem(response) == (404, "key_not_found")
    assert problem(await user.delete(f"/api/keys/{key['id']}")) == (404, "key_not_found")
    assert expect(await admin.get(f"/api/keys/{key['id']}"), 200)["status"] == "active"


async def test_a_key_is_shown_once_and_is_in_no_file(service: Service, user: Caller) -> None:
    """G1"""
    value = (created := await user.new_key())["key"]
    expect(await service.caller(value).get("/api/tasks"), 200)
    await service.services.authenticator.flush()
    one = f"/api/keys/{created['id']}"
    expect(await user.post(f"{one}/revoke"), 200)
    for path in ("/api/keys", one, "/api/auth/me", "/keys"):
        assert not secrets_in((await user.get(path)).text), path
    files = [file for file in service.services.settings.data_dir.rglob("*") if file.is_file()]
    assert any(file.name.endswith("-wal") for file in files)
    secret = value.rsplit("_", 1)[1].encode()
    assert not [file.name for file in files if secret in file.read_bytes()]


async def test_a_revoked_key_is_refused_at_once_where_verifications_are_reused(
    template: Path, tmp_path: Path
) -> None:
    """G2"""
    async with running_service(template, tmp_path / "data", lease_ms=100) as service:
        ada = await service.log_in("ada", ADMIN_PASSWORD)
        for _ in range(3):
            created = await ada.new_key()
            program = service.caller(created["key"])
            expect(await program.get("/api/auth/me"), 200)
            expect(await ada.post(f"/api/keys/{created['id']}/revoke"), 200)
            assert problem(await program.get("/api/auth/me")) == (401, "key_revoked")


async def test_the_limit_of_keys(admin: Caller) -> None:
    expect(await admin.patch("/api/admin/config", {"max_keys_per_user": 2}), 200)
    answers = await asyncio.gather(*(admin.post("/api/keys", {"name": "k"}) for _ in range(8)))
    assert sorted(answer.status_code for answer in answers) == [201] * 2 + [409] * 6
    refused = next(answer for answer in answers if answer.status_code == 409)
    assert problem(refused) == (409, "key_limit_reached")
    assert challenge(refused) is None


async def test_an_unknown_page_is_a_page_with_the_navigation(
    service: Service, admin: Caller
) -> None:
    html = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    inside = await admin.get("/taks", headers=html)
    assert inside.status_code == 404
    assert inside.headers["content-type"].startswith("text/html")
    assert 'aria-label="Main"' in inside.text
    assert "Page not found" in inside.text
    outside = await service.caller().get("/taks", headers=html)
    assert outside.status_code == 404
    assert "Page not found" in outside.text
    assert 'aria-label="Main"' not in outside.text
    # Programs, and every path of the API, get problem documents.
    unknown = await admin.get("/api/taks", headers=html)
    assert problem(unknown) == (404, "not_found")
    assert unknown.json()["title"] == "Not found"
    assert problem(await admin.get("/taks")) == (404, "not_found")


async def test_a_password_link_is_checked_before_it_is_used(
    service: Service, admin: Caller
) -> None:
    body = {"username": "new", "role": "user"}
    invited = expect(await admin.post("/api/admin/users", body), 201)
    token = {"token": invited["invitation_url"].partition("#")[2]}
    anyone = service.caller()
    for _ in range(2):
        assert expect(await anyone.post("/api/auth/password-link", token), 200) == {
            "username": "new"
        }
    chosen = {**token, "password": "seven quiet herons at dusk"}
    expect(await anyone.post("/api/auth/set-password", chosen), 204)
    await service.log_in("new", chosen["password"])
    assert problem(await anyone.post("/api/auth/password-link", token)) == (410, "link_invalid")
    assert problem(await anyone.post("/api/auth/set-password", chosen)) == (410, "link_invalid")
    unknown = {"token": "x" * 43}
    assert problem(await anyone.post("/api/auth/password-link", unknown)) == (410, "link_invalid")
