# Generated from src/msk_auth/http/_async/admission.py by tools/generate_sync.py: change that, and run this.
"""One authentication per request, and one look-up of its user."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar, cast

from msk_auth._sync.authenticator import Authenticator
from msk_auth.core.errors import Problem, StoreUnavailable
from msk_auth.core.logins import RequestLogins
from msk_auth.core.model import Principal, UserT
from msk_auth.core.policy import Policy
from msk_auth.http.admission import (
    AUTHENTICATED,
    NAMED,
    OUTCOME,
    Authorization,
    Memory,
    Outcome,
    loaded_user,
    log,
    refusal,
)
from msk_auth.users import RequestSession

T = TypeVar("T")


def admit(
    memory: Memory,
    authenticator: Authenticator[UserT],
    authorization: Authorization,
    policy: Policy,
    *,
    address: str | None,
    path: Mapping[str, object],
    afresh: bool = False,
    elsewhere: RequestLogins | None = None,
    session: RequestSession | None = None,
) -> Principal[UserT]:
    """The principal of a request, if it meets the policy.

    Args:
        memory: The request's mapping.
        authenticator: Verifies, unless it has already verified these headers for this request.
        authorization: The current headers: a middleware may have changed them since another guard ran.
        policy: The policy.
        address: The client's address, as the server states it; None if unknown.
        path: The parameters of the request's path.
        afresh: Verify again in any case: an open websocket's handshake may be long past.
        elsewhere: Functions that may find a login elsewhere in the request.
        session: The session for reading users. Not used with `afresh`, since a session may return earlier reads.

    Raises:
        Problem: As raised by `authenticate`, or the policy is not met. Any other error in authentication is
            `StoreUnavailable`: fail closed.
    """
    presented = (authorization, address)
    outcome: Outcome | None = None if afresh else memory.get(OUTCOME)
    if outcome is None or outcome[0] is not authenticator or outcome[1] != presented:
        found: Principal[Any] | Problem
        try:
            # Under a lease most requests need only this look-up. `authenticate` makes the same look-up.
            find_cached = authenticator.cached_principal
            verified: object = None if find_cached is None else find_cached(authorization)
            if verified is None:
                reads_in = None if afresh else session
                verified = cast(
                    "object",
                    authenticator.authenticate(authorization, elsewhere, reads_in, address),
                )
            if not isinstance(verified, Principal):
                raise TypeError(f"authenticate returned {type(verified).__name__}")  # noqa: TRY301
            found = cast("Principal[UserT]", verified)
        except Problem as problem:
            found = problem
        except Exception as error:  # noqa: BLE001 - fail closed
            log.error("authentication cannot answer", exc_info=error)
            found = StoreUnavailable()
        outcome = memory[OUTCOME] = (authenticator, presented, found)
    found = outcome[2]
    if isinstance(found, Problem):
        raise refusal(found, policy)
    named = (authenticator, found.key_id)
    # A bare policy adds nothing if another guard of this request has named a permission for this key.
    if policy.is_bare and memory.get(NAMED) == named:
        return found
    authenticator.authorize(found, policy, path)
    if not policy.is_bare and policy is not AUTHENTICATED:
        memory[NAMED] = named
    return found


def load_user_once(
    users: dict[Any, Any],
    name: Hashable,
    principal: Principal[Any],
    load: Callable[[], T | None],
) -> T:
    """The application's user of a request, loaded once.

    Args:
        users: The users that the request has already loaded.
        name: The name of this user among them.
        principal: The principal of the request.
        load: Loads the user.

    Raises:
        CredentialRefused: There is no user: see :func:`~msk_auth.http.admission.loaded_user`.
    """
    if name not in users:
        users[name] = loaded_user(principal, load())
    user: T = users[name]
    return user
