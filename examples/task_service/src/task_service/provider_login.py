"""Logging in at an identity provider: OpenID Connect Core 1.0, by authorization code with PKCE (RFC 6749, RFC 7636).

    GET /login/oidc                       the browser is sent to the provider
    GET /login/oidc/callback              it comes back with a code, which is exchanged for an ID token
    POST /login/oidc/backchannel-logout   the provider itself ends sessions (OpenID Connect Back-Channel Logout 1.0)

authlib's client talks to the provider: it keeps `state`, `nonce` and the code verifier of a browser's latest login
in the session of Starlette's middleware, and verifies the ID token. The service finds the user only by issuer and subject:
a name or an e-mail address that people can choose at the provider must not open an existing account.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast
from urllib.parse import urlsplit

from authlib.integrations.starlette_client import OAuth, OAuthError
from httpx2 import AsyncClient, HTTPError, InvalidURL, create_ssl_context
from joserfc.errors import JoseError
from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.requests import Request
from starlette.responses import Response

from msk_auth import ExternalIdentity
from msk_auth.errors import ConfigurationError, CredentialRefused, Problem, StoreUnavailable
from msk_auth.tokens.issuers import RemoteKeySet

from .accounts.changes import Accounts
from .accounts.config import ConfigStore
from .accounts.names import MAX_USERNAME, is_username, normalised_username
from .accounts.provider_logout import LOGOUT_LEEWAY, logout_verifier, readable
from .accounts.roles import ADMIN, Role
from .accounts.sessions import LoggedIn, ProviderLogout, Sessions
from .accounts.throttle import PublicThrottle
from .accounts.users import User, Users, name_taken, read_user
from .db import schema
from .errors import (
    LastAdministrator,
    LogoutRefused,
    ProviderLoginRefused,
    ProviderUnavailable,
    UsernameTaken,
)
from .settings import Settings

_log = logging.getLogger(__name__)

CALLBACK: Final = "/login/oidc/callback"
LOGOUT: Final = "/login/oidc/backchannel-logout"
PENDING_SECONDS: Final = 600
"""The time for a person's login at the provider."""

UNKNOWN_AGE: Final = timedelta(days=1)
"""The assumed age of a login if the provider does not send `auth_time`: too old to count as recent."""

_SCOPE: Final = "openid profile email"
_TIMEOUT_SECONDS: Final = 10.0
_CLOCK_LEEWAY_SECONDS: Final = 120
# Many servers refuse a longer address.
_MAX_HINT: Final = 4_000
# authlib accepts every algorithm that the provider lists, perhaps even "none".
_ALGORITHMS: Final = frozenset(
    {
        *(f"{kind}{bits}" for kind in ("RS", "PS", "ES") for bits in (256, 384, 512)),
        "EdDSA",
        "Ed25519",
    }
)
_DEFAULT_ROLE: Final[Role] = "user"
_USERS = schema.users.c
_IDENTITIES = schema.identities.c


