"""The Litestar adapter.

::

    auth = LitestarAuth(authenticator)


    @get("/tasks", guards=[auth.require("tasks:read")])
    async def tasks(principal: NamedDependency[Principal[User]]) -> list[Task]: ...


    @get("/health", opt=auth.public)
    async def health() -> None: ...


    app = Litestar([tasks, health, auth.key_routes(path="/api/keys")], plugins=[auth])

Every handler says what it demands, by its own guards or those of a layer above it, or that it is
public: HTTP, websockets, static files and mounted applications alike. One that says nothing is an
error when it is registered. The OPTIONS that Litestar answers by itself demand what the other methods of
the path do.

`principal` is injected by its name; `request.user` and `request.auth` hold the user and the principal.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from copy import copy
from datetime import timedelta
from functools import partial
from typing import Any, Final, Generic, TypeAlias, TypeGuard, cast

from litestar import HttpMethod, Litestar, Request, Response, Router, route
from litestar.config.app import AppConfig
from litestar.connection import ASGIConnection
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.handlers import (
    ASGIRouteHandler,
    BaseRouteHandler,
    HTTPRouteHandler,
    WebsocketRouteHandler,
)
from litestar.logging.config import BaseLoggingConfig
from litestar.openapi.spec import Components, OpenAPI, Operation, SecurityScheme
from litestar.plugins import InitPlugin, ReceiveRoutePlugin
from litestar.routes import BaseRoute, HTTPRoute
from litestar.types import ASGIApp, Receive, Scope, Send

from msk_auth._route_audit.audit import register_reader
from msk_auth._route_audit.report import ANY_METHOD, AuditedRoute, RouteKind
from msk_auth.authenticator import AsyncAuthenticator
from msk_auth.core.errors import ConfigurationError, Problem
from msk_auth.core.model import Principal, UserT
from msk_auth.core.policy import Policy, require, require_interactive
from msk_auth.http.admission import Memory, known_principal
from msk_auth.http.answers import Errors, answers_all
from msk_auth.http.key_routes import KEY_ROUTES
from msk_auth.http.leak_routes import leak_route, revocation_route
from msk_auth.http.openapi import (
    BEARER_DESCRIPTION,
    INVALID,
    SCHEME_NAME,
    document_problems,
    operations,
)
from msk_auth.http.routes import Route as Row
from msk_auth.http.routes import broken_body, check_path
from msk_auth.leaks import AsyncGitHubLeakReceiver

from ._asgi import AsgiAuth, read_stream
from ._litestar_errors import ErrorAnswers, to_response

__all__ = ["Guard", "LitestarAuth"]

_PUBLIC: Final = "msk_auth_public"
_POLICIES: Final = "msk_auth_policies"
"""Where a registered handler carries its policies, in `opt`: a tuple, empty if it is public."""

_DEPENDENCY: Final = "principal"
_TAG: Final = "API keys"

Throttle: TypeAlias = Callable[[Request[Any, Any, Any]], Awaitable[object]]
"""Counts a request that needs no login, and raises :class:`~msk_auth.TooManyAttempts` for one too many."""

_log = logging.getLogger("msk_auth.integrations")


class Guard(Generic[UserT]):
    """A guard that lets a request or a websocket pass, or raises. Made by :class:`LitestarAuth`.

    Attributes:
        policy: What it demands.
    """

    def __init__(self, auth: LitestarAuth[UserT], policy: Policy) -> None:
        self.policy = policy
        self._auth = auth

    async def __call__(
        self, connection: ASGIConnection[Any, Any, Any, Any], _handler: BaseRouteHandler
    ) -> None:
        """Let the connection pass.

        Raises:
            Problem: The credentials are missing or refused, or the policy is not met.
            ConfigurationError: The application does not have the plugin that the guard is of.
        """
        # The middleware has verified the request already. An application without it must not be open.
        await self._auth.admit(connection, self.policy)

    def is_of(self, auth: LitestarAuth[Any]) -> bool:
        """True if this adapter made it."""
        return self._auth is auth

    def __deepcopy__(self, _memo: object) -> Guard[UserT]:
        # Litestar copies routers; there is only one authenticator.
        return self


class LitestarAuth(AsgiAuth[UserT], InitPlugin, ReceiveRoutePlugin):
    """A plugin: guards, error handlers, the principal as a dependency, OpenAPI, and key routes.

    Args:
        authenticator: Decides.
        docs: What reading the OpenAPI pages demands, on top of guards of the application as a whole;
            None means nothing. It does not count where the application brings its own
            `openapi_router` or `openapi_controller`: those declare themselves.
        errors: Which errors are answered with problem documents. By default those of the library and others that are a
            :class:`~msk_auth.Problem`: what Litestar and the application raise is left as it is. `all` answers HTTP
            errors, validation errors and unexpected exceptions too, except where the application has a handler of its own.

    Raises:
        ConfigurationError: It is not an `AsyncAuthenticator`.
    """

    def __init__(
        self,
        authenticator: AsyncAuthenticator[UserT],
        *,
        docs: Policy | None = None,
        errors: Errors = "problems",
    ) -> None:
        super().__init__(authenticator)
        self._docs = docs
        self._all_errors = answers_all(errors)
        self._errors = ErrorAnswers(self._renderer, all_errors=self._all_errors)

    @property
    def public(self) -> dict[str, Any]:
        """The `opt` of a handler, router or controller that is for everybody."""
        return {_PUBLIC: True}

    def require(self, *permissions: str) -> Guard[UserT]:
        """A guard that demands to be authenticated, with all of these permissions."""
        return Guard(self, require(*permissions))

    def require_interactive(
        self, *permissions: str, max_age: timedelta | None = None
    ) -> Guard[UserT]:
        """A guard that demands an interactive login; no API key passes.

        Args:
            permissions: All of these are needed.
            max_age: The greatest age of the login (RFC 9470); None means any.
        """
        return Guard(self, require_interactive(*permissions, max_age=max_age))

    def key_routes(self, *, path: str = "/api/keys") -> Router:
        """A router with which people manage their own keys. Its guards cannot be taken off.

        Raises:
            ConfigurationError: The path does not begin with a slash, or ends with one.
        """
        check_path(path, "/api/keys")
        return Router(path, route_handlers=[self._mount(row) for row in KEY_ROUTES], tags=[_TAG])

    def revocation_route(
        self, *, path: str = "/api/revoke", throttle: Throttle | None
    ) -> HTTPRouteHandler:
        """A handler that revokes the key in the body, without a login: `POST` with `token=…` as a form, or as JSON.

        The answer is the same whether the key exists or not (RFC 7009, section 2.2). What is no complete key is refused:
        that needs no look-up.

        Args:
            path: Where to serve it.
            throttle: Called with each request first; it raises :class:`~msk_auth.TooManyAttempts` for one too many.
                Pass None if something in front of the application limits requests already.

        Raises:
            ConfigurationError: The path does not begin with a slash, or ends with one.
        """
        return self._mount(revocation_route(path), throttle)

    def leak_route(
        self,
        receiver: AsyncGitHubLeakReceiver,
        *,
        path: str = "/api/leaks/github",
        throttle: Throttle | None,
    ) -> HTTPRouteHandler:
        """A handler that receives the reports of GitHub's secret scanning. It is public, and takes signed reports only.

        Args:
            receiver: Checks the reports and revokes the keys.
            path: Where to serve it.
            throttle: As for :meth:`revocation_route`.

        Raises:
            ConfigurationError: The path does not begin with a slash, or ends with one, or the receiver is of the other
                kind.
        """
        return self._mount(leak_route(path, receiver, AsyncGitHubLeakReceiver), throttle)

    def _mount(self, row: Row, throttle: Throttle | None = None) -> HTTPRouteHandler:
        # A function, and no method: Litestar copies a router deeply, with all that a method is bound to.
        async def handle(request: Request[Any, Any, Any]) -> Response[bytes]:
            answer = await self._respond(
                row,
                request,
                path=_path(request),
                read_body=lambda limit: read_stream(_chunks(request), limit, passing=HTTPException),
                throttle=throttle,
            )
            return to_response(answer)

        handle.__name__ = row.name
        if row.status == 204:
            # Litestar reads from the annotation that there is no body.
            handle.__annotations__["return"] = Response[None]
        options: dict[str, Any] = {"opt": self.public, "tags": [_TAG]}
        if row.policy is not None:
            # For the documentation and the route audit: the flow of the route checks the policy by itself.
            options = {"guards": [Guard(self, row.policy)]}
        return route(
            row.path.replace("}", ":str}") or "/",
            http_method=HttpMethod(row.method),
            name=f"msk_auth.{row.name}",
            status_code=row.status,
            operation_class=_operation_class(row),
            **options,
        )(handle)

    def _publish(self, scope: Memory, principal: Principal[UserT]) -> None:
        scope["user"], scope["auth"] = principal.owner.user, principal

    def _check_installed(self, scope: Memory) -> None:
        if self not in scope["litestar_app"].plugins:
            raise _misused(
                "A guarded handler is served by an application without its LitestarAuth. Write"
                " Litestar(…, plugins=[auth])."
            )

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        """Called by Litestar: prepare an application.

        Raises:
            ConfigurationError: The application has another adapter already.
        """
        if sum(isinstance(plugin, LitestarAuth) for plugin in app_config.plugins) != 1:
            raise ConfigurationError(
                "This application has several LitestarAuth plugins. Use one for all of its handlers."
            )
        # Before whatever else the application does with a request.
        app_config.middleware.insert(0, self._middleware)
        app_config.dependencies.setdefault(_DEPENDENCY, Provide(self._provide_principal()))
        self._describe(app_config)
        config = cast("Any", app_config)  # the types of these two are not complete
        config.exception_handlers = dict(config.exception_handlers)
        self._errors.add_to(config.exception_handlers)
        config.after_exception.append(self._errors.remember)
        config.lifespan.append(self._lifespan)
        if isinstance(config.logging_config, BaseLoggingConfig):
            # Applications may share it. A refusal is an answer, not an error of the application: Litestar is not to log its traceback.
            config.logging_config = copy(config.logging_config)
            config.logging_config.disable_stack_trace = {
                *config.logging_config.disable_stack_trace,
                *_kinds(Problem),
            }
        return app_config

    def receive_route(self, route: BaseRoute) -> None:
        """Called by Litestar: find out what the handlers of a route demand.

        Raises:
            ConfigurationError: A handler declares nothing, or two things.
        """
        if not isinstance(route, HTTPRoute):
            handler = cast("BaseRouteHandler", getattr(route, "route_handler"))  # noqa: B009
            handler.opt[_POLICIES] = self._declared(handler, route.path)
            return
        automatic = [each for each in route.route_handlers if _answers_options(each)]
        others = [each for each in route.route_handlers if each not in automatic]
        for handler in others:
            policies = handler.opt[_POLICIES] = self._declared(handler, route.path)
            if policies:
                _require_in_document(handler, policies)
        for handler in automatic:
            found = {policy: None for other in others for policy in other.opt[_POLICIES]}
            handler.opt[_POLICIES] = tuple(found)

    def _declared(self, handler: BaseRouteHandler, path: str) -> tuple[Policy, ...]:
        guards = [guard for guard in cast("Any", handler).resolve_guards() if _is_guard(guard)]
        is_public = handler.opt.get(_PUBLIC) is True
        if is_public and guards:
            raise ConfigurationError(
                f"{handler} on {path} is declared public and guarded as well. Take off"
                " opt=auth.public or the guard, there or on a layer above."
            )
        if not is_public and not guards:
            raise ConfigurationError(
                f"{handler} on {path} declares no policy. Give it guards=[auth.require(…)] or"
                " opt=auth.public."
            )
        if not all(guard.is_of(self) for guard in guards):
            raise ConfigurationError(
                f"{handler} on {path} has a guard of another LitestarAuth. Use the one that is the"
                " plugin of this application."
            )
        return tuple(guard.policy for guard in guards)

    # Called by Litestar, for each handler. Its own class for middleware would look at each request for what it skips.
    def _middleware(self, app: ASGIApp) -> ASGIApp:
        """Verify a request before anything else of the application sees it, whatever kind of handler it is for."""

        async def admit_and_continue(scope: Scope, receive: Receive, send: Send) -> None:
            connection: Any = scope
            policies: tuple[Policy, ...] = connection["route_handler"].opt[_POLICIES]
            try:
                for policy in policies:
                    await self._verify(connection, policy, afresh=False)
            except Problem as problem:
                if connection["type"] != "websocket":
                    raise
                await self._errors.deny_websocket(connection, send, problem)
                return
            if connection["type"] == "websocket":
                send = self._errors.closing_with_codes(connection, send)
            await app(scope, receive, send)

        return admit_and_continue

    def _provide_principal(self) -> Callable[[Scope], Awaitable[Principal[UserT]]]:
        async def provide_principal(scope: Scope) -> Any:
            principal = known_principal(cast("Memory", scope), self.authenticator)
            if principal is None:
                raise _misused(
                    "A handler without a guard asks for the principal. Give it"
                    " guards=[auth.require()]."
                )
            return principal

        return provide_principal

    @asynccontextmanager
    async def _lifespan(self, _app: Litestar) -> AsyncGenerator[None]:
        async with self.authenticator:
            yield

    def _describe(self, app_config: AppConfig) -> None:
        if app_config.openapi_config is None:
            return
        # Applications share the default one.
        config = app_config.openapi_config = copy(app_config.openapi_config)
        scheme = SecurityScheme(type="http", scheme="bearer", description=BEARER_DESCRIPTION)
        ours = Components(security_schemes={SCHEME_NAME: scheme})
        theirs = config.components
        config.components = [*(theirs if isinstance(theirs, list) else [theirs]), ours]
        config.to_openapi_schema = partial(  # type: ignore[method-assign]
            _with_problems,
            _AllProblemsDocument if self._all_errors else _ProblemDocument,
            config.to_openapi_schema,
        )
        if config.openapi_router is None and config.openapi_controller is None:
            guards: list[object] = cast("Any", app_config).guards
            guarded_above = any(_is_guard(guard) for guard in guards)
            config.openapi_router = Router(
                config.path or "/schema",
                route_handlers=[],
                include_in_schema=False,
                dto=None,
                return_dto=None,
                guards=None if self._docs is None else [Guard(self, self._docs)],
                opt=self.public if self._docs is None and not guarded_above else None,
            )


class _ProblemDocument(OpenAPI):
    """A document whose guarded operations answer with problems."""

    def to_schema(self) -> dict[str, Any]:
        return document_problems(super().to_schema(), all_errors=False)


class _AllProblemsDocument(OpenAPI):
    """A document whose operations answer with problems, invalid input included."""

    def to_schema(self) -> dict[str, Any]:
        document = super().to_schema()
        for operation in operations(document):
            responses = operation.get("responses", {})
            if _is_validation_error(responses.get("400")):
                del responses["400"]
                responses.setdefault("422", INVALID)
        return document_problems(document, all_errors=True)


def declared_policies(handler: BaseRouteHandler) -> tuple[Policy, ...] | None:
    """What a handler demands as it was registered; empty if it is public, None without the plugin."""
    return handler.opt.get(_POLICIES)


def _operation_class(row: Row) -> type[Operation]:
    """What the document says of a route, whose handler shows Litestar nothing of it."""

    class RouteOperation(Operation):
        def to_schema(self) -> dict[str, Any]:
            return super().to_schema() | row.operation

    return RouteOperation


async def _chunks(request: Request[Any, Any, Any]) -> AsyncGenerator[bytes]:
    # Not `request.stream()`: that applies a limit of the application's, and calls a client that left a server error.
    more = True
    while more:
        message = cast("dict[str, Any]", await request.receive())
        if message["type"] == "http.disconnect":
            raise broken_body()
        yield message.get("body", b"")
        more = message.get("more_body", False)


def _path(request: Request[Any, Any, Any]) -> str:
    """The path as the client sees it. Litestar takes the root path off `path`."""
    scope = cast("Memory", request.scope)
    root: str = scope.get("root_path", "").rstrip("/")
    path: str = scope["path"]
    return root + path


def _with_problems(kind: type[OpenAPI], generate: Callable[[], OpenAPI]) -> OpenAPI:
    return kind(**vars(generate()))


def _kinds(kind: type[Problem]) -> set[type[Problem]]:
    """The problems of the library: those of the application are logged as it says."""
    kinds = {kind} if kind.__module__.startswith("msk_auth.") else set[type[Problem]]()
    return kinds.union(*(_kinds(each) for each in kind.__subclasses__()))


def _misused(message: str) -> ConfigurationError:
    # Litestar logs no exceptions by default, and this one has to be easy to find.
    _log.error(message)
    return ConfigurationError(message)


def _is_validation_error(response: object) -> bool:
    """True for Litestar's own description of invalid input."""
    return "'description': 'Validation Exception'" in str(response)


