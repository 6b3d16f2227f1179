"""Bodies that no client sends by mistake: always an answer of the table, never a 500, and the service goes on."""

from __future__ import annotations

import itertools
import json
import re

import pytest
from examples.task_service.tests.service_support import (
    Caller,
    Service,
    expect,
    problem,
    wrong_fields,
)

pytestmark = pytest.mark.anyio

JSON = {"Content-Type": "application/json"}

DEEP = b"[" * 100_000 + b"]" * 100_000
BODIES = {
    "nothing": b"",
    "not JSON": b"{",
    "nested deeply": DEEP,
    "objects nested deeply": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "nested deeply in a member": b'{"name":"n","handler":"command","params":{"argv":'
    + DEEP
    + b"}}",
    "not UTF-8": b'{"name": "\xff\xfe"}',
    "UTF-16": '{"name": "n"}'.encode("utf-16"),
    "a lone surrogate": b'{"name": "\\ud800"}',
    "a lone surrogate in a name": b'{"\\ud800": 1}',
    "NUL": b'{"name": "a\\u0000b"}',
    "a huge number": b'{"name": ' + b"9" * 100_000 + b"}",
    "NaN": b'{"name": NaN}',
    "Infinity": b'{"timeout_seconds": Infinity, "name": "n"}',
    "a member twice": b'{"name": "a", "name": "b"}',
    "a list": b"[]",
    "a string": b'"name"',
    "null": b"null",
    "a huge member name": b'{"' + b"n" * 500_000 + b'": 1}',
    "many members": json.dumps({f"m{n}": n for n in range(50_000)}).encode(),
}
UNREADABLE = ("not JSON", "nested deeply", "not UTF-8", "NaN", "a member twice")
ROUTES = [
    ("POST", "/api/keys"),
    ("POST", "/api/tasks"),
    ("PATCH", "/api/tasks/tsk_0000000000000000"),
    ("PATCH", "/api/admin/config"),
    ("POST", "/api/admin/users"),
    ("POST", "/api/admin/service-accounts"),
    ("PATCH", "/api/admin/users/usr_0000000000000000"),
    ("POST", "/api/auth/login"),
    ("POST", "/api/auth/set-password"),
    ("POST", "/api/auth/change-password"),
]


async def test_a_hostile_body_is_invalid_input(admin: Caller) -> None:
    for route, (name, body) in itertools.product(ROUTES, BODIES.items()):
        response = await admin.request(*route, content=body, headers=JSON)
        status, _ = problem(response)
        assert status in {401, 404, 410, 413, 422}, (route, name, response.text[:300])
        assert len(response.content) < 20_000, (route, name)
    expect(await admin.get("/api/tasks"), 200)


async def test_a_body_without_required_members_still_has_to_be_read(admin: Caller) -> None:
    task = await admin.new_task()
    me = (await admin.me())["user"]
    paths = (f"/api/tasks/{task['id']}", f"/api/admin/users/{me['id']}", "/api/admin/config")
    for name, path in itertools.product(UNREADABLE, paths):
        response = await admin.request("PATCH", path, content=BODIES[name], headers=JSON)
        assert wrong_fields(response) == {""}, (name, path)
    assert expect(await admin.get(paths[0]), 200) == task


async def test_unauthenticated_requests_are_refused_before_their_body_is_read(
    service: Service, admin_key: Caller
) -> None:
    for route, body in itertools.product(ROUTES[:6], (DEEP, b"{", b"\xff")):
        response = await service.caller().request(*route, content=body, headers=JSON)
        assert problem(response) == (401, "credentials_missing"), route
        if route[1] == "/api/keys" or route[1].startswith("/api/admin"):
            response = await admin_key.request(*route, content=body, headers=JSON)
            assert problem(response) == (403, "interactive_required"), route


async def test_what_a_foreign_form_can_send_is_no_json(user: Caller) -> None:
    body = b'{"name": "n", "handler": "command", "params": {"argv": ["echo"]}}'
    kinds = ("text/plain", "application/x-www-form-urlencoded", "", None)
    for kind, path in itertools.product(kinds, ("/api/tasks", "/api/keys", "/api/auth/login")):
        headers = {} if kind is None else {"Content-Type": kind}
        response = await user.post(path, content=body, headers=headers)
        assert problem(response) == (422, "input_invalid"), (kind, path)
        assert "Content-Type: application/json" in response.json()["detail"]


@pytest.mark.parametrize(
    ("length", "answer"),
    [
        ({"Content-Length": "52428800"}, (413, "content_too_large")),
        ({}, (411, "length_required")),
    ],
)
async def test_a_body_of_fifty_megabytes_is_not_read(
    user: Caller, length: dict[str, str], answer: tuple[int, str]
) -> None:
    read = 0

    async def megabytes():
        nonlocal read
        for _ in range(50):
            read += 1
            yield b"a" * 1_048_576

    response = await user.http.post("/api/tasks", content=megabytes(), headers=JSON | length)
    assert problem(response) == answer
    assert read <= 3


PAGED = [
    "/api/tasks",
    "/api/admin/users",
    "/api/admin/service-accounts",
    "/api/admin/audit",
    "/api/tasks/{task}/runs",
]
NO_LIMITS = ["five", "5.5", "-5", "0", "", "201"]


async def test_a_limit_is_a_number_within_its_range(admin: Caller) -> None:
    task = (await admin.new_task())["id"]
    for path in PAGED:
        for text in NO_LIMITS:
            response = await admin.get(f"{path.format(task=task)}?limit={text}")
            assert wrong_fields(response) == {"limit"}, (path, text)
        for hostile in ("limit=9" + "9" * 5000, "cursor=" + "a" * 60_000):
            response = await admin.get(f"{path.format(task=task)}?{hostile}")
            assert problem(response) == (422, "input_invalid")


async def test_markup_in_a_name_stays_text(user: Caller) -> None:
    name = "<img src=x onerror=alert(1)>'\"&"
    task = await user.new_task(name=name)
    assert task["name"] == name
    page = await user.get(f"/tasks/{task['id']}")
    assert name not in page.text
    assert "require-trusted-types-for 'script'" in page.headers["content-security-policy"]


async def test_every_guarded_operation_refuses_an_unknown_parameter_after_its_guard(
    service: Service, admin: Caller
) -> None:
    document = expect(await service.caller().get("/openapi.json"), 200)
    guarded = {
        (method.upper(), path.format_map(dict.fromkeys(re.findall(r"{(\w+)}", path), "x")))
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if operation.get("security")
    }
    assert {("POST", "/api/keys"), ("POST", "/api/admin/keys/revoke")} <= guarded
    assert len(guarded) > 50
    for method, path in sorted(guarded):
        body = {} if method in {"POST", "PATCH"} else None
        anonymous = await service.caller().request(method, f"{path}?onbehalfof=x", json=body)
        assert problem(anonymous) == (401, "credentials_missing"), (method, path)
        refused = await admin.request(method, f"{path}?onbehalfof=x", json=body)
        assert problem(refused) == (422, "input_invalid"), (method, path)
        [error] = refused.json()["errors"]
        assert error["field"] == "onbehalfof"
        assert error["message"].startswith("Unknown query parameter 'onbehalfof'. Allowed: ")
