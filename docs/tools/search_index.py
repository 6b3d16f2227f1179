"""What the search of the site finds first, and by which words.

The theme ranks by words, a title above a text. Readers who come from another package search with its words, so a page
answers to those too. Pages of the task service say so in their titles, and stand below pages of the library that answer the
same words.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

WORDS: Final[Mapping[str, list[str]]] = {
    "explanation/hashing/": ["bcrypt", "argon2", "hash"],
    "explanation/interactive/": ["fresh login", "sudo mode"],
    "explanation/lease/": ["cache", "cache invalidation"],
    "explanation/performance/": ["benchmark", "speed"],
    "how-to/a-key-leaked/": ["revoke a key", "leaked key", "compromised key", "incident"],
    "how-to/administer-keys/": ["admin", "administrator", "support staff"],
    "how-to/audit-log/": ["audit log", "history"],
    "how-to/background-work/": ["background task", "celery", "queue", "job"],
    "how-to/beside-sessions/": ["session", "cookie", "refresh token", "logout"],
    "how-to/database/": ["migration", "alembic", "sqlalchemy", "postgresql", "sqlite", "mysql"],
    "how-to/edit-keys/": ["rename a key", "tag"],
    "how-to/from-drf-api-key/": ["django", "rest framework", "import existing keys"],
    "how-to/from-fastapi-users/": ["registration", "password reset"],
    "how-to/from-flask-jwt-extended/": ["jwt_required", "blocklist", "blacklist"],
    "how-to/from-keyshield/": ["x-api-key"],
    "how-to/hand-out-keys/": ["partner", "customer", "onboarding"],
    "how-to/identity-provider/": ["auth0", "okta", "entra", "cognito", "oauth", "oidc", "jwks"],
    "how-to/key-activity/": ["last used", "usage", "statistics"],
    "how-to/limit-networks/": ["ip address", "allowlist", "whitelist", "cidr"],
    "how-to/limit-requests/": ["rate limit", "throttle", "quota", "429", "redis"],
    "how-to/machine-routes/": ["webhook", "machine to machine"],
    "how-to/open-connections/": ["websocket", "server-sent events", "streaming"],
    "how-to/remind-before-expiry/": ["expiring", "expiry", "notification"],
    "how-to/rotate/": ["rotation", "renew", "pepper"],
    "how-to/scan-for-keys/": ["secret scanning", "pre-commit"],
    "how-to/service-accounts/": ["organisation", "organization", "tenant", "team", "bot"],
    "how-to/test-an-application/": ["pytest", "test client", "fixture"],
    "how-to/your-user-model/": ["current_user", "custom user model"],
    "reference/errors/": ["401", "403", "status code", "problem details"],
    "reference/glossary/": ["scopes", "permissions"],
    "reference/key-format/": ["prefix", "checksum", "regex"],
    "reference/key-routes/": ["key_routes", "create a key", "endpoints"],
    "tutorials/deploy/": ["docker", "systemd"],
    "tutorials/fastapi/": ["swagger"],
}
"""From the address of a page to words that its text may lack, and for which it is the first result."""

# Long pages and generated ones have every word somewhere.
_BOOSTS: Final[Mapping[str, float]] = {
    "explanation/decisions/": 0.1,
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
