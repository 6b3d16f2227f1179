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

# What the README shows of all that is measured: the file, the group of its row, the row, and how to say it.
_FIGURES: Final = (
    ("verification", "API key", "key, leased, awaited", "a key again, with the cache on"),
    ("verification", "API key", "key, read from memory", "a key, from memory"),
    ("authoritative", "SQLite", "verification awaited", "a key, from SQLite"),
    ("authoritative", "PostgreSQL", "verification awaited", "a key, from PostgreSQL"),
    ("verification", "Login token", "HS256, leased", "a login token again, with the cache on"),
    ("verification", "Login token", "HS256, first sight", "a login token (HS256)"),
    ("verification", "Refused", "malformed key", "garbage, which is refused"),
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
    """A table of times, each beside the least that the work takes, and the command that measures them."""
    lines = ["| to verify | takes | the bare work alone |", "|---|---|---|"]
    for name, group, row_name, words in _FIGURES:
        rows = {(each["group"], each["name"]): each for each in _result(name)["rows"]}
        row = rows[group, row_name]
        (bare,) = (each for (_, other), each in rows.items() if other == row["against"])
        took, least = (f"{each['cells']['time']['median']:.3g} µs" for each in (row, bare))
        lines.append(f"| {words} | {took} | {least} |")
    measured = _result("verification")["measured"]
    return "\n".join(lines) + (
        f"\n\nProcessor time of one verification, measured on {measured['date']} with `make bench`. The bare work is to read the header"
        "\nand check one HMAC or signature, or for PostgreSQL the driver's read of one row. The cache saves even that, and a revoked"
        "\nkey is refused at once all the same. The rest is in [Performance](docs/explanation/performance.md)."
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
