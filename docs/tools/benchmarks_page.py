"""What was measured as Markdown, from the result files that `make bench` writes: no figure is typed by hand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from benchmarks.__main__ import ASSETS, NAMES
from benchmarks.result import Result, aim_in_words, number, table

_IMAGE: Final = re.compile(r"!\[[^\]]*\]\(([^)]*assets/benchmarks/[^)]+\.svg)\)")
_FACTS: Final = ("machine", "system", "python", "packages", "load before")


def names() -> list[str]:
    """Every measurement whose result is kept, in the order in which they are made."""
    kept = sorted(path.stem for path in ASSETS.glob("*.json"))
    order = {name: place for place, name in enumerate(NAMES)}
    return sorted(kept, key=lambda name: order.get(name, len(order)))


def results() -> list[Result]:
    """What :func:`names` names."""
    return [_read(name) for name in names()]


def render(name: str) -> str:
    """What one measurement found: its method, chart and table, and when and on what it was made."""
    result = _read(name)
    measured = result.measured
    facts = "; ".join(measured[fact] for fact in _FACTS[:-1] if measured.get(fact))
    measured_on = (
        f"Median of all rounds, with the quartiles. Measured on {measured['date']} with"
        f" `{measured['command']}` on {facts}. Load before: {measured[_FACTS[-1]]}."
    )
    # Lines do not break inside of a spread.
    figures = table(result).replace("–", "–\N{WORD JOINER}")
    chart = f"![{result.title}](../assets/benchmarks/{name}.svg)"
    return "\n\n".join([result.method, chart, figures, measured_on])


def render_aims() -> str:
    """Every figure that was aimed at, and what was found."""
    lines = ["| | Found | Aim |", "| --- | ---: | --- |"]
    for result in results():
        for row in result.rows:
            if row.aim is None:
                continue
            found = number(row.cells[row.aim.column].median)
            [column] = [each for each in result.columns if each.key == row.aim.column]
            of = f" × {row.against}" if row.against else f" {column.unit}".rstrip()
            name = f"{row.group}, {row.name}" if row.group else row.name
            what = f"[{result.title}](#{result.name}): {name}"
            lines.append(f"| {what} | {found}{of} | {aim_in_words(row)} |")
    return "\n".join(lines)


def inline(markdown: str, folder: Path) -> str:
    """The page with every chart drawn in it, so that it follows the palette that the reader chose.

    Args:
        markdown: The page.
        folder: The page's own, to which its links are relative.

    Raises:
        FileNotFoundError: A chart is not there.
    """

    def drawn(match: re.Match[str]) -> str:
        svg = (folder / match[1]).read_text("utf-8")
        # Without blank lines, which would end the HTML block.
        lines = [line for line in svg.splitlines() if line.strip()]
        # On a phone it scrolls, by keyboard as well.
        return '<figure class="diagram" tabindex="0">\n' + "\n".join(lines) + "\n</figure>"

    return _IMAGE.sub(drawn, markdown)


def _read(name: str) -> Result:
    return Result.from_json((ASSETS / f"{name}.json").read_text("utf-8"))
