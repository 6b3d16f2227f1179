"""The policies of a Flask application, view by view, and the check for mistakes.

Guards mark views, and :class:`DeclaredViews` has the policies of blueprints, applications and endpoints. A
decorator reports its own mistakes. :meth:`DeclaredViews.check` finds mistakes that only a complete application shows,
before the first request is answered: Flask has no hook for the registration of views.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast
from weakref import WeakKeyDictionary, WeakSet

from flask import Flask, Request
from flask.views import MethodView, View
from werkzeug.routing import Rule

from msk_auth._route_audit import ANY_METHOD, has_own_guard, layers
from msk_auth.core.errors import ConfigurationError
from msk_auth.core.policy import SAFE_METHODS, Policy, named_first

from ._adapter import FunctionT, check_function, contradiction, declare, declared

PUBLIC: Final[tuple[Policy, ...]] = ()

# Functions inside a guard, which must not be reachable without it.
_guarded: WeakSet[Callable[..., Any]] = WeakSet()


def hide(view: Callable[..., Any]) -> None:
    """Note that a view is inside a guard."""
    # Any of these functions may have been given to a route.
    _guarded.update(layers(view))


def is_exposed(view: object) -> bool:
    """True if a route reaches a view without its guard: the guard's decorator is above the route."""
    return callable(view) and view in _guarded


def declared_policies(view: object, method: str) -> tuple[Policy, ...] | None:
    """The policies of a view for a method; empty if it is public, None if it declares nothing."""
    view_class: type[View] | None = getattr(view, "view_class", None)
    if view_class is None:
        return declared(view)
    if not issubclass(view_class, MethodView):
        return _together(declared(view), declared(view_class.dispatch_request))
    name = _handler_name(view_class, method)
    if name is not None:
        return _together(declared(view), _of_method(view_class, name))
    # For OPTIONS, which Flask answers itself, the policies of all methods together.
    by_method = [_of_method(view_class, each.lower()) for each in view_class.methods or ()]
    return _together(declared(view), *([] if None in by_method else by_method))


def is_outermost(
    view: Callable[..., Any], views: Mapping[str, Callable[..., Any]], request: Request
) -> bool:
    """True if only guards wrap a view: the application, or its class-based view, calls it for this request."""
    registered = views.get(request.endpoint or "")
    view_class: type[View] | None = getattr(registered, "view_class", None)
    if view is registered or view_class is None:
        return view is registered
    name = _handler_name(view_class, request.method)
    if name is None or view is not getattr(view_class, name):
        return False
    # Guards pass the response on.
    around = (*view_class.decorators, *_method_decorators(view_class, name))
    return all(declared(decorator) is not None for decorator in around)


def _handler_name(view_class: type[View], method: str) -> str | None:
    """The name of the method of a class that serves requests with this HTTP method."""
    names = ("head", "get") if method == "HEAD" else (method.lower(),)
    return next((name for name in names if hasattr(view_class, name)), None)


def _of_method(view_class: type[View], name: str) -> tuple[Policy, ...] | None:
    decorators = _method_decorators(view_class, name)
    return _together(declared(getattr(view_class, name)), *map(declared, decorators))


def _method_decorators(view_class: type[View], name: str) -> Iterable[object]:
    """The decorators that Flask-RESTful and Flask-RESTX apply when they call a method."""
    decorators: object = getattr(view_class, "method_decorators", ())
    if isinstance(decorators, Mapping):
        decorators = cast("Mapping[str, object]", decorators).get(name, ())
    return cast("Iterable[object]", decorators)


def _together(*declared: tuple[Policy, ...] | None) -> tuple[Policy, ...] | None:
    found = [policies for policies in declared if policies is not None]
    return tuple(dict.fromkeys(itertools.chain(*found))) if found else None


def guards_itself(app: Flask, endpoint: str, method: str) -> bool:
    """True if a view, or one of its `before_request` functions, is marked with `own_guard`."""
    view: object = app.view_functions.get(endpoint)
    view_class: object = getattr(view, "view_class", None)
    marked = [view, view_class, getattr(view_class, method.lower(), None)]
    for name in (None, *_blueprints_of(endpoint)):
        marked += app.before_request_funcs.get(name, ())
    return any(has_own_guard(each) for each in marked)


def methods_of(rule: Rule) -> list[str]:
    """The methods of a rule. One that was added to the map itself may have none, and serves all of them."""
    return ["GET", ANY_METHOD] if rule.methods is None else sorted(rule.methods)


def _blueprints_of(endpoint: str) -> list[str]:
    """The names of the blueprints of an endpoint, from the outside in."""
    names = endpoint.split(".")
    return [".".join(names[:count]) for count in range(1, len(names))]


