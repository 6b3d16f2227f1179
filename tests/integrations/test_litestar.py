"""What is Litestar's own: declarations, mounts, generated OPTIONS, injection, OpenAPI, errors."""

# No `from __future__ import annotations`: Litestar reads the annotations of local names.

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest

pytest.importorskip("litestar")

from litestar import (
    Litestar,
    Request,
    Response,
    Router,
    WebSocket,
    asgi,
    get,
    post,
    route,
    websocket,
)
from litestar.config.cors import CORSConfig
from litestar.di import Provide
from litestar.exceptions import (
    ClientException,
    HTTPException,
    InternalServerException,
    NotAuthorizedException,
    NotFoundException,
    ServiceUnavailableException,
    TooManyRequestsException,
    ValidationException,
)
from litestar.handlers import websocket_stream
from litestar.logging import LoggingConfig
from litestar.middleware import ASGIMiddleware
from litestar.openapi.spec import Components, SecurityScheme
from litestar.static_files import create_static_files_router
from litestar.types import ASGIApp, Receive, Scope, Send
from tests.contract.adapter import START, Reply, Surprise, User, World, make_world
from tests.integrations.adapters import send
from tests.integrations.litestar_di import FromQuery, JSONBody, NamedDependency, PathParameter
from tests.integrations.litestar_site import Jobs, mount, openapi, silent, silent_socket
from tests.integrations.test_websockets import connect

from msk_auth import Policy, Principal, require_interactive
from msk_auth.errors import ConfigurationError, NotFound, Problem
from msk_auth.integrations.litestar import LitestarAuth

pytestmark = pytest.mark.anyio

Current = NamedDependency[Principal[User]]


