"""The pages: a Jinja shell per page, and small scripts that do everything else over the JSON API.

One rule: a page holds no data. What a page shows it asks of the API like any other client, so what a person may see
and do is decided in one place. The server renders only the frame: who is logged in, which page, the forms.

No request leaves this origin and nothing inline runs: :data:`CONTENT_SECURITY_POLICY` is what every page is sent with,
and its Trusted Types directive makes the browser refuse any script that turns a string into markup.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)

PAGE_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "Content-Security-Policy": CONTENT_SECURITY_POLICY,
        # Pages name the user: no copy stays behind, so Back after logging out asks the server again.
        "Cache-Control": "no-store",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
    }
)
"""Headers of every page (ASVS 5.0, section 3.4)."""

__all__ = ["CONTENT_SECURITY_POLICY", "PAGE_HEADERS"]
