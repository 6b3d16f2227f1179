"""One authentication per request: what became of its credentials, kept with the request.

A framework runs several guards for one request, for a blueprint, for a view, for the principal. The first outcome counts
for all of them, as long as the headers stay the same.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Generator, MutableMapping
from typing import Any, Final, TypeAlias, TypeGuard, TypeVar

from msk_auth.authenticator.activity import Counted
from msk_auth.authenticator.base import BaseAuthenticator
from msk_auth.core.activity import key_of
from msk_auth.core.authentication import no_user
from msk_auth.core.errors import (
    ConfigurationError,
    CredentialsMissing,
    Problem,
    StoreUnavailable,
)
from msk_auth.core.logins import RequestLogins
from msk_auth.core.model import Principal, UserT
from msk_auth.core.policy import Policy, any_credential
from msk_auth.redaction import RedactingFilter
from msk_auth.users import AnyUsers, RequestSession

Memory: TypeAlias = MutableMapping[str, Any]
"""What lives exactly as long as a request: an ASGI scope or a WSGI environment."""

Authorization: TypeAlias = tuple[str | bytes, ...]
"""The values of every `Authorization` header, as sent."""

_Outcome: TypeAlias = tuple[object, tuple[Authorization, str | None], Principal[Any] | Problem]
"""The authenticator, the headers and the address that it verified, and the result."""

_OUTCOME: Final = "msk_auth.outcome"
_USERS: Final = "msk_auth.users"
_SESSION: Final = "msk_auth.session"

_NAMED: Final = "msk_auth.named"
_COUNTED: Final = "msk_auth.counted"

Describe: TypeAlias = Callable[[Memory], tuple[str | None, str | None]]
"""Takes what a request is kept in, and returns its method with the pattern of its route, and its `User-Agent`."""

AUTHENTICATED: Final = any_credential()
"""For code that is no guard, and only wants to know the principal: it names nothing on behalf of the guards."""

T = TypeVar("T")


_log = logging.getLogger("msk_auth.integrations")
# The error logged here is an unforeseen one, and its message may hold anything.
_log.addFilter(RedactingFilter())


def nothing_known(_memory: Memory) -> tuple[None, None]:
    """Describes a request of which nothing is known."""
    return None, None


def admit(
    memory: Memory,
    authenticator: BaseAuthenticator[UserT],
    authorization: Authorization,
    policy: Policy,
    *,
    address: str | None,
    describe: Describe = nothing_known,
    afresh: bool = False,
    elsewhere: RequestLogins | None = None,
) -> Generator[Callable[[Any], Any], Any, Principal[UserT]]:
    """A flow: the principal of a request, if the policy lets it pass. Its one step authenticates.

    Args:
        memory: The request's.
        authenticator: Verifies, unless it verified these headers for this request before.
        authorization: The headers as they are now: a middleware may have changed them since another guard ran.
        policy: What the principal has to meet.
        address: Of the client, as the server states it; None if it does not.
        describe: Describes the request for the activity of its key, if that is collected.
        afresh: Verify in any case. What an open websocket's handshake found may be long past.
        elsewhere: What may find a login elsewhere in the request.

    Raises:
        Problem: What `authenticate` raises, or the policy is not met. Whatever else goes wrong while authenticating is
            `StoreUnavailable`: fail closed.
    """
    presented = (authorization, address)
    outcome: _Outcome | None = None if afresh else memory.get(_OUTCOME)
    if outcome is None or outcome[0] is not authenticator or outcome[1] != presented:
        result: Principal[Any] | Problem
        try:
            # Under a lease most requests need nothing else. `authenticate` looks there too, for those that call it.
            answer: object = authenticator.cached_principal(authorization)
            if answer is None:
                # An application that overrides `authenticate` may know of headers alone.
                more: tuple[object, ...] = () if elsewhere is None else (elsewhere,)
                # What is verified afresh is read afresh: a session answers with what it has read before.
                request = None if afresh else session_of(memory, authenticator)
                if request is not None:
                    more = (elsewhere, request)
                where = {"address": address} if authenticator.takes_address else {}
                answer = yield lambda authenticator: authenticator.authenticate(
                    authorization, *more, **where
                )
            result = _outcome_of(answer)
        except Problem as problem:
            result = problem
        except Exception as error:  # noqa: BLE001 - fail closed
            _log.error("authentication cannot answer", exc_info=error)
            result = StoreUnavailable()
        outcome = memory[_OUTCOME] = (authenticator, presented, result)
    found = outcome[2]
    is_accepted = False
    try:
        if not isinstance(found, Principal):
            raise _refusal(found, policy)
        principal: Principal[UserT] = found
        if not policy.is_bare:
            authenticator.authorize(principal, policy)
            if policy is not AUTHENTICATED:
                memory[_NAMED] = (authenticator, principal.key_id)
        elif memory.get(_NAMED) != (authenticator, principal.key_id):
            # No other guard of this request has named what this key may do here.
            authenticator.authorize(principal, policy)
        is_accepted = True
        return principal
    finally:
        if authenticator.activity is not None:
            _count(memory, authenticator, found, is_accepted, address, describe, is_afresh=afresh)


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


def known_principal(
    memory: Memory, authenticator: BaseAuthenticator[UserT]
) -> Principal[UserT] | None:
    """The principal that a guard found for this request, or None if no guard of this authenticator ran.

    A mounted application may have an authenticator, and so users, of its own.

    Raises:
        Problem: The guard found the credentials not acceptable.
    """
    outcome: _Outcome | None = memory.get(_OUTCOME)
    if outcome is None or outcome[0] is not authenticator:
        return None
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
            refusal of a credential whose owner is gone.
    """
    return no_user(principal) if user is None else user


