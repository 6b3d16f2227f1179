"""The FastAPI adapter.

::

    auth = FastAPIAuth(authenticator)
    app = FastAPI()
    auth.install(app)
    app.include_router(auth.key_routes(prefix="/api/keys"))

    CurrentPrincipal = Annotated[Principal[User], auth.principal]


    @app.get("/tasks", dependencies=[auth.require("tasks:read")])
    async def tasks(principal: CurrentPrincipal) -> list[Task]: ...

A guard is one dependency without dependencies of its own; several guards on one route authenticate
once. They guard what FastAPI routes: a mounted application, `add_route`, static files and the docs
pages are no part of a router's or an application's `dependencies`.
"""

# No `from __future__ import annotations`: FastAPI reads the annotations below at run time.

from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final, Generic, TypeGuard, cast

import fastapi.routing
from fastapi import APIRouter, FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.encoders import jsonable_encoder
from fastapi.exception_handlers import (
    http_exception_handler,
    request_validation_exception_handler,
    websocket_request_validation_exception_handler,
)
from fastapi.exceptions import (
    RequestValidationError,
    ValidationException,
    WebSocketRequestValidationError,
)
from fastapi.openapi.models import HTTPBearer
from fastapi.openapi.models import SecurityBase as SecurityBaseModel
from fastapi.params import Security
from fastapi.security.base import SecurityBase
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import Response

from msk_auth._route_audit.audit import register_reader
from msk_auth._route_audit.report import AuditedRoute
from msk_auth.authenticator import AsyncAuthenticator
from msk_auth.core.errors import ConfigurationError, FieldError, InputInvalid, Problem
from msk_auth.core.model import Principal, UserT
from msk_auth.core.policy import Policy, require, require_interactive
from msk_auth.http.answers import Answer, Errors
from msk_auth.http.key_routes import KEY_ROUTES
from msk_auth.http.leak_routes import leak_route, revocation_route
from msk_auth.http.openapi import BEARER_DESCRIPTION, SCHEME_NAME, document_problems
from msk_auth.http.routes import Route, check_path
from msk_auth.leaks import AsyncGitHubLeakReceiver

from ._starlette import (
    AppT,
    RouteEntry,
    StarletteBase,
    Throttle,
    read_default,
    read_entries,
)

__all__ = ["FastAPIAuth", "Guard"]

_DEFAULT_HANDLERS: Final[Mapping[object, object]] = {
    HTTPException: http_exception_handler,
    RequestValidationError: request_validation_exception_handler,
    WebSocketRequestValidationError: websocket_request_validation_exception_handler,
}
# What FastAPI says of a body that is not UTF-8, or nested too deeply.
_BODY_ERROR: Final = "There was an error parsing the body"
_PLACES: Final = frozenset({"body", "query", "path", "header", "cookie"})
_MAX_ERRORS: Final = 50


class Guard(SecurityBase, Generic[UserT]):
    """A dependency that lets a request or a websocket pass, as its principal, or raises.

    Made by :class:`FastAPIAuth`. A test replaces one with
    `app.dependency_overrides[auth.principal.dependency]`.

    Attributes:
        policy: What it demands.
    """

    def __init__(self, auth: "FastAPIAuth[UserT]", policy: Policy) -> None:
        self.model: SecurityBaseModel = HTTPBearer(description=BEARER_DESCRIPTION)
        self.scheme_name = SCHEME_NAME
        self.policy = policy
        self._auth = auth

    async def __call__(self, connection: HTTPConnection) -> Principal[UserT]:
        """The principal.

        Raises:
            Problem: The credentials are missing or refused, or the policy is not met.
        """
        return await self._auth.admit(connection, self.policy)


