"""The README's figures and facts are those that were measured and found out."""

from __future__ import annotations

import re
from pathlib import Path

from docs.tools import readme

TEXT = readme.README.read_text("utf-8")


def test_the_readme_is_what_the_results_make_of_it() -> None:
    assert readme.rewritten(TEXT) == TEXT, "run: python docs/tools/readme.py"


def test_every_part_is_in_the_readme() -> None:
    assert re.findall(r"<!-- begin: ([a-z-]+) -->", TEXT) == list(readme.PARTS)


def test_a_figure_is_shown_with_its_conditions() -> None:
    part = readme.figures()
    assert len(re.findall(r"^\| .* × [\d.]+ \|$", part, re.MULTILINE)) == len(readme._FIGURES)
    assert "`make bench`" in part


def test_what_a_newcomer_asks_is_answered_in_order() -> None:
    titles = re.findall(r"^## (.+)$", TEXT, re.MULTILINE)
    assert titles == [
        "Protect a route",
        "Try the task service",
        "What it promises",
        "What it costs",
        "Why not another package",
        "Where to go next",
    ]
    # Whom it is for stands before anything that takes time to read.
    assert TEXT.index("**It is for you if**") < TEXT.index("## Protect a route")
    first = TEXT.partition("\n\n")[2].partition("\n\n")[0]
    assert len(re.findall(r"[.](?:\s|$)", first)) == 3
    assert Path(readme.ROOT / "docs" / "assets" / "keys-light.png").is_file()
