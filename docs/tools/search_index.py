"""What the search of the site finds first, and by which words.

Titles and the words of this table weigh more than texts (`mkdocs.yml`); `search.js` reduces what a reader types to stems.
Readers who come from another package search with its words, so a page answers to those too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

WORDS: Final[Mapping[str, str]] = {
    "how-to/move-here/": "django import migrate existing registration password reset jwt_required blocklist blacklist x-api-key",
    "how-to/adopt/": "add existing integrate sqlmodel advanced-alchemy",
    "explanation/how-it-works/": "fresh login sudo mode architecture",
    "reference/key-format/": "prefix checksum regex bcrypt argon2 hasher sha256 cli",
    "explanation/lease/": "lease caching stale fork",
    "explanation/comparison/": "2fa two-factor passkeys grpc mtls oauth server alternatives",
    "explanation/performance/": "benchmark latency throughput second slow fast speed",
    "how-to/audit-log/": "history events hook logging redact sentry mask",
    "how-to/beside-sessions/": (
        "cookies csrf refresh bearer token logout log out revoke all devices multiple backends change password current_user "
        "model set loader"
    ),
    "how-to/database/": "migration alembic sqlalchemy async postgresql sqlite mysql mariadb pool outage down",
    "how-to/extend/": "own storage backend mongodb dynamodb",
    "how-to/fastapi/": "swagger authorize button authorization header",
    "how-to/identity-provider/": "auth0 cognito azure entra okta keycloak google integration jwks oauth oidc openid connect sso",
    "how-to/leaked-keys/": "revoke compromised stolen incident scanner github pre-commit gitleaks trufflehog",
    "how-to/machine-tokens/": "github actions gitlab ci kubernetes client credentials workload identity",
    "how-to/manage-keys/": (
        "admin staff users list rename delete deactivated tag partner customer onboarding last used usage statistics leaves leaver offboarding"
    ),
    "how-to/open-connections/": "server-sent events sse streaming task celery worker queue",
    "how-to/restrict-keys/": (
        "read only limit ip address allowlist whitelist cidr rate throttle quota 429 redis webhook machine scopes permissions"
    ),
    "how-to/rotate/": "renew grace period expiry date notification reminder email",
    "how-to/service-accounts/": "organization tenant team company belongs bot shared ci pipeline",
    "how-to/test-an-application/": "pytest unit client fixture mock fake override",
    "reference/api/": "semver semantic versioning deprecated stable",
    "reference/errors/": "401 403 503 status disabled problem details unauthorized forbidden handler custom response missing header",
    "reference/key-routes/": "create generate endpoints",
}
"""From the address of a page to words that its title lacks, and that readers use for it."""

# The pages of the public API have every word somewhere.
_API_BOOST: Final = 0.5
# The theme prefers pages to their sections, although a title of a section is as good an answer.
_SECTION_BOOST: Final = 2


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
            entry["boost"] = _API_BOOST
        elif section:
            entry["boost"] = _SECTION_BOOST
        # Not "tags": the theme shows those to readers.
        if page in WORDS and not section:
            entry["words"] = WORDS[page]


def extend_worker(site: Path) -> None:
    """Let the theme's worker search for stems."""
    (worker,) = (site / "assets" / "javascripts" / "workers").glob("search.*.min.js")
    ours = Path(__file__).with_name("search.js").read_text("utf-8")
    worker.write_text(ours + worker.read_text("utf-8"), "utf-8")
