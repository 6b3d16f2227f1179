"""The base of all adapters: guards, and an authenticator that may be set later."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from datetime import timedelta
from typing import Any, Final, Generic, Self, TypeAlias, TypeVar

from msk_auth._route_audit import layers
from msk_auth.authenticator import BaseAuthenticator
from msk_auth.core.errors import ConfigurationError
from msk_auth.core.model import Login
from msk_auth.core.policy import (
    Policy,
    any_credential,
    require,
    require_interactive,
    require_key,
    require_login,
)
from msk_auth.http.admission import LoginSources, users_of
from msk_auth.http.answers import ProblemRenderer
from msk_auth.users import AnyUsers, users_in

GivenT = TypeVar("GivenT", bound=BaseAuthenticator[Any])
"""The kinds of authenticator that the adapter accepts."""

GuardT = TypeVar("GuardT")
"""The framework's guard of a route: a decorator, a dependency, or an object of its own."""


ConnectionT = TypeVar("ConnectionT")
"""The framework's object for a request or a websocket."""

LoginOf: TypeAlias = Callable[[ConnectionT], Login | Awaitable[Login | None] | None]
"""Finds a login in a request, such as in its session, or returns None."""


FunctionT = TypeVar("FunctionT", bound=Callable[..., object])

_POLICIES: Final = "msk_auth_policies"


def declare(function: FunctionT, *policies: Policy) -> FunctionT:
    """Mark the function of a route, a guard or a mounted application with its policies; without a policy it is public."""
    # A bound method takes no attributes.
    setattr(getattr(function, "__func__", function), _POLICIES, policies)
    return function


def declared(function: object) -> tuple[Policy, ...] | None:
    """The policies of a marked function, or of the function that it wraps; empty if it is public, None without a mark."""
    marks = (getattr(layer, _POLICIES, None) for layer in layers(function))
    return next((policies for policies in marks if policies is not None), None)


def check_function(function: object) -> None:
    """Refuse to decorate an object that is not a function or a method.

    Raises:
        ConfigurationError: The object is a class, or not callable.
    """
    if inspect.isclass(function) or not callable(function):
        raise ConfigurationError(
            f"A guard goes on a function or a method, not on {function!r}. Of a class with a method for each HTTP method,"
            " decorate its methods."
        )


def declare_guard(guard: FunctionT, function: object, policy: Policy) -> FunctionT:
    """Mark a guard, or an endpoint that guards itself, with its policy and those of the guards inside.

    Args:
        guard: The guard or the endpoint.
        function: The function inside the guard; or the endpoint.
        policy: The policy.

    Raises:
        ConfigurationError: The argument `function` is public.
    """
    inner = declared(function)
    if inner == ():
        raise contradiction(repr(function))
    return declare(guard, policy, *(inner or ()))


def contradiction(name: str) -> ConfigurationError:
    """The error for a route that is both public and guarded."""
    return ConfigurationError(
        f"{name} is declared public and guarded as well. Remove one of the two."
    )


