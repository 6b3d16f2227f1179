"""Verifying the identity provider's logout tokens (OpenID Connect Back-Channel Logout 1.0)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final, cast

from msk_auth import AsyncAuthenticator, Clock, ExternalIdentity, Owner
from msk_auth.stores.memory import AsyncMemoryKeyStore
from msk_auth.tokens.issuers import ExternalIssuer, KeySet, Provider, TokenRules

LOGOUT_LEEWAY: Final = timedelta(seconds=30)
"""The tolerance for a provider's clock that is ahead."""

_EVENT: Final = "http://schemas.openid.net/event/backchannel-logout"
_MAX_TEXT: Final = 255


def logout_verifier(
    issuer: str, client_id: str, keys: KeySet, *, clock: Clock
) -> AsyncAuthenticator[None]:
    """An authenticator that accepts only logout tokens (section 2.4), verified by the rules of section 2.6.

    It does not look up users: the caller reads the identity.

    Args:
        issuer: The provider's `iss`.
        client_id: The service's client id.
        keys: The provider's keys.
        clock: The clock.
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
    """True for logout tokens; False for other tokens of the provider, above all ID tokens."""
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
    # The person, or for a token with only a session, that session.
    subject=lambda claims: cast("str", claims.get("sub", claims.get("sid"))),
    # Two minutes are recommended. The id of a token is remembered for this time after `iat`.
    max_lifetime=timedelta(hours=1),
)


def readable(claims: Mapping[str, object], name: str) -> str | None:
    """A claim, if it is printable text of at most 255 characters, which the database can store; otherwise None."""
    value = claims.get(name)
    if isinstance(value, str) and 0 < len(value) <= _MAX_TEXT and value.isprintable():
        return value
    return None
