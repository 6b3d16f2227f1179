"""Litestar with plugins of others: handlers that say nothing, exceptions, and the order of plugins."""

# No `from __future__ import annotations`: Litestar reads the annotations of local names.

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("litestar")

from litestar import Litestar, Request, Router, get
from litestar.config.app import AppConfig
from litestar.datastructures import State
from litestar.exceptions import NotAuthorizedException
from litestar.middleware import AbstractAuthenticationMiddleware
from litestar.plugins import InitPlugin
from litestar.static_files import create_static_files_router
from tests.contract.adapter import Reply, User, World
from tests.integrations.adapters import send
from tests.integrations.litestar_site import Jobs, mount, openapi, silent, silent_socket
from tests.integrations.test_websockets import connect

from msk_auth import Principal, own_guard, require, require_interactive
from msk_auth.errors import ConfigurationError
from msk_auth.integrations.litestar import LitestarAuth
from msk_auth.testing import list_routes

pytestmark = pytest.mark.anyio


class Plugin(InitPlugin):
    """A plugin of others with its handlers."""

    def __init__(self, handlers: Sequence[Any]) -> None:
        self._handlers = handlers

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        app_config.route_handlers.extend(self._handlers)
        return app_config


def application(auth: LitestarAuth[Any], *handlers: Any, **more: Any) -> Litestar:
    more.setdefault("openapi_config", None)
    return Litestar(plugins=[auth, Plugin(handlers)], logging_config=None, **more)


async def ask(app: Any, world: World, path: str, credential: str | None = None) -> Reply:
    headers = [] if credential is None else world.bearer(credential)
    return await send(app, "GET", path.encode(), headers)


async def status(app: Any, world: World, path: str, credential: str | None = None) -> int:
    return (await ask(app, world, path, credential)).status


def audited(app: Litestar) -> dict[str, str]:
    return {route.path: route.access for route in list_routes(app).routes}


class TestTheDefault:
    async def test_it_guards_every_kind_of_handler_that_says_nothing(
        self, world: World, tmp_path: Path
    ) -> None:
        tmp_path.joinpath("a.txt").write_text("in a file")
        auth = LitestarAuth(world.authenticator, default=require_interactive())
        files = create_static_files_router("/files", [tmp_path])
        app = application(auth, silent, silent_socket, mount, Jobs, files, openapi_config=openapi())
        for path in (
            *("/silent", "/mount", "/mount/deep", "/jobs", "/jobs/queues/a", "/files/a.txt"),
            *("/schema", "/schema/openapi.json", "/schema/nowhere"),
        ):
            assert await status(app, world, path) == 401
            assert (await send(app, "OPTIONS", path.encode())).status in {401, 405}
            assert await status(app, world, path, "key") == 403
            assert await status(app, world, path, "jwt") in {200, 404}
        start, _ = await connect(app, "/socket", [])
        assert start["status"] == 401
        assert set(audited(app).values()) == {"interactive"}

    async def test_what_a_handler_says_comes_first(self, world: World) -> None:
        auth = LitestarAuth(world.authenticator, default=require_interactive())
        opened = Router("/open", route_handlers=[silent], opt=auth.public)
        closed = Router("/closed", route_handlers=[silent], guards=[auth.require("tasks:read")])
        app = application(auth, opened, closed)
        assert await status(app, world, "/open/silent") == 200
        assert await status(app, world, "/closed/silent", "key") == 200


