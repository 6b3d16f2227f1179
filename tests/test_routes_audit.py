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
from tests.cases import case
from tests.contract.adapter import make_world
from tests.integrations.adapters import application
from werkzeug.routing import Rule

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


STARLETTE: StarletteAuth[str] = StarletteAuth(authenticator())
FASTAPI: FastAPIAuth[str] = FastAPIAuth(authenticator())


def bare_fastapi(**more: Any) -> FastAPI:
    return FastAPI(openapi_url=None, **more)


def bare_litestar(*handlers: Any, **more: Any) -> Litestar:
    return Litestar(handlers, openapi_config=None, logging_config=None, **more)


async def ok(request: Request) -> Response:
    return JSONResponse(None)


def policies(report: Any) -> dict[str, str]:
    return {str(route): route.policy for route in report.routes}


def listed(app: object, **more: Any) -> dict[str, str]:
    return policies(list_routes(app, **more))


def check(*rows: tuple[BaseRoute, dict[str, str]]) -> None:
    """Hold what the audit lists to what stands beside each route."""
    assert listed(Starlette(routes=[route for route, _ in rows])) == {
        name: policy for _, listed_as in rows for name, policy in listed_as.items()
    }


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
    "WEBSOCKET /ws/admit": "authenticated",
    "WEBSOCKET /ws/missing": "authenticated",
    "WEBSOCKET /ws/talk": "authenticated",
    "WEBSOCKET /ws/watch": "authenticated",
    "WEBSOCKET /ws/again": "authenticated",
}


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["fastapi", "starlette", "flask", "litestar"])
async def test_the_same_application_has_the_same_policies_in_every_framework(name: str) -> None:
    built = application(name, make_world())
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


def test_an_undeclared_route_fails() -> None:
    app = Starlette(routes=[Route("/a", STARLETTE.require()(ok)), Route("/b", ok)])
    with pytest.raises(AssertionError, match=r"GET,HEAD /b: declares no policy") as caught:
        audit_routes(app)
    assert [route.path for route in list_routes(app).undeclared] == ["/b"]
    assert "/a" not in str(caught.value)


FLAGGED = [
    "/api/keys", "/api/apiKeys", "/api/APIKeys", "/tokens/refresh", "/reset-password", "/users/{id}/roles", "/invitations", "/secrets",
    "/sessions/{id}",
]  # fmt: skip


def test_administration_that_lets_keys_pass_is_flagged() -> None:
    def report(guard: Any, method: str) -> Any:
        return list_routes(Starlette(routes=[Route(path, guard(ok), methods=[method])]))

    for path, permission, flagged in (
        *((path, "tasks:run", True) for path in FLAGGED),
        *(("/settings", permission, True) for permission in ("admin:config", "users.write")),
        *((path, "tasks:run", False) for path in ("/tasks/{user_id}", "/tokenizer")),
        ("/keyboards", "monkeys:feed", False),
    ):
        with case(path, permission):
            guard = STARLETTE.require(permission)
            assert bool(report(guard, "POST").flagged) is flagged
            assert report(guard, "POST").ok is not flagged
            # Reading is not flagged, and neither is what demands a login.
            assert report(guard, "GET").ok
            assert report(STARLETTE.require_interactive(permission), "POST").ok


def test_what_is_public_in_code_is_flagged_until_it_is_accepted_by_name() -> None:
    sign_up = STARLETTE.public(lambda _: Response())
    app = Starlette(routes=[Route("/users", sign_up, methods=["POST"])])
    assert [route.access for route in list_routes(app).flagged] == ["public"]
    assert audit_routes(app, accepted=["POST /users"]).ok
    # Listing it as public means that it was reviewed.
    assert audit_routes(app, public=["/users"]).ok


def test_a_list_entry_without_a_route_fails() -> None:
    guarded = STARLETTE.require()(ok)
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


