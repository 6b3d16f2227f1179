"""Presets for the tokens of identity providers, each as strict as its provider allows.

    authenticator = Authenticator(
        store,
        find_owner=find_owner,
        issuers=[Auth0("tenant.eu.auth0.com", audience="https://api.example.com", grants="permissions")],
        find_external_owner=find_external_owner,
    )

All of them check the signature, the issuer, the audience, the kind of token and its times; see `external`. A preset is a row, a
`Preset`, and the constructor that fills it in. Where a provider's documentation states a page's address it was read when the
preset was written.

`grants`, which has no default, and the arguments of :class:`Options` mean the same everywhere: see :class:`ExternalIssuer`. The
`auth_time` of a token is the age of the login; where there is none the age is unknown, which fails every `max_age`.

One issuer may be configured several times, for different audiences, kinds and tenants. The first that accepts a token counts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, TypeAlias, Unpack, cast

from msk_auth.core.errors import ConfigurationError, TokenInvalid

from .external import (
    Claims,
    ExternalIssuer,
    Options,
    Preset,
    TokenKind,
    never,
    text_claim,
)
from .grants import Grants
from .keysets import KeySet, PinnedKeySet, RemoteKeySet

__all__ = [
    "OIDC",
    "Auth0",
    "Buildkite",
    "Clerk",
    "CloudflareAccess",
    "Cognito",
    "Entra",
    "ExternalIssuer",
    "Firebase",
    "GitHubActions",
    "GitLabCI",
    "Google",
    "Grants",
    "KeySet",
    "Keycloak",
    "Kubernetes",
    "Okta",
    "Options",
    "PingOne",
    "PinnedKeySet",
    "Preset",
    "RemoteKeySet",
    "Supabase",
    "TokenKind",
]

_HOST: Final = re.compile(r"[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)+(:[0-9]{1,5})?")
_NAME: Final = re.compile(r"[0-9A-Za-z_-]+")
_GUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_GOOGLE_CLIENT: Final = ".apps.googleusercontent.com"
_JWT: Final = frozenset({"jwt"})
_AT_JWT: Final = frozenset({"at+jwt", "application/at+jwt"})
# Claims that only ID tokens have (OpenID Connect Core, sections 2 and 3.3.2.11), and those that only access tokens have (RFC
# 9068, section 2.2.3, and Okta's).
_ID_CLAIMS: Final = frozenset({"nonce", "at_hash", "c_hash", "s_hash"})
_ACCESS_CLAIMS: Final = frozenset({"scope", "scp", "cid"})
# Every customer of these can get a token for any audience.
_SHARED: Final = {
    "https://agent.buildkite.com": "Buildkite",
    "https://token.actions.githubusercontent.com": "GitHubActions",
    "https://accounts.google.com": "Google",
}

_Texts: TypeAlias = str | Collection[str]


def _is_unmarked(claims: Claims) -> bool:
    """Nothing marks it as an ID token."""
    return _ID_CLAIMS.isdisjoint(claims)


def _is_id_token(claims: Claims) -> bool:
    """Nothing marks it as an access token. `client_id` does not: a client ignores what it does not know (Core, section 2)."""
    return _ACCESS_CLAIMS.isdisjoint(claims)


def _has(claims: Claims, name: str) -> bool:
    value = claims.get(name)
    return isinstance(value, str) and value != ""


def _has_nonce(claims: Claims) -> bool:
    """A client sent it with the browser to the provider, so no other grant has it (OpenID Connect Core, section 3.1.2.1)."""
    return _has(claims, "nonce")


_NONCE: Final = "it has `nonce`, which a client sent with the browser"

_OIDC_ACCESS: Final = Preset(
    token="access", is_person=never, types=frozenset({None, "jwt"}) | _AT_JWT
)
_OIDC_ID: Final = Preset(token="id", evidence=_NONCE, is_person=_has_nonce)


class OIDC(ExternalIssuer):
    """Tokens of any issuer with a discovery document (OpenID Connect Discovery 1.0), or with a key set of yours.

    Takes access tokens as of RFC 9068, and those without its `typ`; or, with `token="id"`, ID tokens. A token is marked as an
    access token by `typ: at+jwt`, `scope` or `scp`; as an ID token by `nonce` or a hash. One that has marks of both is an access
    token. Of one that has none only the audience shows the kind, so never give an API the id of a client as its audience; where
    the issuer leaves no choice, name `access_claims`. Without `interactive` all access tokens are machines'; an ID token is a
    person's if it has `nonce`.

    Written from OpenID Connect Core 1.0, sections 2 and 3.1.3.7, and RFC 9068, section 4.

    Args:
        issuer: The `iss`, exactly as the discovery document has it.
        audience: The API's identifier; for ID tokens the client's id.
        grants: See :class:`ExternalIssuer`.
        token: Which kind is accepted.
        audience_claim: The claim that has the audience, for issuers that use another than `aud`.
        access_claims: Claims that every access token of this issuer has, and no ID token.
        **options: See :class:`ExternalIssuer`.

    Raises:
        ConfigurationError: The issuer serves every customer of a provider, and `required` names none of them.
    """

    def __init__(
        self,
        issuer: str,
        *,
        audience: _Texts,
        grants: Grants,
        token: TokenKind = "access",
        audience_claim: str = "aud",
        access_claims: Collection[str] = (),
        **options: Unpack[Options],
    ) -> None:
        if issuer in _SHARED and not options.get("required"):
            raise ConfigurationError(
                f"Every customer of {issuer} gets tokens for any audience. Use {_SHARED[issuer]}(…), or name yours:"
                " required={…}."
            )
        row = replace(_of(token, access=_OIDC_ACCESS, id_=_OIDC_ID), audience=audience_claim)
        super().__init__(row, issuer, audience=audience, grants=grants, **options)
        self._access_claims = frozenset(access_claims)
        self.selects: tuple[object, ...] = (*self.selects, self._access_claims)

    def check_kind(self, header: Mapping[str, object], claims: Claims) -> None:
        """See :class:`ExternalIssuer`."""
        is_typed = str(header.get("typ")).lower() in _AT_JWT
        marked = is_typed or not _is_id_token(claims)
        if self.preset.token == "id":
            accepted = not marked and self._access_claims.isdisjoint(claims)
        elif self._access_claims:
            accepted = self._access_claims <= claims.keys()
        else:
            accepted = marked or _is_unmarked(claims)
        if not accepted:
            raise TokenInvalid


def _is_auth0_user(claims: Claims) -> bool:
    subject = cast("str", claims["sub"])
    is_program = subject.endswith("@clients") or claims.get("gty") == "client-credentials"
    return "|" in subject and not is_program


_AUTH0: Final = Preset(
    token="access",
    evidence="the subject is a user's id, not a client's, and the grant is not `client-credentials`",
    is_person=_is_auth0_user,
    types=_JWT | {"at+jwt"},
    is_kind=lambda claims: (
        _is_unmarked(claims) and _has(claims, "azp" if "azp" in claims else "client_id")
    ),
)


class Auth0(ExternalIssuer):
    """Access tokens of Auth0 for an API, in the Auth0 profile and in that of RFC 9068.

    A person's token has a user's id for its subject (`auth0|…`), and that of a program `…@clients`. There is no `auth_time`,
    so the age of a login is unknown unless an Action adds it. ID tokens are refused: their audience is a client, and they name
    no authorized party. With RBAC enabled for the API, `permissions` has what the user or the program was granted.

    Written from https://auth0.com/docs/secure/tokens/access-tokens/access-token-profiles.

    Args:
        domain: The tenant's domain, such as `tenant.eu.auth0.com`, or the custom one.
        audience: The API's identifier.
        grants: See :class:`ExternalIssuer`; `"permissions"` or `"scope"`.
        **options: See :class:`ExternalIssuer`.
    """

    def __init__(
        self, domain: str, *, audience: _Texts, grants: Grants, **options: Unpack[Options]
    ) -> None:
        name = f"https://{_checked_host(domain)}/"
        super().__init__(_AUTH0, name, audience=audience, grants=grants, **options)


def _has_delegated_permissions(claims: Claims) -> bool:
    return _has(claims, "scp") and claims.get("idtyp", "user") == "user"


_ENTRA_ACCESS: Final = Preset(
    token="access",
    evidence="it has delegated permissions (`scp`), and `idtyp` is not `app`",
    is_person=_has_delegated_permissions,
    types=_JWT,
    requires=("azp", "azpacr"),
    is_kind=_is_unmarked,
    # With continuous access evaluation a token lives for up to 28 hours.
    max_lifetime=timedelta(hours=29),
)
_ENTRA_ID: Final = Preset(
    token="id",
    evidence=_NONCE,
    is_person=_has_nonce,
    types=_JWT,
    is_kind=lambda claims: _is_id_token(claims) and "azp" not in claims and "azpacr" not in claims,
    max_lifetime=timedelta(hours=29),
)


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
        grants: See :class:`ExternalIssuer`; `"scp"` for people's access tokens, `"roles"` for programs' and for app roles.
        token: Which kind is accepted.
        **options: See :class:`ExternalIssuer`.
    """

    def __init__(
        self,
        tenant: str,
        *,
        client_id: str,
        grants: Grants,
        token: TokenKind = "access",
        **options: Unpack[Options],
    ) -> None:
        guid = tenant.lower()
        if _GUID.fullmatch(guid) is None:
            raise ConfigurationError(
                f"{tenant!r} is not a tenant's id. Give the GUID, since users of any tenant may log in at 'common'."
            )
        row = _of(token, access=_ENTRA_ACCESS, id_=_ENTRA_ID)
        super().__init__(
            replace(row, fixed={"tid": guid, "ver": "2.0"}),
            f"https://login.microsoftonline.com/{guid}/v2.0",
            audience=client_id,
            grants=grants,
            **options,
        )


