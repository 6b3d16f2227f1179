"""What every adapter has, whatever the framework: guards, and an authenticator that may come late."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from datetime import timedelta
from typing import Any, Generic, Self, TypeVar

from msk_auth.authenticator import BaseAuthenticator
from msk_auth.core.errors import ConfigurationError
from msk_auth.core.policy import (
    Policy,
    require,
    require_interactive,
    require_key,
    require_login,
)
from msk_auth.http.admission import LoginSources, users_of
from msk_auth.http.answers import ProblemRenderer
from msk_auth.users import AnyUsers, users_in

GivenT = TypeVar("GivenT", bound=BaseAuthenticator[Any])
"""What an application may give to the adapter: the kinds of authenticator that its framework works with."""

GuardT = TypeVar("GuardT")
"""What guards a route in the framework: a decorator, a dependency, or an object of its own."""


class Adapter(ABC, Generic[GivenT, GuardT]):
    """The guards of one framework, on top of one authenticator.

    The guards may exist before the authenticator does. Then each application has a copy of the adapter that is bound to the
    authenticator of that application, and the guards find it by the application that serves the request.

    Args:
        authenticator: Decides. None: each application gets its own later.
        logins: The application's functions that find a login in a request without a bearer credential.
        own_csrf_protection: Whether such a login counts for an unsafe method wherever the request came from.
        header: The name of a header that holds a key in place of `Authorization`. None: there is none.
        find_session: The application's function that finds the session of a request; its arguments are the framework's.

    Raises:
        ConfigurationError: The authenticator reads no users in a session.
    """

    def __init__(
        self,
        authenticator: GivenT | None,
        *,
        logins: Sequence[Callable[[Any], object]],
        own_csrf_protection: bool,
        header: str | None,
        find_session: Callable[..., object] | None = None,
    ) -> None:
        self._find_session = find_session
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
        """A guard that demands to be authenticated, with all of these permissions.

        Args:
            permissions: All of these are needed.
            resource: What a key with resources has to reach, with parameters of the path in braces: `task:{task_id}`. Without
                it, and without `any_resource`, such a key does not pass.
            any_resource: Whether a key with resources passes because the route looks at `principal.reaches` itself, such as a
                list.
        """
        return self._guard(require(*permissions, resource=resource, any_resource=any_resource))

    def require_interactive(self, *permissions: str, max_age: timedelta | None = None) -> GuardT:
        """A guard that demands an interactive login; no API key passes.

        Args:
            permissions: All of these are needed.
            max_age: The greatest age of the login (RFC 9470); None means any.
        """
        return self._guard(require_interactive(*permissions, max_age=max_age))

    def require_login(self, *permissions: str) -> GuardT:
        """A guard that demands a login of a person, or another token, with all of these permissions; no API key passes.

        For applications whose own older tokens still act for machines.
        """
        return self._guard(require_login(*permissions))

    def require_key(
        self, *permissions: str, resource: str | None = None, any_resource: bool = False
    ) -> GuardT:
        """A guard that demands an API key with all of these permissions; no login passes.

        For webhooks and routes that machines call. The arguments are those of :meth:`require`.
        """
        return self._guard(require_key(*permissions, resource=resource, any_resource=any_resource))

    @abstractmethod
    def _guard(self, policy: Policy) -> GuardT:
        """A guard that demands what a policy says."""

    def _users_given(self, load_user: object) -> AnyUsers | None:
        """The `Users` that `user` was given; None for a function.

        Raises:
            ConfigurationError: There is no `session` to load them in.
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
        """True if the two are one adapter, each perhaps bound to the authenticator of an application."""
        return getattr(other, "_origin", None) is self._origin

    def _bind(self, authenticator: GivenT) -> None:
        """Work with an authenticator from now on. An adapter checks its kind first.

        Raises:
            ConfigurationError: There is a session to read users in, and the authenticator does not read them in one.
        """
        if self._find_session is not None:
            users_of(authenticator)
        self._given = authenticator
        self._renderer = ProblemRenderer(authenticator.realm)

    def _bound_to(self, authenticator: GivenT | None, how: str) -> Self:
        """This adapter for an application: itself, or a copy that is bound to the application's own authenticator.

        Args:
            authenticator: The application's.
            how: What to write if there is none.

        Raises:
            ConfigurationError: There is no authenticator, or there are two.
        """
        name = type(self).__name__
        if authenticator is None:
            if self._given is None:
                raise ConfigurationError(f"This {name} has no authenticator yet. Write {how}.")
            return self
        if self._given is not None:
            raise ConfigurationError(
                f"This {name} has an authenticator already. Give it one in one place: {name}(authenticator) for"
                f" all applications, or {name}() and {how}."
            )
        bound = copy(self)
        bound._bind(authenticator)
        return bound

    def _bound_here(self) -> Self:
        """This adapter as it is bound in the application that serves the current request.

        Raises:
            ConfigurationError: Each application has its own authenticator, and none serves a request here.
        """
        bound = self if self._given is not None else self._serving_here()
        if bound is None:
            raise ConfigurationError(
                f"This {type(self).__name__} has no authenticator here: each application has its own, which counts while"
                " the application serves a request. Elsewhere use the authenticator that you made."
            )
        return bound

    @abstractmethod
    def _serving_here(self) -> Self | None:
        """The copy of this adapter whose application serves the current request."""
