"""The login cookie of the pages, and its translation into `Authorization: Bearer …`.

`__Host-` makes the browser require Secure, Path=/ and no Domain, so neither a subdomain nor plain HTTP can
set the cookie (RFC 6265bis, section 4.1.3.2). Scripts cannot read it, and browsers do not send it from another site.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from msk_auth.errors import Forbidden, RequestMalformed
from msk_auth.integrations import is_same_origin

from .errors import MisdirectedRequest

NAME: Final = "__Host-task_session"
PENDING: Final = "__Host-task_login"
"""The cookie of the session in which authlib keeps a login at the identity provider. The browser returns from another site,
so it is `SameSite=Lax`."""
_NAME: Final = NAME.encode()
_JWT_SHAPED: Final = re.compile(r"eyJ[0-9A-Za-z_-]*\.[0-9A-Za-z_-]+\.[0-9A-Za-z_-]+")
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def write(response: Response, token: str, *, max_age: int) -> None:
    """Set the login cookie.

    Args:
        response: The answer to a successful login.
        token: The JWT of the login.
        max_age: Seconds after which the browser deletes it; the session may end earlier.
    """
    response.set_cookie(
        NAME, token, max_age=max_age, path="/", secure=True, httponly=True, samesite="strict"
    )


def clear(response: Response) -> None:
    """Delete the login cookie."""
    response.delete_cookie(NAME, path="/", secure=True, httponly=True, samesite="strict")


def read(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The token in a request's login cookie.

    Args:
        headers: The raw headers of an ASGI scope.

    Returns:
        None without such a cookie, or with two of them: browsers never send two `__Host-` cookies of the same name, so
        the client wants two readers to disagree.
    """
    found = [
        value.strip()
        for name, line in headers
        if name == b"cookie"
        for key, separator, value in (part.partition(b"=") for part in line.split(b";"))
        if separator and key.strip() == _NAME
    ]
    return found[0].decode("latin-1") if len(found) == 1 and found[0] else None


def is_credential(request: Request) -> bool:
    """True if the login cookie, and not a header, authenticated the request."""
    token = read(request.scope["headers"])
    return token is not None and request.headers.get("authorization") == f"Bearer {token}"


class LoginCookie:
    """Middleware that translates the login cookie into `Authorization: Bearer …`, only for requests of the service's pages.

    Any site can make a browser send a request with the cookie, but not with an `Authorization` header. So the cookie
    is accepted only if the browser declares the request same-origin: SameSite is the first defence, this the second
    (ASVS 5.0, section 3.5). The cookie may contain only a login token: an API key in a cookie is ignored.

    Args:
        app: The application inside.
        base_url: The service's origin for browsers.
        loopback: True if the service listens only for this machine. Then only this machine's names are served, because a
            foreign name that resolves to this machine (DNS rebinding) would otherwise be a valid origin.

    Raises:
        RequestMalformed: The request has a bearer credential beside the cookie.
        Forbidden: Another site may have sent the request.
        MisdirectedRequest: The request's host is not this service.
    """

    def __init__(self, app: ASGIApp, *, base_url: str, loopback: bool) -> None:
        self._app = app
        parts = urlsplit(base_url)
        self._scheme = parts.scheme
        self._names = (_LOOPBACK_NAMES | {parts.hostname or ""}) if loopback else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "http":
            # The browser's scheme, which is lost behind a TLS proxy.
            scope["scheme"] = self._scheme
            token = read(scope["headers"])
            if token is not None and _JWT_SHAPED.fullmatch(token) is not None:
                self._translate(scope, token)
        await self._app(scope, receive, send)

    def _translate(self, scope: Scope, token: str) -> None:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        if self._names is not None and _host_name(headers) not in self._names:
            raise MisdirectedRequest
        if scope["method"] not in _SAFE_METHODS and not is_same_origin(headers, self._scheme):
            raise Forbidden("cross_origin_refused")
        sent = [value for name, value in headers if name == b"authorization"]
        if any(value.strip().lower().startswith(b"bearer") for value in sent) or len(sent) > 1:
            raise RequestMalformed(
                "The request has a login cookie and an Authorization header. Send one of them."
            )
        # A remaining header has another scheme, such as a proxy's own Basic login, and is not for the service.
        others = [header for header in headers if header[0] != b"authorization"]
        scope["headers"] = [*others, (b"authorization", b"Bearer " + token.encode())]


def _host_name(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The host that the request names; None if it is malformed, or not named exactly once."""
    hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
    try:
        return urlsplit(f"//{hosts[0]}").hostname if len(hosts) == 1 else None
    except ValueError:
        return None
