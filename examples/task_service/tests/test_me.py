"""Who a request acts for: `GET /api/auth/me` with a login and with a key."""

from __future__ import annotations

import pytest
from examples.task_service.tests.service_support import Caller, expect

pytestmark = pytest.mark.anyio


async def test_me_shows_user_permissions_and_credential(user: Caller, user_key: Caller) -> None:
    answered = expect(await user.get("/api/auth/me"), 200)
    assert answered["user"].keys() == {"id", "username", "roles", "service_account"}
    assert answered["user"]["service_account"] is False
    assert (answered["user"]["username"], answered["user"]["roles"]) == ("ulf", ["user"])
    assert answered["permissions"] == ["keys:manage", "tasks:read", "tasks:run", "tasks:write"]
    credential = answered["credential"]
    assert (credential["kind"], credential["key_id"]) == ("interactive", None)
    credential = (expect(await user_key.get("/api/auth/me"), 200))["credential"]
    assert credential["kind"] == "api_key"
    assert len(credential["key_id"]) == 12
