"""The Litestar adapter.

::

    auth = LitestarAuth(authenticator)


    @get("/tasks", guards=[auth.require("tasks:read")])
    async def tasks(principal: NamedDependency[Principal[User]]) -> list[Task]: ...


    @get("/health", opt=auth.public)
    async def health() -> None: ...


    app = Litestar([tasks, health, auth.key_routes(path="/api/keys")], plugins=[auth])

Every handler declares its policy, by its own guards or those of a layer above it, or that it is
public: HTTP, websockets, static files and mounted applications. For other handlers use the
adapter's `paths` and `default`; otherwise their registration is an error. The OPTIONS that Litestar answers
itself have the policies of the path's other methods, except for CORS preflights: they have no credentials, and call no
handler of the application.

`principal` is injected by name; `request.user` and `request.auth` are the user and the principal. The user is that of the
`Owner`, or with a `session` the application's own, in the request's session.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from datetime import timedelta
from functools import wraps
from typing import Any, Final, Self, cast

from litestar import HttpMethod, Litestar, Request, Response, Router, route
from litestar.config.app import AppConfig
from litestar.connection import ASGIConnection
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler, WebsocketRouteHandler
from litestar.logging.config import BaseLoggingConfig
from litestar.openapi.spec import OpenAPI, Operation
from litestar.plugins import InitPlugin, ReceiveRoutePlugin
from litestar.routes import BaseRoute, HTTPRoute
from litestar.security import AbstractSecurityConfig
from litestar.types import ASGIApp, Receive, Scope, Send
from litestar.utils import join_paths

from msk_auth._async.authenticator import AsyncAuthenticator
from msk_auth._route_audit import (
    ANY_METHOD,
    AuditedRoute,
    OwnGuard,
    RouteKind,
    has_own_guard,
    own_guard,
    register_reader,
)
from msk_auth._sync.authenticator import Authenticator
from msk_auth.core.errors import ConfigurationError, Problem
from msk_auth.core.model import Principal, UserT
from msk_auth.core.policy import Policy, named_first
from msk_auth.http._async.routes import admin_key_routes, key_routes
from msk_auth.http.admission import ADMITTED, Memory, known_principal, loaded_user
from msk_auth.http.answers import Errors
from msk_auth.http.openapi import TAG, complete_document, scheme_name
from msk_auth.http.routes import AdminKeyOperation, KeyOperation
from msk_auth.http.routes import Route as Row

from ._adapter import LoginOf
from ._asgi import (
    AsgiAuth,
    PublicRoutes,
    Throttle,
    body_chunks,
    call_awaited,
    read_stream,
    refuse_websocket,
    values,
)
from ._litestar import ErrorAnswers, JWTLogin, PathPolicies, check_policy, to_response

__all__ = ["JWTLogin", "LitestarAuth"]

_PUBLIC: Final = "msk_auth_public"
_PAGES: Final = "msk_auth_pages"
"""Marks the handlers of Litestar's OpenAPI pages."""
_POLICIES: Final = "msk_auth_policies"
"""The key in `opt` for the policies of a registered handler: a tuple, empty if it is public."""

_OWN_GUARD: Final = "msk_auth_own_guard"
"""The key in `opt` that marks a registered handler as guarded by the application itself."""

_DEPENDENCY: Final = "principal"

_log = logging.getLogger("msk_auth.integrations")


class Guard:
    """A guard that admits a request or a websocket, or raises. Made by :class:`LitestarAuth`.

    Attributes:
        auth: The plugin that made the guard.
        policy: The policy.
    """

    def __init__(
        self, auth: LitestarAuth[Any], policy: Policy, admit: Callable[[Memory], Awaitable[None]]
    ) -> None:
        self.policy = policy
        self.auth = auth
        self._admit = admit

    async def __call__(
        self, connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler
    ) -> None:
        """Admit the connection.

        Raises:
            Problem: The credentials are missing or refused, or the policy is not met.
            ConfigurationError: The application does not have the guard's plugin.
        """
        # The middleware has already verified the request. But the application may lack this middleware, and another middleware
        # may have changed the headers.
        await self._admit(cast("Memory", connection.scope))

    def __deepcopy__(self, _memo: object) -> Guard:
        # Litestar copies routers; there is only one authenticator.
        return self


