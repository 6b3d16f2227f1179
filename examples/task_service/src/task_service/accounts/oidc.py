"""Logging in at an identity provider: OpenID Connect Core 1.0, by authorization code with PKCE (RFC 6749, RFC 7636).

    GET /login/oidc                       the browser is sent to the provider, and keeps a `PendingLogin` in a cookie
    GET /login/oidc/callback              it comes back with a code, which is exchanged for an ID token
    POST /login/oidc/backchannel-logout   the provider itself ends sessions (OpenID Connect Back-Channel Logout 1.0)

authlib's client speaks with the provider. The library verifies the ID token, as it would verify one that a client sends. Who it
stands for is looked up by issuer and subject, and by nothing else: a name or an e-mail address that the provider lets people
choose must not open an account that exists here.
"""

from __future__ import annotations

import hmac
import logging
import secrets
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Self, cast
from urllib.parse import quote, urlsplit

from authlib.integrations.starlette_client import OAuth, OAuthError
from authlib.oauth2 import auth as client_auth
from httpx2 import AsyncClient, HTTPError, InvalidURL, create_ssl_context
from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from msk_auth import ExternalIdentity, Principal
from msk_auth.errors import ConfigurationError, CredentialRefused, Problem, StoreUnavailable
from msk_auth.tokens.issuers import RemoteKeySet
from task_service.claim_rule import ClaimRule
from task_service.db import schema
from task_service.errors import (
    LastAdministrator,
    LogoutRefused,
    ProviderLoginRefused,
    ProviderUnavailable,
    UsernameTaken,
)

from .changes import Accounts
from .config import ConfigStore
from .provider_tokens import LOGOUT_LEEWAY, id_tokens, logout_tokens, readable, verifier_of
from .roles import ADMIN
from .sessions import LoggedIn, ProviderLogout, Sessions, end_session_of
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
LOGOUT: Final = "/login/oidc/backchannel-logout"
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


