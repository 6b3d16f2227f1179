"""The parts of the OpenAPI document that FastAPI cannot derive from the routes, such as their problems."""

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

Send an API key or the token of a login in the header `Authorization: Bearer …`. Each operation names its permissions;
operations for logins refuse every key. Refusals are problem documents (RFC 9457) with a stable `code`. Lists come
in pages: send `next_cursor` of a page as `cursor` to get the next page.
"""

TAGS: Final[list[Json]] = [
    {"name": "Tasks", "description": "Work that can be run."},
    {"name": "Runs", "description": "Executions of tasks, and their logs."},
    {"name": "API keys", "description": "Credentials for programs."},
    {"name": "Account", "description": "Logins, sessions and the password of the caller."},
    {"name": "Administration", "description": "Users, configuration, audit log and system."},
    {
        "name": "Service accounts",
        "description": "Owners of keys who never log in, for administrators.",
    },
    {"name": "Operation", "description": "For monitoring; public."},
]
"""The tags, in the order for readers."""

_PROBLEM: Final[Json] = {
    "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
}
_RETRY_AFTER: Final[Json] = {
    "Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}
}


def path_id(name: str, prefix: str, noun: str) -> Any:
    """A path parameter that is an id of :func:`task_service.ids.new_id`.

    The pattern is for readers and generated clients. A text of another form is answered as an unknown id, 404.

    Args:
        name: The parameter's name in the path.
        prefix: The id's prefix.
        noun: The resource's name.
    """
    schema = {"pattern": f"^{prefix}_[0-9A-Za-z]{{16}}$"}
    return Path(alias=name, description=f"The id of the {noun}.", json_schema_extra=schema)


def problems(*kinds: type[Problem]) -> Responses:
    """The answers of a route that are problems, for FastAPI's `responses`.

    Args:
        kinds: The route's own problems, without those of its guard, of its input and of every route.
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
"""The answers of every route."""


def operation_id(route: APIRoute) -> str:
    """The stable name of an operation, from which generated clients make the name of a function: `list_tasks`."""
    return route.name
