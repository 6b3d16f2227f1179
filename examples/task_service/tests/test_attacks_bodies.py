"""Attacks with bodies on things that exist: what cannot be read changes nothing and is never answered with success."""

from __future__ import annotations

import pytest
from examples.task_service.tests.service_support import Caller, expect, wrong_fields

pytestmark = pytest.mark.anyio

JSON = {"Content-Type": "application/json"}
UNREADABLE = (
    b"[" * 30_000,
    b"\xff",
    b'{"name": "a", "name": "b"}',
    b'{"timeout_seconds": NaN}',
    b"{",
)


@pytest.mark.parametrize("body", UNREADABLE, ids=range(len(UNREADABLE)))
async def test_a_body_without_required_members_still_has_to_be_read(
    admin: Caller, body: bytes
) -> None:
    task = await admin.new_task()
    me = expect(await admin.get("/api/auth/me"), 200)["user"]
    for path in (f"/api/tasks/{task['id']}", f"/api/admin/users/{me['id']}", "/api/admin/config"):
        response = await admin.request("PATCH", path, content=body, headers=JSON)
        assert wrong_fields(response) == {""}
    assert expect(await admin.get(f"/api/tasks/{task['id']}"), 200) == task
