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
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from copy import copy
from datetime import timedelta
from functools import partial
from typing import Any, Final, Generic, TypeGuard, cast

from litestar import Litestar, Router
from litestar.config.app import AppConfig
from litestar.connection import ASGIConnection
from litestar.di import Provide
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.openapi.spec import Components, OpenAPI, SecurityScheme
from litestar.plugins import InitPlugin, ReceiveRoutePlugin
from litestar.routes import BaseRoute, HTTPRoute
from litestar.types import ASGIApp, Receive, Scope, Send

from msk_auth.authenticator import AsyncAuthenticator, Authenticator
from msk_auth.core.errors import ConfigurationError, Problem
from msk_auth.core.model import Principal, UserT
from msk_auth.core.policy import Policy, require, require_interactive
from msk_auth.http.admission import Memory, known_principal
from msk_auth.http.answers import Errors, ProblemRenderer, answers_all
from msk_auth.http.key_routes import check_prefix
from msk_auth.http.openapi import (
    BEARER_DESCRIPTION,
    INVALID,
    SCHEME_NAME,
    document_problems,
    operations,
)
from msk_auth.leaks import AsyncGitHubLeakReceiver
from msk_auth.watch import AsyncWatch

from . import _asgi
from ._litestar_errors import ErrorAnswers
from ._litestar_keys import key_handlers
from ._litestar_leaks import Throttle, leak_handler, revocation_handler

__all__ = ["Guard", "LitestarAuth"]

_PUBLIC: Final = "msk_auth_public"
_POLICIES: Final = "msk_auth_policies"
"""Where a registered handler carries its policies, in `opt`: a tuple, empty if it is public."""

_DEPENDENCY: Final = "principal"
_AUTHENTICATED: Final = Policy()

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
        # The middleware has asked already. An application without it must not be open.
        admitted = self._auth.admission(connection, self.policy)
        if not isinstance(admitted, Principal):
            await admitted

    def is_of(self, auth: LitestarAuth[Any]) -> bool:
        """True if this adapter made it."""
        return self._auth is auth

    def __deepcopy__(self, _memo: object) -> Guard[UserT]:
        # Litestar copies routers; there is only one authenticator.
        return self


