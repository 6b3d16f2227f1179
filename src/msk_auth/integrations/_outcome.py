"""One authentication per request: what became of its credentials, kept where the request keeps its things.

A framework asks several times: for a blueprint, for a view, for the principal. The first answer counts.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any, Final, TypeAlias, TypeGuard

from msk_auth.core.errors import Problem, StoreUnavailable
from msk_auth.core.model import Principal
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


def known_result(memory: Memory, authenticator: object) -> Result | None:
    """What became of a request's credentials, if this authenticator was asked already.

    An application mounted in this one may have users of its own.
    """
    outcome: _Outcome | None = memory.get(_OUTCOME)
    return None if outcome is None or outcome[0] is not authenticator else outcome[2]


def result_for(
    memory: Memory, authenticator: object, authorization: tuple[str | bytes, ...]
) -> Result | None:
    """What became of exactly these headers, if this authenticator was asked already.

    Something in between may have changed the headers: a decision about other credentials is none
    about these.
    """
    outcome: _Outcome | None = memory.get(_OUTCOME)
    if outcome is None or outcome[0] is not authenticator or outcome[1] != authorization:
        return None
    return outcome[2]


def keep(
    memory: Memory, authenticator: object, authorization: tuple[str | bytes, ...], answer: object
) -> Result:
    """Keep what an authenticator answered or raised, and give it as a result.

    Args:
        memory: The request's.
        authenticator: Who answered.
        authorization: The headers it was asked about.
        answer: A principal or a problem. Anything else is `StoreUnavailable`: whatever went wrong, it
            could not be told who this is.
    """
    result = answer if _is_result(answer) else _no_answer(answer)
    memory[_OUTCOME] = (authenticator, authorization, result)
    return result


def tell(result: Result) -> Principal[Any]:
    """The principal of a result.

    Raises:
        Problem: The credentials were not accepted.
    """
    if isinstance(result, Problem):
        # Without the frames of the first time: they hold the credentials.
        raise result.with_traceback(None)
    return result


def _is_result(value: object) -> TypeGuard[Result]:
    return isinstance(value, (Principal, Problem))


def _no_answer(answer: object) -> StoreUnavailable:
    if isinstance(answer, Exception):
        _log.error("authentication cannot answer", exc_info=answer)
    else:
        _log.error("authentication cannot answer: got %s for a principal", type(answer).__name__)
    return StoreUnavailable()
