"""How bodies are read: after the guards have spoken, and only as strict JSON.

FastAPI parses a body before it asks the dependencies, so a caller without credentials would be told what is wrong with
it. :class:`JsonRoute` lets a body that cannot be read pass as one that no model accepts, and says why afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from msk_auth import InputInvalid


class JsonRoute(APIRoute):
    """A route whose body is strict JSON (RFC 8259): UTF-8, finite numbers, no member twice."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, with a request that reads strictly."""
        handle = super().get_route_handler()

        async def read_strictly(request: Request) -> Response:
            strict = _StrictRequest(request.scope, request.receive)
            try:
                return await handle(strict)
            except RequestValidationError:
                if strict.complaint is None:
                    raise
                raise InputInvalid.of("", strict.complaint) from None

        return read_strictly


class _StrictRequest(Request):
    complaint: str | None = None

    async def json(self) -> Any:
        try:
            return json.loads(
                (await self.body()).decode("utf-8"),
                object_pairs_hook=_unique,
                parse_constant=_refuse_constant,
            )
        except _Twice as twice:
            self.complaint = str(twice)
        except (ValueError, RecursionError):
            # Not UTF-8, not JSON, a number with thousands of digits, or nested too deeply.
            self.complaint = "The body is not valid JSON."
        return _Unreadable()


class _Unreadable:
    """What stands for a body that cannot be read; no model accepts it."""


class _Twice(Exception):
    """An object with two members of one name: readers would disagree on which one counts."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _Twice("The body has two members of the same name.")
    return members


def _refuse_constant(_name: str) -> NoReturn:
    raise ValueError  # NaN and Infinity are not JSON
