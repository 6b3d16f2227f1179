"""The tests and the code that the explanations name exist."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cases import case

from msk_auth import CredentialKind

ROOT = Path(__file__).parents[2]
EXPLANATION = ROOT / "docs" / "explanation"

CALLED_UPON = sorted(
    {
        (path, name)
        for page in EXPLANATION.glob("*.md")
        for path, name in re.findall(r"`([\w/]+\.py)::(\w+)`", page.read_text("utf-8"))
    }
)


def test_a_test_that_is_called_upon_exists() -> None:
    for path, name in CALLED_UPON:
        with case(path, name):
            text = (ROOT / path).read_text("utf-8")
            assert re.search(rf"^ *(?:async )?def {name}\(", text, re.MULTILINE)


def test_every_attack_has_an_answer_and_a_test() -> None:
    text = (EXPLANATION / "threat-model.md").read_text("utf-8")
    families = text.partition("## Attacks and answers")[2].partition("## What is not")[0]
    rows = [
        line
        for line in families.splitlines()
        if line.startswith("| ") and not line.startswith(("| attack |", "| fault |"))
    ]
    assert len(rows) > 35
    assert [row for row in rows if re.search(r"\| `[\w/]+\.py::\w+` \|$", row) is None] == []


def test_every_kind_of_credential_is_explained() -> None:
    text = (EXPLANATION / "interactive.md").read_text("utf-8")
    assert set(re.findall(r"^\| `([A-Z_]+)` \|", text, re.MULTILINE)) == {
        kind.name for kind in CredentialKind
    }


def test_every_guarantee_names_tests_that_hold_it() -> None:
    text = (EXPLANATION / "guarantees.md").read_text("utf-8")
    guarantees = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert [each[:2] for each in guarantees] == [f"G{number}" for number in range(1, 9)]
    assert [each[:2] for each in guarantees if ".py::test_" not in each] == []
