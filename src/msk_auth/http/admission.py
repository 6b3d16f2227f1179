"""One authentication per request: what became of its credentials, kept where the request keeps its things.

A framework asks several times: for a blueprint, for a view, for the principal. The first answer counts.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any, Final, NoReturn, TypeAlias, TypeGuard

from msk_auth.authenticator.base import BaseAuthenticator
from msk_auth.core.errors import Problem, StoreUnavailable
from msk_auth.core.model import Principal, UserT
from msk_auth.core.policy import Policy
from msk_auth.redaction import RedactingFilter

Memory: TypeAlias = MutableMapping[str, Any]
"""What lives exactly as long as a request: an ASGI scope or a WSGI environment."""

Result: TypeAlias = Principal[Any] | Problem
"""What became of credentials."""

_Outcome: TypeAlias = tuple[object, tuple[str | bytes, ...], Result]
"""Whose decision it was, on which headers, and the result. A bare tuple, since one is made for every request."""

_OUTCOME: Final = "msk_auth.outcome"

_log = logging.getLogger("msk_auth.integrations")
# The one error logged here is one that nobody foresaw, so nobody knows what its message holds.
_log.addFilter(RedactingFilter())


def known_principal(
    memory: Memory, authenticator: BaseAuthenticator[UserT]
) -> Principal[UserT] | None:
    """What was found for a request, or None if nobody asked yet.

    An application mounted in this one may have users of its own.

    Raises:
        Problem: The credentials were found not to be acceptable.
    """
    outcome: _Outcome | None = memory.get(_OUTCOME)
    if outcome is None or outcome[0] is not authenticator:
        return None
    result = outcome[2]
    return result if isinstance(result, Principal) else _refuse(result)


def admit_at_once(
    memory: Memory,
    authenticator: BaseAuthenticator[UserT],
    authorization: tuple[str | bytes, ...],
    policy: Policy,
) -> Principal[UserT] | None:
    """The principal of exactly these headers, if the policy lets it pass; None, which says nothing yet, if somebody has to be asked who it is.

    Something in between may have changed the headers since they were asked about: a decision about
    other credentials is none about these.

    Raises:
        Problem: The credentials were found not to be acceptable, or the policy is not met.
    """
    outcome: _Outcome | None = memory.get(_OUTCOME)
    if outcome is not None and outcome[0] is authenticator and outcome[1] == authorization:
        result = outcome[2]
        principal = result if isinstance(result, Principal) else _refuse(result)
    else:
        cached = authenticator.cached_principal(authorization)
        if cached is None:
            return None
        principal = cached
        memory[_OUTCOME] = (authenticator, authorization, principal)
    authenticator.authorize(principal, policy)
    return principal


def admit_answered(
    memory: Memory,
    authenticator: BaseAuthenticator[UserT],
    authorization: tuple[str | bytes, ...],
    policy: Policy,
    answer: object,
) -> Principal[UserT]:
    """Keep what an authenticator answered or raised; the principal, if the policy lets it pass.

    Args:
        memory: The request's.
        authenticator: Who answered.
        authorization: The headers it was asked about.
        policy: What is demanded of the principal.
        answer: A principal or a problem. Anything else is `StoreUnavailable`: whatever went wrong, it
            could not be told who this is.

    Raises:
        Problem: The answer is one, or the policy is not met.
    """
    result = answer if _is_result(answer) else _no_answer(answer)
    memory[_OUTCOME] = (authenticator, authorization, result)
    principal = result if isinstance(result, Principal) else _refuse(result)
    authenticator.authorize(principal, policy)
    return principal


def _refuse(problem: Problem) -> NoReturn:
    # Without the frames of the first time: they hold the credentials.
    raise problem.with_traceback(None)


def _is_result(value: object) -> TypeGuard[Result]:
    return isinstance(value, (Principal, Problem))


def _no_answer(answer: object) -> StoreUnavailable:
    if isinstance(answer, Exception):
        _log.error("authentication cannot answer", exc_info=answer)
    else:
        _log.error("authentication cannot answer: got %s for a principal", type(answer).__name__)
    return StoreUnavailable()
