"""The only reader of the `Authorization` header (RFC 6750, section 2.1; RFC 9110, section 11).

``None`` means "no credentials of our kind"; what is ours but broken raises. Nothing else of a
request is ever looked at for credentials: not the query (it ends up in logs), not the body, not a
cookie.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .errors import RequestMalformed

MAX_HEADER_LENGTH = 8192
"""The longest header value that is read; longer ones are refused before any other work."""

# `auth-scheme` is a token, `credentials` a token68 (RFC 9110, sections 5.6.2 and 11.2).
_SCHEME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BEARER = re.compile(r"bearer +([0-9A-Za-z\-._~+/]+=*)", re.IGNORECASE)


def read_bearer(authorization: Sequence[str | bytes]) -> str | None:
    """The bearer token of a request.

    Args:
        authorization: The value of every `Authorization` header of the request, in order. Bytes are
            read as ASCII.

    Returns:
        The token, or None if there is no header, or one of another scheme.

    Raises:
        RequestMalformed: More than one header, more than one credential, a header that is too long,
            is not of the grammar, or contains control or non-ASCII characters.
    """
    if not authorization:
        return None
    if len(authorization) > 1:
        raise RequestMalformed("The request has several Authorization headers. Send exactly one.")
    if len(authorization[0]) > MAX_HEADER_LENGTH:
        raise RequestMalformed(
            f"The Authorization header is longer than {MAX_HEADER_LENGTH} characters."
        )
    header = _text(authorization[0])
    match = _BEARER.fullmatch(header)
    if match is not None:
        return match[1]
    scheme, _, _ = header.partition(" ")
    if scheme == "":
        return None
    if _SCHEME.fullmatch(scheme) is None or scheme.lower() == "bearer":
        raise RequestMalformed
    return None


def _text(value: str | bytes) -> str:
    if isinstance(value, bytes):
        # Latin-1 maps every byte to one character, so what is not ASCII is found below whichever
        # type came in.
        value = value.decode("latin-1")
    # Servers strip the optional white space around a field value (RFC 9110, section 5.5); not all
    # of them do.
    value = value.strip(" \t")
    if not value.isascii() or not value.isprintable():
        raise RequestMalformed(
            "The Authorization header contains characters that are not printable ASCII."
        )
    return value
