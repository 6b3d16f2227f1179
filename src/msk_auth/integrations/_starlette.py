"""The base of the adapters for Starlette and FastAPI, whose applications are Starlette applications."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Self, TypeVar, cast

from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Host, Mount, Router, WebSocketRoute
from starlette.routing import Route as StarletteRoute
from starlette.websockets import WebSocket, WebSocketState

from msk_auth._async.authenticator import AsyncAuthenticator
from msk_auth._route_audit import (
    ANY_METHOD,
    AuditedRoute,
    RouteKind,
    has_own_guard,
    read_routes,
    register_reader,
)
from msk_auth._sync.authenticator import Authenticator
from msk_auth.core.errors import ConfigurationError, Problem
from msk_auth.core.model import UserT
from msk_auth.core.policy import SAFE_METHODS, Policy
from msk_auth.http.admission import Memory
from msk_auth.http.answers import Answer, Errors
from msk_auth.http.routes import Route

from ._adapter import (
    FunctionT,
    GuardT,
    check_function,
    contradiction,
    declare,
    declare_guard,
    declared,
)
from ._asgi import (
    AsgiAuth,
    Throttle,
    call_awaited,
    client_path,
    read_stream,
    refuse_websocket,
)

AppT = TypeVar("AppT", bound=Starlette)


class StarletteBase(AsgiAuth[UserT, GuardT, HTTPConnection]):
    """Guards, error handlers and key routes with an authenticator."""

    _http_exception: type[HTTPException] = HTTPException

    def _connection(self, scope: Memory) -> HTTPConnection:
        return HTTPConnection(scope)

    def install(
        self,
        app: AppT,
        authenticator: AsyncAuthenticator[UserT] | Authenticator[UserT] | None = None,
        *,
        errors: Errors = "problems",
    ) -> AppT:
        """Add a handler for problems and the authenticator's lifespan to an application, and return it.

        Every :class:`~msk_auth.errors.Problem` is answered with a problem document, unless the application has a handler for it; the
        OpenAPI document of FastAPI describes these answers. The authenticator is opened after the application's lifespan has begun
        and closed before it ends, so that the times of last use are written while the store is still open.

        A mounted application needs its own `install`.

        Args:
            app: The application.
            authenticator: The application's own, if the adapter was made without one.
            errors: The errors to answer. By default only problems; other errors of the framework and the application stay
                unchanged. `http` answers refusals as the framework's own `HTTPException` of the same status, with the
                application's handler for it, if any. `all` also answers HTTP errors, FastAPI's validation errors and
                unexpected exceptions with problem documents, unless the application has a handler for them.

        Raises:
            ConfigurationError: The application already has an adapter, or is of another framework; or there is no
                authenticator, or there are two.
            RuntimeError: The application has started.
        """
        installed = getattr(app.state, "msk_auth", None)
        bound = self._bound_to(authenticator, "auth.install(app, authenticator)", installed)
        bound._prepare(app, errors)
        app.state.msk_auth = bound
        return app

    def public(self, endpoint: FunctionT) -> FunctionT:
        """Declare that an endpoint, or a mounted application such as static files, needs no credentials.

        The mark is only for the route audit and changes nothing for requests.

        Raises:
            ConfigurationError: The endpoint has a guard, or is a class: mark its methods.
        """
        check_function(endpoint)
        if declared(endpoint):
            raise contradiction(repr(endpoint))
        return declare(endpoint)

    def declare(self, endpoint: FunctionT, policy: Policy) -> FunctionT:
        """Declare the policy of an endpoint that calls :meth:`admit` itself, for the route audit.

        Only the call of :meth:`admit` guards the endpoint.

        Raises:
            ConfigurationError: The endpoint is public.
        """
        return declare_guard(endpoint, endpoint, policy)

    def _prepare(self, app: Starlette, errors: Errors) -> None:
        app.add_middleware(self._serve)
        handlers = cast("dict[object, object]", app.exception_handlers)
        on_problem = self._on_problem_as_http if errors == "http" else self._on_problem
        handlers.setdefault(Problem, on_problem)
        if errors == "all":
            self._add_handlers(handlers)
        outer = app.router.lifespan_context

        @asynccontextmanager
        async def lifespan(app: Any) -> AsyncGenerator[Any, None]:
            async with outer(app) as state, self.authenticator:
                yield state

        app.router.lifespan_context = lifespan

    def _add_handlers(self, handlers: dict[object, object]) -> None:
        handlers.setdefault(HTTPException, self._on_http_exception)
        if 500 not in handlers:
            handlers.setdefault(Exception, self._on_exception)

    def _bound_in(self, scope: Memory) -> Self:
        installed: Any = getattr(getattr(scope.get("app"), "state", None), "msk_auth", None)
        if installed is self or self.shares_guards_with(installed):
            bound: Self = installed
            return bound
        raise ConfigurationError(
            f"A guarded route is served by an application without its {type(self).__name__}."
            " Call auth.install(app) on the application that the route belongs to."
        )

    def _endpoint(
        self, route: Route, throttle: Throttle[Request] | None = None
    ) -> Callable[[Request], Awaitable[Response]]:
        """An endpoint for a route of the library, which always has its guard."""

        async def endpoint(request: Request) -> Response:
            answer = await self._respond(
                route,
                request,
                path=client_path(request.scope),
                read_body=lambda limit: read_stream(request.stream(), limit, passing=HTTPException),
                throttle=throttle,
            )
            return to_response(answer)

        endpoint.__qualname__ = route.name
        return declare(endpoint, *(() if route.policy is None else (route.policy,)))

    async def _on_problem(self, connection: HTTPConnection, error: Problem) -> Response | None:
        # The frames refer to each other and to the credentials: without this they would stay until the next run of the
        # garbage collector.
        error.__traceback__ = None
        return await _send(connection, self._renderer.answer(error))

    async def _on_problem_as_http(
        self, connection: HTTPConnection, error: Problem
    ) -> Response | None:
        if isinstance(connection, WebSocket):
            return await self._on_problem(connection, error)
        error.__traceback__ = None
        headers = error.response_headers(self._renderer.realm)
        raised = self._http_exception(error.status, error.detail, headers)
        raised.__cause__ = error
        handlers = cast("dict[object, Any]", connection.app.exception_handlers)
        kinds = (raised.status_code, *type(raised).__mro__)
        # Starlette calls the handlers of 500 and Exception elsewhere.
        found = [handlers[kind] for kind in kinds if kind in handlers.keys() - {500, Exception}]
        handler = found[0] if found else ExceptionMiddleware(connection.app).http_exception
        response: Response = await call_awaited(handler, connection, raised)
        for name, value in headers.items():
            response.headers.setdefault(name, value)
        return response

    async def _on_http_exception(
        self, connection: HTTPConnection, error: HTTPException
    ) -> Response | None:
        headers = dict(error.headers or {})
        if error.status_code < 400:
            # Not an error, such as a redirect.
            return Response(status_code=error.status_code, headers=headers)
        answer = self._http_error(error)
        return await _send(connection, answer.with_headers(headers.items()))

    def _http_error(self, error: HTTPException) -> Answer:
        return self._renderer.http_error(error.status_code, str(error.detail))

    async def _on_exception(self, connection: HTTPConnection, error: Exception) -> Response | None:
        # Starlette logs the exception later, through the server. A problem comes from a middleware.
        if isinstance(error, Problem):
            return await _send(connection, self._renderer.answer(error))
        return await _send(connection, self._renderer.http_error(500))


def to_response(answer: Answer) -> Response:
    """The answer as Starlette's response."""
    return Response(answer.body, answer.status, dict(answer.headers))


