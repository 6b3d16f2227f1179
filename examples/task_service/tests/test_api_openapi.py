"""The OpenAPI document. That it has every answer of the service is checked with each answer in the other tests."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from examples.task_service.tests.service_support import Caller, Service, expect

pytestmark = pytest.mark.anyio

DOCUMENT = Path(__file__).parents[1] / "openapi.json"


@pytest.fixture
async def document(service: Service) -> dict[str, Any]:
    found: dict[str, Any] = expect(await service.caller().get("/openapi.json"), 200)
    return found


def operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        operation["operationId"]: operation
        for item in document["paths"].values()
        for operation in item.values()
    }


async def test_a_change_of_the_document_shows_in_the_repository(document: dict[str, Any]) -> None:
    """So that a review sees what a change does to clients."""
    text = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    if "WRITE_OPENAPI" in os.environ:
        DOCUMENT.write_text(text, "utf-8")
    # Not compared by the assertion, which would take minutes to show ten thousand lines.
    is_same = DOCUMENT.read_text("utf-8") == text
    assert is_same, f"run WRITE_OPENAPI=1 pytest {__file__}, and look at what differs"


async def test_every_operation_has_a_stable_name_and_words_of_its_own(
    document: dict[str, Any],
) -> None:
    found = operations(document)
    assert len(found) == sum(len(item) for item in document["paths"].values())
    for name, operation in found.items():
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", name)
        assert operation["summary"] or operation["description"], name
    assert found["run_task"]["description"].startswith("Run a task.")
    assert "Idempotency-Key" in found["run_task"]["description"]


async def test_path_parameters_have_the_form_of_their_ids(
    document: dict[str, Any],
) -> None:
    names = set(re.findall(r"\{(.+?)\}", " ".join(document["paths"])))
    assert names == {"accountId", "key_id", "runId", "sessionId", "taskId", "userId"}
    for path, item in document["paths"].items():
        for operation in item.values():
            described = {
                each["name"]: each
                for each in operation.get("parameters", [])
                if each["in"] == "path"
            }
            assert described.keys() == set(re.findall(r"\{(.+?)\}", path))
    task_id = next(
        each for each in operations(document)["get_task"]["parameters"] if each["name"] == "taskId"
    )
    assert task_id["description"] == "The id of the task."
    assert task_id["schema"]["pattern"] == "^tsk_[0-9A-Za-z]{16}$"


async def test_what_the_document_allows_is_not_refused_for_its_form(
    document: dict[str, Any], admin: Caller
) -> None:
    task = await admin.new_task()
    for path, item in document["paths"].items():
        limits = [
            each["schema"]["maximum"]
            for each in item.get("get", {}).get("parameters", [])
            if each["name"] == "limit"
        ]
        if limits and "{" not in path:
            expect(await admin.get(f"{path}?limit={limits[0]}"), 200)
    expect(await admin.get(f"/api/tasks/{task['id']}/runs?limit=200"), 200)
    expect(await admin.get("/api/tasks?recent_runs=20"), 200)
    # A whole number, however it is written, is an integer to JSON Schema.
    whole = (
        '{"timeout_seconds": 30.0, "name": "a", "handler": "command", "params": {"argv": ["echo"]}}'
    )
    sent = {"content": whole, "headers": {"Content-Type": "application/json"}}
    assert expect(await admin.request("POST", "/api/tasks", **sent), 201)["timeout_seconds"] == 30
    # Only long names are refused, whatever their characters.
    for name, message in (("\b", "Unknown field"), ("n" * 200, "Unknown field")):
        body = {"name": "a", "handler": "command", "params": {"argv": ["echo"], name: {"\x7f": 1}}}
        refused = await admin.post("/api/tasks", body)
        [error] = refused.json()["errors"]
        assert error["message"].startswith(message)


async def test_the_document_refuses_what_the_service_refuses(
    document: dict[str, Any], admin: Caller
) -> None:
    paths = {"NewUser": "/api/admin/users", "NewApiKey": "/api/keys", "NewTask": "/api/tasks"}
    for schema, member, good, bad in (
        (
            "NewUser",
            "username",
            ["ada", " Ada ", "ünïcode"],
            ["", " ", "Say hello", "a\x07", "a" * 65],
        ),
        ("NewServiceAccount", "name", ["deploy-bot"], ["", "Say hello"]),
        (
            "NewServiceAccount",
            "description",
            ["", "Deploys", " a b "],
            ["a\x13b", "a\nb", "x" * 501],
        ),
        ("NewTask", "name", ["a", " a b "], ["", "  ", "a\nb", "a" * 101]),
        ("NewApiKey", "name", ["a b"], ["", "a\x85b"]),
        ("NewApiKey", "description", ["", "a b"], ["a\x00b"]),
    ):
        path = paths.get(schema, "/api/admin/service-accounts")
        described = document["components"]["schemas"][schema]["properties"][member]
        text = next(iter(described.get("anyOf", [described])))
        others: dict[str, Any] = {"role": "user"} if schema == "NewUser" else {"name": "other"}
        if schema == "NewTask":
            others = {"handler": "command", "params": {"argv": ["echo"]}}
        for value in (*good, *bad):
            fits = (
                text.get("minLength", 0) <= len(value) <= text["maxLength"]
                and re.search(text["pattern"], value) is not None
            )
            answered = await admin.post(path, {**others, member: value})
            assert fits == (value in good) == (answered.status_code in {201, 409}), value
