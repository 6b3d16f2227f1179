"""Tokens in the shapes that providers document, signed by keys made for the tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import get_default_algorithms
from tests.core.support import NOW, b64
from tests.tokens.provider import public_jwk

from msk_auth.tokens.issuers import ExternalIssuer, PinnedKeySet, Provider, TokenRules

T = int(NOW.timestamp())
TENANT = "72f988bf-86f1-41af-91ab-2d7cd011db47"
GOOGLE_CLIENT = "1008719970978-hb24n2ds.apps.googleusercontent.com"
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
B2C = "https://acme.b2clogin.com/775527ff-9a37-4307-8b3d-cc311f58d925/v2.0/"
PINGONE = "https://auth.pingone.eu/5f2c1b7e-96d1-4d2b-8f1c-3c7d2f0b9a11/as"


def jwks(kid: str, algorithm: str) -> dict[str, Any]:
    key = RSA_KEY if algorithm == "RS256" else EC_KEY
    return {"keys": [{**public_jwk(key), "kid": kid, "use": "sig"}]}


def sign(header: Mapping[str, object] | str, claims: Mapping[str, object] | str) -> str:
    """A token of any header and claims, as objects or as raw JSON, with a right signature of the header's algorithm."""
    parts = [part if isinstance(part, str) else json.dumps(part) for part in (header, claims)]
    message = ".".join(b64(part.encode("utf-8", "surrogatepass")) for part in parts)
    algorithm = header.get("alg") if isinstance(header, Mapping) else "RS256"
    is_elliptic = algorithm == "ES256"
    return f"{message}.{_signature(message, is_elliptic=is_elliptic)}"


@cache
def _signature(message: str, *, is_elliptic: bool) -> str:
    """Made once for the tests that send one token to several issuers: it takes longer than verifying."""
    scheme = get_default_algorithms()["ES256" if is_elliptic else "RS256"]
    return b64(scheme.sign(message.encode(), EC_KEY if is_elliptic else RSA_KEY))


@dataclass(frozen=True)
class Shape:
    """One documented token.

    Attributes:
        make: Makes the issuer with a key set.
        header: As documented.
        claims: As documented.
        interactive: Whether a person logged in for it.
        audience: The claim that names this application.
    """

    make: Callable[..., ExternalIssuer]
    header: dict[str, object]
    claims: dict[str, object]
    interactive: bool
    audience: str = "aud"

    @cached_property
    def issuer(self) -> ExternalIssuer:
        return self.made()

    def made(self, **options: Any) -> ExternalIssuer:
        kid, algorithm = str(self.header["kid"]), str(self.header["alg"])
        settings: dict[str, Any] = {"keys": PinnedKeySet(jwks(kid, algorithm)), "grants": None}
        return self.make(**{**settings, **options})

    def token(self, *, header: Mapping[str, object] | None = None, **changes: object) -> str:
        """The token but for some claims; None leaves one out."""
        claims = {**self.claims, **changes}
        return sign(
            {**self.header, **(header or {})},
            {name: value for name, value in claims.items() if value is not None},
        )


def at(provider: Provider, tenant: str = "", **options: Any) -> Callable[..., ExternalIssuer]:
    return partial(ExternalIssuer, provider, tenant, **options)


def shape(
    make: Callable[..., ExternalIssuer],
    header: dict[str, object],
    claims: dict[str, object],
    *,
    interactive: bool = True,
    audience: str = "aud",
    lifetime: int = 3600,
) -> Shape:
    times = {"iat": T, "exp": T + lifetime}
    kid = {"alg": "RS256", "kid": "NjVBRjY5MDlCMUIwNzU4RTA2QzZFMDQ4"}
    return Shape(make, {**kid, **header}, {**times, **claims}, interactive, audience)


JWT: dict[str, object] = {"typ": "JWT"}


# The rules of the guide for providers whose tokens `Provider.OIDC` takes for machines'.


def has_nonce(claims: Mapping[str, object]) -> bool:
    return isinstance(claims.get("nonce"), str)