class OidcLogin:
    """Logs people in who prove at the provider who they are.

    As an asynchronous context manager it keeps the provider's keys fresh while it is open.

    Args:
        provider: The service's registration.
        base_url: The service's origin for browsers; the provider must know `base_url + CALLBACK`.
        accounts: Holds identities.
        users: The users; who comes for the first time is added.
        sessions: Starts sessions.
        config: Limits sessions.
        refusals: Counts the refused logins of each address.
        strays: Counts answers that belong to no login of the browser. Any site can make a browser send these, so they do not
            keep its address from logging in.

    Attributes:
        provider: The service's registration.

    Raises:
        ConfigurationError: The certificates or the proxy that the environment names cannot be used.
    """

    def __init__(
        self,
        provider: Provider,
        *,
        base_url: str,
        accounts: Accounts,
        users: Users,
        sessions: Sessions,
        config: ConfigStore,
        refusals: PublicThrottle,
        strays: PublicThrottle,
    ) -> None:
        self.provider = provider
        self._base_url = base_url
        self._accounts = accounts
        self._users = users
        self._sessions = sessions
        self._config = config
        self._refusals = refusals
        self._strays = strays
        try:
            # Reading certificates takes longer than a request, and both halves of a login need the same.
            self._tls = create_ssl_context()
            AsyncClient(verify=self._tls)
        except (ImportError, InvalidURL, OSError, ValueError) as error:
            raise ConfigurationError(
                "The identity provider cannot be reached: check SSL_CERT_FILE and the variables of the proxy, such as"
                f" HTTPS_PROXY ({error})."
            ) from error
        self._client = self._register()
        issuer, client_id = provider.issuer, provider.client_id
        keys = RemoteKeySet(issuer, ssl_context=self._tls)
        self._id_tokens = verifier_of(id_tokens(issuer, client_id, keys), clock=accounts.clock)
        self._logout_tokens = verifier_of(
            logout_tokens(issuer, client_id, keys), clock=accounts.clock
        )
        self._keeping_keys = AsyncExitStack()

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
        client = await self._discovered()
        # With `max_age` the ID token has to contain the time of the login (Core, section 3.1.2.1).
        asked = {"max_age": 0, "prompt": "login"} if fresh else {"max_age": 86_400}
        made = await client.create_authorization_url(self._base_url + CALLBACK, **asked)
        pending = PendingLogin(
            made["state"], made["nonce"], made["code_verifier"], target, replaces
        )
        return made["url"], pending

    async def finish(self, pending: PendingLogin | None, answer: Mapping[str, str]) -> LoggedIn:
        """Start a session for the person who comes back from the provider.

        When this returns, no process accepts the token of the session that the new one replaces.

        Args:
            pending: From :meth:`begin`, as the same browser kept it; None if it kept nothing.
            answer: The query of the callback.

        Raises:
            ProviderLoginRefused: The answer does not belong to the pending login, or the person may not log in.
            ProviderUnavailable: The provider does not answer.
            TooManyAttempts: Too many logins from this address were refused; nothing was sent or written.
        """
        if pending is not None and not _matches(answer.get("state"), pending.state):
            pending = None
        throttle = self._strays if pending is None else self._refusals
        await throttle.check()
        # Before the code is exchanged: what the provider ends from then on must not begin here.
        last_logout = await self._sessions.last_provider_logout()
        try:
            principal, id_token = await self._verify(pending, answer)
            user = await self._find_or_add(cast("ExternalIdentity", principal.identity))
            return await self._start(
                user,
                principal,
                id_token,
                replaces=None if pending is None else pending.replaces,
                last_logout=last_logout,
            )
        except ProviderLoginRefused as refused:
            await throttle.count()
            await self._accounts.audit.record_refusal("login.failed", anonymous=True)
            _log.info("a login at the identity provider was refused: %s", refused.detail)
            raise

    async def logout_url(self, id_token: str) -> str | None:
        """Where a browser ends the session at the provider as well (OpenID Connect RP-Initiated Logout 1.0).

        Returns:
            None if the provider has no such address, or does not answer: the session here has ended all the same.
        """
        try:
            client = await self._discovered()
        except ProviderUnavailable:
            return None
        if client.server_metadata.get("end_session_endpoint") is None:
            return None
        made = await client.create_logout_url(
            f"{self._base_url}/login",
            id_token if len(id_token) <= _MAX_HINT else None,
            client_id=self.provider.client_id,
        )
        return str(made["url"])

    async def log_out(self, logout_token: str) -> None:
        """Carry out a logout that the provider asks for.

        When this returns, no process accepts the tokens of the sessions that it names. A logout of a session that is over, or of
        a person who is unknown here, succeeds (Back-Channel Logout, section 2.7).

        Args:
            logout_token: As it was sent. That request has no login: the signature of the token counts.

        Raises:
            LogoutRefused: It is not valid, was used before, or the database or the provider's keys are not there.
        """
        try:
            principal = await self._logout_tokens.authenticate([b"Bearer " + logout_token.encode()])
            identity = cast("ExternalIdentity", principal.identity)
            await self._sessions.end_at_provider(
                ProviderLogout(
                    issuer=identity.issuer,
                    token_id=cast("str", identity.claims["jti"]),
                    # Twice, because the clock of another process may be behind this one's.
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

    async def __aenter__(self) -> Self:
        await self._keeping_keys.enter_async_context(self._id_tokens)
        await self._keeping_keys.enter_async_context(self._logout_tokens)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._keeping_keys.aclose()

    async def _verify(
        self, pending: PendingLogin | None, answer: Mapping[str, str]
    ) -> tuple[Principal[None], str]:
        """Who came back, and their ID token."""
        if pending is None:
            raise ProviderLoginRefused(
                "This login was begun in another window, or too long ago. Log in again."
            )
        client = await self._discovered()
        names_issuer = client.server_metadata.get("authorization_response_iss_parameter_supported")
        # Another provider may have been mixed in (RFC 9207).
        if (
            answer.get("iss", None if names_issuer else self.provider.issuer)
            != self.provider.issuer
        ):
            raise ProviderLoginRefused
        if "error" in answer or "code" not in answer:
            raise ProviderLoginRefused(
                "The identity provider did not let you in. Log in again, or ask its administrator."
            )
        id_token = await self._exchange(client, answer["code"], pending.code_verifier)
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

    async def _exchange(self, client: Any, code: str, code_verifier: str) -> str:
        """The ID token for a code."""
        try:
            answer: dict[str, Any] = await client.fetch_access_token(
                self._base_url + CALLBACK, code=code, code_verifier=code_verifier
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
        async with self._accounts.db.read() as connection:
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
                async with name_taken(), self._accounts.change() as change:
                    # Another window may have been faster.
                    found = await _find(change.connection, identity)
                    if found is not None:
                        return found
                    user = await self._users.add(change, name, (role,), external_login=True)
                    await change.connection.execute(
                        insert(schema.identities).values(
                            issuer=identity.issuer,
                            subject=identity.subject,
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
        principal: Principal[None],
        id_token: str,
        *,
        replaces: str | None,
        last_logout: datetime | None,
    ) -> LoggedIn:
        identity = cast("ExternalIdentity", principal.identity)
        provider_sid = readable(identity.claims, "sid")
        config = await self._config.current()
        async with self._accounts.change() as change:
            await self._sessions.refuse_ended_at_provider(
                change.connection,
                issuer=identity.issuer,
                subject=identity.subject,
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
            # The cookie that names it is the client's: only a session of the same user ends.
            replaced = replaces is not None and await end_session_of(change, user.id, replaces)
            details = {"issuer": self.provider.issuer}
            logged_in = await self._sessions.start(
                change,
                user,
                config,
                details=details | {"replaced": replaces} if replaced else details,
                authenticated_at=principal.authenticated_at or change.now - UNKNOWN_AGE,
                id_token=id_token,
                provider_sid=provider_sid,
            )
        if replaced:
            await self._accounts.await_lease_expiry()
        return logged_in

    def _register(self) -> Any:
        # Any, because authlib's stubs leave out most types.
        provider = self.provider
        return cast("Any", OAuth()).register(
            "provider",
            client_id=provider.client_id,
            client_secret=provider.client_secret,
            server_metadata_url=f"{provider.issuer.rstrip('/')}/.well-known/openid-configuration",
            client_auth_methods=[("secret", self._authenticate)],
            client_kwargs={
                "token_endpoint_auth_method": "secret" if provider.client_secret else "none",
                "scope": _SCOPE,
                "code_challenge_method": "S256",
                "timeout": _TIMEOUT_SECONDS,
                "verify": self._tls,
            },
        )

    def _authenticate(
        self, auth: Any, method: str, uri: str, headers: dict[str, str], body: Any
    ) -> Any:
        """Authenticate the service as the provider wants; authlib's own leaves out the encoding (RFC 6749, section 2.3.1)."""
        basic = "client_secret_basic"
        metadata = self._client.server_metadata
        if basic not in metadata.get("token_endpoint_auth_methods_supported", [basic]):
            return cast("Any", client_auth).encode_client_secret_post(
                auth, method, uri, headers, body
            )
        # A space as %20, which also those providers decode that take a plus literally.
        parts = (quote(part, safe="") for part in (auth.client_id, auth.client_secret))
        headers["Authorization"] = f"Basic {b64encode(':'.join(parts).encode()).decode()}"
        return uri, headers, body

    async def _discovered(self) -> Any:
        """The client with the provider's discovery document (OpenID Connect Discovery 1.0), which it reads once."""
        client = self._client
        try:
            _check_metadata(await client.load_server_metadata(), self.provider.issuer)
        except (HTTPError, TypeError, ValueError) as error:
            _log.warning("the identity provider's discovery document cannot be used: %s", error)
            # Reads it anew.
            self._client = self._register()
            raise ProviderUnavailable from error
        return client


def _check_metadata(metadata: Mapping[str, Any], issuer: str) -> None:
    """Refuse another issuer's document, and addresses without TLS; only an issuer on this machine may have such.

    Raises:
        ValueError: It is to be refused.
    """
    if metadata.get("issuer") != issuer:
        raise ValueError("it names another issuer")
    endpoints = [metadata.get("authorization_endpoint"), metadata.get("token_endpoint")]
    endpoints += [metadata.get("end_session_endpoint") or issuer]
    allowed = {"https", urlsplit(issuer).scheme}
    if any(urlsplit(str(url)).scheme not in allowed for url in endpoints):
        raise ValueError("an address in it is missing or not encrypted")


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
