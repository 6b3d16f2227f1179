"""The state of a request: its verification, its session and its user; and logins outside of its header.

A framework runs several guards for one request, for a blueprint, for a view, for the principal. They share the first
verification, as long as the headers stay the same.

The application's functions find a login that is not in the `Authorization` header. An adapter passes the request and its
origin on; `core.authentication` decides whether the login is accepted.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Hashable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from msk_auth.authenticator import BaseAuthenticator
from msk_auth.core.errors import (
    ConfigurationError,
    CredentialRefused,
    CredentialsMissing,
    Problem,
)
from msk_auth.core.logins import RequestLogins
from msk_auth.core.model import CredentialKind, Principal, UserT
from msk_auth.core.policy import SAFE_METHODS, Policy, any_credential
from msk_auth.redaction import RedactingFilter
from msk_auth.users import AnyUsers, RequestSession

Memory: TypeAlias = MutableMapping[str, Any]
"""A mapping that lives exactly as long as a request: an ASGI scope or a WSGI environment."""

Authorization: TypeAlias = tuple[str | bytes, ...]
"""The values of every `Authorization` header, as sent."""

Outcome: TypeAlias = tuple[object, tuple[Authorization, str | None], Principal[Any] | Problem]
"""The authenticator, the verified headers and address, and the result."""

OUTCOME: Final = "msk_auth.outcome"
_USERS: Final = "msk_auth.users"
_SESSION: Final = "msk_auth.session"

NAMED: Final = "msk_auth.named"

ADMITTED: Final = "msk_auth.admitted"
"""The key for the authenticator whose guards have admitted the request."""

AUTHENTICATED: Final = any_credential()
"""For code that is not a guard and only reads the principal: it does not count as naming a permission."""

_WITHOUT_GUARD: Final = "The principal of a request was read on a route without a guard. Guard the route, as with auth.require()."

T = TypeVar("T")


log: logging.Logger = logging.getLogger("msk_auth.integrations")
# The errors logged here are unexpected, and their messages may contain anything.
log.addFilter(RedactingFilter())


def keep_session(
    memory: Memory, authenticator: BaseAuthenticator[Any], find: Callable[[], object]
) -> RequestSession:
    """Keep the session of a request with the request; if there are several, the first.

    Args:
        memory: The request's mapping.
        authenticator: The authenticator that reads users in the session. A mounted application may have its own.
        find: Finds the application's session of the request.
    """
    kept = session_of(memory, authenticator)
    if kept is None:
        kept = RequestSession(find)
        memory[_SESSION] = (authenticator, kept)
    return kept


def session_of(memory: Memory, authenticator: BaseAuthenticator[Any]) -> RequestSession | None:
    """The session of a request, if the adapter knows it."""
    kept: tuple[object, RequestSession] | None = memory.get(_SESSION)
    return None if kept is None or kept[0] is not authenticator else kept[1]


def known_principal(memory: Memory, authenticator: BaseAuthenticator[UserT]) -> Principal[UserT]:
    """The principal that a guard found for this request.

    Raises:
        Problem: The guard refused the credentials.
        ConfigurationError: No guard of this authenticator ran. A mounted application may have its own authenticator and users.
    """
    outcome: Outcome | None = memory.get(OUTCOME)
    if outcome is None or outcome[0] is not authenticator:
        # Not every framework logs exceptions, and this mistake must be easy to find.
        log.error(_WITHOUT_GUARD)
        raise ConfigurationError(_WITHOUT_GUARD)
    found: Principal[UserT] | Problem = outcome[2]
    if not isinstance(found, Principal):
        raise found.with_traceback(None)  # its frames reference the credentials
    return found


def loaded_user(principal: Principal[Any], user: T | None) -> T:
    """The application's user of a request, loaded by the application.

    Args:
        principal: The principal of the request.
        user: The user of its owner, or None.

    Raises:
        CredentialRefused: There is no user: the user was deleted meanwhile, or the owner is not a user. The code is that of
            a deleted owner: `owner_disabled` for a key, `token_revoked` for a login or another token.
    """
    if user is not None:
        return user
    if principal.kind is CredentialKind.API_KEY:
        raise CredentialRefused(
            "owner_disabled", "The owner of this key has no user.", key_id=principal.key_id
        )
    raise CredentialRefused("token_revoked", "This login has no user.")


Loading: TypeAlias = tuple[dict[Any, Any], Hashable, Principal[Any], Callable[[], Any]]
"""The arguments of `load_user_once`: the users of the request, the name of this user, the principal, and the loader."""


def loading(
    memory: Memory, principal: Principal[Any], load: Callable[..., Any], *more: object
) -> Loading:
    """The loading of a request's user by a function of the application.

    Args:
        memory: The request's mapping.
        principal: The principal of the request.
        load: Takes the id of the owner.
        more: Further arguments of `load`.
    """
    owner_id = principal.owner.id
    kept: dict[Any, Any] = memory.setdefault(_USERS, {})
    return kept, (load, owner_id), principal, partial(load, owner_id, *more)


def loading_in(
    request: RequestSession,
    users: AnyUsers,
    principal: Principal[Any],
    call: Callable[..., Any] = operator.call,
) -> Loading:
    """The loading of a request's user in a session, which may have loaded the user already to verify the request.

    Args:
        request: The session of the request.
        users: The authenticator's users.
        principal: The principal of the request.
        call: Calls the loading function, which may block.
    """
    owner_id = principal.owner.id

    def load() -> Any:
        return call(users.load_user, request.session, owner_id)

    return request.users, owner_id, principal, load


def users_of(authenticator: BaseAuthenticator[Any], given: AnyUsers | None = None) -> AnyUsers:
    """The `Users` that an authenticator has as its `find_owner`.

    Args:
        authenticator: The application's authenticator.
        given: The argument of the adapter's `user`, if any.

    Raises:
        ConfigurationError: The authenticator has no `Users`, or other ones.
    """
    users = authenticator.users
    if users is None or (given is not None and given is not users):
        raise ConfigurationError(
            "The session of a request is for an authenticator that reads users in it, and its find_owner is not the same Users."
            " Give it find_owner=Users(load_user, owner_of, new_session)."
        )
    return users


def refusal(problem: Problem, policy: Policy) -> Problem:
    """The problem to raise for a refused request, perhaps refused before."""
    if isinstance(problem, CredentialsMissing) and not problem.args:
        return policy.credentials_missing()
    # The frames of the first exception reference the credentials.
    return problem.with_traceback(None)


@dataclass(frozen=True, slots=True)
class LoginSources:
    """The configuration of logins at an adapter.

    Attributes:
        functions: Each takes the framework's request, and returns a `Login` or None.
        own_csrf_protection: True accepts a login for an unsafe method from any origin. Otherwise a page of the same origin must
            have sent the request.
    """

    functions: Sequence[Callable[[Any], object]]
    own_csrf_protection: bool

    def ask(
        self,
        request: object,
        *,
        method: str | None,
        scheme: str,
        headers: Iterable[tuple[bytes, bytes]],
    ) -> RequestLogins:
        """The functions that may find a login in a request. Adapters call this only if there are functions.

        Args:
            request: The argument of the functions.
            method: The method; None for the handshake of a websocket, which browsers send to other origins.
            scheme: The scheme of the request.
            headers: The headers, with lower-case names.
        """
        is_foreign = (
            not self.own_csrf_protection
            and method not in SAFE_METHODS
            and not is_same_origin(headers, scheme)
        )
        return RequestLogins(self.functions, request, is_foreign)


def is_same_origin(headers: Iterable[tuple[bytes, bytes]], scheme: str) -> bool | None:
    """Tell whether a page of this origin made the browser send a request.

    Browsers send the origin in `Sec-Fetch-Site` (Fetch Metadata), which no page can set, and over plain HTTP only in `Origin` (RFC
    6454, section 7). A program can send any header: this check protects people from other sites, not from programs.

    A request that changes something with a cookie needs True. Refuse a request with its own credentials, such as a login form,
    only at False.

    Args:
        headers: The request's headers, with lower-case names, as in an ASGI scope.
        scheme: The browser's scheme: `http` or `ws`, `https` or `wss`. Behind a proxy that terminates TLS the request does
            not show it.

    Returns:
        True for a page of this origin, or an address that a person typed. False for another site, and for headers that no
        browser sends. None without these headers, as from programs.
    """
    found: dict[bytes, list[bytes]] = {b"host": [], b"origin": [], b"sec-fetch-site": []}
    for name, value in headers:
        if name in found:
            found[name].append(value)
    hosts, origins, sites = found.values()
    if max(len(hosts), len(origins), len(sites)) > 1:
        # No browser sends one of these headers twice.
        return False
    if sites:
        return sites[0] in {b"same-origin", b"none"}
    if not origins:
        return None
    host = b"".join(hosts)
    # The origin of a websocket's page has the scheme of HTTP.
    return bool(host) and origins[0] == scheme.replace("ws", "http").encode() + b"://" + host
