"""Puts figures, facts, patches and reference into the README and the pages, which people read in the repository as well.

`python docs/tools/parts.py` rewrites the parts between `<!-- begin: … -->` and `<!-- end -->`; a test holds the files to them.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
# Started as a program, Python looks for modules beside this file only.
sys.path.insert(0, str(ROOT))

from docs.tools import (  # noqa: E402 - see above
    benchmarks_page,
    commands_page,
    existing,
    layers,
    peers,
    settings_page,
)

FILES: Final = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
BENCHMARKS: Final = ROOT / "docs" / "assets" / "benchmarks"

_PART: Final = re.compile(r"(<!-- begin: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

# What the README shows of all that is measured: the file, its row, and how to say it.
_FIGURES: Final = (
    ("verification", "key, leased, awaited", "a key, verified a moment ago (cache on)"),
    ("verification", "key, read from memory", "a key, read from memory"),
    ("authoritative", "verification awaited", "a key, read from SQLite"),
    ("verification", "HS256, leased", "a login token (HS256), verified a moment ago (cache on)"),
    ("verification", "HS256, first sight", "a login token (HS256), at first sight"),
    ("verification", "malformed key", "garbage, refused"),
)
_QUESTIONS: Final = (
    "microseconds",
    "writes_on_each_request",
    "key_has_an_owner",
    "routes_open_as_shipped",
    "key_makes_keys",
    "revoked_accepted_from_cache",
)


def figures() -> str:
    """A table of ratios, and the command that makes them."""
    lines = ["| verifying | takes, compared with | |", "|---|---|---|"]
    for name, row_name, words in _FIGURES:
        row = next(each for each in _result(name)["rows"] if each["name"] == row_name)
        lines.append(f"| {words} | {row['against']} | × {row['cells']['ratio']['median']:.2g} |")
    measured = _result("verification")["measured"]
    return (
        "\n".join(lines)
        + f"\n\nMeasured on {measured['date']} with `make bench`, each pair in one interleaved run; *least work* reads the"
        " header and checks\none HMAC or signature. The rest is in"
        " [Performance](docs/explanation/performance.md)."
    )


def facts() -> str:
    """The rows of the comparison that decide most often."""
    answers = json.loads(peers.RESULT.read_text("utf-8"))["answers"]
    return peers.table(peers.with_keys(answers), _QUESTIONS)


PARTS: Final[dict[str, Callable[[], str]]] = {
    "benchmark-aims": benchmarks_page.render_aims,
    **{
        f"existing-{name.replace('_', '-')}": partial(existing.render, name)
        for name in existing.names()
    },
    "commands": commands_page.render,
    "facts": facts,
    "figures": figures,
    "layers": layers.render,
    "peers": peers.render,
    "settings": settings_page.render,
}
"""From the name of a part to what it is made by."""


def rewritten(text: str) -> str:
    """A file with every part made anew."""
    # Without the empty lines Markdown takes a table for a part of the comment.
    return _PART.sub(lambda match: f"{match[1]}\n{PARTS[match[2]]()}\n\n{match[3]}", text)


def _result(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((BENCHMARKS / f"{name}.json").read_text("utf-8"))
    return result


if __name__ == "__main__":
    for file in FILES:
        text = file.read_text("utf-8")
        if (new := rewritten(text)) != text:
            file.write_text(new, "utf-8")
