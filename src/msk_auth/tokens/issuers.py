"""Presets for the tokens of identity providers, each as strict as its provider allows.

    authenticator = Authenticator(
        store,
        find_owner=find_owner,
        issuers=[Auth0("tenant.eu.auth0.com", audience="https://api.example.com")],
        find_external_owner=find_external_owner,
    )

All of them check the signature, the issuer, the audience, the kind of token and its times; see `external`. Where a provider's
documentation states a page's address it was read when the preset was written.

These arguments mean the same everywhere:

- `interactive`: which tokens stand for a person's login, given the claims. Without it, those of which the provider states that
  a person logged in; a machine where it states nothing. Only True counts.
- `keys`: a :class:`~msk_auth.tokens.keysets.PinnedKeySet`, or a :class:`~msk_auth.tokens.keysets.RemoteKeySet` with settings
  of yours; without it the issuer's keys are fetched by discovery.
- `max_lifetime`: the longest time from `iat` to `exp`. A token cannot be revoked here before its end.
- `leeway`: how far the clocks of the issuer and this machine may be apart.

The `auth_time` of a token is the age of the login; where there is none the age is unknown, which fails every `max_age`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from typing import Final, cast

from msk_auth.core.errors import ConfigurationError, TokenInvalid

from .external import (
    Claims,
    ExternalIssuer,
    TokenKind,
    refuse_id_token,
    require_id_token,
    require_texts,
    text_claim,
)
from .keysets import KeySet, PinnedKeySet, RemoteKeySet

__all__ = [
    "OIDC",
    "Auth0",
    "Clerk",
    "Cognito",
    "Entra",
    "ExternalIssuer",
    "Firebase",
    "GitHubActions",
    "GitLabCI",
    "Google",
    "KeySet",
    "Keycloak",
    "Kubernetes",
    "Okta",
    "PingOne",
    "PinnedKeySet",
    "RemoteKeySet",
    "Supabase",
    "TokenKind",
]

_DAY: Final = timedelta(hours=24)
_LEEWAY: Final = timedelta(seconds=30)
_HOST: Final = re.compile(r"[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)+(:[0-9]{1,5})?")
_NAME: Final = re.compile(r"[0-9A-Za-z_-]+")
_GUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_GOOGLE_CLIENT: Final = ".apps.googleusercontent.com"

Rule = Callable[[Claims], bool]


def _always(_claims: Claims) -> bool:
    return True


def _never(_claims: Claims) -> bool:
    return False


class OIDC(ExternalIssuer):
    """Tokens of any issuer with a discovery document (OpenID Connect Discovery 1.0).

    Takes access tokens as of RFC 9068, and those without its `typ`; or, with `token="id"`, ID tokens. An access
    token without `typ: at+jwt` looks like an ID token that has neither `nonce` nor a hash: only their audiences differ,
    so never give an API the id of a client as its audience. A person's access token looks like a machine's: without
    `interactive` all access tokens are machines'. An ID token is a person's.

    Written from OpenID Connect Core 1.0, sections 2 and 3.1.3.7, and RFC 9068, section 4.

    Args:
        issuer: The `iss`, exactly as the discovery document has it.
        audience: The API's identifier; for ID tokens the client's id.
        token: Which kind is accepted.
        interactive: See the module.
        keys: See the module.
        max_lifetime: See the module.
        leeway: See the module.
    """

    def __init__(
        self,
        issuer: str,
        *,
        audience: str | Collection[str],
        token: TokenKind = "access",
        interactive: Rule | None = None,
        keys: KeySet | None = None,
        max_lifetime: timedelta = _DAY,
        leeway: timedelta = _LEEWAY,
    ) -> None:
        self.token: TokenKind = _checked_kind(token)
        default = _always if token == "id" else _never
        super().__init__(
            issuer,
            audience=audience,
            keys=keys,
            types={None, "jwt"} if token == "id" else {None, "jwt", "at+jwt", "application/at+jwt"},
            interactive=default if interactive is None else interactive,
            max_lifetime=max_lifetime,
            leeway=leeway,
        )

    def check_kind(self, header: Mapping[str, object], claims: Claims) -> None:
        """See :class:`ExternalIssuer`."""
        if self.token == "id":
            require_id_token(claims, self.audiences)
        else:
            refuse_id_token(claims)


class Auth0(ExternalIssuer):
    """Access tokens of Auth0 for an API, in the Auth0 profile and in that of RFC 9068.

    A person's token has a user's id for its subject (`auth0|…`), and that of a program `…@clients`. There is no `auth_time`,
    so the age of a login is unknown unless an Action adds it. ID tokens are refused: their audience is a client, and they name
    no authorized party.

    Written from https://auth0.com/docs/secure/tokens/access-tokens/access-token-profiles.

    Args:
        domain: The tenant's domain, such as `tenant.eu.auth0.com`, or the custom one.
        audience: The API's identifier.
        interactive: See the module.
        keys: See the module.
        max_lifetime: See the module. Auth0's default is a day.
        leeway: See the module.
    """

    def __init__(
        self,
        domain: str,
        *,
        audience: str | Collection[str],
        interactive: Rule | None = None,
        keys: KeySet | None = None,
        max_lifetime: timedelta = _DAY,
        leeway: timedelta = _LEEWAY,
    ) -> None:
        super().__init__(
            f"https://{_checked_host(domain)}/",
            audience=audience,
            keys=keys,
            types={"jwt", "at+jwt"},
            interactive=_is_auth0_user if interactive is None else interactive,
            max_lifetime=max_lifetime,
            leeway=leeway,
        )

    def check_kind(self, header: Mapping[str, object], claims: Claims) -> None:
        """See :class:`ExternalIssuer`."""
        refuse_id_token(claims)
        require_texts(claims, "azp" if "azp" in claims else "client_id")


def _is_auth0_user(claims: Claims) -> bool:
    subject = cast("str", claims["sub"])
    is_program = subject.endswith("@clients") or claims.get("gty") == "client-credentials"
    return "|" in subject and not is_program


class Entra(ExternalIssuer):
    """Tokens of one tenant of Microsoft Entra ID, version 2.0: access tokens for an API, or ID tokens.

    Both kinds have the API's or the client's id as their audience; an access token names the client it was issued to (`azp`,
    `azpacr`) and an ID token does not. A person's access token has delegated permissions (`scp`), a program's has none. Access
    tokens have no `auth_time` unless the optional claim is configured. Version 1.0 tokens are refused: set
    `accessTokenAcceptedVersion` (`requestedAccessTokenVersion`) to 2. The subject differs for each application; `oid` in
    `identity.claims` is the person's id in the whole tenant.

    Written from https://learn.microsoft.com/entra/identity-platform/id-token-claims-reference and
    https://learn.microsoft.com/entra/identity-platform/access-token-claims-reference.

    Args:
        tenant: The tenant's id, a GUID. Neither `common` nor `organizations`: those accept accounts of every tenant.
        client_id: The application's (client) id.
        token: Which kind is accepted.
        interactive: See the module.
        keys: See the module.
        max_lifetime: See the module. With continuous access evaluation a token lives for up to 28 hours.
        leeway: See the module.
    """

    def __init__(
        self,
        tenant: str,
        *,
        client_id: str,
        token: TokenKind = "access",
        interactive: Rule | None = None,
        keys: KeySet | None = None,
        max_lifetime: timedelta = timedelta(hours=29),
        leeway: timedelta = _LEEWAY,
    ) -> None:
        if _GUID.fullmatch(tenant.lower()) is None:
            raise ConfigurationError(
                f"{tenant!r} is not a tenant's id. Give the GUID, since users of any tenant may log in at 'common'."
            )
        self.tenant: str = tenant.lower()
        self.token: TokenKind = _checked_kind(token)
        default = _always if token == "id" else _has_delegated_permissions
        super().__init__(
            f"https://login.microsoftonline.com/{self.tenant}/v2.0",
            audience=client_id,
            keys=keys,
            types={"jwt"},
            interactive=default if interactive is None else interactive,
            max_lifetime=max_lifetime,
            leeway=leeway,
        )

    def check_kind(self, header: Mapping[str, object], claims: Claims) -> None:
        """See :class:`ExternalIssuer`."""
        if claims.get("tid") != self.tenant or claims.get("ver") != "2.0":
            raise TokenInvalid
        if self.token == "access":
            refuse_id_token(claims)
            require_texts(claims, "azp", "azpacr")
        elif "azp" in claims or "azpacr" in claims:
            raise TokenInvalid
        else:
            require_id_token(claims, self.audiences)


def _has_delegated_permissions(claims: Claims) -> bool:
    scopes = claims.get("scp")
    return isinstance(scopes, str) and scopes != "" and claims.get("idtyp", "user") == "user"


class Okta(ExternalIssuer):
    """Tokens of an Okta authorization server: access tokens of a custom one, or ID tokens.

    An access token names its client (`cid`), and its id begins with `AT.`; that of an ID token with `ID.`. A person's access
    token has `uid`, and a program's has the client for its subject. The `sub` of an access token is the login name, which an
    administrator can give to another person, so the identity's subject is `uid`, as it is the `sub` of an ID token. Access
    tokens of the org's own server (`https://org.okta.com`) are for Okta alone, and no application can verify them.

    Written from a published pair of tokens (https://groups.google.com/g/rabbitmq-users/c/O3GdCKf8soM) and
    https://support.okta.com/help/s/article/list-of-reserved-claim-names.

    Args:
        issuer: Such as `https://org.okta.com/oauth2/default`.
        audience: The authorization server's audience, such as `api://default`; for ID tokens the client's id.
        token: Which kind is accepted.
        interactive: See the module.
        keys: See the module.
        max_lifetime: See the module.
        leeway: See the module.
    """

    def __init__(
        self,
        issuer: str,
        *,
        audience: str | Collection[str],
        token: TokenKind = "access",
        interactive: Rule | None = None,
        keys: KeySet | None = None,
        max_lifetime: timedelta = _DAY,
        leeway: timedelta = _LEEWAY,
    ) -> None:
        self.token: TokenKind = _checked_kind(token)
        default = _always if token == "id" else _is_okta_user
        super().__init__(
            issuer,
            audience=audience,
            keys=keys,
            types={None, "jwt"}
            if token == "id"
            else {None, "jwt", "application/okta-internal-at+jwt"},
            interactive=default if interactive is None else interactive,
            max_lifetime=max_lifetime,
            leeway=leeway,
        )

    def check_kind(self, header: Mapping[str, object], claims: Claims) -> None:
        """See :class:`ExternalIssuer`."""
        require_texts(claims, "jti")
        prefix = cast("str", claims["jti"])[:3]
        if self.token == "id":
            require_id_token(claims, self.audiences)
            if prefix != "ID.":
                raise TokenInvalid
        else:
            refuse_id_token(claims)
            require_texts(claims, "cid")
            if prefix != "AT.":
                raise TokenInvalid

    def subject(self, claims: Claims) -> str:
        """The `uid` of a person, else the `sub`."""
        is_users = self.token == "access" and "uid" in claims
        return text_claim(claims, "uid" if is_users else "sub")


def _is_okta_user(claims: Claims) -> bool:
    return isinstance(claims.get("uid"), str) and claims["sub"] != claims["cid"]


class Google(ExternalIssuer):
    """ID tokens of Google, for people who sign in with Google. Google's access tokens are no JWTs.

    A service account can get an ID token for any audience, yours included. Its authorized party (`azp`) is the account itself
    and not a client of Google's, so it is a machine. There is no `auth_time`. With `hosted_domain` only people of that
    Workspace domain are accepted.

    Written from https://developers.google.com/identity/gsi/web/guides/verify-google-id-token.

    Args:
        client_id: The client's id, which ends in `.apps.googleusercontent.com`; several for an app on several platforms.
        hosted_domain: The `hd` that is required; None accepts every Google account.
        interactive: See the module.
        keys: See the module.
        max_lifetime: See the module. Google's tokens live for an hour.
        leeway: See the module.
    """

    def __init__(
        self,
        client_id: str | Collection[str],
        *,
        hosted_domain: str | None = None,
        interactive: Rule | None = None,
        keys: KeySet | None = None,
        max_lifetime: timedelta = timedelta(hours=2),
        leeway: timedelta = _LEEWAY,
    ) -> None:
        self.hosted_domain = hosted_domain
        super().__init__(
            "https://accounts.google.com",
            "accounts.google.com",
            audience=client_id,
            keys=keys,
            types={"jwt"},
            interactive=_is_google_user if interactive is None else interactive,
            max_lifetime=max_lifetime,
            leeway=leeway,
        )

    def check_kind(self, header: Mapping[str, object], claims: Claims) -> None:
        """See :class:`ExternalIssuer`."""
        require_id_token(claims, self.audiences)
        if self.hosted_domain is not None and claims.get("hd") != self.hosted_domain:
            raise TokenInvalid


def _is_google_user(claims: Claims) -> bool:
    party, email = claims.get("azp"), claims.get("email", "")
    return (
        isinstance(party, str)
        and party.endswith(_GOOGLE_CLIENT)
        and isinstance(email, str)
        and not email.endswith(".gserviceaccount.com")
    )


class Keycloak(ExternalIssuer):
    """Access tokens of a Keycloak realm, with `typ` either `JWT` or, by the client's setting, `at+jwt`.

    The claim `typ` is `Bearer` in an access token, and something else in an ID token and a refresh token. Keycloak adds an
    audience only where a mapper does: configure one for this API. A token of a login belongs to a session (`sid`), and one of
    a service account names the client itself (`client_id`, or a user name that begins with `service-account-`); a lightweight
    token that shows neither is a machine's.

    Written from published access tokens (https://gist.github.com/phacman/bd288c7abac1d3fc1694b7e191e27e4c).

    Args:
        issuer: The realm's URL, such as `https://sso.example.com/realms/acme`.
        audience: The API's client id in the realm, as its audience mapper adds it.
        interactive: See the module.
        keys: See the module.
        max_lifetime: See the module.
        leeway: See the module.
    """

    def __init__(
        self,
        issuer: str,
        *,
        audience: str | Collection[str],
        interactive: Rule | None = None,
        keys: KeySet | None = None,
        max_lifetime: timedelta = _DAY,
        leeway: timedelta = _LEEWAY,
    ) -> None:
        super().__init__(
            issuer,
            audience=audience,
            keys=keys,
            types={"jwt", "at+jwt"},
            interactive=_is_keycloak_user if interactive is None else interactive,
            max_lifetime=max_lifetime,
            leeway=leeway,
        )

    def check_kind(self, header: Mapping[str, object], claims: Claims) -> None:
        """See :class:`ExternalIssuer`."""
        if claims.get("typ") != "Bearer":
            raise TokenInvalid
        require_texts(claims, "azp")


def _is_keycloak_user(claims: Claims) -> bool:
    name = claims.get("preferred_username", "")
    is_service = isinstance(name, str) and name.startswith("service-account-")
    machine = is_service or "client_id" in claims or "clientHost" in claims
    return isinstance(claims.get("sid"), str) and not machine


class Cognito(ExternalIssuer):
    """Tokens of an Amazon Cognito user pool: access tokens, or ID tokens.

    They differ in `token_use`. An access token has no audience, or that of a resource server: what is checked is the app client
    it was issued to (`client_id`). A person's has a `username`; one got with client credentials has none.

    Written from
    https://docs.aws.amazon.com/cognito/latest/developerguide/amazon-cognito-user-pools-using-the-access-token.html.

    Args:
        user_pool: The pool's id, such as `eu-central-1_AbCdEf123`; it begins with the region.
        client_id: The ids of the app clients whose tokens are accepted.
        token: Which kind is accepted.
        interactive: See the module.
        keys: See the module.
        max_lifetime: See the module.
        leeway: See the module.
    """

    def __init__(
        self,
        user_pool: str,
        *,
        client_id: str | Collection[str],
        token: TokenKind = "access",
        interactive: Rule | None = None,
        keys: KeySet | None = None,
        max_lifetime: timedelta = _DAY,
        leeway: timedelta = _LEEWAY,
    ) -> None:
        region, separator, _ = user_pool.partition("_")
        if not separator or _NAME.fullmatch(user_pool) is None:
            raise ConfigurationError(
                f"{user_pool!r} is not a user pool's id, such as eu-central-1_Ab1."
            )
        self.token: TokenKind = _checked_kind(token)
        default = _always if token == "id" else _is_cognito_user
        super().__init__(
            f"https://cognito-idp.{region}.amazonaws.com/{user_pool}",
            audience=client_id,
            keys=keys,
            types={None, "jwt"},
            interactive=default if interactive is None else interactive,
            max_lifetime=max_lifetime,
            leeway=leeway,
        )

    def check_audience(self, claims: Claims) -> None:
        """See :class:`ExternalIssuer`."""
        if self.token == "id":
            super().check_audience(claims)
            return
        client = claims.get("client_id")
        if not isinstance(client, str) or client not in self.audiences:
            raise TokenInvalid

    def check_kind(self, header: Mapping[str, object], claims: Claims) -> None:
        """See :class:`ExternalIssuer`."""
        if claims.get("token_use") != self.token:
            raise TokenInvalid


def _is_cognito_user(claims: Claims) -> bool:
    return isinstance(claims.get("username"), str) and claims["sub"] != claims["client_id"]


class Supabase(ExternalIssuer):
    """Access tokens of Supabase Auth, signed with one of the project's asymmetric signing keys.

    Tokens that are signed with the project's old shared secret are refused: every service that can verify those can also make
    them. All signed-in users have the audience `authenticated`; the project is in the issuer. Anonymous users are machines
    here. There is no `auth_time`.

    Written from https://supabase.com/docs/guides/auth/jwt-fields.

    Args:
        project: The project's reference, as in `https://<project>.supabase.co`.
        audience: The audience of the tokens.
        interactive: See the module.
        keys: See the module.
        max_lifetime: See the module.
        leeway: See the module.
    """

    def __init__(
        self,
        project: str,
        *,
        audience: str | Collection[str] = "authenticated",
        interactive: Rule | None = None,
        keys: KeySet | None = None,
        max_lifetime: timedelta = _DAY,
        leeway: timedelta = _LEEWAY,
    ) -> None:
        super().__init__(
            f"https://{_checked_name(project)}.supabase.co/auth/v1",
            audience=audience,
            keys=keys,
            types={"jwt"},
            interactive=_is_supabase_user if interactive is None else interactive,
            max_lifetime=max_lifetime,
            leeway=leeway,
        )

    def check_kind(self, header: Mapping[str, object], claims: Claims) -> None:
        """See :class:`ExternalIssuer`."""
        require_texts(claims, "role", "session_id")


def _is_supabase_user(claims: Claims) -> bool:
    return claims["role"] == "authenticated" and claims.get("is_anonymous") is False


class Clerk(ExternalIssuer):
    """Session tokens of Clerk.

    They have no audience: what is checked is the origin they were made for (`azp`), and a token without one is refused. A
    session that is not complete yet (`sts: pending`) is refused. When an administrator acts as the user (`act`) it is a
    machine. The age of the login comes from `fva`, the minutes since the first factor was verified.

    Written from https://clerk.com/docs/backend-requests/resources/session-tokens.

    Args:
        domain: The Frontend API's host, such as `clerk.example.com`.
        authorized_parties: The origins of your pages, such as `https://example.com`.
        interactive: See the module.
        keys: See the module.
        max_lifetime: See the module. Clerk's tokens live for a minute.
        leeway: See the module.
    """

    def __init__(
        self,
        domain: str,
        *,
        authorized_parties: str | Collection[str],
        interactive: Rule | None = None,
        keys: KeySet | None = None,
        max_lifetime: timedelta = timedelta(hours=1),
        leeway: timedelta = _LEEWAY,
    ) -> None:
        super().__init__(
            f"https://{_checked_host(domain)}",
            audience=authorized_parties,
            keys=keys,
            types={"jwt"},
            interactive=_is_clerk_user if interactive is None else interactive,
            max_lifetime=max_lifetime,
            leeway=leeway,
        )

    def check_audience(self, claims: Claims) -> None:
        """See :class:`ExternalIssuer`."""
        party = claims.get("azp")
        if not isinstance(party, str) or party not in self.audiences:
            raise TokenInvalid

    def check_kind(self, header: Mapping[str, object], claims: Claims) -> None:
        """See :class:`ExternalIssuer`."""
        require_texts(claims, "sid")
        if claims.get("sts", "active") != "active":
            raise TokenInvalid

    def authenticated_at(self, claims: Claims, issued_at: datetime) -> datetime | None:
        """When the first factor was verified, to the minute."""
        ages = claims.get("fva")
        if not isinstance(ages, list) or not ages:
            return None
        minutes: object = cast("list[object]", ages)[0]
        if type(minutes) is not int or not 0 <= minutes < 1_000_000:
            return None
        return issued_at - timedelta(minutes=minutes + 1)


def _is_clerk_user(claims: Claims) -> bool:
    return cast("str", claims["sub"]).startswith("user_") and "act" not in claims


class Firebase(ExternalIssuer):
    """ID tokens of Firebase Authentication.

    Anonymous users are machines, and so are those whom a backend signed in with a token of its own (`custom`): Firebase does not
    name the person. Session cookies have another issuer and are refused. Whether the user was disabled since is not checked:
    that takes a request to Firebase.

    Written from https://firebase.google.com/docs/reference/admin/node/firebase-admin.auth.decodedidtoken.

    Args:
        project: The project's id.
        interactive: See the module.
        keys: See the module.
        max_lifetime: See the module. Firebase's tokens live for an hour.
        leeway: See the module.
    """

    def __init__(
        self,
        project: str,
        *,
        interactive: Rule | None = None,
        keys: KeySet | None = None,
        max_lifetime: timedelta = timedelta(hours=2),
        leeway: timedelta = _LEEWAY,
    ) -> None:
        super().__init__(
            f"https://securetoken.google.com/{_checked_name(project)}",
            audience=project,
            keys=keys,
            types={"jwt"},
            interactive=_is_firebase_user if interactive is None else interactive,
            max_lifetime=max_lifetime,
            leeway=leeway,
        )

    def check_kind(self, header: Mapping[str, object], claims: Claims) -> None:
        """See :class:`ExternalIssuer`."""
        if not isinstance(claims.get("firebase"), dict) or "auth_time" not in claims:
            raise TokenInvalid


def _is_firebase_user(claims: Claims) -> bool:
    provider = cast("Mapping[str, object]", claims["firebase"]).get("sign_in_provider")
    return isinstance(provider, str) and provider not in {"", "anonymous", "custom"}


class PingOne(ExternalIssuer):
    """Access tokens of a PingOne environment, for a resource.

    A token that was got with client credentials has no subject and is refused. A person's belongs to a session (`sid`). ID tokens
    are signed with the same keys; they name no `client_id` and are refused. There is no `auth_time`.

    Written from
    https://apidocs.pingidentity.com/pingone/main/v1/api/src/authentication-concepts/access-tokens-and-id-tokens/token-claims/.

    Args:
        issuer: Such as `https://auth.pingone.eu/<environment id>/as`.
        audience: The resource's audience.
        interactive: See the module.
        keys: See the module.
        max_lifetime: See the module.
        leeway: See the module.
    """

    def __init__(
        self,
        issuer: str,
        *,
        audience: str | Collection[str],
        interactive: Rule | None = None,
        keys: KeySet | None = None,
        max_lifetime: timedelta = _DAY,
        leeway: timedelta = _LEEWAY,
    ) -> None:
        super().__init__(
            issuer,
            audience=audience,
            keys=keys,
            types={None, "jwt", "at+jwt"},
            interactive=_has_session if interactive is None else interactive,
            max_lifetime=max_lifetime,
            leeway=leeway,
        )

    def check_kind(self, header: Mapping[str, object], claims: Claims) -> None:
        """See :class:`ExternalIssuer`."""
        refuse_id_token(claims)
        require_texts(claims, "client_id")


def _has_session(claims: Claims) -> bool:
    return isinstance(claims.get("sid"), str)


class GitHubActions(ExternalIssuer):
    """Tokens of GitHub Actions' jobs: never a person.

    Every workflow on GitHub can get one for your audience, so the owner of the repository is checked. The subject is a text
    that the owner can configure; decide by `identity.claims`, and by its ids (`repository_id`) rather than names, which are
    given to others when a repository is renamed. A pull request from a fork gets no token.

    Written from https://docs.github.com/en/actions/reference/security/oidc.

    Args:
        owner: The organisation or user whose repositories are accepted, by name or by id.
        audience: What the job asks for: `core.getIDToken(audience)`.
        keys: See the module.
        max_lifetime: See the module. The tokens live for minutes.
        leeway: See the module.
    """

    def __init__(
        self,
        owner: str,
        *,
        audience: str | Collection[str],
        keys: KeySet | None = None,
        max_lifetime: timedelta = timedelta(hours=1),
        leeway: timedelta = _LEEWAY,
    ) -> None:
        self.owner: str = _checked_name(owner)
        super().__init__(
            "https://token.actions.githubusercontent.com",
            audience=audience,
            keys=keys,
            types={"jwt"},
            interactive=_never,
            max_lifetime=max_lifetime,
            leeway=leeway,
        )

    def check_kind(self, header: Mapping[str, object], claims: Claims) -> None:
        """See :class:`ExternalIssuer`."""
        require_texts(claims, "repository_id", "repository_owner", "repository_owner_id")
        # A user's name may consist of digits, and an id is never a name of the same owner.
        claim = "repository_owner_id" if self.owner.isdigit() else "repository_owner"
        if claims[claim] != self.owner:
            raise TokenInvalid


class GitLabCI(ExternalIssuer):
    """ID tokens of GitLab's CI jobs (`id_tokens:`): never a person, although they name the user who started the job.

    Every project of the instance can get one for your audience, so the group is checked. Of a merge request from a fork the
    `project_` claims are the fork's.

    Written from https://docs.gitlab.com/ci/secrets/id_token_authentication/.

    Args:
        group: The group, with or without its subgroups' path, or the user, whose projects are accepted.
        audience: The `aud` in the job's configuration.
        url: The instance.
        keys: See the module.
        max_lifetime: See the module. A token lives as long as its job may.
        leeway: See the module.
    """

    def __init__(
        self,
        group: str,
        *,
        audience: str | Collection[str],
        url: str = "https://gitlab.com",
        keys: KeySet | None = None,
        max_lifetime: timedelta = _DAY,
        leeway: timedelta = _LEEWAY,
    ) -> None:
        self.group: str = group.strip("/")
        if not self.group:
            raise ConfigurationError("Give the group whose projects are accepted, such as 'acme'.")
        super().__init__(
            url,
            audience=audience,
            keys=keys,
            types={"jwt"},
            interactive=_never,
            max_lifetime=max_lifetime,
            leeway=leeway,
        )

    def check_kind(self, header: Mapping[str, object], claims: Claims) -> None:
        """See :class:`ExternalIssuer`."""
        require_texts(claims, "project_id", "project_path", "namespace_path")
        namespace = cast("str", claims["namespace_path"])
        if namespace != self.group and not namespace.startswith(f"{self.group}/"):
            raise TokenInvalid


class Kubernetes(ExternalIssuer):
    """Projected tokens of Kubernetes service accounts: never a person.

    Old tokens from secrets have neither an audience nor an end and are refused. Whether the pod still exists is not checked:
    that takes a request to the cluster. Inside a cluster its discovery document often needs the cluster's certificate and a
    token; give both to a `RemoteKeySet`.

    Written from https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/ and tokens of clusters
    (https://gist.github.com/tsaarni/79b8b51610c948562cfe5d2e1002cae4).

    Args:
        issuer: The cluster's `--service-account-issuer`.
        audience: The `audience` of the projected volume: this application's, never the cluster's own.
        keys: See the module.
        max_lifetime: See the module.
        leeway: See the module.
    """

    def __init__(
        self,
        issuer: str,
        *,
        audience: str | Collection[str],
        keys: KeySet | None = None,
        max_lifetime: timedelta = _DAY,
        leeway: timedelta = _LEEWAY,
    ) -> None:
        super().__init__(
            issuer,
            audience=audience,
            keys=keys,
            types={None, "jwt"},
            interactive=_never,
            max_lifetime=max_lifetime,
            leeway=leeway,
        )

    def check_kind(self, header: Mapping[str, object], claims: Claims) -> None:
        """See :class:`ExternalIssuer`."""
        require_texts(claims, "sub")
        if not isinstance(claims.get("kubernetes.io"), dict) or not cast(
            "str", claims["sub"]
        ).startswith("system:serviceaccount:"):
            raise TokenInvalid


def _checked_kind(token: TokenKind) -> TokenKind:
    if token not in {"access", "id"}:
        raise ConfigurationError(f"token must be 'access' or 'id', not {token!r}.")
    return token


def _checked_host(domain: str) -> str:
    if _HOST.fullmatch(domain) is None:
        raise ConfigurationError(f"{domain!r} is not a domain, such as tenant.eu.auth0.com.")
    return domain


def _checked_name(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise ConfigurationError(f"{name!r} is not a name of 0-9A-Za-z_- as the provider gives.")
    return name
