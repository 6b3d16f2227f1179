"""The OpenAPI document of the service: what FastAPI reads off the routes, and the answers that it cannot know.

FastAPI describes a route by its models. The problems that may come instead are named at the route with
:func:`problems`; those that every operation shares, such as too many requests at once, are added here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Any, Final, TypeAlias

from fastapi import FastAPI, Path
from fastapi.routing import APIRoute

from msk_auth.errors import Problem, StoreUnavailable
from task_service.errors import BodyTooLarge, BodyTooSlow, InternalError, TooManyRequests

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
_ETAG: Final[Json] = {
    "ETag": {
        "description": "Send it as `If-None-Match`, and the answer is 304 as long as the list is the same.",
        "schema": {"type": "string"},
    }
}
_IF_NONE_MATCH: Final[Json] = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "description": "The `ETag` of the answer that you have.",
    "schema": {"type": "string"},
}
_ANYWHERE: Final = (TooManyRequests, InternalError)
_WITH_DATABASE: Final = (StoreUnavailable,)
_WITH_BODY: Final = (BodyTooSlow, BodyTooLarge)
# They answer without the database.
_WITHOUT_DATABASE: Final = frozenset({"/healthz", "/metrics", "/.well-known/jwks.json"})
# What the library calls the parameter, as the service's own routes spell theirs.
_SPELLINGS: Final = {"key_id": "keyId"}


UNCHANGED: Final[Responses] = {304: {"description": "The list is the same as the one you have."}}
"""For the `responses` of a listing that has an `ETag`."""


def path_id(name: str, prefix: str, noun: str) -> Any:
    """A path parameter that is an id of :func:`task_service.ids.new_id`.

    The pattern is for readers and generated clients. A text of another form is an id that nothing has: 404.

    Args:
        name: The parameter's name in the path.
        prefix: What the id begins with.
        noun: What it identifies.
    """
    schema = {"type": "string", "pattern": f"^{prefix}_[0-9A-Za-z]{{16}}$"}
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


def operation_id(route: APIRoute) -> str:
    """The stable name of an operation, from which generated clients make the name of a function: `list_tasks`."""
    return route.name


def complete(app: FastAPI) -> None:
    """Let the application's document be complete: see the module."""
    generate = app.openapi

    def openapi() -> Json:
        if app.openapi_schema is None:
            app.openapi_schema = _completed(generate())
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _completed(document: Json) -> Json:
    paths: dict[str, Json] = document["paths"]
    for path, operation in _operations(paths):
        _describe(operation)
        for parameter in operation.get("parameters", []):
            _tidy_parameter(parameter)
        if "304" in operation["responses"]:
            _add_etag(operation)
        kinds: tuple[type[Problem], ...] = _ANYWHERE
        if path not in _WITHOUT_DATABASE:
            kinds += _WITH_DATABASE
        if "requestBody" in operation:
            kinds += _WITH_BODY
            _tidy_body(operation["requestBody"])
        elif all(each["in"] == "path" for each in operation.get("parameters", [])):
            # Any text is valid in a path: nothing has that id.
            operation["responses"].pop("422", None)
        _add_problems(operation["responses"], kinds)
        operation["responses"] = dict(sorted(operation["responses"].items()))
    for old, new in _SPELLINGS.items():
        paths = {path.replace(f"{{{old}}}", f"{{{new}}}"): item for path, item in paths.items()}
    document["paths"] = paths
    return document


def _operations(paths: dict[str, Json]) -> Iterator[tuple[str, Json]]:
    for path, item in paths.items():
        for operation in item.values():
            yield path, operation


def _describe(operation: Json) -> None:
    """Take the first paragraph of a route's docstring for its summary, in place of the function's name."""
    if operation["summary"] != operation["operationId"].replace("_", " ").title():
        return
    summary, _, description = operation.pop("description").partition("\n\n")
    operation["summary"] = summary.replace("\n", " ").removesuffix(".")
    if description:
        operation["description"] = description


def _add_problems(responses: Json, kinds: Iterable[type[Problem]]) -> None:
    for status, response in problems(*kinds).items():
        found = responses.setdefault(str(status), response)
        if found is not response and response["description"] not in found["description"]:
            found["description"] = f"{found['description']} {response['description']}"
            found.setdefault("headers", {}).update(response.get("headers", {}))
    for status, response in responses.items():
        if response["description"] == "Successful Response":
            response["description"] = HTTPStatus(int(status)).phrase


def _add_etag(operation: Json) -> None:
    operation.setdefault("parameters", []).append(_IF_NONE_MATCH)
    for status in ("200", "304"):
        operation["responses"][status]["headers"] = _ETAG


def _tidy_parameter(parameter: Json) -> None:
    """An optional parameter is absent, never null; and it has a name already."""
    parameter["name"] = _SPELLINGS.get(parameter["name"], parameter["name"])
    schema = _without_null(parameter["schema"])
    # The parameter itself has them.
    parameter["schema"] = {
        name: value for name, value in schema.items() if name not in {"title", "description"}
    }


def _tidy_body(body: Json) -> None:
    """An optional body is absent, never null."""
    for content in body["content"].values():
        content["schema"] = _without_null(content["schema"])
        content["schema"].pop("title", None)


def _without_null(schema: Json) -> Json:
    alternatives: list[Json] = schema.get("anyOf", [])
    rest = [each for each in alternatives if each != {"type": "null"}]
    if len(rest) != 1 or len(rest) == len(alternatives):
        return schema
    others = {name: value for name, value in schema.items() if name != "anyOf"}
    return {**others, **rest[0]}
