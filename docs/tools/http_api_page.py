"""The HTTP API of the task service, and that of the library's own routes, as Markdown.

The OpenAPI document of an application says what is sent and answered; the route audit says who gets through. Rendered here, so
that the site needs no script of another host for it.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

from fastapi import FastAPI

from msk_auth import AsyncAuthenticator
from msk_auth.integrations import AuditedRoute
from msk_auth.integrations.fastapi import FastAPIAuth
from msk_auth.stores.memory import AsyncMemoryKeyStore
from msk_auth.testing import list_routes
from task_service.api.openapi import problems
from task_service.app import create_app
from task_service.errors import TooManyRequests
from task_service.settings import Settings

Json: TypeAlias = Mapping[str, Any]

_METHODS: Final = ("get", "post", "put", "patch", "delete")
_SHARED: Final = {"401", "403", "411", "413", "500", "503"}
_TOO_MANY: Final = problems(TooManyRequests)[429]["description"]
_REF: Final = "#/components/schemas/"


@cache
def load() -> tuple[Json, dict[str, AuditedRoute]]:
    """Of the task service: as :func:`describe`."""
    with tempfile.TemporaryDirectory() as folder:
        return describe(create_app(Settings(data_dir=Path(folder))))


@cache
def load_library() -> tuple[Json, dict[str, AuditedRoute]]:
    """Of an application with every route of the library: as :func:`describe`."""

    async def find_owner(_owner_id: str) -> None:
        """The document needs no user."""

    store = AsyncMemoryKeyStore()
    authenticator = AsyncAuthenticator(
        store, find_owner=find_owner, may_act_for=lambda _principal, _owner_id: frozenset[str]()
    )
    auth = FastAPIAuth(authenticator)
    app = auth.install(FastAPI())
    app.include_router(auth.key_routes())
    app.include_router(auth.admin_key_routes("keys:admin"))
    app.include_router(auth.revocation_route(throttle=None))
    return describe(app)


def describe(app: FastAPI) -> tuple[Json, dict[str, AuditedRoute]]:
    """The OpenAPI document, and from the method and path of an operation to what its route demands."""
    routes = {
        key_of(method, route.path): route
        for route in list_routes(app).routes
        for method in route.methods
    }
    return app.openapi(), routes


def key_of(method: str, path: str) -> str:
    """What identifies an operation, however the parameters of its path are spelled: `GET /api/keys/{}`."""
    return f"{method} {re.sub(r'{[^}]*}', '{}', path)}"


def render_service() -> str:
    """The task service."""
    return render(*load())


def render_library() -> str:
    """The routes of the library."""
    return render(*load_library())


def render(document: Json, routes: Mapping[str, AuditedRoute]) -> str:
    """Every operation by its tag, then every shape."""
    by_tag: dict[str, list[str]] = {}
    for path, method, operation in operations(document):
        section = "\n\n".join(_operation(path, method, operation, routes))
        by_tag.setdefault(operation.get("tags", ["Other"])[0], []).append(section)
    parts: list[str] = []
    for tag, sections in by_tag.items():
        parts += [f"## {tag}", *sections]
    parts.append("## Shapes")
    for name, schema in sorted(document["components"]["schemas"].items()):
        parts += _shape(name, schema)
    return "\n\n".join(parts)


def operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    """Path, method and description of every operation."""
    for path, item in document["paths"].items():
        for method in _METHODS:
            if method in item:
                yield path, method.upper(), item[method]


def _operation(
    path: str, method: str, operation: Json, routes: Mapping[str, AuditedRoute]
) -> Iterator[str]:
    yield f"### {method} {path}"
    yield _words(operation)
    yield _access(routes.get(key_of(method, path)), operation)
    parameters = operation.get("parameters", [])
    if parameters:
        rows = [
            f"| `{each['name']}` | {each['in']} | {type_of(each['schema'])} |"
            f" {_note(each['schema'], each.get('required', False), each.get('description'))} |"
            for each in parameters
        ]
        yield "\n".join(["| parameter | in | type | |", "|---|---|---|---|", *rows])
    body = _content(operation.get("requestBody", {}))
    if body is not None:
        yield f"Body: {type_of(body)}"
        if "properties" in body:
            yield _members(body)
    for status, response in sorted(operation["responses"].items()):
        if status in _SHARED or response["description"] == _TOO_MANY:
            continue
        content = _content(response)
        shape = "" if content is None else f", {type_of(content)}"
        yield f"**{status}**{shape}. {response['description']}"


def _words(operation: Json) -> str:
    """The summary of a route of the library, then the description; FastAPI's own summary is the name of the function."""
    description = " ".join(str(operation.get("description", "")).split())
    if operation["summary"].istitle():
        return description
    return f"{operation['summary']}. {description}".strip()


def _access(route: AuditedRoute | None, operation: Json) -> str:
    if route is None or route.access == "undeclared" or not operation.get("security"):
        return "Needs no credentials."
    words = {
        "interactive": "**A login only**: API keys are refused with `interactive_required`.",
        "API key": "**An API key only**: logins are refused with `key_required`.",
        "any credential": "A login or any API key.",
        "authenticated": "A login, or an API key without scopes of its own.",
        "permissions": "A login or an API key.",
        "public": "Needs no credentials.",
    }[route.access]
    if route.permissions:
        words += " Permission: " + ", ".join(f"`{each}`" for each in route.permissions) + "."
    return words


def _content(part: Json) -> Json | None:
    for media in part.get("content", {}).values():
        return media.get("schema")  # type: ignore[no-any-return]
    return None


def _shape(name: str, schema: Json) -> Iterator[str]:
    yield f"### {name}"
    description = " ".join(str(schema.get("description", "")).split())
    if description:
        yield description
    if "enum" in schema:
        yield "One of " + ", ".join(f"`{each}`" for each in schema["enum"]) + "."
    if schema.get("properties"):
        yield _members(schema)


def _members(schema: Json) -> str:
    required = set(schema.get("required", ()))
    rows = [
        f"| `{name}` | {type_of(each)} | {_note(each, name in required, each.get('description'))} |"
        for name, each in schema["properties"].items()
    ]
    return "\n".join(["| member | type | |", "|---|---|---|", *rows])


def type_of(schema: Json) -> str:
    """The type of a value, with links to the shapes of this page."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(_REF)
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(type_of(each) for each in schema["anyOf"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    kinds = schema.get("type", "any")
    names = [kinds] if isinstance(kinds, str) else list(kinds)
    if "array" in names:
        names[names.index("array")] = f"list of {type_of(schema.get('items', {}))}"
    if "string" in names and "format" in schema:
        names[names.index("string")] = str(schema["format"])
    return " or ".join(names)


def _note(schema: Json, required: bool, description: str | None) -> str:
    words = [" ".join((description or "").split())]
    if required:
        words.append("required")
    low = schema.get("minimum", schema.get("minLength"))
    high = schema.get("maximum", schema.get("maxLength"))
    if low is not None and high is not None:
        words.append(f"{low} to {high}")
    if schema.get("default") is not None:
        words.append(f"`{schema['default']}` by default")
    return "; ".join(word for word in words if word).replace("|", "\\|")