class LitestarAuth(
    AsgiAuth[UserT, Guard, ASGIConnection[Any, Any, Any, Any]],
    PublicRoutes[HTTPRouteHandler, Request[Any, Any, Any]],
    InitPlugin,
    ReceiveRoutePlugin,
):
    """A plugin: guards, error handlers, the principal as a dependency, OpenAPI, and key routes.

    Args:
        authenticator: The authenticator; also an attribute. An `Authenticator` runs in threads, so that a synchronous
            application needs one engine. None: each application has its own, see :meth:`bind`.
        default: The policy of handlers that declare nothing, including the OpenAPI pages. None: the pages are public, and other
            handlers that declare nothing are an error.
        paths: Policies of handlers that declare nothing and cannot have a guard, such as other plugins', by the path of their
            registration: `{"/jobs/*": require_interactive("jobs"), "/static/*": None}`. `/jobs/*` is `/jobs` and all paths
            below, None is public, `own_guard` is for handlers that a guard or a middleware of the application guards. The longest
            entry counts. They override `default`; guards of the whole application also apply, unless the entry is None.
        own_auth: Litestar's own authentication that the application keeps, such as its `JWTAuth` or `SessionAuth`. A handler
            with a guard of this library, its own or of a layer below the application, is verified only by this guard, because
            `own_auth` refuses keys. `own_auth` still protects handlers that declare nothing. Its `exclude_opt_key` and
            security scheme are the defaults of the next two arguments.
        exclude_opt_key: The member of `opt` that makes handlers public if it is True, besides :attr:`public`: `exclude_from_auth`
            for Litestar's own authentication. A guard on the handler, its controller or a router overrides it:
            Litestar's authentication then skips the handler, and the guard decides. The same is true for the routes of the
            library.
        login_scheme: The name of the application's own security scheme for logins in the OpenAPI document:
            `BearerToken` for Litestar's own JWT authentication. By default the library adds a scheme.
        errors: The errors to answer. By default only :class:`~msk_auth.errors.Problem`; other errors of Litestar and the
            application stay unchanged. `http` answers refusals as Litestar's own HTTP errors of the same status, with the
            application's handler for them, if any. `all` also answers HTTP errors, validation errors and unexpected exceptions
            with problem documents, unless the application has a handler for them.
        logins: Functions that find a login in a request without a bearer credential, such as in its session: each takes the
            `ASGIConnection`, and returns a :class:`~msk_auth.Login` or None. They are called in this order.
        own_csrf_protection: True: the application's own protection against cross-site request forgery covers every guarded
            route, including the key routes. By default such a login is accepted for an unsafe method, or a websocket, only if
            the browser shows that a page of the same origin sent the request.
        header: The name of a header in which clients may send a key in place of `Authorization`, such as `X-API-Key`. A request
            with both is malformed, and tokens in this header are refused. None: keys are read only from `Authorization`.
        session: Returns the application's session of a connection; with advanced-alchemy
            `lambda connection: alchemy.provide_session(connection.app.state, connection.scope)`, the session of the handlers.
            :class:`~msk_auth.Users` read the user in it, for guards, for :meth:`user` and for `connection.user`.

    Raises:
        ConfigurationError: An entry of `paths`, or `default`, is malformed, or there is a `session` and the authenticator does not
            read users in a session.
    """

    _errors: ErrorAnswers

    def __init__(
        self,
        authenticator: AsyncAuthenticator[UserT] | Authenticator[UserT] | None = None,
        *,
        default: Policy | OwnGuard | None = None,
        paths: Mapping[str, Policy | OwnGuard | None] | None = None,
        own_auth: AbstractSecurityConfig[Any, Any] | None = None,
        exclude_opt_key: str | None = None,
        login_scheme: str | None = None,
        errors: Errors = "problems",
        logins: Sequence[LoginOf[ASGIConnection[Any, Any, Any, Any]]] = (),
        own_csrf_protection: bool = False,
        header: str | None = None,
        session: Callable[[ASGIConnection[Any, Any, Any, Any]], object] | None = None,
    ) -> None:
        super().__init__(
            authenticator,
            logins=logins,
            own_csrf_protection=own_csrf_protection,
            header=header,
            session=session,
        )
        check_policy(default, "default")
        if own_auth is not None:
            exclude_opt_key = exclude_opt_key or own_auth.exclude_opt_key
            login_scheme = login_scheme or next(iter(own_auth.security_requirement))
        self._default = default
        self._own_auth = own_auth
        self._paths = PathPolicies(paths or {})
        self._exclude_opt_key = exclude_opt_key or _PUBLIC
        self._login_scheme = login_scheme
        self._answered: Errors = errors

    def bind(
        self, authenticator: AsyncAuthenticator[UserT] | Authenticator[UserT]
    ) -> LitestarAuth[UserT]:
        """The plugin of an application with its own authenticator.

        Create the adapter without an authenticator in the module of the handlers and guards, and write in the factory of the
        application: `Litestar(…, plugins=[auth.bind(authenticator)])`.

        Raises:
            ConfigurationError: The argument is not an authenticator, or the adapter already has one.
        """
        return self._bound_to(authenticator, "plugins=[auth.bind(authenticator)]")

    @property
    def public(self) -> dict[str, Any]:
        """The `opt` of a handler, router or controller that needs no credentials."""
        return {_PUBLIC: True}

    def _guard(self, policy: Policy) -> Guard:
        return Guard(self, policy, self._admit)

    def user(self, load_user: Callable[..., object] | None = None) -> Provide:
        """The application's user as a dependency, for `dependencies={"user": auth.user()}`.

        The user is loaded once per request, in the request's session. If the plugin has a `session`, :class:`~msk_auth.Users`
        load the user when the request is verified. Otherwise write `auth.user(load_user)` with a
        dependency that loads the user::

            async def load_user(principal: Principal[None], db_session: AsyncSession) -> User | None:
                return await db_session.get(User, int(principal.owner.id))

        If no user is found, the request is refused like that of a deleted owner: `owner_disabled` for a key, `token_revoked`
        for a login. Its handlers need a guard.

        Args:
            load_user: A dependency of the application that takes `principal`; a blocking function runs in a thread. None: the
                authenticator's `Users` load the user.

        Raises:
            ConfigurationError: There is no `load_user`, and the plugin has no `session` or its authenticator no `Users`. Or the
                function does not take `principal`: Litestar would take an id from the query, which a client chooses.
        """
        if load_user is None:
            self._demand_session()
            return Provide(self._provide_user)
        if _DEPENDENCY not in inspect.signature(load_user).parameters:
            raise ConfigurationError(
                f"{load_user!r} does not depend on the caller of the request. Give it a parameter"
                f" `{_DEPENDENCY}: Principal[…]`, and use `{_DEPENDENCY}.owner.id`."
            )

        # Litestar reads the parameters of `load_user`.
        @wraps(load_user)
        async def provide_user(**given: Any) -> object:
            principal: Principal[UserT] = given[_DEPENDENCY]
            found: object = await call_awaited(load_user, **given)
            return loaded_user(principal, found)

        return Provide(provide_user)

    async def _provide_user(self, scope: Scope) -> Any:
        memory = cast("Memory", scope)
        bound = self._bound_in(memory)
        principal = known_principal(memory, bound._authenticator)
        return await bound._load_user(bound._request_session(memory), principal)

    def key_routes(
        self,
        *,
        path: str = "/api/keys",
        operations: Collection[KeyOperation] | None = None,
        tags: Sequence[str] = (TAG,),
        operation_id: Callable[[str], str] | None = None,
    ) -> Router:
        """A router with which people manage their own keys. Its guards cannot be removed.

        Args:
            path: The routes' prefix.
            operations: The operations to mount: `list_keys`, `create_key`, `get_key`, `update_key`, `rotate_key`, `revoke_key`,
                `delete_key`. By default all. In place of a missing operation the application can register its own handler on
                the router.
            tags: Tags of the routes in the OpenAPI document.
            operation_id: Returns a route's `operationId` for its name, such as `list_keys`. By default like those of the
                application's own routes.
        """
        handlers = [self._mount(row, operation_id=operation_id) for row in key_routes(operations)]
        return Router(path, route_handlers=handlers, tags=list(tags))

    def admin_key_routes(
        self,
        permission: str,
        *,
        max_age: timedelta | None = None,
        path: str = "/api/admin/keys",
        operations: Collection[AdminKeyOperation] | None = None,
        tags: Sequence[str] = (TAG,),
        operation_id: Callable[[str], str] | None = None,
    ) -> Router:
        """A router with which administrators list and revoke the keys of all owners. Its guards cannot be removed.

        Each requires an interactive login with the permission. They cannot create or extend keys, or show their values.

        Args:
            permission: The permission of administrators.
            max_age: The greatest age of their login; None means any.
            path: The routes' prefix.
            operations: The operations to mount: `list_all_keys`, `revoke_any_keys`, `revoke_any_key`. By default all.
            tags: Tags of the routes in the OpenAPI document.
            operation_id: As for :meth:`key_routes`.
        """
        rows = admin_key_routes(permission, max_age, operations)
        handlers = [self._mount(row, operation_id=operation_id) for row in rows]
        return Router(path, route_handlers=handlers, tags=list(tags))

    def _mount(
        self,
        row: Row,
        throttle: Throttle[Request[Any, Any, Any]] | None = None,
        operation_id: Callable[[str], str] | None = None,
    ) -> HTTPRouteHandler:
        # A function, not a method: Litestar copies a router deeply, including the object of a method.
        async def handle(request: Request[Any, Any, Any]) -> Response[bytes]:
            # Not `request.stream()`: it applies the application's limit, and treats a disconnect as a server error.
            chunks = body_chunks(request.receive)
            # Litestar removes the root path from `path`.
            root: str = cast("Memory", request.scope).get("root_path", "").rstrip("/")
            answer = await self._respond(
                row,
                request,
                path=root + request.scope["path"],
                read_body=lambda limit: read_stream(chunks, limit, passing=HTTPException),
                throttle=throttle,
            )
            return to_response(answer)

        handle.__name__ = row.name
        if row.status == 204:
            # Litestar reads from the annotation that there is no body.
            handle.__annotations__["return"] = Response[None]
        # Litestar's own authentication would refuse keys before the guard is called.
        opt = {} if self._exclude_opt_key == _PUBLIC else {self._exclude_opt_key: True}
        options: dict[str, Any] = {"opt": opt | self.public, "tags": [TAG]}
        if row.policy is not None:
            # For the documentation and the route audit: the route checks the policy itself.
            options = {"opt": opt, "guards": [self._guard(row.policy)]}
        return route(
            row.path.replace("}", ":str}") or "/",
            http_method=HttpMethod(row.method),
            name=f"msk_auth.{row.name}",
            status_code=row.status,
            operation_class=_operation_class(row),
            operation_id=None if operation_id is None else operation_id(row.name),
            **options,
        )(handle)

    def _bound_in(self, scope: Memory) -> Self:
        plugins = scope["litestar_app"].plugins
        if self in plugins:
            return self
        for plugin in plugins:
            if self.shares_guards_with(plugin):
                return cast("Self", plugin)
        message = (
            "A guarded handler is served by an application without its LitestarAuth. Write"
            " Litestar(…, plugins=[auth])."
        )
        # Litestar logs no exceptions by default, and this mistake must be easy to find.
        _log.error(message)
        raise ConfigurationError(message)

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        """Called by Litestar, or by another plugin from its own `on_app_init`: prepare an application.

        Raises:
            ConfigurationError: The application already has an adapter, or this adapter has no authenticator.
        """
        if self._middleware in app_config.middleware:
            return app_config
        if self not in app_config.plugins:
            app_config.plugins.append(self)
        if sum(isinstance(plugin, LitestarAuth) for plugin in app_config.plugins) != 1:
            raise ConfigurationError(
                "This application has several LitestarAuth plugins. Use one for all of its handlers."
            )
        self._bound_to(None, "plugins=[auth.bind(authenticator)]")
        self._errors = ErrorAnswers(self._renderer, self._answered)
        # Before all other middleware of the application.
        app_config.middleware.insert(0, self._middleware)
        app_config.dependencies.setdefault(_DEPENDENCY, Provide(self._provide_principal))
        self._describe(app_config)
        config = cast("Any", app_config)  # the types of these two are not complete
        config.exception_handlers = dict(config.exception_handlers)
        self._errors.add_to(config.exception_handlers)
        config.after_exception.append(self._errors.remember)
        config.lifespan.append(self._authenticator)
        if isinstance(config.logging_config, BaseLoggingConfig):
            # Applications may share the configuration. A refusal is an answer, not an error of the application: Litestar must
            # not log its traceback.
            config.logging_config = copy(config.logging_config)
            config.logging_config.disable_stack_trace = {
                *config.logging_config.disable_stack_trace,
                *_kinds(Problem),
            }
        return app_config

    def receive_route(self, route: BaseRoute) -> None:
        """Called by Litestar: collect the policies of a route's handlers.

        Raises:
            ConfigurationError: A handler declares nothing, or is both public and guarded; or another plugin removed the
                middleware or handlers of :meth:`on_app_init`.
        """
        served: Any = route
        handlers: list[Any] = (
            served.route_handlers if isinstance(route, HTTPRoute) else [served.route_handler]
        )
        automatic = [each for each in handlers if _answers_options(each)]
        others = [each for each in handlers if each not in automatic]
        for handler in handlers:
            if self._login_sources.functions:
                # The innermost of all: the session exists by then, whichever layer or plugin makes it.
                own_middleware: list[Any] = list(handler.middleware or ())
                if self._last_middleware not in own_middleware:
                    handler.middleware = [*own_middleware, self._last_middleware]
        for handler in others:
            declared = self._declared(handler, route.path)
            handler.opt[_OWN_GUARD] = declared is None
            policies = handler.opt[_POLICIES] = tuple(named_first(declared or ()))
            if policies and isinstance(handler, HTTPRouteHandler):
                _require_in_document(handler, policies)
        for handler in automatic:
            found = {policy: None for other in others for policy in other.opt[_POLICIES]}
            handler.opt[_POLICIES] = tuple(named_first(found))
            handler.opt[_OWN_GUARD] = any(other.opt[_OWN_GUARD] for other in others)

    def _declared(self, handler: BaseRouteHandler, path: str) -> tuple[Policy, ...] | None:
        """The policies of a handler; empty if it is public, None if the application guards it itself."""
        app, *layers = cast("Any", handler).ownership_layers
        if self._middleware not in app.middleware or Problem not in app.exception_handlers:
            raise ConfigurationError(
                "A plugin has replaced the middleware or the exception handlers of LitestarAuth."
                " List LitestarAuth after it, or call auth.on_app_init(app_config) at the end of its on_app_init."
            )
        # Guards of the whole application allow exceptions.
        root = _guards_of(app)
        own = [guard for layer in layers for guard in _guards_of(layer)]
        if not all(self.shares_guards_with(guard.auth) for guard in (*root, *own)):
            raise ConfigurationError(
                f"{handler} on {path} has a guard of a different LitestarAuth. Use the plugin of this application."
            )
        is_public = handler.opt.get(_PUBLIC) is True
        if is_public and own:
            raise ConfigurationError(
                f"{handler} on {path} is declared public and guarded as well. Remove"
                " opt=auth.public or the guard, there or on a layer above."
            )
        policies = tuple(guard.policy for guard in (*root, *own))
        if own:
            if self._own_auth is not None:
                handler.opt[self._exclude_opt_key] = True
            # Even if the handler is excluded from Litestar's own authentication: the stricter counts.
            return policies
        if is_public or handler.opt.get(self._exclude_opt_key) is True:
            return ()
        by_path = self._find_by_path(handler)
        if isinstance(by_path, tuple):
            return by_path and (*policies, *by_path)
        if root:
            # A mark does not remove the guards of this library.
            return policies
        if by_path is own_guard or _is_marked(handler, [app, *layers]):
            return None
        if isinstance(self._default, Policy):
            return (self._default,)
        if self._default is own_guard or self._is_behind_own_auth([app, *layers]):
            return None
        if handler.opt.get(_PAGES) is True:
            return ()
        raise ConfigurationError(
            f"{handler} on {path} declares no policy. Give it guards=[auth.require(…)] or"
            f" opt=auth.public; or, if it is another plugin's, write LitestarAuth(…, paths={{{path!r}: …}})."
            " If your application guards it itself, mark its guard with own_guard."
        )

    def _is_behind_own_auth(self, layers: Sequence[Any]) -> bool:
        if self._own_auth is None:
            return False
        kind = self._own_auth.middleware.middleware
        listed = [each for layer in layers for each in layer.middleware or ()]
        return any(getattr(each, "middleware", None) is kind for each in listed)

    def _find_by_path(self, handler: Any) -> tuple[Policy, ...] | OwnGuard | None:
        # A handler serves all of its paths, and the guard is on the handler.
        above = [layer.path for layer in handler.ownership_layers[:-1]]
        paths = [join_paths([*above, path]) for path in sorted(handler.paths)]
        found = {self._paths.find(path) for path in paths}
        if len(found) > 1:
            raise ConfigurationError(
                f"{handler} serves {', '.join(paths)}, and LitestarAuth(…, paths=…) treats them differently. Give them"
                " the same policy."
            )
        return found.pop()

    def _connection(self, scope: Memory) -> ASGIConnection[Any, Any, Any, Any]:
        return ASGIConnection[Any, Any, Any, Any](cast("Scope", scope))

    # Called by Litestar, for each handler. Litestar's class for middleware would check each request for exclusions.
    def _middleware(self, app: ASGIApp) -> ASGIApp:
        """Verify a request before the rest of the application sees it, for handlers of every kind.

        With `logins` the last middleware does this: logins may read results of other middleware, such as `connection.session`.
        """
        inner = app if self._login_sources.functions else self._last_middleware(app)
        return self._serve(inner, self._errors.closing_with_codes)

    def _last_middleware(self, app: ASGIApp) -> ASGIApp:
        async def admit_and_continue(scope: Scope, receive: Receive, send: Send) -> None:
            connection: Any = scope
            try:
                await self._admit(connection)
            except Problem as problem:
                if connection["type"] != "websocket":
                    raise
                await refuse_websocket(connection, send, self._renderer.answer(problem))
            else:
                await app(scope, receive, send)

        return admit_and_continue

    async def _admit(self, scope: Memory) -> None:
        # A websocket has no method.
        if scope.get("method") == "OPTIONS" and _is_preflight(scope):
            return
        bound = self._bound_in(scope)
        handler = scope["route_handler"]
        policies: tuple[Policy, ...] = handler.opt[_POLICIES]
        # A route of the library must not occupy the application's session while the store waits for its own connection.
        in_session = bound._find_session is not None and handler.fn.__module__ != __name__
        for policy in policies:
            # For the application's own guards and dependencies.
            scope["auth"] = await bound._verify(scope, policy, in_session=in_session)
            scope["user"] = scope["auth"].owner.user
            scope[ADMITTED] = bound._authenticator
        if in_session and policies:
            scope["user"] = await bound._load_user(bound._request_session(scope), scope["auth"])

    async def _provide_principal(self, scope: Scope) -> Any:
        return known_principal(cast("Memory", scope), self._authenticator)

    def _describe(self, app_config: AppConfig) -> None:
        if app_config.openapi_config is None:
            return
        # Applications share the default configuration.
        config = app_config.openapi_config = copy(app_config.openapi_config)
        generate = config.to_openapi_schema

        def generate_completed() -> OpenAPI:
            """A document that is completed when Litestar writes it."""
            document = generate()
            write = document.to_schema

            def to_schema() -> dict[str, Any]:
                return complete_document(
                    write(),
                    errors=self._answered,
                    login_scheme=self._login_scheme,
                    delegates=self.authenticator.rules.delegates,
                    header=self._key_header,
                )

            document.to_schema = to_schema  # type: ignore[method-assign]
            return document

        config.to_openapi_schema = generate_completed  # type: ignore[method-assign]
        if config.openapi_router is not None or config.openapi_controller is not None:
            return
        config.openapi_router = Router(
            config.path or "/schema",
            route_handlers=[],
            include_in_schema=False,
            dto=None,
            return_dto=None,
            opt={_PAGES: True},
        )


