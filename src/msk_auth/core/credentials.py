"""The only reader of the `Authorization` header (RFC 6750, section 2.1; RFC 9110, section 11).

``None`` means "no credentials of this scheme"; a malformed header raises. No other part of a request is read for
credentials: not the query (which is logged), not the body, not a cookie.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .errors import RequestMalformed

MAX_HEADER_LENGTH = 16_384
"""The longest header value that is read; a longer one is refused before any other work."""

# Rarely used patterns are compiled on first use.
# `auth-scheme` is a token, `credentials` a token68 (RFC 9110, sections 5.6.2 and 11.2).
_SCHEME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
# Written out: ignoring case takes twice as long, and matches a Kelvin sign as a K.
_BEARER = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +([0-9A-Za-z\-._~+/]+=*)")
# The only credentials with commas in them: those of another scheme that takes parameters.
_PARAMETER = r"""[!#$%&'*+.^_`|~0-9A-Za-z-]+ *= *(?:"(?:[^"\\]|\\.)*"|[^\s",=][^\s",]*)"""
_WITH_PARAMETERS = rf"\s*{_SCHEME} +{_PARAMETER}(?: *, *{_PARAMETER})*\s*"


def read_bearer(authorization: Sequence[str | bytes]) -> str | None:
    """The bearer token of a request.

    Args:
        authorization: The value of every `Authorization` header of the request, in order. Bytes are read as ASCII.
            Several values count as one value, joined with commas.

    Returns:
        The token, or None if there is no header, or one of another scheme.

    Raises:
        RequestMalformed: There is more than one credential, or the header is too long, violates the grammar, or contains
            control or non-ASCII characters.
    """
    if not authorization:
        return None
    value = authorization[0] if len(authorization) == 1 else _joined(authorization)
    # Nearly all requests match this pattern, which allows no comma and only printable ASCII.
    if len(value) <= MAX_HEADER_LENGTH:
        match = _BEARER.fullmatch(value if isinstance(value, str) else value.decode("latin-1"))
        if match is not None:
            return match[1]
    if _holds_several(value):
        raise RequestMalformed(
            "The request has several Authorization headers or credentials. Send exactly one."
        )
    if len(value) > MAX_HEADER_LENGTH:
        raise RequestMalformed(
            f"The Authorization header is longer than {MAX_HEADER_LENGTH} characters."
        )
    header = _text(value)
    match = _BEARER.fullmatch(header)
    if match is not None:
        return match[1]
    scheme, _, _ = header.partition(" ")
    if scheme == "":
        return None
    if re.fullmatch(_SCHEME, scheme) is None or scheme.lower() == "bearer":
        raise RequestMalformed
    return None


def _joined(authorization: Sequence[str | bytes]) -> str:
    """Several headers as one value, as a WSGI server joins them (RFC 9110, sections 5.3 and 5.5; PEP 3333).

    A WSGI application never sees them separately. All other adapters join them too, so that the same request gets the
    same answer everywhere.
    """
    return ",".join(_decode(value).strip(" \t") for value in authorization)


def _holds_several(header: str | bytes) -> bool:
    """True if a comma separates credentials. This is checked first, even before the length."""
    text = _decode(header)
    if "," not in text:
        return False
    return len(text) > MAX_HEADER_LENGTH or re.fullmatch(_WITH_PARAMETERS, text) is None


def _decode(value: str | bytes) -> str:
    # Latin-1 maps each byte to one character, so that bytes beyond ASCII are found in both types.
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _text(value: str | bytes) -> str:
    value = _decode(value)
    # Not all servers strip the optional white space around a field value (RFC 9110, section 5.5).
    value = value.strip(" \t")
    if not value.isascii() or not value.isprintable():
        raise RequestMalformed(
            "The Authorization header contains characters that are not printable ASCII."
        )
    return value
