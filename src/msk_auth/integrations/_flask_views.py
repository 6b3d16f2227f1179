"""What a Flask application demands of its callers, view by view, and the search for mistakes.

Guards leave marks on views, and :class:`DeclaredViews` has what is declared for blueprints, applications and endpoints. A
decorator reports its own mistakes. What shows only once the application is complete is found by :meth:`DeclaredViews.check`,
before the first request is answered: Flask has no hook for the registration of views.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeGuard, TypeVar, cast
from weakref import WeakKeyDictionary, WeakSet

from flask import Blueprint, Flask, Request
from flask.views import MethodView, View

from msk_auth._route_audit import has_own_guard, layers
from msk_auth.core.errors import ConfigurationError
from msk_auth.core.policy import SAFE_METHODS, Policy, named_first

POLICIES_ATTRIBUTE: Final = "msk_auth_policies"
"""Where a declared view carries its policies: a tuple, empty if it is public."""

_LIBRARY_ATTRIBUTE: Final = "msk_auth_library"
"""Marks a view of the library."""

PUBLIC: Final[tuple[Policy, ...]] = ()

ViewT = TypeVar("ViewT", bound=Callable[..., Any])

# Functions that have a guard around them, and so must not be reachable without it.
_guarded: WeakSet[Callable[..., Any]] = WeakSet()


def check_view(view: object) -> None:
    """Refuse to decorate what is no view.

    Raises:
        ConfigurationError: It is a class, or cannot be called.
    """
    if inspect.isclass(view) or not callable(view):
        raise ConfigurationError(
            f"A guard goes on a function or a method, not on {view!r}. On a class-based view"
            " decorate its methods, or write decorators = [auth.require(…)] in it."
        )


def declare_guard(guard: ViewT, view: Callable[..., Any], policy: Policy) -> ViewT:
    """Write down that `guard` is `view` behind a policy.

    Raises:
        ConfigurationError: The view is declared public.
    """
    inner = _own(view)
    if inner == PUBLIC:
        raise contradiction(_name_of(view))
    # Any of them may have been given to a route on the way.
    _guarded.update(layers(view))
    setattr(guard, POLICIES_ATTRIBUTE, (*(inner or ()), policy))
    return guard


def declare_decorator(decorator: ViewT, policy: Policy) -> ViewT:
    """Write down what a decorator demands: a class may name it for all of its methods."""
    setattr(decorator, POLICIES_ATTRIBUTE, (policy,))
    return decorator


def declare_view(view: ViewT, policy: Policy | None) -> ViewT:
    """Mark a view of the library, which checks its policy by itself; None: it is public."""
    setattr(view, POLICIES_ATTRIBUTE, PUBLIC if policy is None else (policy,))
    setattr(view, _LIBRARY_ATTRIBUTE, True)
    return view


def is_library_view(view: object) -> bool:
    """True for a view of the library."""
    return getattr(view, _LIBRARY_ATTRIBUTE, False) is True


def declare_public(view: ViewT) -> ViewT:
    """Mark a view as public.

    Raises:
        ConfigurationError: It has a guard.
    """
    if _own(view):
        raise contradiction(_name_of(view))
    # A method has no room for a mark, and Flask's own view of static files is one.
    marked = cast("ViewT", _as_function(view)) if inspect.ismethod(view) else view
    setattr(marked, POLICIES_ATTRIBUTE, PUBLIC)
    return marked


def _as_function(method: Callable[..., Any]) -> Any:
    @functools.wraps(method)
    def function(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    return function


def is_exposed(view: object) -> bool:
    """True if a route reaches a view past its guard: the decorator stands above the route."""
    return callable(view) and view in _guarded


def declared_policies(view: object, method: str) -> tuple[Policy, ...] | None:
    """What a view demands of a request with this method; empty if it is public, None if it says nothing."""
    view_class: object = getattr(view, "view_class", None)
    if not _is_view_class(view_class):
        return _own(view)
    if not issubclass(view_class, MethodView):
        return _together(_own(view), _own(view_class.dispatch_request))
    name = _handler_name(view_class, method)
    if name is not None:
        return _together(_own(view), _of_method(view_class, name))
    # OPTIONS, which Flask answers by itself, about all methods together.
    declared = [_of_method(view_class, each.lower()) for each in view_class.methods or ()]
    return _together(_own(view), *([] if None in declared else declared))


def is_outermost(
    view: Callable[..., Any], views: Mapping[str, Callable[..., Any]], request: Request
) -> bool:
    """True if nothing but guards wraps a view: the application, or its class-based view, calls it for this request."""
    registered = views.get(request.endpoint or "")
    view_class: object = getattr(registered, "view_class", None)
    if not _is_view_class(view_class):
        return view is registered
    if view is registered:
        return True
    name = _handler_name(view_class, request.method)
    if name is None or view is not getattr(view_class, name):
        return False
    # Guards hand the response on.
    around = (*view_class.decorators, *_method_decorators(view_class, name))
    return all(_own(decorator) is not None for decorator in around)


def _handler_name(view_class: type[View], method: str) -> str | None:
    """The name of the method of a class that serves requests with this HTTP method."""
    names = ("head", "get") if method == "HEAD" else (method.lower(),)
    return next((name for name in names if hasattr(view_class, name)), None)


def _of_method(view_class: type[View], name: str) -> tuple[Policy, ...] | None:
    decorators = _method_decorators(view_class, name)
    return _together(_own(getattr(view_class, name)), *map(_own, decorators))


def _method_decorators(view_class: type[View], name: str) -> Iterable[object]:
    """What Flask-RESTful and Flask-RESTX apply as they call a method."""
    decorators: object = getattr(view_class, "method_decorators", ())
    if isinstance(decorators, Mapping):
        decorators = cast("Mapping[str, object]", decorators).get(name, ())
    return cast("Iterable[object]", decorators)


def _together(*declared: tuple[Policy, ...] | None) -> tuple[Policy, ...] | None:
    found = [policies for policies in declared if policies is not None]
    return tuple(dict.fromkeys(itertools.chain(*found))) if found else None


def guards_itself(app: Flask, endpoint: str, method: str) -> bool:
    """True if a view, or a `before_request` function that runs for it, is marked with `own_guard`."""
    view: object = app.view_functions.get(endpoint)
    view_class: object = getattr(view, "view_class", None)
    marked = [view, view_class, getattr(view_class, method.lower(), None)]
    for name in (None, *_blueprints_of(endpoint)):
        marked += app.before_request_funcs.get(name, ())
    return any(has_own_guard(each) for each in marked)


def methods_of(app: Flask, endpoint: str) -> set[str]:
    """Every method that an endpoint answers, over all of its rules."""
    return {method for rule in app.url_map.iter_rules(endpoint) for method in rule.methods or ()}


def layers_of(app: Flask, endpoint: str) -> list[object]:
    """The application and the blueprints that an endpoint belongs to, from the outside in."""
    blueprints = [app.blueprints.get(name) for name in _blueprints_of(endpoint)]
    return [app, *(each for each in blueprints if each is not None)]


def _blueprints_of(endpoint: str) -> list[str]:
    names = endpoint.split(".")
    return [".".join(names[:count]) for count in range(1, len(names))]


def _own(view: object) -> tuple[Policy, ...] | None:
    return getattr(view, POLICIES_ATTRIBUTE, None)


def _is_view_class(value: object) -> TypeGuard[type[View]]:
    return inspect.isclass(value) and issubclass(value, View)


def contradiction(view: str) -> ConfigurationError:
    """What to raise for a view that says two things."""
    return ConfigurationError(
        f"{view} is declared public and guarded as well. Take off one of the two: @auth.public, the"
        " guard, or what declare_view says."
    )


def _name_of(view: object) -> str:
    name: str = getattr(view, "__qualname__", repr(view))
    return name


class DeclaredViews:
    """What the applications that one adapter guards demand of their callers."""

    def __init__(self) -> None:
        # What a blueprint or an application demands of each of its views: of every request, and of those with an unsafe
        # method. None twice demands that each view declares something.
        self._protected: WeakKeyDictionary[object, tuple[Policy | None, Policy | None]]
        self._protected = WeakKeyDictionary()
        self._by_endpoint: WeakKeyDictionary[Flask, dict[str, tuple[Policy, ...]]] = (
            WeakKeyDictionary()
        )
        # What `_checks_of` has found in applications that `check` has passed. An application may put another view under an
        # endpoint by hand.
        self._found: WeakKeyDictionary[Flask, dict[tuple[str, str, object], list[Policy]]]
        self._found = WeakKeyDictionary()

    def _protect(
        self, scope: Blueprint | Flask, policy: Policy | None, unsafe: Policy | None
    ) -> None:
        """Hold all views of a scope to policies, or to having one."""
        self._found.clear()
        self._protected[scope] = (policy, policy if unsafe is None else unsafe)

    def declare_view(self, app: Flask, endpoint: str, policy: Policy | None) -> None:
        """Guard a view that cannot be decorated, by its endpoint: static files, or another package's.

        Args:
            app: The application that has it, or will have it.
            endpoint: Such as `static` or `admin.static`.
            policy: What it demands, on top of what it belongs to; None makes it public.

        Raises:
            ConfigurationError: This was called for it before.
        """
        declared = self._by_endpoint.setdefault(app, {})
        if endpoint in declared:
            raise ConfigurationError(
                f"declare_view was called twice for {endpoint!r}. Call it once, with one policy that"
                " says everything."
            )
        self._found.clear()
        declared[endpoint] = PUBLIC if policy is None else (policy,)

    def check(self, app: Flask) -> None:
        """Find out whether every view is guarded as declared, once the application is complete.

        The first request does so too, and none is answered before everything is right; an application factory that calls this
        at its end learns it at once.

        Raises:
            ConfigurationError: A decorator stands above its route, a view of a protected blueprint or application declares
                no policy or contradicts :meth:`declare_view`, or that names a view that is not there.
        """
        for endpoint, view in app.view_functions.items():
            if is_exposed(view):
                raise _exposed(endpoint)
            for method in sorted(methods_of(app, endpoint)):
                self.policies_of(app, endpoint, method)
        for endpoint in self._by_endpoint.get(app, {}):
            if endpoint not in app.view_functions:
                raise ConfigurationError(
                    f"declare_view names {endpoint!r}, and the application has no such view. It has:"
                    f" {', '.join(sorted(app.view_functions))}."
                )

    def policies_of(self, app: Flask, endpoint: str, method: str) -> tuple[Policy, ...] | None:
        """What a request has to meet: the policies of its view, of the view's blueprints and of the application.

        Empty if the view is public; None if it declares nothing where nothing has to be declared.

        Raises:
            ConfigurationError: The view has to declare something and does not, or declares two things.
        """
        own = self._own_policies(app, endpoint, method)
        if own == PUBLIC:
            return PUBLIC
        protected = self._protected
        is_unsafe = method not in SAFE_METHODS
        outer = [
            protected[layer][is_unsafe] for layer in layers_of(app, endpoint) if layer in protected
        ]
        policies = (*(policy for policy in outer if policy is not None), *(own or ()))
        if policies:
            return policies
        if outer and not guards_itself(app, endpoint, method):
            raise ConfigurationError(
                f"The view {endpoint!r} declares no policy for {method}, and what it belongs to is"
                f" protected. {_how_to_declare(endpoint)}"
            )
        return None

    def _checks_of(self, app: Flask, endpoint: str | None, method: str) -> list[Policy]:
        """The policies that a request is checked against, in this order. The first request checks the application.

        Raises:
            ConfigurationError: As :meth:`check`.
        """
        found = self._found.get(app)
        if found is None:
            self.check(app)
            # Flask adds no view from here on.
            found = self._found[app] = {}
        if endpoint is None:
            # There is nothing to guard: Flask answers 404, 405 or a redirect.
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
        f"The guard of the view {endpoint!r} stands above its route and protects nothing. Write the"
        " route first and @auth.require(…) below it. For a view that other code registers, write"
        f" auth.declare_view(app, {endpoint!r}, require(…))."
    )


def _how_to_declare(endpoint: str) -> str:
    by_name = f"auth.declare_view(app, {endpoint!r}, require(…)), or None to make it public"
    if endpoint.rpartition(".")[2] != "static":
        return (
            "Decorate it with @auth.require(…) or @auth.public, below its route. If other code"
            f" registers it, write {by_name}."
        )
    return f"It serves files. Turn it off with static_folder=None, or write {by_name}."
