"""The cookie that holds a login, and nothing else about logins: its name, and how it is written, cleared and read.

`__Host-` makes the browser insist on Secure, on Path=/ and on no Domain, so neither a subdomain nor plain HTTP can
plant one (RFC 6265bis, section 4.1.3.2). Scripts cannot read it, and it is never sent along from another site.
"""

from __future__ import annotations

from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import Response

NAME = "__Host-task_session"


def write(response: Response, token: str, *, max_age: int) -> None:
    """Give the browser its login.

    Args:
        response: The answer to a successful log-in.
        token: The JWT of the login.
        max_age: Seconds after which the browser forgets it; the server decides earlier if it wants to.
    """
    response.set_cookie(
        NAME, token, max_age=max_age, path="/", secure=True, httponly=True, samesite="strict"
    )


def clear(response: Response) -> None:
    """Make the browser forget its login."""
    response.delete_cookie(NAME, path="/", secure=True, httponly=True, samesite="strict")


def read(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The token a request's login cookie holds.

    Args:
        headers: The raw headers of an ASGI scope.

    Returns:
        None without such a cookie, and also with two of them: no browser sends two `__Host-` cookies of one name, so
        whoever did wants two readers to disagree.
    """
    found = [
        value.strip()
        for name, line in headers
        if name == b"cookie"
        for key, separator, value in (part.partition(b"=") for part in line.split(b";"))
        if separator and key.strip() == NAME.encode()
    ]
    return found[0].decode("latin-1") if len(found) == 1 and found[0] else None


def is_credential(request: Request) -> bool:
    """Whether the request was authenticated by its login cookie, rather than by a header of its own."""
    token = read(request.scope["headers"])
    return token is not None and request.headers.get("authorization") == f"Bearer {token}"
