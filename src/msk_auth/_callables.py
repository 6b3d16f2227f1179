"""Which functions have to be awaited and which block, as far as their definition shows it."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Awaitable
from typing import Any

from msk_auth.core.errors import ConfigurationError


def check_hook(hook: object, store: object, *, awaits: bool) -> None:
    """Refuse a hook `on_change` that the store would call in the wrong way: the first change of a key would fail.

    Args:
        hook: What the application gave; None if it gave none.
        store: Whose hook it is.
        awaits: Whether the store awaits it.

    Raises:
        ConfigurationError: It is no function; or it is async and the store blocks, or certainly not async and the store awaits.
    """
    name = type(store).__name__
    if hook is not None and not callable(hook):
        raise ConfigurationError(
            f"on_change must be a function that takes a connection and a KeyEvent, not {type(hook).__name__}."
        )
    if returns_awaitable(hook) is not (not awaits):
        return
    if awaits:
        raise ConfigurationError(
            f"on_change is not async, and {name} awaits it. Pass an async function, or use the store that blocks."
        )
    raise ConfigurationError(
        f"on_change is async, and {name} does not await it. Pass a plain function, or use the store that awaits."
    )


def returns_awaitable(function: object) -> bool | None:
    """True if the result has to be awaited, False if it cannot be, None if that is unknown."""
    function = called_function(function)
    if inspect.iscoroutinefunction(function):
        return True
    return _is_awaitable(return_hint(function))


def called_function(function: object) -> object:
    """The function behind a partial one or an object with `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isfunction(function) and not inspect.ismethod(function):
        # Calling an object calls this method of its class.
        function = getattr(type(function), "__call__", None)  # noqa: B004 - not whether it can be
    return function


def return_hint(function: object) -> object:
    """The return annotation of a function; `Any` without one."""
    if not inspect.isfunction(function) and not inspect.ismethod(function):
        return Any
    if hasattr(function, "__wrapped__"):
        # The decorator copied the annotations of the function that it wraps, and may return something else.
        return Any
    try:
        return typing.get_type_hints(function).get("return", Any)
    except Exception:  # noqa: BLE001 - an annotation may raise anything, for example for a name that does not exist
        return Any


def _is_awaitable(hint: object) -> bool | None:
    kind = typing.get_origin(hint) or hint
    if kind is typing.Union or kind is types.UnionType:
        members = {_is_awaitable(member) for member in typing.get_args(hint)}
        return members.pop() if len(members) == 1 else None
    if kind is Any or kind is object or not isinstance(kind, type):
        return None
    if getattr(kind, "_is_protocol", False):
        return None
    return issubclass(kind, Awaitable)