class TestTheMarkOfLitestarsOwnAuthentication:
    @pytest.mark.parametrize("value", [True, False, None, "yes", 1])
    async def test_only_true_is_public(self, world: World, value: Any) -> None:
        auth = LitestarAuth(
            world.authenticator, default=require(), exclude_opt_key="exclude_from_auth"
        )
        router = Router("/", route_handlers=[silent], opt={"exclude_from_auth": value})
        expected = 200 if value is True else 401
        assert await status(application(auth, router), world, "/silent") == expected

    async def test_it_stands_on_the_handler_and_below_a_layer_that_has_it(
        self, world: World
    ) -> None:
        auth = LitestarAuth(
            world.authenticator, default=require(), exclude_opt_key="exclude_from_auth"
        )
        excluded = get("/a", exclude_from_auth=True)(silent.fn)
        included = get("/b", exclude_from_auth=False)(silent.fn)
        router = Router("/r", route_handlers=[included, silent], opt={"exclude_from_auth": True})
        app = application(auth, excluded, router)
        assert await status(app, world, "/a") == 200
        assert await status(app, world, "/r/silent") == 200
        assert await status(app, world, "/r/b") == 401

    async def test_it_means_nothing_unless_it_is_given(self, world: World) -> None:
        auth = LitestarAuth(world.authenticator, default=require())
        app = application(auth, get("/", exclude_from_auth=True)(silent.fn))
        assert await status(app, world, "/") == 401

    async def test_a_guard_below_the_application_counts_more(self, world: World) -> None:
        auth = LitestarAuth(world.authenticator, exclude_opt_key="exclude_from_auth")
        handler = get("/a", guards=[auth.require("tasks:run")], exclude_from_auth=True)(silent.fn)
        below = get("/b", exclude_from_auth=True)(silent.fn)
        router = Router("/r", route_handlers=[below], guards=[auth.require("tasks:run")])
        marked = Router(
            "/m",
            route_handlers=[get("/", guards=[auth.require_interactive()])(silent.fn)],
            opt={"exclude_from_auth": True},
        )
        app = application(auth, handler, router, marked)
        for path in ("/a", "/r/b"):
            assert await status(app, world, path) == 401
            assert await status(app, world, path, "key_read") == 403
            assert await status(app, world, path, "key") == 200
        assert await status(app, world, "/m", "key") == 403
        assert audited(app) == {"/a": "permissions", "/r/b": "permissions", "/m": "interactive"}

    async def test_with_a_guard_of_the_application_too_both_are_demanded(
        self, world: World
    ) -> None:
        auth = LitestarAuth(world.authenticator, exclude_opt_key="exclude_from_auth")
        handler = get("/a", guards=[auth.require("tasks:run")], exclude_from_auth=True)(silent.fn)
        app = application(auth, handler, guards=[auth.require_interactive()])
        assert await status(app, world, "/a") == 401
        assert await status(app, world, "/a", "key") == 403
        assert await status(app, world, "/a", "jwt_bob") == 403
        assert await status(app, world, "/a", "jwt") == 200

    async def test_litestars_own_authentication_leaves_the_routes_of_the_library_alone(
        self, world: World
    ) -> None:
        class KnowsNoKeys(AbstractAuthenticationMiddleware):
            async def authenticate_request(self, connection: Any) -> Any:
                raise NotAuthorizedException

        auth = LitestarAuth(
            world.authenticator,
            exclude_opt_key="exclude_from_auth",
            paths={"/silent": own_guard},
        )
        revocation = auth.revocation_route(throttle=None)
        mine = get("/a", guards=[auth.require("tasks:run")], exclude_from_auth=True)(silent.fn)
        app = application(
            auth, auth.key_routes(), revocation, mine, silent, middleware=[KnowsNoKeys]
        )
        assert await status(app, world, "/api/keys") == 401
        assert await status(app, world, "/api/keys", "key") == 200
        assert await status(app, world, "/a", "key") == 200
        assert await status(app, world, "/a") == 401
        assert await status(app, world, "/silent", "key") == 401
        headers = [(b"content-type", b"application/x-www-form-urlencoded")]
        token = world.names["key"].encode()
        reply = await send(app, "POST", b"/api/revoke", headers, b"token=" + token)
        assert reply.status == 200
        assert await status(app, world, "/a", "key") == 401

    async def test_our_own_word_beside_a_guard_is_an_error(self, world: World) -> None:
        auth = LitestarAuth(world.authenticator, exclude_opt_key="exclude_from_auth")
        handler = get("/", guards=[auth.require()], opt=auth.public)(silent.fn)
        with pytest.raises(ConfigurationError, match="public and guarded"):
            application(auth, handler)