class Site:
    """An adapter, and applications made with it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.auth = LitestarAuth(world.authenticator, errors="all")

    def app(self, *handlers: Any, **more: Any) -> Litestar:
        return Litestar(handlers, plugins=[self.auth], logging_config=None, **more)

    async def ask(
        self, app: Any, method: str, path: str, credential: str | None = None, **more: Any
    ) -> Reply:
        headers = [] if credential is None else self.world.bearer(credential)
        headers += more.pop("headers", [])
        return await send(app, method, path.encode(), headers, **more)

    async def code(
        self, app: Any, method: str, path: str, credential: str | None = None, **more: Any
    ) -> str:
        """The code of the problem in the answer; the status where there is none."""
        reply = await self.ask(app, method, path, credential, **more)
        problem = reply.json if reply.status >= 400 else {}
        return str(problem.get("code", reply.status))


@pytest.fixture
def site(world: World) -> Site:
    return Site(world)


class TestDeclarations:
    """Every handler declares who may use it, or the application does not start."""

    @pytest.mark.parametrize(
        "handler",
        [silent, silent_socket, mount, Jobs],
        ids=["route", "websocket", "mount", "controller"],
    )
    async def test_a_handler_that_declares_nothing_is_an_error(
        self, site: Site, handler: Any
    ) -> None:
        for wrap in (lambda each: each, lambda each: Router("/api", route_handlers=[each])):
            with pytest.raises(
                ConfigurationError,
                match=r"declares no policy\. .*, write LitestarAuth\(…, paths=\{'/",
            ):
                site.app(wrap(handler))
        app = site.app()
        with pytest.raises(ConfigurationError, match="declares no policy"):
            app.register(handler)

    async def test_so_are_static_files(self, site: Site, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="on /files"):
            site.app(create_static_files_router("/files", [tmp_path]))

    async def test_what_is_registered_in_spite_of_the_error_answers_nothing(
        self, site: Site
    ) -> None:
        app = site.app()
        with pytest.raises(ConfigurationError):
            app.register(silent)
        app.asgi_router.construct_routing_trie()
        for credential in (None, "jwt", "jwt_admin"):
            assert (await site.ask(app, "GET", "/silent", credential)).status == 500

    @pytest.mark.parametrize("handler", [silent, Jobs], ids=["route", "controller"])
    async def test_public_is_declared_on_the_handler_or_above_it(
        self, site: Site, handler: Any
    ) -> None:
        app = site.app(Router("/api", route_handlers=[handler], opt=site.auth.public))
        path = "/api/silent" if handler is silent else "/api/jobs"
        for credential in (None, "jwt", "key_revoked"):
            assert (await site.ask(app, "GET", path, credential)).body == b"reached"
        assert (await site.ask(app, "OPTIONS", path)).status == 204

    async def test_a_guard_stands_on_the_handler_or_above_it(self, site: Site) -> None:
        outer = Router(
            "/api", route_handlers=[silent, Jobs], guards=[site.auth.require("tasks:run")]
        )
        app = site.app(Router("/v1", route_handlers=[outer]))
        for path in ("/v1/api/silent", "/v1/api/jobs"):
            assert await site.code(app, "GET", path) == "credentials_missing"
            assert await site.code(app, "GET", path, "jwt_bob") == "permission_denied"
            assert await site.code(app, "GET", path, "key") == "200"

    async def test_guards_of_all_layers_add_up(self, site: Site) -> None:
        @get("/", guards=[site.auth.require("admin:config")])
        async def config() -> None: ...

        app = site.app(config, guards=[site.auth.require_interactive()])
        assert await site.code(app, "GET", "/", "key_admin") == "interactive_required"
        assert await site.code(app, "GET", "/", "jwt") == "permission_denied"
        assert await site.code(app, "GET", "/", "jwt_admin") == "200"
        assert await site.code(app, "GET", "/schema/openapi.json") == "credentials_missing"

    async def test_public_and_guarded(self, site: Site) -> None:
        with pytest.raises(ConfigurationError, match="public and guarded"):
            site.app(get("/", guards=[site.auth.require()], opt=site.auth.public)(silent.fn))

    async def test_guards_of_others_declare_nothing_for_this_adapter(self, site: Site) -> None:
        async def guard(_connection: Any, _handler: Any) -> None: ...

        with pytest.raises(ConfigurationError, match="declares no policy"):
            site.app(get("/", guards=[guard])(silent.fn))

    async def test_the_guard_runs_before_everything_of_the_application(self, site: Site) -> None:
        called: list[str] = []

        class Early(ASGIMiddleware):
            async def handle(
                self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp
            ) -> None:
                called.append("early")
                await next_app(scope, receive, send)

        handler = get("/", guards=[site.auth.require()])(silent.fn)
        app = site.app(handler, middleware=[Early()])
        assert await site.code(app, "GET", "/") == "credentials_missing"
        assert called == []
        assert await site.code(app, "GET", "/", "key") == "200"
        assert called == ["early"]

    @pytest.mark.parametrize("lease", [None, timedelta(seconds=1)], ids=["no lease", "a lease"])
    async def test_changed_headers_are_verified_again(self, lease: timedelta | None) -> None:
        """A middleware must not pass another credential off as the one that was let in."""
        site = Site(make_world(lease=lease))

        class Exchange(ASGIMiddleware):
            async def handle(
                self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp
            ) -> None:
                sent = [value for name, value in scope["headers"] if name == b"x-instead"]
                scope["headers"] = site.world.bearer(sent[0].decode())
                await next_app(scope, receive, send)

        handler = get("/", guards=[site.auth.require("tasks:run")])(silent.fn)
        app = site.app(handler, middleware=[Exchange()])
        for instead, code in (
            ("key", "200"),
            ("key_bob", "permission_denied"),
            ("key_revoked", "key_revoked"),
            ("key", "200"),
            ("key_bob", "permission_denied"),
        ):
            headers = [(b"x-instead", instead.encode())]
            assert await site.code(app, "GET", "/", "key", headers=headers) == code


class TestMethodsAndMounts:
    async def test_generated_options_demand_what_the_path_demands(self, site: Site) -> None:
        @get("/config", guards=[site.auth.require("admin:config")])
        async def read() -> None: ...

        @post("/config", guards=[site.auth.require_interactive()])
        async def write() -> None: ...

        app = site.app(read)
        # Registering a second handler of a path makes the route anew.
        app.register(write)
        assert await site.code(app, "OPTIONS", "/config") == "credentials_missing"
        assert await site.code(app, "OPTIONS", "/config", "key_admin") == "interactive_required"
        assert await site.code(app, "OPTIONS", "/config", "jwt") == "permission_denied"
        assert await site.code(app, "OPTIONS", "/config", "jwt_admin") == "204"

    async def test_options_and_head_of_the_applications_own(self, site: Site) -> None:
        @route("/", http_method=["OPTIONS", "HEAD"], guards=[site.auth.require_interactive()])
        async def handler() -> None: ...

        app = site.app(handler)
        for method in ("OPTIONS", "HEAD"):
            assert (await site.ask(app, method, "/")).status == 401
            assert (await site.ask(app, method, "/", "key_admin")).status == 403

    @pytest.mark.parametrize("logins", [[], [lambda _connection: None]], ids=["none", "logins"])
    async def test_a_preflight_passes_to_the_options_that_litestar_answers(
        self, site: Site, logins: list[Any]
    ) -> None:
        """Browsers send it without credentials (Fetch standard, "CORS-preflight request")."""
        site.auth = LitestarAuth(site.world.authenticator, logins=logins)
        called: list[str] = []

        @get("/read", guards=[site.auth.require("admin:config")])
        async def read() -> None:
            called.append("read")

        class Cors(ASGIMiddleware):
            async def handle(
                self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp
            ) -> None:
                async def send_with_origin(message: Any) -> None:
                    if message["type"] == "http.response.start":
                        message["headers"] += [(b"access-control-allow-origin", b"*")]
                    await send(message)

                await next_app(scope, receive, send_with_origin)

        app = site.app(read, guards=[site.auth.require_interactive()], middleware=[Cors()])
        origin, method = (
            (b"origin", b"https://pages.test"),
            (b"access-control-request-method", b"GET"),
        )
        reply = await site.ask(app, "OPTIONS", "/read", headers=[origin, method])
        assert (reply.status, reply.body) == (204, b"")
        assert reply.header("access-control-allow-origin") == "*"
        # It is no preflight with one of the two, and none with another method.
        for headers in ([], [origin], [method]):
            assert (await site.ask(app, "OPTIONS", "/read", headers=headers)).status == 401
        assert (await site.ask(app, "GET", "/read", headers=[origin, method])).status == 401
        assert called == []

    async def test_a_preflight_passes_nowhere_else(self, site: Site) -> None:
        guard = site.auth.require_interactive()

        @route("/own", http_method=["OPTIONS"], guards=[guard])
        async def own() -> None: ...

        @asgi("/mount", is_mount=True, copy_scope=True, guards=[guard])
        async def mounted(scope: Scope, receive: Receive, send: Send) -> None: ...

        app = site.app(own, mounted)
        headers = [(b"origin", b"https://pages.test"), (b"access-control-request-method", b"GET")]
        for path in ("/own", "/mount", "/mount/deep"):
            assert (await site.ask(app, "OPTIONS", path, headers=headers)).status == 401
            assert (await site.ask(app, "OPTIONS", path, "key", headers=headers)).status == 403

    async def test_a_preflight_is_answered_before_any_route(self, site: Site) -> None:
        handler = get("/", guards=[site.auth.require()])(silent.fn)
        app = site.app(handler, cors_config=CORSConfig(allow_origins=["https://pages.test"]))
        headers = [(b"origin", b"https://pages.test"), (b"access-control-request-method", b"GET")]
        assert (await site.ask(app, "OPTIONS", "/", headers=headers)).status == 204
        refused = await site.ask(app, "GET", "/", headers=headers)
        assert refused.status == 401
        # The page may read why.
        assert refused.header("access-control-allow-origin") == "https://pages.test"

    async def test_a_mounted_application(self, site: Site) -> None:
        @asgi("/inner", is_mount=True, copy_scope=True, guards=[site.auth.require("tasks:run")])
        async def inner(scope: Scope, receive: Receive, send: Send) -> None:
            answer = Response(scope["path"], media_type="text/plain")
            await answer.to_asgi_response(None, Request(scope))(scope, receive, send)

        app = site.app(inner)
        for path in (
            "/inner",
            "/inner/",
            "/inner/deep/down",
            "/inner%2e",
            "/inner//x",
            "/innermost",
        ):
            for method in ("GET", "HEAD", "OPTIONS", "PATCH"):
                assert (await site.ask(app, method, path)).status == 401
                assert (await site.ask(app, method, path, "key_read")).status == 403
        assert (await site.ask(app, "GET", "/inner/deep", "key")).body == b"/deep/"
        start, _ = await connect(app, "/inner/socket", [])
        assert (start["type"], start["status"]) == ("websocket.http.response.start", 401)

    @pytest.mark.parametrize("opens", [False, True], ids=["before", "after"])
    async def test_an_error_of_the_framework_on_a_websocket(self, site: Site, opens: bool) -> None:
        @websocket("/ws", opt=site.auth.public)
        async def handler(socket: WebSocket[Any, Any, Any]) -> None:
            if opens:
                await socket.accept()
            raise NotFoundException

        sent = await connect(site.app(handler), "/ws", [])
        if opens:
            close = {"type": "websocket.close", "code": 1008, "reason": "Not Found"}
            assert sent[1:] == [close]
        else:
            assert [message["type"] for message in sent] == [
                "websocket.http.response.start",
                "websocket.http.response.body",
            ]
            assert sent[0]["status"] == 404

    async def test_a_problem_in_a_stream_of_a_websocket(self, site: Site) -> None:
        @websocket_stream("/ws", opt=site.auth.public)
        async def stream() -> AsyncGenerator[str, None]:
            raise NotFound
            yield "never"

        *_, close = await connect(site.app(stream), "/ws", [])
        assert close == {"type": "websocket.close", "code": 1008, "reason": "not_found"}

    async def test_an_unexpected_exception_on_a_websocket_and_a_close_of_its_own(
        self, site: Site
    ) -> None:
        @websocket("/boom", opt=site.auth.public)
        async def boom(socket: WebSocket[Any, Any, Any]) -> None:
            await socket.accept()
            raise Surprise("swordfish")

        @websocket("/own", opt=site.auth.public)
        async def own(socket: WebSocket[Any, Any, Any]) -> None:
            await socket.accept()
            await socket.close(4500, "mine")

        @websocket("/late", opt=site.auth.public)
        async def late(socket: WebSocket[Any, Any, Any]) -> None:
            await own.fn(socket)
            raise NotFound

        _, close = await connect(site.app(boom), "/boom", [])
        assert (close["code"], "swordfish" in close["reason"]) == (4500, False)
        for path, handler in (("/own", own), ("/late", late)):
            _, close = await connect(site.app(handler), path, [])
            assert (close["code"], close["reason"]) == (4500, "mine")

    async def test_static_files(self, site: Site, tmp_path: Path) -> None:
        tmp_path.joinpath("a.txt").write_text("in a file")
        guards = [site.auth.require_interactive()]
        app = site.app(
            create_static_files_router("/closed", [tmp_path], guards=guards),
            create_static_files_router("/open", [tmp_path], opt=site.auth.public, name="open"),
        )
        for path in (
            "/closed/a.txt",
            "/closed//a.txt",
            "/closed/../closed/a.txt",
            "/closed/no.txt",
        ):
            for method in ("GET", "HEAD"):
                assert (await site.ask(app, method, path)).status == 401
                assert (await site.ask(app, method, path, "key")).status == 403
        assert (await site.ask(app, "GET", "/closed/a.txt", "jwt")).body == b"in a file"
        assert (await site.ask(app, "GET", "/open/a.txt")).body == b"in a file"
        assert await site.code(app, "GET", "/open/no.txt") == "404"

    @pytest.mark.parametrize("path", ["/config/", "//config", "/config//", "/x/../config"])
    async def test_another_spelling_of_a_path_is_no_way_around(self, site: Site, path: str) -> None:
        app = site.app(get("/config", guards=[site.auth.require_interactive()])(silent.fn))
        assert await site.code(app, "GET", path, "key_admin") in {
            "interactive_required",
            "404",
        }

    async def test_a_cached_answer_is_guarded_like_the_first(self, site: Site) -> None:
        app = site.app(get("/", cache=60, guards=[site.auth.require("tasks:run")])(silent.fn))
        assert await site.code(app, "GET", "/", "key") == "200"
        assert await site.code(app, "GET", "/", "key_bob") == "permission_denied"
        assert await site.code(app, "GET", "/") == "credentials_missing"


class TestSetUpsThatCannotWork:
    async def test_a_guard_on_an_application_without_the_plugin_refuses(
        self, site: Site, caplog: pytest.LogCaptureFixture
    ) -> None:
        handler = get("/", guards=[site.auth.require()])(silent.fn)
        app = Litestar([handler, site.auth.key_routes()], logging_config=None)
        for request in ("GET /", "GET /api/keys", "POST /api/keys"):
            method, path = request.split()
            for credential in (None, "jwt", "jwt_admin"):
                assert (await site.ask(app, method, path, credential)).status == 500
        assert "plugins=[auth]" in caplog.text

    async def test_a_guard_of_another_adapter(self, site: Site) -> None:
        other = LitestarAuth(site.world.authenticator)
        for handler in (get("/", guards=[other.require()])(silent.fn), other.key_routes()):
            with pytest.raises(ConfigurationError, match="a guard of a different LitestarAuth"):
                site.app(handler)


class TestThePrincipal:
    async def test_a_handler_without_a_guard_cannot_have_it(
        self, site: Site, caplog: pytest.LogCaptureFixture
    ) -> None:
        @get("/", opt=site.auth.public)
        async def handler(principal: Current) -> str:
            return principal.owner.id

        app = site.app(handler)
        assert await site.code(app, "GET", "/", "jwt") == "500"
        assert "on a route without a guard" in caplog.text

    async def test_it_is_admitted_where_a_guard_has_let_it_pass(self, site: Site) -> None:
        @get("/in", guards=[site.auth.require()])
        async def guarded(request: Request[Any, Any, Any]) -> bool:
            return site.auth.is_admitted(request)

        @get("/own", opt=site.auth.public)
        async def own(request: Request[Any, Any, Any]) -> bool:
            return site.auth.is_admitted(request)

        app = site.app(guarded, own)
        for path, expected in ((b"/in", True), (b"/own", False)):
            assert (await send(app, "GET", path, site.world.bearer("key"))).json is expected

    async def test_a_dependency_of_the_same_name_is_left_alone(self, site: Site) -> None:
        async def mine() -> str:
            return "mine"

        @get("/", guards=[site.auth.require()])
        async def handler(principal: NamedDependency[str]) -> str:
            return principal

        app = site.app(handler, dependencies={"principal": Provide(mine)})
        assert (await site.ask(app, "GET", "/", "jwt")).body == b"mine"

    async def test_a_policy_decided_while_it_runs(self, site: Site) -> None:
        @get("/{permission:str}", opt=site.auth.public)
        async def handler(request: Request[Any, Any, Any]) -> str:
            needed = Policy(frozenset({request.path_params["permission"]}))
            return (await site.auth.admit(request, needed)).user.name

        app = site.app(handler)
        assert await site.code(app, "GET", "/tasks:read") == "credentials_missing"
        assert await site.code(app, "GET", "/tasks:write", "key") == "permission_denied"
        assert (await site.ask(app, "GET", "/tasks:read", "key")).body == b"Alice"

    async def test_times_of_last_use_are_written_before_the_store_closes(self, site: Site) -> None:
        app = site.app(get("/", guards=[site.auth.require()])(silent.fn))
        async with app.lifespan():
            assert await site.code(app, "GET", "/", "key") == "200"
        record = await site.world.store.find(site.world.names["key_id"])
        assert record is not None
        assert record.last_used_at == START


@dataclass
class Task:
    name: str
    priority: int


class TestErrors:
    """Litestar's own errors are problem documents too, and repeat nothing that was sent."""

    async def answer(self, site: Site, error: Exception, **more: Any) -> Reply:
        @get("/", opt=site.auth.public)
        async def handler() -> None:
            raise error

        return await site.ask(site.app(handler, **more), "GET", "/")

    @pytest.mark.parametrize(
        ("error", "status", "members", "headers"),
        [
            (NotFoundException(), 404, {}, {}),
            (NotFoundException("No such task."), 404, {"detail": "No such task."}, {}),
            (NotAuthorizedException(), 401, {}, {}),
            (ClientException("Odd."), 400, {"detail": "Odd."}, {}),
            (ServiceUnavailableException(), 503, {}, {}),
            (InternalServerException("swordfish"), 500, {}, {}),
            (HTTPException(status_code=418), 418, {}, {}),
            (ValueError("swordfish"), 500, {}, {}),
            # A challenge of the application is its own.
            (
                NotAuthorizedException(headers={"WWW-Authenticate": "Digest"}),
                401,
                {},
                {"www-authenticate": "Digest"},
            ),
            (
                TooManyRequestsException(headers={"Retry-After": "7"}, extra={"limit": 3}),
                429,
                {"context": {"limit": 3}},
                {"retry-after": "7"},
            ),
        ],
        ids=repr,
    )
    async def test_of_the_framework(
        self,
        site: Site,
        error: Exception,
        status: int,
        members: dict[str, Any],
        headers: dict[str, str],
    ) -> None:
        reply = await self.answer(site, error)
        assert reply.status == status
        title = reply.json["title"]
        assert reply.json == {"type": "about:blank", "title": title, "status": status, **members}
        headers |= {"content-type": "application/problem+json", "cache-control": "no-store"}
        for name in (*headers, "www-authenticate"):
            assert reply.header(name) == headers.get(name)
        assert b"swordfish" not in reply.body

    @pytest.mark.parametrize(
        ("extra", "errors"),
        [
            (None, [("", "No.")]),
            (
                ["too short", {"key": "x"}],
                [("", "too short"), ("x", "This is not acceptable.")],
            ),
        ],
    )
    async def test_invalid_input_is_a_problem_of_ours(
        self, site: Site, extra: Any, errors: list[tuple[str, str]]
    ) -> None:
        reply = await self.answer(site, ValidationException("No.", extra=extra))
        assert (reply.status, reply.json["code"]) == (422, "input_invalid")
        assert [(each["field"], each["message"]) for each in reply.json["errors"]] == errors

    async def test_what_is_no_error_is_none(self, site: Site) -> None:
        error = HTTPException(status_code=303, headers={"location": "/there"})
        reply = await self.answer(site, error)
        assert (reply.status, reply.header("location"), reply.body) == (303, "/there", b"")

    async def test_a_405_lists_the_allowed_methods_as_litestar_does(self, site: Site) -> None:
        bare = await site.ask(Litestar([get("/")(silent.fn)]), "PUT", "/")
        app = site.app(get("/", opt=site.auth.public)(silent.fn))
        reply = await site.ask(app, "PUT", "/")
        assert (reply.status, reply.json["title"]) == (405, "Method Not Allowed")
        # Litestar names them in versions later than the oldest that is supported.
        allowed, as_litestar = (set((it.header("allow") or "").split(", ")) for it in (reply, bare))
        assert allowed == as_litestar

    @pytest.fixture
    def tasks(self, site: Site) -> Litestar:
        @post("/tasks/{number:int}", guards=[site.auth.require()])
        async def create(
            number: Annotated[int, PathParameter(le=9)],
            data: JSONBody[Task],
            limit: FromQuery[int],
        ) -> None: ...

        return site.app(create)

    @pytest.mark.parametrize(
        ("target", "body", "fields"),
        [
            ("/tasks/1?limit=1", '{"name": "a", "priority": "high"}', ["priority"]),
            ("/tasks/1?limit=1", '{"name": 1, "priority": 1}', ["name"]),
            ("/tasks/1?limit=many", '{"name": "a", "priority": 1}', ["limit"]),
            ("/tasks/10?limit=1", '{"name": "a", "priority": 1}', ["number"]),
            ("/tasks/1?secret=hunter2", '{"name": "a", "priority": 1}', ["limit"]),
            ("/tasks/1?limit=1&secret=hunter2", '{"name": ', [""]),
            ("/tasks/1?limit=1", "\xff", [""]),
        ],
    )
    async def test_invalid_input_names_the_fields(
        self, site: Site, tasks: Litestar, target: str, body: str, fields: list[str]
    ) -> None:
        content = [(b"content-type", b"application/json")]
        sent = {"headers": content, "body": body.encode("latin-1")}
        reply = await site.ask(tasks, "POST", target, "jwt", **sent)
        assert (reply.status, reply.json["code"]) == (422, "input_invalid")
        assert [error["field"] for error in reply.json["errors"]] == fields
        assert all(error["message"] for error in reply.json["errors"])
        assert b"hunter2" not in reply.body
        # Who may not come in learns nothing about the input.
        assert await site.code(tasks, "POST", target, **sent) == "credentials_missing"

    async def test_a_body_that_is_too_large(self, site: Site) -> None:
        @post("/", guards=[site.auth.require()], request_max_body_size=10)
        async def handler(data: JSONBody[dict[str, Any]]) -> None: ...

        content = [(b"content-type", b"application/json")]
        reply = await site.ask(
            site.app(handler), "POST", "/", "jwt", headers=content, body=b" " * 11
        )
        assert reply.status == 413
        assert reply.json == {"type": "about:blank", "title": "Content Too Large", "status": 413}

    @pytest.mark.parametrize("kind", [Problem, HTTPException, Exception, 500, 404])
    async def test_handlers_of_the_application_come_first(self, site: Site, kind: Any) -> None:
        def mine(_request: Request[Any, Any, Any], _error: Exception) -> Response[str]:
            return Response("mine", status_code=499, media_type="text/plain")

        error = {
            Problem: Problem("no"), HTTPException: ClientException(), 404: NotFoundException()
        }.get(kind, ValueError())  # fmt: skip
        reply = await self.answer(site, error, exception_handlers={kind: mine})
        assert (reply.status, reply.body) == (499, b"mine")

    async def test_in_debug_mode_the_developer_sees_the_traceback(self, site: Site) -> None:
        reply = await self.answer(site, ValueError("swordfish"), debug=True)
        assert reply.status == 500
        assert b"swordfish" in reply.body


