"""What a measurement found: rows of figures with their spread, as a table and as JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of all rounds, between the lower and the upper quartile."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """Of one figure for each round.

        Raises:
            statistics.StatisticsError: There are none.
        """
        if len(samples) == 1:
            return cls(samples[0], samples[0], samples[0])
        low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(median, low, high)


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of every row.

    Attributes:
        key: Names it in the rows.
        title: Heads it.
        unit: Follows each figure; empty for a count or a ratio.
    """

    key: str
    title: str
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Aim:
    """What a row is to reach: `column` at most, or at least, `value`."""

    column: str
    kind: Literal["at most", "at least"]
    value: float


@dataclass(frozen=True, slots=True)
class Row:
    """One thing measured.

    Attributes:
        group: Rows of one group stand together.
        name: Of the thing.
        cells: Its figures, by the key of their column; what does not apply is left out.
        against: The name of the row that its ratio is made with.
        aim: What it is to reach.
    """

    group: str
    name: str
    cells: Mapping[str, Spread]
    against: str = ""
    aim: Aim | None = None

    @property
    def is_reached(self) -> bool | None:
        """Whether the median meets the aim; None if there is no aim."""
        if self.aim is None:
            return None
        median = self.cells[self.aim.column].median
        return median <= self.aim.value if self.aim.kind == "at most" else median >= self.aim.value


@dataclass(frozen=True, slots=True)
class Result:
    """What one measurement found.

    Attributes:
        name: As on the command line, and of its files.
        title: Heads the table.
        method: What was done, in a sentence or two.
        columns: Of the table, from left to right.
        rows: From top to bottom.
        measured: When and on what: see `machine.describe`.
    """

    name: str
    title: str
    method: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    measured: Mapping[str, str] = field(default_factory=dict[str, str])

    def to_json(self) -> str:
        """The result as a file; figures to four digits, since no more of them mean anything."""
        made: dict[str, Any] = asdict(self)
        for row in made["rows"]:
            row["cells"] = {
                key: {name: float(f"{value:.4g}") for name, value in cell.items()}
                for key, cell in row["cells"].items()
            }
        return json.dumps(made, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Result:
        """A result that was written by :meth:`to_json`.

        Raises:
            ValueError, KeyError, TypeError: It is no such file.
        """
        made = json.loads(text)
        rows = [
            Row(
                **row
                | {
                    "cells": {key: Spread(**cell) for key, cell in row["cells"].items()},
                    "aim": None if row["aim"] is None else Aim(**row["aim"]),
                }
            )
            for row in made["rows"]
        ]
        columns = [Column(**column) for column in made["columns"]]
        return cls(**made | {"columns": columns, "rows": rows})


def table(result: Result) -> str:
    """The result as a Markdown table, without its title."""
    has_reference = any(row.against for row in result.rows)
    has_aim = any(row.aim is not None for row in result.rows)
    head = ["", *(_heading(column) for column in result.columns)]
    if has_reference:
        head.append("Compared with")
    if has_aim:
        head.append("Aim")
    lines: list[list[str]] = []
    for row in result.rows:
        cells = [_cell(row.cells.get(column.key)) for column in result.columns]
        line = [f"{row.group}: {row.name}" if row.group else row.name, *cells]
        if has_reference:
            line.append(row.against)
        if has_aim:
            line.append(aim_in_words(row))
        lines.append(line)
    aligned = ["---"] + ["---:"] * len(result.columns)
    aligned += ["---"] * (len(head) - len(aligned))
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, aligned, *lines))


def aim_in_words(row: Row) -> str:
    """What a row is to reach, and whether it did; empty without an aim."""
    if row.aim is None:
        return ""
    sign = "≤" if row.aim.kind == "at most" else "≥"
    return f"{sign} {row.aim.value:.4g}, {'reached' if row.is_reached else 'missed'}"


def number(value: float) -> str:
    """A figure to three digits, with thin groups of thousands: `0.47`, `12.3`, `5 800`."""
    value = float(f"{value:.3g}")
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")
    text = f"{value:#.3g}"
    return f"{value:.6f}".rstrip("0") if "e" in text else text


def _heading(column: Column) -> str:
    return f"{column.title} ({column.unit})" if column.unit else column.title


def _cell(spread: Spread | None) -> str:
    if spread is None:
        return "–"
    middle, low, high = map(number, (spread.median, spread.low, spread.high))
    return middle if low == high else f"**{middle}** ({low}–{high})"
