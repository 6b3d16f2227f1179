"""The FastAPI adapter.

::

    auth = FastAPIAuth(authenticator)
    app = FastAPI()
    auth.install(app)
    app.include_router(auth.key_routes(prefix="/api/keys"))

    CurrentPrincipal = Annotated[Principal[User], auth.principal]


    @app.get("/tasks", dependencies=[auth.require("tasks:read")])
    async def tasks(principal: CurrentPrincipal) -> list[Task]: ...

A guard is a dependency; several guards on a route authenticate once. They guard only FastAPI's routes: `dependencies` of
a router or an application do not apply to mounted applications, `add_route`, static files and the docs pages.
"""

# No `from __future__ import annotations`: FastAPI reads the annotations below at run time.

import inspect
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from typing import Any, Final, cast

import fastapi.routing
from fastapi import APIRouter, FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import get_dependant
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import HTTPException as FastAPIHTTPException
from fastapi.exceptions import (
    RequestValidationError,
    ValidationException,
    WebSocketRequestValidationError,
)
from fastapi.openapi.models import HTTPBearer
from fastapi.openapi.models import SecurityBase as SecurityBaseModel
from fastapi.params import Depends, Security
from fastapi.security.base import SecurityBase
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from msk_auth._async.authenticator import AsyncAuthenticator
from msk_auth._route_audit import AuditedRoute, has_own_guard, register_reader
from msk_auth._sync.authenticator import Authenticator
from msk_auth.core.errors import ConfigurationError, FieldError, InputInvalid, Problem
from msk_auth.core.model import Principal, UserT
from msk_auth.core.policy import SAFE_METHODS, Policy, any_credential, require
from msk_auth.http._async.routes import admin_key_routes, key_routes
from msk_auth.http.admission import (
    ADMITTED,
    Memory,
    keep_session,
    known_principal,
    loaded_user,
    session_of,
)
from msk_auth.http.answers import Answer, Errors
from msk_auth.http.openapi import TAG, complete_document, scheme_name
from msk_auth.http.routes import AdminKeyOperation, KeyOperation, Route
from msk_auth.users import RequestSession

from ._adapter import LoginOf
from ._asgi import PublicRoutes, Throttle
from ._starlette import RouteEntry, StarletteBase, read_in_order

__all__ = ["FastAPIAuth"]

# FastAPI's message for a body that is not UTF-8, or nested too deeply.
_BODY_ERROR: Final = "There was an error parsing the body"
_PLACES: Final = frozenset({"body", "query", "path", "header", "cookie"})
_MAX_ERRORS: Final = 50


class Guard(SecurityBase):
    """A dependency that returns the principal of a request or a websocket, or raises.

    Made by :class:`FastAPIAuth`. Replace a guard in a test with
    `app.dependency_overrides[auth.principal.dependency]`.

    Attributes:
        policies: The policy for safe methods, and the policy for other methods and for websockets.
    """

    def __init__(
        self,
        policy: Policy,
        unsafe: Policy | None,
        session: Depends | None,
        admit: Callable[[Memory, Policy, object], Awaitable[Principal[Any]]],
    ) -> None:
        # The completed document has other schemes: a guard may accept either of two.
        self.model: SecurityBaseModel = HTTPBearer()
        self.scheme_name: str = scheme_name([policy], unsafe)
        self.policies: tuple[Policy, Policy] = (policy, policy if unsafe is None else unsafe)
        self._admit = admit
        # FastAPI reads the signature when a route is declared. Without a dependency, it must not have `session`: FastAPI would
        # read it from the query, which a client chooses.
        connection, given = inspect.signature(self.__call__).parameters.values()
        more = [] if session is None else [given.replace(default=session)]
        self.__signature__: inspect.Signature = inspect.Signature([connection, *more])

    async def __call__(self, connection: HTTPConnection, session: object = None) -> Principal[Any]:
        """The principal.

        Args:
            connection: The request or websocket.
            session: The application's session of the request, if the adapter has its dependency.

        Raises:
            Problem: The credentials are missing or refused, or the policy is not met.
        """
        # A websocket has no method.
        policy = self.policies[connection.scope.get("method") not in SAFE_METHODS]
        return await self._admit(connection.scope, policy, session)


