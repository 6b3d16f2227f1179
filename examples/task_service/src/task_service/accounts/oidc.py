"""Logging in at an identity provider: OpenID Connect Core 1.0, by authorization code with PKCE (RFC 6749, RFC 7636).

    GET /login/oidc            the browser is sent to the provider, and keeps a `PendingLogin` in a cookie
    GET /login/oidc/callback   it comes back with a code, which is exchanged for an ID token

The library verifies the ID token, as it would verify one that a client sends. Who it stands for is looked up by issuer and
subject, and by nothing else: a name or an e-mail address that the provider lets people choose must not open an account that
exists here.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final, cast
from urllib.parse import quote, urlencode, urlsplit

from authlib.integrations.base_client import OAuthError
from authlib.integrations.httpx_client import AsyncOAuth2Client
from httpx2 import AsyncClient, HTTPError, InvalidURL, create_ssl_context
from pydantic import BaseModel, ConfigDict
from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from msk_auth import Clock, ExternalIdentity, Principal
from msk_auth.errors import ConfigurationError, CredentialRefused, Problem, StoreUnavailable
from msk_auth.tokens.issuers import OIDC, RemoteKeySet
from task_service.claim_rule import ClaimRule
from task_service.db import schema
from task_service.db.engine import Database
from task_service.errors import (
    LastAdministrator,
    ProviderLoginRefused,
    ProviderUnavailable,
    UsernameTaken,
)

from . import AwaitLeaseExpiry, no_leases
from .audit import Audit
from .config import ConfigStore
from .login import LoggedIn
from .provider_logout import BackChannelLogout, LogoutTokens, readable
from .provider_tokens import verifier_of
from .roles import ADMIN
from .sessions import Sessions, end_session_of
from .throttle import PublicThrottle
from .users import (
    MAX_USERNAME,
    User,
    Users,
    is_username,
    name_taken,
    normalised_username,
    read_user,
)

_log = logging.getLogger(__name__)

CALLBACK: Final = "/login/oidc/callback"
PENDING_FOR: Final = timedelta(minutes=10)
"""How long a person may take at the provider."""

UNKNOWN_AGE: Final = timedelta(days=1)
"""How old a login counts if the provider does not send `auth_time`: too old for everything that needs a recent one."""

_SCOPE: Final = "openid profile email"
_TIMEOUT_SECONDS: Final = 10.0
# What the library reads. Entra puts 200 groups at most into a token, which then has 12,000 characters.
_MAX_ID_TOKEN: Final = 16_000
# An address that is longer is refused by many servers.
_MAX_HINT: Final = 4_000
_METADATA_SECONDS: Final = 3600.0
_DEFAULT_ROLE: Final = "user"
_USERS = schema.users.c
_IDENTITIES = schema.identities.c


@dataclass(frozen=True, slots=True)
class Provider:
    """How the service is registered at the identity provider.

    Attributes:
        issuer: Its `iss`; the discovery document is under it.
        client_id: The service's id there.
        client_secret: None makes the service a public client, which PKCE alone protects.
        name: What the button says.
        users: Who may log in.
        administrators: Who is an administrator; None leaves the roles to administrators.
    """

    issuer: str
    client_id: str
    client_secret: str | None = field(repr=False)
    name: str
    users: ClaimRule
    administrators: ClaimRule | None


@dataclass(frozen=True, slots=True)
class PendingLogin:
    """What the browser keeps while the person is at the provider; the answer has to belong to it.

    Attributes:
        state: Comes back with the answer, so that no other site can log the person in to another account (RFC 6749, section
            10.12).
        nonce: Comes back in the ID token.
        code_verifier: Shows that the code was made for this browser (RFC 7636).
        target: The path to open afterwards.
        replaces: The session that the new one takes the place of.
    """

    state: str = field(repr=False)
    nonce: str = field(repr=False)
    code_verifier: str = field(repr=False)
    target: str
    replaces: str | None = None


class _Metadata(BaseModel):
    """The part of the discovery document that is used here (OpenID Connect Discovery 1.0, section 3)."""

    model_config = ConfigDict(strict=True, frozen=True)

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    end_session_endpoint: str | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)
    authorization_response_iss_parameter_supported: bool = False

    def check(self, issuer: str) -> None:
        """Refuse another issuer's document, and addresses without TLS; only an issuer on this machine may have such.

        Raises:
            ValueError: It is to be refused.
        """
        if self.issuer != issuer:
            raise ValueError("it names another issuer")
        allowed = {"https", urlsplit(issuer).scheme}
        endpoints = (self.authorization_endpoint, self.token_endpoint, self.end_session_endpoint)
        if any(url is not None and urlsplit(url).scheme not in allowed for url in endpoints):
            raise ValueError("an address in it is not encrypted")


class OidcLogin:
    """Logs people in who prove at the provider who they are.

    As an asynchronous context manager it keeps the provider's keys fresh while it is open.

    Args:
        provider: The service's registration.
        base_url: The service's origin for browsers; the provider must know `base_url + CALLBACK`.
        db: Holds identities.
        clock: Where the time comes from.
        users: The users; who comes for the first time is added.
        sessions: Starts sessions.
        config: Limits sessions.
        audit: Records refused logins.
        refusals: Counts the refused logins of each address.
        strays: Counts answers that belong to no login of the browser. Any site can make a browser send these, so they do not
            keep its address from logging in.
        await_lease_expiry: See :data:`~task_service.accounts.AwaitLeaseExpiry`.

    Attributes:
        provider: The service's registration.
        logout: Ends the sessions that the provider has ended.

    Raises:
        ConfigurationError: The certificates or the proxy that the environment names cannot be used.
    """

    def __init__(
        self,
        provider: Provider,
        *,
        base_url: str,
        db: Database,
        clock: Clock,
        users: Users,
        sessions: Sessions,
        config: ConfigStore,
        audit: Audit,
        refusals: PublicThrottle,
        strays: PublicThrottle,
        await_lease_expiry: AwaitLeaseExpiry = no_leases,
    ) -> None:
        self.provider = provider
        self._base_url = base_url
        self._db = db
        self._clock = clock
        self._users = users
        self._sessions = sessions
        self._config = config
        self._audit = audit
        self._refusals = refusals
        self._strays = strays
        self._await_lease_expiry = await_lease_expiry
        try:
            # Reading certificates takes longer than a request, and both halves of a login need the same.
            self._tls = create_ssl_context()
            AsyncClient(verify=self._tls)
        except (ImportError, InvalidURL, OSError, ValueError) as error:
            raise ConfigurationError(
                "The identity provider cannot be reached: check SSL_CERT_FILE and the variables of the proxy, such as"
                f" HTTPS_PROXY ({error})."
            ) from error
        self._metadata: tuple[float, _Metadata] | None = None
        keys = RemoteKeySet(provider.issuer, ssl_context=self._tls)
        self.logout = BackChannelLogout(
            LogoutTokens(provider.issuer, client_id=provider.client_id, keys=keys),
            clock=clock,
            sessions=sessions,
        )
        self._id_tokens = verifier_of(
            # Roles are this service's own.
            OIDC(provider.issuer, audience=provider.client_id, grants=None, token="id", keys=keys),
            clock=clock,
        )

    async def begin(
        self, target: str, *, replaces: str | None = None, fresh: bool = False
    ) -> tuple[str, PendingLogin]:
        """The provider's address for the browser, and what the browser keeps meanwhile.

        Args:
            target: The path to open afterwards.
            replaces: The session that the new one takes the place of.
            fresh: Whether the person has to log in at the provider again, even if they are logged in there.

        Raises:
            ProviderUnavailable: Its discovery document cannot be had.
        """
        metadata = await self._discover()
        pending = PendingLogin(
            secrets.token_urlsafe(32),
            secrets.token_urlsafe(32),
            secrets.token_urlsafe(48),
            target,
            replaces,
        )
        async with self._client() as client:
            url: str = client.create_authorization_url(
                metadata.authorization_endpoint,
                state=pending.state,
                code_verifier=pending.code_verifier,
                nonce=pending.nonce,
                # With it the ID token has to contain the time of the login (Core, section 3.1.2.1).
                **({"max_age": 0, "prompt": "login"} if fresh else {"max_age": 86_400}),
            )[0]
        return url, pending

    async def finish(
        self,
        pending: PendingLogin | None,
        answer: Mapping[str, str],
        *,
        address: str | None,
        user_agent: str | None,
    ) -> LoggedIn:
        """Start a session for the person who comes back from the provider.

        When this returns, no process accepts the token of the session that the new one replaces.

        Args:
            pending: From :meth:`begin`, as the same browser kept it; None if it kept nothing.
            answer: The query of the callback.
            address: The client's address.
            user_agent: The header `User-Agent`.

        Raises:
            ProviderLoginRefused: The answer does not belong to the pending login, or the person may not log in.
            ProviderUnavailable: The provider does not answer.
            TooManyAttempts: Too many logins from this address were refused; nothing was sent or written.
        """
        if pending is not None and not _matches(answer.get("state"), pending.state):
            pending = None
        throttle = self._strays if pending is None else self._refusals
        await throttle.check(address)
        # Before the code is exchanged: what the provider ends from then on must not begin here.
        last_logout = await self._sessions.last_provider_logout()
        try:
            principal, id_token = await self._verify(pending, answer)
            user = await self._find_or_add(cast("ExternalIdentity", principal.identity))
            return await self._start(
                user,
                principal,
                id_token,
                address,
                user_agent,
                replaces=None if pending is None else pending.replaces,
                last_logout=last_logout,
            )
        except ProviderLoginRefused as refused:
            await throttle.count(address)
            await self._audit.record_refusal("login.failed", anonymous=True)
            _log.info("a login at the identity provider was refused: %s", refused.detail)
            raise

    async def logout_url(self, id_token: str) -> str | None:
        """Where a browser ends the session at the provider as well (OpenID Connect RP-Initiated Logout 1.0).

        Returns:
            None if the provider has no such address, or does not answer: the session here has ended all the same.
        """
        try:
            endpoint = (await self._discover()).end_session_endpoint
        except ProviderUnavailable:
            return None
        if endpoint is None:
            return None
        parameters = {
            "client_id": self.provider.client_id,
            "post_logout_redirect_uri": f"{self._base_url}/login",
        }
        if len(id_token) <= _MAX_HINT:
            parameters["id_token_hint"] = id_token
        return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(parameters)}"

    async def __aenter__(self) -> OidcLogin:
        await self._id_tokens.__aenter__()
        await self.logout.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.logout.__aexit__(kind, error, trace)
        await self._id_tokens.__aexit__(kind, error, trace)

    async def _verify(
        self, pending: PendingLogin | None, answer: Mapping[str, str]
    ) -> tuple[Principal[None], str]:
        """Who came back, and their ID token."""
        if pending is None:
            raise ProviderLoginRefused(
                "This login was begun in another window, or too long ago. Log in again."
            )
        metadata = await self._discover()
        # Another provider may have been mixed in (RFC 9207).
        if answer.get("iss", self.provider.issuer) != self.provider.issuer or (
            metadata.authorization_response_iss_parameter_supported and "iss" not in answer
        ):
            raise ProviderLoginRefused
        if "error" in answer or "code" not in answer:
            raise ProviderLoginRefused(
                "The identity provider did not let you in. Log in again, or ask its administrator."
            )
        id_token = await self._exchange(metadata, answer["code"], pending.code_verifier)
        try:
            principal = await self._id_tokens.authenticate([b"Bearer " + id_token.encode()])
        except StoreUnavailable as error:
            raise ProviderUnavailable from error
        except (CredentialRefused, Problem) as error:
            _log.info("the identity provider sent an ID token that is refused: %s", error)
            raise ProviderLoginRefused from error
        nonce = cast("ExternalIdentity", principal.identity).claims.get("nonce")
        if not _matches(nonce, pending.nonce):
            raise ProviderLoginRefused
        return principal, id_token

    async def _exchange(self, metadata: _Metadata, code: str, code_verifier: str) -> str:
        """The ID token for a code."""
        try:
            async with self._client(metadata) as client:
                answer: dict[str, Any] = await client.fetch_token(
                    metadata.token_endpoint,
                    grant_type="authorization_code",
                    code=code,
                    redirect_uri=self._base_url + CALLBACK,
                    code_verifier=code_verifier,
                )
        except OAuthError as error:
            _log.warning("the identity provider refused a code: %s", error.error)
            raise ProviderLoginRefused from error
        except (HTTPError, ValueError) as error:
            _log.warning("the identity provider did not exchange a code: %s", type(error).__name__)
            raise ProviderUnavailable from error
        id_token = answer.get("id_token")
        if not isinstance(id_token, str) or not id_token.isascii():
            raise ProviderLoginRefused
        if len(id_token) > _MAX_ID_TOKEN:
            raise ProviderLoginRefused(
                f"Your ID token is too long: it has {len(id_token):,} characters, and {_MAX_ID_TOKEN:,} are read. Ask the"
                " administrator of the identity provider to send fewer groups."
            )
        return id_token

    async def _find_or_add(self, identity: ExternalIdentity) -> User:
        """The user whom the identity stands for, with the roles that the provider gives them."""
        if not self.provider.users.applies_to(identity.claims):
            raise ProviderLoginRefused(
                "Your account at the identity provider may not use this service. Ask its administrator."
            )
        is_administrator = self.provider.administrators is not None and (
            self.provider.administrators.applies_to(identity.claims)
        )
        async with self._db.read() as connection:
            user = await _find(connection, identity)
        role = ADMIN if is_administrator else _DEFAULT_ROLE
        if user is None:
            return await self._add(identity, role)
        if self.provider.administrators is None or is_administrator == (ADMIN in user.roles):
            return user
        try:
            return await self._users.change(user.id, roles=[role])
        except LastAdministrator:
            _log.warning("%s stays an administrator: no other user who can log in is one", user.id)
            return user

    async def _add(self, identity: ExternalIdentity, role: str) -> User:
        for name in _names(identity.claims):
            try:
                async with name_taken(), self._db.write() as connection:
                    # Another window may have been faster.
                    found = await _find(connection, identity)
                    if found is not None:
                        return found
                    user = await self._users.add(connection, name, (role,), external_login=True)
                    await connection.execute(
                        insert(schema.identities).values(
                            issuer=identity.issuer,
                            subject=identity.subject,
                            user_id=user.id,
                            created_at=self._clock.now(),
                        )
                    )
                    return user
            except UsernameTaken:
                continue
        raise ProviderLoginRefused("There is no free user name for you. Ask an administrator.")

    async def _start(
        self,
        user: User,
        principal: Principal[None],
        id_token: str,
        address: str | None,
        user_agent: str | None,
        *,
        replaces: str | None,
        last_logout: datetime | None,
    ) -> LoggedIn:
        identity = cast("ExternalIdentity", principal.identity)
        provider_sid = readable(identity.claims, "sid")
        config = await self._config.current()
        now = self._clock.now()
        authenticated_at: datetime = principal.authenticated_at or now - UNKNOWN_AGE
        async with self._db.write() as connection:
            await self._sessions.refuse_ended_at_provider(
                connection,
                issuer=identity.issuer,
                subject=identity.subject,
                provider_sid=provider_sid,
                since=last_logout,
            )
            updated = await connection.execute(
                update(schema.users)
                .where(_USERS.id == user.id, _USERS.disabled_at.is_(None))
                .values(last_login_at=now)
            )
            if updated.rowcount != 1:
                raise ProviderLoginRefused("Your account is disabled. Ask an administrator.")
            # The cookie that names it is the client's: only a session of the same user ends.
            replaced = replaces is not None and await end_session_of(
                connection, user.id, replaces, now
            )
            details = {"issuer": self.provider.issuer}
            session = await self._sessions.start(
                user.to_owner(),
                config,
                address=address,
                user_agent=user_agent,
                connection=connection,
                details=details | {"replaced": replaces} if replaced else details,
                authenticated_at=authenticated_at,
                id_token=id_token,
                provider_sid=provider_sid,
            )
        if replaced:
            await self._await_lease_expiry()
        token, expires_in = self._sessions.issue_token(session)
        return LoggedIn(token, expires_in, user, session.id)

    def _client(self, metadata: _Metadata | None = None) -> Any:
        # Any, because authlib's stubs leave out most types.
        authentication: Any
        if self.provider.client_secret is None:
            authentication = "none"
        elif (
            metadata and "client_secret_basic" not in metadata.token_endpoint_auth_methods_supported
        ):
            authentication = "client_secret_post"
        else:
            authentication = _client_secret_basic
        return AsyncOAuth2Client(
            self.provider.client_id,
            self.provider.client_secret,
            token_endpoint_auth_method=authentication,
            scope=_SCOPE,
            redirect_uri=self._base_url + CALLBACK,
            code_challenge_method="S256",
            timeout=_TIMEOUT_SECONDS,
            verify=self._tls,
        )

    async def _discover(self) -> _Metadata:
        now = self._clock.monotonic()
        if self._metadata is not None and now - self._metadata[0] < _METADATA_SECONDS:
            return self._metadata[1]
        url = self.provider.issuer.rstrip("/") + "/.well-known/openid-configuration"
        try:
            async with self._client() as client:
                response = await client.request("GET", url, withhold_token=True)
                response.raise_for_status()
                metadata = _Metadata.model_validate_json(response.content)
                metadata.check(self.provider.issuer)
        except (HTTPError, ValueError) as error:
            _log.warning("the identity provider's discovery document cannot be used: %s", error)
            if self._metadata is not None:
                return self._metadata[1]
            raise ProviderUnavailable from error
        self._metadata = (now, metadata)
        return metadata


def _client_secret_basic(
    client: Any, _method: str, uri: str, headers: dict[str, str], body: str
) -> tuple[str, dict[str, str], str]:
    """Authenticates the service; authlib's own leaves out the encoding (RFC 6749, section 2.3.1)."""
    # A space as %20, which also those providers decode that take a plus literally.
    parts = (quote(part, safe="") for part in (client.client_id, client.client_secret))
    headers["Authorization"] = f"Basic {b64encode(':'.join(parts).encode()).decode()}"
    return uri, headers, body


def _matches(sent: object, kept: str) -> bool:
    """Whether a value came back as it was sent out. What is sent out is ASCII, and nothing else can be compared."""
    return (
        isinstance(sent, str)
        and sent.isascii()
        and kept.isascii()
        and hmac.compare_digest(sent, kept)
    )


async def _find(connection: AsyncConnection, identity: ExternalIdentity) -> User | None:
    user_id = await connection.scalar(
        select(_IDENTITIES.user_id).where(
            _IDENTITIES.issuer == identity.issuer, _IDENTITIES.subject == identity.subject
        )
    )
    return None if user_id is None else await read_user(connection, user_id)


def _names(claims: Mapping[str, object]) -> Iterator[str]:
    """User names for a newcomer, the best first."""
    wanted = [claims.get(name) for name in ("preferred_username", "email")]
    names = [normalised_username(text) for text in wanted if isinstance(text, str)]
    name = next(filter(is_username, names), "user")
    yield name
    for _ in range(5):
        yield f"{name[: MAX_USERNAME - 7]}-{secrets.token_hex(3)}"
