"""What the search of the site finds first, and by which words.

The theme ranks by words, a title above a text. Readers who come from another package search with its words, so a page
answers to those too. A word that is being typed stands for all that begin with it, the last one or not: "in" finds "incident".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

WORDS: Final[Mapping[str, list[str]]] = {
    "how-to/move-here/": [
        "django",
        "rest framework",
        "import existing keys",
        "registration",
        "password reset",
        "jwt_required",
        "blocklist",
        "blacklist",
        "x-api-key",
    ],
    "how-to/adopt/": [
        "existing application",
        "flask-login",
        "flask-restful",
        "sqlmodel",
        "advanced-alchemy",
    ],
    "explanation/how-it-works/": ["fresh login", "sudo mode"],
    "reference/key-format/": [
        "prefix",
        "checksum",
        "regex",
        "bcrypt",
        "argon2",
        "fast hasher",
        "hashing",
    ],
    "explanation/lease/": ["cache", "caching", "stale cache"],
    "explanation/comparison/": ["2fa", "two-factor", "passkeys", "grpc", "mtls", "oauth server"],
    "explanation/performance/": ["benchmark", "latency", "performance", "slow", "speed"],
    "how-to/audit-log/": ["audit log", "history", "logging", "redact", "sentry", "mask"],
    "how-to/beside-sessions/": [
        *("session", "cookies", "jwt", "csrf", "refresh token", "logout", "log out"),
        *("revoke token", "all devices", "multiple backends", "change password"),
        *("current_user", "custom user model", "set user", "user loader"),
    ],
    "how-to/database/": ["migration", "alembic", "sqlalchemy", "postgresql", "sqlite", "mysql"],
    "how-to/fastapi/": ["swagger", "authorize button", "authorization header"],
    "how-to/identity-provider/": [
        # Not "keycloak": the search takes "key" for its beginning.
        *("auth0", "cognito", "entra id", "google login", "okta", "integration"),
        *("jwks", "oauth", "oidc", "openid connect", "sso"),
    ],
    "how-to/leaked-keys/": [
        *("revoke a key", "leaked key", "compromised key", "incident", "secret scanning"),
        *("pre-commit", "gitleaks", "trufflehog"),
    ],
    "how-to/machine-tokens/": [
        "github actions",
        "gitlab ci",
        "client credentials",
        "workload identity",
    ],
    "how-to/manage-keys/": [
        *("admin", "administrator", "staff", "rename a key", "tag", "partner", "customer"),
        *("onboarding", "last used", "usage", "statistics"),
        *("leaver", "deleted user", "offboarding"),
    ],
    "how-to/open-connections/": [
        *("websockets", "server-sent events", "streaming"),
        *("background task", "celery", "queue", "job"),
    ],
    "how-to/restrict-keys/": [
        *("read only", "limit key", "ip address", "allowlist", "whitelist", "cidr", "rate limits"),
        *("rate limiting", "throttle", "throttling", "quota", "429", "redis", "webhook"),
        *("machine to machine", "scopes", "permissions"),
    ],
    "how-to/rotate/": [
        *("rotation", "renew", "pepper", "expire", "expiring", "expiration", "expiry date"),
        "notification",
    ],
    "how-to/service-accounts/": [
        "organisation",
        "organization",
        "tenant",
        "team",
        "bot",
        "ci pipeline",
    ],
    "how-to/test-an-application/": [
        *("pytest", "tests", "testing", "test client", "fixture", "mock", "override dependency"),
    ],
    "reference/api/": ["semver", "semantic versioning", "deprecated", "stable api"],
    "reference/errors/": [
        *("401", "403", "503", "status code", "problem details", "unauthorized", "error handler"),
        *("custom error response", "missing authorization header", "token has expired"),
    ],
    "reference/key-routes/": [
        "key_routes",
        "create a key",
        "generate a key",
        "per user",
        "endpoints",
    ],
}
"""From the address of a page to words that its text may lack, and for which it is the first result."""

# The pages of the public API have every word somewhere.
_BOOST: Final = 0.5


def finish(index: dict[str, Any]) -> None:
    """Complete the index that the theme has made, in place.

    Raises:
        KeyError: A page that has words is not there.
    """
    missing = WORDS.keys() - {entry["location"] for entry in index["docs"]}
    if missing:
        raise KeyError(*sorted(missing))
    for entry in index["docs"]:
        page, _, section = entry["location"].partition("#")
        if page.startswith("reference/api/"):
            entry["boost"] = _BOOST
        if page in WORDS and not section:
            entry["tags"] = WORDS[page]
