"""The route audit: what it lists, what it refuses, and that nothing is taken for guarded that is not."""

# No `from __future__ import annotations`: FastAPI and Litestar read the annotations of local names.

import functools
import importlib
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("flask")
pytest.importorskip("litestar")

import fastapi.routing
import litestar
from fastapi import APIRouter, Depends, FastAPI, WebSocket
from flask import Blueprint, Flask
from flask.views import MethodView
from litestar import Litestar
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint, WebSocketEndpoint
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Host, Match, Mount, Route, Router, WebSocketRoute
from starlette.staticfiles import StaticFiles
from tests.contract.adapter import make_world

from msk_auth import (
    AsyncAuthenticator,
    Authenticator,
    Owner,
    Principal,
    own_guard,
    require,
    require_interactive,
    require_key,
    require_login,
)
from msk_auth.errors import ConfigurationError
from msk_auth.integrations import AuditedRoute, register_reader
from msk_auth.integrations.fastapi import FastAPIAuth
from msk_auth.integrations.flask import FlaskAuth
from msk_auth.integrations.litestar import LitestarAuth
from msk_auth.integrations.starlette import StarletteAuth
from msk_auth.stores.memory import AsyncMemoryKeyStore, MemoryKeyStore
from msk_auth.testing import audit_routes, list_routes

DOCS = ["/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc"]


async def find_owner(owner_id: str) -> Owner[str]:
    return Owner(owner_id, frozenset(), owner_id)


def authenticator() -> AsyncAuthenticator[str]:
    return AsyncAuthenticator(AsyncMemoryKeyStore(), find_owner=find_owner)


def flask_auth(app: Flask) -> FlaskAuth[str]:
    def find(owner_id: str) -> Owner[str]:
        return Owner(owner_id, frozenset(), owner_id)

    return FlaskAuth(Authenticator(MemoryKeyStore(), find_owner=find), app)


@pytest.fixture
def starlette_auth() -> StarletteAuth[str]:
    return StarletteAuth(authenticator())


@pytest.fixture
def fastapi_auth() -> FastAPIAuth[str]:
    return FastAPIAuth(authenticator())


def bare_fastapi(**more: Any) -> FastAPI:
    return FastAPI(openapi_url=None, **more)


async def ok(request: Request) -> Response:
    return JSONResponse(None)


def policies(report: Any) -> dict[str, str]:
    return {str(route): route.policy for route in report.routes}


def listed(app: object, **more: Any) -> dict[str, str]:
    return policies(list_routes(app, **more))


# One application in every framework (design 5, G6).

SHARED = {
    "GET /public": "public",
    "GET /me": "authenticated",
    "GET /whoami": "any credential",
    "GET /beside": "permissions: tasks:read",
    "GET /tasks": "permissions: tasks:read",
    "POST /tasks/run": "permissions: tasks:run",
    "GET /about/{}": "permissions: tasks:read; resource: task:{task_id}",
    "GET /both": "permissions: tasks:read, tasks:run",
    "GET /admin/config": "interactive; permissions: admin:config",
    "PATCH /admin/config": "interactive; permissions: admin:config",
    "POST /fresh": "interactive; login at most 900 s old",
    "GET /login": "login",
    "GET /key": "API key",
    "POST /hook": "API key; permissions: tasks:run",
    "GET /missing": "authenticated",
    "GET /busy": "public",
    "GET /boom": "public",
    "GET /follow": "authenticated",
    "GET /api/own-keys": "any credential",
    "POST /api/own-keys": "interactive",
    "POST /api/own-keys/{}/revoke": "interactive",
    "GET /again": "authenticated",
    "GET /api/keys": "any credential",
    "POST /api/keys": "interactive",
    "GET /api/keys/{}": "any credential",
    "PATCH /api/keys/{}": "interactive",
    "DELETE /api/keys/{}": "interactive",
    "POST /api/keys/{}/rotate": "interactive",
    "POST /api/keys/{}/revoke": "interactive",
    "GET /api/admin/keys": "interactive; permissions: admin:config; login at most 900 s old",
    "POST /api/admin/keys/revoke": "interactive; permissions: admin:config; login at most 900 s old",
    "POST /api/admin/keys/{}/revoke": "interactive; permissions: admin:config; login at most 900 s old",
}
WEBSOCKETS = {
    "WEBSOCKET /ws": "authenticated",
    "WEBSOCKET /ws/admin": "interactive",
    "WEBSOCKET /ws/missing": "authenticated",
    "WEBSOCKET /ws/talk": "authenticated",
    "WEBSOCKET /ws/watch": "authenticated",
    "WEBSOCKET /ws/again": "authenticated",
}


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["fastapi", "starlette", "flask", "litestar"])
async def test_the_same_application_has_the_same_policies_in_every_framework(name: str) -> None:
    world = make_world()
    module = importlib.import_module(f"tests.integrations.{name}_app")
    built: Any = getattr(module, f"{name}_app")(world.authenticator)
    app = built.app if name == "flask" else built
    own = {
        "fastapi": DOCS,
        "starlette": [],
        "flask": ["/static/<path:filename>"],
        "litestar": [],
    }[name]

    report = audit_routes(app, public=["/public", "/busy", "/boom", *own])

    found = {
        f"{method} {re.sub('[{<].*?[}>]', '{}', route.path)}": route.policy
        for route in report.routes
        for method in (route.methods or ("WEBSOCKET",))
        if method not in {"HEAD", "OPTIONS"} and not route.path.startswith("/schema")
    }
    for path in own:
        found.pop("GET " + re.sub("[{<].*?[}>]", "{}", path))
    assert found == (SHARED if name == "flask" else SHARED | WEBSOCKETS)


