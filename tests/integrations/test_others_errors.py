"""The errors of a framework and of an application, and refusals beside them (G6).

By default the errors of others stay as they were, byte for byte. With `errors="http"` a refusal is answered as the framework
answers an HTTP error of its own.
"""

# No `from __future__ import annotations`: the frameworks read the annotations of local names.

from collections.abc import Callable
from typing import Any, Literal

import pytest
from tests.contract.adapter import Surprise, World, make_world
from tests.integrations.adapters import installed, send

from msk_auth.errors import InputInvalid, Problem, TooManyAttempts

pytestmark = pytest.mark.anyio

Errors = Literal["problems", "http"]
Make = Callable[..., Any]
"""Makes an application: without the library where there is no world; with guarded routes, and with a handler of HTTP errors, of
all of them or of 403 only, where refusals are HTTP errors."""


class Own(Exception):
    """An exception that the application answers itself."""


class Odd(Problem):
    """One that the frameworks have no class for."""

    status = 452
    code = "odd"
    title = "Odd"
    default_detail = "This is odd."


class Broken(Problem):
    """One of the application's own that is an error of the server."""


RAISED: dict[str, Exception] = {
    "boom": Surprise("the password is swordfish"),
    "own": Own(),
    "later": KeyError(),
    "many": TooManyAttempts(3),
    "invalid": InputInvalid.of("name", "It is too long."),
    "odd": Odd(),
    "broken": Broken(),
}
DIGEST = {"WWW-Authenticate": "Digest", "X-A": "1"}


def fastapi_app(
    world: World | None, errors: Errors = "problems", handled: str | None = None
) -> Any:
    from fastapi import FastAPI, HTTPException
    from fastapi.responses import JSONResponse, PlainTextResponse, Response
    from starlette.exceptions import HTTPException as StarletteHTTPException
    from starlette.requests import Request

    from msk_auth.integrations.fastapi import FastAPIAuth

    def own(_request: Request, _error: Exception) -> Response:
        return PlainTextResponse("own", 418)

    def on_error(_request: Request, error: Any) -> Response:
        code = getattr(error.__cause__, "code", None)
        return JSONResponse({"message": error.detail, "code": code}, error.status_code)

    app = FastAPI(exception_handlers={Own: own})
    auth = None if world is None else FastAPIAuth(world.authenticator)
    if auth is not None:
        auth.install(app, errors=errors)
    raised = RAISED | {
        "401": HTTPException(401, {"who": "knows"}, DIGEST),
        "404": HTTPException(404, "No such task."),
    }

    @app.get("/raise/{what}")
    async def fail(what: str) -> None:
        raise raised[what]

    @app.get("/number")
    async def number(n: int) -> int:
        return n

    if auth is not None and errors == "http":
        app.get("/read", dependencies=[auth.require("tasks:read")])(lambda: "read")
        app.include_router(auth.key_routes())
    if handled is not None:
        app.add_exception_handler(StarletteHTTPException if handled == "all" else 403, on_error)
    app.add_exception_handler(KeyError, lambda _request, _error: PlainTextResponse("later", 419))
    return app


def starlette_app(
    world: World | None, errors: Errors = "problems", handled: str | None = None
) -> Any:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route

    from msk_auth.integrations.starlette import StarletteAuth

    raised = RAISED | {
        "401": HTTPException(401, "Who?", DIGEST),
        "404": HTTPException(404, "No such task."),
    }

    async def fail(request: Request) -> Response:
        raise raised[request.path_params["what"]]

    async def read(_request: Request) -> Response:
        return JSONResponse(None)

    async def on_error(_request: Request, error: Any) -> Response:
        code = getattr(error.__cause__, "code", None)
        return JSONResponse({"message": error.detail, "code": code}, error.status_code)

    handlers: dict[Any, Any] = {Own: lambda _request, _error: PlainTextResponse("own", 418)}
    if handled is not None:
        handlers[HTTPException if handled == "all" else 403] = on_error
    routes: list[Any] = [Route("/raise/{what}", fail)]
    auth = None if world is None else StarletteAuth(world.authenticator)
    if auth is not None and errors == "http":
        routes += [Route("/read", auth.require("tasks:read")(read)), *auth.key_routes()]
    app = Starlette(routes=routes, exception_handlers=handlers)
    if auth is not None:
        auth.install(app, errors=errors)
    app.add_exception_handler(KeyError, lambda _request, _error: PlainTextResponse("later", 418))
    return app