def _require_in_document(handler: HTTPRouteHandler, policies: tuple[Policy, ...]) -> None:
    permissions = frozenset[str]().union(*(policy.permissions for policy in policies))
    requirement = {SCHEME_NAME: sorted(permissions)}
    security = list(handler.security or ())
    # A handler is registered once for each of its paths.
    if requirement not in security:
        handler.security = [*security, requirement]


def _answers_options(handler: HTTPRouteHandler) -> bool:
    """True for the handler that Litestar adds to a path without OPTIONS."""
    return getattr(handler.fn, "__module__", None) == HTTPRoute.__module__


def _is_guard(value: object) -> TypeGuard[Guard[Any]]:
    return isinstance(value, Guard)


# The route audit.


def _read(app: Litestar, prefix: str) -> Iterator[AuditedRoute]:
    """The routes of a Litestar application."""
    for each in app.routes:
        path = prefix + each.path
        if isinstance(each, HTTPRoute):
            # Their order differs from one start to the next.
            for handler in sorted(each.route_handlers, key=_methods_of):
                yield _found(handler, path, _methods_of(handler), "route")
            continue
        handler = cast("Any", each).route_handler
        if isinstance(handler, WebsocketRouteHandler):
            yield _found(handler, path, (), "websocket")
        else:
            is_mount = isinstance(handler, ASGIRouteHandler) and handler.is_mount
            yield _found(handler, path, (ANY_METHOD,), "mount" if is_mount else "route")


def _methods_of(handler: HTTPRouteHandler) -> tuple[str, ...]:
    return tuple(sorted(handler.http_methods))


def _found(handler: Any, path: str, methods: tuple[str, ...], kind: RouteKind) -> AuditedRoute:
    return AuditedRoute(path, methods, kind, handler.handler_name, declared_policies(handler))


register_reader(Litestar, _read)
