"""What a token of another issuer was granted: an application's rule, and in doubt the token is refused."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias, cast

from msk_auth.core.errors import ConfigurationError, TokenInvalid
from msk_auth.core.logins import raised_at

_log = logging.getLogger("msk_auth")

Grants: TypeAlias = str | Callable[[Mapping[str, object]], Iterable[str]] | None
"""What limits the permissions of a token: a claim's name, a function of the claims, or None for nothing.

- A name, such as `"scope"` or `"permissions"`: a string of names with spaces between them (RFC 6749, section 3.3), or an array
  of strings. A claim that is missing or empty grants nothing. Anything else in its place is refused.
- A function, for nested claims and for names to be mapped. It returns the names, and `()` to grant nothing. A token is refused
  if the function raises or returns None, a single string, an object, or anything but strings.
- None: the owner's permissions decide alone.

Effective permissions are those of the owner that the token was granted as well. Other names have no effect.
"""


class GrantRule:
    """Reads what a token was granted.

    Args:
        issuer: Whose tokens it is about.
        grants: What the application configured.

    Raises:
        ConfigurationError: `grants` is none of the three.
    """

    def __init__(self, issuer: str, grants: Grants) -> None:
        if not (grants is None or grants) or not (
            isinstance(grants, str | None)
            or (callable(cast("object", grants)) and not inspect.iscoroutinefunction(grants))
        ):
            raise ConfigurationError(
                "grants must be the name of a claim, such as 'scope', or a plain function that takes the claims and returns"
                " the names of permissions, or None if the owner's permissions decide alone."
            )
        self._issuer = issuer
        self._grants = grants
        self._warned = False

    def scopes(self, claims: Mapping[str, object]) -> frozenset[str] | None:
        """The names that were granted; None if nothing limits the token.

        Raises:
            TokenInvalid: They cannot be read.
        """
        if self._grants is None:
            return None
        if isinstance(self._grants, str):
            granted = claims.get(self._grants, ())
            return _names(granted.split(" ") if isinstance(granted, str) else granted)
        try:
            granted = self._grants(claims)
            # Of a string its letters would be taken for names, and of an object its members.
            return _names(None if isinstance(granted, str | Mapping) else tuple(granted))
        except Exception as error:  # noqa: BLE001 - a rule may raise anything on claims it did not expect
            self._warn_once(error)
            raise TokenInvalid from None

    def _warn_once(self, error: Exception) -> None:
        # Neither the message nor a traceback: both may quote a claim.
        if not self._warned:
            self._warned = True
            _log.warning(
                "a token of the issuer %r is refused: its function `grants` raised %s at %s, or did not return strings."
                " Let it return () for claims that grant nothing. This is logged once.",
                self._issuer,
                type(error).__name__,
                raised_at(error),
            )


def _names(granted: object) -> frozenset[str]:
    if not isinstance(granted, list | tuple):
        raise TokenInvalid
    names = cast("Iterable[object]", granted)
    if not all(isinstance(name, str) for name in names):
        raise TokenInvalid
    return frozenset(cast("Iterable[str]", names)) - {""}