def _is_okta_user(claims: Claims) -> bool:
    return isinstance(claims.get("uid"), str) and claims["sub"] != claims["cid"]


def _okta_subject(claims: Claims) -> str:
    return text_claim(claims, "uid" if "uid" in claims else "sub")


_OKTA_ACCESS: Final = Preset(
    token="access",
    evidence="it has `uid`, and the subject is not the client",
    is_person=_is_okta_user,
    types=frozenset({None, "jwt", "application/okta-internal-at+jwt"}),
    requires=("jti", "cid"),
    is_kind=lambda claims: _is_unmarked(claims) and cast("str", claims["jti"]).startswith("AT."),
    subject=_okta_subject,
)
_OKTA_ID: Final = Preset(
    token="id",
    evidence=_NONCE,
    is_person=_has_nonce,
    requires=("jti",),
    is_kind=lambda claims: _is_id_token(claims) and cast("str", claims["jti"]).startswith("ID."),
)


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
        grants: See :class:`ExternalIssuer`; `"scp"` for access tokens.
        token: Which kind is accepted.
        **options: See :class:`ExternalIssuer`.
    """

    def __init__(
        self,
        issuer: str,
        *,
        audience: _Texts,
        grants: Grants,
        token: TokenKind = "access",
        **options: Unpack[Options],
    ) -> None:
        row = _of(token, access=_OKTA_ACCESS, id_=_OKTA_ID)
        super().__init__(row, issuer, audience=audience, grants=grants, **options)


def _is_google_user(claims: Claims) -> bool:
    party, email = claims.get("azp"), claims.get("email", "")
    return (
        _has_nonce(claims)
        and isinstance(party, str)
        and party.endswith(_GOOGLE_CLIENT)
        and isinstance(email, str)
        and not email.endswith(".gserviceaccount.com")
    )


_GOOGLE: Final = Preset(
    token="id",
    evidence=f"{_NONCE}, for a client of Google's, and it is not a service account's",
    is_person=_is_google_user,
    types=_JWT,
    is_kind=_is_id_token,
    max_lifetime=timedelta(hours=2),
)


class Google(ExternalIssuer):
    """ID tokens of Google, for people who sign in with Google. Google's access tokens are no JWTs.

    A service account can get an ID token for any audience, yours included. Its authorized party (`azp`) is the account itself
    and not a client of Google's, so it is a machine. Pass `nonce` when you begin the login. There is no `auth_time`. With
    `hosted_domain` only people of that Workspace domain are accepted. Google spells its `iss` with and without `https://`, and
    both are one identity.

    Written from https://developers.google.com/identity/gsi/web/guides/verify-google-id-token.

    Args:
        client_id: The client's id, which ends in `.apps.googleusercontent.com`; several for an app on several platforms.
        grants: See :class:`ExternalIssuer`. The tokens grant nothing, so None.
        hosted_domain: The `hd` that is required; None accepts every Google account.
        **options: See :class:`ExternalIssuer`.
    """

    def __init__(
        self,
        client_id: _Texts,
        *,
        grants: Grants,
        hosted_domain: str | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            _GOOGLE if hosted_domain is None else replace(_GOOGLE, fixed={"hd": hosted_domain}),
            "https://accounts.google.com",
            "accounts.google.com",
            audience=client_id,
            grants=grants,
            **options,
        )


def _is_keycloak_user(claims: Claims) -> bool:
    name = claims.get("preferred_username", "")
    is_service = isinstance(name, str) and name.startswith("service-account-")
    is_machine = is_service or "client_id" in claims or "clientHost" in claims
    return isinstance(claims.get("sid"), str) and not is_machine


_KEYCLOAK: Final = Preset(
    token="access",
    evidence="it belongs to a session (`sid`), and not to a service account",
    is_person=_is_keycloak_user,
    types=_JWT | {"at+jwt"},
    requires=("azp",),
    # Of an ID token and a refresh token it is something else. `nonce` is in the access tokens of some versions.
    fixed={"typ": "Bearer"},
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
        grants: See :class:`ExternalIssuer`; `"scope"`, or for the realm's roles
            `lambda claims: claims["realm_access"]["roles"]`.
        **options: See :class:`ExternalIssuer`.
    """

    def __init__(
        self, issuer: str, *, audience: _Texts, grants: Grants, **options: Unpack[Options]
    ) -> None:
        super().__init__(_KEYCLOAK, issuer, audience=audience, grants=grants, **options)