def litestar_app(
    world: World | None, errors: Errors = "problems", handled: str | None = None
) -> Any:
    from litestar import Litestar, Request, Response, get
    from litestar.exceptions import HTTPException, NotFoundException, PermissionDeniedException
    from tests.integrations.litestar_di import FromPath, FromQuery

    from msk_auth.integrations.litestar import LitestarAuth

    auth = None if world is None else LitestarAuth(world.authenticator, errors=errors)
    public = {} if auth is None else auth.public
    raised = RAISED | {
        "401": HTTPException("Who?", status_code=401, headers=DIGEST, extra={"a": 1}),
        "404": NotFoundException("No such task."),
    }

    @get("/raise/{what:str}", opt=public)
    async def fail(what: FromPath[str]) -> None:
        raise raised[what]

    @get("/number", opt=public)
    async def number(n: FromQuery[int]) -> int:
        return n

    def own(_request: Request[Any, Any, Any], error: Exception) -> Response[str]:
        return Response(type(error).__name__, status_code=418)

    def on_error(_request: Request[Any, Any, Any], error: Any) -> Response[Any]:
        code = getattr(error.__cause__, "code", None)
        content = {"message": error.detail, "code": code}
        return Response(content, status_code=error.status_code, media_type="application/json")

    handlers: dict[Any, Any] = {Own: own, KeyError: own}
    if handled is not None:
        handlers[HTTPException if handled == "all" else PermissionDeniedException] = on_error
    routes: list[Any] = [fail, number]
    if auth is not None and errors == "http":

        @get("/read", guards=[auth.require("tasks:read")])
        async def read() -> str:
            return "read"

        routes += [read, auth.key_routes()]
    plugins = [] if auth is None else [auth]
    return Litestar(routes, plugins=plugins, exception_handlers=handlers, logging_config=None)


def flask_app(world: World | None, errors: Errors = "problems", handled: str | None = None) -> Any:
    from flask import Flask, abort, jsonify
    from tests.integrations.flask_app import WsgiBridge
    from werkzeug.datastructures import WWWAuthenticate
    from werkzeug.exceptions import HTTPException, Unauthorized

    from msk_auth.integrations.flask import FlaskAuth

    app = Flask(__name__)
    app.register_error_handler(Own, lambda _error: ("own", 418))
    auth = None if world is None else FlaskAuth(world.blocking, app, errors=errors)
    raised = RAISED | {
        "401": Unauthorized("Who?", www_authenticate=[WWWAuthenticate("digest")] * 2),
    }

    @app.get("/raise/<what>")
    def fail(what: str) -> Any:
        if what == "404":
            abort(404, "No such task.")
        raise raised[what]

    def on_error(error: Any) -> Any:
        code = getattr(error.__cause__, "code", None)
        return jsonify(message=error.description, code=code), error.code

    if auth is not None and errors == "http":
        app.add_url_rule("/read", "read", auth.require("tasks:read")(lambda: ""))
        app.register_blueprint(auth.key_routes())
    if handled is not None:
        app.register_error_handler(HTTPException if handled == "all" else 403, on_error)
    app.register_error_handler(KeyError, lambda _error: ("later", 419))
    return WsgiBridge(app)


MAKERS: dict[str, Make] = installed(
    fastapi=fastapi_app, starlette=starlette_app, litestar=litestar_app, flask=flask_app
)