def test_what_the_application_guards_itself_is_listed_as_that() -> None:
    app = Starlette(
        routes=[
            Route("/profile", ok, methods=["GET", "POST"]),
            Route("/users", ok, methods=["POST"]),
            Route("/mine", STARLETTE.require("a")(ok)),
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


def test_starlette_a_mark_on_an_endpoint_or_a_mount() -> None:
    async def own(request: Request) -> Response:
        return JSONResponse(None)

    async def both(request: Request) -> Response:
        return JSONResponse(None)

    @own_guard
    class Marked(HTTPEndpoint):
        async def get(self, request: Request) -> Response:
            return JSONResponse(None)

        @STARLETTE.require("a")
        async def post(self, request: Request) -> Response:
            return JSONResponse(None)

    own_guard(own)
    guarded = STARLETTE.require("a")(own_guard(both))
    check(
        (Route("/own", own), {"GET,HEAD /own": OWN}),
        (Route("/wrapped", decorated(own)), {"GET,HEAD /wrapped": OWN}),
        (Route("/partial", functools.partial(own)), {"GET,HEAD /partial": OWN}),
        (Route("/guarded", guarded), {"GET,HEAD /guarded": "permissions: a"}),
        (Route("/class", Marked), {"GET,HEAD /class": OWN, "POST /class": "permissions: a"}),
        (Mount("/files", own_guard(StaticFiles(directory="."))), {"* /files": OWN}),
    )


def test_fastapi_a_mark_on_what_a_route_depends_on() -> None:
    def current_user(name: Annotated[str, Depends(log_in)]) -> str:
        return name

    guarded = APIRouter(prefix="/guarded", dependencies=[Depends(log_in)])
    guarded.get("")(lambda: None)
    guarded.get("/key", dependencies=[FASTAPI.require("a")])(lambda: None)
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

    @own_guard
    def own() -> str:
        return ""

    class Items(MethodView):
        get = own

        def post(self) -> str:
            return ""

    app.get("/a", endpoint="a")(decorated(own))
    app.get("/b", endpoint="b")(auth.require("b")(own_guard(lambda: "")))
    app.add_url_rule("/items", view_func=Items.as_view("items"))
    blueprint.get("/d")(lambda: "")
    # The blueprint is protected, and the mark is a declaration. Without one this is an error.
    app.register_blueprint(blueprint)
    assert listed(app) == {
        "GET,HEAD,OPTIONS /a": OWN,
        "GET,HEAD,OPTIONS /b": "permissions: b",
        "GET /items": OWN,
        "HEAD,OPTIONS,POST /items": "undeclared",
        "GET,HEAD,OPTIONS /closed/d": OWN,
    }


def test_litestar_a_mark_on_a_guard_a_handler_or_a_path() -> None:
    @own_guard
    def is_active(_connection: Any, _handler: Any) -> None: ...

    async def handler() -> None: ...

    @own_guard
    async def marked() -> None: ...

    def get(path: str, *guards: Any) -> Any:
        return litestar.get(path, guards=guards)(handler)

    auth = LitestarAuth(authenticator(), paths={"/jobs/*": own_guard, "/health": None})
    under = litestar.Router("/under", route_handlers=[get("/x")], guards=[is_active])
    handlers = [get("/a", is_active), litestar.get("/b")(marked), own_guard(get("/above"))]
    handlers += [get("/c", is_active, auth.require("c")), get("/jobs/x"), get("/health"), under]
    own = ("/a", "/b", "/above", "/jobs/x", "/under/x")
    assert listed(bare_litestar(*handlers, plugins=[auth])) == {
        f"{method} {path}": policy
        for method in ("GET", "OPTIONS")
        for path, policy in (
            dict.fromkeys(own, OWN) | {"/c": "permissions: c", "/health": "public"}
        ).items()
    }

    # A mark takes nothing off a guard of the application, without which the default is for what says nothing.
    auth = LitestarAuth(authenticator(), paths={"/b": own_guard}, default=own_guard)
    app = bare_litestar(get("/a", is_active), get("/b"), plugins=[auth], guards=[auth.require("a")])
    assert set(listed(app).values()) == {"permissions: a"}
    assert set(listed(bare_litestar(get("/c"), plugins=[auth])).values()) == {OWN}


def test_a_mark_beside_public_is_a_contradiction() -> None:
    async def own(request: Request) -> Response:
        return JSONResponse(None)

    app = Starlette(routes=[Route("/own", own_guard(own))])
    assert audit_routes(app).ok
    # A list entry for it is one too many.
    assert list_routes(app, own_guard=["/own"]).unused == ("/own",)
    contradiction = "GET,HEAD /own: is declared both public and guarded by the application. Remove one of the two."
    assert list_routes(app, public=["/own"]).problems == (contradiction,)
    STARLETTE.public(own)
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


def test_a_route_for_keys_may_look_like_administration_only_by_name() -> None:
    issue = Route("/tokens", STARLETTE.require_key("tokens:issue")(ok), methods=["POST"])
    app = Starlette(routes=[issue])
    assert "accepts API keys" in list_routes(app).problems[0]
    assert audit_routes(app, accepted=["POST /tokens"]).ok
    other = Route("/tokens", STARLETTE.require_login("tokens:issue")(ok), methods=["POST"])
    assert audit_routes(Starlette(routes=[other])).ok


def test_a_route_that_demands_a_key_and_a_login_lets_nobody_pass() -> None:
    auth = STARLETTE
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


def test_starlette_methods_mounts_hosts_and_websockets(tmp_path: Path) -> None:
    guard = STARLETTE.require("a")

    class Items(HTTPEndpoint):
        @guard
        async def get(self, request: Request) -> Response:
            return Response()

        async def delete(self, request: Request) -> Response:
            return Response()

        async def query(self, request: Request) -> Response:
            return Response()

    class Feed(WebSocketEndpoint):
        @guard
        async def on_connect(self, websocket: Any) -> None: ...

    class Open(WebSocketEndpoint): ...

    class Raw:
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None: ...

    class UnknownRoute(BaseRoute):
        def matches(self, scope: Any) -> Any:
            return Match.NONE, {}

    async def hides_its_guard(request: Request) -> Any:
        return await guard(ok)(request)

    by_permission, undeclared = "permissions: a", "undeclared"
    inner = Starlette(routes=[Route("/x", guard(ok))])
    raw_guarded = STARLETTE.declare(Raw(), require_interactive())
    files, public = StaticFiles(directory=tmp_path), StaticFiles(directory=tmp_path)
    STARLETTE.public(public)
    zipped = [Middleware(GZipMiddleware)]
    deep = Mount("/list", routes=[Mount("/deep", routes=[Route("/y", ok)])])
    host = Host("api.example.org", Router([Route("/z", guard(ok))]))
    check(
        (
            Route("/items", Items),
            {
                "GET,HEAD /items": by_permission,
                "DELETE /items": undeclared,
                "QUERY /items": undeclared,
            },
        ),
        (Route("/get", Items, methods=["GET"]), {"GET,HEAD /get": by_permission}),
        (Route("/partial", functools.partial(guard(ok))), {"GET,HEAD /partial": by_permission}),
        (Route("/public", STARLETTE.public(functools.partial(ok))), {"GET,HEAD /public": "public"}),
        (Route("/hidden", hides_its_guard), {"GET,HEAD /hidden": undeclared}),
        (Route("/raw", Raw()), {"* /raw": undeclared}),
        (Route("/raw-guarded", raw_guarded), {"* /raw-guarded": "interactive"}),
        (WebSocketRoute("/feed", Feed), {"WEBSOCKET /feed": by_permission}),
        (WebSocketRoute("/open-feed", Open), {"WEBSOCKET /open-feed": undeclared}),
        (UnknownRoute(), {"* /": undeclared}),
        (deep, {"GET,HEAD /list/deep/y": undeclared}),
        (host, {"GET,HEAD //api.example.org/z": by_permission}),
        (Mount("/app", inner), {"GET,HEAD /app/x": by_permission}),
        (Mount("/static", files), {"* /static": undeclared}),
        (Mount("/assets", public), {"* /assets": "public"}),
        # What stands behind the middleware of a mount is read.
        (Mount("/zipped", inner, middleware=zipped), {"GET,HEAD /zipped/x": by_permission}),
        (Mount("/zipped-files", files, middleware=zipped), {"* /zipped-files": undeclared}),
        (Mount("/zipped-assets", public, middleware=zipped), {"* /zipped-assets": "public"}),
        # Nothing shows that an object of the application serves only what it stands around.
        (Mount("/wrapped", GZipMiddleware(inner)), {"* /wrapped": undeclared}),
    )


def test_what_answers_instead_of_404_is_listed() -> None:
    async def fallback(scope: Any, receive: Any, send: Any) -> None: ...

    assert listed(Router([], default=fallback)) == {"* /…": "undeclared"}
    assert listed(Router([], default=STARLETTE.public(fallback))) == {"* /…": "public"}
    mounted = Starlette(routes=[Mount("/sub", Router([], default=StaticFiles))])
    assert listed(mounted) == {"* /sub/…": "undeclared"}


def test_public_and_guarded_is_a_contradiction() -> None:
    with pytest.raises(ConfigurationError, match="public and guarded"):
        STARLETTE.public(STARLETTE.require()(ok))

    async def view(request: Request) -> Response:
        return Response()

    with pytest.raises(ConfigurationError, match="public and guarded"):
        STARLETTE.require()(STARLETTE.public(view))

    @functools.wraps(view)
    async def logged(request: Request) -> Response:
        return await view(request)

    with pytest.raises(ConfigurationError, match="public and guarded"):
        STARLETTE.declare(logged, require_interactive())


def test_starlette_methods_of_a_class_are_public_one_by_one() -> None:
    class Items(HTTPEndpoint):
        @STARLETTE.public
        async def get(self, request: Request) -> Response:
            return Response()

        async def post(self, request: Request) -> Response:
            return Response()

    check((Route("/items", Items), {"GET,HEAD /items": "public", "POST /items": "undeclared"}))
    with pytest.raises(ConfigurationError, match="decorate its methods"):
        STARLETTE.public(Items)


def test_a_declared_policy_adds_to_those_of_the_guards_inside() -> None:
    guarded = STARLETTE.require("tasks:read")(ok)

    @functools.wraps(guarded)
    async def logged(request: Request) -> Response:
        return await guarded(request)

    declared = STARLETTE.declare(logged, require_interactive())
    assert listed(Starlette(routes=[Route("/x", declared)])) == {
        "GET,HEAD /x": "interactive; permissions: tasks:read"
    }


# FastAPI.


def test_fastapi_reads_guards_wherever_a_dependency_may_stand() -> None:
    auth = FASTAPI
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
    tmp_path: Path,
) -> None:
    app = FastAPI(dependencies=[FASTAPI.require("a")])
    app.mount("/static", StaticFiles(directory=tmp_path))

    @app.get("/x")
    def x() -> None: ...

    assert listed(app) == {
        **{f"GET,HEAD {path}": "undeclared" for path in DOCS},
        "* /static": "undeclared",
        "GET /x": "permissions: a",
    }


def test_fastapi_mounts_within_routers_and_applications() -> None:
    sub = bare_fastapi()
    sub.get("/x", dependencies=[FASTAPI.require()])(lambda: None)
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


def test_fastapi_a_guard_that_is_replaced_does_not_count() -> None:
    app = bare_fastapi()
    app.get("/x", dependencies=[FASTAPI.principal])(lambda: None)
    assert listed(app) == {"GET /x": "authenticated"}
    app.dependency_overrides[FASTAPI.principal.dependency] = lambda: None
    assert listed(app) == {"GET /x": "undeclared"}


def test_fastapi_public_and_guarded_is_flagged() -> None:
    app = bare_fastapi(dependencies=[FASTAPI.principal])

    @app.get("/x")
    @FASTAPI.public
    def x() -> None: ...

    (route,) = list_routes(app).flagged
    assert route.problems == ("is declared public and guarded as well. Remove one of the two.",)


def test_fastapi_before_included_routers_stayed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("fastapi.routing.iter_route_contexts", raising=False)
    app = bare_fastapi()
    app.get("/x", dependencies=[FASTAPI.require("a")])(lambda: None)
    assert listed(app) == {"GET /x": "permissions: a"}


# Flask.


def test_flask_reads_views_blueprints_and_classes() -> None:
    app = Flask(__name__)
    auth = flask_auth(app)
    closed = Blueprint("closed", __name__, url_prefix="/closed")
    strict = Blueprint("strict", __name__, url_prefix="/strict", subdomain="admin")
    methods = Blueprint("methods", __name__, url_prefix="/methods")
    auth.protect(closed, require("a"))
    auth.protect(strict)
    auth.protect(methods, require("read"), unsafe=require("write"))

    class Items(MethodView):
        @auth.require("read")
        def get(self) -> str:
            return ""

        def delete(self) -> str:
            return ""

    app.get("/open", endpoint="open")(auth.public(lambda: ""))
    app.add_url_rule("/nothing", "nothing", lambda: "")
    app.add_url_rule("/items", view_func=Items.as_view("items"))
    app.add_url_rule("/swagger", "swagger", lambda: "")
    app.add_url_rule("/ws", "ws", lambda: "", websocket=True)
    methods.add_url_rule("/", "both", lambda: "", methods=["GET", "PUT"])
    closed.post("/x", endpoint="x")(auth.require("b")(lambda: ""))
    strict.add_url_rule("/y", "y", methods=["GET"])
    for blueprint in (closed, strict, methods):
        app.register_blueprint(blueprint)
    # By hand, so that nothing but the audit looks at it.
    app.view_functions["strict.y"] = lambda: ""
    found = {
        "GET,HEAD,OPTIONS /open": "public",
        "GET,HEAD,OPTIONS /nothing": "undeclared",
        "GET,HEAD /items": "permissions: read",
        "DELETE,OPTIONS /items": "undeclared",
        "GET,HEAD,OPTIONS /swagger": "undeclared",
        "WEBSOCKET /ws": "undeclared",
        "OPTIONS,POST /closed/x": "permissions: a, b",
        "GET,HEAD,OPTIONS /methods/": "permissions: read",
        "PUT /methods/": "permissions: write",
        "GET,HEAD,OPTIONS //admin/strict/y": "undeclared",
        "GET,HEAD,OPTIONS /static/<path:filename>": "undeclared",
    }
    assert listed(app) == found
    # Views that are declared by their endpoint.
    auth.declare_view(app, "static", None)
    auth.declare_view(app, "swagger", require("docs"))
    assert listed(app) == found | {
        "GET,HEAD,OPTIONS /static/<path:filename>": "public",
        "GET,HEAD,OPTIONS /swagger": "permissions: docs",
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


def test_flask_a_rule_without_methods_serves_all_of_them() -> None:
    app = Flask(__name__, static_folder=None)
    auth = flask_auth(app)
    app.url_map.add(Rule("/open", endpoint="open"))
    app.endpoint("open")(lambda: "")
    app.url_map.add(Rule("/guarded", endpoint="guarded"))
    app.endpoint("guarded")(auth.require("a")(lambda: ""))
    assert app.test_client().post("/open").status_code == 200
    assert listed(app, public=["GET /open"]) == {
        "GET /open": "public",
        "* /open": "undeclared",
        "*,GET /guarded": "permissions: a",
    }


def test_flask_a_rule_that_only_builds_addresses_is_no_route() -> None:
    app = Flask(__name__, static_folder=None)
    app.add_url_rule("/files/<name>", "cdn", build_only=True)
    app.add_url_rule("/forgotten", "forgotten")
    assert listed(app) == {"GET,HEAD,OPTIONS /forgotten": "undeclared"}


def test_flask_without_the_adapter() -> None:
    app = Flask(__name__)
    assert listed(app) == {"GET,HEAD,OPTIONS /static/<path:filename>": "undeclared"}


# Litestar.


def test_litestar_reads_layers_websockets_mounts_and_pages() -> None:
    auth = LitestarAuth(authenticator())

    async def answer() -> None: ...

    async def raw(scope: Any, receive: Any, send: Any) -> None: ...

    @litestar.websocket("/ws", guards=[auth.require_interactive()])
    async def ws(socket: litestar.WebSocket[Any, Any, Any]) -> None: ...

    x = litestar.get("/x", guards=[auth.require("b")])(answer)
    layer = litestar.Router("/layer", route_handlers=[x], guards=[auth.require("a")])
    opened = litestar.post("/open", opt=auth.public)(answer)
    public = litestar.asgi("/raw", opt=auth.public, copy_scope=True)(raw)
    guards = [auth.require()]
    mounted = litestar.asgi("/mounted", is_mount=True, guards=guards, copy_scope=True)(raw)
    report = audit_routes(bare_litestar(layer, opened, ws, public, mounted, plugins=[auth]))
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

    app = bare_litestar(x)
    assert set(listed(app).values()) == {"undeclared"}
    assert audit_routes(app, public=["GET /x"]).ok
    # Mounted elsewhere it is read as well.
    assert set(listed(Starlette(routes=[Mount("/sub", app)]))) == {"GET /sub/x", "OPTIONS /sub/x"}


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


def test_an_endpoint_is_named_as_the_application_knows_it() -> None:

    def make() -> Callable[..., Any]:
        @STARLETTE.require()
        async def tasks(_request: Any) -> Any: ...

        return tasks

    app = Starlette(routes=[Route("/tasks", make()), *STARLETTE.key_routes()])
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
