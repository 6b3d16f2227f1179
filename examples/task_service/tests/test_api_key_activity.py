"""What a key did: counted by the service as its administrator allows, and read by its owner."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from examples.task_service.tests.service_support import (
    Caller,
    Service,
    expect,
    problem,
    wrong_fields,
)
from sqlalchemy import func, select
from tests.contract.world import checksum

from msk_auth.errors import StoreUnavailable
from task_service.accounts.key_activity import KeyActivity
from task_service.db.schema import key_activity, key_last_requests
from task_service.request_record import RequestRecord

pytestmark = pytest.mark.anyio

AGENT = {"User-Agent": "deploy/1.4"}


async def a_key(service: Service, user: Caller) -> tuple[str, Caller]:
    """The path of a new key's activity, and the program that has the key."""
    program = await service.key_for(user, scopes=["tasks:read"])
    key_id = expect(await program.get("/api/auth/me", headers=AGENT), 200)["credential"]["key_id"]
    return f"/api/keys/{key_id}/activity", program


async def flush(service: Service) -> None:
    await service.services.key_activity.flush()


async def test_a_key_that_did_nothing_has_no_activity(user: Caller) -> None:
    key = await user.new_key()
    response = await user.get(f"/api/keys/{key['id']}/activity")
    assert expect(response, 200) == {"days": [], "last_request": None}
    assert response.headers["cache-control"] == "no-store"


async def test_its_owner_reads_what_a_key_did_on_each_day(service: Service, user: Caller) -> None:
    path, program = await a_key(service, user)
    today = service.clock.now().date()
    expect(await program.get("/api/tasks"), 200)
    assert problem(await program.post("/api/tasks", {})) == (403, "permission_denied")
    assert problem(await program.get(path)) == (403, "interactive_required")
    await flush(service)
    found = expect(await user.get(path), 200)
    assert found["days"] == [{"day": today.isoformat(), "accepted": 2, "refused": 2}]
    last = found["last_request"]
    assert last["route"] == "GET /api/keys/{key_id}/activity"
    assert last["at"].startswith(today.isoformat())
    # An administrator has to allow both.
    assert (last["address"], last["user_agent"]) == (None, None)


async def test_a_revoked_key_that_is_still_used_is_seen(service: Service, user: Caller) -> None:
    path, program = await a_key(service, user)
    expect(await user.post(path.replace("activity", "revoke")), 200)
    assert problem(await program.get("/api/tasks")) == (401, "key_revoked")
    await flush(service)
    (day,) = expect(await user.get(path), 200)["days"]
    assert (day["accepted"], day["refused"]) == (1, 1)


async def test_address_and_agent_are_kept_while_an_administrator_allows_it(
    service: Service, user: Caller, admin: Caller
) -> None:
    path, program = await a_key(service, user)
    allowed = {"keep_key_addresses": True, "keep_key_user_agents": True}
    for config, address, agent in [
        (allowed, "127.0.0.1", "deploy/1.4"),
        ({"keep_key_addresses": False}, None, "deploy/1.4"),
        ({"keep_key_user_agents": False}, None, None),
    ]:
        expect(await admin.patch("/api/admin/config", config), 200)
        expect(await program.get("/api/tasks", headers=AGENT), 200)
        await flush(service)
        last = expect(await user.get(path), 200)["last_request"]
        assert (last["address"], last["user_agent"]) == (address, agent)
        assert last["route"] == "GET /api/tasks"


async def test_activity_is_deleted_after_the_time_that_an_administrator_sets(
    service: Service, user: Caller, admin: Caller
) -> None:
    path, _ = await a_key(service, user)
    expect(await admin.patch("/api/admin/config", {"key_activity_days": 2}), 200)
    await flush(service)
    key_id = path.split("/")[3]
    for days_later, remain in ((2, 1), (1, 0)):
        service.clock.advance(days=days_later)
        await service.services.key_activity.purge()
        found = await service.services.key_activity.report(key_id, 3650)
        assert len(found.days) == remain
        assert (found.last_request is None) == (remain == 0)


async def test_the_activity_of_many_keys_is_written_in_short_transactions(service: Service) -> None:
    # Without the other parts of the service, which write too.
    db = service.services.db.with_timeout(60)
    activity = KeyActivity(db, service.clock, service.services.config)
    for number in range(1001):
        request = RequestRecord("req_1", None, None)
        activity.count(f"{number:012}", request, is_refused=False, route="GET /api/tasks")

    async def written() -> tuple[int, int, int]:
        counted = select(func.count(), func.sum(key_activity.c.accepted)).select_from(key_activity)
        async with db.read() as connection:
            days, accepted = (await connection.execute(counted)).one()
            keys = await connection.scalar(select(func.count()).select_from(key_last_requests))
        return days, accepted, keys or 0

    with patch.object(db, "write", side_effect=[db.write(), StoreUnavailable()]):
        await activity.flush()
    assert await written() == (500, 500, 500)
    await activity.flush()
    assert await written() == (1001, 1001, 1001)
    await db.close()


async def test_a_stranger_writes_nothing_for_an_id_that_they_guess(
    service: Service, user: Caller
) -> None:
    path, program = await a_key(service, user)
    key_id = path.split("/")[3]
    body = f"msk_{key_id}_{'0' * 32}"
    headers = {"Authorization": f"Bearer {body}{checksum(body)}"}
    assert problem(await program.get("/api/tasks", headers=headers)) == (401, "key_unknown")
    await flush(service)
    (day,) = expect(await user.get(path), 200)["days"]
    assert (day["accepted"], day["refused"]) == (1, 0)


async def test_a_user_agent_is_kept_in_a_form_that_every_database_takes(
    service: Service, user: Caller, admin: Caller
) -> None:
    path, program = await a_key(service, user)
    expect(await admin.patch("/api/admin/config", {"keep_key_user_agents": True}), 200)
    odd = {"User-Agent": "a\tb\x7f" + "c" * 500}
    expect(await program.get("/api/tasks", headers=odd), 200)
    await flush(service)
    last = expect(await user.get(path), 200)["last_request"]
    assert last["user_agent"] == "a?b?" + "c" * 252


async def test_the_last_days_are_read_as_far_back_as_asked(service: Service, user: Caller) -> None:
    path, _ = await a_key(service, user)
    await flush(service)
    assert len(expect(await user.get(f"{path}?days=1"), 200)["days"]) == 1
    for wrong in ("0", "3651", "-1", "1.5", "x", ""):
        assert wrong_fields(await user.get(f"{path}?days={wrong}")) == {"days"}


async def test_it_is_read_by_its_owner_alone(service: Service, user: Caller, admin: Caller) -> None:
    path, _ = await a_key(service, user)
    assert problem(await admin.get(path)) == (404, "key_not_found")
    assert problem(await user.get("/api/keys/000000000000/activity")) == (404, "key_not_found")