class TestPaths:
    async def test_they_guard_or_open_what_says_nothing(self, world: World, tmp_path: Path) -> None:
        tmp_path.joinpath("a.txt").write_text("in a file")
        auth = LitestarAuth(
            world.authenticator,
            paths={
                "/jobs/*": require_interactive("admin:config"),
                "/files/*": None,
                "/mount": None,
                "/socket": None,
                "/silent": require("tasks:read"),
            },
        )
        files = create_static_files_router("/files", [tmp_path])
        app = application(auth, Jobs, files, mount, silent_socket, silent)
        for path in ("/jobs", "/jobs/queues/a"):
            assert await status(app, world, path) == 401
            assert await status(app, world, path, "key_admin") == 403
            assert await status(app, world, path, "jwt_admin") == 200
        assert (await ask(app, world, "/files/a.txt")).body == b"in a file"
        assert (await ask(app, world, "/mount/deep")).body == b"reached"
        assert await status(app, world, "/silent", "key") == 200
        accept, _ = await connect(app, "/socket", [])
        assert accept["type"] == "websocket.accept"
        found = audited(app)
        assert found["/jobs/queues/{queue:str}"] == "interactive"
        assert found["/files/{file_path:path}"] == found["/socket"] == "public"

    @pytest.mark.parametrize(
        ("entry", "covered"),
        [
            ("/a", {"/a"}),
            ("/a/*", {"/a", "/a/b", "/a/b/c"}),
            ("/a/b", {"/a/b"}),
            ("/a/b/*", {"/a/b", "/a/b/c"}),
            ("/", {"/"}),
            ("/A", set[str]()),
            ("/a.b", {"/a.b"}),
        ],
    )
    async def test_an_entry_is_for_no_more_than_it_says(
        self, world: World, entry: str, covered: set[str]
    ) -> None:
        auth = LitestarAuth(world.authenticator, default=require(), paths={entry: None})
        paths = ["/", "/a", "/a/b", "/a/b/c", "/ab", "/a.b", "/a-b", "/b/a", "/b/a/b"]
        app = application(auth, *(get(path)(silent.fn) for path in paths))
        opened = {path for path in paths if await status(app, world, path) == 200}
        assert opened == covered
        assert {path for path, access in audited(app).items() if access == "public"} == covered

    async def test_the_path_of_a_request_plays_no_part(self, world: World) -> None:
        auth = LitestarAuth(
            world.authenticator, default=require(), paths={"/{name:str}/open": None}
        )
        app = application(auth, get("/{name:str}")(silent.fn), get("/x/open")(silent.fn))
        for path in ("/open", "/x/open", "/{name:str}%2fopen", "/..%2fopen"):
            assert await status(app, world, path) in {401, 404}

    async def test_the_longest_entry_counts(self, world: World) -> None:
        auth = LitestarAuth(
            world.authenticator,
            paths={
                "/a/*": None,
                "/a/b/*": require("tasks:run"),
                "/a/b/c": require_interactive(),
                "/a/b/c/*": None,
            },
        )
        paths = ("/a/x", "/a/b/x", "/a/b/c", "/a/b/c/d")
        app = application(auth, *(get(path)(silent.fn) for path in paths))
        assert audited(app) == {
            "/a/x": "public",
            "/a/b/x": "permissions",
            "/a/b/c": "interactive",
            "/a/b/c/d": "public",
        }

    async def test_a_handler_with_several_paths_has_one_policy(self, world: World) -> None:
        """It is one handler, which knows nothing of the path that a request took."""
        handler = get(["/a", "/b"])(silent.fn)
        layers = Router("/r", route_handlers=[handler])
        for paths in ({"/r/a": None}, {"/r/b": None}, {"/r/a": None, "/r/b": require()}):
            with pytest.raises(ConfigurationError, match="serves /r/a, /r/b, and"):
                application(
                    LitestarAuth(world.authenticator, default=require(), paths=paths), layers
                )
        both = {"/r/a": None, "/r/b": None}
        app = application(LitestarAuth(world.authenticator, paths=both), layers)
        assert await status(app, world, "/r/a") == await status(app, world, "/r/b") == 200

    async def test_the_paths_of_all_layers_count(self, world: World) -> None:
        auth = LitestarAuth(world.authenticator, default=require(), paths={"/v1/r/jobs/*": None})
        app = application(auth, Router("/r", route_handlers=[Jobs, silent]), path="/v1")
        assert await status(app, world, "/v1/r/jobs/queues/a") == 200
        assert await status(app, world, "/v1/r/silent") == 401

    async def test_they_open_nothing_that_has_a_guard(self, world: World) -> None:
        auth = LitestarAuth(world.authenticator, paths={"/r/*": None})
        router = Router("/r", route_handlers=[silent], guards=[auth.require()])
        app = application(auth, router, Router("/r/open", route_handlers=[silent]))
        assert await status(app, world, "/r/silent") == 401
        assert await status(app, world, "/r/open/silent") == 200

    @pytest.mark.parametrize(
        "entry",
        ["", "*", "/*", "//", "/a/", "a", "^/a", "/a*", "/a/**", "/a/*/b", "/.*", "/a//b", None, 1],
    )
    async def test_another_form_is_an_error(self, world: World, entry: Any) -> None:
        with pytest.raises(ConfigurationError, match="in paths is not a path"):
            LitestarAuth(world.authenticator, paths={entry: None})

    @pytest.mark.parametrize("wrong", [False, "public", ["tasks:read"], object()])
    async def test_so_is_something_else_than_a_policy(self, world: World, wrong: Any) -> None:
        with pytest.raises(ConfigurationError, match=r"paths\['/a'\] is not a policy"):
            LitestarAuth(world.authenticator, paths={"/a": wrong})
        with pytest.raises(ConfigurationError, match="default is not a policy"):
            LitestarAuth(world.authenticator, default=wrong)


