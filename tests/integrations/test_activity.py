"""What adapters say about the requests of a key: its route, address and user agent, once for each request."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any

import pytest
from tests.contract.adapter import START, Reply, World, make_world
from tests.integrations.adapters import ADAPTERS, WITH_WEBSOCKETS, send
from tests.integrations.test_websockets import connect

from msk_auth import ActivitySettings, KeyActivity, LastRequest
from msk_auth.authenticator.activity import ActivityLog

pytestmark = pytest.mark.anyio

# The last one runs an `Authenticator` in threads.
KINDS = [*ADAPTERS, *(f"{name}, blocking" for name in WITH_WEBSOCKETS)]


class Site:
    """An application of an adapter, whose authenticator counts.

    Attributes:
        knows_routes: Whether the framework says which route serves a request. Older versions of Starlette do not.
    """

    def __init__(self, kind: str, lease: timedelta | None = None) -> None:
        self.world: World = make_world(lease=lease)
        settings = ActivitySettings(addresses=True, user_agents=True)
        log = ActivityLog(settings)
        self.world.authenticator.activity = self.world.blocking.activity = log
        self.adapter, *blocking = kind.split(", ")
        is_blocking = bool(blocking) or self.adapter == "flask"
        used = self.world.blocking if is_blocking else self.world.authenticator
        self.app: Any = ADAPTERS[self.adapter](used)
        self.knows_routes = self.adapter != "starlette" or _starlette_knows_routes()

    async def get(
        self, target: str, name: str = "key", *, method: str = "GET", agent: bytes = b"curl/8.5"
    ) -> Reply:
        headers = [*self.world.bearer(name), (b"user-agent", agent)]
        return await send(self.app, method, target.encode(), headers, client=("192.0.2.7", 1))

    async def found(self, name: str = "key") -> KeyActivity:
        await self.world.authenticator.flush()
        return await self.world.store.activity(self.world.names[f"{name}_id"], since=None)

    async def counts(self, name: str = "key") -> tuple[int, int]:
        days = (await self.found(name)).days
        return sum(day.accepted for day in days), sum(day.refused for day in days)

    def last(self, route: str, agent: str | None = "curl/8.5") -> LastRequest:
        return LastRequest(START, route if self.knows_routes else None, "192.0.2.7", agent)


def _starlette_knows_routes() -> bool:
    from starlette.routing import Router

    return 'scope["route"]' in inspect.getsource(Router.app)


@pytest.fixture(params=[None, timedelta(seconds=1)], ids=["without a lease", "with a lease"])
def lease(request: pytest.FixtureRequest) -> timedelta | None:
    given: timedelta | None = request.param
    return given


@pytest.fixture(params=KINDS)
def site(request: pytest.FixtureRequest, lease: timedelta | None) -> Site:
    return Site(request.param, lease)


async def test_each_request_counts_once_as_what_became_of_it(site: Site) -> None:
    statuses = [
        (await site.get(target, method=method)).status
        for method, target in [
            ("GET", "/tasks"), ("GET", "/me"), ("GET", "/api/keys"), ("GET", "/admin/config"), ("POST", "/api/keys"),
        ]
    ]  # fmt: skip
    assert statuses == [200, 200, 200, 403, 403]
    assert await site.counts() == (3, 2)


async def test_a_key_that_has_ended_counts_as_refused(site: Site) -> None:
    for name in ("key_revoked", "key_expired", "key_disabled", "key_elsewhere"):
        reply = await site.get("/tasks", name)
        assert reply.status in {401, 403}
        assert await site.counts(name) == (0, 1)


async def test_strangers_logins_and_public_routes_count_nothing(site: Site) -> None:
    for name in ("key_unknown", "key_wrong", "key_typo", "key_checksum", "jwt", "jwt_expired"):
        await site.get("/tasks", name)
    assert (await site.get("/public")).status == 200
    await send(site.app, "GET", b"/tasks")
    await site.world.authenticator.flush()
    assert site.world.store.blocking._days == {}
    assert site.world.store.blocking._last_requests == {}


async def test_the_last_request_has_route_address_and_agent(site: Site) -> None:
    assert (await site.get("/tasks?secret=1")).status == 200
    assert (await site.found()).last == site.last("GET /tasks")
    key_id = site.world.names["key_bob_id"]
    reply = await site.get(f"/api/keys/{key_id}/revoke", method="POST", agent=b"a\xffb")
    assert reply.status == 403
    key = "<key_id>" if site.adapter == "flask" else "{key_id}"
    route = f"POST /api/keys/{key}/revoke"
    assert (await site.found()).last == site.last(route, "aÿb")


async def test_a_client_that_names_no_agent_has_none(site: Site) -> None:
    assert (await send(site.app, "GET", b"/me", site.world.bearer("key"))).status == 200
    last = (await site.found()).last
    assert last is not None
    assert last.user_agent is None


async def test_a_failing_store_fails_no_request(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object) -> None:
        raise ConnectionError("gone")

    for store in (site.world.store, site.world.store.blocking):
        monkeypatch.setattr(store, "record_activity", fail)
    # Flask writes after a response.
    site.world.clock.advance(timedelta(minutes=2))
    assert (await site.get("/tasks")).status == 200
    await site.world.authenticator.flush()
    monkeypatch.undo()
    assert await site.counts() == (1, 0)


@pytest.mark.parametrize("adapter", WITH_WEBSOCKETS)
async def test_a_websocket_is_one_request(adapter: str) -> None:
    site = Site(adapter)
    first, *_ = await connect(site.app, "/ws", site.world.bearer("key"))
    assert first["type"] == "websocket.accept"
    assert await site.counts() == (1, 0)
    last = (await site.found()).last
    assert last == LastRequest(START, "WEBSOCKET /ws" if site.knows_routes else None, "192.0.2.1")
