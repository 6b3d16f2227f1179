"""What a WSGI adapter needs: the credentials in an environment, and one authentication per request."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeGuard, cast

from msk_auth.authenticator import Authenticator
from msk_auth.core.errors import Problem, StoreUnavailable
from msk_auth.core.model import Principal, UserT
from msk_auth.redaction import RedactingFilter

Environ: TypeAlias = MutableMapping[str, Any]

# Not in Flask's `g`: that belongs to the application context, which outlives a request wherever
# somebody has pushed one, and a principal must never pass from one request to the next.
_OUTCOME: Final = "msk_auth.outcome"

_log = logging.getLogger("msk_auth.integrations")
# The one error logged here is one that nobody foresaw, so nobody knows what its message holds.
_log.addFilter(RedactingFilter())


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What became of a request's credentials, and whose decision on which header it was."""

    authenticator: Authenticator[Any]
    authorization: tuple[str, ...]
    result: Principal[Any] | Problem


def authorization_values(environ: Environ) -> tuple[str, ...]:
    """The value of the `Authorization` header, its bytes read as Latin-1 (PEP 3333).

    A server joins several headers with commas; the reader of the header refuses such a value as it
    refuses several. What the framework makes of the header is not looked at: it decodes leniently.
    """
    value: str | None = environ.get("HTTP_AUTHORIZATION")
    return () if value is None else (value,)


def authenticate(environ: Environ, authenticator: Authenticator[UserT]) -> Principal[UserT]:
    """The principal of a request. Asked again for the same request, the same answer.

    Raises:
        Problem: What :meth:`Authenticator.authenticate` raises. Whatever else goes wrong is
            `StoreUnavailable`: it could not be told who this is.
    """
    authorization = authorization_values(environ)
    outcome = environ.get(_OUTCOME)
    # An application mounted beside or in this one may have users of its own, and something in
    # between may have changed the header: a decision about other credentials is none about these.
    if (
        not isinstance(outcome, _Outcome)
        or outcome.authenticator is not authenticator
        or outcome.authorization != authorization
    ):
        result = _ask(authenticator, authorization)
        outcome = environ[_OUTCOME] = _Outcome(authenticator, authorization, result)
    return _told(outcome)


def known_principal(
    environ: Environ, authenticator: Authenticator[UserT]
) -> Principal[UserT] | None:
    """What :func:`authenticate` found for this request, or None if nobody asked yet.

    Raises:
        Problem: The credentials were found not to be acceptable.
    """
    outcome = environ.get(_OUTCOME)
    if not isinstance(outcome, _Outcome) or outcome.authenticator is not authenticator:
        return None
    return _told(outcome)


def _told(outcome: _Outcome) -> Principal[Any]:
    if isinstance(outcome.result, Problem):
        # Without the frames of the first time: they hold the credentials.
        raise outcome.result.with_traceback(None)
    return outcome.result


def _ask(
    authenticator: Authenticator[Any], authorization: tuple[str, ...]
) -> Principal[Any] | Problem:
    try:
        answer = cast("object", authenticator.authenticate(authorization))
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
