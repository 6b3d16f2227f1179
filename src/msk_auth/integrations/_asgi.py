"""What every ASGI adapter shares: the credentials in a scope, and one authentication per request."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeGuard, cast

from msk_auth.authenticator import AsyncAuthenticator
from msk_auth.core.errors import Problem, StoreUnavailable
from msk_auth.core.model import Principal, UserT
from msk_auth.redaction import RedactingFilter

Scope: TypeAlias = MutableMapping[str, Any]

_OUTCOME: Final = "msk_auth.outcome"

_log = logging.getLogger("msk_auth.integrations")
# The one error logged here is one that nobody foresaw, so nobody knows what its message holds.
_log.addFilter(RedactingFilter())


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What became of a request's credentials, and whose decision on which headers it was."""

    authenticator: AsyncAuthenticator[Any]
    authorization: tuple[bytes, ...]
    result: Principal[Any] | Problem


def authorization_values(scope: Scope) -> tuple[bytes, ...]:
    """The value of every `Authorization` header, as sent.

    Frameworks hand out the first of several, or join them, and decode leniently; which credentials
    count must not depend on that.
    """
    return tuple(
        value
        for name, value in scope["headers"]
        if len(name) == 13 and name.lower() == b"authorization"
    )


async def authenticate(scope: Scope, authenticator: AsyncAuthenticator[UserT]) -> Principal[UserT]:
    """The principal of a request or a websocket. Asked again for the same request, the same answer.

    Raises:
        Problem: What :meth:`AsyncAuthenticator.authenticate` raises. Whatever else goes wrong is
            `StoreUnavailable`: it could not be told who this is.
    """
    authorization = authorization_values(scope)
    outcome = scope.get(_OUTCOME)
    # An application mounted in this one may have users of its own, and something in between may
    # have changed the headers: a decision about other credentials is none about these.
    if (
        not isinstance(outcome, _Outcome)
        or outcome.authenticator is not authenticator
        or outcome.authorization != authorization
    ):
        result = await _ask(authenticator, authorization)
        outcome = scope[_OUTCOME] = _Outcome(authenticator, authorization, result)
    return _told(outcome)


def known_principal(
    scope: Scope, authenticator: AsyncAuthenticator[UserT]
) -> Principal[UserT] | None:
    """What :func:`authenticate` found for this request, or None if nobody asked yet.

    Raises:
        Problem: The credentials were found not to be acceptable.
    """
    outcome = scope.get(_OUTCOME)
    if not isinstance(outcome, _Outcome) or outcome.authenticator is not authenticator:
        return None
    return _told(outcome)


def _told(outcome: _Outcome) -> Principal[Any]:
    if isinstance(outcome.result, Problem):
        # Without the frames of the first time: they hold the credentials.
        raise outcome.result.with_traceback(None)
    return outcome.result


async def _ask(
    authenticator: AsyncAuthenticator[Any], authorization: tuple[bytes, ...]
) -> Principal[Any] | Problem:
    try:
        answer = cast("object", await authenticator.authenticate(authorization))
    except Problem as problem:
        return problem
    except Exception:  # noqa: BLE001 - whatever went wrong, nobody was authenticated
        _log.exception("authentication cannot answer")
        return StoreUnavailable()
    if not _is_principal(answer):
        _log.error("authentication cannot answer: got %s for a principal", type(answer).__name__)
        return StoreUnavailable()
    return answer


def _is_principal(value: object) -> TypeGuard[Principal[Any]]:
    return isinstance(value, Principal)
