"""The current request, for log lines and audit entries of its answer and its run.

It is in a context variable, so that neither rules nor repositories need a request as an argument.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from msk_auth import Principal

_MAX_USER_AGENT: Final = 256

# Version 00 of W3C Trace Context, only hexadecimal: it cannot contain a key or a token.
_TRACEPARENT: Final = re.compile(rb"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(slots=True)
class RequestRecord:
    """One request.

    Attributes:
        id: A random id, answered as `X-Request-Id`.
        address: The client's address, as trusted proxies report it; None if unknown.
        user_agent: The header `User-Agent`, from :func:`printable`.
        principal: The authenticated principal, after the authentication.
        refused_key_id: The id of a key that was refused although its secret was right, or None.
        traceparent: The trace of the request (W3C Trace Context), or None.
    """

    id: str
    address: str | None
    user_agent: str | None = None
    principal: Principal[Any] | None = None
    refused_key_id: str | None = None
    traceparent: str | None = None

    @property
    def trace_id(self) -> str | None:
        """The id of the trace."""
        return None if self.traceparent is None else self.traceparent[3:35]


current_request: ContextVar[RequestRecord | None] = ContextVar("current_request", default=None)


def request_address() -> str | None:
    """The address of the current request's client; None outside of a request."""
    record = current_request.get()
    return None if record is None else record.address


def request_user_agent() -> str | None:
    """The `User-Agent` of the current request; None without one, and outside of a request."""
    record = current_request.get()
    return None if record is None else record.user_agent


def printable(header: str | None) -> str | None:
    """An untrusted header as printable text of at most 256 characters: no database stores every character."""
    if header is None:
        return None
    return "".join(c if c.isprintable() else "?" for c in header[:_MAX_USER_AGENT])


def traceparent_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The header `traceparent` of a request; None without a valid one."""
    values = [value for name, value in headers if name == b"traceparent"]
    if len(values) != 1 or _TRACEPARENT.fullmatch(values[0]) is None:
        return None
    return values[0].decode()
