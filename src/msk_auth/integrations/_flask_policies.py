"""What a Flask application demands of its callers, view by view: the marks that guards leave, and their reader."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeGuard, TypeVar, cast
from weakref import WeakSet

from flask import Flask
from flask.views import MethodView, View

from msk_auth.core.errors import ConfigurationError
from msk_auth.core.policy import Policy

POLICIES_ATTRIBUTE: Final = "msk_auth_policies"
"""Where a declared view carries its policies: a tuple, empty if it is public."""

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
    _guarded.update(wrapped_views(view))
    setattr(guard, POLICIES_ATTRIBUTE, (*(inner or ()), policy))
    return guard


def declare_public(view: ViewT) -> ViewT:
    """Write down that a view is for everybody.

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
    own = _own(view)
    view_class: object = getattr(view, "view_class", None)
    if own is not None or not _is_view_class(view_class):
        return own
    if not issubclass(view_class, MethodView):
        return _own(view_class.dispatch_request)
    handler = getattr(view_class, method.lower(), None)
    if handler is None and method == "HEAD":
        handler = getattr(view_class, "get", None)
    if handler is not None:
        return _own(handler)
    # OPTIONS, which Flask answers by itself, about all methods together.
    declared = [_own(getattr(view_class, name.lower(), None)) for name in view_class.methods or ()]
    if None in declared:
        return None
    return tuple({policy: None for policies in declared for policy in policies or ()})


def methods_of(app: Flask, endpoint: str) -> set[str]:
    """Every method that an endpoint answers, over all of its rules."""
    return {method for rule in app.url_map.iter_rules(endpoint) for method in rule.methods or ()}


def layers_of(app: Flask, endpoint: str) -> Iterator[object]:
    """The application and the blueprints that an endpoint belongs to, from the outside in."""
    yield app
    names = endpoint.split(".")[:-1]
    for count in range(1, len(names) + 1):
        blueprint = app.blueprints.get(".".join(names[:count]))
        if blueprint is not None:
            yield blueprint


def _own(view: object) -> tuple[Policy, ...] | None:
    return getattr(view, POLICIES_ATTRIBUTE, None)


def wrapped_views(view: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """The view, and what it wraps: any of them may have been given to a route on the way."""
    layer: Any = view
    while layer is not None:
        yield layer
        layer = getattr(layer, "__wrapped__", None)


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