# What it refuses.


def test_an_undeclared_route_fails(starlette_auth: StarletteAuth[str]) -> None:
    app = Starlette(routes=[Route("/a", starlette_auth.require()(ok)), Route("/b", ok)])
    with pytest.raises(AssertionError, match=r"GET,HEAD /b: declares no policy") as caught:
        audit_routes(app)
    assert [route.path for route in list_routes(app).undeclared] == ["/b"]
    assert "/a" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "permission", "flagged"),
    [
        ("/api/keys", "tasks:run", True),
        ("/api/apiKeys", "tasks:run", True),
        ("/api/APIKeys", "tasks:run", True),
        ("/tokens/refresh", "tasks:run", True),
        ("/reset-password", "tasks:run", True),
        ("/users/{id}/roles", "tasks:run", True),
        ("/settings", "admin:config", True),
        ("/settings", "users.write", True),
        ("/invitations", "tasks:run", True),
        ("/secrets", "tasks:run", True),
        ("/sessions/{id}", "tasks:run", True),
        ("/tasks/{user_id}", "tasks:run", False),
        ("/keyboards", "monkeys:feed", False),
        ("/tokenizer", "tasks:run", False),
    ],
)
def test_administration_that_lets_keys_pass_is_flagged(
    starlette_auth: StarletteAuth[str], path: str, permission: str, flagged: bool
) -> None:
    guarded = starlette_auth.require(permission)(ok)
    app = Starlette(routes=[Route(path, guarded, methods=["POST"])])
    report = list_routes(app)
    assert bool(report.flagged) is flagged
    assert report.ok is not flagged

    # Reading is not flagged, and neither is what demands a login.
    reading = Starlette(routes=[Route(path, guarded)])
    assert audit_routes(reading).ok
    strict = starlette_auth.require_interactive(permission)(ok)
    assert audit_routes(Starlette(routes=[Route(path, strict, methods=["POST"])])).ok


def test_what_is_public_in_code_is_flagged_until_it_is_accepted_by_name(
    starlette_auth: StarletteAuth[str],
) -> None:
    sign_up = starlette_auth.public(lambda _: Response())
    app = Starlette(routes=[Route("/users", sign_up, methods=["POST"])])
    assert [route.access for route in list_routes(app).flagged] == ["public"]
    assert audit_routes(app, accepted=["POST /users"]).ok
    # Listing it as public means that it was reviewed.
    assert audit_routes(app, public=["/users"]).ok


def test_a_list_entry_without_a_route_fails(starlette_auth: StarletteAuth[str]) -> None:
    guarded = starlette_auth.require()(ok)
    app = Starlette(routes=[Route("/a", guarded), Route("/open", lambda _: Response())])
    report = list_routes(app, public=["/open", "/a", "/gone"], accepted=["/a"])
    # A guarded route is not opened by a list, and not silently listed.
    assert policies(report)["GET,HEAD /a"] == "authenticated"
    assert report.unused == ("/a", "/gone")
    assert "'/gone' is declared, but no route needs it. Remove it." in report.problems


def test_a_method_in_the_list_opens_that_method_only() -> None:
    app = Starlette(routes=[Route("/login", ok, methods=["GET", "POST", "OPTIONS"])])
    report = list_routes(app, public=["GET /login"])
    assert policies(report) == {"GET,HEAD,OPTIONS /login": "public", "POST /login": "undeclared"}


def test_a_path_in_the_list_is_exact() -> None:
    app = Starlette(routes=[Route("/files", ok), Route("/files/secret", ok)])
    assert [route.path for route in list_routes(app, public=["/files"]).undeclared] == [
        "/files/secret"
    ]


