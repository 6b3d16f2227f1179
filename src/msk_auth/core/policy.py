"""An operation's policy, and the check of a principal against it.

Three sets name the kinds of credential that pass as interactive, as a login, and as a key. All others are denied.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, cast

from .errors import (
    ConfigurationError,
    CredentialsMissing,
    Forbidden,
    InteractiveRequired,
    LoginTooOld,
    PermissionDenied,
)
from .fields import RESOURCE_FORM, is_resource
from .model import CredentialKind, Principal, UserT, freeze_permissions

_PASS_AS_INTERACTIVE: Final = frozenset({CredentialKind.INTERACTIVE})
_PASS_AS_LOGIN: Final = frozenset({CredentialKind.INTERACTIVE, CredentialKind.TOKEN})
_PASS_AS_KEY: Final = frozenset({CredentialKind.API_KEY})
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""The HTTP methods that are meant to change nothing (RFC 9110, section 9.2.1)."""

_NOT_GRANTED: Final = "This token is limited to its grants, and this operation names no permission."
_NOT_BOUND: Final = "This key is limited to some resources, and this operation reaches others. Log in, or use a key without resources."
_OUT_OF_REACH: Final = "This key is limited to some resources, and this resource is not among them."
_PARAMETER: Final = r"\{([A-Za-z_]\w*)\}"
_NO_PERSON: Final = (
    "This operation needs a person's login, and this credential is a machine's."
    " Log in and use the login token."
)


_NO_PARAMETERS: Final[Mapping[str, object]] = {}