class OidcLogin:
    """Logs people in at the identity provider.

    Args:
        issuer: The provider's `iss`, under which it has its discovery document.
        settings: The service's registration at the provider, and its own origin: the provider must know
            `base_url + CALLBACK`.
        accounts: The database of identities.
        users: The users; a person's first login adds a user.
        sessions: Starts sessions.
        config: Limits sessions.
        refusals: Counts the refused logins of each address.
        strays: Counts answers without a login that the browser began. Any site can make a browser send these, so they do
            not block logins from its address.

    Attributes:
        name: The provider's name on the button of the login page.
        logout_tokens: Verifies the provider's logout tokens; renews the provider's keys while it is open.

    Raises:
        ConfigurationError: The environment's certificates or proxy cannot be used.
    """

    def __init__(
        self,
        issuer: str,
        settings: Settings,
        *,
        accounts: Accounts,
        users: Users,
        sessions: Sessions,
        config: ConfigStore,
        refusals: PublicThrottle,
        strays: PublicThrottle,
    ) -> None:
        self._issuer = issuer
        self._settings = settings
        self.name = settings.oidc_name or urlsplit(issuer).netloc
        self._accounts = accounts
        self._users = users
        self._sessions = sessions
        self._config = config
        self._refusals = refusals
        self._strays = strays
        try:
            # Shared, because reading certificates takes longer than a request.
            self._tls = create_ssl_context()
            AsyncClient(verify=self._tls)
        except (ImportError, InvalidURL, OSError, ValueError) as error:
            raise ConfigurationError(
                "The identity provider cannot be reached: check SSL_CERT_FILE and the variables of the proxy, such as"
                f" HTTPS_PROXY ({error})."
            ) from error
        self._client = self._new_client()
        self.logout_tokens = logout_verifier(
            issuer,
            settings.oidc_client_id,
            RemoteKeySet(issuer, ssl_context=self._tls),
            clock=accounts.clock,
        )

    async def begin(
        self, request: Request, target: str, *, replaces: str | None, fresh: bool
    ) -> Response:
        """Send the browser to the provider.

        Args:
            request: The request, whose session keeps the begun login.
            target: The path to open afterwards.
            replaces: The session to replace.
            fresh: True if the person must log in again, even if already logged in at the provider.

        Raises:
            ProviderUnavailable: The discovery document cannot be read.
        """
        client = await self._discovered()
        request.session.update(target=target, replaces=replaces)
        # With `max_age` the ID token has to contain the time of the login (Core, section 3.1.2.1).
        asked = {"max_age": 0, "prompt": "login"} if fresh else {"max_age": 86_400}
        answer: Response = await client.authorize_redirect(
            request, self._settings.base_url + CALLBACK, **asked
        )
        return answer

    async def finish(self, request: Request) -> LoggedIn:
        """Start a session for a person who returns from the provider.

        When this returns, no process accepts the token of the replaced session.

        Args:
            request: The callback, with the session of :meth:`begin`.

        Raises:
            ProviderLoginRefused: The browser has not begun this login, or the person may not log in.
            ProviderUnavailable: The provider does not answer.
            TooManyAttempts: Too many logins from this address were refused; nothing was sent or written.
        """
        state = request.query_params.get("state", "")
        began = await self._client.framework.get_state_data(request.session, state)
        throttle = self._strays if began is None else self._refusals
        await throttle.check()
        # Before the code is exchanged: a login that the provider ends from then on must not begin here.
        last_logout = await self._sessions.last_provider_logout()
        try:
            replaces = request.session.get("replaces")
            claims, id_token = await self._verify(request, is_stray=began is None)
            user = await self._find_or_add(claims)
            return await self._start(
                user, claims, id_token, replaces=replaces, last_logout=last_logout
            )
        except ProviderLoginRefused as refused:
            await throttle.count()
            await self._accounts.audit.record_refusal("login.failed", anonymous=True)
            _log.info("a login at the identity provider was refused: %s", refused.detail)
            raise

    async def logout_url(self, id_token: str) -> str | None:
        """The address that also ends the browser's session at the provider (OpenID Connect RP-Initiated Logout 1.0).

        Returns:
            None if the provider has no such address, or does not answer. The session here has ended in any case.
        """
        try:
            client = await self._discovered()
        except ProviderUnavailable:
            return None
        if client.server_metadata.get("end_session_endpoint") is None:
            return None
        made = await client.create_logout_url(
            f"{self._settings.base_url}/login",
            id_token if len(id_token) <= _MAX_HINT else None,
            client_id=self._settings.oidc_client_id,
        )
        return str(made["url"])

    async def log_out(self, logout_token: str) -> None:
        """Carry out a logout from the provider.

        When this returns, no process accepts the tokens of the named sessions. A logout of an ended session, or of
        an unknown person, succeeds (Back-Channel Logout, section 2.7).

        Args:
            logout_token: The sent token. Its request has no login, only the token's signature.

        Raises:
            LogoutRefused: The token is not valid or was used before, or the database or the provider's keys are unavailable.
        """
        try:
            principal = await self.logout_tokens.authenticate([b"Bearer " + logout_token.encode()])
            identity = cast("ExternalIdentity", principal.identity)
            await self._sessions.end_at_provider(
                ProviderLogout(
                    issuer=identity.issuer,
                    token_id=cast("str", identity.claims["jti"]),
                    # Twice, because the clock of another process may be behind.
                    expires_at=cast("datetime", principal.expires_at) + 2 * LOGOUT_LEEWAY,
                    subject=readable(identity.claims, "sub"),
                    provider_sid=readable(identity.claims, "sid"),
                )
            )
        except StoreUnavailable as error:
            # The standard has one status for all failures (section 2.8), and the token was not used up.
            _log.warning("a logout of the identity provider could not be carried out: %s", error)
            raise LogoutRefused("The logout could not be carried out. Send it again.") from error
        except (CredentialRefused, Problem) as error:
            _log.info("a logout token is refused: %s", error)
            raise LogoutRefused from error

    async def _verify(self, request: Request, *, is_stray: bool) -> tuple[Mapping[str, Any], str]:
        """The claims of the person who returned, and the ID token."""
        if is_stray:
            raise ProviderLoginRefused(
                "This login was begun in another window, or too long ago. Log in again."
            )
        client = await self._discovered()
        names_issuer = client.server_metadata.get("authorization_response_iss_parameter_supported")
        # The answer may be from another provider (RFC 9207).
        if request.query_params.get("iss", None if names_issuer else self._issuer) != self._issuer:
            raise ProviderLoginRefused
        expected = {"iss": self._issuer, "aud": self._settings.oidc_client_id}
        try:
            answer = await client.authorize_access_token(
                request,
                claims_options={
                    name: {"essential": True, "value": value} for name, value in expected.items()
                },
                leeway=_CLOCK_LEEWAY_SECONDS,
            )
        except (OAuthError, JoseError) as error:
            _log.warning(
                "the identity provider refused a login, or its ID token is wrong: %s", error
            )
            raise ProviderLoginRefused(
                "The identity provider did not let you in. Log in again, or ask its administrator."
            ) from error
        except (HTTPError, LookupError, ValueError) as error:
            _log.warning("the identity provider did not exchange a code: %s", type(error).__name__)
            raise ProviderUnavailable from error
        finally:
            # A code can be exchanged only once.
            request.session.clear()
        claims = answer.get("userinfo")
        if claims is None or readable(claims, "sub") is None:
            raise ProviderLoginRefused
        return claims, answer["id_token"]

    async def _find_or_add(self, claims: Mapping[str, Any]) -> User:
        """The user of the claims, with the roles from the provider."""
        rules = self._settings
        if rules.oidc_users is None or not rules.oidc_users.applies_to(claims):
            raise ProviderLoginRefused(
                "Your account at the identity provider may not use this service. Ask its administrator."
            )
        administrators = rules.oidc_administrators
        is_administrator = administrators is not None and administrators.applies_to(claims)
        async with self._accounts.db.read() as connection:
            user = await self._find(connection, claims["sub"])
        role: Role = ADMIN if is_administrator else _DEFAULT_ROLE
        if user is None:
            return await self._add(claims, role)
        if administrators is None or is_administrator == (ADMIN in user.roles):
            return user
        try:
            return await self._users.change(user.id, roles=[role])
        except LastAdministrator:
            _log.warning(
                "%s stays an administrator, because no other administrator can log in", user.id
            )
            return user

    async def _add(self, claims: Mapping[str, Any], role: Role) -> User:
        for name in _names(claims):
            try:
                async with name_taken(), self._accounts.change() as change:
                    # Another window may have been faster.
                    found = await self._find(change.connection, claims["sub"])
                    if found is not None:
                        return found
                    user = await self._users.add(change, name, (role,), external_login=True)
                    await change.connection.execute(
                        insert(schema.identities).values(
                            issuer=self._issuer,
                            subject=claims["sub"],
                            user_id=user.id,
                            created_at=change.now,
                        )
                    )
                    return user
            except UsernameTaken:
                continue
        raise ProviderLoginRefused("There is no free user name for you. Ask an administrator.")

    async def _start(
        self,
        user: User,
        claims: Mapping[str, Any],
        id_token: str,
        *,
        replaces: str | None,
        last_logout: datetime | None,
    ) -> LoggedIn:
        provider_sid = readable(claims, "sid")
        authenticated_at = _authenticated_at(claims, self._accounts.now())
        config = await self._config.current()
        async with self._accounts.change() as change:
            await self._sessions.refuse_ended_at_provider(
                change.connection,
                issuer=self._issuer,
                subject=claims["sub"],
                provider_sid=provider_sid,
                since=last_logout,
            )
            updated = await change.connection.execute(
                update(schema.users)
                .where(_USERS.id == user.id, _USERS.disabled_at.is_(None))
                .values(last_login_at=change.now)
            )
            if updated.rowcount != 1:
                raise ProviderLoginRefused("Your account is disabled. Ask an administrator.")
            logged_in = await self._sessions.start(
                change,
                user,
                config,
                details={"issuer": self._issuer},
                replaces=replaces,
                authenticated_at=authenticated_at,
                id_token=id_token,
                provider_sid=provider_sid,
            )
        if replaces is not None:
            await self._accounts.await_lease_expiry()
        return logged_in

    async def _find(self, connection: AsyncConnection, subject: str) -> User | None:
        user_id = await connection.scalar(
            select(_IDENTITIES.user_id).where(
                _IDENTITIES.issuer == self._issuer, _IDENTITIES.subject == subject
            )
        )
        return None if user_id is None else await read_user(connection, user_id)

    def _new_client(self) -> Any:
        # Any, because authlib's stubs leave out most types.
        return cast("Any", OAuth()).register(
            "provider",
            client_id=self._settings.oidc_client_id,
            client_secret=self._settings.oidc_client_secret,
            server_metadata_url=f"{self._issuer.rstrip('/')}/.well-known/openid-configuration",
            client_kwargs={
                "token_endpoint_auth_method": "none",
                "scope": _SCOPE,
                "code_challenge_method": "S256",
                "timeout": _TIMEOUT_SECONDS,
                "verify": self._tls,
            },
        )

    async def _discovered(self) -> Any:
        """The client with the provider's discovery document (OpenID Connect Discovery 1.0), which is read once."""
        if self._client.server_metadata:
            return self._client
        # Each attempt has its own client, so that its failure leaves the document of another attempt alone.
        client = self._new_client()
        try:
            metadata = await client.load_server_metadata()
            _check_metadata(metadata, self._issuer)
        except (HTTPError, TypeError, ValueError) as error:
            _log.warning("the identity provider's discovery document cannot be used: %s", error)
            raise ProviderUnavailable from error
        algorithms = "id_token_signing_alg_values_supported"
        metadata[algorithms] = sorted(_ALGORITHMS.intersection(metadata.get(algorithms, ())))
        if self._settings.oidc_client_secret is not None:
            methods = metadata.get("token_endpoint_auth_methods_supported", ())
            # authlib does not encode the secret in a header (RFC 6749, section 2.3.1), so prefer the body.
            post = "client_secret_post"
            client.client_kwargs["token_endpoint_auth_method"] = (
                post if post in methods else "client_secret_basic"
            )
        self._client = client
        return client


