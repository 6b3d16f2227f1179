"""What was measured, from the result files that `make bench` writes: no figure is typed by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks.__main__ import ASSETS, NAMES
from benchmarks.result import Aim, Result, Row, number

_FACTS: Final = ("machine", "system", "python")


def read(name: str) -> Result:
    """The kept result of a measurement."""
    return Result.from_json((ASSETS / f"{name}.json").read_text("utf-8"))


def render_aims() -> str:
    """Every figure that was aimed at, what was found, and when. Rows of one measurement with the same aim are one row."""
    order = {name: place for place, name in enumerate(NAMES)}
    kept = sorted(
        (path.stem for path in ASSETS.glob("*.json")),
        key=lambda name: (order.get(name, len(order)), name),
    )
    lines = ["| | Found | Aim |", "| --- | ---: | --- |"]
    runs: dict[str, list[str]] = {}
    for result in map(read, kept):
        lines += [_line(result, aim, rows) for (aim, _), rows in _by_aim(result).items()]
        facts = "; ".join(result.measured[fact] for fact in _FACTS)
        runs.setdefault(facts, []).append(f"`{result.name}` on {result.measured['date']}")
    measured = "; ".join(f"{', '.join(each)} on {facts}" for facts, each in runs.items())
    return "\n".join([*lines, "", f"Medians of all rounds. Measured: {measured}."])


def _by_aim(result: Result) -> Mapping[tuple[Aim, str], Sequence[Row]]:
    found: dict[tuple[Aim, str], list[Row]] = {}
    for row in result.rows:
        if row.aim is not None:
            found.setdefault((row.aim, row.against), []).append(row)
    return found


def _line(result: Result, aim: Aim, rows: Sequence[Row]) -> str:
    words = [f"{row.group}, {row.name}".split(", ") for row in rows]
    # What all of them are called, and how many they are.
    named = [column[0] for column in zip(*words, strict=False) if len(set(column)) == 1]
    named += [f"{len(rows)} cases"] if len(rows) > 1 else []
    medians = [row.cells[aim.column].median for row in rows]
    figures = "–".join(dict.fromkeys(map(number, (min(medians), max(medians)))))
    [unit] = [column.unit for column in result.columns if column.key == aim.column]
    against = rows[0].against
    sign = "≤" if aim.kind == "at most" else "≥"
    missed = sum(not row.is_reached for row in rows)
    outcome = "missed" if missed == len(rows) else f"missed by {missed}" if missed else "reached"
    return (
        f"| {result.title}: {', '.join(named)} | {figures} {f'× {against}' if against else unit}"
        f" | {sign} {aim.value:.4g}, {outcome} |"
    )
