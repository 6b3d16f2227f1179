"""What every ASGI adapter shares: the credentials in a scope, and one authentication per request."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from msk_auth.authenticator import AsyncAuthenticator
from msk_auth.core.model import Principal, UserT
from msk_auth.core.policy import Policy
from msk_auth.http.admission import Memory, admit_answered, admit_at_once

HANDSHAKE: Final = "msk_auth.handshake"
"""Where the scope of a websocket keeps its :class:`Handshake`."""

Admission: TypeAlias = Principal[UserT] | Coroutine[Any, Any, Principal[UserT]]
"""A principal, or what has to be awaited for it."""


@dataclass(slots=True)
class Handshake:
    """How far a websocket is; every copy of its scope has the same one.

    Attributes:
        accepted: The application has accepted it, so it is open.
    """

    accepted: bool = False


def is_open(scope: Memory) -> bool:
    """True for a websocket whose handshake was accepted."""
    handshake: Handshake | None = scope.get(HANDSHAKE)
    return handshake is not None and handshake.accepted


def admission(
    scope: Memory, authenticator: AsyncAuthenticator[UserT], policy: Policy
) -> Admission[UserT]:
    """The principal of a request or a websocket, if the policy lets it pass.

    A request and a handshake are verified once. A websocket that is open is verified each time: what its handshake
    found may be long past.

    Raises:
        Problem: What :meth:`AsyncAuthenticator.authenticate` raises, or the policy is not met. Whatever
            else goes wrong is `StoreUnavailable`: it could not be told who this is.
    """
    authorization = _authorization(scope)
    if is_open(scope):
        return _ask(scope, authenticator, authorization, policy)
    principal = admit_at_once(scope, authenticator, authorization, policy)
    if principal is None:
        return _ask(scope, authenticator, authorization, policy)
    return principal


async def admit(
    scope: Memory, authenticator: AsyncAuthenticator[UserT], policy: Policy
) -> Principal[UserT]:
    """As :func:`admission`, awaited where it has to be."""
    admitted = admission(scope, authenticator, policy)
    return admitted if isinstance(admitted, Principal) else await admitted


async def verify_again(
    scope: Memory, authenticator: AsyncAuthenticator[UserT], policy: Policy
) -> Principal[UserT]:
    """The principal of a request or a websocket as it is now, not as it was found before.

    Raises:
        Problem: As :func:`admission`.
    """
    return await _ask(scope, authenticator, _authorization(scope), policy)


def _authorization(scope: Memory) -> tuple[bytes, ...]:
    # Every header, as sent. Frameworks hand out the first of several, or join them, and decode leniently; which
    # credentials count must not depend on that.
    authorization: tuple[bytes, ...] = ()
    for name, value in scope["headers"]:
        if len(name) == 13 and name.lower() == b"authorization":
            authorization += (value,)
    return authorization


async def _ask(
    scope: Memory,
    authenticator: AsyncAuthenticator[UserT],
    authorization: tuple[bytes, ...],
    policy: Policy,
) -> Principal[UserT]:
    answer: object
    try:
        answer = await authenticator.authenticate(authorization)
    except Exception as error:  # noqa: BLE001 - a problem is told, and anything else is one
        answer = error
    return admit_answered(scope, authenticator, authorization, policy, answer)