def test_what_the_application_guards_itself_is_listed_as_that(
    starlette_auth: StarletteAuth[str],
) -> None:
    app = Starlette(
        routes=[
            Route("/profile", ok, methods=["GET", "POST"]),
            Route("/users", ok, methods=["POST"]),
            Route("/mine", starlette_auth.require("a")(ok)),
        ]
    )
    report = audit_routes(app, own_guard=["/profile", "POST /users"], public=[])
    assert [(str(route), route.access, route.policy) for route in report.routes[:2]] == [
        ("GET,HEAD,POST /profile", "the application's own guard", "the application's own guard"),
        ("POST /users", "the application's own guard", "the application's own guard"),
    ]
    assert report.undeclared == report.flagged == ()

    # It opens only what is named, and never replaces a guard of ours.
    report = list_routes(app, own_guard=["GET /profile", "POST /users", "/mine", "/gone"])
    assert [str(route) for route in report.undeclared] == ["POST /profile"]
    assert report.unused == ("/mine", "/gone")

    report = list_routes(app, own_guard=["/profile", "/users"], public=["/users"])
    assert [str(route) for route in report.flagged] == ["POST /users"]
    assert report.problems == (
        "POST /users: is declared both public and guarded by the application. Remove one of the two.",
    )


# The mark of what the application guards itself.

OWN = "the application's own guard"


@own_guard
async def log_in(request: Request) -> str:
    return ""


