"""One authentication per request: what became of its credentials, kept with the request.

A framework runs several guards for one request, for a blueprint, for a view, for the principal. The first outcome counts
for all of them, as long as the headers stay the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, MutableMapping
from typing import Any, Final, NoReturn, TypeAlias, TypeGuard

from msk_auth.authenticator.base import BaseAuthenticator
from msk_auth.core.errors import Problem, StoreUnavailable
from msk_auth.core.model import Principal, UserT
from msk_auth.core.policy import Policy
from msk_auth.redaction import RedactingFilter

Memory: TypeAlias = MutableMapping[str, Any]
"""What lives exactly as long as a request: an ASGI scope or a WSGI environment."""

Authorization: TypeAlias = tuple[str | bytes, ...]
"""The values of every `Authorization` header, as sent."""

_Outcome: TypeAlias = tuple[object, Authorization, Principal[Any] | Problem]
"""The authenticator, the headers that it verified, and the result."""

_OUTCOME: Final = "msk_auth.outcome"

_log = logging.getLogger("msk_auth.integrations")
# The error logged here is an unforeseen one, and its message may hold anything.
_log.addFilter(RedactingFilter())


def admit(
    memory: Memory,
    authenticator: BaseAuthenticator[UserT],
    authorization: Authorization,
    policy: Policy,
    *,
    afresh: bool = False,
) -> Generator[Callable[[Any], Any], Any, Principal[UserT]]:
    """A flow: the principal of a request, if the policy lets it pass. Its one step authenticates.

    Args:
        memory: The request's.
        authenticator: Verifies, unless it verified these headers for this request before.
        authorization: The headers as they are now: a middleware may have changed them since another guard ran.
        policy: What the principal has to meet.
        afresh: Verify in any case. What an open websocket's handshake found may be long past.

    Raises:
        Problem: What `authenticate` raises, or the policy is not met. Whatever else goes wrong while authenticating is
            `StoreUnavailable`: fail closed.
    """
    outcome: _Outcome | None = None if afresh else memory.get(_OUTCOME)
    if outcome is None or outcome[0] is not authenticator or outcome[1] != authorization:
        result: object
        try:
            # Most requests of a deployment with a lease end here, without a coroutine of their own.
            result = authenticator.cached_principal(authorization)
            if result is None:
                result = yield lambda authenticator: authenticator.authenticate(authorization)
        except Problem as problem:
            result = problem
        except Exception as error:  # noqa: BLE001 - fail closed
            _log.error("authentication cannot answer", exc_info=error)
            result = StoreUnavailable()
        outcome = memory[_OUTCOME] = (authenticator, authorization, _checked(result))
    principal: Principal[UserT] = _accepted(outcome[2])
    authenticator.authorize(principal, policy)
    return principal


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
    return _accepted(outcome[2])


def _checked(result: object) -> Principal[Any] | Problem:
    if _is_outcome(result):
        return result
    _log.error("authentication cannot answer: got %s for a principal", type(result).__name__)
    return StoreUnavailable()


def _is_outcome(value: object) -> TypeGuard[Principal[Any] | Problem]:
    return isinstance(value, (Principal, Problem))


def _accepted(result: Principal[Any] | Problem) -> Principal[Any]:
    return result if isinstance(result, Principal) else _refuse(result)


def _refuse(problem: Problem) -> NoReturn:
    # Without the frames of the first time: they hold the credentials.
    raise problem.with_traceback(None)
