"""By default the errors of a framework and of an application stay as they were, byte for byte (G6)."""

# No `from __future__ import annotations`: the frameworks read the annotations of local names.

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.contract.adapter import Surprise, World, make_world
from tests.integrations.adapters import installed, send

from msk_auth.errors import TooManyAttempts

pytestmark = pytest.mark.anyio

Make = Callable[[World | None], Any]


class Own(Exception):
    """An exception that the application answers itself."""


def fastapi_app(world: World | None) -> Any:
    from fastapi import FastAPI, HTTPException
    from fastapi.responses import PlainTextResponse, Response
    from starlette.requests import Request

    from msk_auth.integrations.fastapi import FastAPIAuth

    def own(_request: Request, _error: Exception) -> Response:
        return PlainTextResponse("own", 418)

    app = FastAPI(exception_handlers={Own: own})
    if world is not None:
        FastAPIAuth(world.authenticator).install(app)

    @app.get("/raise/{what}")
    async def fail(what: str) -> None:
        raise {
            "401": HTTPException(401, {"who": "knows"}, {"WWW-Authenticate": "Digest", "X-A": "1"}),
            "404": HTTPException(404, "No such task."),
            "boom": Surprise("the password is swordfish"),
            "own": Own(),
            "problem": TooManyAttempts(3),
            "later": KeyError(),
        }[what]

    @app.get("/number")
    async def number(n: int) -> int:
        return n

    @app.exception_handler(KeyError)
    def later(_request: Request, _error: Exception) -> Response:
        return PlainTextResponse("later", 419)

    return app


def starlette_app(world: World | None) -> Any:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Route

    from msk_auth.integrations.starlette import StarletteAuth

    async def fail(request: Request) -> Response:
        raise {
            "401": HTTPException(401, "Who?", {"WWW-Authenticate": "Digest", "X-A": "1"}),
            "404": HTTPException(404, "No such task."),
            "boom": Surprise("the password is swordfish"),
            "own": Own(),
            "problem": TooManyAttempts(3),
            "later": KeyError(),
        }[request.path_params["what"]]

    def answer(text: str) -> Any:
        return lambda _request, _error: PlainTextResponse(text, 418)

    app = Starlette(routes=[Route("/raise/{what}", fail)], exception_handlers={Own: answer("own")})
    if world is not None:
        StarletteAuth(world.authenticator).install(app)
    app.add_exception_handler(KeyError, answer("later"))
    return app


def litestar_app(world: World | None) -> Any:
    from litestar import Litestar, Request, Response, get
    from litestar.exceptions import HTTPException, NotFoundException
    from tests.integrations.litestar_di import FromPath, FromQuery

    from msk_auth.integrations.litestar import LitestarAuth

    auth = None if world is None else LitestarAuth(world.authenticator)
    public = {} if auth is None else auth.public
    who = HTTPException(
        "Who?", status_code=401, headers={"WWW-Authenticate": "Digest", "X-A": "1"}, extra={"a": 1}
    )

    @get("/raise/{what:str}", opt=public)
    async def fail(what: FromPath[str]) -> None:
        raise {
            "401": who,
            "404": NotFoundException("No such task."),
            "boom": Surprise("the password is swordfish"),
            "own": Own(),
            "problem": TooManyAttempts(3),
            "later": KeyError(),
        }[what]

    @get("/number", opt=public)
    async def number(n: FromQuery[int]) -> int:
        return n

    def own(_request: Request[Any, Any, Any], error: Exception) -> Response[str]:
        return Response(type(error).__name__, status_code=418)

    return Litestar(
        [fail, number],
        plugins=[] if auth is None else [auth],
        exception_handlers={Own: own, KeyError: own},
        logging_config=None,
    )


def flask_app(world: World | None) -> Any:
    from flask import Flask, abort
    from tests.integrations.flask_app import WsgiBridge
    from werkzeug.datastructures import WWWAuthenticate
    from werkzeug.exceptions import Unauthorized

    from msk_auth.integrations.flask import FlaskAuth

    app = Flask(__name__)
    app.register_error_handler(Own, lambda _error: ("own", 418))
    if world is not None:
        FlaskAuth(world.blocking, app)

    @app.get("/raise/<what>")
    def fail(what: str) -> Any:
        if what == "404":
            abort(404, "No such task.")
        raise {
            "401": Unauthorized("Who?", www_authenticate=[WWWAuthenticate("digest")] * 2),
            "boom": Surprise("the password is swordfish"),
            "own": Own(),
            "problem": TooManyAttempts(3),
            "later": KeyError(),
        }[what]

    app.register_error_handler(KeyError, lambda _error: ("later", 419))
    return WsgiBridge(app)


MAKERS: dict[str, Make] = installed(
    fastapi=fastapi_app, starlette=starlette_app, litestar=litestar_app, flask=flask_app
)


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Make:
    return MAKERS[request.param]


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


async def test_a_problem_is_answered(make: Make) -> None:
    reply = await send(make(make_world()), "GET", b"/raise/problem")
    assert (reply.status, reply.json["code"]) == (429, "too_many_attempts")
    assert reply.header("retry-after") == "3"


if "fastapi" in MAKERS:

    async def test_the_document_of_validation_errors_stays_as_it_was() -> None:
        before = (await send(fastapi_app(None), "GET", b"/openapi.json")).json
        after = (await send(fastapi_app(make_world()), "GET", b"/openapi.json")).json
        assert json.dumps(after) == json.dumps(before)
        assert "HTTPValidationError" in json.dumps(after["paths"])