def load_user_once(
    memory: Memory, principal: Principal[Any], load: Callable[..., Any], *more: object
) -> Generator[Callable[[Any], Any], Any, Any]:
    """A flow: as :func:`loaded_user`, loaded once per request. Its one step loads.

    Args:
        memory: The request's.
        principal: Who the request acts as.
        load: The application's function, which takes the id of the owner.
        more: What it takes beside that.
    """
    owner_id = principal.owner.id
    users: dict[tuple[object, str], object] = memory.setdefault(_USERS, {})
    user = users.get((load, owner_id))
    if user is None:
        found: object = yield lambda _ports: load(owner_id, *more)
        user = users[load, owner_id] = loaded_user(principal, found)
    return user


def load_user_in(
    request: RequestSession,
    users: AnyUsers,
    principal: Principal[Any],
    call: Callable[..., Any] = operator.call,
) -> Generator[Callable[[Any], Any], Any, Any]:
    """A flow: as :func:`loaded_user`, in a session. Its one step loads the user that was not read to verify the request.

    Args:
        request: The session of the request.
        users: The authenticator's.
        principal: Who the request acts as.
        call: Calls the function that loads, which may block.
    """
    owner_id = principal.owner.id
    user = request.users.get(owner_id)
    if user is None:
        found: object = yield lambda _ports: call(users.load_user, request.session, owner_id)
        user = request.users[owner_id] = loaded_user(principal, found)
    return user


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


def _count(
    memory: Memory,
    authenticator: BaseAuthenticator[Any],
    found: Principal[Any] | Problem,
    is_accepted: bool,
    address: str | None,
    describe: Describe,
    *,
    is_afresh: bool,
) -> None:
    """Count a request of a key once, however many guards it passes; one that any of them refuses is a refused one.

    What an open connection verifies afresh is no request of its own.
    """
    activity = authenticator.activity
    key_id = key_of(found)
    if activity is None or key_id is None:
        return
    before: Counted | None = memory.get(_COUNTED)
    if before is not None and (before.log is not activity or before.key_id != key_id):
        before = None
    if before is not None and (is_afresh or not before.is_accepted):
        return
    route, user_agent = describe(memory)
    # A middleware that verifies the request may run before it is known which route serves it.
    if before is not None and is_accepted and before.route == route:
        return
    memory[_COUNTED] = activity.count(
        key_id,
        authenticator.clock.now(),
        is_accepted=is_accepted,
        route=route,
        address=address,
        user_agent=user_agent,
        before=before,
    )


def _outcome_of(answer: object) -> Principal[Any] | Problem:
    if _is_outcome(answer):
        return answer
    _log.error("authentication cannot answer: got %s for a principal", type(answer).__name__)
    return StoreUnavailable()


def _is_outcome(value: object) -> TypeGuard[Principal[Any] | Problem]:
    return isinstance(value, (Principal, Problem))


def _refusal(problem: Problem, policy: Policy) -> Problem:
    if isinstance(problem, CredentialsMissing) and not problem.args:
        return policy.credentials_missing()
    return _without_frames(problem)


def _without_frames(problem: Problem) -> Problem:
    # Those of the first time hold the credentials.
    return problem.with_traceback(None)
