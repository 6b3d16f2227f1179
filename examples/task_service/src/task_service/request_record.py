"""The current request, for log lines and audit entries that are written while it is answered, and while its run is executed.

A context variable carries it, so that neither rules nor repositories take a request as an argument.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from msk_auth import Principal

_MAX_USER_AGENT: Final = 256

# Version 00 of W3C Trace Context, which is all hexadecimal: it cannot hold a key or a token.
_TRACEPARENT: Final = re.compile(rb"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(slots=True)
class RequestRecord:
    """One request.

    Attributes:
        id: Fresh and random; answered as `X-Request-Id`.
        address: Of the client, as trusted proxies report it; None when it is not known.
        user_agent: The header `User-Agent`, from :func:`printable`.
        principal: Who was authenticated, once that is known.
        refused_key_id: Of the key that was refused although its secret was right; None if none was.
        traceparent: The trace that the request belongs to (W3C Trace Context); None if it belongs to none.
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
    """The address of the client that is being answered; None outside of a request."""
    record = current_request.get()
    return None if record is None else record.address


def request_user_agent() -> str | None:
    """What the client that is being answered calls itself; None if it says nothing, and outside of a request."""
    record = current_request.get()
    return None if record is None else record.user_agent


def printable(header: str | None) -> str | None:
    """An untrusted header as printable text of 256 characters at most: no database takes every character."""
    if header is None:
        return None
    return "".join(c if c.isprintable() else "?" for c in header[:_MAX_USER_AGENT])


def traceparent_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The header `traceparent` of a request; None without a valid one."""
    values = [value for name, value in headers if name == b"traceparent"]
    if len(values) != 1 or _TRACEPARENT.fullmatch(values[0]) is None:
        return None
    return values[0].decode()
