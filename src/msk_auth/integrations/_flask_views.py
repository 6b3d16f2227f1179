"""Which policies the views of Flask applications are held to, and the search for mistakes, as early as each can be known.

A mistake is told where it is made: by the decorator, by the registration of a view or a blueprint, by `init_app` or
`protect`. All of these run while the application is imported. What can only be seen once everything is in its place (a
view function that is put under its endpoint by hand) is found by :meth:`Views.check`, before the first request gets
anywhere.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

from flask import Blueprint, Flask

from msk_auth.core.errors import ConfigurationError
from msk_auth.core.policy import Policy

from ._flask_policies import (
    PUBLIC,
    contradiction,
    declared_policies,
    is_exposed,
    layers_of,
    methods_of,
    wrapped_views,
)

_UNDECLARED: Final = None


class Views:
    """The views of the applications that one adapter guards.

    Attributes:
        version: Goes up whenever something was declared.
    """

    def __init__(self) -> None:
        self.version = 0
        self._prepared: WeakSet[Flask] = WeakSet()
        self._checked: WeakSet[Flask] = WeakSet()
        self._protected: WeakKeyDictionary[object, Policy | None] = WeakKeyDictionary()
        self._by_endpoint: WeakKeyDictionary[Flask, dict[str, tuple[Policy, ...]]] = (
            WeakKeyDictionary()
        )

    def watch(self, app: Flask) -> None:
        """Look at the views that an application has, and at every one that is registered from now on.

        Raises:
            ConfigurationError: As :meth:`check`.
        """
        self._prepared.add(app)
        self._check_views(app)
        register = app.add_url_rule

        @functools.wraps(register)
        def add_url_rule(
            rule: str, endpoint: str | None = None, view_func: Any = None, *args: Any, **more: Any
        ) -> None:
            register(rule, endpoint, view_func, *args, **more)
            # A rule may come without its view, which is put under the endpoint later.
            if view_func is not None:
                self._check_view(app, view_func.__name__ if endpoint is None else endpoint)

        app.add_url_rule = add_url_rule  # type: ignore[method-assign]

    def protect(self, scope: Blueprint | Flask, policy: Policy | None) -> None:
        """Hold all views of a scope to a policy, or to having one.

        Raises:
            ConfigurationError: It is an application, and one of its views declares nothing.
        """
        self._protected[scope] = policy
        self.version += 1
        if isinstance(scope, Flask):
            self._check_views(scope)

    def declare(self, app: Flask, endpoint: str, policy: Policy | None) -> None:
        """Hold the view of one endpoint to a policy; None lets everybody in.

        Raises:
            ConfigurationError: Something was declared for it already.
        """
        declared = self._by_endpoint.setdefault(app, {})
        if endpoint in declared:
            raise ConfigurationError(
                f"declare_view was called twice for {endpoint!r}. Call it once, with one policy that"
                " says everything."
            )
        declared[endpoint] = PUBLIC if policy is None else (policy,)
        self.version += 1
        if endpoint in app.view_functions:
            self._check_view(app, endpoint)

    def refuse_registered(self, view: Callable[..., Any]) -> None:
        """Refuse to put a guard around a view that is registered: the route would go past the guard.

        Raises:
            ConfigurationError: It is registered with one of the applications.
        """
        layers = list(wrapped_views(view))
        for app in self._prepared:
            for endpoint, registered in app.view_functions.items():
                if registered in layers:
                    raise _exposed(endpoint)

    def reader(self, app: Flask) -> Reader:
        """Reads the policies of one application's views for its requests."""
        return Reader(self, app)

    def is_checked(self, app: Flask) -> bool:
        """Whether :meth:`check` has found everything right."""
        return app in self._checked

    def check(self, app: Flask) -> None:
        """Find out whether every view is guarded as declared.

        Raises:
            ConfigurationError: A decorator stands above its route, a view of a protected scope declares
                no policy, or something was declared for a view that is not there.
        """
        self._check_views(app)
        for endpoint in self._by_endpoint.get(app, {}):
            if endpoint not in app.view_functions:
                raise ConfigurationError(
                    f"declare_view names {endpoint!r}, and the application has no such view. It has:"
                    f" {', '.join(sorted(app.view_functions))}."
                )
        self._checked.add(app)

    def policies_of(self, app: Flask, endpoint: str, method: str) -> tuple[Policy, ...] | None:
        """What a request has to meet: empty if the view is public, None if nothing is and has to be declared.

        Raises:
            ConfigurationError: The view has to declare something and does not, or declares two things.
        """
        own = self._own_policies(app, endpoint, method)
        if own == PUBLIC:
            return PUBLIC
        protected = self._protected
        outer = [protected[layer] for layer in layers_of(app, endpoint) if layer in protected]
        policies = (*(policy for policy in outer if policy is not None), *(own or ()))
        if policies:
            return policies
        if outer:
            raise ConfigurationError(
                f"The view {endpoint!r} declares no policy for {method}, and what it belongs to is"
                f" protected. {_how_to_declare(endpoint)}"
            )
        return _UNDECLARED

    def _own_policies(self, app: Flask, endpoint: str, method: str) -> tuple[Policy, ...] | None:
        view = app.view_functions.get(endpoint)
        marked = declared_policies(view, method)
        by_endpoint = self._by_endpoint.get(app, {}).get(endpoint)
        if marked is None or by_endpoint is None:
            return by_endpoint if marked is None else marked
        if (marked == PUBLIC) != (by_endpoint == PUBLIC):
            raise contradiction(endpoint)
        return (*marked, *by_endpoint)

    def _check_views(self, app: Flask) -> None:
        for endpoint in app.view_functions:
            self._check_view(app, endpoint)

    def _check_view(self, app: Flask, endpoint: str) -> None:
        if is_exposed(app.view_functions[endpoint]):
            raise _exposed(endpoint)
        for method in sorted(methods_of(app, endpoint)):
            self.policies_of(app, endpoint, method)


