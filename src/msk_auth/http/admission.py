"""What is kept with a request: what became of its credentials, its session and its user; and the logins beside its header.

A framework runs several guards for one request, for a blueprint, for a view, for the principal. The first outcome counts
for all of them, as long as the headers stay the same.

The application's functions find a login that is not in the `Authorization` header. An adapter hands on what it extracted, and
where the request came from. Whether any of it counts is decided in `core.authentication`.
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
"""What lives exactly as long as a request: an ASGI scope or a WSGI environment."""

Authorization: TypeAlias = tuple[str | bytes, ...]
"""The values of every `Authorization` header, as sent."""

Outcome: TypeAlias = tuple[object, tuple[Authorization, str | None], Principal[Any] | Problem]
"""The authenticator, the headers and the address that it verified, and the result."""

OUTCOME: Final = "msk_auth.outcome"
_USERS: Final = "msk_auth.users"
_SESSION: Final = "msk_auth.session"

NAMED: Final = "msk_auth.named"

ADMITTED: Final = "msk_auth.admitted"
"""Where a request keeps the authenticator whose guards have let it pass."""

AUTHENTICATED: Final = any_credential()
"""For code that is no guard, and only wants to know the principal: it names nothing on behalf of the guards."""

_WITHOUT_GUARD: Final = "The principal of a request was read on a route without a guard. Guard the route, as with auth.require()."

T = TypeVar("T")


log: logging.Logger = logging.getLogger("msk_auth.integrations")
# The error logged here is an unforeseen one, and its message may hold anything.
log.addFilter(RedactingFilter())


def keep_session(
    memory: Memory, authenticator: BaseAuthenticator[Any], find: Callable[[], object]
) -> RequestSession:
    """Keep the session of a request with the request; the first one, if it is given several.

    Args:
        memory: The request's.
        authenticator: Whose users are read in it. A mounted application may have its own.
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
        Problem: The guard found the credentials not acceptable.
        ConfigurationError: No guard of this authenticator ran. A mounted application may have an authenticator, and so users, of
            its own.
    """
    outcome: Outcome | None = memory.get(OUTCOME)
    if outcome is None or outcome[0] is not authenticator:
        # Not every framework logs what is raised, and this has to be easy to find.
        log.error(_WITHOUT_GUARD)
        raise ConfigurationError(_WITHOUT_GUARD)
    found: Principal[UserT] | Problem = outcome[2]
    if not isinstance(found, Principal):
        raise _without_frames(found)
    return found


def loaded_user(principal: Principal[Any], user: T | None) -> T:
    """The application's user of a request, as the application has loaded it.

    Args:
        principal: Who the request acts as.
        user: What was found for its owner.

    Raises:
        CredentialRefused: There is none: the user is gone since the owner was found, or the owner never was one. It is the
            refusal of a credential whose owner is gone: `owner_disabled` for a key, `token_revoked` for a login or another
            token.
    """
    if user is not None:
        return user
    if principal.kind is CredentialKind.API_KEY:
        raise CredentialRefused(
            "owner_disabled", "There is no user for the owner of this key.", key_id=principal.key_id
        )
    raise CredentialRefused("token_revoked", "There is no user for this login.")


Loading: TypeAlias = tuple[dict[Any, Any], Hashable, Principal[Any], Callable[[], Any]]
"""What `load_user_once` takes: the users of the request, the name of this one, the principal, and what loads."""


def loading(
    memory: Memory, principal: Principal[Any], load: Callable[..., Any], *more: object
) -> Loading:
    """How the user of a request is loaded by a function of the application.

    Args:
        memory: The request's.
        principal: Who the request acts as.
        load: Takes the id of the owner.
        more: What it takes beside that.
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
    """How the user of a request is loaded in a session; the one that was read to verify the request is there already.

    Args:
        request: The session of the request.
        users: The authenticator's.
        principal: Who the request acts as.
        call: Calls the function that loads, which may block.
    """
    owner_id = principal.owner.id

    def load() -> Any:
        return call(users.load_user, request.session, owner_id)

    return request.users, owner_id, principal, load


def users_of(authenticator: BaseAuthenticator[Any], given: AnyUsers | None = None) -> AnyUsers:
    """The `Users` that an authenticator has as its `find_owner`.

    Args:
        authenticator: The application's.
        given: What the application gave to `user` of its adapter, if anything.

    Raises:
        ConfigurationError: It has none, or others.
    """
    users = authenticator.users
    if users is None or (given is not None and given is not users):
        raise ConfigurationError(
            "The session of a request is for an authenticator that reads users in it, and its find_owner is not the same Users."
            " Give it find_owner=Users(load_user, owner_of, new_session)."
        )
    return users


def refusal(problem: Problem, policy: Policy) -> Problem:
    """What to raise for a request that was refused, perhaps before."""
    if isinstance(problem, CredentialsMissing) and not problem.args:
        return policy.credentials_missing()
    return _without_frames(problem)


def _without_frames(problem: Problem) -> Problem:
    # Those of the first time hold the credentials.
    return problem.with_traceback(None)


@dataclass(frozen=True, slots=True)
class LoginSources:
    """What an application configured at its adapter.

    Attributes:
        functions: Each takes the framework's request, and returns a `Login` or None.
        own_csrf_protection: Whether a login counts for an unsafe method wherever the request came from. Otherwise only if a page
            of the same origin sent it.
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
        """What may find a login in a request. Without functions nothing does, and an adapter need not come here.

        Args:
            request: What the functions take.
            method: None for the handshake of a websocket, which no cross-origin rule of a browser keeps back.
            scheme: That of the request.
            headers: With lower-case names.
        """
        is_foreign = (
            not self.own_csrf_protection
            and method not in SAFE_METHODS
            and not is_same_origin(headers, scheme)
        )
        return RequestLogins(self.functions, request, is_foreign)


def is_same_origin(headers: Iterable[tuple[bytes, bytes]], scheme: str) -> bool | None:
    """Whether a page of this origin made the browser send a request.

    Browsers send that in `Sec-Fetch-Site` (Fetch Metadata), which no page can set, and over plain HTTP in `Origin` (RFC 6454,
    section 7) alone. A program can send what it likes: this protects people from other sites, and nothing from programs.

    A request that changes something with a cookie needs True. One that sends its credentials itself, such as a login, is
    another site's doing only at False.

    Args:
        headers: The request's, with lower-case names, as in an ASGI scope.
        scheme: What the browser used: `http` or `ws`, `https` or `wss`. Behind a proxy that ends TLS the request itself does
            not show it.

    Returns:
        True for a page of this origin, or an address that a person typed. False for another site, and for headers that no
        browser sends. None if no header shows it, as with programs.
    """
    found: dict[bytes, list[bytes]] = {b"host": [], b"origin": [], b"sec-fetch-site": []}
    for name, value in headers:
        if name in found:
            found[name].append(value)
    hosts, origins, sites = found.values()
    if max(len(hosts), len(origins), len(sites)) > 1:
        # No browser sends one of them twice.
        return False
    if sites:
        return sites[0] in {b"same-origin", b"none"}
    if not origins:
        return None
    host = b"".join(hosts)
    # The origin of a websocket's page has the scheme of HTTP.
    return bool(host) and origins[0] == scheme.replace("ws", "http").encode() + b"://" + host