class FastAPIAuth(StarletteBase[UserT, Security], PublicRoutes[APIRouter, Request]):
    """Guards, error handlers and key routes for FastAPI.

    A guard is a dependency. Use it in `Annotated[Principal[User], …]` or in `dependencies=[…]`.

    Args:
        authenticator: The authenticator; also an attribute. An `Authenticator` runs in threads, so that a synchronous
            application needs one engine. None: give it to :meth:`install` later.
        logins: Functions that find a login in a request without a bearer credential, such as in its session: each takes the
            `HTTPConnection`, and returns a :class:`~msk_auth.Login` or None. They are called in this order.
        own_csrf_protection: True: the application's own protection against cross-site request forgery covers every guarded
            route, including the key routes. By default such a login is accepted for an unsafe method, or a websocket, only if
            the browser shows that a page of the same origin sent the request.
        header: The name of a header in which clients may send a key in place of `Authorization`, such as `X-API-Key`. A request
            with both is malformed, and tokens in this header are refused. None: keys are read only from `Authorization`.
        login_scheme: The scheme of logins in the OpenAPI document: `OAuth2PasswordBearer(tokenUrl=…)` keeps the form behind the
            button "Authorize". By default a bearer token.
        session: The application's dependency with the session of a request, such as `get_db`. The guards depend on it, so that
            :class:`~msk_auth.Users` read the user in that session; tests can replace it in `app.dependency_overrides`.

    Raises:
        ConfigurationError: There is a `session`, and the authenticator does not read users in a session.
    """

    # Applications register handlers for this class, or for its base class in Starlette.
    _http_exception = FastAPIHTTPException

    def __init__(
        self,
        authenticator: AsyncAuthenticator[UserT] | Authenticator[UserT] | None = None,
        *,
        logins: Sequence[LoginOf[HTTPConnection]] = (),
        own_csrf_protection: bool = False,
        header: str | None = None,
        login_scheme: SecurityBase | None = None,
        session: Callable[..., object] | None = None,
    ) -> None:
        self._session = None if session is None else Depends(session)
        super().__init__(
            authenticator,
            logins=logins,
            own_csrf_protection=own_csrf_protection,
            header=header,
            session=session,
        )
        self._login_scheme = login_scheme
        self._guards: dict[tuple[Policy, Policy | None, bool], Security] = {}

    @property
    def principal(self) -> Security:
        """A guard that requires only authentication, for `Annotated[Principal[User], auth.principal]`."""
        return self._guard(Policy())

    def principal_of(self, connection: HTTPConnection) -> Principal[UserT]:
        """The principal of a request that a guard has admitted, for functions that take the request and depend on no guard.

        Raises:
            Problem: The credentials are missing or were refused.
            ConfigurationError: No guard has verified the request: call :meth:`is_admitted` first.
        """
        return known_principal(connection.scope, self._bound_in(connection.scope)._authenticator)

    @property
    def any_credential(self) -> Security:  # type: ignore[override]
        """A guard that accepts every credential, even a scoped key.

        For information that a key may read about itself, and other operations that need no permission.
        """
        return self._guard(any_credential())

    def protect(self, policy: Policy, *, unsafe: Policy | None = None) -> Security:
        """A guard for a whole router, by method.

        ::

            router = APIRouter(dependencies=[auth.protect(require("tasks:read"), unsafe=require("tasks:write"))])

        For an unchanged router, use it in `app.include_router(router, dependencies=[…])`. A route's own guard applies in
        addition.

        Args:
            policy: The policy of every request: :func:`~msk_auth.require` or :func:`~msk_auth.require_interactive`.
            unsafe: The policy for websockets, and for methods other than GET, HEAD, OPTIONS and TRACE. None: the same policy.
        """
        return self._guard(policy, unsafe)

    @cached_property
    def owner_id(self) -> Depends:
        """The id of the principal's owner, for `Annotated[str, auth.owner_id]`, with the same guard as :attr:`principal`."""

        # FastAPI reads the default; the type of the principal is the application's.
        async def owner_id(principal: Any = self.principal) -> str:
            known: Principal[UserT] = principal
            return known.owner.id

        return Depends(owner_id)

    def user(self, *permissions: str, load_user: Callable[..., object] | None = None) -> Depends:
        """A guard that returns the application's user, for `Reader = Annotated[User, auth.user("tasks:read")]`.

        Its policy is `require` with these permissions. The user is loaded once per request, in the request's own
        session. If the adapter has a `session`, :class:`~msk_auth.Users` load the user when the request is verified.
        Otherwise write `auth.user("tasks:read", load_user=load_user)` with a dependency that loads the user::

            def load_user(session: SessionDep, owner_id: Annotated[str, auth.owner_id]) -> User | None:
                return session.get(User, int(owner_id))

        If no user is found, the request is refused like that of a deleted owner: `owner_disabled` for a key, `token_revoked`
        for a login.

        Args:
            permissions: All of these are required. Without a permission, the policy is that of :attr:`principal`.
            load_user: A dependency of the application, `async` or not. None: the authenticator's `Users` load the user.

        Raises:
            ConfigurationError: A permission is malformed. There is no `load_user`, and the adapter has no `session` or its
                authenticator no `Users`. Or the function depends neither on :attr:`owner_id` nor on another guard, or takes
                `owner_id` from the query, which a client chooses.
        """
        guard = self._guard(require(*permissions))
        if load_user is None:
            self._demand_session()
            session = self._session

            async def user_in_session(
                connection: HTTPConnection, principal: Any = guard, session: Any = session
            ) -> Any:
                bound = self._bound_in(connection.scope)
                request = keep_session(connection.scope, bound._authenticator, lambda: session)
                return await bound._load_user(request, principal)

            return Depends(user_in_session)
        dependant = get_dependant(path="/", call=load_user)
        from_query = {field.name for field in dependant.query_params}
        is_guarded = any(isinstance(call, Guard) for call in _calls_in(dependant))
        if "owner_id" in from_query or not is_guarded:
            raise ConfigurationError(
                f"{load_user!r} does not depend on the caller of the request. Give it a parameter"
                " `owner_id: Annotated[str, auth.owner_id]`."
            )

        load = Depends(load_user)

        async def current_user(principal: Any = guard, loaded: Any = load) -> Any:
            return loaded_user(principal, loaded)

        return Depends(current_user)

    def key_routes(
        self,
        *,
        prefix: str = "/api/keys",
        operations: Collection[KeyOperation] | None = None,
        tags: Sequence[str] = (TAG,),
        operation_id: Callable[[str], str] | None = None,
    ) -> APIRouter:
        """A router with which people manage their own keys. Its guards cannot be removed.

        Args:
            prefix: The routes' prefix.
            operations: The operations to mount: `list_keys`, `create_key`, `get_key`, `update_key`, `rotate_key`, `revoke_key`,
                `delete_key`. By default all. In place of a missing operation the application can add its own route.
            tags: Tags of the routes in the OpenAPI document.
            operation_id: Returns a route's `operationId` for its name, such as `list_keys`. By default like those of the
                application's own routes.
        """
        return self._router(key_routes(operations), prefix, tags, operation_id)

    def admin_key_routes(
        self,
        permission: str,
        *,
        max_age: timedelta | None = None,
        prefix: str = "/api/admin/keys",
        operations: Collection[AdminKeyOperation] | None = None,
        tags: Sequence[str] = (TAG,),
        operation_id: Callable[[str], str] | None = None,
    ) -> APIRouter:
        """A router with which administrators list and revoke the keys of all owners. Its guards cannot be removed.

        Each requires an interactive login with the permission. They cannot create or extend keys, or show their values.

        Args:
            permission: The permission of administrators.
            max_age: The greatest age of their login; None means any.
            prefix: The routes' prefix.
            operations: The operations to mount: `list_all_keys`, `revoke_any_keys`, `revoke_any_key`. By default all.
            tags: Tags of the routes in the OpenAPI document.
            operation_id: As for :meth:`key_routes`.
        """
        return self._router(
            admin_key_routes(permission, max_age, operations), prefix, tags, operation_id
        )

    def _mount(self, row: Route, throttle: Throttle[Request] | None) -> APIRouter:
        return self._router([row], "", [TAG], None, throttle)

    def _router(
        self,
        rows: Sequence[Route],
        prefix: str,
        tags: Sequence[str],
        operation_id: Callable[[str], str] | None,
        throttle: Throttle[Request] | None = None,
    ) -> APIRouter:
        router = APIRouter(prefix=prefix, tags=list(tags))
        for row in rows:
            # For the documentation and the route audit: the endpoint checks the policy itself.
            # It holds no session of the application while the store waits for a connection of its own.
            guards = [] if row.policy is None else [self._guard(row.policy, in_session=False)]
            router.add_api_route(
                row.path,
                self._endpoint(row, throttle),
                methods=[row.method],
                name=row.name,
                dependencies=guards,
                # The endpoint's own answer counts; these two are for the document.
                status_code=row.status,
                response_class=Response,
                operation_id=None if operation_id is None else operation_id(row.name),
                openapi_extra=row.operation,
            )
        return router

    async def _admit(self, scope: Memory, policy: Policy, session: object) -> Principal[UserT]:
        bound = self._bound_in(scope)
        if session is not None:
            keep_session(scope, bound._authenticator, lambda: session)
        if policy.is_bare:
            # A bare guard for the principal as a parameter, beside a guard of the route with a policy for keys.
            for guard in _guards_of(scope):
                named = guard.policies[scope.get("method") not in SAFE_METHODS]
                if not named.is_bare:
                    await bound._verify(scope, named)
        principal = await bound._verify(scope, policy)
        scope[ADMITTED] = bound._authenticator
        return principal

    def _session_to_read_in(self, scope: Memory) -> RequestSession | None:
        # A guard that depends on the session has kept it.
        return session_of(scope, self._authenticator)

    def _prepare(self, app: Starlette, errors: Errors) -> None:
        if not isinstance(app, FastAPI):
            raise ConfigurationError("FastAPIAuth is for FastAPI. Use StarletteAuth for Starlette.")
        super()._prepare(app, errors)
        generate = app.openapi

        def openapi() -> dict[str, Any]:
            document, scheme = generate(), self._login_scheme
            if scheme is not None:
                schemes = document.setdefault("components", {}).setdefault("securitySchemes", {})
                definition = jsonable_encoder(scheme.model, by_alias=True, exclude_none=True)
                schemes.setdefault(scheme.scheme_name, definition)
            return complete_document(
                document,
                errors=errors,
                login_scheme=None if scheme is None else scheme.scheme_name,
                delegates=self.authenticator.rules.delegates,
                header=self._key_header,
            )

        app.openapi = openapi  # type: ignore[method-assign]

    def _add_handlers(self, handlers: dict[object, object]) -> None:
        # FastAPI has added its own handlers if the application has none.
        for kind, default in FastAPI().exception_handlers.items():
            if handlers.get(kind) is default:
                del handlers[kind]
        super()._add_handlers(handlers)
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
        # FastAPI reads the body before it calls the guards. A refused caller gets only the refusal.
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
        # An application may raise any JSON as `detail`; in a problem document it is text.
        members = {} if detail is None else {"context": jsonable_encoder(detail)}
        return self._renderer.http_error(error.status_code, members=members)

    def _guard(
        self, policy: Policy, unsafe: Policy | None = None, *, in_session: bool = True
    ) -> Security:
        # One object for each policy, so that FastAPI calls it once per request.
        session = self._session if in_session else None
        key = (policy, unsafe, session is None)
        if key not in self._guards:
            # The name of its scheme contains the permissions. FastAPI would call a dependency once for each list of scopes.
            self._guards[key] = Security(Guard(policy, unsafe, session, self._admit))
        return self._guards[key]