def _guards_of(layer: Any) -> list[Guard]:
    """The guards of a handler, a controller, a router or an application, without those of layers above."""
    return [guard for guard in layer.guards or () if isinstance(guard, Guard)]


def _is_marked(handler: BaseRouteHandler, layers: Sequence[Any]) -> bool:
    guards = [guard for layer in layers for guard in layer.guards or ()]
    return any(has_own_guard(each) for each in (handler, handler.fn, *guards))


def _operation_class(row: Row) -> type[Operation]:
    """The document's operation of a route, which Litestar cannot read from the handler."""

    class RouteOperation(Operation):
        def to_schema(self) -> dict[str, Any]:
            return super().to_schema() | row.operation

    return RouteOperation


def _kinds(kind: type[Problem]) -> set[type[Problem]]:
    """The problems of the library, which are not logged; the application's `logging_config` decides about its own problems."""
    kinds = {kind} if kind.__module__.startswith("msk_auth.") else set[type[Problem]]()
    return kinds.union(*(_kinds(each) for each in kind.__subclasses__()))


def _require_in_document(handler: HTTPRouteHandler, policies: tuple[Policy, ...]) -> None:
    wanted: dict[str, list[str]] = {scheme_name(policies): []}
    security = list(handler.security or ())
    # A handler is registered once for each of its paths.
    if wanted not in security:
        handler.security = [*security, wanted]


