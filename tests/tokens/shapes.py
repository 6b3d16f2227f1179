"""Tokens in the shapes that providers document, signed by keys made for the tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import get_default_algorithms
from tests.core.support import NOW, b64, message_of
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
    message = message_of(header, claims)
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
        interactive: Whether a person logged in for it.
        audience: The claim that names this application.
        header: As documented.
        claims: As documented.
    """

    make: Callable[..., ExternalIssuer]
    interactive: bool = True
    audience: str = "aud"
    header: dict[str, object] = field(default_factory=dict[str, object])
    claims: dict[str, object] = field(default_factory=dict[str, object])

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


def row(
    provider: Provider, tenant: str = "", *, person: bool = True, claim: str = "aud", **options: Any
) -> Shape:
    """The issuer of a shape; `claim` names this application."""
    return Shape(partial(ExternalIssuer, provider, tenant, **options), person, claim)


# The rules of the guide for providers whose tokens `Provider.OIDC` takes for machines'.


def has_nonce(claims: Mapping[str, object]) -> bool:
    return isinstance(claims.get("nonce"), str)


def is_session_of_workos(claims: Mapping[str, object]) -> bool:
    return str(claims.get("sid")).startswith("session_")


def is_session_of_descope(claims: Mapping[str, object]) -> bool:
    return str(claims["sub"]).startswith("U") and bool(claims.get("amr"))


def is_user_of_iap(claims: Mapping[str, object]) -> bool:
    return not str(claims["email"]).endswith(".gserviceaccount.com")


