"""The handlers of this deployment, found through entry points, and the validation of what tasks hand to them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from importlib.metadata import entry_points
from typing import Any

from pydantic import BaseModel, ValidationError

from msk_auth import ConfigurationError, FieldError, InputInvalid

from .base import Handler, HandlerEnvironment, HandlerParams

ENTRY_POINT_GROUP = "task_service.handlers"
MAX_PARAMS_BYTES = 256 * 1024
"""How long a task's parameters may be as JSON."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_MAX_ERRORS = 20


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
        ConfigurationError: Two handlers have one name, or a name is not acceptable.
    """

    def __init__(self, handlers: Iterable[Handler[Any]]) -> None:
        self._handlers: dict[str, Handler[Any]] = {}
        for handler in sorted(handlers, key=lambda each: each.name):
            if _NAME.fullmatch(handler.name) is None:
                raise ConfigurationError(
                    f"The handler name {handler.name!r} must be lower-case letters, digits and underscores."
                )
            if handler.name in self._handlers:
                raise ConfigurationError(
                    f"Two installed handlers are called {handler.name!r}. Uninstall one of them."
                )
            self._handlers[handler.name] = handler

    @classmethod
    def load(cls, environment: HandlerEnvironment) -> HandlerRegistry:
        """Construct every handler that an installed distribution offers.

        Args:
            environment: What each handler is constructed with.

        Raises:
            ConfigurationError: A handler cannot be loaded, or two have one name.
        """
        handlers: list[Handler[Any]] = []
        for entry in entry_points(group=ENTRY_POINT_GROUP):
            try:
                handlers.append(entry.load()(environment))
            except Exception as error:
                raise ConfigurationError(
                    f"The handler {entry.name!r} ({entry.value}) cannot be loaded: {error!r}"
                ) from error
        return cls(handlers)

    def __iter__(self) -> Iterator[Handler[Any]]:
        return iter(self._handlers.values())

    def describe(self) -> list[HandlerDescription]:
        """What a form needs to know, by name."""
        return [
            HandlerDescription(
                name=handler.name,
                title=handler.title,
                description=handler.description,
                params_schema=handler.Params.model_json_schema(),
            )
            for handler in self
        ]

    def parse(self, name: str, params: object) -> tuple[Handler[Any], HandlerParams]:
        """Find a handler and validate parameters for it, without asking what is allowed now.

        Args:
            name: The handler's name.
            params: What the task has for it, as parsed JSON.

        Raises:
            InputInvalid: Field `handler` when there is none of this name, else fields `params.…`.
        """
        handler = self._handlers.get(name)
        if handler is None:
            known = ", ".join(self._handlers) or "none"
            raise InputInvalid.of("handler", f"There is no such handler. Installed are: {known}.")
        _refuse_unstorable(params)
        try:
            return handler, handler.Params.model_validate(params)
        except ValidationError as error:
            raise InputInvalid(_fields(error)) from None

    async def check(self, name: str, params: object) -> tuple[Handler[Any], HandlerParams]:
        """As :meth:`parse`, and refuse what the deployment does not allow now."""
        handler, parsed = self.parse(name, params)
        await handler.check(parsed)
        return handler, parsed


def _refuse_unstorable(params: object) -> None:
    """Lone surrogates, NaN and the like are no JSON that a database takes; and nothing may be huge."""
    try:
        size = len(json.dumps(params, ensure_ascii=False, allow_nan=False).encode())
    except (TypeError, ValueError, RecursionError):
        raise InputInvalid.of(
            "params", "The parameters must be plain JSON in valid Unicode."
        ) from None
    if size > MAX_PARAMS_BYTES:
        raise InputInvalid.of("params", f"The parameters may be {MAX_PARAMS_BYTES} bytes at most.")


def _fields(error: ValidationError) -> list[FieldError]:
    """Pydantic's findings under the names that the client used."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return [
        FieldError(
            ".".join(("params", *(str(part) for part in each["loc"]))),
            each["msg"].removeprefix("Value error, "),
        )
        for each in found[:_MAX_ERRORS]
    ]
