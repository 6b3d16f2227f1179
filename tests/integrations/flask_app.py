"""The application of `adapters.py`, in Flask, and the way from its ASGI client to WSGI."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, TypeVar

from anyio import to_thread
from flask import Blueprint, Flask, Response
from tests.contract.adapter import (
    MAX_AGE,
    Surprise,
    TaskNotFound,
    User,
    describe,
    lines_blocking,
    revoke_blocking,
)
from werkzeug.test import run_wsgi_app

from msk_auth import Authenticator, require
from msk_auth.errors import TooManyAttempts
from msk_auth.integrations.flask import FlaskAuth

T = TypeVar("T")


def flask_app(
    authenticator: Authenticator[User],
    *,
    late: bool = False,
    extend: Callable[[Flask], PlainRoutes] | None = None,
    **options: Any,
) -> WsgiBridge:
    """The application.

    Args:
        authenticator: Decides.
        late: Whether the guards are made before the authenticator, and some of them guard a blueprint.
        extend: Makes the routes of an extension, for the views that have a guard.
        options: Of the adapter.
    """
    app = Flask(__name__)
    auth = FlaskAuth[User](None if late else authenticator, **options)
    auth.init_app(app, authenticator if late else None, errors="all")
    app.register_blueprint(auth.key_routes(url_prefix="/api/keys"))
    some = auth.key_routes(url_prefix="/api/own-keys", operations=["create_key", "revoke_key"])
    app.register_blueprint(some, name="own_keys")
    app.register_blueprint(auth.admin_key_routes("admin:config", max_age=MAX_AGE))
    routes: PlainRoutes = PlainRoutes() if extend is None else extend(app)
    plain = routes.blueprint("plain")

    def describing() -> Callable[..., dict[str, Any]]:
        # A method of a class-based view has a `self`.
        def describe_caller(*_: object, **_of_path: object) -> dict[str, Any]:
            return describe(auth.current_principal)

        return describe_caller

    async def describe_caller_async() -> dict[str, Any]:
        return describe(auth.current_principal)

    @app.get("/public")
    def public() -> dict[str, Any]:
        return {"public": True}

    routes.add(plain, "/me", GET=auth.require()(describing()))
    whoami = auth.any_credential()(describing())
    routes.add(plain, "/whoami", GET=whoami)
    routes.add(plain, "/api/own-keys", GET=whoami)
    beside = auth.require()(auth.require("tasks:read")(describing()))
    routes.add(plain, "/beside", GET=beside)

    # The guards of a blueprint guard as those of its views would.
    grouped = routes.blueprint("grouped")
    if late:
        auth.protect(grouped, require("tasks:read"), unsafe=require("tasks:run"))

    def guard(permission: str) -> Callable[[T], T]:
        return (lambda view: view) if late else auth.require(permission)  # type: ignore[return-value]

    # The classes of extensions take no async methods.
    tasks = describe_caller_async if extend is None else describing()
    routes.add(grouped, "/tasks", GET=guard("tasks:read")(tasks))
    routes.add(grouped, "/tasks/run", POST=guard("tasks:run")(describing()))
    routes.register(app, grouped)

    about = auth.require("tasks:read", resource="task:{task_id}")(describing())
    routes.add(plain, "/about/<task_id>", GET=about)
    both = auth.require("tasks:read")(auth.require("tasks:run")(describing()))
    routes.add(plain, "/both", GET=both)

    @auth.require_interactive("admin:config")
    def config(*_: object) -> dict[str, Any]:
        return {"config": True}

    routes.add(plain, "/admin/config", GET=config, PATCH=config)
    fresh = auth.require_interactive(max_age=MAX_AGE)(describing())
    routes.add(plain, "/fresh", POST=fresh)
    routes.add(plain, "/login", GET=auth.require_login()(describing()))
    routes.add(plain, "/key", GET=auth.require_key()(describing()))
    routes.add(plain, "/hook", POST=auth.require_key("tasks:run")(describing()))

    @auth.require()
    def missing(*_: object) -> None:
        raise TaskNotFound

    routes.add(plain, "/missing", GET=missing)

    @app.get("/busy")
    def busy() -> None:
        raise TooManyAttempts(30)

    @app.get("/boom")
    def boom() -> None:
        raise Surprise("the password is swordfish")

    @auth.require()
    def follow(*_: object) -> Response:
        principal = auth.current_principal
        stream = auth.watch(principal).stream(lines_blocking(auth.authenticator, principal))
        return Response(stream)

    routes.add(plain, "/follow", GET=follow)

    @auth.require()
    def again(*_: object) -> None:
        revoke_blocking(auth.authenticator, auth.current_principal)
        auth.verify_again()

    routes.add(plain, "/again", GET=again)
    routes.register(app, plain)
    return WsgiBridge(app)


class PlainRoutes:
    """How an application adds its routes: with Flask itself. `add` takes a view for each method of a route."""

    def blueprint(self, name: str) -> Blueprint:
        return Blueprint(name, __name__)

    def add(self, blueprint: Blueprint, rule: str, **views: Callable[..., Any]) -> None:
        (view,) = set(views.values())
        blueprint.add_url_rule(rule, name_of(rule), view, methods=list(views))

    def register(self, app: Flask, blueprint: Blueprint) -> None:
        app.register_blueprint(blueprint)


def name_of(rule: str) -> str:
    """The endpoint of a route."""
    return rule.strip("/").translate(str.maketrans("/-", "__"))


class WsgiBridge:
    """A WSGI application for a client that speaks ASGI: what a server makes of a request, byte by byte."""

    def __init__(self, app: Flask) -> None:
        self.app = app

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        body = b""
        length = 0
        broken: Exception | None = None
        while True:
            try:
                message = await receive()
            except Exception as error:  # noqa: BLE001 - raised again where the body is read
                broken = error
                length += 1
                break
            if message["type"] == "http.disconnect":
                length += 1  # more was promised
                break
            body += message["body"]
            length = len(body)
            if not message["more_body"]:
                break
        made = environ(scope, Input(body, broken), length)
        # What a worker thread of a server does.
        content, status, headers = await to_thread.run_sync(run_wsgi_app, self.app, made, True)
        raw = [(name.lower().encode("latin-1"), text.encode("latin-1")) for name, text in headers]
        code = int(status.split()[0])
        await send({"type": "http.response.start", "status": code, "headers": raw})
        await send({"type": "http.response.body", "body": b"".join(content)})


class Input(io.RawIOBase):
    """A body as a server hands it on, which may raise at its end."""

    def __init__(self, body: bytes, broken: Exception | None) -> None:
        self._body = io.BytesIO(body)
        self._broken = broken

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._body.readinto(buffer)
        if count == 0 and self._broken is not None:
            raise self._broken
        return count


def environ(scope: dict[str, Any], body: Input, length: int) -> dict[str, Any]:
    """The environment of PEP 3333; several headers of one name are joined as servers do."""
    root = scope["root_path"].rstrip("/")
    made: dict[str, Any] = {
        "REQUEST_METHOD": scope["method"],
        "SCRIPT_NAME": root,
        "PATH_INFO": scope["path"].removeprefix(root) if root else scope["path"],
        "QUERY_STRING": scope["query_string"].decode("latin-1"),
        "SERVER_NAME": "tasks.test",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": scope["client"][0] if scope["client"] else "",
        "CONTENT_LENGTH": str(length),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": body,
        "wsgi.errors": io.StringIO(),
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    for raw_name, raw_value in scope["headers"]:
        name = raw_name.decode("latin-1").upper().replace("-", "_")
        key = name if name in {"CONTENT_TYPE", "CONTENT_LENGTH"} else f"HTTP_{name}"
        value = raw_value.decode("latin-1")
        made[key] = f"{made[key]},{value}" if key.startswith("HTTP_") and key in made else value
    return made
