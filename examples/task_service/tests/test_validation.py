"""Messages for people: none of pydantic's own, in problems of the API and of handlers' parameters."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, get_args

import pytest
from examples.task_service.tests.service_support import Caller, wrong_fields
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core.core_schema import ErrorType

from task_service.validation import message_of

TASK = {"name": "n", "handler": "command", "params": {"argv": ["echo"]}}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (str, 1, "Enter text."),
        (Annotated[str, Field(min_length=1)], "", "This cannot be empty."),
        (Annotated[str, Field(min_length=3)], "a", "Enter at least 3 characters."),
        (Annotated[str, Field(max_length=3)], "abcd", "Enter 3 characters at most."),
        (
            Annotated[str, Field(max_length=3)],
            "\ud800",
            "This has invalid characters. Remove them.",
        ),
        (Annotated[list[int], Field(min_length=1)], [], "Enter at least one."),
        (Annotated[list[int], Field(min_length=2)], [], "Enter at least 2."),
        (Annotated[list[int], Field(max_length=1)], [1, 2], "Enter 1 at most."),
        (Annotated[int, Field(ge=2)], 1, "Enter 2 or more."),
        (Annotated[int, Field(lt=2)], 2, "Enter a number less than 2."),
        (int, "x", "Enter a whole number."),
        (bool, "perhaps", "Enter true or false."),
        (Literal["a", "b"], "c", "Choose one of: a or b."),
        (
            AwareDatetime,
            datetime(2026, 1, 1),  # noqa: DTZ001
            "Enter a time with its zone, such as 2026-03-01T12:00:00Z.",
        ),
        (bytes, 1, "This has the wrong form."),
        (_Strict, {"more": 1}, "Unknown field. Remove it."),
    ],
)
def test_a_message_says_what_to_enter(kind: Any, value: object, message: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        TypeAdapter(kind).validate_python(value)
    assert [message_of(error) for error in refusal.value.errors()] == [message]


def test_messages_of_validators_and_handlers_stay_as_they_are() -> None:
    def message(error: dict[str, Any]) -> str:
        return message_of(error)

    assert message({"type": "value_error", "msg": "Value error, One, two."}) == "One, two."
    assert message({"type": "assertion_error", "msg": "Assertion failed, One."}) == "One."
    assert message({"type": "too_red", "msg": "This is too red."}) == "This is too red."


def test_every_error_of_pydantic_has_a_sentence() -> None:
    context = dict.fromkeys(("ge", "gt", "le", "lt", "expected", "min_length", "max_length"), 7)
    for kind in get_args(ErrorType):
        if kind in {"value_error", "assertion_error"}:
            continue
        message = message_of({"type": kind, "msg": "not this", "ctx": context})
        assert message.endswith(".")
        assert "not this" not in message


@pytest.mark.anyio
async def test_the_api_says_it_in_plain_words(user: Caller) -> None:
    for body, field, message in (
        ({**TASK, "name": ""}, "name", "This cannot be empty."),
        ({**TASK, "name": "a\nb"}, "name", "The name must be one line of printable characters."),
        ({"handler": "command"}, "name", "This is required."),
        ({**TASK, "params": {"argv": []}}, "params.argv", "Enter at least one."),
        ({**TASK, "params": {"argv": [1]}}, "params.argv.0", "Enter text."),
    ):
        response = await user.post("/api/tasks", body)
        assert wrong_fields(response) == {field}
        assert response.json()["errors"] == [{"field": field, "message": message}]