class TestDocumentation:
    async def document(self, site: Site, app: Litestar) -> dict[str, Any]:
        return (await site.ask(app, "GET", "/schema/openapi.json")).json

    async def test_who_may_read_it(self, site: Site) -> None:
        assert (await site.ask(site.app(), "GET", "/schema")).status == 200
        site.auth = LitestarAuth(
            site.world.authenticator, paths={"/schema/*": require_interactive("admin:config")}
        )
        app = site.app()
        for path in ("/schema", "/schema/openapi.json", "/schema/redoc", "/schema/nowhere"):
            assert await site.code(app, "GET", path) == "credentials_missing"
            assert await site.code(app, "GET", path, "key_admin") == "interactive_required"
            assert await site.code(app, "OPTIONS", path) == "credentials_missing"
        assert (await site.ask(app, "GET", "/schema", "jwt_admin")).status == 200

    async def test_pages_of_the_applications_own_declare_themselves(self, site: Site) -> None:
        with pytest.raises(ConfigurationError, match="on /docs"):
            site.app(openapi_config=openapi(openapi_router=Router("/docs", route_handlers=[])))
        router = Router("/docs", route_handlers=[], guards=[site.auth.require()])
        app = site.app(openapi_config=openapi(openapi_router=router))
        assert await site.code(app, "GET", "/docs/openapi.json") == "credentials_missing"

    async def test_without_any(self, site: Site) -> None:
        app = site.app(openapi_config=None)
        assert await site.code(app, "GET", "/schema") == "404"

    async def test_what_every_operation_demands(self, site: Site) -> None:
        @get("/open", opt=site.auth.public)
        async def public() -> None: ...

        @get(
            ["/a", "/b"],
            guards=[site.auth.require("x", "b"), site.auth.require_interactive("a")],
            security=[{"other": []}],
        )
        async def closed(limit: FromQuery[int]) -> None: ...

        app = site.app(public, closed)
        document = await self.document(site, app)
        assert document["components"]["securitySchemes"].keys() == {"Login"}
        assert "security" not in document["paths"]["/open"]["get"]
        assert "401" not in document["paths"]["/open"]["get"]["responses"]
        for path in ("/a", "/b"):
            operation = document["paths"][path]["get"]
            assert operation["security"] == [{"other": []}, {"Login": ["a", "b", "x"]}]
            assert operation["responses"].keys() == {"200", "400", "401", "403", "422", "503"}
            assert "application/problem+json" in operation["responses"]["422"]["content"]
        assert "Problem" in document["components"]["schemas"]
        assert app.openapi_schema.to_schema() == document

    async def test_settings_of_the_application_stay(self, site: Site) -> None:
        theirs = Components(security_schemes={"other": SecurityScheme(type="apiKey")})
        for components in (theirs, [theirs]):
            config = openapi(components=components, path="/docs")
            app = site.app(site.auth.key_routes(), openapi_config=config)
            document = (await site.ask(app, "GET", "/docs/openapi.json")).json
            assert document["info"]["title"] == "Tasks"
            schemes = {"other", "Login", "ApiKey"}
            assert document["components"]["securitySchemes"].keys() == schemes
            assert config.components is components
            assert config.openapi_router is None


async def test_a_refusal_logs_no_traceback_where_litestar_logs_exceptions(world: World) -> None:
    """ASVS 5.0, 16.2: what the application raises is logged as configured; refusals are answers."""
    logged: list[str] = []

    def note(_logger: Any, _scope: Any, lines: list[str]) -> None:
        logged.append(lines[-1].strip())

    shared = LoggingConfig(
        log_exceptions="always", exception_logging_handler=note, configure_root_logger=False
    )
    auth = LitestarAuth(world.authenticator)

    @get("/me", guards=[auth.require_interactive()])
    async def me() -> None: ...

    class Own(Problem):
        status = 404

    @get("/missing", opt=auth.public)
    async def missing() -> None:
        raise Own

    app = Litestar([me, missing], plugins=[auth], logging_config=shared)
    for headers, status in ([], 401), (world.bearer("key"), 403):
        assert (await send(app, "GET", b"/me", headers)).status == status
    assert logged == []
    assert (await send(app, "GET", b"/missing")).status == 404
    assert len(logged) == 1
    assert shared.disable_stack_trace == set()
