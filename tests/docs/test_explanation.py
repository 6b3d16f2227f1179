"""The tests and the code that the explanations name exist."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cases import case

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "tests" / "security" / "README.md",
    *(ROOT / "docs" / "explanation").glob("*.md"),
]

CALLED_UPON = sorted(
    {
        (path, name)
        for page in PAGES
        for path, name in re.findall(r"`([\w/]+\.py)::(\w+)`", page.read_text("utf-8"))
    }
)


def test_a_test_that_is_called_upon_exists() -> None:
    for path, name in CALLED_UPON:
        with case(path, name):
            text = (ROOT / path).read_text("utf-8")
            assert re.search(rf"^ *(?:async )?def {name}\(", text, re.MULTILINE)