class TestARootGuard:
    async def test_it_has_public_exceptions(self, world: World) -> None:
        auth = LitestarAuth(
            world.authenticator, paths={"/jobs/*": None}, exclude_opt_key="exclude_from_auth"
        )
        app = application(
            auth,
            silent,
            Jobs,
            mount,
            get("/a", opt=auth.public)(silent.fn),
            get("/b", exclude_from_auth=True)(silent.fn),
            get("/c", guards=[auth.require("tasks:run")])(silent.fn),
            guards=[auth.require_interactive()],
        )
        for path in ("/a", "/b", "/jobs", "/jobs/queues/x"):
            assert await status(app, world, path) == 200
            assert await status(app, world, path, "key_revoked") == 200
            assert (await send(app, "OPTIONS", path.encode())).status == 204
        for path in ("/silent", "/mount/x", "/c"):
            assert await status(app, world, path) == 401
            assert await status(app, world, path, "key") == 403
        assert await status(app, world, "/c", "jwt") == 200
        assert audited(app)["/silent"] == "interactive"

    async def test_a_policy_by_path_adds_to_it(self, world: World) -> None:
        auth = LitestarAuth(world.authenticator, paths={"/silent": require("admin:config")})
        app = application(auth, silent, guards=[auth.require_interactive()])
        assert await status(app, world, "/silent", "key_admin") == 403
        assert await status(app, world, "/silent", "jwt") == 403
        assert await status(app, world, "/silent", "jwt_admin") == 200

    async def test_the_guard_of_a_router_has_no_exceptions(self, world: World) -> None:
        auth = LitestarAuth(world.authenticator)
        router = Router(
            "/r",
            route_handlers=[get("/", opt=auth.public)(silent.fn)],
            guards=[auth.require()],
        )
        with pytest.raises(ConfigurationError, match="public and guarded"):
            application(auth, router)

    async def test_the_same_guard_on_a_handler_is_no_exception(self, world: World) -> None:
        auth = LitestarAuth(world.authenticator)
        guard = auth.require()
        handler = get("/", guards=[guard], opt=auth.public)(silent.fn)
        with pytest.raises(ConfigurationError, match="public and guarded"):
            application(auth, handler, guards=[guard])

    async def test_that_of_another_adapter_is_refused_on_public_handlers_too(
        self, world: World
    ) -> None:
        auth = LitestarAuth(world.authenticator)
        other = LitestarAuth(world.authenticator)
        with pytest.raises(ConfigurationError, match="a different LitestarAuth"):
            application(auth, get("/", opt=auth.public)(silent.fn), guards=[other.require()])