class Reader:
    """The policies of one application's views, each read once for as long as nothing changes.

    Args:
        views: What was declared.
        app: The application.

    Attributes:
        is_checked: Whether :meth:`check` has found everything right.
    """

    def __init__(self, views: Views, app: Flask) -> None:
        self._views = views
        self._app = app
        self.is_checked = False
        self._version = -1
        self._known: dict[tuple[str, str], tuple[object, tuple[Policy, ...] | None]] = {}

    def check(self) -> None:
        """:meth:`Views.check`, unless it has found everything right already."""
        if not self._views.is_checked(self._app):
            self._views.check(self._app)
        self.is_checked = True

    def __call__(self, endpoint: str, method: str) -> tuple[Policy, ...] | None:
        """As :meth:`Views.policies_of`."""
        if self._version != self._views.version:
            self._version = self._views.version
            self._known.clear()
        view = self._app.view_functions.get(endpoint)
        known = self._known.get((endpoint, method))
        # Somebody may have put another view under the endpoint.
        if known is None or known[0] is not view:
            known = view, self._views.policies_of(self._app, endpoint, method)
            # Methods are whatever clients send; only those of a rule get here, so there are few.
            self._known[endpoint, method] = known
        return known[1]


def _exposed(endpoint: str) -> ConfigurationError:
    return ConfigurationError(
        f"The guard of the view {endpoint!r} stands above its route and protects nothing. Write the"
        " route first and @auth.require(…) below it. For a view that other code registers, write"
        f" auth.declare_view(app, {endpoint!r}, require(…))."
    )


def _how_to_declare(endpoint: str) -> str:
    by_name = f"auth.declare_view(app, {endpoint!r}, require(…)), or None to let everybody in"
    if endpoint.rpartition(".")[2] != "static":
        return (
            "Decorate it with @auth.require(…) or @auth.public, below its route. If somebody else"
            f" registers it, write before that: {by_name}."
        )
    return f"It serves files. Turn it off with static_folder=None, or write before that: {by_name}."
