"""The README shows what is tested: its short examples are the snippets, and its links lead to files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")


@pytest.mark.parametrize(
    "snippet", sorted((ROOT / "docs" / "snippets").glob("*.py")), ids=lambda path: path.stem
)
def test_the_readme_shows_the_tested_snippet(snippet: Path) -> None:
    assert f"```python\n{snippet.read_text('utf-8')}```" in README


def test_the_files_that_the_readme_points_at_exist() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links != []
    assert [link for link in links if not (ROOT / link).exists()] == []
