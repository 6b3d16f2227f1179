"""Parses requests: bodies as strict JSON only, query parameters once each, numbers as digits.

Guards answer before validation errors. FastAPI parses a body before it runs the dependencies, so an unauthenticated
caller would get details about the body. :class:`JsonRoute` therefore passes an invalid body on as a value that no model
accepts, and reports the reason after the guards have run.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Coroutine, Iterable
from http import HTTPStatus
from typing import Annotated, Any, Final, NoReturn

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from msk_auth.errors import InputInvalid
from task_service.validation import in_plain_words

from .direct_call import DirectCall, direct_call

_DIGITS: Final = re.compile(r"[0-9]{1,9}")


class JsonBody(BaseModel):
    """The base of bodies: no member but those that are named, and each in its own type."""

    # Some values are passwords and tokens: an error must not quote them, not even in a log.
    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


def allowed_methods(routes: Iterable[Route], path: str) -> str:
    """The header `Allow` of a path: the methods of all its routes (RFC 9110, section 10.2.1); empty without one.

    Starlette names those of the first route that matches.
    """
    methods = {
        method for route in routes if route.path_regex.match(path) for method in route.methods or ()
    }
    return ", ".join(sorted(methods | {"HEAD"} if "GET" in methods else methods))


def _plain_number(value: object) -> object:
    # Pydantic reads a number from `1_0`, ` 10`, `+10` and `10.0` as well.
    if isinstance(value, str) and _DIGITS.fullmatch(value) is None:
        raise ValueError("This is not a number. Send digits only.")
    return value


Limit = Annotated[int, BeforeValidator(_plain_number)]
"""The query parameter for the size of a page."""

Days = Annotated[int, Field(ge=1, le=3650), BeforeValidator(_plain_number)]
"""The query parameter for how many days to look back, today included."""


def _written_time(value: object) -> object:
    # Pydantic reads seconds since 1970 as well.
    if isinstance(value, str) and "T" not in value.upper():
        raise ValueError("Enter a time, such as 2026-03-01T12:00:00Z.")
    return value


Time = Annotated[AwareDatetime, BeforeValidator(_written_time)]
"""A query parameter that is a time (RFC 3339)."""

MAX_SEARCH: Final = 100


def _search_text(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = value.strip()
    if len(text) > MAX_SEARCH:
        raise ValueError(f"The search is too long. Send {MAX_SEARCH} characters at most.")
    # PostgreSQL has no NUL in a text.
    return text.replace("\x00", "\ufffd") or None


Search = Annotated[str | None, BeforeValidator(_search_text)]
"""The query parameter that searches a listing; an empty one finds everything."""

# The response repeats refused names, so their size is bounded.
_MAX_NAME: Final = 200
_MAX_MEMBERS: Final = 200

# Stands for an invalid body. FastAPI also lets a model read an object's attributes, so an instance of any other class
# would be a valid body for a model without required members; from a plain `object` pydantic reads nothing.
_UNREADABLE: Final = object()


class JsonRoute(APIRoute):
    """A route whose body is strict JSON (RFC 8259): UTF-8, finite numbers, no duplicate members, printable names.

    A query parameter that is sent twice is refused like any other value of a wrong type: a proxy and the service could
    disagree on which one counts.

    A route whose `responses` have :data:`~task_service.api.openapi.UNCHANGED` answers 304 to a client that has the present
    answer already (RFC 9110, section 13.1.2).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._prefix = self.path.partition("{")[0]
        call = direct_call(self)
        if call is not None:
            self.app = self._direct(call, self.app)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether the request is for this route. Most are for another one, which the beginning of the path shows."""
        if scope["path"].startswith(self._prefix) or scope.get("root_path"):
            return super().matches(scope)
        return Match.NONE, {}

    def _direct(self, call: DirectCall, through_fastapi: ASGIApp) -> ASGIApp:
        is_conditional = HTTPStatus.NOT_MODIFIED in self.responses

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            request = Request(scope, receive)
            response = await call(request)
            if response is None:
                await through_fastapi(scope, receive, send)
            elif is_conditional:
                await _if_changed(request, response)(scope, receive, send)
            else:
                await response(scope, receive, send)

        return serve

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, with a request that parses strictly."""
        handle = super().get_route_handler()
        is_conditional = HTTPStatus.NOT_MODIFIED in self.responses

        async def handle_strictly(request: Request) -> Response:
            strict = _StrictRequest(request.scope, request.receive)
            try:
                response = await handle(strict)
                return _if_changed(request, response) if is_conditional else response
            except RequestValidationError as error:
                if isinstance(error.body, bytes):
                    # FastAPI parses no other content type; a form of another site cannot send this one without a
                    # CORS preflight.
                    strict.complaint = "Send JSON with the header 'Content-Type: application/json'."
                if strict.complaint is None:
                    errors = in_plain_words(error.errors())
                    raise RequestValidationError(errors, body=error.body) from None
                raise InputInvalid.of("", strict.complaint) from None

        return handle_strictly


_TAGS: Final = re.compile(r'(?:W/)?("[^"]*")')


def _if_changed(request: Request, response: Response) -> Response:
    """The response with its `ETag`; without its content if the client has that.

    The tag is weak: a compressed response has the same one.
    """
    tag = f'"{hashlib.blake2b(response.body, digest_size=12).hexdigest()}"'
    response.headers["etag"] = f"W/{tag}"
    known = request.headers.get("if-none-match", "")
    if known.strip() != "*" and tag not in _TAGS.findall(known):
        return response
    headers = {
        name: value
        for name, value in response.headers.items()
        if name not in {"content-length", "content-type"}
    }
    return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)


class _SingleParams(QueryParams):
    def get(self, key: str, default: Any = None) -> Any:
        values = self.getlist(key)
        return values if len(values) > 1 else super().get(key, default)


class _StrictRequest(Request):
    complaint: str | None = None

    @property
    def query_params(self) -> QueryParams:
        if not hasattr(self, "_query_params"):
            self._query_params = _SingleParams(self.scope["query_string"])
        return self._query_params

    async def json(self) -> Any:
        try:
            found = json.loads(
                (await self.body()).decode("utf-8"),
                object_pairs_hook=_checked,
                parse_constant=_refuse_constant,
            )
            if found is not None:
                return found
            # FastAPI would take it for a body that is absent.
            self.complaint = "The body is null. Send a JSON object."
        except _Refused as refused:
            self.complaint = str(refused)
        except (ValueError, RecursionError):
            # Not UTF-8, not JSON, a number with thousands of digits, or nested too deeply.
            self.complaint = "The body is not valid JSON."
        return _UNREADABLE


class _Refused(Exception):
    """Why an object is refused although it is JSON."""


def _checked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > _MAX_MEMBERS:
        raise _Refused(
            f"The body has an object with too many members. Send {_MAX_MEMBERS} at most."
        )
    members = dict(pairs)
    if len(members) != len(pairs):
        # Parsers disagree on which one counts.
        raise _Refused("The body has two members of the same name. Send each member once.")
    if any(len(name) > _MAX_NAME or not name.isprintable() for name in members):
        raise _Refused(
            "The body has a member whose name is too long or not printable. Remove that member."
        )
    return members


def _refuse_constant(_name: str) -> NoReturn:
    raise ValueError  # NaN and Infinity are not JSON
