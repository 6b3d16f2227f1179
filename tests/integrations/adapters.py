"""The application of `tests.contract.adapter` in every framework, and a client that speaks raw ASGI to it.

To add an adapter: build that application with it, in a module beside this one, and add its name to
`ADAPTERS`. Those whose framework is installed take part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

import anyio
import pytest
from tests.contract.adapter import Reply, Surprise, World

from msk_auth.testing import BackgroundLoop


def _application(name: str) -> Callable[..., Any]:
    module = import_module(f"tests.integrations.{name}_app")
    made: Callable[..., Any] = getattr(module, f"{name}_app")
    return made


T = TypeVar("T")


def installed(**makers: T) -> dict[str, T]:
    """What makes an application, by its framework: those whose framework is installed."""
    return {name: make for name, make in makers.items() if find_spec(name) is not None}


ADAPTERS = {
    name: _application(name)
    for name in ("fastapi", "starlette", "litestar", "flask")
    if find_spec(name) is not None
}


def application(name: str, world: World, *, late: bool = False, **options: Any) -> Any:
    """The application of an adapter in a world.

    Args:
        name: The framework.
        world: Where its keys and people are.
        late: Whether it is made as a synchronous application makes it: guards first, and an authenticator that blocks.
        options: Of the adapter.
    """
    blocks = late or name == "flask"
    used = world.blocking if blocks else world.authenticator
    return ADAPTERS[name](used, late=late, **options)


NAMES = {
    "fastapi": "FastAPIAuth",
    "starlette": "StarletteAuth",
    "litestar": "LitestarAuth",
    "flask": "FlaskAuth",
}


def adapter_of(name: str, *arguments: Any, **options: Any) -> Any:
    """An adapter, made with these arguments."""
    module = import_module(f"msk_auth.integrations.{name}")
    return getattr(module, NAMES[name])(*arguments, **options)


def guarded(name: str, auth: Any, permission: str, view: Callable[[], object]) -> Any:
    """The route `/`, which answers with the result of a function, for :func:`mounted`."""
    match name:
        case "fastapi":
            from fastapi import APIRouter

            router = APIRouter()
            router.get("/", dependencies=[auth.require(permission)])(view)
            return router
        case "starlette":
            from starlette.responses import JSONResponse
            from starlette.routing import Route

            return Route("/", auth.require(permission)(lambda _request: JSONResponse(view())))
        case "litestar":
            from litestar import get

            def handler() -> Any:
                return view()

            return get("/", guards=[auth.require(permission)], sync_to_thread=True)(handler)
        case _:
            from flask import Blueprint

            blueprint = Blueprint("guarded", __name__)
            auth.protect(blueprint)
            blueprint.get("/")(auth.require(permission)(view))
            return blueprint


def mounted(
    name: str, auth: Any, *routes: Any, authenticator: object = None, **options: Any
) -> Any:
    """An application with some of the library's routes and nothing else, as ASGI.

    Args:
        name: The framework.
        auth: Its adapter.
        routes: What methods of the adapter made, or :func:`guarded`.
        authenticator: The application's own, if the adapter was made without one.
        options: Of its `install`, where the framework has one.
    """
    match name:
        case "fastapi":
            from fastapi import FastAPI

            app: Any = auth.install(FastAPI(), authenticator, **options)
            for router in routes:
                app.include_router(router)
        case "starlette":
            from starlette.applications import Starlette

            rows = [row for each in routes for row in (each if isinstance(each, list) else [each])]
            app = auth.install(Starlette(routes=rows), authenticator, **options)
        case "litestar":
            from litestar import Litestar

            bound = auth if authenticator is None else auth.bind(authenticator)
            app = Litestar(list(routes), plugins=[bound], logging_config=None)
        case _:
            from flask import Flask
            from tests.integrations.flask_app import WsgiBridge

            flask = Flask(__name__)
            auth.init_app(flask, authenticator, **options)
            for number, blueprint in enumerate(routes):
                # Flask demands that blueprints differ in name.
                flask.register_blueprint(blueprint, name=f"{blueprint.name}_{number}")
            app = WsgiBridge(flask)
    return app


EITHER_WAY = [
    pytest.param((name, late), id=f"{name} {'late' if late else 'at once'}")
    for name in ADAPTERS
    for late in (False, True)
]
"""Each adapter in both ways, for :func:`application`."""

STARLETTE_BASED = [name for name in ("fastapi", "starlette") if name in ADAPTERS]
WITH_WEBSOCKETS = [name for name in ADAPTERS if name != "flask"]
GUARDED = [
    "GET /me",
    "GET /tasks",
    "POST /tasks/run",
    "GET /admin/config",
    "GET /api/keys",
    "POST /api/keys",
]


async def send(
    app: Any,
    method: str,
    target: bytes,
    headers: list[tuple[bytes, bytes]] | None = None,
    body: bytes = b"",
    *,
    chunks: Sequence[bytes | Exception] | None = None,
    stays: bool = False,
    **more: Any,
) -> Reply:
    """One request with exactly these bytes, as a server would hand it on.

    Its client goes away when it has sent everything, unless it stays until the application has answered. An exception
    among the chunks is raised by the server while the body is read.

    An unexpected exception in the application is swallowed after the answer, as a server does.
    """
    path, _, query = target.partition(b"?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path.decode("latin-1"),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": [(b"host", b"tasks.test"), *(headers or [])],
        "client": ("192.0.2.1", 50000),
        "server": ("192.0.2.2", 80),
        "state": {},
        **more,
    }
    pending: list[bytes | Exception] = [body] if chunks is None else list(chunks)
    sent: list[dict[str, Any]] = []
    answered = anyio.Event()

    async def receive() -> dict[str, Any]:
        if not pending:
            if stays:
                await answered.wait()
            return {"type": "http.disconnect"}
        chunk = pending.pop(0)
        if isinstance(chunk, Exception):
            raise chunk
        return {"type": "http.request", "body": chunk, "more_body": bool(pending)}

    async def receive_answer(message: dict[str, Any]) -> None:
        sent.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            answered.set()

    with suppress(Surprise):
        await app(scope, receive, receive_answer)
    start, *rest = sent
    content = b"".join(message.get("body", b"") for message in rest)
    return Reply(start["status"], tuple(start["headers"]), content)


class Driver:
    """Speaks raw ASGI to an application, on an event loop of its own.

    Args:
        loop: Where the application runs.
        app: The application.
        stays: Whether the client stays connected until it has the whole answer.
    """

    def __init__(self, loop: BackgroundLoop, app: Any, *, stays: bool = False) -> None:
        self._loop = loop
        self._app = app
        self._stays = stays

    def send(
        self, method: str, target: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes
    ) -> Reply:
        answer = send(self._app, method, target, list(headers), body, stays=self._stays)
        return self._loop.run(answer)
