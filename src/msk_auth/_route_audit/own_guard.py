"""The mark of what the application guards itself, for the route audit. It opens nothing and guards nothing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final, TypeVar

from msk_auth.core.errors import ConfigurationError

T = TypeVar("T")

_MARK: Final = "msk_auth_own_guard"


class OwnGuard:
    """Marks what the application guards itself. There is one, :data:`msk_auth.own_guard`."""

    def __call__(self, guard: T) -> T:
        """Mark a function that guards, or one that is guarded; a decorator.

        Args:
            guard: In FastAPI a dependency or an endpoint; in Litestar a guard or the function of a handler; in Flask a view or a
                `before_request` function; in Starlette an endpoint, or what is mounted.

        Returns:
            The same.

        Raises:
            ConfigurationError: It takes no mark.
        """
        try:
            # A method has no room for a mark of its own.
            setattr(getattr(guard, "__func__", guard), _MARK, True)
        except AttributeError:
            raise ConfigurationError(
                f"{guard!r} takes no mark. Mark a function of your own that guards, or the route's function."
            ) from None
        return guard

    def __repr__(self) -> str:
        return "own_guard"


own_guard: Final = OwnGuard()
"""Says that the application guards a route itself, with a guard that this library does not know.

The route audit lists such routes as `the application's own guard`, and cannot look into it. For requests it changes nothing,
and a guard of the library on the same route counts more.
"""


def has_own_guard(function: object) -> bool:
    """True if a function is marked, or one that it wraps."""
    return any(getattr(layer, _MARK, False) is True for layer in _layers(function))


def _layers(function: Any) -> Iterator[object]:
    while function is not None:
        yield function
        if isinstance(function, partial):
            function = function.func
        else:
            function = getattr(function, "__wrapped__", None)
