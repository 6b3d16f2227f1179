"""Which values are immutable, and may therefore be shared between requests.

Under a lease one verification serves many requests, and all of them get the same principal. If one request changed it, the
others would see the change. So the application's owners must be immutable. These values are:

- None, numbers, text, bytes, dates and times, UUIDs and members of an `Enum`;
- tuples, named tuples and frozen sets of such values;
- frozen dataclasses, and pydantic models with `frozen=True`, of such values;
- instances of a class that the application has declared with :func:`immutable`.

An undeclared class with a `cached_property` is mutable although it is frozen: the first request that reads it writes into the
instance, after the owner was checked. Any other value counts as mutable, including those that this module cannot judge.
"""

from __future__ import annotations

from datetime import date, time, timedelta, tzinfo
from enum import Enum
from functools import cache, lru_cache
from types import MemberDescriptorType
from typing import Any, Final, TypeVar, cast
from weakref import WeakSet

from .errors import ConfigurationError

ClassT = TypeVar("ClassT", bound=type)

_declared: Final[WeakSet[type]] = WeakSet()
_CONTAINERS: Final = (tuple, frozenset)
_CHANGING: Final = (list, dict, set, bytearray)
# pydantic's: the names of the fields that were set, and two that `_find_changing` reads itself.
_BOOKKEEPING: Final = frozenset(
    {"__pydantic_extra__", "__pydantic_fields_set__", "__pydantic_private__"}
)


def immutable(cls: ClassT) -> ClassT:
    """Declare that the instances of a class never change. Use it as a class decorator or as a function.

    Use it for a class that the library cannot judge, such as one of `attrs` or `msgspec`, so that its instances may be the
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
    if _is_changing_class(kind):
        return "", kind
    attributes = _attributes(value, kind)
    if isinstance(value, _CONTAINERS):
        if attributes:
            return "", kind
        held = cast("tuple[object, ...] | frozenset[object]", value)
        for index, member in enumerate(held):
            found = _find_changing(member)
            if found is not None:
                return f"[{index}]{found[0]}", found[1]
        return None
    if is_frozen_class(kind):
        # `frozen` does not cover a pydantic model's private attributes.
        if getattr(value, "__pydantic_private__", None):
            return "", kind
        extra: dict[str, object] = getattr(value, "__pydantic_extra__", None) or {}
        for name, member in (*attributes, *extra.items()):
            found = _find_changing(member)
            if found is not None:
                return f".{name}{found[0]}", found[1]
        return None
    # An instance of a subclass, such as that of a library for dates, is as good if it has no attributes of its own.
    return None if isinstance(value, _unchanging()) and not attributes else ("", kind)


def is_frozen_class(kind: type[object]) -> bool:
    """True if the class prevents setting attributes of its instances: a frozen dataclass or pydantic model."""
    # Not inherited: a subclass that is no frozen dataclass accepts further attributes.
    parameters = kind.__dict__.get("__dataclass_params__")
    if parameters is not None:
        return bool(parameters.frozen)
    config: Any = getattr(kind, "model_config", None)
    return _is_model(kind) and config.get("frozen") is True


def is_mutable_class(kind: type) -> bool:
    """True if instances of a class can certainly change: ORM classes, unfrozen dataclasses and models, lists and so on."""
    if kind in _declared:
        return False
    # SQLAlchemy's classes have a mapper, Django's and peewee's models their `_meta`.
    if hasattr(kind, "__mapper__") or hasattr(kind, "_meta") or _is_changing_class(kind):
        return True
    judged = "__dataclass_params__" in kind.__dict__ or _is_model(kind)
    return judged and not is_frozen_class(kind)


# Cached for the same reason as `_slots`.
@lru_cache(maxsize=256)
def _is_changing_class(kind: type) -> bool:
    """True if instances can change although they are frozen: as a list, or by a `cached_property`."""
    # The members of an enumeration are the process's own, with or without a lease.
    return not issubclass(kind, Enum) and any(
        base in _CHANGING or any(map(_is_cached_property, vars(base).values()))
        for base in kind.__mro__
    )


def _is_cached_property(member: object) -> bool:
    # Known by the name: Django and Werkzeug have one of their own.
    return any(cls.__name__ == "cached_property" for cls in type(member).__mro__)


def _is_model(kind: type[object]) -> bool:
    return isinstance(getattr(kind, "model_config", None), dict) and hasattr(
        kind, "__pydantic_fields__"
    )


@cache
def _unchanging() -> tuple[type, ...]:
    # Imported here, so that importing the library loads neither.
    from decimal import Decimal
    from uuid import UUID

    text = (str, bytes)
    times = (date, time, timedelta, tzinfo)
    return (type(None), bool, int, float, complex, *text, *times, Decimal, UUID)


def _attributes(value: object, kind: type) -> list[tuple[str, object]]:
    """The attributes of an instance, by name, without what its built-in class holds."""
    attributes: list[tuple[str, object]] = [*getattr(value, "__dict__", {}).items()]
    for name, slot in _slots(kind):
        try:
            attributes.append((name, slot.__get__(value, kind)))
        except AttributeError:  # it was never set
            continue
    return attributes


@lru_cache(maxsize=256)
def _slots(kind: type) -> tuple[tuple[str, MemberDescriptorType], ...]:
    # Under a lease each verification judges an owner, and finding the slots of its classes would take most of that time.
    return tuple(
        (name, member)
        for cls in kind.__mro__
        # Classes written in C have members without `__slots__`, and keep them.
        if "__slots__" in vars(cls) and cls not in _unchanging()
        for name, member in vars(cls).items()
        if isinstance(member, MemberDescriptorType) and name not in _BOOKKEEPING
    )
