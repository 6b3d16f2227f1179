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

_OUTCOME: Final = "msk_auth.outcome"

_log = logging.getLogger("msk_auth.integrations")
# The one error logged here is one that nobody foresaw, so nobody knows what its message holds.
_log.addFilter(RedactingFilter())


class Outcome:
    """What became of a request's credentials, and whose decision on which headers it was."""

    # By hand: one is made for every request, and a frozen dataclass takes four times as long.
    __slots__ = ("authenticator", "authorization", "result")

    def __init__(
        self,
        authenticator: object,
        authorization: tuple[str | bytes, ...],
        result: Principal[Any] | Problem,
    ) -> None:
        self.authenticator: object = authenticator
        self.authorization: tuple[str | bytes, ...] = authorization
        self.result: Principal[Any] | Problem = result

    def tell(self) -> Principal[Any]:
        """The principal.

        Raises:
            Problem: The credentials were not accepted.
        """
        result = self.result
        if isinstance(result, Problem):
            # Without the frames of the first time: they hold the credentials.
            raise result.with_traceback(None)
        return result


def known_outcome(memory: Memory, authenticator: object) -> Outcome | None:
    """The outcome of a request, if this authenticator was asked already.

    An application mounted in this one may have users of its own.
    """
    outcome = memory.get(_OUTCOME)
    if not isinstance(outcome, Outcome) or outcome.authenticator is not authenticator:
        return None
    return outcome


def outcome_for(
    memory: Memory, authenticator: object, authorization: tuple[str | bytes, ...]
) -> Outcome | None:
    """The outcome for exactly these headers, if this authenticator was asked already.

    Something in between may have changed the headers: a decision about other credentials is none
    about these.
    """
    outcome = known_outcome(memory, authenticator)
    return None if outcome is None or outcome.authorization != authorization else outcome


def keep(
    memory: Memory, authenticator: object, authorization: tuple[str | bytes, ...], answer: object
) -> Outcome:
    """Keep what an authenticator answered or raised.

    Args:
        memory: The request's.
        authenticator: Who answered.
        authorization: The headers it was asked about.
        answer: A principal or a problem. Anything else is `StoreUnavailable`: whatever went wrong, it
            could not be told who this is.
    """
    result = answer if _is_result(answer) else _no_answer(answer)
    outcome = memory[_OUTCOME] = Outcome(authenticator, authorization, result)
    return outcome


def _is_result(value: object) -> TypeGuard[Principal[Any] | Problem]:
    return isinstance(value, (Principal, Problem))


def _no_answer(answer: object) -> StoreUnavailable:
    if isinstance(answer, Exception):
        _log.error("authentication cannot answer", exc_info=answer)
    else:
        _log.error("authentication cannot answer: got %s for a principal", type(answer).__name__)
    return StoreUnavailable()
