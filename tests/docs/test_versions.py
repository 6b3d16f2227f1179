"""*Added* and *Changed in version*: shown by the reference, demanded after the first release, numbered by each."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from docs.tools import versions

CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n- A name.\n\n## [0.2.0] - 2027-01-31\n\n## [0.1.0] - 2026-12-01\n"
NEW = "What it does.\n\nAdded in version next."


def test_the_marks_of_the_public_names_are_true() -> None:
    changelog = (versions.ROOT / "CHANGELOG.md").read_text("utf-8")
    texts = versions.docstrings()
    assert len(texts) > 150
    assert sum(bool(text) for text in texts.values()) > 150
    assert versions.problems(texts, changelog, versions.newest()) == []


def test_the_names_of_a_release_are_noted_with_the_first_one() -> None:
    changelog = (versions.ROOT / "CHANGELOG.md").read_text("utf-8")
    is_released = re.search(r"^## \[\d", changelog, re.MULTILINE) is not None
    assert (versions.newest() is not None) is is_released


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (NEW, "What it does.\n\n**Added in the next version**."),
        ("  Changed in version 0.2.0: it waits.", "  **Changed in version 0.2.0**: it waits."),
        ("Deprecated in version 1.0.0: use b.", "**Deprecated in version 1.0.0**: use b."),
        ("It was Added in version 0.2.0.", "It was Added in version 0.2.0."),
        ("Added in version 2.", "Added in version 2."),
    ],
)
def test_a_mark_is_shown(text: str, shown: str) -> None:
    assert versions.shown(text) == shown


@pytest.mark.parametrize(
    ("text", "released", "problem"),
    [
        ("Before the first release.", None, []),
        (NEW, None, ["a: nothing is released, so nothing is new"]),
        ("Of the first release.", ["a"], []),
        ("Newer.", ["b"], ["a: say 'Added in version next.'"]),
        (NEW, ["b"], []),
        ("Added in version 0.2.0.", ["a", "b"], []),
        ("Added in version 0.3.0.", ["b"], ["a: no version 0.3.0 is in CHANGELOG.md"]),
        ("Changed in version next: more.", ["a"], []),
    ],
)
def test_a_mark_has_to_be_true(text: str, released: list[str] | None, problem: list[str]) -> None:
    assert versions.problems({"a": text}, CHANGELOG, released) == problem


def test_a_release_leaves_nothing_for_the_next_version() -> None:
    empty = CHANGELOG.replace("- A name.\n\n", "")
    assert versions.problems({"a": NEW}, empty, ["b"]) == ["a: no version next is in CHANGELOG.md"]


def test_a_release_numbers_the_marks_and_notes_the_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "src" / "a.py"
    source.parent.mkdir()
    source.write_text(f'"""{NEW}\n\n    Changed in version 0.1.0: the next version.\n"""\n')
    page = tmp_path / "docs" / "reference" / "api" / "a.md"
    page.parent.mkdir(parents=True)
    page.write_text("# A\n\n::: msk_auth.b\n\n::: msk_auth.a\n")
    monkeypatch.setattr(versions, "ROOT", tmp_path)
    monkeypatch.setattr(versions, "RELEASED", tmp_path / "released.json")
    monkeypatch.setattr(sys, "argv", ["versions.py", "0.2.0"])
    assert versions.newest() is None
    versions.main()
    assert source.read_text() == (
        '"""What it does.\n\nAdded in version 0.2.0.\n\n    Changed in version 0.1.0: the next version.\n"""\n'
    )
    assert versions.newest() == ["msk_auth.a", "msk_auth.b"]