class FastAPIAuth(StarletteBase[UserT]):
    """Guards, error handlers and key routes for FastAPI.

    Args:
        authenticator: Decides; also an attribute.

    Raises:
        ConfigurationError: It is not an `AsyncAuthenticator`.
    """

    def __init__(self, authenticator: AsyncAuthenticator[UserT]) -> None:
        super().__init__(authenticator)
        self._guards: dict[Policy, Security] = {}

    @property
    def principal(self) -> Security:
        """A guard that demands to be authenticated at all, for `Annotated[Principal[User], auth.principal]`."""
        return self._guard(Policy())

    def require(self, *permissions: str) -> Security:
        """A guard that demands all of these permissions.

        Use it in `Annotated[Principal[User], …]` or in `dependencies=[…]`.
        """
        return self._guard(require(*permissions))

    def require_interactive(self, *permissions: str, max_age: timedelta | None = None) -> Security:
        """A guard that demands an interactive login and all of these permissions; no API key passes.

        Args:
            permissions: All of these are needed.
            max_age: The greatest age of the login (RFC 9470); None means any.
        """
        return self._guard(require_interactive(*permissions, max_age=max_age))

    def key_routes(self, *, prefix: str = "/api/keys") -> APIRouter:
        """A router with which people manage their own keys. Its guards cannot be taken off.

        An application that includes it without :meth:`install` does not start.

        Raises:
            ConfigurationError: The prefix does not begin with a slash, or ends with one.
        """
        check_path(prefix, "/api/keys")
        router = APIRouter(prefix=prefix, tags=["API keys"], lifespan=self._demand_install)
        for row in KEY_ROUTES:
            self._mount(router, row)
        return router

    def revocation_route(
        self, *, path: str = "/api/revoke", throttle: Throttle | None
    ) -> APIRouter:
        """A router with a route that revokes the key in the body, without a login: `POST` with `token=…` as a form, or as JSON.

        The answer is the same whether the key exists or not (RFC 7009, section 2.2). What is no complete key is refused:
        that needs no look-up.

        Args:
            path: Where to serve it.
            throttle: Called with each request first; it raises :class:`~msk_auth.TooManyAttempts` for one too many.
                Pass None if something in front of the application limits requests already.

        Raises:
            ConfigurationError: The path does not begin with a slash, or ends with one.
        """
        return self._mount(APIRouter(tags=["API keys"]), revocation_route(path), throttle)

    def leak_route(
        self,
        receiver: AsyncGitHubLeakReceiver,
        *,
        path: str = "/api/leaks/github",
        throttle: Throttle | None,
    ) -> APIRouter:
        """A router with a route that receives the reports of GitHub's secret scanning. It is public, and takes signed reports only.

        Args:
            receiver: Checks the reports and revokes the keys.
            path: Where to serve it.
            throttle: As for :meth:`revocation_route`.

        Raises:
            ConfigurationError: The path does not begin with a slash, or ends with one, or the receiver is of the other
                kind.
        """
        row = leak_route(path, receiver, AsyncGitHubLeakReceiver)
        return self._mount(APIRouter(tags=["API keys"]), row, throttle)

    def install(self, app: AppT, *, errors: Errors = "problems") -> AppT:
        """Prepare an application, and return it: a handler for problems, OpenAPI, the authenticator's lifespan.

        Every :class:`~msk_auth.Problem` is answered with a problem document, unless the application has a handler for it,
        and the OpenAPI document says so. The authenticator is opened after the application's
        lifespan has begun and closed before it ends, so that the times of last use are written while the
        store is still open.

        An application that is mounted in another one needs an `install` of its own.

        Args:
            app: The application.
            errors: Which errors are answered. By default problems alone: what the framework and the application raise is
                left as it is. `all` answers HTTP errors, validation errors and unexpected exceptions with problem documents too,
                except where the application has a handler of its own.

        Raises:
            ConfigurationError: This is no FastAPI application, it has another adapter already, or
                it has started.
        """
        if not isinstance(app, FastAPI):
            raise ConfigurationError("FastAPIAuth is for FastAPI. Use StarletteAuth for Starlette.")
        return super().install(app, errors=errors)

    @asynccontextmanager
    async def _demand_install(self, app: object) -> AsyncGenerator[None]:
        # A guard checks with its first request; a router is started with its application.
        self._check_installed({"app": app})
        yield

    def _prepare(self, app: Starlette, *, all_errors: bool) -> None:
        super()._prepare(app, all_errors=all_errors)
        api = cast("FastAPI", app)
        generate = api.openapi

        def openapi() -> dict[str, Any]:
            return document_problems(generate(), all_errors=all_errors)

        api.openapi = openapi  # type: ignore[method-assign]

    def _add_handlers(self, app: Starlette) -> None:
        # FastAPI has filled in its own handlers where the application named none.
        handlers = cast("dict[object, object]", app.exception_handlers)
        for kind, default in _DEFAULT_HANDLERS.items():
            if handlers.get(kind) is default:
                del handlers[kind]
        super()._add_handlers(app)
        handlers.setdefault(RequestValidationError, self._on_invalid)
        handlers.setdefault(WebSocketRequestValidationError, self._on_invalid)

    async def _on_invalid(
        self, connection: HTTPConnection, error: ValidationException
    ) -> Response | None:
        errors: Sequence[Mapping[str, Any]] = error.errors()
        if any(each.get("type") == "json_invalid" for each in errors):
            return await self._on_unreadable_body(connection)
        return await self._on_problem(connection, InputInvalid(_fields(errors)))

    async def _on_http_exception(
        self, connection: HTTPConnection, error: HTTPException
    ) -> Response | None:
        if error.status_code == 400 and error.detail == _BODY_ERROR:
            return await self._on_unreadable_body(connection)
        return await super()._on_http_exception(connection, error)

    async def _on_unreadable_body(self, connection: HTTPConnection) -> Response | None:
        # FastAPI reads the body before it calls the guards. A refused caller gets the refusal, and
        # nothing about the body.
        try:
            for guard in _guards_of(connection.scope):
                await guard(connection)
        except Problem as problem:
            return await self._on_problem(connection, problem)
        return await self._on_problem(
            connection, InputInvalid.of("", "The body is not valid JSON.")
        )

    def _http_error(self, error: HTTPException) -> Answer:
        detail = cast("object", error.detail)
        if isinstance(detail, str):
            return super()._http_error(error)
        # FastAPI lets an application raise any JSON; `detail` of a problem document is text.
        members = {} if detail is None else {"context": jsonable_encoder(detail)}
        return self._renderer.http_error(error.status_code, members=members)

    def _mount(self, router: APIRouter, row: Route, throttle: Throttle | None = None) -> APIRouter:
        router.add_api_route(
            row.path,
            self._endpoint(row, throttle),
            methods=[row.method],
            name=row.name,
            # For the documentation and the route audit: the endpoint checks the policy by itself.
            dependencies=None if row.policy is None else [self._guard(row.policy)],
            # The endpoint's own answer counts; these two keep the document to it.
            status_code=row.status,
            response_class=Response,
            openapi_extra=row.operation,
        )
        return router

    def _guard(self, policy: Policy) -> Security:
        # The same object for the same policy, so that FastAPI calls it once per request.
        if policy not in self._guards:
            self._guards[policy] = Security(Guard(self, policy), scopes=sorted(policy.permissions))
        return self._guards[policy]


