"""Puts figures and facts into the README, from the files that measurements and the comparison wrote.

`python docs/tools/readme.py` rewrites the parts between `<!-- begin: … -->` and `<!-- end -->`; a test
holds the README to them.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
# Started as a program, Python looks for modules beside this file only.
sys.path.insert(0, str(ROOT))

from docs.tools import peers  # noqa: E402 - see above

README: Final = ROOT / "README.md"
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
        " [What it costs](docs/explanation/performance.md)."
    )


def facts() -> str:
    """The rows of the comparison that decide most often."""
    answers = json.loads(peers.RESULT.read_text("utf-8"))["answers"]
    return peers.table(peers.with_keys(answers), _QUESTIONS)


PARTS: Final[dict[str, Callable[[], str]]] = {"figures": figures, "facts": facts}


def rewritten(readme: str) -> str:
    """The README with every part made anew."""
    return _PART.sub(lambda match: f"{match[1]}{PARTS[match[2]]()}\n{match[3]}", readme)


def _result(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((BENCHMARKS / f"{name}.json").read_text("utf-8"))
    return result


if __name__ == "__main__":
    README.write_text(rewritten(README.read_text("utf-8")), "utf-8")
