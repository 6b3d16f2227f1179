"""Who may do what: an operation's policy and the one check of a principal against it.

A table names the kinds of credential that pass as interactive. All others are denied.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, cast

from .errors import ConfigurationError, InteractiveRequired, LoginTooOld, PermissionDenied
from .model import CredentialKind, Principal, UserT, freeze_permissions

_PASSES_AS_INTERACTIVE: Final = {
    CredentialKind.INTERACTIVE: True,
    CredentialKind.API_KEY: False,
    CredentialKind.TOKEN: False,
}


@dataclass(frozen=True, slots=True)
class Policy:
    """What an operation demands of its caller; `Policy()` demands to be authenticated at all.

    Attributes:
        permissions: All of these are needed.
        interactive: Whether only an interactive login will do.
        max_age: The greatest age of that login; None means any (RFC 9470).

    Raises:
        ConfigurationError: A permission cannot be one; `max_age` without `interactive`, or shorter
            than a second.
    """

    permissions: frozenset[str] = frozenset()
    interactive: bool = False
    max_age: timedelta | None = None

    def __post_init__(self) -> None:
        frozen = freeze_permissions(self.permissions, "permissions")
        object.__setattr__(self, "permissions", frozen)
        # `require("a b")` would make a permission that no owner has, so refuse it at start. And a challenge quotes the
        # permission, where a quote in it would end the parameter.
        for permission in self.permissions:
            if not is_permission(permission):
                raise ConfigurationError(
                    f"{permission!r} is not a permission. Write require('tasks:read', 'tasks:run')."
                )
        if self.max_age is None:
            return
        if not self.interactive:
            raise ConfigurationError(
                "max_age limits the age of a login. Use require_interactive(max_age=…)."
            )
        if not isinstance(cast("object", self.max_age), timedelta):
            raise ConfigurationError("max_age must be a timedelta, such as timedelta(minutes=5).")
        if self.max_age < timedelta(seconds=1):
            raise ConfigurationError("max_age must be at least one second.")

    def check(self, principal: Principal[UserT], now: datetime) -> None:
        """Let the principal pass, or raise.

        The kind of credential comes before permissions: the holder of a key learns that no key is accepted here, not
        which permission is missing. The age of a login comes last, so that a person is not sent to log in again in vain.

        Raises:
            InteractiveRequired: Only an interactive login will do.
            PermissionDenied: A permission is missing.
            LoginTooOld: The login is older than `max_age`, or its age is not known.
        """
        if self.interactive and not _PASSES_AS_INTERACTIVE.get(principal.kind):
            raise InteractiveRequired
        if not self.permissions <= principal.permissions:
            raise PermissionDenied(self.permissions)
        if self.max_age is None:
            return
        if principal.authenticated_at is None or now - principal.authenticated_at > self.max_age:
            raise LoginTooOld(self.max_age)


def require(*permissions: str) -> Policy:
    """Authenticated in any way, with all of these permissions."""
    return Policy(_named(permissions))


def require_interactive(*permissions: str, max_age: timedelta | None = None) -> Policy:
    """Logged in as a person, with all of these permissions; never with an API key.

    Args:
        permissions: All of these are needed.
        max_age: The greatest age of the login (RFC 9470); None means any.
    """
    return Policy(_named(permissions), interactive=True, max_age=max_age)


def _named(permissions: Iterable[object]) -> frozenset[str]:
    names = [permission for permission in permissions if isinstance(permission, str)]
    for permission in permissions:
        # A list in place of its members; or a view, where a decorator was written without parentheses.
        if not isinstance(permission, str):
            raise ConfigurationError(
                f"{permission!r} is not a permission. Write require('tasks:read', 'tasks:run'), or"
                " require() where none is needed."
            )
    return frozenset(names)


def is_permission(text: str) -> bool:
    """True if `text` can name a permission: a `scope-token` of RFC 6749, section 3.3, of at most 100 characters."""
    return 0 < len(text) <= 100 and all(" " < c <= "~" and c not in '"\\' for c in text)