async def _send(connection: HTTPConnection, answer: Answer) -> Response | None:
    if not isinstance(connection, WebSocket):
        return to_response(answer)
    if connection.client_state is not WebSocketState.DISCONNECTED:
        await refuse_websocket(connection.scope, connection.send, answer)
    return None


# The route audit.

_HANDLED: Final = ("get", "head", "post", "put", "patch", "delete", "options", "query")
_CONTRADICTION: Final = "is declared public and guarded as well. Remove one of the two."


@dataclass(frozen=True, slots=True)
class RouteEntry:
    """A route to read.

    Attributes:
        route: The route object of the framework.
        shown: The object with the served path, methods and endpoint.
        guards: The policies of guards that are not on the endpoint itself: for safe methods, and for others and websockets.
        own_guard: True if a guard of the application that is not on the endpoint itself is marked with `own_guard`.
    """

    route: BaseRoute
    shown: Any
    guards: tuple[tuple[Policy, Policy], ...] = ()
    own_guard: bool = False


def read_starlette(app: Any, prefix: str) -> Iterator[AuditedRoute]:
    """The routes of a Starlette application or a router, for the route audit."""
    entries = (RouteEntry(route, route) for route in app.routes)
    yield from read_in_order(entries, getattr(app, "router", app), prefix)


_PLACEHOLDER: Final = re.compile(r"\{\w+(:\w+)?\}")
_SEGMENT: Final = r"(?:(?!\{\w+:path\})[^/])+"


def read_in_order(
    entries: Iterable[RouteEntry], router: Any, prefix: str
) -> Iterator[AuditedRoute]:
    """The routes of a router, whose first match serves a request: a shadowed route names the earlier route."""
    earlier: list[tuple[AuditedRoute, re.Pattern[str]]] = []
    for route in _read_entries(entries, prefix):
        first = next((each.path for each, paths in earlier if _takes(each, paths, route)), None)
        yield route if first is None else replace(route, shadowed_by=first)
        earlier.append((route, _paths_of(route)))
    default: object = router.default
    if getattr(default, "__func__", None) is not Router.not_found:
        # The application's own.
        yield _found(default, f"{prefix}/…", (ANY_METHOD,), "route")


