"""How requests are read: bodies only as strict JSON, query parameters once each and numbers as digits.

What is wrong is told after the guards have spoken. FastAPI parses a body before it asks the dependencies, so a caller without credentials would be told what is wrong with
it. :class:`JsonRoute` lets a body that cannot be read pass as one that no model accepts, and says why afterwards.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Final, NoReturn

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BeforeValidator
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from msk_auth import InputInvalid

_DIGITS: Final = re.compile(r"[0-9]{1,9}")


def _plain_number(value: object) -> object:
    # Pydantic reads a number from `1_0`, ` 10`, `+10` and `10.0` as well.
    if isinstance(value, str) and _DIGITS.fullmatch(value) is None:
        raise ValueError("This must be a number, written with digits only.")
    return value


Limit = Annotated[int, BeforeValidator(_plain_number)]
"""How many are wanted, in a query."""

# The answer repeats what it refuses.
_MAX_NAME: Final = 200
_MAX_MEMBERS: Final = 200

# What stands for a body that cannot be read. FastAPI also lets a model read an object's attributes, so that an object
# of any class would be a body without members to a model that needs none; of built-in types pydantic reads nothing.
_UNREADABLE: Final = object()


class JsonRoute(APIRoute):
    """A route whose body is strict JSON (RFC 8259): UTF-8, finite numbers, no member twice, names one can show.

    A query parameter that is given twice is refused like any other value of a wrong type: readers on the way could
    disagree on which one counts.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, with a request that reads strictly."""
        handle = super().get_route_handler()

        async def read_strictly(request: Request) -> Response:
            strict = _StrictRequest(request.scope, request.receive)
            try:
                return await handle(strict)
            except RequestValidationError as error:
                if isinstance(error.body, bytes):
                    # FastAPI parses nothing else; a form of another site cannot send it without asking first.
                    strict.complaint = "Send JSON with the header 'Content-Type: application/json'."
                if strict.complaint is None:
                    raise
                raise InputInvalid.of("", strict.complaint) from None

        return read_strictly


class _SingleParams(QueryParams):
    def get(self, key: str, default: Any = None) -> Any:
        values = self.getlist(key)
        return values if len(values) > 1 else super().get(key, default)


class _StrictRequest(Request):
    complaint: str | None = None

    @property
    def query_params(self) -> QueryParams:
        return _SingleParams(self.scope["query_string"])

    async def json(self) -> Any:
        try:
            return json.loads(
                (await self.body()).decode("utf-8"),
                object_pairs_hook=_checked,
                parse_constant=_refuse_constant,
            )
        except _Refused as refused:
            self.complaint = str(refused)
        except (ValueError, RecursionError):
            # Not UTF-8, not JSON, a number with thousands of digits, or nested too deeply.
            self.complaint = "The body is not valid JSON."
        return _UNREADABLE


class _Refused(Exception):
    """Why an object is not accepted, although it is JSON."""


def _checked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > _MAX_MEMBERS:
        raise _Refused("The body has an object with too many members.")
    members = dict(pairs)
    if len(members) != len(pairs):
        # Readers would disagree on which one counts.
        raise _Refused("The body has two members of the same name.")
    if any(len(name) > _MAX_NAME or not name.isprintable() for name in members):
        raise _Refused("The body has a member whose name is too long or cannot be shown.")
    return members


def _refuse_constant(_name: str) -> NoReturn:
    raise ValueError  # NaN and Infinity are not JSON
