"""Compresses the answers of a list of paths, and no others.

If an answer has both a secret and an attacker's text, its compressed length reveals the secret, even through TLS
(BREACH). So only GET of the paths in :data:`COMPRESSED` is compressed: new keys, login tokens and links
for a password are answers of other methods. The list also leaves out these answers of GET:

- Tasks: their parameters may contain credentials, and an administrator's list has other users' names of tasks.
- A run, its parameters and its log: a program may print anything. Compression would also delay the live log.
- The audit log: anyone can choose the user name of a failed login, which is beside other users' addresses.
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
"""Scripts and styles; the pages, which contain no data; the OpenAPI document; and listings without secrets."""

MINIMUM_BYTES: Final = 1024
"""Smaller answers fit into one packet anyway."""

# The highest level makes a listing 1 % smaller, and takes twice as long.
_LEVEL: Final = 6


class Compression(GZipMiddleware):
    """Compresses the answers of the paths in :data:`COMPRESSED` if the client accepts gzip.

    Args:
        app: The application inside.
    """

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(app, minimum_size=MINIMUM_BYTES, compresslevel=_LEVEL)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        is_listed = (
            scope["type"] == "http"
            and scope["method"] == "GET"
            and COMPRESSED.fullmatch(scope["path"])
        )
        await (super().__call__ if is_listed else self.app)(scope, receive, send)
