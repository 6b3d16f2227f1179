"""Which answers are compressed, and above all which are not."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from examples.task_service.tests.service_support import (
    ADMIN_PASSWORD,
    Caller,
    Service,
    expect,
)
from starlette.routing import Route

from task_service.compression import COMPRESSED, MINIMUM_BYTES

pytestmark = pytest.mark.anyio

GZIP = {"Accept-Encoding": "gzip"}
# Repeats itself, so that compression would be worth it.
LONG = "x" * 2 * MINIMUM_BYTES

# Each route whose answer is compressed. A new one needs a line here, and a reason.
WITHOUT_SECRETS = {
    "/account",
    "/admin/audit",
    "/admin/config",
    "/admin/keys",
    "/admin/service-accounts",
    "/admin/system",
    "/admin/users",
    "/api/admin/keys",
    "/api/admin/users",
    "/api/handlers",
    "/api/keys",
    "/api/tasks/{taskId}/runs",
    "/docs",
    "/docs/operations",
    "/keys",
    "/keys/{key_id}",
    "/login",
    "/openapi.json",
    "/runs",
    "/set-password",
    "/static/{version}/{path:path}",
    "/tasks",
    "/tasks/{task_id}",
    "/vendor/{version}/{path:path}",
}


def is_compressed(response: httpx2.Response) -> bool:
    return response.headers.get("content-encoding") == "gzip"


def _routes(service: Service) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for route in service.app.routes:
        for each in [route, *getattr(getattr(route, "original_router", route), "routes", ())]:
            if isinstance(each, Route):
                found.setdefault(each.path, set()).update(each.methods or ())
    return found


async def test_every_route_is_compressed_by_a_decision(service: Service) -> None:
    read = {path for path, methods in _routes(service).items() if "GET" in methods}
    assert {path for path in read if COMPRESSED.fullmatch(path)} == WITHOUT_SECRETS


async def test_no_answer_with_a_secret_is_compressed(service: Service, admin: Caller) -> None:
    """Each of them is large enough, and has a text that the requester chose beside the secret."""
    asked: list[tuple[str, str, Any]] = [
        ("POST", "/api/auth/login", {"username": "ada", "password": ADMIN_PASSWORD}),
        ("POST", "/api/auth/login", {"username": LONG, "password": "wrong"}),
        ("POST", "/api/keys", {"name": "x" * 100, "scopes": ["tasks:read"]}),
        ("POST", "/api/admin/users", {"username": "x" * 40, "role": "user"}),
        (
            "POST",
            "/api/tasks",
            {"name": "a", "handler": "command", "params": {"argv": ["echo", LONG]}},
        ),
    ]
    answers = [
        await admin.request(method, path, body, headers=GZIP) for method, path, body in asked
    ]
    key, invited, task = (answer.json() for answer in answers[2:])
    answers += [
        await admin.post(f"/api/keys/{key['id']}/rotate", {}, headers=GZIP),
        await admin.post(f"/api/admin/users/{invited['user']['id']}/invitation", headers=GZIP),
        await admin.get("/api/tasks", headers=GZIP),
        await admin.get(f"/api/tasks/{task['id']}", headers=GZIP),
        await admin.get("/api/admin/audit", headers=GZIP),
    ]
    run = expect(await admin.post(f"/api/tasks/{task['id']}/run"), 202)
    await admin.wait_for_run(run["id"])
    log = await admin.get(f"/api/runs/{run['id']}/log", headers={**GZIP, "Accept": "text/plain"})
    assert [answer.status_code for answer in answers] == [
        *(200, 401, 201, 201, 201),
        *(201, 201, 200, 200, 200),
    ]
    assert not any(is_compressed(answer) for answer in [*answers, log])


async def test_a_hundred_keys_weigh_less_than_five_kilobytes(
    service: Service, user: Caller
) -> None:
    for number in range(100):
        await user.new_key(name=f"Deploy {number}", scopes=["tasks:read", "tasks:run"])
    answered = await user.get("/api/keys?limit=100&count=true", headers=GZIP)
    assert is_compressed(answered)
    assert int(answered.headers["content-length"]) < 5_000
    assert answered.headers["vary"] == "Accept-Encoding"
    assert len(expect(answered, 200)["items"]) == 100
    plain = await user.get(
        "/api/keys?limit=100&count=true", headers={"Accept-Encoding": "identity"}
    )
    assert not is_compressed(plain)
    assert plain.headers["vary"] == "Accept-Encoding"
    assert plain.json() == answered.json()


async def test_what_is_small_or_not_wanted_is_sent_as_it_is(user: Caller) -> None:
    assert not is_compressed(await user.get("/api/keys", headers=GZIP))
    assert not is_compressed(await user.get("/api/auth/me", headers=GZIP))
    assert not is_compressed(await user.get("/openapi.json", headers={"Accept-Encoding": "br"}))
    document = await user.get("/openapi.json", headers=GZIP)
    assert is_compressed(document)
    assert int(document.headers["content-length"]) < 25_000


async def test_the_head_of_a_compressed_answer_is_the_same(user: Caller) -> None:
    whole = await user.get("/openapi.json", headers=GZIP)
    head = await user.request("HEAD", "/openapi.json", headers=GZIP)
    assert head.content == b""
    for name in ("content-encoding", "content-length", "vary"):
        assert head.headers[name] == whole.headers[name]