class LitestarAuth(InitPlugin, ReceiveRoutePlugin, Generic[UserT]):
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
        given = cast("object", authenticator)
        if isinstance(given, Authenticator):
            raise ConfigurationError(
                "LitestarAuth needs an AsyncAuthenticator; Authenticator would block the event loop."
                " Write AsyncAuthenticator(…) with an async store and async find_owner."
            )
        if not isinstance(given, AsyncAuthenticator):
            raise ConfigurationError(
                f"LitestarAuth needs an AsyncAuthenticator, not {type(given).__name__}."
            )
        self.authenticator = authenticator
        self._docs = docs
        self._installed_on: Litestar | None = None
        self._all_errors = answers_all(errors)
        renderer = ProblemRenderer(authenticator.realm, authenticator.problem_base)
        self._errors = ErrorAnswers(renderer, all_errors=self._all_errors)

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
        check_prefix(path)
        handlers = key_handlers(
            self.authenticator, admit=self.admit, guard=partial(Guard[UserT], self)
        )
        return Router(path, route_handlers=handlers, tags=["API keys"])

    def revocation_route(
        self, *, path: str = "/api/revoke", throttle: Throttle | None
    ) -> HTTPRouteHandler:
        """A handler with which whoever holds a key revokes it, without a login: `POST` with `token=…` as a form, or as JSON.

        The answer is the same whether there is such a key (RFC 7009, section 2.2). Only what is no complete key is
        refused, as anybody can tell it is none.

        Args:
            path: Where to serve it.
            throttle: Called with each request first; it raises :class:`~msk_auth.TooManyAttempts` for one too many. Say
                None if something in front of the application limits requests already.

        Raises:
            ConfigurationError: The path does not begin with a slash, or ends with one.
        """
        return revocation_handler(self.authenticator, path, throttle, self.public)

    def leak_route(
        self,
        receiver: AsyncGitHubLeakReceiver,
        *,
        path: str = "/api/leaks/github",
        throttle: Throttle | None,
    ) -> HTTPRouteHandler:
        """A handler to which GitHub's secret scanning sends what it finds. It is public, and takes signed reports only.

        Args:
            receiver: Checks the reports and revokes the keys.
            path: Where to serve it.
            throttle: As for :meth:`revocation_route`.

        Raises:
            ConfigurationError: The path does not begin with a slash, or ends with one, or the receiver is of the other
                kind.
        """
        return leak_handler(receiver, path, throttle, self.public)

    async def admit(
        self, connection: ASGIConnection[Any, Any, Any, Any], policy: Policy
    ) -> Principal[UserT]:
        """The principal of a request or websocket, if the policy lets it pass.

        Guards call it; so may code that decides on a policy as it runs. A request is verified once, a websocket that is
        open each time.

        Raises:
            Problem: The credentials are missing or refused, or the policy is not met.
            ConfigurationError: The application does not have this plugin.
        """
        admitted = self.admission(connection, policy)
        return admitted if isinstance(admitted, Principal) else await admitted

    def admission(
        self, connection: ASGIConnection[Any, Any, Any, Any], policy: Policy
    ) -> _asgi.Admission[UserT]:
        """As :meth:`admit`, without awaiting what need not be awaited: a principal, or something to await that gives it.

        Raises:
            Problem, ConfigurationError: As :meth:`admit`.
        """
        scope: Any = connection.scope
        if scope["litestar_app"] is not self._installed_on:
            self._check_installed(scope["litestar_app"])
        return _asgi.admission(scope, self.authenticator, policy)

    async def verify_again(
        self, connection: ASGIConnection[Any, Any, Any, Any], policy: Policy = _AUTHENTICATED
    ) -> Principal[UserT]:
        """The principal of a request or websocket as it is now, if the policy lets it pass: verified afresh, or within a lease.

        For what goes on after a request was admitted. :meth:`admit` remembers for the length of a request what it found.

        Args:
            connection: The request or websocket.
            policy: What it has to meet; the default is to be authenticated.

        Raises:
            Problem: The credentials are refused now, or the policy is not met.
            ConfigurationError: The application does not have this plugin.
        """
        scope: Any = connection.scope
        self._check_installed(scope["litestar_app"])
        principal = await _asgi.verify_again(scope, self.authenticator, policy)
        scope["user"], scope["auth"] = principal.owner.user, principal
        return principal

    def watch(self, principal: Principal[UserT], policy: Policy | None = None) -> AsyncWatch[UserT]:
        """A watch that ends what a websocket or an event stream does within two seconds of a revocation.

        `async with auth.watch(principal):` stands around what a websocket does, which is then closed with 1008 and the
        code of the refusal; a response streams `auth.watch(principal).stream(events())`.

        Args:
            principal: As it was admitted.
            policy: What it has to meet all the time. None: to keep every permission that it was admitted with.
        """
        return self.authenticator.watch(principal, policy)

    def _check_installed(self, app: Litestar) -> None:
        if self not in app.plugins:
            raise _misused(
                "A guarded handler is served by an application without its LitestarAuth. Write"
                " Litestar(…, plugins=[auth])."
            )
        # The plugins of an application stay the same, so the next request need not ask again.
        self._installed_on = app

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
        app_config.middleware.insert(0, self._stand_before)
        app_config.dependencies.setdefault(_DEPENDENCY, Provide(self._provide_principal()))
        self._describe(app_config)
        config = cast("Any", app_config)  # the types of these two are not complete
        config.exception_handlers = dict(config.exception_handlers)
        self._errors.add_to(config.exception_handlers)
        config.after_exception.append(self._errors.remember)
        config.lifespan.append(self._lifespan)
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
    def _stand_before(self, app: ASGIApp) -> ASGIApp:
        """Ask before anything else of the application sees a request, whatever kind of handler it is for."""
        authenticator = self.authenticator

        async def admit_and_go_on(scope: Scope, receive: Receive, send: Send) -> None:
            connection: Any = scope
            policies: tuple[Policy, ...] = connection["route_handler"].opt[_POLICIES]
            try:
                for policy in policies:
                    admitted = _asgi.admission(connection, authenticator, policy)
                    principal = admitted if isinstance(admitted, Principal) else await admitted
                    connection["user"], connection["auth"] = principal.owner.user, principal
            except Problem as problem:
                if connection["type"] != "websocket":
                    raise
                await self._errors.deny_websocket(connection, send, problem)
                return
            if connection["type"] == "websocket":
                send = self._errors.in_our_words(connection, send)
            await app(scope, receive, send)

        return admit_and_go_on

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


def _with_problems(kind: type[OpenAPI], generate: Callable[[], OpenAPI]) -> OpenAPI:
    return kind(**vars(generate()))


def _misused(message: str) -> ConfigurationError:
    # Litestar logs no exceptions unless told to, and nobody should have to look for this one.
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
