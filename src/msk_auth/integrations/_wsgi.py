"""What a WSGI adapter needs: the credentials in an environment, and one authentication per request.

The outcome is kept in the environment and not in Flask's `g`: that belongs to the application context,
which outlives a request wherever somebody has pushed one, and a principal must never pass from one
request to the next.
"""

from __future__ import annotations

from msk_auth.authenticator import Authenticator
from msk_auth.core.model import Principal, UserT

from ._outcome import Memory, keep, known_result, result_for, tell


def authorization_values(environ: Memory) -> tuple[str, ...]:
    """The value of the `Authorization` header, its bytes read as Latin-1 (PEP 3333).

    A server joins several headers with commas; the reader of the header refuses such a value as it
    refuses several. What the framework makes of the header is not looked at: it decodes leniently.
    """
    value: str | None = environ.get("HTTP_AUTHORIZATION")
    return () if value is None else (value,)


def authenticate(environ: Memory, authenticator: Authenticator[UserT]) -> Principal[UserT]:
    """The principal of a request. Asked again for the same request, the same answer.

    Raises:
        Problem: What :meth:`Authenticator.authenticate` raises. Whatever else goes wrong is
            `StoreUnavailable`: it could not be told who this is.
    """
    authorization = authorization_values(environ)
    result = result_for(environ, authenticator, authorization)
    if result is None:
        answer: object
        try:
            answer = authenticator.authenticate(authorization)
        except Exception as error:  # noqa: BLE001 - a problem is told, and anything else is one
            answer = error
        result = keep(environ, authenticator, authorization, answer)
    return tell(result)


def known_principal(
    environ: Memory, authenticator: Authenticator[UserT]
) -> Principal[UserT] | None:
    """What :func:`authenticate` found for this request, or None if nobody asked yet.

    Raises:
        Problem: The credentials were found not to be acceptable.
    """
    result = known_result(environ, authenticator)
    return None if result is None else tell(result)