def is_session_of_workos(claims: Mapping[str, object]) -> bool:
    return str(claims.get("sid")).startswith("session_")


def is_session_of_descope(claims: Mapping[str, object]) -> bool:
    return str(claims["sub"]).startswith("U") and bool(claims.get("amr"))


def is_user_of_iap(claims: Mapping[str, object]) -> bool:
    return not str(claims["email"]).endswith(".gserviceaccount.com")


SHAPES: dict[str, Shape] = {
    "Auth0": shape(
        at(Provider.AUTH0, "my-domain.auth0.com", audience="https://example.com/health-api"),
        JWT,
        {
            "iss": "https://my-domain.auth0.com/",
            "sub": "auth0|123456",
            "aud": ["https://example.com/health-api", "https://my-domain.auth0.com/userinfo"],
            "azp": "my_client_id",
            "scope": "openid profile read:patients read:admin",
        },
        lifetime=86_400,
    ),
    "Auth0, RFC 9068": shape(
        at(Provider.AUTH0, "rfc.eu.auth0.com", audience="https://example.com/health-api"),
        {"typ": "at+jwt"},
        {
            "iss": "https://rfc.eu.auth0.com/",
            "sub": "google-oauth2|104386",
            "aud": "https://example.com/health-api",
            "client_id": "my_client_id",
            "jti": "73WakrfVbNJBaAmhQtEeDv",
            "scope": "openid profile",
        },
    ),
    "Entra, access": shape(
        at(Provider.ENTRA, TENANT, audience="6e74172b-be56-4843-9ff4-e66a39bb12e3"),
        JWT,
        {
            "aud": "6e74172b-be56-4843-9ff4-e66a39bb12e3",
            "iss": f"https://login.microsoftonline.com/{TENANT}/v2.0",
            "nbf": T,
            "aio": "AXQAi/8IAAAA",
            "azp": "6e74172b-be56-4843-9ff4-e66a39bb12e4",
            "azpacr": "0",
            "name": "Abe Lincoln",
            "oid": "690222be-ff1a-4d56-abd1-7e4f7d38e474",
            "preferred_username": "abeli@microsoft.com",
            "rh": "I",
            "scp": "access_as_user",
            "sub": "HKZpfaHyWadeOouYlitjrI-KffTm222X5rrV3xDqfKQ",
            "tid": TENANT,
            "uti": "fqiBqXLPj0eQa82S-IYFAA",
            "ver": "2.0",
        },
    ),
    "Entra, ID": shape(
        at(Provider.ENTRA, TENANT, audience="6cb04018-a3f5-46a7-b995-940c78f5aef3", token="id"),
        JWT,
        {
            "ver": "2.0",
            "iss": f"https://login.microsoftonline.com/{TENANT}/v2.0",
            "sub": "AAAAAAAAAAAAAAAAAAAAAIkzqFVrSaSaFHy782bbtaQ",
            "aud": "6cb04018-a3f5-46a7-b995-940c78f5aef3",
            "nbf": T,
            "name": "Abe Lincoln",
            "preferred_username": "AbeLi@microsoft.com",
            "oid": "00000000-0000-0000-66f3-3332eca7ea81",
            "tid": TENANT,
            "nonce": "123523",
        },
    ),
    "Okta, access": shape(
        at(Provider.OKTA, "https://org.okta.com/oauth2/default", audience="api://default"),
        {},
        {
            "ver": 1,
            "jti": "AT.0mP4JKAZX1iACIT4vbEDF7LpvDVjxypPMf0D7uX39RE",
            "iss": "https://org.okta.com/oauth2/default",
            "aud": "api://default",
            "sub": "ann@example.com",
            "cid": "nmdP1fcyvdVO11AL7ECm",
            "uid": "00ujmkLgagxeRrAg20g3",
            "scp": ["openid", "email"],
            "auth_time": T - 600,
        },
    ),
    "Okta, ID": shape(
        at(
            Provider.OKTA,
            "https://org.okta.com/oauth2/default",
            audience="uAaunofWkaDJxukCFeBx",
            token="id",
        ),
        {},
        {
            "ver": 1,
            "sub": "00uid4BxXw6I6TV4m0g3",
            "iss": "https://org.okta.com/oauth2/default",
            "aud": "uAaunofWkaDJxukCFeBx",
            "jti": "ID.4eAWJOCMB3SX8XewDfVR",
            "amr": ["pwd"],
            "idp": "00ok1u7AsAkrwdZL3z0g3",
            "nonce": "n",
            "preferred_username": "ann@example.com",
            "auth_time": T - 600,
            "at_hash": "cpqKfdQA5eH891Ff5oJr_Q",
        },
    ),
    "Google": shape(
        at(Provider.GOOGLE, audience=GOOGLE_CLIENT),
        JWT,
        {
            "iss": "https://accounts.google.com",
            "sub": "110169484474386276334",
            "azp": GOOGLE_CLIENT,
            "aud": GOOGLE_CLIENT,
            "email": "ann@example.com",
            "email_verified": True,
            "hd": "example.com",
            "nonce": "n-0S6_WzA2Mj",
        },
    ),
    "Keycloak": shape(
        at(Provider.KEYCLOAK, "https://sso.example.com/realms/acme", audience="tasks"),
        JWT,
        {
            "auth_time": T - 60,
            "jti": "d58f5dc8-fd8f-462b-8a19-716f8f83985b",
            "iss": "https://sso.example.com/realms/acme",
            "aud": ["tasks", "account"],
            "sub": "36fa0f91-f94d-4a0c-afed-6b7d952e47da",
            "typ": "Bearer",
            "azp": "web",
            "acr": "1",
            "allowed-origins": ["https://web.example.com"],
            "realm_access": {"roles": ["offline_access", "uma_authorization"]},
            "scope": "openid email profile",
            "sid": "2a88c258-f73a-4103-b862-e1fbd8f4e04e",
            "preferred_username": "ann",
        },
        lifetime=300,
    ),
    "Keycloak, at+jwt": shape(
        at(Provider.KEYCLOAK, "https://sso.example.com/realms/other", audience="tasks"),
        {"typ": "at+jwt"},
        {
            "jti": "onrtac:5e1e3c2c",
            "iss": "https://sso.example.com/realms/other",
            "aud": "tasks",
            "sub": "f1e2",
            "typ": "Bearer",
            "azp": "web",
            "sid": "2a88",
        },
        lifetime=300,
    ),
    "Cognito, access": shape(
        at(Provider.COGNITO, "us-east-1_example", audience="xxxxxxxxxxxxexample"),
        {"kid": "1234example="},
        {
            "sub": "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee",
            "device_key": "us-east-1_aaaaaaaa",
            "cognito:groups": ["admin"],
            "token_use": "access",
            "scope": "aws.cognito.signin.user.admin",
            "auth_time": T - 60,
            "iss": "https://cognito-idp.us-east-1.amazonaws.com/us-east-1_example",
            "jti": "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee",
            "client_id": "xxxxxxxxxxxxexample",
            "username": "janedoe",
        },
        audience="client_id",
    ),
    "Cognito, ID": shape(
        at(Provider.COGNITO, "us-east-1_example", audience="xxxxxxxxxxxxexample", token="id"),
        {"kid": "5678example="},
        {
            "sub": "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee",
            "email_verified": True,
            "iss": "https://cognito-idp.us-east-1.amazonaws.com/us-east-1_example",
            "cognito:username": "janedoe",
            "aud": "xxxxxxxxxxxxexample",
            "token_use": "id",
            "auth_time": T - 60,
            "nonce": "n-0S6_WzA2Mj",
        },
    ),
    "Supabase": shape(
        at(Provider.SUPABASE, "abcdefghijklmnopqrst", audience="authenticated"),
        {"alg": "ES256", **JWT},
        {
            "aal": "aal1",
            "amr": [{"method": "password", "timestamp": T - 60}],
            "app_metadata": {"provider": "email"},
            "aud": "authenticated",
            "email": "ann@example.com",
            "is_anonymous": False,
            "iss": "https://abcdefghijklmnopqrst.supabase.co/auth/v1",
            "phone": "",
            "role": "authenticated",
            "session_id": "5b59a9b6-71d2-4a9e-8b4b-7f2c9d1b8e11",
            "sub": "123e4567-e89b-12d3-a456-426614174000",
        },
    ),
    "Clerk": shape(
        at(Provider.CLERK, "clerk.your-site.com", audience="https://example.com"),
        {"cat": "cl_B7d4PD111AAA", "kid": "ins_2GIoQhbUpy0hX7B2cVkuTMinXoD", **JWT},
        {
            "azp": "https://example.com",
            "fva": [7, -1],
            "iss": "https://clerk.your-site.com",
            "nbf": T - 10,
            "sid": "sess_123",
            "sts": "active",
            "sub": "user_123",
            "v": 2,
        },
        audience="azp",
        lifetime=60,
    ),
    "Firebase": shape(
        at(Provider.FIREBASE, "my-project", audience="my-project"),
        JWT,
        {
            "iss": "https://securetoken.google.com/my-project",
            "aud": "my-project",
            "auth_time": T - 60,
            "user_id": "uid1",
            "sub": "uid1",
            "email": "ann@example.com",
            "email_verified": False,
            "firebase": {
                "identities": {"email": ["ann@example.com"]},
                "sign_in_provider": "password",
            },
        },
    ),
    "PingOne": shape(
        at(Provider.PINGONE, PINGONE, audience="https://api.example.com"),
        {},
        {
            "client_id": "3b8c6f21",
            "iss": PINGONE,
            "aud": ["https://api.example.com"],
            "scope": "openid read",
            "sub": "8f2a5a0e",
            "sid": "f4e1c7d2",
        },
    ),
    "GitHub Actions": shape(
        at(Provider.GITHUB_ACTIONS, "octo-org", audience="https://api.example.com"),
        {"x5t": "example-thumbprint", "kid": "example-key-id", **JWT},
        {
            "jti": "example-id",
            "sub": "repo:octo-org/octo-repo:environment:prod",
            "environment": "prod",
            "aud": "https://api.example.com",
            "ref": "refs/heads/main",
            "repository": "octo-org/octo-repo",
            "repository_owner": "octo-org",
            "actor_id": "12",
            "repository_id": "74",
            "repository_owner_id": "65",
            "event_name": "workflow_dispatch",
            "job_workflow_ref": "octo-org/octo-automation/.github/workflows/oidc.yml@refs/heads/main",
            "iss": "https://token.actions.githubusercontent.com",
            "nbf": T - 600,
        },
        interactive=False,
        lifetime=300,
    ),
    "GitLab CI": shape(
        at(Provider.GITLAB_CI, "my-group", audience="https://api.example.com"),
        JWT,
        {
            "namespace_id": "72",
            "namespace_path": "my-group",
            "project_id": "20",
            "project_path": "my-group/my-project",
            "user_id": "1",
            "user_login": "sample-user",
            "pipeline_source": "push",
            "ref": "feature-branch-1",
            "ref_protected": "false",
            "jti": "235b3a54-b797-45c7-ae9a-f72d7bc6ef5b",
            "iss": "https://gitlab.com",
            "nbf": T - 5,
            "sub": "project_path:my-group/my-project:ref_type:branch:ref:feature-branch-1",
            "aud": "https://api.example.com",
        },
        interactive=False,
    ),
    "Kubernetes": shape(
        at(
            Provider.KUBERNETES,
            "https://kubernetes.default.svc.cluster.local",
            audience="https://api.example.com",
        ),
        {},
        {
            "aud": ["https://api.example.com"],
            "iss": "https://kubernetes.default.svc.cluster.local",
            "jti": "e51f1fbc-4733-4b85-a59f-ba80c0523874",
            "kubernetes.io": {
                "namespace": "default",
                "pod": {"name": "shell", "uid": "0d8b260e-ef0e-45fb-be8e-ff44f97722e8"},
                "serviceaccount": {"name": "default", "uid": "e6a8680e"},
                "warnafter": T + 3000,
            },
            "nbf": T,
            "sub": "system:serviceaccount:default:default",
        },
        interactive=False,
    ),
    "OIDC, access": shape(
        at(Provider.OIDC, "https://login.example", audience="https://api.example.com"),
        {"typ": "at+jwt"},
        {
            "iss": "https://login.example",
            "aud": "https://api.example.com",
            "sub": "5ba552d67",
            "client_id": "s6BhdRkqt3",
            "jti": "dbe39bf3a3ba4238a513f51d6e1691c4",
            "scope": "openid profile reademail",
            "auth_time": T - 60.5,
        },
        interactive=False,
    ),
    "OIDC, ID": shape(
        at(Provider.OIDC, "https://id.example", audience="s6BhdRkqt3", token="id"),
        {},
        {
            "iss": "https://id.example",
            "sub": "24400320",
            "aud": "s6BhdRkqt3",
            "nonce": "n-0S6_WzA2Mj",
            "auth_time": T - 60,
            "acr": "urn:mace:incommon:iap:silver",
        },
    ),
    # Providers without a row of their own: the arguments that the guide has for them.
    "Zitadel, access": shape(
        at(
            Provider.OIDC,
            "https://acme.zitadel.cloud",
            audience="165461388636585985",
            token=TokenRules(kind="access", requires=("jti",)),
        ),
        JWT,
        {
            "iss": "https://acme.zitadel.cloud",
            "sub": "165460784409546753",
            "aud": ["165472391399309313", "165461388636585985"],
            "client_id": "165472391399309313",
            "jti": "V2_276500000000000001-at_276500000000000002",
            "nbf": T,
            "urn:zitadel:iam:org:project:roles": {
                "tasks:read": {"165460784409546700": "acme.zitadel.cloud"}
            },
        },
        interactive=False,
        lifetime=43_200,
    ),
    "Zitadel, ID": shape(
        at(
            Provider.OIDC,
            "https://acme.zitadel.cloud",
            audience="165472391399309313",
            token=TokenRules(
                kind="id",
                is_person=has_nonce,
                is_kind=lambda claims: claims.keys().isdisjoint({"jti", "scope", "scp", "cid"}),
            ),
        ),
        JWT,
        {
            "iss": "https://acme.zitadel.cloud",
            "sub": "165460784409546753",
            "aud": ["165472391399309313", "165461388636585985"],
            "azp": "165472391399309313",
            "client_id": "165472391399309313",
            "auth_time": T - 60,
            "amr": ["pwd"],
            "at_hash": "eGDxpnaLvgAPzyo_vpIz2w",
            "nonce": "n-0S6_WzA2Mj",
            "sid": "V1_276500000000000003",
        },
        lifetime=43_200,
    ),
    "Hydra, access": shape(
        at(Provider.OIDC, "https://hydra.example.com/", audience="https://api.example.com"),
        JWT,
        {
            "aud": ["https://api.example.com"],
            "client_id": "e1bd5be0-7a3a-4b2b-8f0f-9d2f0b1c2d3e",
            "ext": {},
            "iss": "https://hydra.example.com/",
            "jti": "c7e1d1b2-5b1f-4f5c-9c39-6a4b7f0c1a2b",
            "nbf": T,
            "scp": ["tasks:read", "offline"],
            "sub": "foo@bar.com",
        },
        interactive=False,
    ),
    "Hydra, ID": shape(
        at(Provider.OIDC, "https://hydra.example.com/", audience="e1bd5be0", token="id"),
        JWT,
        {
            "acr": "0",
            "at_hash": "E5zBqYVC8oDh5v6s2kAvpg",
            "aud": ["e1bd5be0"],
            "auth_time": T - 60,
            "iss": "https://hydra.example.com/",
            "jti": "4d8c5a8b-6f9c-4e67-8d6d-7f4b6c5d4e3f",
            "nonce": "n-0S6_WzA2Mj",
            "rat": T - 61,
            "sid": "a3d5c2b1-0f9e-4d8c-b7a6-5f4e3d2c1b0a",
            "sub": "foo@bar.com",
        },
    ),
    "Authentik, access": shape(
        at(
            Provider.OIDC,
            "https://auth.example.com/application/o/tasks/",
            audience="EYbbQBDZjAbzhFzbVTOtsfs8sL2L8FTqMHuK2sIA",
            token=TokenRules(kind="access", requires=("azp", "uid")),
        ),
        JWT,
        {
            "iss": "https://auth.example.com/application/o/tasks/",
            "sub": "a3f1c9b27d2e4f60a5b8c1d2e3f4a5b6c7d8e9f0a1b2c3d4e5f60718293a4b5c",
            "aud": "EYbbQBDZjAbzhFzbVTOtsfs8sL2L8FTqMHuK2sIA",
            "auth_time": T - 60,
            "acr": "goauthentik.io/providers/oauth2/default",
            "amr": ["pwd"],
            "nonce": "n-0S6_WzA2Mj",
            "sid": "4b227777d4dd1fc61c6f884f48641d02b4d121d3fd328cb08b5531fcacdabf8a",
            "email": "ann@example.com",
            "groups": ["tasks:read"],
            "azp": "EYbbQBDZjAbzhFzbVTOtsfs8sL2L8FTqMHuK2sIA",
            "uid": "mfTnLmDhVbXcQwErTyUiOpAsDfGhJkLzXcVbNm12",
        },
        interactive=False,
        lifetime=300,
    ),
    "Authentik, ID": shape(
        at(
            Provider.OIDC,
            "https://auth.example.com/application/o/tasks/",
            audience="EYbbQBDZjAbzhFzbVTOtsfs8sL2L8FTqMHuK2sIA",
            token=TokenRules(
                kind="id",
                is_person=has_nonce,
                is_kind=lambda claims: claims.keys().isdisjoint(
                    {"azp", "uid", "scope", "scp", "cid"}
                ),
            ),
        ),
        JWT,
        {
            "iss": "https://auth.example.com/application/o/tasks/",
            "sub": "a3f1c9b27d2e4f60a5b8c1d2e3f4a5b6c7d8e9f0a1b2c3d4e5f60718293a4b5c",
            "aud": "EYbbQBDZjAbzhFzbVTOtsfs8sL2L8FTqMHuK2sIA",
            "auth_time": T,
            "acr": "goauthentik.io/providers/oauth2/default",
            "amr": ["pwd"],
            "nonce": "n-0S6_WzA2Mj",
            "at_hash": "cpqKfdQA5eH891Ff5oJr_Q",
            "sid": "4b227777d4dd1fc61c6f884f48641d02b4d121d3fd328cb08b5531fcacdabf8a",
        },
        lifetime=300,
    ),
    "FusionAuth, access": shape(
        at(
            Provider.OIDC,
            "https://login.fusion.example",
            audience="85a03867-dccf-4882-adde-1a79aeec50df",
        ),
        JWT,
        {
            "aud": "85a03867-dccf-4882-adde-1a79aeec50df",
            "iss": "https://login.fusion.example",
            "sub": "858a4b01-62c8-4c2f-bfa7-6d018833bea7",
            "jti": "a61f5d9c-4f4c-4a67-93b1-5a6c2f3b9e10",
            "authenticationType": "PASSWORD",
            "email": "ann@example.com",
            "email_verified": True,
            "applicationId": "85a03867-dccf-4882-adde-1a79aeec50df",
            "auth_time": T - 60,
            "gty": ["authorization_code"],
            "roles": ["tasks:read"],
            "scope": "openid offline_access",
            "tid": "30663132-6464-6665-3032-326466613934",
        },
        interactive=False,
    ),
    "FusionAuth, ID": shape(
        at(
            Provider.OIDC,
            "https://login.fusion.example",
            audience="85a03867-dccf-4882-adde-1a79aeec50df",
            token="id",
        ),
        JWT,
        {
            "aud": "85a03867-dccf-4882-adde-1a79aeec50df",
            "iss": "https://login.fusion.example",
            "sub": "858a4b01-62c8-4c2f-bfa7-6d018833bea7",
            "at_hash": "JmJxM2VhZGY",
            "authenticationType": "PASSWORD",
            "applicationId": "85a03867-dccf-4882-adde-1a79aeec50df",
            "auth_time": T - 60,
            "nonce": "n-0S6_WzA2Mj",
            "tid": "30663132-6464-6665-3032-326466613934",
        },
    ),
    "B2C, access": shape(
        at(Provider.OIDC, B2C, audience="f2a76e08-93f2-4350-833c-965c02483b11"),
        JWT,
        {
            "iss": B2C,
            "nbf": T,
            "aud": "f2a76e08-93f2-4350-833c-965c02483b11",
            "oid": "1558f87f-452b-4757-bcd1-883b0f7a9e8e",
            "sub": "1558f87f-452b-4757-bcd1-883b0f7a9e8e",
            "emails": ["ann@example.com"],
            "tfp": "B2C_1_signupsignin1",
            "nonce": "638342f4-5f5f-4a0b-9d0f-1b1e4c9e0001",
            "scp": "tasks:read",
            "azp": "e760cab2-b9a1-4c0d-86fb-ff7084abd902",
            "ver": "1.0",
        },
        interactive=False,
    ),
    "B2C, ID": shape(
        at(Provider.OIDC, B2C, audience="e760cab2-b9a1-4c0d-86fb-ff7084abd902", token="id"),
        JWT,
        {
            "iss": B2C,
            "nbf": T,
            "aud": "e760cab2-b9a1-4c0d-86fb-ff7084abd902",
            "sub": "1558f87f-452b-4757-bcd1-883b0f7a9e8e",
            "auth_time": T - 5,
            "tfp": "B2C_1_signupsignin1",
            "nonce": "638342f4-5f5f-4a0b-9d0f-1b1e4c9e0001",
            "ver": "1.0",
        },
    ),
    "Logto, access": shape(
        at(Provider.OIDC, "https://acme.logto.app/oidc", audience="https://shopping.api"),
        {"typ": "at+jwt"},
        {
            "jti": "VovNyqJ5_tuYac89eTbpF",
            "sub": "foo123",
            "scope": "tasks:read",
            "client_id": "ilmd6ve6zwk5qpz0zqg2c",
            "iss": "https://acme.logto.app/oidc",
            "aud": "https://shopping.api",
        },
        interactive=False,
    ),
    "Logto, ID": shape(
        at(
            Provider.OIDC,
            "https://acme.logto.app/oidc",
            audience="ilmd6ve6zwk5qpz0zqg2c",
            token="id",
        ),
        JWT,
        {
            "sub": "foo123",
            "at_hash": "Ujiz1aXWl9CTdgMVHPWRiQ",
            "nonce": "n-0S6_WzA2Mj",
            "aud": "ilmd6ve6zwk5qpz0zqg2c",
            "iss": "https://acme.logto.app/oidc",
        },
    ),
    "WorkOS": shape(
        at(
            Provider.OIDC,
            "https://api.workos.com/user_management/client_01HXYZ",
            audience="client_01HXYZ",
            token=TokenRules(kind="session", is_person=is_session_of_workos, audience="client_id"),
        ),
        {},
        {
            "iss": "https://api.workos.com/user_management/client_01HXYZ",
            "sub": "user_01HBEQKA6K4QJAS93VPE39W1JT",
            "sid": "session_01HQSXZGF8FHF7A9ZZFCW4387R",
            "jti": "01HQSXZXPPFPKMDD32RKTFY6PV",
            "org_id": "org_01HRDMC6CM357W30QMHMQ96Q0S",
            "role": "member",
            "permissions": ["tasks:read", "tasks:run"],
            "client_id": "client_01HXYZ",
        },
        audience="client_id",
        lifetime=300,
    ),
    "Descope": shape(
        at(
            Provider.OIDC,
            "https://api.descope.com/P2abcdefghijklmnopqrstuvwxyz",
            audience="https://api.descope.com/P2abcdefghijklmnopqrstuvwxyz",
            token=TokenRules(
                kind="session",
                is_person=is_session_of_descope,
                audience="iss",
                fixed={"drn": "DS"},
            ),
        ),
        JWT,
        {
            "amr": ["email"],
            "drn": "DS",
            "iss": "https://api.descope.com/P2abcdefghijklmnopqrstuvwxyz",
            "permissions": ["tasks:read"],
            "rexp": "2026-12-24T10:00:00Z",
            "roles": ["Tenant Admin"],
            "sub": "U2bcdefghijklmnopqrstuvwxyza",
        },
        audience="iss",
        lifetime=600,
    ),
    "Cloudflare Access": shape(
        at(Provider.CLOUDFLARE_ACCESS, "yourteam.cloudflareaccess.com", audience="32eafc76"),
        JWT,
        {
            "aud": ["32eafc76"],
            "email": "user@example.com",
            "nbf": T,
            "iss": "https://yourteam.cloudflareaccess.com",
            "type": "app",
            "identity_nonce": "6ei69kawdKzMIAPF",
            "sub": "7335d417-61da-459d-899c-0a01c76a2f94",
            "country": "US",
        },
        lifetime=86_400,
    ),
    "Google IAP": shape(
        at(
            Provider.OIDC,
            "https://cloud.google.com/iap",
            audience="/projects/12345/global/backendServices/67890",
            interactive=is_user_of_iap,
        ),
        {"alg": "ES256", "kid": "0oeLcQ", **JWT},
        {
            "iss": "https://cloud.google.com/iap",
            "sub": "accounts.google.com:112233445566778899001",
            "email": "ann@example.com",
            "aud": "/projects/12345/global/backendServices/67890",
            "hd": "example.com",
        },
        lifetime=600,
    ),
    "CircleCI": shape(
        at(
            Provider.OIDC,
            "https://oidc.circleci.com/org/3c1b5a3e-0f5e-4b43-9d0e-7a1c2b3d4e5f",
            audience="3c1b5a3e-0f5e-4b43-9d0e-7a1c2b3d4e5f",
        ),
        JWT,
        {
            "aud": "3c1b5a3e-0f5e-4b43-9d0e-7a1c2b3d4e5f",
            "iss": "https://oidc.circleci.com/org/3c1b5a3e-0f5e-4b43-9d0e-7a1c2b3d4e5f",
            "oidc.circleci.com/context-ids": ["b9f1c9d2-7a3b-4c5d-8e6f-0a1b2c3d4e5f"],
            "oidc.circleci.com/project-id": "5d2c6b4f-1a0f-4c54-8e1f-8b2d3c4e5f60",
            "oidc.circleci.com/ssh-rerun": False,
            "oidc.circleci.com/vcs-origin": "github.com/acme/tasks",
            "oidc.circleci.com/vcs-ref": "refs/heads/main",
            "sub": "org/3c1b5a3e/project/5d2c6b4f/user/9e8d7c6b",
        },
        interactive=False,
    ),
    "Buildkite": shape(
        at(Provider.BUILDKITE, "example-org", audience="https://api.example.com"),
        {"kid": "f4b821837b4edcba56136f22f37ee6969520df23407126cce188d4141c015d68"},
        {
            "iss": "https://agent.buildkite.com",
            "sub": "organization:example-org:pipeline:example-pipeline:ref:refs/heads/main:commit:b5ff:step:",
            "aud": "https://api.example.com",
            "nbf": T,
            "jti": "0194b014-8517-7cef-b232-76a827315f08",
            "organization_slug": "example-org",
            "pipeline_slug": "example-pipeline",
            "build_number": 5,
            "build_branch": "main",
            "job_id": "01945ecf-80f0-41e8-9b83-a2970a9305a1",
            "agent_id": "01945ecf-8bcf-40a6-9d70-a765db9a0928",
            "runner_environment": "buildkite-hosted",
        },
        interactive=False,
        lifetime=300,
    ),
}