@pytest.fixture(params=MAKERS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(name: str) -> Make:
    return MAKERS[name]


# As they were.


@pytest.mark.parametrize(
    "request_line",
    [
        "GET /nowhere",
        "DELETE /raise/404",
        "GET /raise/401",
        "GET /raise/404",
        "GET /raise/boom",
        "GET /raise/own",
        "GET /raise/later",
        "GET /number?n=x",
    ],
)
async def test_what_others_raise_stays_as_it_was(make: Make, request_line: str) -> None:
    method, _, target = request_line.partition(" ")
    before = await send(make(None), method, target.encode())
    after = await send(make(make_world()), method, target.encode())
    assert before.status >= 400
    assert (after.status, after.body) == (before.status, before.body)
    assert sorted(after.raw_headers) == sorted(before.raw_headers)


async def test_a_problem_is_answered(make: Make, world: World) -> None:
    reply = await send(make(world), "GET", b"/raise/many")
    assert (reply.status, reply.json["code"]) == (429, "too_many_attempts")
    assert reply.header("retry-after") == "3"


# With `errors="http"`.


async def test_the_handler_of_the_application_answers(make: Make, world: World) -> None:
    app = make(world, "http", "all")
    missing = await send(app, "GET", b"/read")
    assert (missing.status, missing.json["code"]) == (401, "credentials_missing")
    assert missing.json["message"].startswith("Send an API key")
    # The handler has forgotten the headers.
    assert missing.header("www-authenticate") == 'Bearer realm="api"'
    assert missing.header("cache-control") == "no-store"
    denied = await send(app, "GET", b"/read", world.bearer("key_nothing"))
    assert (denied.status, denied.json["code"]) == (403, "permission_denied")
    assert 'scope="tasks:read"' in (denied.header("www-authenticate") or "")
    unknown = await send(app, "GET", b"/api/keys/AAAAAAAAAAAA", world.bearer("jwt"))
    assert (unknown.status, unknown.json["code"]) == (404, "key_not_found")
    many = await send(app, "GET", b"/raise/many")
    assert (many.status, many.json["code"]) == (429, "too_many_attempts")
    assert many.header("retry-after") == "3"
    for what, status in (("invalid", 422), ("odd", 452)):
        reply = await send(app, "GET", f"/raise/{what}".encode())
        assert (reply.status, reply.json["message"]) == (status, str(RAISED[what]))


async def test_one_for_a_single_status_answers_that(name: str, make: Make, world: World) -> None:
    app = make(world, "http", "403")
    denied = await send(app, "GET", b"/read", world.bearer("key_nothing"))
    assert (denied.status, denied.json["code"]) == (403, "permission_denied")
    missing = await send(app, "GET", b"/read")
    assert missing.status == 401
    assert b"credentials_missing" not in missing.body or name == "litestar"


MANY = TooManyAttempts(3).detail
DEFAULTS: dict[str, Callable[[Any], bool]] = {
    "fastapi": lambda reply: reply.json == {"detail": MANY},
    "starlette": lambda reply: reply.body.decode() == MANY,
    "litestar": lambda reply: (
        reply.json == {"status_code": 429, "detail": MANY, "extra": {"code": "too_many_attempts"}}
    ),
    "flask": lambda reply: f"<p>{MANY}</p>" in reply.body.decode(),
}


async def test_without_a_handler_the_framework_answers(name: str, make: Make, world: World) -> None:
    app = make(world, "http")
    reply = await send(app, "GET", b"/raise/many")
    assert (reply.status, reply.header("retry-after")) == (429, "3")
    assert DEFAULTS[name](reply)
    assert (await send(app, "GET", b"/raise/broken")).status == 500
    assert (await send(app, "GET", b"/read", world.bearer("key"))).status == 200


DOCUMENTS = {"fastapi": b"/openapi.json", "litestar": b"/schema/openapi.json"}


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name in MAKERS])
async def test_the_document_names_no_form_of_problems(name: str, make: Make, world: World) -> None:
    document = (await send(make(world, "http"), "GET", DOCUMENTS[name])).json
    assert "problem+json" not in str(document)
    refused = document["paths"]["/read"]["get"]["responses"]["401"]
    assert set(refused) == {"description", "headers"}
    created = document["paths"]["/api/keys"]["post"]["responses"]["201"]
    assert "application/json" in created["content"]
