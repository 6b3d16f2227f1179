"""Reads the claims of a token, and calls the application's functions of claims.

A malformed claim is refused.

The application's functions decide which tokens are a person's login, and return a token's grants. A function may raise anything
for unexpected claims. In doubt a token is a machine's, and a token whose grants cannot be read is refused. The first
failure is logged, without the exception's message or traceback: both may quote a claim.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, TypeAlias, cast

from msk_auth.core.errors import ConfigurationError, CredentialRefused
from msk_auth.core.logins import raised_at

MAX_TEXT: Final = 255
"""The maximum length of a subject or an id, in characters."""

Claims: TypeAlias = Mapping[str, object]

# 9999-12-31: the maximum of a datetime, and far below an overflow of arithmetic.
_MAX_SECONDS: Final = 253_402_300_799


def is_text(value: object) -> bool:
    """True for printable text of at most 255 characters: neither a lone surrogate nor a NUL reaches a database driver."""
    return isinstance(value, str) and 0 < len(value) <= MAX_TEXT and value.isprintable()


def text(claims: Claims, name: str) -> str:
    """A claim that is printable text of at most 255 characters.

    Raises:
        CredentialRefused: The claim is malformed or missing.
    """
    value = claims.get(name)
    if not is_text(value):
        raise CredentialRefused("token_invalid")
    return cast("str", value)


def moment(claims: Claims, name: str, *, whole: bool = False) -> datetime:
    """A claim that is a `NumericDate` (RFC 7519, section 2).

    Args:
        claims: The claims.
        name: The claim's name.
        whole: True refuses fractions of a second.

    Raises:
        CredentialRefused: The claim is malformed or missing.
    """
    value = claims.get(name)
    # bool is an int in Python, but not a NumericDate. NaN and infinity are in no range.
    is_number = type(value) is int or (type(value) is float and not whole)
    if not is_number or not 0 <= cast("float", value) <= _MAX_SECONDS:
        raise CredentialRefused("token_invalid")
    return datetime.fromtimestamp(cast("float", value), UTC)


def names(value: object) -> frozenset[str]:
    """The members of an array of strings.

    Raises:
        CredentialRefused: The value is not an array of strings.
    """
    if not isinstance(value, list | tuple):
        raise CredentialRefused("token_invalid")
    members = cast("Iterable[object]", value)
    if not all(isinstance(member, str) for member in members):
        raise CredentialRefused("token_invalid")
    return frozenset(cast("Iterable[str]", members))


def audience(claims: Claims) -> frozenset[str]:
    """`aud`: a string, or an array of strings (RFC 7519, section 4.1.3).

    Raises:
        CredentialRefused: The claim is malformed or missing.
    """
    value = claims.get("aud")
    return frozenset({value}) if isinstance(value, str) else names(value)


def frozen(value: Any) -> object:
    """An immutable copy of a JSON value: requests share it under a lease."""
    if isinstance(value, dict):
        members = cast("dict[str, object]", value)
        return MappingProxyType({name: frozen(member) for name, member in members.items()})
    if isinstance(value, list):
        return tuple(frozen(member) for member in cast("list[object]", value))
    return value


_log = logging.getLogger("msk_auth")

Rule: TypeAlias = Callable[[Claims], bool]

Grants: TypeAlias = str | Callable[[Mapping[str, object]], Iterable[str]] | None
"""The claim or function that limits the permissions of a token: see `ExternalIssuer`."""


class ClaimsRules:
    """The application's functions of an issuer's claims: one decides which tokens are a person's login, one returns the grants.

    Args:
        issuer: The issuer of the tokens.
        interactive: Returns True for the claims of a person's login. Any other value means a machine's token.
        grants: The limit of the permissions.

    Raises:
        ConfigurationError: A function is async, or `grants` is an empty name.
    """

    def __init__(self, issuer: str, interactive: Rule, grants: Grants = None) -> None:
        for name, function in (("interactive", interactive), ("grants", grants)):
            # The coroutine of an async function is neither True nor names of permissions.
            if inspect.iscoroutinefunction(function):
                raise ConfigurationError(
                    f"{name} must be a plain function that takes the claims of a token, and not be async."
                )
        if grants == "":
            raise ConfigurationError("grants must be the name of a claim, such as 'scope'.")
        self._issuer = issuer
        self._interactive = interactive
        self._grants = grants
        self._warned: set[str] = set()

    def is_interactive(self, claims: Claims) -> bool:
        """True if these claims are of a person's login.

        With `act` (RFC 8693, section 4.1) another party acts for the person.
        """
        try:
            return "act" not in claims and self._interactive(claims) is True
        except Exception as error:  # noqa: BLE001 - a rule may raise anything on claims it did not expect
            self._warn_once(
                "interactive",
                error,
                "The token counts as a machine's. Let the function return False for claims that it does not know.",
            )
            return False

    def scopes(self, claims: Claims) -> frozenset[str] | None:
        """The granted names; None if nothing limits the token.

        Raises:
            CredentialRefused: The grants cannot be read.
        """
        if self._grants is None:
            return None
        if isinstance(self._grants, str):
            granted = claims.get(self._grants, ())
            return names(granted.split(" ") if isinstance(granted, str) else granted) - {""}
        try:
            answer: object = self._grants(claims)
            # The letters of a string, or the members of an object, would count as names.
            if isinstance(answer, str | Mapping):
                raise TypeError("not a collection of names")  # noqa: TRY301
            return names(tuple(cast("Iterable[object]", answer))) - {""}
        except Exception as error:  # noqa: BLE001 - as above
            self._warn_once(
                "grants",
                error,
                "The token is refused. Let the function return () for claims that grant nothing.",
            )
            raise CredentialRefused("token_invalid") from None

    def _warn_once(self, name: str, error: Exception, consequence: str) -> None:
        if name not in self._warned:
            self._warned.add(name)
            _log.warning(
                "the function %r for tokens of the issuer %r raised %s at %s. %s This is logged once.",
                name,
                self._issuer,
                type(error).__name__,
                raised_at(error),
                consequence,
            )