def _answers_options(handler: BaseRouteHandler) -> bool:
    """True for the handler that Litestar adds to a path without OPTIONS."""
    return getattr(handler.fn, "__module__", None) == HTTPRoute.__module__


def _is_preflight(scope: Any) -> bool:
    """True for a CORS preflight (Fetch standard, "HTTP extensions") that Litestar answers itself.

    With a `cors_config`, or a similar middleware of the application, preflights do not arrive here.
    """
    names = (b"origin", b"access-control-request-method")
    return _answers_options(scope["route_handler"]) and all(values(scope, name) for name in names)


# The route audit.


def _read(app: Litestar, prefix: str) -> Iterator[AuditedRoute]:
    """The routes of a Litestar application."""
    for each in app.routes:
        path = prefix + each.path
        if isinstance(each, HTTPRoute):
            # The order of the handlers differs at each start.
            for handler in sorted(each.route_handlers, key=_methods_of):
                yield _found(handler, path, _methods_of(handler), "route")
            continue
        handler = cast("Any", each).route_handler
        if isinstance(handler, WebsocketRouteHandler):
            yield _found(handler, path, (), "websocket")
        else:
            yield _found(handler, path, (ANY_METHOD,), "mount" if handler.is_mount else "route")


def _methods_of(handler: HTTPRouteHandler) -> tuple[str, ...]:
    return tuple(sorted(handler.http_methods))


def _found(handler: Any, path: str, methods: tuple[str, ...], kind: RouteKind) -> AuditedRoute:
    own_guard = handler.opt.get(_OWN_GUARD, False)
    policies = None if own_guard else handler.opt.get(_POLICIES)
    return AuditedRoute(
        path,
        methods,
        kind,
        handler.handler_name,
        policies,
        own_guard=own_guard,
        is_documentation=handler.opt.get(_PAGES) is True,
    )


register_reader(Litestar, _read)
