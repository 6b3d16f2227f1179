"""With `errors="http"` a refusal is answered as the framework answers an HTTP error of its own (G6 leaves errors alone)."""

# No `from __future__ import annotations`: the frameworks read the annotations of local names.

from collections.abc import Callable
from typing import Any

import pytest
from tests.contract.adapter import World, make_world
from tests.integrations.adapters import installed, send

from msk_auth.errors import InputInvalid, Problem, TooManyAttempts

pytestmark = pytest.mark.anyio

Make = Callable[[World, str | None], Any]
"""Makes an application, with no handler for HTTP errors, with one for all of them, or with one for 403 only."""


class Odd(Problem):
    """One that the frameworks have no class for."""

    status = 452
    code = "odd"
    title = "Odd"
    default_detail = "This is odd."


class Broken(Problem):
    """One of the application's own that is an error of the server."""


RAISED: dict[str, Problem] = {
    "many": TooManyAttempts(3),
    "invalid": InputInvalid.of("name", "It is too long."),
    "odd": Odd(),
    "broken": Broken(),
}


def fastapi_app(world: World, handled: str | None) -> Any:
    from fastapi import FastAPI
    from fastapi.responses import JSONResponse
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import Response

    from msk_auth.integrations.fastapi import FastAPIAuth

    auth = FastAPIAuth(world.authenticator)
    app = auth.install(FastAPI(), errors="http")

    @app.get("/read", dependencies=[auth.require("tasks:read")])
    async def read() -> str:
        return "read"

    @app.get("/raise/{what}")
    async def fail(what: str) -> None:
        raise RAISED[what]

    app.include_router(auth.key_routes())

    def on_error(_request: Request, error: Any) -> Response:
        code = getattr(error.__cause__, "code", None)
        return JSONResponse({"message": error.detail, "code": code}, error.status_code)

    if handled is not None:
        app.add_exception_handler(HTTPException if handled == "all" else 403, on_error)
    return app


def starlette_app(world: World, handled: str | None) -> Any:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    from msk_auth.integrations.starlette import StarletteAuth

    auth = StarletteAuth(world.authenticator)

    @auth.require("tasks:read")
    async def read(_request: Request) -> Response:
        return JSONResponse(None)

    async def fail(request: Request) -> Response:
        raise RAISED[request.path_params["what"]]

    async def on_error(_request: Request, error: Any) -> Response:
        code = getattr(error.__cause__, "code", None)
        return JSONResponse({"message": error.detail, "code": code}, error.status_code)

    handlers = {} if handled is None else {HTTPException if handled == "all" else 403: on_error}
    routes = [Route("/read", read), Route("/raise/{what}", fail), *auth.key_routes()]
    app = Starlette(routes=routes, exception_handlers=handlers)
    return auth.install(app, errors="http")


def litestar_app(world: World, handled: str | None) -> Any:
    from litestar import Litestar, Request, Response, get
    from litestar.exceptions import HTTPException, PermissionDeniedException
    from tests.integrations.litestar_di import FromPath

    from msk_auth.integrations.litestar import LitestarAuth

    auth = LitestarAuth(world.authenticator, errors="http")

    @get("/read", guards=[auth.require("tasks:read")])
    async def read() -> str:
        return "read"

    @get("/raise/{what:str}", opt=auth.public)
    async def fail(what: FromPath[str]) -> None:
        raise RAISED[what]

    def on_error(_request: Request[Any, Any, Any], error: Any) -> Response[Any]:
        code = getattr(error.__cause__, "code", None)
        content = {"message": error.detail, "code": code}
        return Response(content, status_code=error.status_code, media_type="application/json")

    kind = HTTPException if handled == "all" else PermissionDeniedException
    return Litestar(
        [read, fail, auth.key_routes()],
        plugins=[auth],
        exception_handlers={} if handled is None else {kind: on_error},
        logging_config=None,
    )


def flask_app(world: World, handled: str | None) -> Any:
    from flask import Flask, jsonify
    from tests.integrations.flask_app import WsgiBridge
    from werkzeug.exceptions import HTTPException

    from msk_auth.integrations.flask import FlaskAuth

    app = Flask(__name__)
    auth = FlaskAuth(world.blocking, app, errors="http")

    @app.get("/read")
    @auth.require("tasks:read")
    def read() -> str:
        return ""

    @app.get("/raise/<what>")
    def fail(what: str) -> str:
        raise RAISED[what]

    app.register_blueprint(auth.key_routes())

    def on_error(error: Any) -> Any:
        code = getattr(error.__cause__, "code", None)
        return jsonify(message=error.description, code=code), error.code

    if handled is not None:
        app.register_error_handler(HTTPException if handled == "all" else 403, on_error)
    return WsgiBridge(app)


MAKERS: dict[str, Make] = installed(
    fastapi=fastapi_app, starlette=starlette_app, litestar=litestar_app, flask=flask_app
)
NAMES = sorted(MAKERS)


@pytest.fixture
async def world() -> World:
    return make_world()


@pytest.mark.parametrize("name", NAMES)
async def test_the_handler_of_the_application_answers(name: str, world: World) -> None:
    app = MAKERS[name](world, "all")
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
        assert (reply.status, reply.json["message"]) == (status, RAISED[what].detail)


@pytest.mark.parametrize("name", NAMES)
async def test_one_for_a_single_status_answers_that(name: str, world: World) -> None:
    app = MAKERS[name](world, "403")
    denied = await send(app, "GET", b"/read", world.bearer("key_nothing"))
    assert (denied.status, denied.json["code"]) == (403, "permission_denied")
    missing = await send(app, "GET", b"/read")
    assert missing.status == 401
    assert b"credentials_missing" not in missing.body or name == "litestar"


DEFAULTS: dict[str, Callable[[Any], bool]] = {
    "fastapi": lambda reply: reply.json == {"detail": TooManyAttempts(3).detail},
    "starlette": lambda reply: reply.body.decode() == TooManyAttempts(3).detail,
    "litestar": lambda reply: (
        reply.json
        == {
            "status_code": 429,
            "detail": TooManyAttempts(3).detail,
            "extra": {"code": "too_many_attempts"},
        }
    ),
    "flask": lambda reply: f"<p>{TooManyAttempts(3).detail}</p>" in reply.body.decode(),
}


@pytest.mark.parametrize("name", NAMES)
async def test_without_a_handler_the_framework_answers(name: str, world: World) -> None:
    app = MAKERS[name](world, None)
    reply = await send(app, "GET", b"/raise/many")
    assert (reply.status, reply.header("retry-after")) == (429, "3")
    assert DEFAULTS[name](reply)
    assert (await send(app, "GET", b"/raise/broken")).status == 500
    assert (await send(app, "GET", b"/read", world.bearer("key"))).status == 200


@pytest.mark.parametrize("name", [name for name in NAMES if name in {"fastapi", "litestar"}])
async def test_the_document_names_no_form_of_problems(name: str, world: World) -> None:
    path = {"fastapi": b"/openapi.json", "litestar": b"/schema/openapi.json"}[name]
    document = (await send(MAKERS[name](world, None), "GET", path)).json
    assert "problem+json" not in str(document)
    refused = document["paths"]["/read"]["get"]["responses"]["401"]
    assert set(refused) == {"description", "headers"}
    created = document["paths"]["/api/keys"]["post"]["responses"]["201"]
    assert "application/json" in created["content"]
