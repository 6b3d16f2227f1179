"""What is generated matches its source: parts of pages, diagrams, the README's figures."""

from __future__ import annotations

import re
from pathlib import Path

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