def _is_cognito_user(claims: Claims) -> bool:
    return isinstance(claims.get("username"), str) and claims["sub"] != claims["client_id"]


_COGNITO_ACCESS: Final = Preset(
    token="access",
    evidence="it has a user's name (`username`), and the subject is not the client",
    is_person=_is_cognito_user,
    audience="client_id",
    fixed={"token_use": "access"},
)
_COGNITO_ID: Final = Preset(
    token="id", evidence=_NONCE, is_person=_has_nonce, fixed={"token_use": "id"}
)


class Cognito(ExternalIssuer):
    """Tokens of an Amazon Cognito user pool: access tokens, or ID tokens.

    They differ in `token_use`. An access token has no audience, or that of a resource server: what is checked is the app client
    it was issued to (`client_id`). A person's has a `username`; one got with client credentials has none. An ID token has the
    `nonce` that a client sent to the sign-in pages; one that the SDK got has none.

    Written from
    https://docs.aws.amazon.com/cognito/latest/developerguide/amazon-cognito-user-pools-using-the-access-token.html.

    Args:
        user_pool: Such as `eu-central-1_Ab1`.
        client_id: The app client's id; several are possible.
        grants: See :class:`ExternalIssuer`; `"scope"` for access tokens, or `"cognito:groups"`.
        token: Which kind is accepted.
        **options: See :class:`ExternalIssuer`.
    """

    def __init__(
        self,
        user_pool: str,
        *,
        client_id: _Texts,
        grants: Grants,
        token: TokenKind = "access",
        **options: Unpack[Options],
    ) -> None:
        region, separator, _ = user_pool.partition("_")
        if not separator or _NAME.fullmatch(user_pool) is None:
            raise ConfigurationError(
                f"{user_pool!r} is not a user pool's id, such as eu-central-1_Ab1."
            )
        row = _of(token, access=_COGNITO_ACCESS, id_=_COGNITO_ID)
        name = f"https://cognito-idp.{region}.amazonaws.com/{user_pool}"
        super().__init__(row, name, audience=client_id, grants=grants, **options)