def _fields(errors: Sequence[Mapping[str, Any]]) -> list[FieldError]:
    return [
        FieldError(_dotted(each.get("loc", ())), str(each.get("msg", "This is not acceptable.")))
        for each in errors[:_MAX_ERRORS]
    ]


def _dotted(location: Sequence[object]) -> str:
    names = location[1:] if location and location[0] in _PLACES else location
    return ".".join(str(name) for name in names)


def _guards_of(scope: Mapping[str, Any]) -> list[Guard]:
    """The guards of the route that a request was for, except those that a test replaced."""
    route = scope.get("route")
    # In newer versions the dependencies of an inclusion are not on the route itself: one router may be included several times.
    included = scope.get("fastapi", {}).get("effective_route_context")
    if getattr(included, "original_route", None) is route:
        route = included
    calls = _calls_of(route, scope["app"].dependency_overrides)
    return [call for call in calls if isinstance(call, Guard)]


def _calls_of(route: object, replaced: Collection[object]) -> list[object]:
    """The endpoint of a route and all of its dependencies, except those that a test replaced."""
    # Only FastAPI's own routes have dependencies.
    dependant: Dependant | None = getattr(route, "dependant", None)
    if dependant is None:
        return []
    # The endpoint cannot be replaced, and need not be hashable.
    endpoint, *dependencies = _calls_in(dependant)
    return [endpoint, *(call for call in dependencies if call not in replaced)]


