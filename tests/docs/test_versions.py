"""*Added* and *Changed in version*: shown by the reference, demanded after the first release, numbered by each."""

from __future__ import annotations

from docs.tools import versions


def test_the_marks_of_the_public_names_are_true() -> None:
    changelog = (versions.ROOT / "CHANGELOG.md").read_text("utf-8")
    texts = versions.docstrings()
    assert all(texts.values())
    assert versions.problems(texts, changelog, versions.newest()) == []