_SUPABASE: Final = Preset(
    token="session",
    evidence="the role is `authenticated`, and the user is not anonymous",
    is_person=lambda claims: (
        claims["role"] == "authenticated" and claims.get("is_anonymous") is False
    ),
    types=_JWT,
    requires=("role", "session_id"),
)


class Supabase(ExternalIssuer):
    """Access tokens of Supabase Auth, signed with one of the project's asymmetric signing keys.

    Tokens that are signed with the project's old shared secret are refused: every service that can verify those can also make
    them. All signed-in users have the audience `authenticated`; the project is in the issuer. Anonymous users are machines
    here. There is no `auth_time`.

    Written from https://supabase.com/docs/guides/auth/jwt-fields.

    Args:
        project: The project's reference, as in `https://<project>.supabase.co`.
        grants: See :class:`ExternalIssuer`. The tokens grant nothing unless a hook adds a claim, so None or that claim.
        audience: The audience of the tokens.
        **options: See :class:`ExternalIssuer`.
    """

    def __init__(
        self,
        project: str,
        *,
        grants: Grants,
        audience: _Texts = "authenticated",
        **options: Unpack[Options],
    ) -> None:
        name = f"https://{_checked_name(project)}.supabase.co/auth/v1"
        super().__init__(_SUPABASE, name, audience=audience, grants=grants, **options)


