"""What is generated matches its source: parts of pages, of the README and of guides, and diagrams."""

from __future__ import annotations

import re

from docs.tools import diagrams, hooks, parts


def asked(marker: str) -> list[str]:
    return [name for path in parts.FILES for name in re.findall(marker, path.read_text("utf-8"))]


def test_every_generated_part_and_diagram_is_on_a_page() -> None:
    assert sorted(asked(r"<!-- generated: ([a-z-]+) -->")) == sorted(hooks.GENERATED)
    assert sorted(asked(r"<!-- begin: ([a-z-]+) -->")) == sorted(parts.PARTS)
    assert set(asked(r"<!-- drawn: (\w+) -->")) == diagrams.DRAWN.keys()


def test_the_parts_of_a_file_are_what_their_sources_make_of_them() -> None:
    for path in parts.FILES:
        text = path.read_text("utf-8")
        assert parts.rewritten(text) == text, f"{path}: run python docs/tools/parts.py"
