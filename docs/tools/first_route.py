"""The smallest application of each framework, as tabs: the snippets that the README prints and the tests run."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SNIPPETS: Final = Path(__file__).parents[1] / "snippets"
_FRAMEWORKS: Final = ("FastAPI", "Flask", "Litestar", "Starlette")


def render() -> str:
    """One tab for each framework."""
    return "\n\n".join(_tab(framework) for framework in _FRAMEWORKS)


def _tab(framework: str) -> str:
    code = (SNIPPETS / f"{framework.lower()}_minimal.py").read_text("utf-8")
    # A word to the formatter is none to readers.
    lines = ["```python", *code.replace("  # fmt: skip", "").splitlines(), "```"]
    return "\n".join([f'=== "{framework}"', "", *(f"    {line}".rstrip() for line in lines)])