def _takes(first: AuditedRoute, paths: re.Pattern[str], later: AuditedRoute) -> bool:
    takes_method = ANY_METHOD in first.methods or {*later.methods} <= {*first.methods}
    is_alike = first.kind in {"mount", later.kind}
    return takes_method and is_alike and paths.fullmatch(later.path) is not None


def _paths_of(route: AuditedRoute) -> re.Pattern[str]:
    """The paths that a route serves. A placeholder with a convertor matches only values of its kind."""
    pattern, end = "", 0
    for found in _PLACEHOLDER.finditer(route.path):
        taken = {None: _SEGMENT, ":str": _SEGMENT, ":path": ".*"}
        pattern += re.escape(route.path[end : found.start()])
        pattern += taken.get(found[1], rf"\{{\w+{found[1]}\}}")
        end = found.end()
    pattern += re.escape(route.path[end:])
    return re.compile(rf"{pattern.rstrip('/')}(/.*)?" if route.kind == "mount" else pattern)


def _read_entries(entries: Iterable[RouteEntry], prefix: str) -> Iterator[AuditedRoute]:
    """The routes, mounts and hosts of these entries."""
    for entry in entries:
        shown = entry.shown
        path = prefix + (getattr(shown, "path", None) or "")
        match entry.route:
            case StarletteRoute():
                yield from _read_route(entry, path)
            case WebSocketRoute():
                # The guard of a class-based endpoint is on this method.
                endpoint = getattr(shown.endpoint, "on_connect", shown.endpoint)
                yield _found(endpoint, path, (), "websocket", entry)
            case Mount():
                yield from _read_inner(_inside_middleware(shown), path)
            case Host():
                yield from _read_inner(shown.app, f"{prefix}//{shown.host}")
            case _:
                yield AuditedRoute(
                    path or "/", (ANY_METHOD,), "route", type(entry.route).__name__, None
                )


def _inside_middleware(mount: Any) -> Any:
    """The mounted application, without the middleware of the mount: it has the routes, or is declared public."""
    routes = getattr(mount, "routes", None)
    layer = mount.app
    while layer is not None:
        if getattr(layer, "routes", None) is routes or declared(layer) == ():
            return layer
        layer = getattr(layer, "app", None)
    return mount.app


def _read_inner(app: Any, path: str) -> Iterator[AuditedRoute]:
    routes = read_routes(app, path)
    if routes is None:
        yield _found(app, path or "/", (ANY_METHOD,), "mount")
    else:
        yield from routes


def _read_route(entry: RouteEntry, path: str) -> Iterator[AuditedRoute]:
    endpoint: Any = entry.shown.endpoint
    methods = tuple(sorted(entry.shown.methods or ()))
    if not (inspect.isclass(endpoint) and issubclass(endpoint, HTTPEndpoint)):
        for method in methods or (ANY_METHOD,):
            yield _found(endpoint, path, (method,), "route", entry)
        return
    entry = replace(entry, own_guard=entry.own_guard or has_own_guard(endpoint))
    # Each method has its own guard; the class answers 405 to other methods.
    for name in _HANDLED:
        handler = getattr(endpoint, name, None)
        if name == "head" and handler is None:
            handler = getattr(endpoint, "get", None)
        if handler is not None and (not methods or name.upper() in methods):
            yield _found(handler, path, (name.upper(),), "route", entry)


def _found(
    endpoint: Any,
    path: str,
    methods: tuple[str, ...],
    kind: RouteKind,
    entry: RouteEntry | None = None,
) -> AuditedRoute:
    own = declared(endpoint)
    while isinstance(endpoint, functools.partial):
        endpoint = endpoint.func
    is_unsafe = not SAFE_METHODS.issuperset(methods) or not methods
    guards = () if entry is None else (each[is_unsafe] for each in entry.guards)
    policies = tuple(dict.fromkeys((*guards, *(own or ())))) or own
    name: str = getattr(endpoint, "__qualname__", type(endpoint).__qualname__)
    problems = (_CONTRADICTION,) if policies and own == () else ()
    guards_itself = has_own_guard(endpoint) or (entry is not None and entry.own_guard)
    return AuditedRoute(
        path,
        methods,
        kind,
        name.rpartition("<locals>.")[2],
        policies,
        problems,
        guards_itself,
        # FastAPI's own endpoints are those of its documentation.
        is_documentation=getattr(endpoint, "__module__", None) == "fastapi.applications",
    )


register_reader(Starlette, read_starlette)
register_reader(Router, read_starlette)