@dataclass(frozen=True, slots=True)
class Policy:
    """The requirements of an operation; `Policy()` requires only that the caller is authenticated.

    A scoped key passes only if the policy names a permission, or has `any_credential`: scopes cannot cover an operation without
    a permission, and the application may check only the user (G4). The same is true for another issuer's token with grants;
    a person's also passes if the policy requires an interactive login.

    A key with resources passes only if the policy names the operation's resource (`resource`), or the operation
    calls `Principal.reaches` itself (`any_resource`), or with `any_credential`.

    Attributes:
        permissions: All of these are required.
        interactive: True requires an interactive login.
        max_age: The greatest age of that login; None means any (RFC 9470).
        any_credential: True accepts every credential, even a scoped key.
        key: True requires an API key.
        resource: The resource that a key with resources must reach, with parameters of the path in braces: `task:{task_id}`.
        any_resource: True accepts keys with any resources: the application limits the operation to them with
            `Principal.reaches`.
        login: True requires a login of a person or another token, and refuses API keys.
        is_bare: True if the policy requires only authentication, and does not mention keys. Computed from the others.

    Raises:
        ConfigurationError: A permission or the resource is malformed; `resource` with `any_resource`, or one of them if no
            key passes; `max_age` without `interactive`, or shorter than a second; `any_credential` with something else; two of
            `interactive`, `key` and `login`.
    """

    permissions: frozenset[str] = frozenset()
    interactive: bool = False
    max_age: timedelta | None = None
    any_credential: bool = False
    key: bool = False
    resource: str | None = None
    any_resource: bool = False
    login: bool = False
    is_bare: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        frozen = freeze_permissions(self.permissions, "permissions")
        object.__setattr__(self, "permissions", frozen)
        demanded = (self.interactive, self.login, self.key)
        reaches = self.resource is not None or self.any_resource
        says_more = self.permissions or self.any_credential or any(demanded) or reaches
        object.__setattr__(self, "is_bare", not says_more)
        # `require("a b")` would make a permission that no owner has, so refuse it at start. And a challenge quotes the
        # permission: a quote in it would end the parameter.
        for permission in self.permissions:
            if not is_permission(permission):
                raise ConfigurationError(
                    f"{permission!r} is not a permission. Write require('tasks:read', 'tasks:run')."
                )
        if self.resource is not None and not is_resource(re.sub(_PARAMETER, "x", self.resource)):
            raise ConfigurationError(
                f"{self.resource!r} is not a resource. {RESOURCE_FORM} Write resource='task:{{task_id}}' for one of the path."
            )
        if reaches and (
            self.interactive or self.login or (self.resource is not None and self.any_resource)
        ):
            raise ConfigurationError(
                "resource and any_resource exclude each other, and apply only to keys: logins are not limited to resources."
            )
        if self.any_credential and (self.permissions or any(demanded) or reaches):
            raise ConfigurationError(
                "any_credential demands nothing else. Use require(…), require_interactive(…), require_login(…) or"
                " require_key(…)."
            )
        if sum(demanded) > 1:
            raise ConfigurationError(
                "Use one of require_interactive(…), require_login(…) and require_key(…): a policy cannot require two of them."
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

    def credentials_missing(self) -> CredentialsMissing:
        """The refusal of a request without credentials. It names the required kind, if only one kind passes."""
        if self.interactive or self.login:
            return CredentialsMissing(
                "This operation needs a login, not an API key. Log in, and send the login token in the header"
                " 'Authorization: Bearer …'."
            )
        if self.key:
            return CredentialsMissing(
                "This operation is for API keys only. Send a key in the header 'Authorization: Bearer …'."
            )
        return CredentialsMissing()

    def check(
        self,
        principal: Principal[UserT],
        now: datetime,
        path: Mapping[str, object] = _NO_PARAMETERS,
    ) -> None:
        """Let the principal pass, or raise.

        The kind of credential is checked before permissions: the holder of a key learns that the operation accepts no key, not
        which permission is missing. The age of a login is checked last, so that no person logs in again in vain.

        Args:
            principal: The authenticated principal.
            now: The current time.
            path: The parameters of the request's path, for `resource`.

        Raises:
            InteractiveRequired: The policy requires an interactive login, or a login.
            Forbidden: The policy requires an API key.
            PermissionDenied: A permission is missing, or the credential has scopes and the policy names no permission; or the
                key has resources, and does not reach this resource, or the policy names none.
            LoginTooOld: The login is older than `max_age`, or its age is unknown.
            ConfigurationError: `principal` is not a principal, or `path` lacks a parameter of `resource`.
        """
        if not isinstance(cast("object", principal), Principal):
            # Its value may be a secret.
            raise ConfigurationError(
                f"A {type(principal).__name__} is not a Principal. Authenticate a request, or resume a reference, to"
                " get one."
            )
        if self.interactive and principal.kind not in _PASS_AS_INTERACTIVE:
            is_key = principal.kind is CredentialKind.API_KEY
            raise InteractiveRequired(None if is_key else _NO_PERSON)
        if self.login and principal.kind not in _PASS_AS_LOGIN:
            raise InteractiveRequired
        if self.key and principal.kind not in _PASS_AS_KEY:
            raise Forbidden("key_required")
        names_keys = self.permissions or self.any_credential or self.interactive
        if principal.scopes is not None and not names_keys:
            is_key = principal.kind is CredentialKind.API_KEY
            raise PermissionDenied((), None if is_key else _NOT_GRANTED)
        if not self.permissions <= principal.permissions:
            raise PermissionDenied(self.permissions)
        if principal.resources is not None and not (self.any_resource or self.any_credential):
            if self.resource is None:
                raise PermissionDenied((), _NOT_BOUND)
            if not principal.reaches(_filled(self.resource, path)):
                raise PermissionDenied((), _OUT_OF_REACH)
        if self.max_age is None:
            return
        if principal.authenticated_at is None or now - principal.authenticated_at > self.max_age:
            raise LoginTooOld(self.max_age)


def _filled(resource: str, path: Mapping[str, object]) -> str:
    """A resource with the parameters of a path.

    Raises:
        ConfigurationError: The path has no parameter of this name.
    """
    try:
        return re.sub(_PARAMETER, lambda name: str(path[name[1]]), resource)
    except KeyError as error:
        raise ConfigurationError(
            f"The path of this route has no parameter {error.args[0]!r}, which resource={resource!r} names."
        ) from None


def lasting(policy: Policy) -> Policy:
    """The policy that an admitted principal must still meet later. The resources of a key never change."""
    if policy.resource is None:
        return policy
    return replace(policy, resource=None, any_resource=True)


def require(*permissions: str, resource: str | None = None, any_resource: bool = False) -> Policy:
    """Requires a login, a token or a key with all of these permissions. Without a permission, a scoped key does not pass.

    Args:
        permissions: All of these are required.
        resource: The resource that a key with resources must reach, with parameters of the path in braces: `task:{task_id}`.
            Without `resource` and `any_resource`, such a key does not pass.
        any_resource: True accepts keys with any resources: the operation, such as a list, calls `Principal.reaches` itself.
    """
    return Policy(_named(permissions), resource=resource, any_resource=any_resource)


def any_credential() -> Policy:
    """Requires any accepted credential, even a scoped key."""
    return Policy(any_credential=True)


def require_login(*permissions: str) -> Policy:
    """Requires a person's login or a machine's token with all of these permissions, and no API key.

    For applications whose own older tokens act for machines, which :func:`require_interactive` refuses. Without a
    permission, a token with grants does not pass, as with :func:`require`.
    """
    return Policy(_named(permissions), login=True)


def require_key(
    *permissions: str, resource: str | None = None, any_resource: bool = False
) -> Policy:
    """Requires an API key with all of these permissions; refuses logins and other issuers' tokens.

    Without a permission, a scoped key does not pass, as with :func:`require`, which has the same arguments.
    """
    return Policy(_named(permissions), key=True, resource=resource, any_resource=any_resource)


def named_first(policies: Iterable[Policy]) -> list[Policy]:
    """The policies of one operation in the order of their checks. Bare policies come last, if others say more."""
    return sorted(policies, key=lambda policy: policy.is_bare)


def require_interactive(*permissions: str, max_age: timedelta | None = None) -> Policy:
    """Requires a person's login with all of these permissions; refuses every API key.

    Args:
        permissions: All of these are required.
        max_age: The greatest age of the login (RFC 9470); None means any.
    """
    return Policy(_named(permissions), interactive=True, max_age=max_age)


def _named(permissions: Iterable[object]) -> frozenset[str]:
    names = [permission for permission in permissions if isinstance(permission, str)]
    for permission in permissions:
        # A list in place of its members; or a view, if a decorator was written without parentheses.
        if not isinstance(permission, str):
            raise ConfigurationError(
                f"{permission!r} is not a permission. Write require('tasks:read', 'tasks:run'), or"
                " require() if none is needed."
            )
    return frozenset(names)


def is_permission(text: str) -> bool:
    """True if `text` is a valid permission: a `scope-token` of RFC 6749, section 3.3, of at most 100 characters."""
    return 0 < len(text) <= 100 and all(" " < c <= "~" and c not in '"\\' for c in text)
