"""Finding handlers, refusing bad sets of them, and validating parameters under the client's names."""

from __future__ import annotations

import importlib.metadata
from typing import Annotated

import pytest
from pydantic import BaseModel, Field, SecretStr

from msk_auth.errors import ConfigurationError, InputInvalid
from task_service.handlers import (
    Handler,
    HandlerEnvironment,
    HandlerParams,
    HandlerRegistry,
    HandlerResult,
    RunContext,
)
from task_service.handlers.registry import MAX_PARAMS_BYTES

pytestmark = pytest.mark.anyio


async def nothing_allowed() -> list[str]:
    return []


ENVIRONMENT = HandlerEnvironment(allowed_commands=nothing_allowed)


class PrintParams(HandlerParams):
    text: str
    times: int = 1


class Print(Handler[PrintParams]):
    name = "print"
    title = "Print"
    description = "Prints."
    Params = PrintParams

    async def run(self, params: PrintParams, context: RunContext) -> HandlerResult:
        return HandlerResult(0)


def test_the_shipped_handlers_are_found() -> None:
    registry = HandlerRegistry.load(ENVIRONMENT)
    assert [handler.name for handler in registry] == ["command", "http_request"]
    described = {each.name: each for each in registry.describe()}
    assert described["command"].params_schema["required"] == ["argv"]
    assert described["http_request"].params_schema["additionalProperties"] is False
    assert described["http_request"].params_schema["properties"]["method"]["default"] == "GET"


class Part(BaseModel):
    password: SecretStr
    next: Part | None = None


class SecretParams(HandlerParams):
    plain: dict[str, str] | None = None
    one: SecretStr
    by_name: dict[str, SecretStr] | None = None
    optional: SecretStr | None = None
    several: list[Part] | None = None
    other_name: Annotated[SecretStr | None, Field(alias="otherName")] = None
    marked: Annotated[int, Field(json_schema_extra={"writeOnly": True})] = 0
    # Then the schema's root is a reference.
    itself: SecretParams | None = None


class Secretive(Handler[SecretParams]):
    name = "secretive"
    title = "Secretive"
    description = "Has secrets of all forms."
    Params = SecretParams

    async def run(self, params: SecretParams, context: RunContext) -> HandlerResult:
        return HandlerResult(0)


def test_a_field_is_secret_if_any_part_of_it_is() -> None:
    registry = HandlerRegistry([Secretive(ENVIRONMENT), Print(ENVIRONMENT)])
    secret = {"one", "by_name", "optional", "several", "otherName", "marked", "itself"}
    assert registry.secret_fields("secretive") == secret
    assert registry.secret_fields("print") == registry.secret_fields("unknown") == frozenset()
    (schema,) = [each.params_schema for each in registry.describe() if each.name == "secretive"]
    properties = schema["properties"]
    assert {name for name, field in properties.items() if field.get("writeOnly")} == secret


def entries(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    found = [
        importlib.metadata.EntryPoint(name, value, "task_service.handlers")
        for name, value in values.items()
    ]
    monkeypatch.setattr("task_service.handlers.registry.entry_points", lambda **_: found)


def test_a_handler_that_cannot_be_loaded_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    entries(monkeypatch, broken="no_such_module:Broken")
    with pytest.raises(ConfigurationError, match="'broken'"):
        HandlerRegistry.load(ENVIRONMENT)


def test_two_handlers_of_one_name_stop_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    command = "task_service.handlers.command:Command"
    entries(monkeypatch, one=command, two=command)
    with pytest.raises(ConfigurationError, match="'command'"):
        HandlerRegistry.load(ENVIRONMENT)


@pytest.mark.parametrize("name", ["", "Print", "1st", "a-b", "a" * 65, "a\n"])
def test_a_bad_name_stops_the_start(name: str) -> None:
    bad = type("Bad", (Print,), {"name": name})
    with pytest.raises(ConfigurationError, match="lower-case"):
        HandlerRegistry([bad(ENVIRONMENT)])


async def fields(registry: HandlerRegistry, name: str, params: object) -> list[str]:
    with pytest.raises(InputInvalid) as refusal:
        await registry.check(name, params)
    return [error.field for error in refusal.value.errors]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, ["params.text"]),
        ({"text": 1}, ["params.text"]),
        ({"text": "a", "times": "2"}, ["params.times"]),
        ({"text": "a", "times": True}, ["params.times"]),
        ({"text": "a", "more": 1}, ["params.more"]),
        ({"text": None, "times": None}, ["params.text", "params.times"]),
        ([], ["params"]),
        ("text", ["params"]),
        (None, ["params"]),
        ({"text": "\ud800"}, ["params"]),
        ({"\udfff": ""}, ["params"]),
        ({"text": float("nan")}, ["params"]),
        ({"text": object()}, ["params"]),
        ({"text": "a" * MAX_PARAMS_BYTES}, ["params"]),
    ],
)
async def test_bad_parameters_are_named(params: object, expected: list[str]) -> None:
    assert await fields(HandlerRegistry([Print(ENVIRONMENT)]), "print", params) == expected


async def test_excessively_nested_parameters_are_refused() -> None:
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    assert await fields(HandlerRegistry([Print(ENVIRONMENT)]), "print", {"text": nested}) == [
        "params"
    ]


async def test_the_errors_of_one_request_are_bounded() -> None:
    registry = HandlerRegistry([Print(ENVIRONMENT)])
    assert len(await fields(registry, "print", {f"x{index}": 0 for index in range(1000)})) == 20


async def test_an_unknown_handler_is_named_with_those_that_exist() -> None:
    with pytest.raises(InputInvalid, match="Installed: print") as refusal:
        await HandlerRegistry([Print(ENVIRONMENT)]).check("prince", {})
    assert [error.field for error in refusal.value.errors] == ["handler"]
    with pytest.raises(InputInvalid, match="none"):
        await HandlerRegistry([]).check("print", {})


async def test_a_handler_without_further_rules_allows_what_is_well_formed() -> None:
    handler, params = await HandlerRegistry([Print(ENVIRONMENT)]).check("print", {"text": "a"})
    assert isinstance(handler, Print)
    assert params == PrintParams(text="a")