def _fields(errors: Sequence[Mapping[str, Any]]) -> list[FieldError]:
    return [
        FieldError(_dotted(each.get("loc", ())), str(each.get("msg", "This is not acceptable.")))
        for each in errors[:_MAX_ERRORS]
    ]


def _dotted(location: Sequence[object]) -> str:
    names = location[1:] if location and location[0] in _PLACES else location
    return ".".join(str(name) for name in names)


def _guards_of(scope: Mapping[str, Any]) -> Iterator[Guard[Any]]:
    """The guards of the route that a request was for, except those that a test replaced."""
    # A route that is not FastAPI's own has no dependencies.
    dependant: Dependant | None = getattr(scope.get("route"), "dependant", None)
    return _guards_in(dependant, scope["app"].dependency_overrides)


def _guards_in(dependant: Dependant | None, replaced: Collection[object]) -> Iterator[Guard[Any]]:
    pending = [] if dependant is None else [dependant]
    while pending:
        dependant = pending.pop(0)
        call: object = dependant.call
        if _is_guard(call) and call not in replaced:
            yield call
        pending.extend(dependant.dependencies)


def _is_guard(value: object) -> TypeGuard[Guard[Any]]:
    return isinstance(value, Guard)


# The route audit.


def _read(app: FastAPI | APIRouter, prefix: str) -> Iterator[AuditedRoute]:
    """The routes of a FastAPI application or a router: Starlette's, with the guards among their dependencies.

    Newer versions of FastAPI keep an included router as one entry of its table, and the files of a front end in a table of
    their own; older ones have neither. Both are looked up by name, so that every version is read.
    """
    router = app.router if isinstance(app, FastAPI) else app
    # A guard that a test has replaced guards nothing.
    replaced = app.dependency_overrides if isinstance(app, FastAPI) else {}
    yield from read_entries(_entries(router, replaced), prefix)
    yield from _front_ends(router, replaced, prefix)
    yield from read_default(router, prefix)


def _entries(router: APIRouter, replaced: Collection[object]) -> Iterator[RouteEntry]:
    flatten = getattr(fastapi.routing, "iter_route_contexts", None)
    if flatten is None:
        for route in router.routes:
            yield RouteEntry(route, route, _guards(route, replaced))
        return
    for context in flatten(router.routes):
        yield RouteEntry(context.original_route, context, _guards(context, replaced))


def _front_ends(
    router: APIRouter, replaced: Collection[object], prefix: str
) -> Iterator[AuditedRoute]:
    groups: Any = getattr(router, "_iter_low_priority_routes", tuple)
    for group in groups():
        above = prefix + getattr(group, "frontend_prefix", "").rstrip("/")
        guards = _guards(group, replaced)
        for front_end in getattr(group, "original_route", group).routes:
            path = above + front_end.path
            methods = tuple(sorted(front_end.methods))
            yield AuditedRoute(path, methods, "mount", "frontend", guards or None)


def _guards(route: Any, replaced: Collection[object]) -> tuple[Policy, ...]:
    found = _guards_in(getattr(route, "dependant", None), replaced)
    return tuple(dict.fromkeys(guard.policy for guard in found))


register_reader(FastAPI, _read)
register_reader(APIRouter, _read)
