"""The identity providers whose tokens are accepted: a table with a row for each, as strict as the provider allows.

`issuers.ExternalIssuer` checks every token; a row has the provider's differences. `docs/reference/api/tokens.md` explains each row,
with its sources.

The `auth_time` of a token is the time of the login; without it the age is unknown, which fails every `max_age`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Final, Literal, NamedTuple, cast

from .claims import Claims, Rule, moment, text


def never(_claims: Claims) -> bool:
    """No token."""
    return False


def _auth_time(claims: Claims, _issued_at: datetime) -> datetime | None:
    return moment(claims, "auth_time") if "auth_time" in claims else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """A kind of token: how it is recognised, and which tokens are a person's login.

    Attributes:
        kind: The name of the kind. Session and job tokens are access tokens in the provider's own format.
        is_person: Returns True for the claims of a person's login, unless the application has a rule. None: no token is ever
            a person's login, and the application cannot have a rule.
        types: The accepted values of the header's `typ`, in lower case; None among them means that it may be absent.
        kind_types: The values of `typ` that identify the kind: for other values `is_kind` decides.
        audience: The claim that names this application. Only `aud` may be an array.
        requires: Claims that must be present, as text.
        fixed: Claims that must have exactly this text.
        is_kind: Returns True if the claims are of this kind.
        subject: Returns the subject: an id that the issuer never gives to another person.
        authenticated_at: Returns the time when the person logged in, given the claims and `iat`; None if the token does not state
            it.
        max_lifetime: The longest time from `iat` to `exp`, unless the application sets another.
    """

    kind: Literal["access", "id", "session", "job", "logout"]
    is_person: Rule | None = None
    types: frozenset[str | None] = frozenset({None, "jwt"})
    kind_types: frozenset[str] = frozenset()
    audience: str = "aud"
    requires: tuple[str, ...] = ()
    fixed: Mapping[str, str] = field(default_factory=dict[str, str])
    is_kind: Rule = lambda _claims: True
    subject: Callable[[Claims], str] = lambda claims: text(claims, "sub")
    authenticated_at: Callable[[Claims, datetime], datetime | None] = _auth_time
    max_lifetime: timedelta = timedelta(hours=24)


class TenantForm(NamedTuple):
    """The format of a tenant: a pattern, and its description in an error."""

    pattern: str
    words: str


_URL: Final = TenantForm(r".+", "the issuer's URL")


class Row:
    """A provider.

    Args:
        tokens: The kinds of tokens. The first is accepted unless the application names another kind.
        issuers: The `iss` values of its tokens, with `{}` for the tenant and `{name}` for a group of the tenant's pattern. All
            are the same issuer; identities and the address of the keys use the first value.
        tenant: The format of a tenant.
        is_of_tenant: Returns True if the claims name the tenant, if the issuer does not.
        keys_path: The path of the keys below the issuer; empty means by discovery.
    """

    def __init__(
        self,
        *tokens: TokenRules,
        issuers: tuple[str, ...] = ("{}",),
        tenant: TenantForm = _URL,
        is_of_tenant: Callable[[Claims, str], bool] = lambda _claims, _tenant: True,
        keys_path: str = "",
    ) -> None:
        self.tokens: Final = tokens
        self.issuers: Final = issuers
        self.tenant: Final = tenant
        self.is_of_tenant: Final = is_of_tenant
        self.keys_path: Final = keys_path


_GUID: Final = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_DOMAIN: Final = TenantForm(
    r"[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)+(:[0-9]{1,5})?", "a domain, such as tenant.eu.auth0.com"
)
_NAME: Final = TenantForm(r"[0-9A-Za-z_-]+", "a name of 0-9A-Za-z_-, as the provider gives")

_JWT: Final = frozenset({"jwt"})
_AT_JWT: Final = frozenset({"at+jwt", "application/at+jwt"})
# Claims that only ID tokens have (OpenID Connect Core, sections 2 and 3.3.2.11), and those that only access tokens have (RFC
# 9068, section 2.2.3, and Okta's).
_ID_CLAIMS: Final = frozenset({"nonce", "at_hash", "c_hash", "s_hash"})
_ACCESS_CLAIMS: Final = frozenset({"scope", "scp", "cid"})


def _has(claims: Claims, name: str) -> bool:
    value = claims.get(name)
    return isinstance(value, str) and value != ""


def _has_nonce(claims: Claims) -> bool:
    """A client sends a nonce with the browser to the provider, so no other grant has it (OpenID Connect Core, section 3.1.2.1)."""
    return _has(claims, "nonce")


def _has_session(claims: Claims) -> bool:
    return isinstance(claims.get("sid"), str)


def _is_unmarked(claims: Claims) -> bool:
    """No claim marks the token as an ID token."""
    return _ID_CLAIMS.isdisjoint(claims)


def _is_id_token(claims: Claims) -> bool:
    """No claim marks the token as an access token. `client_id` does not: clients ignore unknown claims (Core, section 2)."""
    return _ACCESS_CLAIMS.isdisjoint(claims)


def _is_access_token(claims: Claims) -> bool:
    return not _is_id_token(claims) or _is_unmarked(claims)


def _is_access_token_of_auth0(claims: Claims) -> bool:
    return _is_unmarked(claims) and _has(claims, "azp" if "azp" in claims else "client_id")


def _is_user_of_auth0(claims: Claims) -> bool:
    subject = cast("str", claims["sub"])
    is_program = subject.endswith("@clients") or claims.get("gty") == "client-credentials"
    return "|" in subject and not is_program


def _is_user_of_entra(claims: Claims) -> bool:
    return _has(claims, "scp") and claims.get("idtyp", "user") == "user"


def _is_id_token_of_entra(claims: Claims) -> bool:
    return _is_id_token(claims) and claims.keys().isdisjoint({"azp", "azpacr"})


def _is_access_token_of_okta(claims: Claims) -> bool:
    return _is_unmarked(claims) and cast("str", claims["jti"]).startswith("AT.")


def _is_user_of_okta(claims: Claims) -> bool:
    return isinstance(claims.get("uid"), str) and claims["sub"] != claims["cid"]


def _is_id_token_of_okta(claims: Claims) -> bool:
    return _is_id_token(claims) and cast("str", claims["jti"]).startswith("ID.")


def _is_user_of_google(claims: Claims) -> bool:
    party, email = claims.get("azp"), claims.get("email", "")
    return (
        _has_nonce(claims)
        and isinstance(party, str)
        and party.endswith(".apps.googleusercontent.com")
        and isinstance(email, str)
        and not email.endswith(".gserviceaccount.com")
    )


def _is_user_of_keycloak(claims: Claims) -> bool:
    name = claims.get("preferred_username")
    is_service = isinstance(name, str) and name.startswith("service-account-")
    is_machine = is_service or "client_id" in claims or "clientHost" in claims
    return _has_session(claims) and not is_machine


def _is_user_of_cognito(claims: Claims) -> bool:
    return isinstance(claims.get("username"), str) and claims["sub"] != claims["client_id"]


def _is_user_of_supabase(claims: Claims) -> bool:
    return claims["role"] == "authenticated" and claims.get("is_anonymous") is False


def _login_at_clerk(claims: Claims, issued_at: datetime) -> datetime | None:
    """The time when the first factor was verified, to the minute."""
    ages = claims.get("fva")
    minutes = cast("list[object]", ages)[0] if isinstance(ages, list) and ages else None
    if type(minutes) is not int or not 0 <= minutes < 1_000_000:
        return None
    return issued_at - timedelta(minutes=minutes + 1)


def _is_token_of_firebase(claims: Claims) -> bool:
    return isinstance(claims.get("firebase"), dict) and "auth_time" in claims


def _is_user_of_firebase(claims: Claims) -> bool:
    provider = cast("Mapping[str, object]", claims["firebase"]).get("sign_in_provider")
    return isinstance(provider, str) and provider not in {"", "anonymous", "custom"}


def _is_of_owner_at_github(claims: Claims, tenant: str) -> bool:
    # A user's name may consist of digits, and an id is never a name of the same owner.
    return claims.get("repository_owner_id" if tenant.isdigit() else "repository_owner") == tenant


def _is_of_organisation_at_buildkite(claims: Claims, tenant: str) -> bool:
    is_id = re.fullmatch(_GUID, tenant) is not None
    return claims.get("organization_id" if is_id else "organization_slug") == tenant


def _is_of_group_at_gitlab(claims: Claims, tenant: str) -> bool:
    return f"{text(claims, 'namespace_path')}/".startswith(f"{tenant}/")


def _is_token_of_kubernetes(claims: Claims) -> bool:
    is_account = cast("str", claims["sub"]).startswith("system:serviceaccount:")
    return isinstance(claims.get("kubernetes.io"), dict) and is_account


class Provider(Enum):
    """An identity provider; `OIDC` is for every other provider with a discovery document, or with a key set that you pass."""

    OIDC = Row(
        TokenRules(
            kind="access",
            is_person=never,
            types=frozenset({None}) | _JWT | _AT_JWT,
            kind_types=_AT_JWT,
            is_kind=_is_access_token,
        ),
        TokenRules(kind="id", is_person=_has_nonce, is_kind=_is_id_token),
    )
    AUTH0 = Row(
        TokenRules(
            kind="access",
            is_person=_is_user_of_auth0,
            types=_JWT | {"at+jwt"},
            is_kind=_is_access_token_of_auth0,
        ),
        issuers=("https://{}/",),
        tenant=_DOMAIN,
    )
    ENTRA = Row(
        # With continuous access evaluation a token lives for up to 28 hours.
        TokenRules(
            kind="access",
            is_person=_is_user_of_entra,
            types=_JWT,
            requires=("azp", "azpacr"),
            fixed={"ver": "2.0"},
            is_kind=_is_unmarked,
            max_lifetime=timedelta(hours=29),
        ),
        TokenRules(
            kind="id",
            is_person=_has_nonce,
            types=_JWT,
            fixed={"ver": "2.0"},
            is_kind=_is_id_token_of_entra,
            max_lifetime=timedelta(hours=29),
        ),
        issuers=("https://login.microsoftonline.com/{}/v2.0",),
        tenant=TenantForm(
            _GUID, "a tenant's id. Give the GUID: users of any tenant may log in at 'common'"
        ),
        is_of_tenant=lambda claims, tenant: claims.get("tid") == tenant,
    )
    OKTA = Row(
        TokenRules(
            kind="access",
            is_person=_is_user_of_okta,
            types=frozenset({None, "jwt", "application/okta-internal-at+jwt"}),
            requires=("jti", "cid"),
            is_kind=_is_access_token_of_okta,
            # `sub` is the login name, which an administrator can give to another person.
            subject=lambda claims: text(claims, "uid" if "uid" in claims else "sub"),
        ),
        TokenRules(
            kind="id", is_person=_has_nonce, requires=("jti",), is_kind=_is_id_token_of_okta
        ),
    )
    GOOGLE = Row(
        TokenRules(
            kind="id",
            is_person=_is_user_of_google,
            types=_JWT,
            is_kind=_is_id_token,
            max_lifetime=timedelta(hours=2),
        ),
        issuers=("https://accounts.google.com", "accounts.google.com"),
        tenant=TenantForm("", "empty. Name a Workspace domain with required={'hd': …}"),
    )
    KEYCLOAK = Row(
        TokenRules(
            kind="access",
            is_person=_is_user_of_keycloak,
            types=_JWT | {"at+jwt"},
            requires=("azp",),
            # `nonce` is in the access tokens of some versions.
            fixed={"typ": "Bearer"},
        ),
    )
    COGNITO = Row(
        TokenRules(
            kind="access",
            is_person=_is_user_of_cognito,
            audience="client_id",
            fixed={"token_use": "access"},
        ),
        TokenRules(kind="id", is_person=_has_nonce, fixed={"token_use": "id"}),
        issuers=("https://cognito-idp.{region}.amazonaws.com/{}",),
        tenant=TenantForm(
            r"(?P<region>[0-9A-Za-z-]+)_[0-9A-Za-z_-]+",
            "a user pool's id, such as eu-central-1_Ab1",
        ),
    )
    SUPABASE = Row(
        TokenRules(
            kind="session",
            is_person=_is_user_of_supabase,
            types=_JWT,
            requires=("role", "session_id"),
        ),
        issuers=("https://{}.supabase.co/auth/v1",),
        tenant=_NAME,
    )
    CLERK = Row(
        TokenRules(
            kind="session",
            is_person=lambda claims: cast("str", claims["sub"]).startswith("user_"),
            types=_JWT,
            audience="azp",
            requires=("sid",),
            is_kind=lambda claims: claims.get("sts", "active") == "active",
            authenticated_at=_login_at_clerk,
            max_lifetime=timedelta(hours=1),
        ),
        issuers=("https://{}",),
        tenant=_DOMAIN,
    )
    FIREBASE = Row(
        TokenRules(
            kind="session",
            is_person=_is_user_of_firebase,
            types=_JWT,
            is_kind=_is_token_of_firebase,
            max_lifetime=timedelta(hours=2),
        ),
        issuers=("https://securetoken.google.com/{}",),
        tenant=_NAME,
    )
    PINGONE = Row(
        TokenRules(
            kind="access",
            is_person=_has_session,
            types=frozenset({None, "jwt", "at+jwt"}),
            requires=("client_id",),
            is_kind=_is_unmarked,
        ),
    )
    CLOUDFLARE_ACCESS = Row(
        TokenRules(
            kind="session",
            is_person=lambda claims: _has(claims, "identity_nonce"),
            # The token of the whole team's session is `org`.
            fixed={"type": "app"},
            # A service token has an empty subject, and its client's id as its name.
            subject=lambda claims: text(claims, "sub" if claims.get("sub") else "common_name"),
        ),
        issuers=("https://{}",),
        tenant=_DOMAIN,
        keys_path="/cdn-cgi/access/certs",
    )
    GITHUB_ACTIONS = Row(
        TokenRules(
            kind="job",
            types=_JWT,
            requires=("repository_id", "repository_owner", "repository_owner_id"),
            max_lifetime=timedelta(hours=1),
        ),
        issuers=("https://token.actions.githubusercontent.com",),
        tenant=_NAME,
        is_of_tenant=_is_of_owner_at_github,
    )
    BUILDKITE = Row(
        TokenRules(kind="job", requires=("pipeline_slug", "job_id")),
        issuers=("https://agent.buildkite.com",),
        tenant=_NAME,
        is_of_tenant=_is_of_organisation_at_buildkite,
    )
    GITLAB_CI = Row(
        TokenRules(kind="job", types=_JWT, requires=("project_id", "project_path")),
        issuers=("https://gitlab.com",),
        tenant=TenantForm(r"[^/]+(/[^/]+)*", "a group's path, such as 'acme' or 'acme/web'"),
        is_of_tenant=_is_of_group_at_gitlab,
    )
    KUBERNETES = Row(
        TokenRules(kind="job", requires=("sub",), is_kind=_is_token_of_kubernetes),
    )


SHARED: Final = {
    name: provider for provider in Provider for name in provider.value.issuers if "{" not in name
}
"""The issuers that serve every customer of a provider: each customer can get a token for any audience."""