class Adapter(ABC, Generic[GivenT, GuardT, ConnectionT]):
    """The guards of a framework, with an authenticator.

    The guards may exist before the authenticator. Then each application has a copy of the adapter with its own
    authenticator, and the guards find this copy by the application that serves the request.

    Args:
        authenticator: The authenticator. None: each application gets its own later.
        logins: The application's functions that find a login in a request without a bearer credential.
        own_csrf_protection: True accepts such a login for an unsafe method from any origin.
        header: The name of a header for a key in place of `Authorization`, or None.
        session: The application's function that finds the session of a request.

    Raises:
        ConfigurationError: The authenticator reads no users in a session.
    """

    def __init__(
        self,
        authenticator: GivenT | None = None,
        *,
        logins: Sequence[LoginOf[ConnectionT]] = (),
        own_csrf_protection: bool = False,
        header: str | None = None,
        session: Callable[[ConnectionT], object] | None = None,
    ) -> None:
        self._find_session = session
        self._key_header = header
        self._login_sources = LoginSources(tuple(logins), own_csrf_protection)
        # The same in all copies.
        self._origin = object()
        self._given: GivenT | None = None
        if authenticator is not None:
            self._bind(authenticator)

    def require(
        self, *permissions: str, resource: str | None = None, any_resource: bool = False
    ) -> GuardT:
        """A guard that requires a login, a token or a key with all of these permissions.

        Args:
            permissions: All of these are required.
            resource: The resource that a key with resources must reach, with parameters of the path in braces:
                `task:{task_id}`. Without `resource` and `any_resource`, such a key does not pass.
            any_resource: True accepts keys with any resources: the route, such as a list, calls `principal.reaches` itself.
        """
        return self._guard(require(*permissions, resource=resource, any_resource=any_resource))

    def require_interactive(self, *permissions: str, max_age: timedelta | None = None) -> GuardT:
        """A guard that requires an interactive login and refuses every API key.

        Args:
            permissions: All of these are required.
            max_age: The greatest age of the login (RFC 9470); None means any.
        """
        return self._guard(require_interactive(*permissions, max_age=max_age))

    def any_credential(self) -> GuardT:
        """A guard that accepts every credential, even a scoped key.

        For information that a key may read about itself, and other operations that need no permission.
        """
        return self._guard(any_credential())

    def require_login(self, *permissions: str) -> GuardT:
        """A guard that requires a person's login or a machine's token with all of these permissions, and refuses every API key.

        For applications whose own older tokens act for machines.
        """
        return self._guard(require_login(*permissions))

    def require_key(
        self, *permissions: str, resource: str | None = None, any_resource: bool = False
    ) -> GuardT:
        """A guard that requires an API key with all of these permissions and refuses every login.

        For webhooks and routes that machines call. The arguments are those of :meth:`require`.
        """
        return self._guard(require_key(*permissions, resource=resource, any_resource=any_resource))

    @abstractmethod
    def _guard(self, policy: Policy) -> GuardT:
        """A guard with a policy."""

    def _users_given(self, load_user: object) -> AnyUsers | None:
        """The `Users` given to `user`; None for a function.

        Raises:
            ConfigurationError: There is no `session` in which to load them.
        """
        users = users_in(load_user)
        if users is not None:
            self._demand_session()
        return users

    def _demand_session(self) -> None:
        if self._find_session is None:
            raise ConfigurationError(
                f"auth.user loads the user in the session of the request. Write {type(self).__name__}(…, session=…) with a"
                " function that returns it, or give auth.user a function that loads the user."
            )

    def shares_guards_with(self, other: object) -> bool:
        """True if both are copies of the same adapter, perhaps with different authenticators."""
        return getattr(other, "_origin", None) is self._origin

    def _bind(self, authenticator: GivenT) -> None:
        """Use this authenticator. An adapter checks its kind first.

        Raises:
            ConfigurationError: The adapter has a session for users, and the authenticator reads none in a session.
        """
        if self._find_session is not None:
            users_of(authenticator)
        self._given = authenticator
        self._renderer = ProblemRenderer(authenticator.realm)

    def _bound_to(self, authenticator: GivenT | None, how: str, installed: object = None) -> Self:
        """This adapter for an application: itself, or a copy with the application's own authenticator.

        Args:
            authenticator: The application's authenticator.
            how: The call that gives the adapter an authenticator, for an error.
            installed: The adapter that the application already has, if any.

        Raises:
            ConfigurationError: The application already has an adapter, there is no authenticator, or there are two.
        """
        if installed is not None:
            raise ConfigurationError(
                f"This application already has a {type(installed).__name__}. Use it for all of its routes."
            )
        name = type(self).__name__
        if authenticator is None:
            if self._given is None:
                raise ConfigurationError(f"This {name} has no authenticator yet. Write {how}.")
            return self
        if self._given is not None:
            raise ConfigurationError(
                f"This {name} already has an authenticator. Write either {name}(authenticator) for"
                f" all applications, or {name}() and {how}."
            )
        bound = copy(self)
        bound._bind(authenticator)
        return bound

    def _bound_here(self) -> Self:
        """The copy of this adapter for the application that serves the current request.

        Raises:
            ConfigurationError: Each application has its own authenticator, and there is no current request.
        """
        bound = self if self._given is not None else self._serving_here()
        if bound is None:
            raise ConfigurationError(
                f"This {type(self).__name__} has no authenticator here: each application has its own, available only while"
                " the application serves a request. Elsewhere use the authenticator that you created."
            )
        return bound

    @abstractmethod
    def _serving_here(self) -> Self | None:
        """The copy of this adapter for the application that serves the current request, if any."""
