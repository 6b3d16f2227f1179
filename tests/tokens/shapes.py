"""Tokens in the shapes that providers document, signed by keys made for the tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm, get_default_algorithms
from tests.core.support import NOW, b64

from msk_auth.tokens.external import ExternalIssuer
from msk_auth.tokens.issuers import (
    OIDC,
    Auth0,
    Clerk,
    Cognito,
    Entra,
    Firebase,
    GitHubActions,
    GitLabCI,
    Google,
    Keycloak,
    Kubernetes,
    Okta,
    PingOne,
    Supabase,
)
from msk_auth.tokens.keysets import PinnedKeySet

T = int(NOW.timestamp())
TENANT = "72f988bf-86f1-41af-91ab-2d7cd011db47"
GOOGLE_CLIENT = "1008719970978-hb24n2ds.apps.googleusercontent.com"
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
PINGONE = "https://auth.pingone.eu/5f2c1b7e-96d1-4d2b-8f1c-3c7d2f0b9a11/as"


def jwks(kid: str, algorithm: str) -> dict[str, Any]:
    key = RSA_KEY if algorithm == "RS256" else EC_KEY
    scheme: Any = RSAAlgorithm if algorithm == "RS256" else ECAlgorithm
    return {"keys": [{**scheme.to_jwk(key.public_key(), as_dict=True), "kid": kid, "use": "sig"}]}


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
        make: Makes the preset with a key set.
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
        return self.make(keys=PinnedKeySet(jwks(kid, algorithm)), **options)

    def token(self, *, header: Mapping[str, object] | None = None, **changes: object) -> str:
        """The token but for some claims; None leaves one out."""
        claims = {**self.claims, **changes}
        return sign(
            {**self.header, **(header or {})},
            {name: value for name, value in claims.items() if value is not None},
        )


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

SHAPES: dict[str, Shape] = {
    "Auth0": shape(
        lambda **o: Auth0("my-domain.auth0.com", audience="https://example.com/health-api", **o),
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
        lambda **o: Auth0("rfc.eu.auth0.com", audience="https://example.com/health-api", **o),
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
        lambda **o: Entra(TENANT, client_id="6e74172b-be56-4843-9ff4-e66a39bb12e3", **o),
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
        lambda **o: Entra(
            TENANT, client_id="6cb04018-a3f5-46a7-b995-940c78f5aef3", token="id", **o
        ),
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
        lambda **o: Okta("https://org.okta.com/oauth2/default", audience="api://default", **o),
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
        lambda **o: Okta(
            "https://org.okta.com/oauth2/default", audience="uAaunofWkaDJxukCFeBx", token="id", **o
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
        lambda **o: Google(GOOGLE_CLIENT, **o),
        JWT,
        {
            "iss": "https://accounts.google.com",
            "sub": "110169484474386276334",
            "azp": GOOGLE_CLIENT,
            "aud": GOOGLE_CLIENT,
            "email": "ann@example.com",
            "email_verified": True,
            "hd": "example.com",
        },
    ),
    "Keycloak": shape(
        lambda **o: Keycloak("https://sso.example.com/realms/acme", audience="tasks", **o),
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
        lambda **o: Keycloak("https://sso.example.com/realms/other", audience="tasks", **o),
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
        lambda **o: Cognito("us-east-1_example", client_id="xxxxxxxxxxxxexample", **o),
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
        lambda **o: Cognito("us-east-1_example", client_id="xxxxxxxxxxxxexample", token="id", **o),
        {"kid": "5678example="},
        {
            "sub": "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee",
            "email_verified": True,
            "iss": "https://cognito-idp.us-east-1.amazonaws.com/us-east-1_example",
            "cognito:username": "janedoe",
            "aud": "xxxxxxxxxxxxexample",
            "token_use": "id",
            "auth_time": T - 60,
        },
    ),
    "Supabase": shape(
        lambda **o: Supabase("abcdefghijklmnopqrst", **o),
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
        lambda **o: Clerk("clerk.your-site.com", authorized_parties="https://example.com", **o),
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
        lambda **o: Firebase("my-project", **o),
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
        lambda **o: PingOne(PINGONE, audience="https://api.example.com", **o),
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
        lambda **o: GitHubActions("octo-org", audience="https://api.example.com", **o),
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
        lambda **o: GitLabCI("my-group", audience="https://api.example.com", **o),
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
        lambda **o: Kubernetes(
            "https://kubernetes.default.svc.cluster.local", audience="https://api.example.com", **o
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
        lambda **o: OIDC("https://login.example", audience="https://api.example.com", **o),
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
        lambda **o: OIDC("https://id.example", audience="s6BhdRkqt3", token="id", **o),
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
}