class TestTheConnection:
    async def test_user_and_auth(self, world: World) -> None:
        auth = LitestarAuth(world.authenticator, default=require(), paths={"/open": None})
        seen: list[Any] = []

        async def theirs(connection: Any, _handler: Any) -> None:
            # A guard of the application's own reads what Litestar documents.
            seen.append((connection.user, connection.auth))

        @get("/", guards=[theirs])
        async def handler(request: Request[User, Principal[User], State]) -> str:
            assert request.user is request.auth.owner.user
            return request.user.name

        @get("/open")
        async def opened(request: Request[Any, Any, State]) -> bool:
            return "user" in request.scope or "auth" in request.scope

        app = application(auth, handler, opened)
        assert (await ask(app, world, "/", "key")).body == b"Alice"
        [(user, principal)] = seen
        assert (user.name, principal.owner.id) == ("Alice", "alice")
        assert (await ask(app, world, "/open", "key")).json is False


class TestTheOrderOfPlugins:
    @pytest.mark.parametrize("also_added", [False, True])
    async def test_another_plugin_registers_it(self, world: World, also_added: bool) -> None:
        auth = LitestarAuth(world.authenticator)

        class Core(InitPlugin):
            def on_app_init(self, app_config: AppConfig) -> AppConfig:
                app_config.openapi_config = openapi()
                app_config.route_handlers.append(get("/", guards=[auth.require()])(silent.fn))
                if also_added:
                    app_config.plugins.append(auth)
                return auth.on_app_init(app_config)

        app = Litestar(plugins=[Core()], logging_config=None)
        refused = await ask(app, world, "/")
        assert (refused.status, refused.json["code"]) == (401, "credentials_missing")
        assert await status(app, world, "/", "key") == 200
        assert await status(app, world, "/schema") == 200
        document = (await ask(app, world, "/schema/openapi.json")).json
        assert document["paths"]["/"]["get"]["security"]
        assert "401" in document["paths"]["/"]["get"]["responses"]
        assert document["components"]["securitySchemes"]

    @pytest.mark.parametrize("name", ["middleware", "exception_handlers"])
    async def test_a_plugin_that_replaces_what_it_put_in_is_an_error(
        self, world: World, name: str
    ) -> None:
        auth = LitestarAuth(world.authenticator, default=require())
        values: dict[str, Any] = {"middleware": [], "exception_handlers": {}}

        class Core(InitPlugin):
            def on_app_init(self, app_config: AppConfig) -> AppConfig:
                setattr(app_config, name, values[name])
                return app_config

        with pytest.raises(ConfigurationError, match="A plugin has replaced the middleware"):
            Litestar([silent], plugins=[auth, Core()], logging_config=None)
        app = Litestar([silent], plugins=[Core(), auth], logging_config=None)
        assert await status(app, world, "/silent") == 401

    async def test_two_of_which_another_plugin_calls_one(self, world: World) -> None:
        auth, other = LitestarAuth(world.authenticator), LitestarAuth(world.authenticator)

        class Core(InitPlugin):
            def on_app_init(self, app_config: AppConfig) -> AppConfig:
                return other.on_app_init(app_config)

        with pytest.raises(ConfigurationError, match="several LitestarAuth plugins"):
            Litestar(plugins=[Core(), auth], logging_config=None)
