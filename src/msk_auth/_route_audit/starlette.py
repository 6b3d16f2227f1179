"""Reads the routes of Starlette; FastAPI's are read the same way once :mod:`.fastapi` has flattened them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from starlette.endpoints import HTTPEndpoint, WebSocketEndpoint
from starlette.routing import BaseRoute, Host, Mount, Route, Router, WebSocketRoute

from msk_auth.core.policy import Policy
from msk_auth.integrations._starlette import declared_policies, is_public

from .audit import read_routes
from .report import ANY_METHOD, AuditedRoute

_HANDLED: Final = ("get", "head", "post", "put", "patch", "delete", "options")
CONTRADICTION: Final = "is declared public and guarded as well. Take off one of the two."


@dataclass(frozen=True, slots=True)
class Entry:
    """A route to be read.

    Attributes:
        route: What the framework routes by.
        shown: Where its path, methods and endpoint are, as they are served.
        guards: The policies of guards that are not on the endpoint itself.
    """

    route: BaseRoute
    shown: Any
    guards: tuple[Policy, ...] = ()


def read(app: Any, prefix: str) -> Iterator[AuditedRoute]:
    """The routes of a Starlette application or a router."""
    yield from read_entries((Entry(route, route) for route in app.routes), prefix)
    yield from read_default(getattr(app, "router", app), prefix)


def read_entries(entries: Iterable[Entry], prefix: str) -> Iterator[AuditedRoute]:
    """The routes, mounts and hosts that these entries stand for."""
    for entry in entries:
        shown = entry.shown
        path = prefix + (getattr(shown, "path", None) or "")
        match entry.route:
            case Route():
                yield from _route(entry, path)
            case WebSocketRoute():
                yield _websocket(entry, path)
            case Mount():
                yield from _inner(getattr(shown, "_base_app", shown.app), path)
            case Host():
                yield from _inner(shown.app, f"{prefix}//{shown.host}")
            case _:
                yield AuditedRoute(
                    path or "/", (ANY_METHOD,), "route", type(entry.route).__name__, None
                )


def read_default(router: Any, prefix: str) -> Iterator[AuditedRoute]:
    """What answers where no route does, if the application has put something there."""
    default: object = router.default
    if getattr(default, "__func__", None) is not Router.not_found:
        yield _found(default, f"{prefix}/…", (ANY_METHOD,), "route", ())


def _inner(app: Any, path: str) -> Iterator[AuditedRoute]:
    routes = read_routes(app, path)
    if routes is None:
        yield _found(app, path or "/", (ANY_METHOD,), "mount", ())
    else:
        yield from routes


def _route(entry: Entry, path: str) -> Iterator[AuditedRoute]:
    endpoint: Any = entry.shown.endpoint
    methods = tuple(sorted(entry.shown.methods or ()))
    if not (inspect.isclass(endpoint) and issubclass(endpoint, HTTPEndpoint)):
        yield _found(endpoint, path, methods or (ANY_METHOD,), "route", entry.guards)
        return
    # Each method has a guard of its own; others than these are answered 405 by the class.
    for name in _HANDLED:
        handler = getattr(endpoint, name, None)
        if name == "head" and handler is None:
            handler = getattr(endpoint, "get", None)
        if handler is not None and (not methods or name.upper() in methods):
            yield _found(handler, path, (name.upper(),), "route", entry.guards)


def _websocket(entry: Entry, path: str) -> AuditedRoute:
    endpoint: Any = entry.shown.endpoint
    if inspect.isclass(endpoint) and issubclass(endpoint, WebSocketEndpoint):
        endpoint = endpoint.on_connect
    return _found(endpoint, path, (), "websocket", entry.guards)


def _found(
    endpoint: Any, path: str, methods: tuple[str, ...], kind: Any, guards: tuple[Policy, ...]
) -> AuditedRoute:
    while isinstance(endpoint, functools.partial):
        endpoint = endpoint.func
    own = declared_policies(endpoint)
    policies = tuple(dict.fromkeys((*guards, *(own or ())))) or own
    name = getattr(endpoint, "__qualname__", type(endpoint).__qualname__)
    problems = (CONTRADICTION,) if policies and is_public(endpoint) else ()
    return AuditedRoute(path, methods, kind, name, policies, problems)