def _check_metadata(metadata: Mapping[str, Any], issuer: str) -> None:
    """Refuse another issuer's document, and addresses without TLS, except of an issuer on this machine.

    Raises:
        ValueError: The document is refused.
    """
    if metadata.get("issuer") != issuer:
        raise ValueError("it names another issuer")
    endpoints = [metadata.get("authorization_endpoint"), metadata.get("token_endpoint")]
    endpoints += [metadata.get("end_session_endpoint") or issuer]
    allowed = {"https", urlsplit(issuer).scheme}
    if any(urlsplit(str(url)).scheme not in allowed for url in endpoints):
        raise ValueError("an address in it is missing or not encrypted")


def _authenticated_at(claims: Mapping[str, Any], now: datetime) -> datetime:
    """The time of the person's login at the provider.

    Raises:
        ProviderLoginRefused: The ID token has no valid time, or a future time.
    """
    at = claims.get("auth_time")
    if at is None:
        return now - UNKNOWN_AGE
    if not isinstance(at, int | float) or not 0 <= at <= now.timestamp() + _CLOCK_LEEWAY_SECONDS:
        raise ProviderLoginRefused
    return datetime.fromtimestamp(at, UTC)


def _names(claims: Mapping[str, object]) -> Iterator[str]:
    """Possible user names for a new user, the best first."""
    wanted = [claims.get(name) for name in ("preferred_username", "email")]
    names = [normalised_username(text) for text in wanted if isinstance(text, str)]
    name = next(filter(is_username, names), "user")
    yield name
    for _ in range(5):
        yield f"{name[: MAX_USERNAME - 7]}-{secrets.token_hex(3)}"
