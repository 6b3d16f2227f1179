"""Types of query parameters; and errors of inputs in plain sentences, because pydantic's own messages are for programmers.

A message says what to enter. The service's own validators and handlers already write such messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, cast, get_args

from pydantic import AwareDatetime, BeforeValidator, StringConstraints, ValidationError
from pydantic_core.core_schema import ErrorType

from msk_auth.errors import InputInvalid

_MAX_ERRORS: Final = 20


def _written_time(value: object) -> object:
    # Pydantic also reads seconds since 1970, and would take a year for seconds.
    if isinstance(value, str) and "T" not in value.upper():
        raise ValueError("Enter a time, such as 2026-03-01T12:00:00Z.")
    return value


Time = Annotated[AwareDatetime, BeforeValidator(_written_time)]
"""A query parameter that is a time (RFC 3339)."""

Search = Annotated[str, StringConstraints(strip_whitespace=True, max_length=100)] | None
"""The query parameter that searches a listing; an empty search finds everything."""

_SENTENCES: Final[Mapping[str, str]] = {
    "missing": "This is required.",
    "extra_forbidden": "Unknown field. Remove it.",
    "string_type": "Enter text.",
    "string_too_long": "Enter {max_length} characters at most.",
    "string_pattern_mismatch": "This has the wrong form.",
    "int_type": "Enter a whole number.",
    "int_parsing": "Enter a whole number.",
    "int_from_float": "Enter a whole number.",
    "float_type": "Enter a number.",
    "float_parsing": "Enter a number.",
    "finite_number": "Enter a number.",
    "bool_type": "Enter true or false.",
    "bool_parsing": "Enter true or false.",
    "greater_than": "Enter a number greater than {gt}.",
    "greater_than_equal": "Enter {ge} or more.",
    "less_than": "Enter a number less than {lt}.",
    "less_than_equal": "Enter {le} or less.",
    "list_type": "Enter a list.",
    "tuple_type": "Enter a list.",
    "dict_type": "Enter a JSON object.",
    "model_type": "Enter a JSON object.",
    "model_attributes_type": "Enter a JSON object.",
    "enum": "Choose one of: {expected}.",
    "literal_error": "Choose one of: {expected}.",
    "timezone_aware": "Enter a time with its zone, such as 2026-03-01T12:00:00Z.",
    "datetime_type": "Enter a time, such as 2026-03-01T12:00:00Z.",
    "datetime_parsing": "Enter a time, such as 2026-03-01T12:00:00Z.",
    "datetime_from_date_parsing": "Enter a time, such as 2026-03-01T12:00:00Z.",
}
_AT_LEAST: Final[Mapping[str, Callable[[int], str]]] = {
    "string_too_short": lambda least: (
        "This cannot be empty." if least == 1 else f"Enter at least {least} characters."
    ),
    "too_short": lambda least: "Enter at least one." if least == 1 else f"Enter at least {least}.",
    "too_long": lambda most: f"Enter {most} at most.",
}
# Used for pydantic's types without their own sentence.
_OF_PYDANTIC: Final = frozenset(get_args(ErrorType))
_OTHERWISE: Final = "This has the wrong form."


def message_of(error: Mapping[str, Any]) -> str:
    """The sentence for one of pydantic's errors.

    Args:
        error: The error, with `type`, `msg` and `ctx`.
    """
    kind = str(error["type"])
    if kind in {"value_error", "assertion_error"}:
        return str(error["msg"]).partition(", ")[2]
    if kind not in _OF_PYDANTIC:
        # A handler's own message.
        return str(error["msg"])
    context = cast("Mapping[str, Any]", error.get("ctx", {}))
    if kind in _AT_LEAST:
        return _AT_LEAST[kind](context["max_length" if kind == "too_long" else "min_length"])
    values = {name: str(value).replace("'", "") for name, value in context.items()}
    return _SENTENCES.get(kind, _OTHERWISE).format(**values)


def in_plain_words(errors: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The errors with sentences in place of their messages."""
    return [{**error, "msg": message_of(error)} for error in errors]


def input_invalid(error: ValidationError, *place: str) -> InputInvalid:
    """The errors of a model that the client has filled in, under the names that the client used.

    Args:
        error: What pydantic found.
        place: Where the model is in the body.
    """
    found = error.errors(include_url=False, include_input=False)
    return InputInvalid(
        [
            (".".join((*place, *map(str, each["loc"]))), message_of(each))
            for each in found[:_MAX_ERRORS]
        ]
    )
