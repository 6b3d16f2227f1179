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
_TIME: Final = "Enter a time, such as 2026-03-01T12:00:00Z."


def _written_time(value: object) -> object:
    # Pydantic also reads seconds since 1970, and would take a year for seconds.
    if isinstance(value, str) and "T" not in value.upper():
        raise ValueError(_TIME)
    return value


Time = Annotated[AwareDatetime, BeforeValidator(_written_time)]
"""A query parameter that is a time (RFC 3339)."""

Search = Annotated[str, StringConstraints(strip_whitespace=True, max_length=100)] | None
"""The query parameter that searches a listing; an empty search finds everything."""

_KINDS: Final[Mapping[str, Sequence[str]]] = {
    "This is required.": ["missing"],
    "Unknown field. Remove it.": ["extra_forbidden"],
    "Enter text.": ["string_type"],
    "Enter {max_length} characters at most.": ["string_too_long"],
    "This has invalid characters. Remove them.": ["string_unicode"],
    "Enter a whole number.": ["int_type", "int_parsing", "int_from_float"],
    "Enter a number.": ["float_type", "float_parsing", "finite_number"],
    "Enter true or false.": ["bool_type", "bool_parsing"],
    "Enter a number greater than {gt}.": ["greater_than"],
    "Enter {ge} or more.": ["greater_than_equal"],
    "Enter a number less than {lt}.": ["less_than"],
    "Enter {le} or less.": ["less_than_equal"],
    "Enter a list.": ["list_type", "tuple_type"],
    "Enter a JSON object.": ["dict_type", "model_type", "model_attributes_type"],
    "Choose one of: {expected}.": ["enum", "literal_error"],
    "Enter a time with its zone, such as 2026-03-01T12:00:00Z.": ["timezone_aware"],
    _TIME: ["datetime_type", "datetime_parsing", "datetime_from_date_parsing"],
}
"""The sentence for each of pydantic's types of errors."""

_SENTENCES: Final = {kind: sentence for sentence, kinds in _KINDS.items() for kind in kinds}
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
