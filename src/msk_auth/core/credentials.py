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

# Patterns that hardly any header needs are compiled when one does.
# `auth-scheme` is a token, `credentials` a token68 (RFC 9110, sections 5.6.2 and 11.2).
_SCHEME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
# Spelt out: ignoring case takes twice as long, and takes a Kelvin sign for a K.
_BEARER = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +([0-9A-Za-z\-._~+/]+=*)")
# The only credentials with commas in them: those of another scheme that takes parameters.
_PARAMETER = r"""[!#$%&'*+.^_`|~0-9A-Za-z-]+ *= *(?:"(?:[^"\\]|\\.)*"|[^\s",=][^\s",]*)"""
_WITH_PARAMETERS = rf"\s*{_SCHEME} +{_PARAMETER}(?: *, *{_PARAMETER})*\s*"


def read_bearer(authorization: Sequence[str | bytes]) -> str | None:
    """The bearer token of a request.

    Args:
        authorization: The value of every `Authorization` header of the request, in order. Bytes are
            read as ASCII. Several count as the one value that they are when joined with commas.

    Returns:
        The token, or None if there is no header, or one of another scheme.

    Raises:
        RequestMalformed: More than one credential, a header that is too long, is not of the grammar,
            or contains control or non-ASCII characters.
    """
    if not authorization:
        return None
    value = authorization[0] if len(authorization) == 1 else _joined(authorization)
    # What nearly all requests send: in this grammar there is no comma, and nothing beyond printable ASCII.
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
    """What a WSGI server makes of several headers (RFC 9110, sections 5.3 and 5.5; PEP 3333).

    An application behind one never sees them apart. So that the same request gets the same answer
    everywhere, they are not looked at apart where they could be.
    """
    return ",".join(_decode(value).strip(" \t") for value in authorization)


def _holds_several(header: str | bytes) -> bool:
    """True if a comma separates credentials. Nothing comes before this question, not even the length."""
    text = _decode(header)
    if "," not in text:
        return False
    return len(text) > MAX_HEADER_LENGTH or re.fullmatch(_WITH_PARAMETERS, text) is None


def _decode(value: str | bytes) -> str:
    # Latin-1 maps every byte to one character, so what is not ASCII is found whichever type came in.
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _text(value: str | bytes) -> str:
    value = _decode(value)
    # Servers strip the optional white space around a field value (RFC 9110, section 5.5); not all
    # of them do.
    value = value.strip(" \t")
    if not value.isascii() or not value.isprintable():
        raise RequestMalformed(
            "The Authorization header contains characters that are not printable ASCII."
        )
    return value
