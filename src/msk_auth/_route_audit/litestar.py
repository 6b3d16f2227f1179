"""Reads the routes of Litestar, where the adapter has written on every handler what it demands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from litestar import Litestar
from litestar.handlers import ASGIRouteHandler, HTTPRouteHandler, WebsocketRouteHandler
from litestar.routes import HTTPRoute

from msk_auth.integrations.litestar import declared_policies

from .report import ANY_METHOD, AuditedRoute, RouteKind


def read(app: Litestar, prefix: str) -> Iterator[AuditedRoute]:
    """The routes of a Litestar application."""
    for route in app.routes:
        path = prefix + route.path
        if isinstance(route, HTTPRoute):
            # Their order differs from one start to the next.
            for handler in sorted(route.route_handlers, key=_methods):
                yield _found(handler, path, _methods(handler), "route")
            continue
        handler = cast("Any", route).route_handler
        if isinstance(handler, WebsocketRouteHandler):
            yield _found(handler, path, (), "websocket")
        else:
            is_mount = isinstance(handler, ASGIRouteHandler) and handler.is_mount
            yield _found(handler, path, (ANY_METHOD,), "mount" if is_mount else "route")


def _methods(handler: HTTPRouteHandler) -> tuple[str, ...]:
    return tuple(sorted(handler.http_methods))


def _found(handler: Any, path: str, methods: tuple[str, ...], kind: RouteKind) -> AuditedRoute:
    return AuditedRoute(path, methods, kind, handler.handler_name, declared_policies(handler))
