"""Checks that values are immutable, so that requests may share them.

Under a lease many requests get the same principal. If one request changed it, the
others would see the change. So the application's owners must be immutable. These values are immutable:

- None, numbers, text, bytes, dates and times, UUIDs and members of an `Enum`;
- tuples, named tuples and frozen sets of such values;
- frozen dataclasses of such values;
- instances of a class that the application has declared with :func:`immutable`.

An undeclared class with a `cached_property` is mutable even if frozen: the first request that reads the property writes into the
instance, after the owner was checked. Any other value counts as mutable, including values that this module cannot judge.
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
    """Declare that the instances of a class never change. Use this as a class decorator or as a function.

    Declare classes that the library cannot judge, such as those of pydantic, attrs or msgspec, so that their instances may be the
    `user` of an :class:`~msk_auth.Owner` under a lease. The declaration covers everything that an instance refers to, but
    no subclasses.

    Raises:
        ConfigurationError: The argument is not a class.
    """
    if not isinstance(cast("object", cls), type):
        raise ConfigurationError(f"{cls!r} is not a class. Write @immutable above the class.")
    _declared.add(cls)
    return cls


class NotShareable(ConfigurationError):
    """A value that requests would share has a mutable part.

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
    """Refuse a value with a mutable part.

    Args:
        value: The value that requests would share.
        path: Its name in an error.

    Raises:
        NotShareable: A part is mutable, or this module cannot judge it.
    """
    kind: type = type(value)
    if kind in _unchanging() or isinstance(value, Enum) or kind in _declared:
        return
    attributes: dict[str, object] = getattr(value, "__dict__", {})
    # Not inherited: a subclass that is not a frozen dataclass accepts further attributes.
    parameters = kind.__dict__.get("__dataclass_params__")
    members: dict[str, object]
    if _is_changing_class(kind):
        raise NotShareable(path, kind)
    if parameters is not None and parameters.frozen:
        named = {each.name: getattr(value, each.name, None) for each in fields(kind)} | attributes
        members = {f".{name}": member for name, member in named.items()}
    elif attributes or _has_slots(kind):
        raise NotShareable(path, kind)
    elif isinstance(value, tuple | frozenset):
        held = cast("tuple[object, ...] | frozenset[object]", value)
        members = {f"[{index}]": member for index, member in enumerate(held)}
    elif isinstance(value, _unchanging()):
        # Instances of subclasses, such as a date library's, are accepted too.
        return
    else:
        raise NotShareable(path, kind)
    for place, member in members.items():
        check_shareable(member, path + place)


# Cached, because each verification under a lease checks an owner.
@lru_cache(maxsize=256)
def _is_changing_class(kind: type) -> bool:
    """True if instances are mutable even if frozen: as a list, or by a `cached_property`."""
    return any(
        base in _CHANGING or any(map(_is_cached_property, vars(base).values()))
        for base in kind.__mro__
    )


def _is_cached_property(member: object) -> bool:
    # Recognised by name: Django and Werkzeug have their own.
    return any(cls.__name__ == "cached_property" for cls in type(member).__mro__)


@lru_cache(maxsize=256)
def _has_slots(kind: type) -> bool:
    """True if a Python class has slots, whose contents can be replaced."""
    return any(
        base.__dict__.get("__slots__", ()) and base not in _unchanging() for base in kind.__mro__
    )


@cache
def _unchanging() -> tuple[type, ...]:
    # Imported here, so that importing the library does not load these modules.
    from decimal import Decimal
    from uuid import UUID

    text = (str, bytes)
    times = (date, time, timedelta, tzinfo)
    return (type(None), bool, int, float, complex, *text, *times, Decimal, UUID)
