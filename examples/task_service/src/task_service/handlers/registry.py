"""The handlers of this deployment, found through entry points, and the validation of tasks' parameters."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from importlib.metadata import entry_points
from typing import Any

from pydantic import BaseModel, ValidationError

from msk_auth.errors import ConfigurationError, InputInvalid
from task_service.validation import input_invalid

from .base import Handler, HandlerEnvironment, HandlerParams

ENTRY_POINT_GROUP = "task_service.handlers"
MAX_PARAMS_BYTES = 256 * 1024
"""The maximum length of a task's parameters as JSON."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


class HandlerDescription(BaseModel):
    """A handler as `GET /api/handlers` shows it, with the JSON schema of its parameters."""

    name: str
    title: str
    description: str
    params_schema: dict[str, Any]


class HandlerRegistry:
    """Every handler by its name.

    Args:
        handlers: The handlers, constructed.

    Raises:
        ConfigurationError: Two handlers have the same name, or a name is malformed.
    """

    def __init__(self, handlers: Iterable[Handler[Any]]) -> None:
        self._handlers: dict[str, Handler[Any]] = {}
        self._secret_fields: dict[str, frozenset[str]] = {}
        for handler in sorted(handlers, key=lambda each: each.name):
            if _NAME.fullmatch(handler.name) is None:
                raise ConfigurationError(
                    f"The handler name {handler.name!r} is malformed. Use lower-case letters, digits and underscores."
                )
            if handler.name in self._handlers:
                raise ConfigurationError(
                    f"Two installed handlers are named {handler.name!r}. Uninstall one of them."
                )
            self._handlers[handler.name] = handler
            properties = _schema_of(handler).get("properties", {})
            self._secret_fields[handler.name] = frozenset(
                field for field, schema in properties.items() if schema.get("writeOnly")
            )

    @classmethod
    def load(cls, environment: HandlerEnvironment) -> HandlerRegistry:
        """Construct every handler that an installed distribution provides.

        Args:
            environment: Passed to each handler's constructor.

        Raises:
            ConfigurationError: A handler cannot be loaded, or two have the same name.
        """
        handlers: list[Handler[Any]] = []
        for entry in entry_points(group=ENTRY_POINT_GROUP):
            try:
                handlers.append(entry.load()(environment))
            except Exception as error:
                raise ConfigurationError(
                    f"The handler {entry.name!r} ({entry.value}) cannot be loaded: {error!r}. Repair or uninstall it."
                ) from error
        return cls(handlers)

    def __iter__(self) -> Iterator[Handler[Any]]:
        return iter(self._handlers.values())

    def describe(self) -> list[HandlerDescription]:
        """Every handler's description, sorted by name. Secret fields are `writeOnly` in the schema."""
        return [
            HandlerDescription(
                name=handler.name,
                title=handler.title,
                description=handler.description,
                params_schema=_schema_of(handler),
            )
            for handler in self
        ]

    def secret_fields(self, name: str) -> frozenset[str]:
        """The names of a handler's secret parameters; none if there is no such handler."""
        return self._secret_fields.get(name, frozenset())

    async def check(self, name: str, params: object) -> tuple[Handler[Any], HandlerParams]:
        """Find a handler, and validate parameters for it.

        Args:
            name: The handler's name.
            params: The task's parameters, as parsed JSON.

        Raises:
            InputInvalid: Field `handler` for an unknown handler. Fields `params.…` for parameters that the handler does not
                accept, or that the deployment does not presently allow.
        """
        handler = self._handlers.get(name)
        if handler is None:
            known = ", ".join(self._handlers) or "none"
            raise InputInvalid.of("handler", f"Unknown handler. Installed: {known}.")
        _refuse_unstorable(params)
        try:
            parsed = handler.Params.model_validate(params)
        except ValidationError as error:
            raise input_invalid(error, "params") from None
        await handler.check(parsed)
        return handler, parsed


def _schema_of(handler: Handler[Any]) -> dict[str, Any]:
    """The JSON schema of a handler's parameters, where a field is `writeOnly` if any part of it is."""
    schema: dict[str, Any] = handler.Params.model_json_schema()
    if "$ref" in schema:
        # The parameters refer to their own model.
        schema |= schema["$defs"][schema.pop("$ref").removeprefix("#/$defs/")]
    texts = {
        f'"#/$defs/{name}"': json.dumps(part) for name, part in schema.get("$defs", {}).items()
    }
    # The mark of a secret, and the references to definitions that contain a mark. In a text's value the quotes are escaped.
    marks = {'"writeOnly": true'}
    while found := {
        reference
        for reference, text in texts.items()
        if reference not in marks and any(mark in text for mark in marks)
    }:
        marks |= found
    for field in schema.get("properties", {}).values():
        if any(mark in json.dumps(field) for mark in marks):
            field["writeOnly"] = True
    return schema


def _refuse_unstorable(params: object) -> None:
    """Refuse too long parameters, and values that a database does not store as JSON, such as lone surrogates and NaN."""
    try:
        size = len(json.dumps(params, ensure_ascii=False, allow_nan=False).encode())
    except (TypeError, ValueError, RecursionError):
        raise InputInvalid.of(
            "params", "The parameters are not valid JSON. Send plain JSON in valid Unicode."
        ) from None
    if size > MAX_PARAMS_BYTES:
        raise InputInvalid.of(
            "params", f"The parameters are too long. Send at most {MAX_PARAMS_BYTES} bytes."
        )
