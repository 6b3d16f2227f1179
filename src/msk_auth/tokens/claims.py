"""Reads single claims of a token: what has another form than the claim must have is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, TypeAlias, cast

from msk_auth.core.errors import CredentialRefused

MAX_TEXT: Final = 255
"""The longest text that is read of a subject or an id, in characters."""

Claims: TypeAlias = Mapping[str, object]

# 9999-12-31: what a datetime can hold, and far below what arithmetic on numbers from outside could overflow.
_MAX_SECONDS: Final = 253_402_300_799


def is_text(value: object) -> bool:
    """Whether it is printable text of at most 255 characters: neither a lone surrogate nor a NUL reaches a database driver."""
    return isinstance(value, str) and 0 < len(value) <= MAX_TEXT and value.isprintable()


def text(claims: Claims, name: str) -> str:
    """A claim that is printable text of at most 255 characters.

    Raises:
        CredentialRefused: It is something else, or missing.
    """
    value = claims.get(name)
    if not is_text(value):
        raise CredentialRefused("token_invalid")
    return cast("str", value)


def moment(claims: Claims, name: str, *, whole: bool = False) -> datetime:
    """A claim that is a `NumericDate` (RFC 7519, section 2).

    Args:
        claims: The claims.
        name: Of the claim.
        whole: Whether a fraction of a second is refused.

    Raises:
        CredentialRefused: It is something else, or missing.
    """
    value = claims.get(name)
    # bool is an int in Python, and not a NumericDate. NaN and infinity are in no range.
    is_number = type(value) is int or (type(value) is float and not whole)
    if not is_number or not 0 <= cast("float", value) <= _MAX_SECONDS:
        raise CredentialRefused("token_invalid")
    return datetime.fromtimestamp(cast("float", value), UTC)


def names(value: object) -> frozenset[str]:
    """The members of an array of strings.

    Raises:
        CredentialRefused: It is something else.
    """
    if not isinstance(value, list | tuple):
        raise CredentialRefused("token_invalid")
    members = cast("Iterable[object]", value)
    if not all(isinstance(member, str) for member in members):
        raise CredentialRefused("token_invalid")
    return frozenset(cast("Iterable[str]", members))


def audience(claims: Claims) -> frozenset[str]:
    """`aud`: one string, or an array of them (RFC 7519, section 4.1.3).

    Raises:
        CredentialRefused: It is something else, or missing.
    """
    value = claims.get("aud")
    return frozenset({value}) if isinstance(value, str) else names(value)


def frozen(value: Any) -> object:
    """A JSON value that cannot be changed: requests share it under a lease."""
    if isinstance(value, dict):
        members = cast("dict[str, object]", value)
        return MappingProxyType({name: frozen(member) for name, member in members.items()})
    if isinstance(value, list):
        return tuple(frozen(member) for member in cast("list[object]", value))
    return value
