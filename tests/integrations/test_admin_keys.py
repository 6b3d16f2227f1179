"""The key routes for administrators, as applications mount them. The contract of the adapters has what they answer."""

from __future__ import annotations

from typing import Any

import pytest
from anyio import to_thread
from tests.contract.adapter import MAX_AGE, PEOPLE, START, make_world
from tests.integrations.adapters import ADAPTERS, WITH_WEBSOCKETS, adapter_of, mounted, send

from msk_auth import local_principal
from msk_auth.errors import ConfigurationError
from msk_auth.keys import KeyFilter

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


@pytest.mark.parametrize("name", WITH_WEBSOCKETS)
@pytest.mark.parametrize("kind", ["authenticator", "blocking"])
async def test_the_operations_of_an_adapter_s_authenticator_are_awaited(
    name: str, kind: str
) -> None:
    world = make_world()
    admin = adapter_of(name, getattr(world, kind)).authenticator.admin_keys(PERMISSION)
    root = local_principal(PEOPLE["root"], at=START, interactive=True)
    page = await admin.list_keys(root, KeyFilter(owner_id="bob"), limit=5)
    assert [record.name for record in page.items] == ["key_bob"]
    key_id = world.names["key_bob_id"]
    revoked = await admin.revoke_key(root, key_id)
    assert (revoked.id, revoked.revoked_at) == (key_id, START)
    assert await admin.revoke_keys(root, [key_id, "unknown"]) == (revoked, None)


@pytest.mark.parametrize("name", WITH_WEBSOCKETS[:1])
async def test_the_operations_in_threads_refuse_a_call_that_cannot_be_awaited(name: str) -> None:
    world = make_world()
    auth = adapter_of(name, world.blocking)
    root = local_principal(PEOPLE["root"], at=START, interactive=True)
    admin = auth.authenticator.admin_keys(PERMISSION)
    key_id = world.names["key_bob_id"]
    with pytest.raises(ConfigurationError, match=r"auth\.blocking\.admin_keys\(…\)\.revoke_key"):
        await to_thread.run_sync(admin.revoke_key, root, key_id)
    revoked = auth.blocking.admin_keys(PERMISSION).revoke_key(root, key_id)
    assert revoked.revoked_at == START
