"""What FastAPI cannot read off the routes: what the OpenAPI document says of the service, and the problems of a route."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from fastapi import Path
from fastapi.routing import APIRoute

from msk_auth.errors import Problem, StoreUnavailable
from task_service.errors import BodyTooLarge, InternalError, LengthRequired, TooManyRequests

Json: TypeAlias = dict[str, Any]
Responses: TypeAlias = dict[int | str, dict[str, Any]]

TITLE: Final = "Task service"
DESCRIPTION: Final = """\
Tasks, their runs, and the API keys that start them.

Send an API key or the token of a login in the header `Authorization: Bearer …`. What an operation needs stands beside it;
operations that take a login only refuse every key. Refusals are problem documents (RFC 9457) with a stable `code`. Lists come
in pages: send `next_cursor` of one page as `cursor` to get the next.
"""

TAGS: Final[list[Json]] = [
    {"name": "Tasks", "description": "What can be run."},
    {"name": "Runs", "description": "What was run, and its log."},
    {"name": "API keys", "description": "Credentials for programs."},
    {"name": "Account", "description": "Logins, sessions and the password of the caller."},
    {"name": "Administration", "description": "Users, configuration, audit log and system."},
    {
        "name": "Service accounts",
        "description": "Owners of keys that never log in, for administrators.",
    },
    {"name": "Operation", "description": "For monitoring; public."},
]
"""In the order in which a reader wants them."""

_PROBLEM: Final[Json] = {
    "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
}
_RETRY_AFTER: Final[Json] = {
    "Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}
}


def path_id(name: str, prefix: str, noun: str) -> Any:
    """A path parameter that is an id of :func:`task_service.ids.new_id`.

    The pattern is for readers and generated clients. A text of another form is an id that nothing has: 404.

    Args:
        name: The parameter's name in the path.
        prefix: What the id begins with.
        noun: What it identifies.
    """
    schema = {"pattern": f"^{prefix}_[0-9A-Za-z]{{16}}$"}
    return Path(alias=name, description=f"The id of the {noun}.", json_schema_extra=schema)


def problems(*kinds: type[Problem]) -> Responses:
    """The answers of a route that are problems, for FastAPI's `responses`.

    Args:
        kinds: What the route may raise, apart from what its guard, its input and every route may.
    """
    responses: Responses = {}
    for kind in kinds:
        text = f"{kind.title} (`{kind.code}`)."
        response = responses.setdefault(kind.status, {"description": "", "content": _PROBLEM})
        response["description"] = f"{response['description']} {text}".strip()
        if kind.retry_after is not None:
            response["headers"] = _RETRY_AFTER
    return responses


ANYWHERE: Final = problems(
    LengthRequired, BodyTooLarge, TooManyRequests, InternalError, StoreUnavailable
)
"""What every route may answer."""


def operation_id(route: APIRoute) -> str:
    """The stable name of an operation, from which generated clients make the name of a function: `list_tasks`."""
    return route.name