def _age_of_clerk(claims: Claims, issued_at: datetime) -> datetime | None:
    """When the first factor was verified, to the minute."""
    ages = claims.get("fva")
    if not isinstance(ages, list) or not ages:
        return None
    minutes: object = cast("list[object]", ages)[0]
    if type(minutes) is not int or not 0 <= minutes < 1_000_000:
        return None
    return issued_at - timedelta(minutes=minutes + 1)


_CLERK: Final = Preset(
    token="session",
    evidence="the subject is a user (`user_…`)",
    is_person=lambda claims: cast("str", claims["sub"]).startswith("user_"),
    types=_JWT,
    audience="azp",
    requires=("sid",),
    is_kind=lambda claims: claims.get("sts", "active") == "active",
    authenticated_at=_age_of_clerk,
    max_lifetime=timedelta(hours=1),
)


class Clerk(ExternalIssuer):
    """Session tokens of Clerk.

    They have no audience: what is checked is the origin they were made for (`azp`), and a token without one is refused. A
    session that is not complete yet (`sts: pending`) is refused. When an administrator acts as the user (`act`) it is a
    machine. The age of the login comes from `fva`, the minutes since the first factor was verified.

    Written from https://clerk.com/docs/backend-requests/resources/session-tokens.

    Args:
        domain: The Frontend API's host, such as `clerk.example.com`.
        authorized_parties: The origins of your pages, such as `https://example.com`.
        grants: See :class:`ExternalIssuer`; None, or a function that reads the organisation's permissions (`o`).
        **options: See :class:`ExternalIssuer`.
    """

    def __init__(
        self,
        domain: str,
        *,
        authorized_parties: _Texts,
        grants: Grants,
        **options: Unpack[Options],
    ) -> None:
        name = f"https://{_checked_host(domain)}"
        super().__init__(_CLERK, name, audience=authorized_parties, grants=grants, **options)


def _is_firebase_user(claims: Claims) -> bool:
    provider = cast("Mapping[str, object]", claims["firebase"]).get("sign_in_provider")
    return isinstance(provider, str) and provider not in {"", "anonymous", "custom"}


_FIREBASE: Final = Preset(
    token="session",
    evidence="`sign_in_provider` names how the user signed in, and is neither `anonymous` nor `custom`",
    is_person=_is_firebase_user,
    types=_JWT,
    is_kind=lambda claims: isinstance(claims.get("firebase"), dict) and "auth_time" in claims,
    max_lifetime=timedelta(hours=2),
)


class Firebase(ExternalIssuer):
    """ID tokens of Firebase Authentication.

    Anonymous users are machines, and so are those whom a backend signed in with a token of its own (`custom`): Firebase does not
    name the person. Session cookies have another issuer and are refused. Whether the user was disabled since is not checked:
    that takes a request to Firebase.

    Written from https://firebase.google.com/docs/reference/admin/node/firebase-admin.auth.decodedidtoken.

    Args:
        project: The project's id.
        grants: See :class:`ExternalIssuer`. The tokens grant nothing unless you set custom claims, so None or such a claim.
        **options: See :class:`ExternalIssuer`.
    """

    def __init__(self, project: str, *, grants: Grants, **options: Unpack[Options]) -> None:
        name = f"https://securetoken.google.com/{_checked_name(project)}"
        super().__init__(_FIREBASE, name, audience=project, grants=grants, **options)


