"""The Starlette adapter.

::

    auth = StarletteAuth(authenticator)


    @auth.require("tasks:read")
    async def tasks(request: Request) -> Response:
        return JSONResponse({"owner": auth.principal(request).owner.id})


    app = Starlette(routes=[Route("/tasks", tasks), *auth.key_routes(prefix="/api/keys")])
    auth.install(app)

An application that wants `request.user` and `request.auth` everywhere adds
`Middleware(AuthenticationMiddleware, backend=auth)`. The middleware refuses no request: a route without
a guard stays public.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any, Final, Generic, NoReturn, ParamSpec, Protocol, TypeVar, cast, overload

from starlette.authentication import (
    AuthCredentials,
    AuthenticationBackend,
    BaseUser,
)
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection
from starlette.routing import BaseRoute, Route

from msk_auth.core.errors import ConfigurationError, CredentialsMissing, Problem
from msk_auth.core.model import Principal, UserT
from msk_auth.core.policy import Policy, require, require_interactive
from msk_auth.http.admission import known_principal
from msk_auth.http.key_routes import KEY_ROUTES
from msk_auth.http.leak_routes import leak_route, revocation_route
from msk_auth.http.routes import Route as Row
from msk_auth.http.routes import check_path
from msk_auth.leaks import AsyncGitHubLeakReceiver

from ._starlette import StarletteBase, Throttle, declare

__all__ = ["AuthenticatedUser", "StarletteAuth"]

_AUTHENTICATED: Final = Policy()

P = ParamSpec("P")
T = TypeVar("T")


class AuthenticatedUser(BaseUser, Generic[UserT]):
    """What `request.user` is on a request with accepted credentials.

    Attributes:
        principal: Who the request acts as.
    """

    def __init__(self, principal: Principal[UserT]) -> None:
        self.principal = principal

    @property
    def is_authenticated(self) -> bool:
        """True."""
        return True

    @property
    def identity(self) -> str:
        """The owner's id."""
        return self.principal.owner.id

    @property
    def display_name(self) -> str:
        """The owner's id: the library knows no other name."""
        return self.principal.owner.id


