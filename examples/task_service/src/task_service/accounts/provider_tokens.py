"""Verifying what the identity provider signs."""

from __future__ import annotations

from msk_auth import AsyncAuthenticator, Clock, ExternalIdentity, Owner
from msk_auth.stores.memory import AsyncMemoryKeyStore
from msk_auth.tokens.issuers import ExternalIssuer


def verifier_of(tokens: ExternalIssuer, *, clock: Clock) -> AsyncAuthenticator[None]:
    """An authenticator that knows one kind of token and nothing else: no key, and no login of this service.

    Whom a token stands for here is not its affair: the caller reads the identity.

    Args:
        tokens: The kind of token.
        clock: Where the time comes from.
    """
    return AsyncAuthenticator(
        AsyncMemoryKeyStore(),
        find_owner=_no_owner,
        issuers=[tokens],
        find_external_owner=_any_person,
        clock=clock,
    )


async def _no_owner(_owner_id: str) -> Owner[None] | None:
    return None


async def _any_person(identity: ExternalIdentity) -> Owner[None]:
    return Owner(identity.subject, frozenset(), None)
