"""The current request, for log lines and audit entries that are written while it is answered.

A context variable carries it, so that neither rules nor repositories take a request as an argument.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from msk_auth import Principal


@dataclass(slots=True)
class RequestRecord:
    """One request.

    Attributes:
        id: Fresh and random; answered as `X-Request-Id`.
        address: Of the client, as trusted proxies report it; None when it is not known.
        principal: Who was authenticated, once that is known.
    """

    id: str
    address: str | None
    principal: Principal[Any] | None = None


current_request: ContextVar[RequestRecord | None] = ContextVar("current_request", default=None)


def request_address() -> str | None:
    """The address of the client that is being answered; None outside of a request."""
    record = current_request.get()
    return None if record is None else record.address
