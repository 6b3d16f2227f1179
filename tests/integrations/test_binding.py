"""Guards that exist before their authenticator, and blocking authenticators on an event loop."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import anyio
import pytest
from tests.contract.adapter import START, User, World, make_world
from tests.integrations.adapters import ADAPTERS, adapter_of, guarded, mounted, send

from msk_auth import (
    AsyncAuthenticator,
    Authenticator,
    Owner,
    Principal,
    local_principal,
    require,
)
from msk_auth.errors import ConfigurationError, TooManyAttempts
from msk_auth.stores.memory import AsyncMemoryKeyStore, MemoryKeyStore

pytestmark = pytest.mark.anyio

ON_A_LOOP = [name for name in ADAPTERS if name != "flask"]


@pytest.fixture(params=ADAPTERS)
def adapter(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=ON_A_LOOP)
def asgi(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def factory(adapter: str, auth: Any, view: Callable[[], object]) -> Callable[[Any], Any]:
    """Like a module with guarded views, and the factory beside it that makes an application for an authenticator."""
    routes = [guarded(adapter, auth, "tasks:read", view), auth.key_routes()]
    return lambda authenticator: mounted(adapter, auth, *routes, authenticator=authenticator)


class TestOneAdapterForSeveralApplications:
    """An application for each test, with its own engine, is the usual case."""

    async def test_each_has_its_own_authenticator(self, adapter: str) -> None:
        auth = adapter_of(adapter)
        make = factory(adapter, auth, lambda: {"realm": auth.authenticator.realm})
        worlds = [make_world(), make_world()]
        for n, world in enumerate(worlds):
            world.blocking.realm = f"app {n}"
        apps = [make(world.blocking) for world in worlds]
        for n, (app, world) in enumerate(zip(apps, worlds, strict=True)):
            reply = await send(app, "GET", b"/", world.bearer("key"))
            assert (reply.status, reply.json) == (200, {"realm": f"app {n}"})
            reply = await send(app, "GET", b"/api/keys", world.bearer("key"))
            assert (reply.status, len(reply.json["items"])) == (200, 7)
            other = worlds[1 - n].bearer("key")
            reply = await send(app, "GET", b"/", other)
            assert (reply.status, reply.json["code"]) == (401, "key_unknown")
            assert f'realm="app {n}"' in (reply.header("www-authenticate") or "")

    async def test_after_a_request_none_counts(self, adapter: str, world: World) -> None:
        auth = adapter_of(adapter)
        app = factory(adapter, auth, nothing)(world.blocking)
        assert (await send(app, "GET", b"/", world.bearer("key"))).status == 200
        with pytest.raises(ConfigurationError, match="has no authenticator here"):
            _ = auth.authenticator

    def test_an_application_without_one(self, adapter: str) -> None:
        make = factory(adapter, adapter_of(adapter), nothing)
        with pytest.raises(ConfigurationError, match="no authenticator yet"):
            make(None)

    def test_one_for_all_and_one_for_this(self, adapter: str, world: World) -> None:
        make = factory(adapter, adapter_of(adapter, world.blocking), nothing)
        with pytest.raises(ConfigurationError, match="already has an authenticator"):
            make(world.blocking)

    @pytest.mark.skipif("flask" not in ADAPTERS, reason="for Flask")
    def test_flask_gives_the_authenticator_of_the_current_application(self, world: World) -> None:
        from flask import Flask

        auth, app = adapter_of("flask"), Flask(__name__)
        auth.init_app(app, world.blocking)
        with app.app_context():
            assert auth.authenticator is world.blocking
        with Flask(__name__).app_context(), pytest.raises(ConfigurationError, match="here"):
            _ = auth.authenticator
        with pytest.raises(ConfigurationError, match="already has a FlaskAuth"):
            auth.init_app(app, world.blocking)


class TestBlockingAuthenticatorsOnALoop:
    async def test_look_ups_run_in_other_threads(self, asgi: str, world: World) -> None:
        threads: list[threading.Thread] = []

        def find_owner(owner_id: str) -> Owner[User]:
            threads.append(threading.current_thread())
            return Owner(owner_id, frozenset({"tasks:read"}), User("Alice"))

        authenticator = Authenticator(world.store.blocking, find_owner=find_owner)
        auth = adapter_of(asgi)
        app = factory(asgi, auth, nothing)(authenticator)
        reply = await send(app, "GET", b"/", world.bearer("key"))
        assert reply.status == 200
        assert threads
        assert threading.current_thread() not in threads

    async def test_def_routes_have_the_blocking_one(self, asgi: str, world: World) -> None:
        auth = adapter_of(asgi)

        def view() -> dict[str, bool]:
            assert auth.blocking is world.blocking
            auth.blocking.revoke_key(alice(), world.names["key_id"])
            return {}

        app = factory(asgi, auth, view)(world.blocking)
        assert (await send(app, "GET", b"/", world.bearer("key"))).status == 200
        reply = await send(app, "GET", b"/", world.bearer("key"))
        assert (reply.status, reply.json["code"]) == (401, "key_revoked")

    async def test_what_has_to_be_awaited_raises_in_a_def_route(
        self, asgi: str, world: World
    ) -> None:
        auth = adapter_of(asgi)
        awaited = [
            "await_lease_expiry",
            "revoke_key",
            "delete_key",
            "forget_owner",
            "create_key",
            "flush",
        ]

        def view() -> dict[str, bool]:
            for call in awaited:
                message = re.escape(f"auth.blocking.{call}(…)")
                with pytest.raises(ConfigurationError, match=message):
                    getattr(auth.authenticator, call)()
            return {}

        app = factory(asgi, auth, view)(world.blocking)
        assert (await send(app, "GET", b"/", world.bearer("key"))).status == 200

    async def test_an_asynchronous_one_raises_in_a_def_route_too(
        self, asgi: str, world: World
    ) -> None:
        auth = adapter_of(asgi)

        def view() -> dict[str, bool]:
            for call in (
                lambda: auth.authenticator.revoke_key(alice(), world.names["key_id"]),
                auth.authenticator.await_lease_expiry,
                lambda: auth.admit(None, require("admin:config")),
                lambda: auth.verify_again(None),
                lambda: auth.blocking,
            ):
                with pytest.raises(ConfigurationError, match="def"):
                    call()
            return {}

        app = factory(asgi, auth, view)(world.authenticator)
        async with world.authenticator:
            assert (await send(app, "GET", b"/", world.bearer("key"))).status == 200

    async def test_the_lifespan_writes_the_times_of_last_use(self, asgi: str, world: World) -> None:
        awaited = adapter_of(asgi, world.blocking).authenticator
        async with awaited:
            await awaited.authenticate([f"Bearer {world.names['key']}"])
        record = world.store.blocking.find(world.names["key_id"])
        assert record is not None
        assert record.last_used_at == START

    async def test_every_operation_is_that_of_the_blocking_one(
        self, asgi: str, world: World
    ) -> None:
        auth = adapter_of(asgi, world.blocking)
        awaited, me = auth.authenticator, alice()
        made = await awaited.create_key(me, name="one")
        assert (await awaited.get_key(me, made.record.id)).name == "one"
        assert made.record.id in {each.id for each in (await awaited.list_keys(me)).items}
        successor = await awaited.rotate_key(me, made.record.id)
        end = START + timedelta(hours=1)
        assert (await awaited.expire_key(me, successor.record.id, at=end)).expires_at == end
        other = await awaited.create_key(me, name="two")
        revoked = await awaited.revoke_presented_key(other.value.reveal())
        assert revoked.revoked_at == START
        assert (await awaited.revoke_key(me, other.record.id)).revoked_at == START
        await awaited.delete_key(me, other.record.id)
        assert await awaited.revoke_leaked([]) == ()
        assert await awaited.forget_owner("bob") == 1
        await awaited.await_lease_expiry()
        await awaited.flush()

    async def test_a_subclass_keeps_its_ways(self, asgi: str) -> None:
        class Own(Authenticator[User]):
            def authenticate(self, authorization: Any, *_more: Any) -> Principal[User]:
                return alice()

        auth = adapter_of(asgi)
        app = factory(asgi, auth, nothing)(Own(MemoryKeyStore(), find_owner=lambda _id: None))
        assert (await send(app, "GET", b"/")).status == 200

    async def test_fetching_keys_and_a_throttle_may_block(self, asgi: str, world: World) -> None:
        auth = adapter_of(asgi, world.blocking)
        here = threading.current_thread()

        def throttle(request: object) -> None:
            assert threading.current_thread() is not here
            raise TooManyAttempts(7)

        def fetch_keys(url: str) -> bytes:
            assert threading.current_thread() is not here
            fetched.append(url)
            return b""

        fetched: list[str] = []
        limited = mounted(asgi, auth, auth.revocation_route(throttle=throttle))
        reply = await send(limited, "POST", b"/api/revoke")
        assert (reply.status, reply.json["code"]) == (429, "too_many_attempts")
        auth = adapter_of(asgi, world.blocking)
        app = mounted(asgi, auth, auth.leak_route(fetch_keys, throttle=None))
        signed = [
            (b"github-public-key-identifier", b"k1"),
            (b"github-public-key-signature", b"AAAA"),
        ]
        reply = await send(app, "POST", b"/api/leaks/github", signed, b"[]")
        assert (reply.status, reply.json["code"]) == (503, "signing_keys_unavailable")
        assert fetched == ["https://api.github.com/meta/public_keys/secret_scanning"]


def nothing() -> dict[str, Any]:
    return {}


def alice() -> Principal[User]:
    permissions = frozenset({"tasks:read", "tasks:run"})
    return local_principal(Owner("alice", permissions, User("Alice")), at=START, interactive=True)


class TestAnAuthenticatorBesideItsLoop:
    """What narrows access must not be forgotten silently, with no adapter at all either."""

    async def test_a_worker_thread(self) -> None:
        async def find_owner(owner_id: str) -> Owner[User] | None:
            return None

        authenticator = AsyncAuthenticator(AsyncMemoryKeyStore(), find_owner=find_owner)
        async with authenticator:
            with pytest.raises(ConfigurationError, match="without an event loop"):
                await anyio.to_thread.run_sync(authenticator.await_lease_expiry)
            await authenticator.await_lease_expiry()
        # A thread with an event loop of its own may call it.
        with anyio.from_thread.start_blocking_portal() as portal:
            portal.call(authenticator.await_lease_expiry)
        coroutine = await anyio.to_thread.run_sync(authenticator.await_lease_expiry)
        await coroutine