class DeclaredViews:
    """The policies of the applications of one adapter."""

    def __init__(self) -> None:
        # The policies of a blueprint or an application for all of its views: for safe and for unsafe
        # methods. None twice means that each view must declare a policy.
        self._protected: WeakKeyDictionary[object, tuple[Policy | None, Policy | None]]
        self._protected = WeakKeyDictionary()
        self._by_endpoint: WeakKeyDictionary[Flask, dict[str, tuple[Policy, ...]]] = (
            WeakKeyDictionary()
        )
        # The results of `_checks_of`, for applications that passed `check`. The key has the view, because an application may
        # replace an endpoint's view by hand.
        self._found: WeakKeyDictionary[Flask, dict[tuple[str, str, object], list[Policy]]]
        self._found = WeakKeyDictionary()

    def public(self, view: FunctionT) -> FunctionT:
        """Declare that a view needs no credentials, even in a protected blueprint.

        Raises:
            ConfigurationError: The view has a guard, or is not a function.
        """
        check_function(view)
        if declared(view):
            raise contradiction(repr(view))
        marked: Any = view
        if inspect.ismethod(view):
            # A method takes no attributes, and Flask's own view of static files is a method.
            marked = functools.update_wrapper(functools.partial(view), view)
        return declare(cast("FunctionT", marked))

    def declare_view(self, app: Flask, endpoint: str, policy: Policy | None) -> None:
        """Guard a view that you cannot decorate, by its endpoint: static files, or another package's view.

        Args:
            app: The application that has the view, or will have it.
            endpoint: The endpoint, such as `static` or `admin.static`.
            policy: The view's policy, in addition to those of its blueprints and application; None makes it public.

        Raises:
            ConfigurationError: This was called before for the endpoint.
        """
        by_endpoint = self._by_endpoint.setdefault(app, {})
        if endpoint in by_endpoint:
            raise ConfigurationError(
                f"declare_view was called twice for {endpoint!r}. Call it once, with one complete policy."
            )
        self._found.clear()
        by_endpoint[endpoint] = PUBLIC if policy is None else (policy,)

    def check(self, app: Flask) -> None:
        """Check that every view of a complete application is guarded as declared.

        The first request calls this too, and no request is answered before the check passes. Call this at the end of an
        application factory to find mistakes early.

        Raises:
            ConfigurationError: A guard is above its route, a view of a protected blueprint or application declares
                no policy or contradicts :meth:`declare_view`, or :meth:`declare_view` names an unknown view.
        """
        for endpoint, view in app.view_functions.items():
            if is_exposed(view):
                raise _exposed(endpoint)
        for rule in app.url_map.iter_rules():
            if rule.endpoint not in app.view_functions:
                continue  # it only builds addresses
            for method in methods_of(rule):
                self.policies_of(app, rule.endpoint, method)
        for endpoint in self._by_endpoint.get(app, {}):
            if endpoint not in app.view_functions:
                raise ConfigurationError(
                    f"declare_view names {endpoint!r}, and the application has no such view. It has:"
                    f" {', '.join(sorted(app.view_functions))}."
                )

    def policies_of(self, app: Flask, endpoint: str, method: str) -> tuple[Policy, ...] | None:
        """The policies of a request: those of its view, of the view's blueprints and of the application.

        Empty if the view is public; None if it declares nothing and need not.

        Raises:
            ConfigurationError: The view must declare a policy and does not, or is both public and guarded.
        """
        own = self._own_policies(app, endpoint, method)
        if own == PUBLIC:
            return PUBLIC
        is_unsafe = method not in SAFE_METHODS
        known = app.blueprints
        around = (app, *(known[name] for name in _blueprints_of(endpoint) if name in known))
        outer = [self._protected[each][is_unsafe] for each in around if each in self._protected]
        policies = (*(policy for policy in outer if policy is not None), *(own or ()))
        if policies:
            return policies
        if outer and not guards_itself(app, endpoint, method):
            raise ConfigurationError(
                f"The view {endpoint!r} declares no policy for {method}, and its blueprint or application is"
                " protected. Decorate it with @auth.require(…) or @auth.public, below its route. For a view that"
                f" other code registers, such as static files, write auth.declare_view(app, {endpoint!r}, require(…)), or"
                " None to make it public."
            )
        return None

    def _checks_of(self, app: Flask, endpoint: str | None, method: str) -> list[Policy]:
        """The policies of a request, in the order of their checks. The first request checks the application.

        Raises:
            ConfigurationError: As for :meth:`check`.
        """
        found = self._found.get(app)
        if found is None:
            self.check(app)
            # Flask adds no view from here on.
            found = self._found[app] = {}
        if endpoint is None:
            # No view to guard: Flask answers 404, 405 or a redirect.
            return []
        view = app.view_functions.get(endpoint)
        checks = found.get((endpoint, method, view))
        if checks is None:
            if is_exposed(view):
                raise _exposed(endpoint)
            checks = found[endpoint, method, view] = named_first(
                self.policies_of(app, endpoint, method) or ()
            )
        return checks

    def _own_policies(self, app: Flask, endpoint: str, method: str) -> tuple[Policy, ...] | None:
        view = app.view_functions.get(endpoint)
        marked = declared_policies(view, method)
        by_endpoint = self._by_endpoint.get(app, {}).get(endpoint)
        if marked is None or by_endpoint is None:
            return by_endpoint if marked is None else marked
        if (marked == PUBLIC) != (by_endpoint == PUBLIC):
            raise contradiction(endpoint)
        return (*marked, *by_endpoint)


def _exposed(endpoint: str) -> ConfigurationError:
    return ConfigurationError(
        f"The guard of the view {endpoint!r} is above its route and protects nothing. Write the"
        " route first and @auth.require(…) below it. For a view that other code registers, write"
        f" auth.declare_view(app, {endpoint!r}, require(…))."
    )
