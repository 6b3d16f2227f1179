"""What every ASGI adapter shares: the credentials in a scope, and one authentication per request."""

from __future__ import annotations

from msk_auth.authenticator import AsyncAuthenticator
from msk_auth.core.model import Principal, UserT

from ._outcome import Memory, keep, known_result, result_for, tell


def authorization_values(scope: Memory) -> tuple[bytes, ...]:
    """The value of every `Authorization` header, as sent.

    Frameworks hand out the first of several, or join them, and decode leniently; which credentials
    count must not depend on that.
    """
    # A list first: a generator takes twice as long, for every request.
    return tuple(
        [
            value
            for name, value in scope["headers"]
            if len(name) == 13 and name.lower() == b"authorization"
        ]
    )


async def authenticate(scope: Memory, authenticator: AsyncAuthenticator[UserT]) -> Principal[UserT]:
    """The principal of a request or a websocket. Asked again for the same request, the same answer.

    Raises:
        Problem: What :meth:`AsyncAuthenticator.authenticate` raises. Whatever else goes wrong is
            `StoreUnavailable`: it could not be told who this is.
    """
    authorization = authorization_values(scope)
    result = result_for(scope, authenticator, authorization)
    if result is None:
        answer: object
        try:
            answer = await authenticator.authenticate(authorization)
        except Exception as error:  # noqa: BLE001 - a problem is told, and anything else is one
            answer = error
        result = keep(scope, authenticator, authorization, answer)
    return tell(result)


def known_principal(
    scope: Memory, authenticator: AsyncAuthenticator[UserT]
) -> Principal[UserT] | None:
    """What :func:`authenticate` found for this request, or None if nobody asked yet.

    Raises:
        Problem: The credentials were found not to be acceptable.
    """
    result = known_result(scope, authenticator)
    return None if result is None else tell(result)
