"""One small application in every framework, with the two routes that need no login."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.contract.adapter import User, World
from tests.integrations.adapters import installed

from msk_auth.leaks import AsyncGitHubLeakReceiver, GitHubLeakReceiver

Gate = Callable[[], None]
"""Called with each request that the application's throttle sees; what it raises is raised there."""


def _receiver(world: World, fetch: Callable[[], bytes]) -> AsyncGitHubLeakReceiver:
    async def fetch_keys() -> bytes:
        return fetch()

    return AsyncGitHubLeakReceiver(world.authenticator, fetch_keys=fetch_keys)


def _throttle(gate: Gate) -> Callable[[Any], Any]:
    async def throttle(_request: object) -> None:
        gate()

    return throttle


def fastapi_app(world: World, fetch: Callable[[], bytes], gate: Gate) -> Any:
    from fastapi import FastAPI

    from msk_auth.integrations.fastapi import FastAPIAuth

    auth = FastAPIAuth[User](world.authenticator)
    app = auth.install(FastAPI(), errors="all")
    app.include_router(auth.revocation_route(throttle=_throttle(gate)))
    app.include_router(auth.leak_route(_receiver(world, fetch), throttle=_throttle(gate)))
    return app


def starlette_app(world: World, fetch: Callable[[], bytes], gate: Gate) -> Any:
    from starlette.applications import Starlette

    from msk_auth.integrations.starlette import StarletteAuth

    auth = StarletteAuth[User](world.authenticator)
    routes = [
        auth.revocation_route(throttle=_throttle(gate)),
        auth.leak_route(_receiver(world, fetch), throttle=_throttle(gate)),
    ]
    return auth.install(Starlette(routes=routes), errors="all")


def litestar_app(world: World, fetch: Callable[[], bytes], gate: Gate) -> Any:
    from litestar import Litestar

    from msk_auth.integrations.litestar import LitestarAuth

    auth = LitestarAuth[User](world.authenticator, errors="all")
    handlers = [
        auth.revocation_route(throttle=_throttle(gate)),
        auth.leak_route(_receiver(world, fetch), throttle=_throttle(gate)),
    ]
    return Litestar(handlers, plugins=[auth], logging_config=None)


def flask_app(world: World, fetch: Callable[[], bytes], gate: Gate) -> Any:
    from flask import Flask
    from tests.integrations.flask_app import WsgiBridge

    from msk_auth.integrations.flask import FlaskAuth

    app = Flask(__name__)
    auth = FlaskAuth[User](world.blocking, app, errors="all")
    receiver = GitHubLeakReceiver(world.blocking, fetch_keys=fetch)
    app.register_blueprint(auth.revocation_route(throttle=lambda _request: gate()))
    app.register_blueprint(auth.leak_route(receiver, throttle=lambda _request: gate()))
    return WsgiBridge(app)


LEAK_APPS = installed(
    fastapi=fastapi_app, starlette=starlette_app, litestar=litestar_app, flask=flask_app
)
