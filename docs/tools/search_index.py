"""What the search of the site finds first, and by which words.

The theme ranks by words, a title above a text. Readers who come from another package search with its words, so a page
answers to those too. A word that is being typed stands for all that begin with it, the last one or not: "in" finds "incident".
Pages of the task service say so in their titles, and stand below pages of the library that answer the same words. By these
titles `assets/site.js` makes them a section of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

WORDS: Final[Mapping[str, list[str]]] = {
    "explanation/hashing/": ["bcrypt", "argon2", "fast hasher", "hashing"],
    "explanation/interactive/": ["fresh login", "sudo mode"],
    "explanation/lease/": ["cache", "caching", "stale cache"],
    "explanation/not-supported/": ["2fa", "two-factor", "passkeys", "grpc", "mtls", "oauth server"],
    "explanation/performance/": ["benchmark", "latency", "performance", "slow", "speed"],
    "how-to/audit-log/": ["audit log", "history"],
    "how-to/background-work/": ["background task", "celery", "queue", "job"],
    "how-to/beside-sessions/": [
        *("session", "cookies", "jwt", "csrf", "refresh token", "logout", "log out"),
        *("revoke token", "all devices", "multiple backends", "change password"),
    ],
    "how-to/database/": ["migration", "alembic", "sqlalchemy", "postgresql", "sqlite", "mysql"],
    "how-to/fastapi/": ["swagger", "authorize button", "authorization header"],
    "how-to/from-drf-api-key/": ["django", "rest framework", "import existing keys"],
    "how-to/from-fastapi-users/": ["registration", "password reset"],
    "how-to/from-flask-jwt-extended/": ["jwt_required", "blocklist", "blacklist"],
    "how-to/from-keyshield/": ["x-api-key"],
    "how-to/identity-provider/": [
        # Not "keycloak": the search takes "key" for its beginning.
        *("auth0", "cognito", "entra id", "google login", "okta", "integration"),
        *("jwks", "oauth", "oidc", "openid connect", "sso"),
    ],
    "how-to/leaked-keys/": [
        *("revoke a key", "leaked key", "compromised key", "incident", "secret scanning"),
        *("pre-commit", "gitleaks", "trufflehog"),
    ],
    "how-to/logs/": ["logging", "redact", "sentry", "mask"],
    "how-to/manage-keys/": [
        *("admin", "administrator", "staff", "rename a key", "tag", "partner", "customer"),
        *("onboarding", "last used", "usage", "statistics"),
    ],
    "how-to/open-connections/": ["websockets", "server-sent events", "streaming"],
    "how-to/restrict-keys/": [
        *("read only", "limit key", "ip address", "allowlist", "whitelist", "cidr", "rate limits"),
        *("rate limiting", "throttle", "throttling", "quota", "429", "redis", "webhook"),
        "machine to machine",
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
    "how-to/your-user-model/": [
        *("current_user", "custom user model", "set user", "user loader"),
        *("leaver", "deleted user", "offboarding"),
    ],
    "reference/errors/": [
        *("401", "403", "503", "status code", "problem details", "unauthorized", "error handler"),
        *("custom error response", "missing authorization header", "token has expired"),
    ],
    "reference/glossary/": ["scopes", "permissions"],
    "reference/key-format/": ["prefix", "checksum", "regex"],
    "reference/key-routes/": [
        "key_routes",
        "create a key",
        "generate a key",
        "per user",
        "endpoints",
    ],
    "tutorials/deploy/": ["docker", "systemd"],
}
"""From the address of a page to words that its text may lack, and for which it is the first result."""

# Long pages and generated ones have every word somewhere.
_BOOSTS: Final[Mapping[str, float]] = {
    "reference/api/testing/": 0.1,
    "reference/http-api/": 0.1,
    "reference/api/": 0.5,
}
_SERVICE_BOOST: Final = 0.5
_SERVICE: Final = "task service"


def finish(index: dict[str, Any], service: Collection[str]) -> None:
    """Complete the index that the theme has made.

    Args:
        index: The index; changed in place.
        service: The addresses of the task service's pages.

    Raises:
        KeyError: A page that has words is not there.
    """
    missing = WORDS.keys() - {entry["location"] for entry in index["docs"]}
    if missing:
        raise KeyError(*sorted(missing))
    for entry in index["docs"]:
        page, _, section = entry["location"].partition("#")
        boosts = [boost for prefix, boost in _BOOSTS.items() if page.startswith(prefix)]
        if page in service:
            boosts.append(_SERVICE_BOOST)
        if boosts:
            entry["boost"] = min(boosts)
        if section:
            continue
        if page in WORDS:
            entry["tags"] = WORDS[page]
        if page in service and _SERVICE not in entry["title"].lower():
            entry["title"] += f" ({_SERVICE})"
