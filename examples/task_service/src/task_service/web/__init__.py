"""The pages: a Jinja template for each page, and small scripts that use the JSON API.

One rule: a page has no data. It fetches its data from the API like any other client, so permissions are checked in one
place. The server renders only the frame: the logged-in user, the page, the forms.

No request leaves this origin and no inline script runs: every page has the :data:`CONTENT_SECURITY_POLICY`, whose
Trusted Types directive makes the browser refuse any script that turns a string into markup.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_OWN_ORIGIN = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'"
)

CONTENT_SECURITY_POLICY = (
    f"{_OWN_ORIGIN}; img-src 'self'; require-trusted-types-for 'script'; trusted-types 'none'"
)

REFERENCE_POLICY = f"{_OWN_ORIGIN}; img-src 'self' data:"
"""The policy of the API reference's page, whose renderer sets sanitised markup and has its own images."""

PAGE_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "Content-Security-Policy": CONTENT_SECURITY_POLICY,
        # Pages name the user: browsers keep no copy, so Back after logging out requests the page again.
        "Cache-Control": "no-store",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
        "X-Frame-Options": "DENY",
    }
)
"""Headers of every page (ASVS 5.0, section 3.4), in addition to the middleware's headers of every answer."""

__all__ = ["CONTENT_SECURITY_POLICY", "PAGE_HEADERS", "REFERENCE_POLICY"]