_PINGONE: Final = Preset(
    token="access",
    evidence="it belongs to a session (`sid`)",
    is_person=lambda claims: isinstance(claims.get("sid"), str),
    types=frozenset({None, "jwt", "at+jwt"}),
    requires=("client_id",),
    is_kind=_is_unmarked,
)


class PingOne(ExternalIssuer):
    """Access tokens of a PingOne environment, for a resource.

    A token that was got with client credentials has no subject and is refused. A person's belongs to a session (`sid`). ID tokens
    are signed with the same keys; they name no `client_id` and are refused. There is no `auth_time`.

    Written from
    https://apidocs.pingidentity.com/pingone/main/v1/api/src/authentication-concepts/access-tokens-and-id-tokens/token-claims/.

    Args:
        issuer: Such as `https://auth.pingone.eu/<environment id>/as`.
        audience: The resource's audience.
        grants: See :class:`ExternalIssuer`; `"scope"`.
        **options: See :class:`ExternalIssuer`.
    """

    def __init__(
        self, issuer: str, *, audience: _Texts, grants: Grants, **options: Unpack[Options]
    ) -> None:
        super().__init__(_PINGONE, issuer, audience=audience, grants=grants, **options)


_CLOUDFLARE: Final = Preset(
    token="session",
    evidence="it has `identity_nonce`, of a login at your identity provider",
    is_person=lambda claims: _has(claims, "identity_nonce"),
    # The token of the whole team's session is `org`.
    fixed={"type": "app"},
    # A service token has an empty subject, and its client's id as its name.
    subject=lambda claims: text_claim(claims, "common_name" if claims.get("sub") == "" else "sub"),
    keys_path="/cdn-cgi/access/certs",
)


class CloudflareAccess(ExternalIssuer):
    """Application tokens of Cloudflare Access. They arrive in the header `Cf-Access-Jwt-Assertion`.

    A function of the adapter's `logins` reads that header: see the guide to identity providers. A service token is a machine.

    Written from https://developers.cloudflare.com/cloudflare-one/identity/authorization-cookie/application-token.

    Args:
        team: The team's domain, such as `acme.cloudflareaccess.com`.
        audience: The application's AUD tag.
        grants: See :class:`ExternalIssuer`. The tokens grant nothing, so None.
        **options: See :class:`ExternalIssuer`.
    """

    def __init__(
        self, team: str, *, audience: _Texts, grants: Grants, **options: Unpack[Options]
    ) -> None:
        name = f"https://{_checked_host(team)}"
        super().__init__(_CLOUDFLARE, name, audience=audience, grants=grants, **options)


_GITHUB: Final = Preset(
    token="job",
    types=_JWT,
    requires=("repository_id", "repository_owner", "repository_owner_id"),
    max_lifetime=timedelta(hours=1),
)


class GitHubActions(ExternalIssuer):
    """Tokens of GitHub Actions' jobs: never a person.

    Every workflow on GitHub can get one for your audience, so the owner of the repository is checked. The subject is a text
    that the owner can configure; decide by `identity.claims`, and by its ids (`repository_id`) rather than names, which are
    given to others when a repository is renamed. A pull request from a fork gets no token.

    Written from https://docs.github.com/en/actions/reference/security/oidc.

    Args:
        owner: The organisation or user whose repositories are accepted, by name or by id.
        audience: What the job requests: `core.getIDToken(audience)`.
        grants: See :class:`ExternalIssuer`. The tokens grant nothing, so None.
        **options: See :class:`ExternalIssuer`.
    """

    def __init__(
        self, owner: str, *, audience: _Texts, grants: Grants, **options: Unpack[Options]
    ) -> None:
        # A user's name may consist of digits, and an id is never a name of the same owner.
        claim = "repository_owner_id" if owner.isdigit() else "repository_owner"
        row = replace(_GITHUB, fixed={claim: _checked_name(owner)})
        name = "https://token.actions.githubusercontent.com"
        super().__init__(row, name, audience=audience, grants=grants, **options)


