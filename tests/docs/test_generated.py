"""What is generated matches its source: parts of pages, diagrams, the README's figures, the lists of pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from docs.tools import diagrams, hooks, readme

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


def asked(marker: str) -> list[str]:
    return [name for path in PAGES for name in re.findall(marker, path.read_text("utf-8"))]


def test_every_generated_part_and_diagram_is_on_a_page() -> None:
    assert sorted(asked(r"<!-- generated: ([a-z-]+) -->")) == sorted(hooks.GENERATED)
    assert set(asked(r"<!-- drawn: (\w+) -->")) == diagrams.DRAWN.keys()


def test_the_readme_is_what_the_results_make_of_it() -> None:
    text = readme.README.read_text("utf-8")
    assert readme.rewritten(text) == text, "run: python docs/tools/readme.py"


@pytest.mark.parametrize("section", ["explanation", "how-to", "tutorials", "reference"])
def test_the_first_page_of_a_section_names_all_others(section: str) -> None:
    index = (DOCS / section / "index.md").read_text("utf-8")
    others = {path.name for path in (DOCS / section).glob("*.md")} - {"index.md", "decisions.md"}
    assert {name for name in others if f"]({name})" not in index} == set()