class _Undecided(BaseUser):
    """`request.user` and `request.auth` of a request whose credentials were not accepted.

    A public route that does not read them is unaffected. One that reads them must not take a broken
    key, or a store that is down, for a visitor without credentials: it gets the problem.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    def _refuse(self) -> NoReturn:
        raise self._problem.with_traceback(None)

    @property
    def is_authenticated(self) -> bool:
        self._refuse()

    @property
    def identity(self) -> str:
        self._refuse()

    @property
    def display_name(self) -> str:
        self._refuse()

    @property
    def scopes(self) -> list[str]:
        self._refuse()


class Decorator(Protocol):
    """What :meth:`StarletteAuth.require` returns: it decorates endpoints, async or not."""

    @overload
    def __call__(
        self, endpoint: Callable[P, Awaitable[T]], /
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __call__(self, endpoint: Callable[P, T], /) -> Callable[P, Coroutine[Any, Any, T]]: ...


class StarletteAuth(StarletteBase[UserT], AuthenticationBackend):
    """Guards, error handlers, key routes and an authentication backend for Starlette.

    Args:
        authenticator: Decides; also an attribute.

    Raises:
        ConfigurationError: It is not an `AsyncAuthenticator`.
    """

    def require(self, *permissions: str) -> Decorator:
        """A decorator for endpoints that demands to be authenticated, with all of these permissions.

        It goes on functions, sync or async, that take a request or a websocket, and on the methods of
        an `HTTPEndpoint` or `WebSocketEndpoint`. A sync function still runs in the thread pool; the
        guard does not.
        """
        return self._decorator(require(*permissions))

    def require_interactive(self, *permissions: str, max_age: timedelta | None = None) -> Decorator:
        """A decorator for endpoints that demands an interactive login; no API key passes.

        Args:
            permissions: All of these are needed.
            max_age: The greatest age of the login (RFC 9470); None means any.
        """
        return self._decorator(require_interactive(*permissions, max_age=max_age))

    def principal(self, connection: HTTPConnection) -> Principal[UserT]:
        """The principal of a request that a guard or the middleware has verified.

        Raises:
            Problem: Its credentials are missing or were refused.
            ConfigurationError: Neither a guard nor the middleware has verified it.
        """
        principal = known_principal(connection.scope, self.authenticator)
        if principal is None:
            raise ConfigurationError(
                "principal() was called on a route without a guard. Decorate its endpoint with"
                " @auth.require(), or add Middleware(AuthenticationMiddleware, backend=auth)."
            )
        return principal

    def key_routes(self, *, prefix: str = "/api/keys") -> list[BaseRoute]:
        """Routes with which people manage their own keys. Their guards cannot be taken off.

        Raises:
            ConfigurationError: The prefix does not begin with a slash, or ends with one.
        """
        check_path(prefix, "/api/keys")
        return [self._mount(row, prefix) for row in KEY_ROUTES]

    def revocation_route(
        self, *, path: str = "/api/revoke", throttle: Throttle | None
    ) -> BaseRoute:
        """A route that revokes the key in the body, without a login: `POST` with `token=…` as a form, or as JSON.

        The answer is the same whether the key exists or not (RFC 7009, section 2.2). What is no complete key is refused:
        that needs no look-up.

        Args:
            path: Where to serve it.
            throttle: Called with each request first; it raises :class:`~msk_auth.TooManyAttempts` for one too many.
                Pass None if something in front of the application limits requests already.

        Raises:
            ConfigurationError: The path does not begin with a slash, or ends with one.
        """
        return self._mount(revocation_route(path), throttle=throttle)

    def leak_route(
        self,
        receiver: AsyncGitHubLeakReceiver,
        *,
        path: str = "/api/leaks/github",
        throttle: Throttle | None,
    ) -> BaseRoute:
        """A route that receives the reports of GitHub's secret scanning. It is public, and takes signed reports only.

        Args:
            receiver: Checks the reports and revokes the keys.
            path: Where to serve it.
            throttle: As for :meth:`revocation_route`.

        Raises:
            ConfigurationError: The path does not begin with a slash, or ends with one, or the receiver is of the other
                kind.
        """
        return self._mount(leak_route(path, receiver, AsyncGitHubLeakReceiver), throttle=throttle)

    def _mount(self, row: Row, prefix: str = "", throttle: Throttle | None = None) -> Route:
        endpoint = self._endpoint(row, throttle)
        return Route(prefix + row.path, endpoint, methods=[row.method], name=row.name)

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
        """For Starlette's `AuthenticationMiddleware`: what `request.auth` and `request.user` will be.

        `request.auth.scopes` holds `authenticated` and the permissions. It cannot tell a login from
        an API key: that takes :meth:`require_interactive`.
        """
        try:
            principal = await self._verify(conn.scope, _AUTHENTICATED, afresh=False)
        except CredentialsMissing:
            return None
        except Problem as problem:
            undecided = _Undecided(problem)
            return cast("AuthCredentials", undecided), undecided
        scopes = ["authenticated", *sorted(principal.permissions)]
        return AuthCredentials(scopes), AuthenticatedUser(principal)

    def _decorator(self, policy: Policy) -> Decorator:
        def decorate(endpoint: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
            if inspect.isclass(endpoint) or not callable(endpoint):
                raise ConfigurationError(
                    f"A guard goes on a function or a method, not on {endpoint!r}. On a class-based"
                    " endpoint decorate its methods: get, post, on_connect."
                )
            is_async = inspect.iscoroutinefunction(endpoint) or inspect.iscoroutinefunction(
                getattr(endpoint, "__call__", None)  # noqa: B004 - asks whether it is async
            )

            @functools.wraps(endpoint)
            async def guarded(*args: Any, **kwargs: Any) -> Any:
                await self.admit(_connection(args, kwargs), policy)
                if is_async:
                    return await endpoint(*args, **kwargs)
                return await run_in_threadpool(endpoint, *args, **kwargs)

            return declare(guarded, policy)

        return cast("Decorator", decorate)


def _connection(args: tuple[Any, ...], kwargs: dict[str, Any]) -> HTTPConnection:
    for value in (*args, *kwargs.values()):
        if isinstance(value, HTTPConnection):
            return cast("HTTPConnection", value)
    raise ConfigurationError("A guarded endpoint was called without a request or a websocket.")
