"""Search, filters, order and counts of every listing, on the server, together with its pages."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from examples.task_service.tests.service_support import (
    USER_PASSWORD,
    Caller,
    Service,
    expect,
    wrong_fields,
)

pytestmark = pytest.mark.anyio


async def _names(caller: Caller, path: str, **query: str) -> list[str]:
    return [item.get("name") or item["username"] for item in await caller.list_all(path, **query)]


async def test_tasks_are_searched_sorted_and_counted(user: Caller, admin: Caller) -> None:
    for name in ("beta", "Alpha 100%", "gamma", "alpha_2", "Delta"):
        last = await user.new_task(name=name)
    await user.patch(f"/api/tasks/{last['id']}", {"timeout_seconds": 5})
    await user.patch(f"/api/tasks/{last['id']}", {"name": "Delta"})
    names = ["Alpha 100%", "alpha_2", "beta", "Delta", "gamma"]
    assert await _names(user, "/api/tasks", sort="name") == names
    assert await _names(user, "/api/tasks") == ["Delta", "alpha_2", "gamma", "Alpha 100%", "beta"]
    assert (await _names(user, "/api/tasks", sort="updated"))[0] == "Delta"
    assert await _names(user, "/api/tasks", search="ALPHA", sort="name") == names[:2]
    # Signs of LIKE are text.
    assert await _names(user, "/api/tasks", search="%") == ["Alpha 100%"]
    assert await _names(user, "/api/tasks", search="_") == ["alpha_2"]
    assert await _names(user, "/api/tasks", search=last["id"]) == ["Delta"]
    chosen = f"/api/tasks?id={last['id']}&id=tsk_gone"
    assert [each["name"] for each in expect(await user.get(chosen), 200)["items"]] == ["Delta"]
    counted = expect(await user.get("/api/tasks?search=alpha&count=true&limit=1"), 200)
    assert (len(counted["items"]), counted["total"]) == (1, 2)
    assert "total" not in expect(await user.get("/api/tasks"), 200)
    assert await _names(admin, "/api/tasks", owner="ULF", search="alpha", sort="name") == names[:2]
    assert await _names(admin, "/api/tasks", owner="nobody") == []


async def test_tasks_are_found_by_the_state_of_their_latest_run(user: Caller) -> None:
    good = await user.new_task(name="good")
    run = expect(await user.post(f"/api/tasks/{good['id']}/run"), 202)
    await user.wait_for_run(run["id"])
    await user.new_task(name="new")
    assert await _names(user, "/api/tasks", state="succeeded") == ["good"]
    assert await _names(user, "/api/tasks", state="failed") == []
    runs = f"/api/tasks/{good['id']}/runs"
    counted = expect(await user.get(f"{runs}?count=true&state=succeeded"), 200)
    assert (counted["total"], [each["id"] for each in counted["items"]]) == (1, [run["id"]])
    assert expect(await user.get(f"{runs}?count=true&state=failed"), 200)["total"] == 0
    later = [expect(await user.post(f"/api/tasks/{good['id']}/run"), 202)["id"] for _ in range(4)]
    assert [each["id"] for each in await user.list_all(runs)] == [*reversed(later), run["id"]]


async def test_users_are_sorted_and_counted(admin: Caller, user: Caller) -> None:
    for name in ("zoe", "bea"):
        body = {"username": name, "role": "user"}
        expect(await admin.post("/api/admin/users", body), 201)
    names = sorted(await _names(admin, "/api/admin/users"))
    assert await _names(admin, "/api/admin/users", sort="name") == names
    by_login = await _names(admin, "/api/admin/users", sort="login")
    # Without a login they come last.
    assert set(by_login[-2:]) == {"zoe", "bea"}
    counted = expect(await admin.get("/api/admin/users?count=true&search=zo&limit=1"), 200)
    assert counted["total"] == 1
    assert await _names(admin, "/api/admin/users", role="admin") == ["ada"]
    assert await _names(admin, "/api/admin/users", disabled="true") == []


async def test_the_audit_log_is_counted(admin: Caller) -> None:
    path = "/api/admin/audit?count=true&limit=1&action=login."
    counted = expect(await admin.get(path), 200)
    everything = await admin.list_all("/api/admin/audit", action="login.")
    assert (len(counted["items"]), counted["total"]) == (1, len(everything))


async def test_keys_are_searched_filtered_sorted_and_counted(
    service: Service, user: Caller, admin: Caller
) -> None:
    lifetimes = {"beta": 5, "Alpha 100%": None, "gamma": 1, "alpha_2": 9, "Delta": 2}
    made = {}
    for name, days in lifetimes.items():
        made[name] = await user.new_key(name=name, expires_in_days=days)
    await admin.new_key(name="alpha of another")
    expect(await service.caller(made["beta"]["key"]).get("/api/auth/me"), 200)
    await service.services.authenticator.flush()
    expect(await user.post(f"/api/keys/{made['alpha_2']['id']}/revoke"), 200)
    by_name = ["Alpha 100%", "alpha_2", "beta", "Delta", "gamma"]
    assert await _names(user, "/api/keys", sort="name") == by_name
    assert await _names(user, "/api/keys") == list(reversed(lifetimes))
    by_expiry = ["gamma", "Delta", "beta", "alpha_2", "Alpha 100%"]
    assert await _names(user, "/api/keys", sort="expires") == by_expiry
    assert (await _names(user, "/api/keys", sort="used"))[0] == "beta"
    assert await _names(user, "/api/keys", search="ALPHA", sort="name") == by_name[:2]
    assert await _names(user, "/api/keys", search="%") == ["Alpha 100%"]
    key_id = made["Delta"]["id"]
    edited = expect(
        await user.patch(
            f"/api/keys/{key_id}", {"description": "for the CI", "labels": ["env:prod"]}
        ),
        200,
    )
    assert (edited["description"], edited["labels"]) == ("for the CI", ["env:prod"])
    for search in (
        "the ci",
        "env:prod",
        "PROD",
        key_id,
        key_id[:9],
        f"msk_{key_id}",
        f"msk_{key_id}_…",
    ):
        assert await _names(user, "/api/keys", search=search) == ["Delta"]
    service.clock.advance(days=1, hours=1)
    user = await service.log_in("ulf", USER_PASSWORD)
    assert await _names(user, "/api/keys", status="expired") == ["gamma"]
    assert await _names(user, "/api/keys", status="revoked") == ["alpha_2"]
    active = await _names(user, "/api/keys", status="active", sort="name")
    assert active == ["Alpha 100%", "beta", "Delta"]
    counted = expect(await user.get("/api/keys?count=true&limit=1&status=expired"), 200)
    assert (counted["counts"], counted["expiring"]) == (
        {"active": 3, "expired": 1, "revoked": 1},
        2,
    )
    counted = expect(await user.get("/api/keys?count=true&search=alpha"), 200)
    assert (counted["counts"], counted["expiring"]) == (
        {"active": 1, "expired": 0, "revoked": 1},
        0,
    )
    expect(await user.delete(f"/api/keys/{made['gamma']['id']}"), 204)
    assert "gamma" not in await _names(user, "/api/keys")


PATHS = ["/api/tasks", "/api/keys", "/api/admin/users", "/api/admin/audit"]


def encoded(position: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(position).encode()).rstrip(b"=").decode()


def decoded(cursor: str) -> list[Any]:
    return json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))


async def test_a_cursor_belongs_to_its_query(admin: Caller) -> None:
    for name in ("one", "two"):
        await admin.new_task(name=name)
        await admin.new_key(name=name)
    for path in PATHS:
        await _check_cursors(admin, path, "action=login." if "audit" in path else "sort=name")


async def _check_cursors(admin: Caller, path: str, other: str) -> None:
    cursor = expect(await admin.get(f"{path}?limit=1"), 200)["next_cursor"]
    expect(await admin.get(f"{path}?limit=2&cursor={cursor}"), 200)
    refused = await admin.get(f"{path}?limit=1&{other}&cursor={cursor}")
    assert wrong_fields(refused) == {"cursor"}
    raw = decoded(cursor)
    made_up: list[object] = [
        *([raw[0], key, *raw[2:]] for key in ("x", 2**63, 1.5, None, True, [])),
        [raw[0]],
        [*raw, "more"],
        [*raw[:2], "\x00"],
        [*raw[:2], 1.5],
        [],
        {},
        7,
    ]
    for position in made_up:
        refused = await admin.get(f"{path}?cursor={encoded(position)}")
        assert wrong_fields(refused) == {"cursor"}, (path, position)
    for text in ("x", "AAAA", "%C3%A9", "W10", "1" * 5000):
        assert wrong_fields(await admin.get(f"{path}?cursor={text}")) == {"cursor"}, text


async def test_a_made_up_text_never_reaches_the_database(user: Caller) -> None:
    for name in ("one", "two"):
        await user.new_key(name=name)
    cursor = expect(await user.get("/api/keys?limit=1&sort=name"), 200)["next_cursor"]
    sort, _, *rest = decoded(cursor)
    for key in ("\x00", "\ud800", 5):
        cursor = encoded([sort, key, *rest])
        assert wrong_fields(await user.get(f"/api/keys?sort=name&cursor={cursor}")) == {"cursor"}


async def test_a_listing_that_does_not_exist_is_refused(admin: Caller) -> None:
    for path, field in (
        ("/api/tasks?sort=size", "sort"),
        ("/api/tasks/tsk_0000000000000000/runs?state=lost", "state"),
        ("/api/keys?sort=size", "sort"),
        ("/api/keys?status=old", "status"),
        ("/api/keys?limit=201", "limit"),
        ("/api/tasks?count=perhaps", "count"),
        (f"/api/keys?search={'x' * 101}", "search"),
        # No text of PostgreSQL has it.
        ("/api/tasks?search=a%00", "search"),
        ("/api/tasks?id=tsk_1&id=%00", "id"),
        ("/api/runs?owner=%00", "owner"),
        ("/api/tasks?recent_runs=-1", "recent_runs"),
        ("/api/tasks?recent_runs=21", "recent_runs"),
        ("/api/admin/users?role=root", "role"),
        ("/api/admin/users?disabled=perhaps", "disabled"),
        (f"/api/admin/users?search={'x' * 101}", "search"),
    ):
        assert wrong_fields(await admin.get(path)) == {field}, path


async def test_a_key_with_scopes_of_its_own_lists_keys_as_it_reads_one(
    service: Service, user: Caller
) -> None:
    made = await user.new_key(scopes=["tasks:run"])
    scoped = service.caller(made["key"])
    expect(await scoped.get(f"/api/keys/{made['id']}"), 200)
    assert [key["id"] for key in expect(await scoped.get("/api/keys"), 200)["items"]] == [
        made["id"]
    ]


async def test_keys_that_end_within_a_week_are_counted(service: Service, user: Caller) -> None:
    for name, days in (("week", 7), ("eight", 8), ("endless", None), ("revoked", 2), ("old", 3)):
        made = await user.new_key(name=name, expires_in_days=days)
        if name == "revoked":
            expect(await user.post(f"/api/keys/{made['id']}/revoke"), 200)
        if name == "old":
            overlap = {"overlap_seconds": 86_400}
            expect(await user.post(f"/api/keys/{made['id']}/rotate", overlap), 201)

    async def expiring(query: str = "") -> int:
        counted = expect(await user.get(f"/api/keys?count=true{query}"), 200)
        number: int = counted["expiring"]
        return number

    # "week", and the successor of "old"; the replaced one needs no attention.
    assert await expiring() == 2
    assert [await expiring(f"&search={name}") for name in ("week", "old", "eight")] == [1, 1, 0]
    assert await expiring("&status=revoked&limit=1") == 2
    assert expect(await user.get("/api/keys"), 200).keys() == {"items", "next_cursor"}