ROWS: dict[str, Shape] = {
    "Auth0": row(Provider.AUTH0, "my-domain.auth0.com", audience="https://example.com/health-api"),
    "Auth0, RFC 9068": row(
        Provider.AUTH0, "rfc.eu.auth0.com", audience="https://example.com/health-api"
    ),
    "Entra, access": row(Provider.ENTRA, TENANT, audience="6e74172b-be56-4843-9ff4-e66a39bb12e3"),
    "Entra, ID": row(
        Provider.ENTRA, TENANT, audience="6cb04018-a3f5-46a7-b995-940c78f5aef3", token="id"
    ),
    "Okta, access": row(
        Provider.OKTA, "https://org.okta.com/oauth2/default", audience="api://default"
    ),
    "Okta, ID": row(
        Provider.OKTA,
        "https://org.okta.com/oauth2/default",
        audience="uAaunofWkaDJxukCFeBx",
        token="id",
    ),
    "Google": row(Provider.GOOGLE, audience=GOOGLE_CLIENT),
    "Keycloak": row(Provider.KEYCLOAK, "https://sso.example.com/realms/acme", audience="tasks"),
    "Keycloak, at+jwt": row(
        Provider.KEYCLOAK, "https://sso.example.com/realms/other", audience="tasks"
    ),
    "Cognito, access": row(
        Provider.COGNITO, "us-east-1_example", audience="xxxxxxxxxxxxexample", claim="client_id"
    ),
    "Cognito, ID": row(
        Provider.COGNITO, "us-east-1_example", audience="xxxxxxxxxxxxexample", token="id"
    ),
    "Supabase": row(Provider.SUPABASE, "abcdefghijklmnopqrst", audience="authenticated"),
    "Clerk": row(
        Provider.CLERK, "clerk.your-site.com", audience="https://example.com", claim="azp"
    ),
    "Firebase": row(Provider.FIREBASE, "my-project", audience="my-project"),
    "PingOne": row(Provider.PINGONE, PINGONE, audience="https://api.example.com"),
    "GitHub Actions": row(
        Provider.GITHUB_ACTIONS, "octo-org", audience="https://api.example.com", person=False
    ),
    "GitLab CI": row(
        Provider.GITLAB_CI, "my-group", audience="https://api.example.com", person=False
    ),
    "Kubernetes": row(
        Provider.KUBERNETES,
        "https://kubernetes.default.svc.cluster.local",
        audience="https://api.example.com",
        person=False,
    ),
    "OIDC, access": row(
        Provider.OIDC, "https://login.example", audience="https://api.example.com", person=False
    ),
    "OIDC, ID": row(Provider.OIDC, "https://id.example", audience="s6BhdRkqt3", token="id"),
    "Zitadel, access": row(
        Provider.OIDC,
        "https://acme.zitadel.cloud",
        audience="165461388636585985",
        token=TokenRules(kind="access", requires=("jti",)),
        person=False,
    ),
    "Zitadel, ID": row(
        Provider.OIDC,
        "https://acme.zitadel.cloud",
        audience="165472391399309313",
        token=TokenRules(
            kind="id",
            is_person=has_nonce,
            is_kind=lambda claims: claims.keys().isdisjoint({"jti", "scope", "scp", "cid"}),
        ),
    ),
    "Hydra, access": row(
        Provider.OIDC,
        "https://hydra.example.com/",
        audience="https://api.example.com",
        person=False,
    ),
    "Hydra, ID": row(Provider.OIDC, "https://hydra.example.com/", audience="e1bd5be0", token="id"),
    "Authentik, access": row(
        Provider.OIDC,
        "https://auth.example.com/application/o/tasks/",
        audience="EYbbQBDZjAbzhFzbVTOtsfs8sL2L8FTqMHuK2sIA",
        token=TokenRules(kind="access", requires=("azp", "uid")),
        person=False,
    ),
    "Authentik, ID": row(
        Provider.OIDC,
        "https://auth.example.com/application/o/tasks/",
        audience="EYbbQBDZjAbzhFzbVTOtsfs8sL2L8FTqMHuK2sIA",
        token=TokenRules(
            kind="id",
            is_person=has_nonce,
            is_kind=lambda claims: claims.keys().isdisjoint({"azp", "uid", "scope", "scp", "cid"}),
        ),
    ),
    "FusionAuth, access": row(
        Provider.OIDC,
        "https://login.fusion.example",
        audience="85a03867-dccf-4882-adde-1a79aeec50df",
        person=False,
    ),
    "FusionAuth, ID": row(
        Provider.OIDC,
        "https://login.fusion.example",
        audience="85a03867-dccf-4882-adde-1a79aeec50df",
        token="id",
    ),
    "B2C, access": row(
        Provider.OIDC, B2C, audience="f2a76e08-93f2-4350-833c-965c02483b11", person=False
    ),
    "B2C, ID": row(Provider.OIDC, B2C, audience="e760cab2-b9a1-4c0d-86fb-ff7084abd902", token="id"),
    "Logto, access": row(
        Provider.OIDC, "https://acme.logto.app/oidc", audience="https://shopping.api", person=False
    ),
    "Logto, ID": row(
        Provider.OIDC, "https://acme.logto.app/oidc", audience="ilmd6ve6zwk5qpz0zqg2c", token="id"
    ),
    "WorkOS": row(
        Provider.OIDC,
        "https://api.workos.com/user_management/client_01HXYZ",
        audience="client_01HXYZ",
        token=TokenRules(kind="session", is_person=is_session_of_workos, audience="client_id"),
        claim="client_id",
    ),
    "Descope": row(
        Provider.OIDC,
        "https://api.descope.com/P2abcdefghijklmnopqrstuvwxyz",
        audience="https://api.descope.com/P2abcdefghijklmnopqrstuvwxyz",
        token=TokenRules(
            kind="session", is_person=is_session_of_descope, audience="iss", fixed={"drn": "DS"}
        ),
        claim="iss",
    ),
    "Cloudflare Access": row(
        Provider.CLOUDFLARE_ACCESS, "yourteam.cloudflareaccess.com", audience="32eafc76"
    ),
    "Google IAP": row(
        Provider.OIDC,
        "https://cloud.google.com/iap",
        audience="/projects/12345/global/backendServices/67890",
        interactive=is_user_of_iap,
    ),
    "CircleCI": row(
        Provider.OIDC,
        "https://oidc.circleci.com/org/3c1b5a3e-0f5e-4b43-9d0e-7a1c2b3d4e5f",
        audience="3c1b5a3e-0f5e-4b43-9d0e-7a1c2b3d4e5f",
        person=False,
    ),
    "Buildkite": row(
        Provider.BUILDKITE, "example-org", audience="https://api.example.com", person=False
    ),
}

# From each row to its token, as the provider documents it: but for its times, which are around `NOW`.
DOCUMENTS: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_suffix(".json").read_text("utf-8")
)

SHAPES = {name: replace(row, **DOCUMENTS[name]) for name, row in ROWS.items()}


def differing(*attributes: str) -> list[str]:
    """One shape for each set of values of these attributes of the rules: those that agree in them run the same code."""
    chosen = {
        tuple(getattr(shape.issuer.rules, each) for each in attributes): name
        for name, shape in reversed(SHAPES.items())
    }
    return [*reversed(chosen.values())]
