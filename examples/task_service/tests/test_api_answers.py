"""The table of answers, with challenge and body, as the service gives them (RFC 6750, RFC 9457).

What is wrong with a key or a token itself is in the contract of the library's adapters, `tests/contract/answer_cases.py`.
"""

from __future__ import annotations

import asyncio
import json

import pytest
from examples.task_service.tests.service_support import (
    Caller,
    Service,
    challenge,
    expect,
    problem,
    wrong_fields,
)

from msk_auth.errors import StoreUnavailable

pytestmark = pytest.mark.anyio

INVALID_TOKEN = 'Bearer realm="task-service", error="invalid_token"'
INVALID_REQUEST = 'Bearer realm="task-service", error="invalid_request"'


async def test_no_credentials_or_another_scheme(service: Service, user: Caller) -> None:
    for header in (None, "Basic YTpi", "Digest a=b", ""):
        headers = {} if header is None else {"Authorization": header}
        response = await service.caller().get("/api/tasks", headers=headers)
        assert problem(response) == (401, "credentials_missing"), header
        assert challenge(response) == 'Bearer realm="task-service"'
    for scheme in ("bearer", "BEARER", "bEaReR"):
        headers = {"Authorization": f"{scheme}  {user.token}"}
        expect(await service.caller().get("/api/tasks", headers=headers), 200)


async def test_a_malformed_header_or_two_credentials(service: Service, user: Caller) -> None:
    token = user.token
    for headers in (
        *([("Authorization", f"Bearer{rest}")] for rest in ("", " ", " a b", " a,b", "\ta")),
        [("Authorization", f"Bearer {token}")] * 2,
        [("Authorization", f"Bearer {token}"), ("Cookie", f"__Host-task_session={token}")],
    ):
        response = await service.caller().http.get("/api/tasks", headers=headers)
        assert problem(response) == (400, "request_malformed"), headers
        assert challenge(response) == INVALID_REQUEST


async def test_an_expired_key(service: Service, admin: Caller) -> None:
    expect(await admin.patch("/api/admin/config", {"session_idle_minutes": 43_200}), 200)
    expect(await admin.patch("/api/admin/config", {"session_lifetime_minutes": 43_200}), 200)
    created = await admin.new_key(expires_in_days=1)
    program = service.caller(created["key"])
    service.clock.advance(days=1, minutes=-5)
    expect(await program.get("/api/tasks"), 200)
    service.clock.advance(minutes=5)
    response = await program.get("/api/tasks")
    assert problem(response) == (401, "key_expired")
    assert challenge(response) == INVALID_TOKEN


async def test_a_disabled_owner(service: Service, admin: Caller, user: Caller) -> None:
    program = await service.key_for(user)
    user_id = (await user.me())["user"]["id"]
    expect(await admin.patch(f"/api/admin/users/{user_id}", {"disabled": True}), 200)
    response = await program.get("/api/tasks")
    assert problem(response) == (401, "owner_disabled")
    assert challenge(response) == INVALID_TOKEN
    response = await user.get("/api/tasks")
    assert problem(response) == (401, "token_revoked")
    assert challenge(response) == INVALID_TOKEN
    # Enabled again, the owner has the keys and no login.
    expect(await admin.patch(f"/api/admin/users/{user_id}", {"disabled": False}), 200)
    assert problem(await user.get("/api/tasks")) == (401, "token_revoked")
    expect(await program.get("/api/tasks"), 200)


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


async def test_the_limit_of_keys(admin: Caller) -> None:
    expect(await admin.patch("/api/admin/config", {"max_keys_per_user": 2}), 200)
    answers = await asyncio.gather(*(admin.post("/api/keys", {"name": "k"}) for _ in range(8)))
    assert sorted(answer.status_code for answer in answers) == [201] * 2 + [409] * 6
    refused = next(answer for answer in answers if answer.status_code == 409)
    assert problem(refused) == (409, "key_limit_reached")
    assert challenge(refused) is None


async def test_invalid_input_names_the_fields(user: Caller) -> None:
    wrong = {"name": 5, "expires_in_days": 0, "owner_id": "usr_0000000000000000"}
    assert wrong_fields(await user.post("/api/keys", wrong)) == set(wrong)
    unacceptable = {"name": " ", "labels": ["A B"]}
    assert wrong_fields(await user.post("/api/keys", unacceptable)) == set(unacceptable)
    foreign = {"name": "a", "scopes": ["no:such"]}
    assert wrong_fields(await user.post("/api/keys", foreign)) == {"scopes"}
    assert wrong_fields(await user.get("/api/tasks?limit=0")) == {"limit"}
    assert wrong_fields(await user.get("/api/tasks?cursor=nonsense")) == {"cursor"}


async def test_a_store_that_does_not_answer(
    service: Service, user: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = await service.key_for(user)

    async def gone(*_: object) -> None:
        raise StoreUnavailable

    async def broken(*_: object) -> None:
        raise OSError("disk I/O error at msk_secret")

    for failure in (gone, broken):
        monkeypatch.setattr(service.services.authenticator._look_ups, "find_key", failure)
        response = await program.get("/api/tasks")
        assert problem(response) == (503, "store_unavailable")
        assert int(response.headers["retry-after"]) > 0
        assert challenge(response) is None
        assert "msk_secret" not in response.text


async def test_no_answer_of_the_api_may_be_kept(service: Service, user: Caller) -> None:
    created = await user.post("/api/keys", {"name": "k"})
    for response in (created, await user.get("/api/tasks"), await user.get("/api/nothing")):
        assert response.headers["cache-control"] == "no-store"
        assert response.headers["x-content-type-options"] == "nosniff"
    assert json.loads(created.content)["key"].startswith("msk_")


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
