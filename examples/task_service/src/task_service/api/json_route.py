"""The base of the routes: strict JSON bodies, and the types of parameters."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Sequence
from inspect import signature
from typing import Annotated, Any, Final, NoReturn, get_args

from fastapi import Depends, Header, Query
from fastapi.dependencies.models import Dependant
from fastapi.params import Security
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from msk_auth.errors import InputInvalid
from task_service.accounts.names import MAX_USERNAME
from task_service.db.paging import PageRequest

from .openapi import Responses, problems

# The response repeats refused names, so their size is bounded.
_MAX_NAME: Final = 200
_MAX_MEMBERS: Final = 200


class JsonBody(BaseModel):
    """The base of bodies: no unknown members, and no conversion of types."""

    # Some values are passwords and tokens: an error must not quote them, even in a log.
    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


Days = Annotated[int, Query(ge=1, le=3650)]
"""The query parameter for the number of days to look back, including today."""


IdempotencyKey = Annotated[
    str | None, Header(json_schema_extra={"pattern": r"^[\x21-\x7e]{1,255}$"})
]
"""The header of a request that may be repeated."""

NewName = Annotated[
    str,
    Field(
        json_schema_extra={
            "maxLength": MAX_USERNAME,
            "pattern": r"^\s*[^\s\x00-\x1f\x7f-\x9f]+\s*$",
        }
    ),
]
"""The name of a new user or service account, as in the OpenAPI document. `check_name` explains why a name is invalid."""

WantedPage = Annotated[PageRequest, Depends()]
"""The query parameters of a listing: which page, and whether to count."""


class JsonRoute(APIRoute):
    """A route that reads strict JSON (see :class:`JsonRequest`) and refuses query parameters that it cannot read or does not know."""

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Any],
        *,
        dependencies: Sequence[Any] | None = None,
        responses: Responses | None = None,
        **options: Any,
    ) -> None:
        # FastAPI solves the guards before the parameters, and each once.
        guards = [
            each
            for parameter in signature(endpoint).parameters.values()
            for each in get_args(parameter.annotation)
            if isinstance(each, Security)
        ]
        super().__init__(
            path,
            endpoint,
            dependencies=[*(dependencies or ()), *guards, Depends(self._check_query)],
            responses=problems(InputInvalid) | (responses or {}),
            **options,
        )
        self._known = sorted(_query_names(self.dependant))

    async def _check_query(self, request: Request) -> None:
        unknown = [name for name in request.query_params if name not in self._known]
        if unknown:
            allowed = f"Allowed: {', '.join(self._known) or 'none'}."
            names = [name[:_MAX_NAME] for name in unknown[:_MAX_MEMBERS]]
            raise InputInvalid(
                [(name, f"Unknown query parameter {name!r}. {allowed}") for name in names]
            )
        # PostgreSQL has no NUL in a text, and fails on it.
        for name, value in request.query_params.multi_items():
            if "\x00" in value:
                raise InputInvalid.of(name, "Remove the NUL character.")

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, with a request that parses strictly."""
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive))

        return handle_strictly


def _query_names(dependant: Dependant) -> set[str]:
    names = {field.alias for field in dependant.query_params}
    return names.union(*(_query_names(each) for each in dependant.dependencies))


class JsonRequest(Request):
    """A request with a strict JSON body (RFC 8259): UTF-8, finite numbers, no duplicate members, bounded names."""

    async def json(self) -> Any:
        """The body.

        Raises:
            ValueError: The body is not strict JSON. The library answers the error, after the guards.
        """
        text = (await self.body()).decode("utf-8")
        return json.loads(
            text,
            object_pairs_hook=_members,
            parse_constant=_refuse_constant,
            parse_float=_number,
        )


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    # Parsers disagree on which of two members with the same name counts.
    if len(members) != len(pairs) or len(members) > _MAX_MEMBERS:
        raise ValueError
    if any(len(name) > _MAX_NAME for name in members):
        raise ValueError
    return members


def _number(text: str) -> float:
    # To JSON Schema 30.0 is an integer. Beyond 2**53 a float is not certainly the number that was meant.
    value = float(text)
    return int(value) if value.is_integer() and abs(value) <= 2**53 else value


def _refuse_constant(_name: str) -> NoReturn:
    raise ValueError  # NaN and Infinity are not JSON
