"""The key routes for administrators, as applications mount them. The contract of the adapters has what they answer."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contract.adapter import MAX_AGE, make_world
from tests.integrations.adapters import ADAPTERS, adapter_of, mounted, send

pytestmark = pytest.mark.anyio

PERMISSION = "admin:config"


@pytest.mark.parametrize("name", ADAPTERS)
async def test_an_application_lists_with_any_login_and_revokes_with_a_recent_one(name: str) -> None:
    world = make_world()
    auth: Any = adapter_of(name, world.blocking if name == "flask" else world.authenticator)
    lists = auth.admin_key_routes(PERMISSION, operations=["list_all_keys"])
    revokes = auth.admin_key_routes(PERMISSION, max_age=MAX_AGE, operations=["revoke_any_key"])
    app = mounted(name, auth, lists, revokes)
    old = world.bearer("jwt_admin_old")
    one = f"/api/admin/keys/{world.names['key_bob_id']}/revoke".encode()
    assert (await send(app, "GET", b"/api/admin/keys", old)).status == 200
    reply = await send(app, "POST", one, old)
    assert (reply.status, reply.json["code"]) == (401, "login_too_old")
    assert (await send(app, "POST", one, world.bearer("jwt_admin"))).status == 200
    many = await send(app, "POST", b"/api/admin/keys/revoke", world.bearer("jwt_admin"))
    assert many.status in {404, 405}
