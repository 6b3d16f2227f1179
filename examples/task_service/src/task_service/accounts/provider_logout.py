"""Verifying the identity provider's logout tokens (OpenID Connect Back-Channel Logout 1.0)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final, cast

from msk_auth import AsyncAuthenticator, Clock, ExternalIdentity, Owner
from msk_auth.stores.memory import AsyncMemoryKeyStore
from msk_auth.tokens.issuers import ExternalIssuer, KeySet, Provider, TokenRules

LOGOUT_LEEWAY: Final = timedelta(seconds=30)
"""By how much the provider's clock may be ahead when it sends a logout token."""

_EVENT: Final = "http://schemas.openid.net/event/backchannel-logout"
_MAX_TEXT: Final = 255


def logout_verifier(
    issuer: str, client_id: str, keys: KeySet, *, clock: Clock
) -> AsyncAuthenticator[None]:
    """An authenticator that knows logout tokens (section 2.4), verified as section 2.6 says, and nothing else.

    Whom a token stands for here is not its affair: the caller reads the identity.

    Args:
        issuer: The provider's `iss`.
        client_id: The service's id there.
        keys: The provider's.
        clock: Where the time comes from.
    """
    tokens = ExternalIssuer(
        Provider.OIDC,
        issuer,
        audience=client_id,
        grants=None,
        token=_LOGOUT,
        keys=keys,
        leeway=LOGOUT_LEEWAY,
    )
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


def _is_logout_token(claims: Mapping[str, object]) -> bool:
    """Nothing else that the provider signs, ID tokens above all."""
    events = claims.get("events")
    if not isinstance(events, Mapping) or "nonce" in claims:
        return False
    if not isinstance(cast("Mapping[str, object]", events).get(_EVENT), Mapping):
        return False
    named = [name for name in ("sub", "sid") if name in claims]
    return bool(named) and all(readable(claims, name) is not None for name in named)


_LOGOUT: Final = TokenRules(
    kind="logout",
    types=frozenset({None, "logout+jwt", "application/logout+jwt"}),
    requires=("jti",),
    is_kind=_is_logout_token,
    # The person; of a token that names a session alone, that session.
    subject=lambda claims: cast("str", claims.get("sub", claims.get("sid"))),
    # Two minutes are recommended. For so long after `iat` the id of a token is remembered.
    max_lifetime=timedelta(hours=1),
)


def readable(claims: Mapping[str, object], name: str) -> str | None:
    """A claim that is printable text of at most 255 characters, as the database can hold it; None if it is something else."""
    value = claims.get(name)
    if isinstance(value, str) and 0 < len(value) <= _MAX_TEXT and value.isprintable():
        return value
    return None
