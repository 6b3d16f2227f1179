"""Which values are immutable, and may therefore be shared between requests.

Under a lease one verification serves many requests, and all of them get the same principal. If one request changed it, the
others would see the change. So the application's owners must be immutable. These values are:

- None, numbers, text, bytes, dates and times, UUIDs and members of an `Enum`;
- tuples, named tuples and frozen sets of such values;
- frozen dataclasses of such values;
- instances of a class that the application has declared with :func:`immutable`.

An undeclared class with a `cached_property` is mutable although it is frozen: the first request that reads it writes into the
instance, after the owner was checked. Any other value counts as mutable, including those that this module cannot judge.
"""

from __future__ import annotations

from dataclasses import fields
from datetime import date, time, timedelta, tzinfo
from enum import Enum
from functools import cache, lru_cache
from typing import Final, TypeVar, cast
from weakref import WeakSet

from .errors import ConfigurationError

ClassT = TypeVar("ClassT", bound=type)

_declared: Final[WeakSet[type]] = WeakSet()
_CHANGING: Final = (list, dict, set, bytearray)


def immutable(cls: ClassT) -> ClassT:
    """Declare that the instances of a class never change. Use it as a class decorator or as a function.

    Use it for a class that the library cannot judge, such as one of pydantic, attrs or msgspec, so that its instances may be the
    `user` of an :class:`~msk_auth.Owner` under a lease. The declaration covers everything that an instance refers to. It
    does not cover subclasses.

    Raises:
        ConfigurationError: The argument is not a class.
    """
    if not isinstance(cast("object", cls), type):
        raise ConfigurationError(f"{cls!r} is not a class. Write @immutable above the class.")
    _declared.add(cls)
    return cls


class NotShareable(ConfigurationError):
    """A value that several requests would share has a part that can change.

    Args:
        path: The place of that part, such as `owner.user.roles`.
        kind: The class of that part.
    """

    def __init__(self, path: str, kind: type[object]) -> None:
        name = kind.__qualname__
        super().__init__(
            f"Under a lease one Owner serves many requests, and {path} can change: it is a {name}. Give Owner.user"
            " something that cannot change, such as the user's id or a frozen dataclass without a cached_property, and"
            " load the user per request, in the request's own session: above all an ORM instance. If no instance of the"
            f" class ever changes, declare it with msk_auth.immutable({name})."
        )


def check_shareable(value: object, path: str) -> None:
    """Refuse a value of which a part can change.

    Args:
        value: What several requests are to share.
        path: What to call it.

    Raises:
        NotShareable: A part of it can change, or this module cannot judge it.
    """
    found = _find_changing(value)
    if found is not None:
        suffix, kind = found
        raise NotShareable(path + suffix, kind)


def _find_changing(value: object) -> tuple[str, type[object]] | None:
    """Where a value can change, such as `.user.roles`, and the class of that part; None if it cannot."""
    kind: type = type(value)
    if kind in _unchanging() or isinstance(value, Enum) or kind in _declared:
        return None
    attributes: dict[str, object] = getattr(value, "__dict__", {})
    # Not inherited: a subclass that is no frozen dataclass accepts further attributes.
    parameters = kind.__dict__.get("__dataclass_params__")
    members: dict[str, object]
    if _is_changing_class(kind):
        return "", kind
    if parameters is not None and parameters.frozen:
        named = {each.name: getattr(value, each.name, None) for each in fields(kind)} | attributes
        members = {f".{name}": member for name, member in named.items()}
    elif attributes or _has_slots(kind):
        return "", kind
    elif isinstance(value, tuple | frozenset):
        held = cast("tuple[object, ...] | frozenset[object]", value)
        members = {f"[{index}]": member for index, member in enumerate(held)}
    else:
        # An instance of a subclass, such as that of a library for dates, is as good.
        return None if isinstance(value, _unchanging()) else ("", kind)
    for place, member in members.items():
        found = _find_changing(member)
        if found is not None:
            return f"{place}{found[0]}", found[1]
    return None


# Cached, because each verification under a lease judges an owner.
@lru_cache(maxsize=256)
def _is_changing_class(kind: type) -> bool:
    """True if instances can change although they are frozen: as a list, or by a `cached_property`."""
    return any(
        base in _CHANGING or any(map(_is_cached_property, vars(base).values()))
        for base in kind.__mro__
    )


def _is_cached_property(member: object) -> bool:
    # Known by the name: Django and Werkzeug have one of their own.
    return any(cls.__name__ == "cached_property" for cls in type(member).__mro__)


@lru_cache(maxsize=256)
def _has_slots(kind: type) -> bool:
    """True if a class of Python has slots, whose contents can be replaced."""
    return any(
        base.__dict__.get("__slots__", ()) and base not in _unchanging() for base in kind.__mro__
    )


@cache
def _unchanging() -> tuple[type, ...]:
    # Imported here, so that importing the library loads neither.
    from decimal import Decimal
    from uuid import UUID

    text = (str, bytes)
    times = (date, time, timedelta, tzinfo)
    return (type(None), bool, int, float, complex, *text, *times, Decimal, UUID)