def _calls_in(dependant: Dependant) -> Iterator[object]:
    yield dependant.call
    for each in dependant.dependencies:
        yield from _calls_in(each)


# The route audit.


def _read(app: FastAPI | APIRouter, prefix: str) -> Iterator[AuditedRoute]:
    """The routes of a FastAPI application or a router, with the guards among their dependencies.

    Newer versions of FastAPI keep an included router as one entry of the table, older ones do not. The function that lists its
    routes is looked up by name, so that every version works.
    """
    router = app.router if isinstance(app, FastAPI) else app
    # A guard that a test has replaced does not count.
    replaced = app.dependency_overrides if isinstance(app, FastAPI) else {}
    flatten = getattr(fastapi.routing, "iter_route_contexts", list)
    entries = (_entry(shown, replaced) for shown in flatten(router.routes))
    yield from read_in_order(entries, router, prefix)


def _entry(shown: Any, replaced: Collection[object]) -> RouteEntry:
    calls = _calls_of(shown, replaced)
    guards = tuple(call.policies for call in calls if isinstance(call, Guard))
    own_guard = any(map(has_own_guard, calls))
    return RouteEntry(getattr(shown, "original_route", shown), shown, guards, own_guard)


register_reader(FastAPI, _read)
register_reader(APIRouter, _read)