def decorated(view: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(view)
    def wrapper(*args: Any, **more: Any) -> Any:
        return view(*args, **more)

    return wrapper


def test_starlette_a_mark_on_an_endpoint_or_a_mount(
    starlette_auth: StarletteAuth[str],
) -> None:
    async def own(request: Request) -> Response:
        return JSONResponse(None)

    async def both(request: Request) -> Response:
        return JSONResponse(None)

    @own_guard
    class Marked(HTTPEndpoint):
        async def get(self, request: Request) -> Response:
            return JSONResponse(None)

        @starlette_auth.require("a")
        async def post(self, request: Request) -> Response:
            return JSONResponse(None)

    own_guard(own)
    app = Starlette(
        routes=[
            Route("/own", own),
            Route("/wrapped", decorated(own)),
            Route("/partial", functools.partial(own)),
            Route("/public", starlette_auth.public(functools.partial(ok))),
            Route("/guarded", starlette_auth.require("a")(own_guard(both))),
            Route("/class", Marked),
            Mount("/files", own_guard(StaticFiles(directory="."))),
            Mount("/other", StaticFiles(directory=".")),
        ]
    )
    assert listed(app) == {
        "GET,HEAD /own": OWN,
        "GET,HEAD /wrapped": OWN,
        "GET,HEAD /partial": OWN,
        "GET,HEAD /public": "public",
        "GET,HEAD /guarded": "permissions: a",
        "GET,HEAD /class": OWN,
        "POST /class": "permissions: a",
        "* /files": OWN,
        "* /other": "undeclared",
    }


def test_fastapi_a_mark_on_what_a_route_depends_on(fastapi_auth: FastAPIAuth[str]) -> None:
    def current_user(name: Annotated[str, Depends(log_in)]) -> str:
        return name

    guarded = APIRouter(prefix="/guarded", dependencies=[Depends(log_in)])
    guarded.get("")(lambda: None)
    guarded.get("/key", dependencies=[fastapi_auth.require("a")])(lambda: None)
    app = bare_fastapi()
    app.get("/me", dependencies=[Depends(current_user)])(lambda: None)
    app.get("/mine")(own_guard(lambda: None))
    app.get("/open")(lambda: None)
    app.include_router(guarded)
    expected = {
        "GET /me": OWN,
        "GET /mine": OWN,
        "GET /open": "undeclared",
        "GET /guarded": OWN,
        "GET /guarded/key": "permissions: a",
    }
    assert listed(app) == expected
    # What a test has replaced guards nothing.
    app.dependency_overrides[log_in] = lambda: ""
    assert listed(app) == expected | {"GET /me": "undeclared", "GET /guarded": "undeclared"}


def test_flask_a_mark_on_a_view_or_what_runs_before_it() -> None:
    app = Flask(__name__, static_folder=None)
    auth = flask_auth(app)
    blueprint = Blueprint("closed", __name__, url_prefix="/closed")
    auth.protect(blueprint)

    @blueprint.before_request
    @own_guard
    def check() -> None: ...

    @app.get("/a")
    @decorated
    @own_guard
    def a() -> str:
        return ""

    @app.get("/b")
    @auth.require("b")
    @own_guard
    def b() -> str:
        return ""

    @app.get("/c")
    def c() -> str:
        return ""

    class Items(MethodView):
        @own_guard
        def get(self) -> str:
            return ""

        def post(self) -> str:
            return ""

    app.add_url_rule("/items", view_func=Items.as_view("items"))
    blueprint.get("/d")(lambda: "")
    # The blueprint is protected, and the mark is a declaration. Without one this is an error.
    app.register_blueprint(blueprint)
    found = listed(app)
    assert found["GET,HEAD,OPTIONS /a"] == OWN
    assert found["GET,HEAD,OPTIONS /b"] == "permissions: b"
    assert found["GET,HEAD,OPTIONS /c"] == "undeclared"
    assert found["GET /items"] == OWN
    assert found["GET,HEAD,OPTIONS /closed/d"] == OWN


def test_litestar_a_mark_on_a_guard_a_handler_or_a_path() -> None:
    @own_guard
    def is_active(_connection: Any, _handler: Any) -> None: ...

    auth = LitestarAuth(authenticator(), paths={"/jobs/*": own_guard, "/health": None})

    async def handler() -> None: ...

    async def marked() -> None: ...

    own_guard(marked)
    under = litestar.Router(
        "/under", route_handlers=[litestar.get("/x")(handler)], guards=[is_active]
    )
    app = Litestar(
        [
            litestar.get("/a", guards=[is_active])(handler),
            litestar.get("/b")(marked),
            own_guard(litestar.get("/above")(handler)),
            litestar.get("/c", guards=[is_active, auth.require("c")])(handler),
            litestar.get("/jobs/x")(handler),
            litestar.get("/health")(handler),
            under,
        ],
        plugins=[auth],
        openapi_config=None,
        logging_config=None,
    )
    assert listed(app) == {
        "GET /a": OWN,
        "OPTIONS /a": OWN,
        "GET /b": OWN,
        "OPTIONS /b": OWN,
        "GET /above": OWN,
        "OPTIONS /above": OWN,
        "GET /c": "permissions: c",
        "OPTIONS /c": "permissions: c",
        "GET /jobs/x": OWN,
        "OPTIONS /jobs/x": OWN,
        "GET /health": "public",
        "OPTIONS /health": "public",
        "GET /under/x": OWN,
        "OPTIONS /under/x": OWN,
    }


def test_litestar_a_mark_takes_nothing_off_a_guard_of_the_application() -> None:
    @own_guard
    def is_active(_connection: Any, _handler: Any) -> None: ...

    async def handler() -> None: ...

    auth = LitestarAuth(authenticator(), paths={"/b": own_guard}, default=own_guard)
    handlers = [litestar.get("/a", guards=[is_active])(handler), litestar.get("/b")(handler)]
    more: dict[str, Any] = {"openapi_config": None, "logging_config": None}
    app = Litestar(handlers, plugins=[auth], guards=[auth.require("a")], **more)
    assert set(listed(app).values()) == {"permissions: a"}
    # Without that guard the default is for what says nothing.
    other = Litestar([litestar.get("/c")(handler)], plugins=[auth], **more)
    assert set(listed(other).values()) == {OWN}


def test_a_mark_beside_public_is_a_contradiction(starlette_auth: StarletteAuth[str]) -> None:
    async def own(request: Request) -> Response:
        return JSONResponse(None)

    app = Starlette(routes=[Route("/own", own_guard(own))])
    assert audit_routes(app).ok
    # A list entry for it is one too many.
    assert list_routes(app, own_guard=["/own"]).unused == ("/own",)
    contradiction = "GET,HEAD /own: is declared both public and guarded by the application. Remove one of the two."
    assert list_routes(app, public=["/own"]).problems == (contradiction,)
    starlette_auth.public(own)
    assert list_routes(app).problems == (contradiction,)


def test_what_takes_no_mark() -> None:
    with pytest.raises(ConfigurationError, match="cannot be marked"):
        own_guard(len)
    assert repr(own_guard) == "own_guard"

    class Guards:
        async def check(self, request: Request) -> Response:
            return JSONResponse(None)

    # A method is marked for all instances.
    own_guard(Guards().check)
    assert listed(Starlette(routes=[Route("/x", Guards().check)])) == {"GET,HEAD /x": OWN}


def test_a_single_text_is_no_list() -> None:
    with pytest.raises(ConfigurationError, match=r"public is a list of paths: write \['/x'\]"):
        audit_routes(Starlette(), public="/x")


@pytest.mark.parametrize("app", [object(), "app", importlib])
def test_what_is_no_application_cannot_be_audited(app: object) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        audit_routes(app)


def test_policies_in_one_line() -> None:
    def shown(*policies: Any) -> str:
        return AuditedRoute("/", ("GET",), "route", "name", policies).policy

    assert shown(require("b", "a"), require("c")) == "permissions: a, b, c"
    old = require_interactive("a", max_age=timedelta(hours=1))
    new = require_interactive(max_age=timedelta(seconds=90))
    assert shown(old, new) == "interactive; permissions: a; login at most 90 s old"
    assert shown(require_key()) == "API key"
    assert shown(require_login("a")) == "login; permissions: a"
    assert shown(require("a"), require_key("b")) == "API key; permissions: a, b"


def test_a_route_for_keys_may_look_like_administration_only_by_name(
    starlette_auth: StarletteAuth[str],
) -> None:
    issue = Route("/tokens", starlette_auth.require_key("tokens:issue")(ok), methods=["POST"])
    app = Starlette(routes=[issue])
    assert "accepts API keys" in list_routes(app).problems[0]
    assert audit_routes(app, accepted=["POST /tokens"]).ok
    other = Route("/tokens", starlette_auth.require_login("tokens:issue")(ok), methods=["POST"])
    assert audit_routes(Starlette(routes=[other])).ok


def test_a_route_that_demands_a_key_and_a_login_lets_nobody_pass(
    starlette_auth: StarletteAuth[str],
) -> None:
    auth = starlette_auth
    for guard, access in (
        (auth.require_login(), "login"),
        (auth.require_interactive(), "interactive"),
    ):
        app = Starlette(routes=[Route("/x", auth.require_key("a")(guard(ok)), methods=["POST"])])
        report = list_routes(app)
        assert report.routes[0].access == access
        assert report.problems == (
            "POST /x: requires an API key and a login, so no request passes. Remove one of the two.",
        )


# Starlette.


def test_starlette_methods_mounts_hosts_and_websockets(
    starlette_auth: StarletteAuth[str], tmp_path: Path
) -> None:
    guard = starlette_auth.require("a")

    class Items(HTTPEndpoint):
        @guard
        async def get(self, request: Request) -> Response:
            return Response()

        async def delete(self, request: Request) -> Response:
            return Response()

    class Feed(WebSocketEndpoint):
        @guard
        async def on_connect(self, websocket: Any) -> None: ...

    class Open(WebSocketEndpoint): ...

    class Raw:
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None: ...

    inner = Starlette(routes=[Route("/x", guard(ok))])
    app = Starlette(
        routes=[
            Route("/items", Items),
            Route("/only-get", Items, methods=["GET"]),
            Route("/partial", functools.partial(guard(ok))),
            Route("/raw", Raw()),
            Route("/raw-guarded", starlette_auth.declare(Raw(), require_interactive())),
            WebSocketRoute("/feed", Feed),
            WebSocketRoute("/open-feed", Open),
            Mount("/app", inner),
            Mount("/list", routes=[Mount("/deep", routes=[Route("/y", ok)])]),
            Mount("/static", StaticFiles(directory=tmp_path)),
            Mount("/assets", starlette_auth.public(StaticFiles(directory=tmp_path))),
            Host("api.example.org", Router([Route("/z", guard(ok))])),
        ]
    )
    assert listed(app) == {
        "GET,HEAD /items": "permissions: a",
        "DELETE /items": "undeclared",
        "GET,HEAD /only-get": "permissions: a",
        "GET,HEAD /partial": "permissions: a",
        "* /raw": "undeclared",
        "* /raw-guarded": "interactive",
        "WEBSOCKET /feed": "permissions: a",
        "WEBSOCKET /open-feed": "undeclared",
        "GET,HEAD /app/x": "permissions: a",
        "GET,HEAD /list/deep/y": "undeclared",
        "* /static": "undeclared",
        "* /assets": "public",
        "GET,HEAD //api.example.org/z": "permissions: a",
    }


def test_what_stands_behind_the_middleware_of_a_mount_is_read(
    starlette_auth: StarletteAuth[str], tmp_path: Path
) -> None:
    zipped = [Middleware(GZipMiddleware)]
    guarded = Starlette(routes=[Route("/x", starlette_auth.require("a")(ok))])
    files = StaticFiles(directory=tmp_path)
    public = starlette_auth.public(StaticFiles(directory=tmp_path))
    mounts: list[BaseRoute] = [
        Mount("/app", guarded, middleware=zipped),
        Mount("/files", files, middleware=zipped),
        Mount("/assets", public, middleware=zipped),
        # Nothing shows that an object of the application serves only what it stands around.
        Mount("/wrapped", GZipMiddleware(guarded)),
    ]
    assert listed(Starlette(routes=mounts)) == {
        "GET,HEAD /app/x": "permissions: a",
        "* /files": "undeclared",
        "* /assets": "public",
        "* /wrapped": "undeclared",
    }


def test_a_decorator_that_hides_a_guard_hides_it_from_the_audit_too(
    starlette_auth: StarletteAuth[str],
) -> None:
    def unwrapped(endpoint: Callable[..., Any]) -> Callable[..., Any]:
        async def answer(request: Request) -> Any:
            return await endpoint(request)

        return answer

    app = Starlette(routes=[Route("/x", unwrapped(starlette_auth.require()(ok)))])
    assert listed(app) == {"GET,HEAD /x": "undeclared"}


def test_routes_of_an_unknown_kind_are_undeclared() -> None:
    class UnknownRoute(BaseRoute):
        def matches(self, scope: Any) -> Any:
            return Match.NONE, {}

    assert listed(Starlette(routes=[UnknownRoute()])) == {"* /": "undeclared"}


def test_what_answers_instead_of_404_is_listed(starlette_auth: StarletteAuth[str]) -> None:
    async def fallback(scope: Any, receive: Any, send: Any) -> None: ...

    assert listed(Router([], default=fallback)) == {"* /…": "undeclared"}
    assert listed(Router([], default=starlette_auth.public(fallback))) == {"* /…": "public"}
    mounted = Starlette(routes=[Mount("/sub", Router([], default=StaticFiles))])
    assert listed(mounted) == {"* /sub/…": "undeclared"}


def test_public_and_guarded_is_a_contradiction(starlette_auth: StarletteAuth[str]) -> None:
    with pytest.raises(ConfigurationError, match="public and guarded"):
        starlette_auth.public(starlette_auth.require()(ok))

    async def view(request: Request) -> Response:
        return Response()

    with pytest.raises(ConfigurationError, match="public and guarded"):
        starlette_auth.require()(starlette_auth.public(view))


# FastAPI.


def test_fastapi_reads_guards_wherever_a_dependency_may_stand(
    fastapi_auth: FastAPIAuth[str],
) -> None:
    auth = fastapi_auth
    Current = Annotated[Principal[str], auth.principal]  # noqa: N806

    def deep(principal: Current) -> None: ...

    app = bare_fastapi()
    inner = APIRouter(dependencies=[auth.require("inner")])
    outer = APIRouter(prefix="/outer")

    @app.get("/parameter")
    def parameter(principal: Current) -> None: ...

    @app.get("/deep", dependencies=[Depends(deep)])
    def nested() -> None: ...

    def load_user(owner_id: Annotated[str, auth.owner_id]) -> str:
        return owner_id

    @app.get("/user")
    def of_user(user: Annotated[str, auth.user("a", "b", load_user=load_user)]) -> None: ...

    @inner.get("/routed")
    def routed() -> None: ...

    @inner.websocket("/ws")
    async def ws(websocket: WebSocket) -> None: ...

    # A router's dependencies do not reach what is Starlette's.
    inner.add_route("/plain", ok)

    @app.post("/open")
    @auth.public
    def opened() -> None: ...

    @app.post("/nothing")
    def nothing() -> None: ...

    outer.include_router(inner, prefix="/inner", dependencies=[auth.require("included")])
    app.include_router(outer)
    found = listed(app)
    # Versions differ in where they serve it.
    assert {found.pop(route) for route in list(found) if route.endswith("/plain")} == {"undeclared"}
    assert found == {
        "GET /parameter": "authenticated",
        "GET /deep": "authenticated",
        "GET /user": "permissions: a, b",
        "GET /outer/inner/routed": "permissions: included, inner",
        "WEBSOCKET /outer/inner/ws": "permissions: included, inner",
        "POST /open": "public",
        "POST /nothing": "undeclared",
    }


def test_fastapi_dependencies_of_the_application_reach_routes_and_nothing_else(
    fastapi_auth: FastAPIAuth[str], tmp_path: Path
) -> None:
    app = FastAPI(dependencies=[fastapi_auth.require("a")])
    app.mount("/static", StaticFiles(directory=tmp_path))

    @app.get("/x")
    def x() -> None: ...

    assert listed(app) == {
        **{f"GET,HEAD {path}": "undeclared" for path in DOCS},
        "* /static": "undeclared",
        "GET /x": "permissions: a",
    }


def test_fastapi_mounts_within_routers_and_applications(fastapi_auth: FastAPIAuth[str]) -> None:
    sub = bare_fastapi()
    sub.get("/x", dependencies=[fastapi_auth.require()])(lambda: None)
    app = bare_fastapi()
    app.mount("/m", Starlette(routes=[Mount("/n", sub)]))
    expected = {"GET /m/n/x"}
    if hasattr(fastapi.routing, "iter_route_contexts"):
        # Older versions leave out what is mounted in a router. And none gives it the router's prefix.
        router = APIRouter(prefix="/r")
        router.mount("/sub", sub)
        router.routes.append(Host("h.example", sub))
        app.include_router(router)
        expected |= {"GET /sub/x", "GET //h.example/x"}
    assert listed(app) == dict.fromkeys(expected, "authenticated")


def test_fastapi_a_guard_that_is_replaced_does_not_count(fastapi_auth: FastAPIAuth[str]) -> None:
    app = bare_fastapi()
    app.get("/x", dependencies=[fastapi_auth.principal])(lambda: None)
    assert listed(app) == {"GET /x": "authenticated"}
    app.dependency_overrides[fastapi_auth.principal.dependency] = lambda: None
    assert listed(app) == {"GET /x": "undeclared"}


def test_fastapi_public_and_guarded_is_flagged(fastapi_auth: FastAPIAuth[str]) -> None:
    app = bare_fastapi(dependencies=[fastapi_auth.principal])

    @app.get("/x")
    @fastapi_auth.public
    def x() -> None: ...

    (route,) = list_routes(app).flagged
    assert route.problems == ("is declared public and guarded as well. Remove one of the two.",)


def test_fastapi_before_included_routers_stayed_together(
    fastapi_auth: FastAPIAuth[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("fastapi.routing.iter_route_contexts", raising=False)
    app = bare_fastapi()
    app.get("/x", dependencies=[fastapi_auth.require("a")])(lambda: None)
    assert listed(app) == {"GET /x": "permissions: a"}


# Flask.


def test_flask_reads_views_blueprints_and_classes() -> None:
    app = Flask(__name__, static_folder=None)
    auth = flask_auth(app)
    closed = Blueprint("closed", __name__, url_prefix="/closed")
    strict = Blueprint("strict", __name__, url_prefix="/strict", subdomain="admin")
    auth.protect(closed, require("a"))
    auth.protect(strict)
    methods = Blueprint("methods", __name__, url_prefix="/methods")
    auth.protect(methods, require("read"), unsafe=require("write"))

    @methods.route("/", methods=["GET", "PUT"])
    def by_method() -> str:
        return ""

    @app.get("/open")
    @auth.public
    def opened() -> str:
        return ""

    @app.get("/nothing")
    def nothing() -> str:
        return ""

    @closed.post("/x")
    @auth.require("b")
    def x() -> str:
        return ""

    strict.add_url_rule("/y", "y", methods=["GET"])

    class Items(MethodView):
        @auth.require("read")
        def get(self) -> str:
            return ""

        def delete(self) -> str:
            return ""

    app.add_url_rule("/items", view_func=Items.as_view("items"))
    app.register_blueprint(closed)
    app.register_blueprint(strict)
    app.register_blueprint(methods)
    # By hand, so that nothing but the audit looks at it.
    app.view_functions["strict.y"] = nothing
    assert listed(app) == {
        "GET,HEAD,OPTIONS /open": "public",
        "GET,HEAD,OPTIONS /nothing": "undeclared",
        "GET,HEAD /items": "permissions: read",
        "DELETE,OPTIONS /items": "undeclared",
        "OPTIONS,POST /closed/x": "permissions: a, b",
        "GET,HEAD,OPTIONS /methods/": "permissions: read",
        "PUT /methods/": "permissions: write",
        "GET,HEAD,OPTIONS //admin/strict/y": "undeclared",
    }


def test_flask_a_guard_above_its_route_protects_nothing() -> None:
    app = Flask(__name__, static_folder=None)
    # An application with its adapter would have refused it at once.
    auth = flask_auth(Flask("another"))

    @auth.require()
    @app.get("/x")
    def x() -> str:
        return ""

    report = list_routes(app)
    assert policies(report) == {"GET,HEAD,OPTIONS /x": "undeclared"}
    assert any("is above the route" in problem for problem in report.problems)


def test_flask_views_that_are_declared_by_their_endpoint() -> None:
    app = Flask(__name__)
    auth = flask_auth(app)
    auth.declare_view(app, "static", None)
    auth.declare_view(app, "swagger", require("docs"))
    app.add_url_rule("/swagger", "swagger", lambda: "")
    assert listed(app) == {
        "GET,HEAD,OPTIONS /static/<path:filename>": "public",
        "GET,HEAD,OPTIONS /swagger": "permissions: docs",
    }


def test_flask_without_the_adapter_and_with_websockets() -> None:
    app = Flask(__name__)
    app.add_url_rule("/ws", "ws", lambda: "", websocket=True)
    assert listed(app) == {
        "GET,HEAD,OPTIONS /static/<path:filename>": "undeclared",
        "WEBSOCKET /ws": "undeclared",
    }


# Litestar.


def test_litestar_reads_layers_websockets_mounts_and_pages() -> None:
    auth = LitestarAuth(authenticator())

    @litestar.get("/x", guards=[auth.require("b")])
    async def x() -> None: ...

    @litestar.post("/open", opt=auth.public)
    async def opened() -> None: ...

    @litestar.websocket("/ws", guards=[auth.require_interactive()])
    async def ws(socket: litestar.WebSocket[Any, Any, Any]) -> None: ...

    @litestar.asgi("/raw", opt=auth.public, copy_scope=True)
    async def raw(scope: Any, receive: Any, send: Any) -> None: ...

    @litestar.asgi("/mounted", is_mount=True, guards=[auth.require()], copy_scope=True)
    async def mounted(scope: Any, receive: Any, send: Any) -> None: ...

    layer = litestar.Router("/layer", route_handlers=[x], guards=[auth.require("a")])
    app = Litestar(
        [layer, opened, ws, raw, mounted], plugins=[auth], openapi_config=None, logging_config=None
    )
    report = audit_routes(app)
    assert policies(report) == {
        "GET /layer/x": "permissions: a, b",
        "OPTIONS /layer/x": "permissions: a, b",
        "OPTIONS /open": "public",
        "POST /open": "public",
        "WEBSOCKET /ws": "interactive",
        "* /raw": "public",
        "* /mounted": "authenticated",
    }
    assert [route.kind for route in report.routes if route.path == "/mounted"] == ["mount"]


def test_litestar_without_the_plugin_is_undeclared() -> None:
    @litestar.get("/x")
    async def x() -> None: ...

    app = Litestar([x], openapi_config=None, logging_config=None)
    assert set(listed(app).values()) == {"undeclared"}
    assert audit_routes(app, public=["GET /x"]).ok
    # Mounted elsewhere it is read as well.
    assert set(listed(Starlette(routes=[Mount("/sub", app)]))) == {
        "GET /sub/x",
        "OPTIONS /sub/x",
    }


def test_an_adapter_registers_its_reader() -> None:
    """A new adapter needs no change here: importing it is enough."""

    class Framework:
        """An application of a framework that is not known."""

    class Application(Framework):
        pass

    with pytest.raises(ConfigurationError, match="cannot be read"):
        list_routes(Application())
    found = AuditedRoute("/x", ("GET",), "route", "x", ())
    register_reader(Framework, lambda _app, _prefix: iter([found]))
    assert list_routes(Application()).routes == (found,)


def test_an_application_whose_adapter_was_not_imported_is_read() -> None:
    program = (
        "from starlette.applications import Starlette\n"
        "from starlette.routing import Route\n"
        "from msk_auth.testing import list_routes\n"
        "app = Starlette(routes=[Route('/x', lambda request: None)])\n"
        "print(*list_routes(app).undeclared)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "GET,HEAD /x\n"


def test_an_endpoint_is_named_as_the_application_knows_it(
    starlette_auth: StarletteAuth[str],
) -> None:

    def make() -> Callable[..., Any]:
        @starlette_auth.require()
        async def tasks(_request: Any) -> Any: ...

        return tasks

    app = Starlette(routes=[Route("/tasks", make()), *starlette_auth.key_routes()])
    names = [route.name for route in list_routes(app).routes]
    assert names[:3] == ["tasks", "list_keys", "create_key"]


@pytest.mark.parametrize(
    ("first", "later", "is_shadowed"),
    [
        (Route("/a/{x}", ok), Route("/a/mine", ok), True),
        (Route("/a", ok), Route("/a", ok), True),
        (Route("/a/{x}", ok), Route("/a/{y}", ok), True),
        (Route("/a/{x:path}", ok), Route("/a/b/{y}", ok), True),
        (Mount("/a", ok), Route("/a/b", ok), True),
        (Mount("/", ok), WebSocketRoute("/b", ok), True),
        (Route("/a/mine", ok), Route("/a/{x}", ok), False),
        (Route("/a/{x}", ok), Route("/a/{y:path}", ok), False),
        (Route("/a/{x:int}", ok), Route("/a/mine", ok), False),
        (Route("/a/{x:int}", ok), Route("/a/{y:int}", ok), True),
        (Route("/a", ok), Route("/a", ok, methods=["POST"]), False),
        (Route("/a", ok), WebSocketRoute("/a", ok), False),
        (Mount("/a", ok), Route("/ab", ok), False),
    ],
)
def test_a_route_that_another_one_shadows_says_so(
    first: Any, later: Any, is_shadowed: bool
) -> None:
    report = list_routes(Starlette(routes=[first, later]))
    found = {route.shadowed_by for route in report.routes}
    assert found == ({None, report.routes[0].path} if is_shadowed else {None})


def test_the_name_of_a_blueprint_makes_no_view_administrative() -> None:
    app = Flask("shop", static_folder=None)
    auth = flask_auth(app)
    blueprint = Blueprint("admin_users", "shop", url_prefix="/orders")
    auth.protect(blueprint, require("orders:write"))
    blueprint.post("/pay")(lambda: "")
    app.register_blueprint(blueprint)
    assert list_routes(app).ok
