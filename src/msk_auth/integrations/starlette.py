"""The Starlette adapter.

::

    auth = StarletteAuth(authenticator)


    @auth.require("tasks:read")
    async def tasks(request: Request) -> Response:
        return JSONResponse({"owner": auth.principal(request).owner.id})


    app = Starlette(routes=[Route("/tasks", tasks), *auth.key_routes(prefix="/api/keys")])
    auth.install(app)
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Collection, Coroutine
from datetime import timedelta
from typing import Any, ParamSpec, Protocol, TypeVar, cast, overload

from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection, Request
from starlette.routing import BaseRoute, Route

from msk_auth._async.users import AsyncUsers
from msk_auth._sync.users import Users
from msk_auth.core.errors import ConfigurationError
from msk_auth.core.model import Principal, UserT
from msk_auth.core.policy import Policy, named_first
from msk_auth.http._async.admission import load_user_once as await_user_once
from msk_auth.http._async.routes import admin_key_routes, key_routes
from msk_auth.http._sync.admission import load_user_once
from msk_auth.http.admission import (
    ADMITTED,
    Loading,
    known_principal,
    loading,
    loading_in,
    users_of,
)
from msk_auth.http.routes import AdminKeyOperation, KeyOperation
from msk_auth.http.routes import Route as Row

from ._adapter import check_function, declare_guard, declared
from ._asgi import PublicRoutes, Throttle
from ._starlette import StarletteBase

__all__ = ["StarletteAuth"]


P = ParamSpec("P")
T = TypeVar("T")
ConnectionT = TypeVar("ConnectionT", bound=HTTPConnection)


class Decorator(Protocol):
    """The result of :meth:`StarletteAuth.require`: it decorates endpoints, async or not."""

    @overload
    def __call__(
        self, endpoint: Callable[P, Awaitable[T]], /
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __call__(self, endpoint: Callable[P, T], /) -> Callable[P, Coroutine[Any, Any, T]]: ...


class StarletteAuth(StarletteBase[UserT, Decorator], PublicRoutes[BaseRoute, Request]):
    """Guards, error handlers and key routes for Starlette.

    A guard is a decorator of functions, sync or async, that take a request or a websocket, and of the methods of an
    `HTTPEndpoint` or `WebSocketEndpoint`. A sync function still runs in the thread pool; the guard does not.

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
        session: Returns the application's session of a request, such as `lambda request: request.state.session`.
            :class:`~msk_auth.Users` read the user in it, for guards and for :meth:`user`.

    Raises:
        ConfigurationError: There is a `session`, and the authenticator does not read users in a session.
    """

    def principal(self, connection: HTTPConnection) -> Principal[UserT]:
        """The principal of a request that a guard has verified.

        Raises:
            Problem: The credentials are missing or were refused.
            ConfigurationError: No guard has verified the request.
        """
        return known_principal(connection.scope, self._bound_in(connection.scope)._authenticator)

    @overload
    def user(
        self, load_user: AsyncUsers[Any, str, T, UserT], /
    ) -> Callable[[HTTPConnection], Coroutine[Any, Any, T]]: ...
    @overload
    def user(self, load_user: Users[Any, str, T, UserT], /) -> Callable[[HTTPConnection], T]: ...
    @overload
    def user(
        self, load_user: Callable[[str, ConnectionT], Awaitable[T | None]], /
    ) -> Callable[[ConnectionT], Coroutine[Any, Any, T]]: ...
    @overload
    def user(
        self, load_user: Callable[[str, ConnectionT], T | None], /
    ) -> Callable[[ConnectionT], T]: ...
    def user(self, load_user: Any, /) -> Callable[..., Any]:
        """A function that returns the application's user in endpoints: `current_user = auth.user(users)`.

        The user is loaded once per request, in the request's session. With the authenticator's :class:`~msk_auth.Users`,
        and an adapter with a `session`, it is loaded when the request is verified. Otherwise decorate the
        function that loads the user::

            @auth.user
            async def current_user(owner_id: str, request: Request) -> User | None:
                return await request.state.session.get(User, int(owner_id))


            @auth.require()
            async def me(request: Request) -> Response:
                user = await current_user(request)

        If no user is found, the request is refused like that of a deleted owner: `owner_disabled` for a key, `token_revoked`
        for a login. The endpoint needs a guard, as for :meth:`principal`.

        Args:
            load_user: `AsyncUsers` or `Users`; or a function that takes the id of the principal's owner and the request.
                With `AsyncUsers` or an `async` function, await the result in `async def` endpoints; the others are for `def`
                endpoints.

        Raises:
            ConfigurationError: `load_user` is `Users`, and the adapter has no `session`.
        """
        users = self._users_given(load_user)

        def loading_of(connection: HTTPConnection) -> Loading:
            scope, bound = connection.scope, self._bound_in(connection.scope)
            principal = known_principal(scope, bound._authenticator)
            if users is None:
                return loading(scope, principal, load_user, connection)
            request = bound._request_session(scope)
            return loading_in(request, users_of(bound._authenticator, users), principal)

        async def awaited(connection: HTTPConnection) -> Any:
            return await await_user_once(*loading_of(connection))

        def blocking(connection: HTTPConnection) -> Any:
            return load_user_once(*loading_of(connection))

        if users is not None:
            return awaited if isinstance(users, AsyncUsers) else blocking
        awaits = inspect.iscoroutinefunction(load_user)
        return functools.wraps(load_user)(awaited if awaits else blocking)

    def key_routes(
        self, *, prefix: str = "/api/keys", operations: Collection[KeyOperation] | None = None
    ) -> list[BaseRoute]:
        """Routes with which people manage their own keys. Their guards cannot be removed.

        Args:
            prefix: The routes' prefix.
            operations: The operations to mount: `list_keys`, `create_key`, `get_key`, `update_key`, `rotate_key`, `revoke_key`,
                `delete_key`. By default all. In place of a missing operation the application can add its own route.
        """
        return [self._mount(row, prefix=prefix) for row in key_routes(operations)]

    def admin_key_routes(
        self,
        permission: str,
        *,
        max_age: timedelta | None = None,
        prefix: str = "/api/admin/keys",
        operations: Collection[AdminKeyOperation] | None = None,
    ) -> list[BaseRoute]:
        """Routes with which administrators list and revoke the keys of all owners. Their guards cannot be removed.

        Each requires an interactive login with the permission. They cannot create or extend keys, or show their values.

        Args:
            permission: The permission of administrators.
            max_age: The greatest age of their login; None means any.
            prefix: The routes' prefix.
            operations: The operations to mount: `list_all_keys`, `revoke_any_keys`, `revoke_any_key`. By default all.
        """
        rows = admin_key_routes(permission, max_age, operations)
        return [self._mount(row, prefix=prefix) for row in rows]

    def _mount(
        self, row: Row, throttle: Throttle[Request] | None = None, prefix: str = ""
    ) -> BaseRoute:
        endpoint = self._endpoint(row, throttle)
        return Route(prefix + row.path, endpoint, methods=[row.method], name=row.name)

    def _guard(self, policy: Policy) -> Decorator:
        def decorate(endpoint: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
            check_function(endpoint)
            is_async = inspect.iscoroutinefunction(endpoint) or inspect.iscoroutinefunction(
                getattr(endpoint, "__call__", None)  # noqa: B004 - asks whether it is async
            )

            # A guard below this guard that names a permission decides for keys here too.
            below = declared(endpoint) or () if policy.is_bare else ()
            policies = named_first((policy, *below))

            @functools.wraps(endpoint)
            async def guarded(*args: Any, **kwargs: Any) -> Any:
                found: list[Any] = [
                    each for each in (*args, *kwargs.values()) if isinstance(each, HTTPConnection)
                ]
                if not found:
                    raise ConfigurationError(
                        "A guarded endpoint was called without a request or a websocket."
                    )
                scope = found[0].scope
                bound = self._bound_in(scope)
                for each in policies:
                    await bound._verify(scope, each)
                scope[ADMITTED] = bound._authenticator
                if is_async:
                    return await endpoint(*args, **kwargs)
                return await run_in_threadpool(endpoint, *args, **kwargs)

            return declare_guard(guarded, endpoint, policy)

        return cast("Decorator", decorate)
