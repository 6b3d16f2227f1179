"""Logging out where the identity provider asks for it: OpenID Connect Back-Channel Logout 1.0.

    POST /login/oidc/backchannel-logout   logout_token=…, which the provider itself sends

That request has no login: the signature of the token counts. The library verifies it, as it verifies an
ID token of the same provider, and each of the two is refused in the place of the other.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import Final, cast

from msk_auth import Clock, ExternalIdentity
from msk_auth.errors import CredentialRefused, Problem, StoreUnavailable
from msk_auth.tokens.issuers import ExternalIssuer, KeySet, Preset
from task_service.errors import LogoutRefused

from .provider_tokens import verifier_of
from .sessions import ProviderLogout, Sessions

_log = logging.getLogger(__name__)

PATH: Final = "/login/oidc/backchannel-logout"

_EVENT: Final = "http://schemas.openid.net/event/backchannel-logout"
_LEEWAY: Final = timedelta(seconds=30)
_MAX_TEXT: Final = 255


def _is_logout_token(claims: Mapping[str, object]) -> bool:
    """Nothing else that the provider signs, ID tokens above all."""
    events = claims.get("events")
    if not isinstance(events, Mapping) or "nonce" in claims:
        return False
    if not isinstance(cast("Mapping[str, object]", events).get(_EVENT), Mapping):
        return False
    named = [name for name in ("sub", "sid") if name in claims]
    return bool(named) and all(readable(claims, name) is not None for name in named)


_LOGOUT: Final = Preset(
    token="logout",
    types=frozenset({None, "logout+jwt", "application/logout+jwt"}),
    requires=("jti",),
    is_kind=_is_logout_token,
    # The person; of a token that names a session alone, that session.
    subject=lambda claims: cast("str", claims.get("sub", claims.get("sid"))),
    # Two minutes are recommended. For so long after `iat` the id of a token is remembered.
    max_lifetime=timedelta(hours=1),
)


class LogoutTokens(ExternalIssuer):
    """The logout tokens of a provider (section 2.4), verified as section 2.6 says. None stands for a person's login.

    Args:
        issuer: Its `iss`.
        client_id: The service's id there.
        keys: The provider's.
    """

    def __init__(self, issuer: str, *, client_id: str, keys: KeySet) -> None:
        super().__init__(
            _LOGOUT, issuer, audience=client_id, grants=None, keys=keys, leeway=_LEEWAY
        )


class BackChannelLogout:
    """Ends the sessions that the provider has ended.

    As an asynchronous context manager it keeps the provider's keys fresh while it is open.

    Args:
        tokens: Verifies.
        clock: Where the time comes from.
        sessions: The sessions.
    """

    def __init__(self, tokens: LogoutTokens, *, clock: Clock, sessions: Sessions) -> None:
        self._sessions = sessions
        self._tokens = verifier_of(tokens, clock=clock)

    async def receive(self, logout_token: str) -> None:
        """Carry out a logout. When this returns, no process accepts the tokens of the sessions that it names.

        A logout of a session that is over, or of a person who is unknown here, succeeds (section 2.7).

        Args:
            logout_token: As it was sent.

        Raises:
            LogoutRefused: It is not valid, was used before, or the database or the provider's keys are not there.
        """
        try:
            principal = await self._tokens.authenticate([b"Bearer " + logout_token.encode()])
            identity = cast("ExternalIdentity", principal.identity)
            claims = identity.claims
            await self._sessions.end_at_provider(
                ProviderLogout(
                    issuer=identity.issuer,
                    token_id=cast("str", claims["jti"]),
                    # Twice, because the clock of another process may be behind this one's.
                    expires_at=cast("datetime", principal.expires_at) + 2 * _LEEWAY,
                    subject=readable(claims, "sub"),
                    provider_sid=readable(claims, "sid"),
                )
            )
        except StoreUnavailable as error:
            # The standard has one status for all failures (section 2.8), and the token was not used up.
            _log.warning("a logout of the identity provider could not be carried out: %s", error)
            raise LogoutRefused("The logout could not be carried out. Send it again.") from error
        except (CredentialRefused, Problem) as error:
            _log.info("a logout token is refused: %s", error)
            raise LogoutRefused from error

    async def __aenter__(self) -> BackChannelLogout:
        await self._tokens.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._tokens.__aexit__(kind, error, trace)


def readable(claims: Mapping[str, object], name: str) -> str | None:
    """A claim that is printable text of at most 255 characters, as the database can hold it; None if it is something else."""
    value = claims.get(name)
    if isinstance(value, str) and 0 < len(value) <= _MAX_TEXT and value.isprintable():
        return value
    return None
