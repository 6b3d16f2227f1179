"""Which answers are compressed: those in one list, and no others.

An answer that holds a secret beside text that an attacker chose gives the secret away by its compressed length, through TLS
(BREACH). So compression is off unless :data:`COMPRESSED` names the path, and only for GET: new keys, login tokens and links
for a password are answers of other methods. These answers of GET are left out as well:

- Tasks: their parameters may hold credentials, and an administrator's list has tasks that other users named.
- A run, its parameters and its log: a program prints what it likes. The live log would also be held back by compression.
- The audit log: anyone chooses the name of a login that fails, and it stands beside the addresses of others.
"""

from __future__ import annotations

import re
from typing import Final

from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

COMPRESSED: Final = re.compile(
    r"/static/.+|/vendor/.+|/openapi\.json|/docs(?:/operations)?|/login|/set-password|/tasks|/runs|/tasks/[^/]+|/keys|/keys/[^/]+|/account"
    r"|/admin/[^/]+"
    r"|/api/keys|/api/handlers|/api/tasks/[^/]+/runs|/api/admin/users|/api/admin/keys"
)
"""Scripts and styles; the pages, which hold no data; the OpenAPI document; and listings of what is no secret."""

MINIMUM_BYTES: Final = 1024
"""Smaller answers fit into one packet anyway."""

# Of the highest level a listing is 1 % smaller, and takes twice as long.
_LEVEL: Final = 6


class Compression:
    """Compresses the answers of the paths in :data:`COMPRESSED` if the client accepts gzip.

    Args:
        app: The application inside.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._compressing = GZipMiddleware(app, minimum_size=MINIMUM_BYTES, compresslevel=_LEVEL)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if (
            scope["type"] == "http"
            and scope["method"] == "GET"
            and COMPRESSED.fullmatch(scope["path"])
        ):
            await self._compressing(scope, receive, send)
        else:
            await self._app(scope, receive, send)
