"""What a WSGI adapter needs: the credentials in an environment, and one authentication per request.

The outcome is kept in the environment and not in Flask's `g`: that belongs to the application context,
which outlives a request wherever somebody has pushed one, and a principal must never pass from one
request to the next.
"""

from __future__ import annotations

from msk_auth.authenticator import Authenticator
from msk_auth.core.model import Principal, UserT
from msk_auth.core.policy import Policy
from msk_auth.http.admission import Memory, admit_answered, admit_at_once


def admit(environ: Memory, authenticator: Authenticator[UserT], policy: Policy) -> Principal[UserT]:
    """The principal of a request, if the policy lets it pass.

    Raises:
        Problem: What :meth:`Authenticator.authenticate` raises, or the policy is not met. Whatever else
            goes wrong is `StoreUnavailable`: it could not be told who this is.
    """
    authorization = _authorization(environ)
    principal = admit_at_once(environ, authenticator, authorization, policy)
    if principal is not None:
        return principal
    return verify_again(environ, authenticator, policy)


def verify_again(
    environ: Memory, authenticator: Authenticator[UserT], policy: Policy
) -> Principal[UserT]:
    """The principal of a request as it is now, not as it was found before.

    Raises:
        Problem: As :func:`admit`.
    """
    authorization = _authorization(environ)
    answer: object
    try:
        answer = authenticator.authenticate(authorization)
    except Exception as error:  # noqa: BLE001 - a problem is told, and anything else is one
        answer = error
    return admit_answered(environ, authenticator, authorization, policy, answer)


def _authorization(environ: Memory) -> tuple[str, ...]:
    # Its bytes read as Latin-1 (PEP 3333). A server joins several headers with commas; the reader of the header refuses
    # such a value as it refuses several. What the framework makes of it is not looked at: it decodes leniently.
    value: str | None = environ.get("HTTP_AUTHORIZATION")
    return () if value is None else (value,)
