"""The workflows: every action pinned, and no privileges for the code of a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
IDS = [path.name for path in WORKFLOWS]

PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}")


def load(path: Path) -> dict[Any, Any]:
    document: dict[Any, Any] = yaml.safe_load(path.read_text("utf-8"))
    return document


def steps(document: dict[Any, Any]) -> Iterator[dict[str, Any]]:
    for job in document["jobs"].values():
        yield from job["steps"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=IDS)
def test_every_action_is_pinned_by_its_commit(path: Path) -> None:
    used = [step["uses"] for step in steps(load(path)) if "uses" in step]
    assert used
    assert [name for name in used if PINNED.fullmatch(name) is None] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=IDS)
def test_no_code_of_a_pull_request_runs_with_privileges(path: Path) -> None:
    document = load(path)
    # YAML 1.1 reads `on` as a truth value.
    triggers = document[True]
    assert "pull_request_target" not in triggers
    assert "workflow_run" not in triggers
    for step in steps(document):
        # An expression in a script is replaced before the shell sees it: a branch may have any name.
        assert "${{" not in step.get("run", "")
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
    assert "secrets." not in path.read_text("utf-8")
