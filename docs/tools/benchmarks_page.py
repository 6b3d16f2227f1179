"""What was measured as Markdown, from the result files that `make bench` writes: no figure is typed by hand."""

from __future__ import annotations

from typing import Final

from benchmarks.__main__ import ASSETS, NAMES
from benchmarks.result import Result, aim_in_words, number, table

SHOWN: Final = ("verification", "mcp")
"""What the page shows in full. Of the others it has what was aimed at."""

_FACTS: Final = ("machine", "system", "python", "packages", "load before")


def results() -> list[Result]:
    """Every result that is kept, in the order in which they are made."""
    kept = sorted(path.stem for path in ASSETS.glob("*.json"))
    order = {name: place for place, name in enumerate(NAMES)}
    return [_read(name) for name in sorted(kept, key=lambda name: order.get(name, len(order)))]


def render(name: str) -> str:
    """What one of :data:`SHOWN` found: its method and figures, and when and on what it was made."""
    result = _read(name)
    measured = result.measured
    facts = "; ".join(measured[fact] for fact in _FACTS[:-1] if measured.get(fact))
    measured_on = (
        f"Median of all rounds, with the quartiles. Measured on {measured['date']} with"
        f" `{measured['command']}` on {facts}. Load before: {measured[_FACTS[-1]]}."
    )
    return "\n\n".join([result.method, table(result), measured_on])


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
            title = f"[{result.title}](#{result.name})" if result.name in SHOWN else result.title
            what = f"{title}: {name}"
            lines.append(f"| {what} | {found}{of} | {aim_in_words(row)} |")
    return "\n".join(lines)


def _read(name: str) -> Result:
    return Result.from_json((ASSETS / f"{name}.json").read_text("utf-8"))
