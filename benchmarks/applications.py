"""One route in each framework, guarded in one of four ways: not at all, by a hand-written dictionary, by a hand-written
dictionary that holds no keys, by this library.

The dictionary is what people write by hand, as short as it gets in each framework, and it answers as it should: it
reads the scheme without regard to case, and refuses with 401 and a challenge. The one that holds no keys is the least
that code can do that finds keys by a keyed digest and compares in constant time.
"""

# No `from __future__ import annotations`: FastAPI and Litestar read the annotations of local names.

import functools
import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal, TypeAlias

from fastapi import Depends, FastAPI, HTTPException
from flask import Flask, abort, g, jsonify, request
from flask import Response as FlaskResponse
from litestar import Litestar, get
from litestar import Request as LitestarRequest
from litestar.connection import ASGIConnection
from litestar.exceptions import NotAuthorizedException
from litestar.handlers import BaseRouteHandler
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from msk_auth import AsyncAuthenticator, Authenticator, Principal
from msk_auth.integrations.fastapi import FastAPIAuth
from msk_auth.integrations.flask import FlaskAuth
from msk_auth.integrations.litestar import LitestarAuth
from msk_auth.integrations.starlette import StarletteAuth

from .subjects import OWNER

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
Way = Literal["none", "dictionary", "digests", "msk_auth"]
CHALLENGE = {"WWW-Authenticate": 'Bearer realm="api"'}
PERMISSION = "tasks:read"


class Dictionary:
    """Users by their key."""

    def __init__(self, key: str) -> None:
        self._users = {key: OWNER.user}

    def find(self, header: str) -> str | None:
        """The user behind a value of the `Authorization` header."""
        scheme, _, key = header.partition(" ")
        return self._users.get(key) if scheme.lower() == "bearer" else None


class Digests(Dictionary):
    """Users by a keyed digest of their key."""

    def __init__(self, key: str) -> None:
        self._secret = secrets.token_bytes(32)
        digest = self._digest(key)
        self._digests = {digest: (digest, OWNER.user)}

    def find(self, header: str) -> str | None:
        """The user behind a value of the `Authorization` header."""
        scheme, _, key = header.partition(" ")
        if scheme.lower() != "bearer":
            return None
        digest = self._digest(key)
        known, user = self._digests.get(digest, (b"", None))
        return user if hmac.compare_digest(digest, known) else None

    def _digest(self, key: str) -> bytes:
        return hashlib.blake2b(self._secret + key.encode()).digest()


def users(way: Way, key: str) -> Dictionary:
    """What a guard that is written by hand looks into."""
    return Digests(key) if way == "digests" else Dictionary(key)


def fastapi_app(way: Way, authenticator: AsyncAuthenticator[str], key: str) -> FastAPI:
    """In FastAPI."""
    app = FastAPI(openapi_url=None)
    by_hand = users(way, key)

    async def find_user(connection: HTTPConnection) -> str:
        user = by_hand.find(connection.headers.get("authorization", ""))
        if user is None:
            raise HTTPException(401, headers=CHALLENGE)
        return user

    async def none() -> dict[str, str]:
        return {"user": OWNER.user}

    async def dictionary(user: Annotated[str, Depends(find_user)]) -> dict[str, str]:
        return {"user": user}

    if way != "msk_auth":
        app.get("/")(none if way == "none" else dictionary)
        return app
    auth = FastAPIAuth(authenticator)
    auth.install(app)

    @app.get("/")
    async def guarded(
        principal: Annotated[Principal[str], auth.require(PERMISSION)],
    ) -> dict[str, str]:
        return {"user": principal.user}

    return app


def starlette_app(way: Way, authenticator: AsyncAuthenticator[str], key: str) -> Starlette:
    """In Starlette."""
    by_hand = users(way, key)

    def by_dictionary(endpoint: Endpoint) -> Endpoint:
        @functools.wraps(endpoint)
        async def guarded(request: Request) -> Response:
            user = by_hand.find(request.headers.get("authorization", ""))
            if user is None:
                return JSONResponse({"detail": "Unauthorized"}, 401, CHALLENGE)
            request.scope["user"] = user
            return await endpoint(request)

        return guarded

    async def none(request: Request) -> JSONResponse:
        return JSONResponse({"user": OWNER.user})

    @by_dictionary
    async def dictionary(request: Request) -> Response:
        return JSONResponse({"user": request.scope["user"]})

    if way != "msk_auth":
        return Starlette(routes=[Route("/", none if way == "none" else dictionary)])
    auth = StarletteAuth(authenticator)

    @auth.require(PERMISSION)
    async def guarded(request: Request) -> JSONResponse:
        return JSONResponse({"user": auth.principal(request).user})

    return auth.install(Starlette(routes=[Route("/", guarded)]))


def litestar_app(way: Way, authenticator: AsyncAuthenticator[str], key: str) -> Litestar:
    """In Litestar."""
    by_hand = users(way, key)

    # Litestar would hand a plain function to a thread.
    async def by_dictionary(
        connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler
    ) -> None:
        user = by_hand.find(connection.headers.get("authorization", ""))
        if user is None:
            raise NotAuthorizedException(headers=CHALLENGE)
        connection.scope["user"] = user

    if way == "none":

        @get("/")
        async def none() -> dict[str, str]:
            return {"user": OWNER.user}

        return Litestar([none], openapi_config=None, logging_config=None)
    if way != "msk_auth":

        @get("/", guards=[by_dictionary])
        async def dictionary(request: LitestarRequest[str, Any, Any]) -> dict[str, str]:
            return {"user": request.user}

        return Litestar([dictionary], openapi_config=None, logging_config=None)
    auth = LitestarAuth(authenticator)

    # As the one with a dictionary: a principal that is injected would cost what Litestar's injection does.
    @get("/", guards=[auth.require(PERMISSION)])
    async def guarded(request: LitestarRequest[str, Any, Any]) -> dict[str, str]:
        return {"user": request.user}

    return Litestar([guarded], plugins=[auth], openapi_config=None, logging_config=None)


def flask_app(way: Way, authenticator: Authenticator[str], key: str) -> Flask:
    """In Flask."""
    app = Flask("benchmark")
    by_hand = users(way, key)

    def by_dictionary(view: Callable[[], FlaskResponse]) -> Callable[[], FlaskResponse]:
        @functools.wraps(view)
        def guarded() -> FlaskResponse:
            user = by_hand.find(request.headers.get("Authorization", ""))
            if user is None:
                refusal = jsonify(detail="Unauthorized")
                refusal.status_code = 401
                refusal.headers.extend(CHALLENGE)
                abort(refusal)
            g.user = user
            return view()

        return guarded

    if way == "none":
        app.get("/")(lambda: jsonify(user=OWNER.user))
    elif way != "msk_auth":
        app.get("/")(by_dictionary(lambda: jsonify(user=g.user)))
    else:
        auth = FlaskAuth(authenticator, app)

        @app.get("/")
        @auth.require(PERMISSION)
        def guarded() -> FlaskResponse:
            return jsonify(user=auth.current_principal.user)

    return app


ASYNC: dict[str, Callable[[Way, AsyncAuthenticator[str], str], Any]] = {
    "FastAPI": fastapi_app,
    "Starlette": starlette_app,
    "Litestar": litestar_app,
}
FRAMEWORKS = (*ASYNC, "Flask")
