"""What every ASGI adapter shares: the credentials in a scope, and one authentication per request."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeAlias

from msk_auth.authenticator import AsyncAuthenticator
from msk_auth.core.model import Principal, UserT
from msk_auth.core.policy import Policy

from ._outcome import Memory, admit_answered, admit_at_once

Admission: TypeAlias = Principal[UserT] | Coroutine[Any, Any, Principal[UserT]]
"""A principal, or what has to be awaited for it."""


def authorization_values(scope: Memory) -> tuple[bytes, ...]:
    """The value of every `Authorization` header, as sent.

    Frameworks hand out the first of several, or join them, and decode leniently; which credentials
    count must not depend on that.
    """
    found: tuple[bytes, ...] = ()
    for name, value in scope["headers"]:
        if len(name) == 13 and name.lower() == b"authorization":
            found += (value,)
    return found


async def admit(
    scope: Memory, authenticator: AsyncAuthenticator[UserT], policy: Policy
) -> Principal[UserT]:
    """The principal of a request or a websocket, if the policy lets it pass.

    Raises:
        Problem: As :func:`ask`.
    """
    authorization = authorization_values(scope)
    principal = admit_at_once(scope, authenticator, authorization, policy)
    if principal is None:
        principal = await ask(scope, authenticator, authorization, policy)
    return principal


async def ask(
    scope: Memory,
    authenticator: AsyncAuthenticator[UserT],
    authorization: tuple[bytes, ...],
    policy: Policy,
) -> Principal[UserT]:
    """The principal of these headers, if the policy lets it pass, where nothing can be told at once.

    Raises:
        Problem: What :meth:`AsyncAuthenticator.authenticate` raises, or the policy is not met. Whatever
            else goes wrong is `StoreUnavailable`: it could not be told who this is.
    """
    answer: object
    try:
        answer = await authenticator.authenticate(authorization)
    except Exception as error:  # noqa: BLE001 - a problem is told, and anything else is one
        answer = error
    return admit_answered(scope, authenticator, authorization, policy, answer)
