"""Two processes on one data folder, each with a port of its own: what ends at one of them has ended at both (G2)."""

from __future__ import annotations

import pytest
from argon2.profiles import CHEAPEST
from examples.task_service.tests.service_support import Caller, Service, expect, problem

from task_service.app import create_app
from task_service.settings import Settings

pytestmark = pytest.mark.anyio


async def test_a_login_is_good_and_over_at_both(service: Service, user: Caller) -> None:
    folder = service.services.settings.data_dir
    app = create_app(
        Settings(data_dir=folder, port=8123), clock=service.clock, password_hashing=CHEAPEST
    )
    key = await user.new_key()
    async with app.router.lifespan_context(app):
        other = Service(app, service.clock, app.state.services)
        token = user.token
        here, with_key = other.caller(token), other.caller(key["key"])
        expect(await here.get("/api/tasks"), 200)
        expect(await with_key.get("/api/tasks"), 200)
        expect(await user.post(f"/api/keys/{key['id']}/revoke"), 200)
        assert problem(await with_key.get("/api/tasks")) == (401, "key_revoked")
        expect(await user.post("/api/auth/logout"), 204)
        assert problem(await here.get("/api/tasks")) == (401, "token_revoked")
        for caller in other.callers:
            await caller.aclose()
