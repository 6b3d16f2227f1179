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

# Version 00 of W3C Trace Context, which is all hexadecimal: it cannot hold a key or a token.
_TRACEPARENT: Final = re.compile(rb"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
# Shorter than a token, and without the underscore of a key: it goes into log lines as it is.
_REQUEST_ID: Final = re.compile(rb"[0-9A-Za-z.-]{8,64}")


@dataclass(slots=True)
class RequestRecord:
    """One request.

    Attributes:
        id: Answered as `X-Request-Id`: fresh and random, or chosen by a trusted proxy.
        address: Of the client, as trusted proxies report it; None when it is not known.
        principal: Who was authenticated, once that is known.
        traceparent: The trace that the request belongs to (W3C Trace Context); None if it belongs to none.
    """

    id: str
    address: str | None
    principal: Principal[Any] | None = None
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


def traceparent_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The header `traceparent` of a request; None without a valid one."""
    return _single(headers, b"traceparent", _TRACEPARENT)


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The header `X-Request-Id` of a request; None without one that may go into log lines."""
    return _single(headers, b"x-request-id", _REQUEST_ID)


def _single(
    headers: Iterable[tuple[bytes, bytes]], name: bytes, form: re.Pattern[bytes]
) -> str | None:
    values = [value for header, value in headers if header == name]
    if len(values) != 1 or form.fullmatch(values[0]) is None:
        return None
    return values[0].decode()