_BUILDKITE: Final = Preset(token="job", requires=("pipeline_slug", "job_id"))


class Buildkite(ExternalIssuer):
    """Tokens of Buildkite's jobs: never a person.

    Every organisation on Buildkite can get one for your audience, so the organisation is checked.

    Written from https://buildkite.com/docs/agent/v3/cli-oidc and
    https://buildkite.com/docs/apis/workload-identity-federation/buildkite-agents.

    Args:
        organisation: The organisation whose pipelines are accepted: its slug, or its UUID if the job requests the claim
            `organization_id`.
        audience: What the job requests: `buildkite-agent oidc request-token --audience …`.
        grants: See :class:`ExternalIssuer`. The tokens grant nothing, so None.
        **options: See :class:`ExternalIssuer`.
    """

    def __init__(
        self, organisation: str, *, audience: _Texts, grants: Grants, **options: Unpack[Options]
    ) -> None:
        is_id = _GUID.fullmatch(organisation) is not None
        claim = "organization_id" if is_id else "organization_slug"
        row = replace(_BUILDKITE, fixed={claim: _checked_name(organisation)})
        name = "https://agent.buildkite.com"
        super().__init__(row, name, audience=audience, grants=grants, **options)


_GITLAB: Final = Preset(
    token="job", types=_JWT, requires=("project_id", "project_path", "namespace_path")
)


class GitLabCI(ExternalIssuer):
    """ID tokens of GitLab's CI jobs (`id_tokens:`): never a person, although they name the user who started the job.

    Every project of the instance can get one for your audience, so the group is checked. Of a merge request from a fork the
    `project_` claims are the fork's.

    Written from https://docs.gitlab.com/ci/secrets/id_token_authentication/.

    Args:
        group: The group, with or without its subgroups' path, or the user, whose projects are accepted.
        audience: The `aud` in the job's configuration.
        grants: See :class:`ExternalIssuer`. The tokens grant nothing, so None.
        url: The instance.
        **options: See :class:`ExternalIssuer`.
    """

    def __init__(
        self,
        group: str,
        *,
        audience: _Texts,
        grants: Grants,
        url: str = "https://gitlab.com",
        **options: Unpack[Options],
    ) -> None:
        self.group: str = group.strip("/")
        if not self.group:
            raise ConfigurationError("Give the group whose projects are accepted, such as 'acme'.")
        super().__init__(_GITLAB, url, audience=audience, grants=grants, **options)
        self.selects: tuple[object, ...] = (*self.selects, self.group)

    def check_kind(self, header: Mapping[str, object], claims: Claims) -> None:
        """See :class:`ExternalIssuer`."""
        if not f"{claims['namespace_path']}/".startswith(f"{self.group}/"):
            raise TokenInvalid


_KUBERNETES: Final = Preset(
    token="job",
    requires=("sub",),
    is_kind=lambda claims: (
        isinstance(claims.get("kubernetes.io"), dict)
        and cast("str", claims["sub"]).startswith("system:serviceaccount:")
    ),
)


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
        grants: See :class:`ExternalIssuer`. The tokens grant nothing, so None.
        **options: See :class:`ExternalIssuer`.
    """

    def __init__(
        self, issuer: str, *, audience: _Texts, grants: Grants, **options: Unpack[Options]
    ) -> None:
        super().__init__(_KUBERNETES, issuer, audience=audience, grants=grants, **options)


def _of(token: TokenKind, *, access: Preset, id_: Preset) -> Preset:
    if token not in {"access", "id"}:
        raise ConfigurationError(f"token must be 'access' or 'id', not {token!r}.")
    return access if token == "access" else id_


def _checked_host(domain: str) -> str:
    if _HOST.fullmatch(domain) is None:
        raise ConfigurationError(f"{domain!r} is not a domain, such as tenant.eu.auth0.com.")
    return domain


def _checked_name(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise ConfigurationError(f"{name!r} is not a name of 0-9A-Za-z_- as the provider gives.")
    return name
