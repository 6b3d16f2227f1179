"""A result as a picture: bars with the quartiles on them (dots on a logarithmic axis), or lines on two logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from .result import Column, Result, Row, Spread, number
from .svg import COLOURS, DASHES, WIDTH, document, element, label, line

_ROW = 24
_TOP = 18
_LABELS = 260
_FIGURES = 84
_PLOT_HEIGHT = 260
_LINE_LEFT = 70
_LINE_LABELS = 210


def draw(result: Result) -> str:
    """The chart of a result as an SVG document."""
    parts, height = _bars(result) if result.chart.kind == "bars" else _lines(result)
    return document(result.name, result.title, description(result), parts, height)


def description(result: Result) -> str:
    """What the chart shows, in words: every bar or line with its figures."""
    chart = result.chart
    sentences: list[str] = []
    for row in result.rows:
        name = f"{row.group}, {row.name}" if row.group else row.name
        if chart.kind == "bars":
            if chart.column in row.cells:
                sentences.append(f"{name}: {number(row.cells[chart.column].median)}")
        else:
            points = ", ".join(
                f"{number(row.cells[column.key].median)} at {number(column.x)}"
                for column in result.columns
                if column.x is not None and column.key in row.cells
            )
            sentences.append(f"{name}: {points}")
    return f"{chart.axis}. {'; '.join(sentences)}."


class _Axis:
    """From figures to places on a stretch of the picture."""

    def __init__(
        self, values: Sequence[float], first: float, last: float, *, is_logarithmic: bool
    ) -> None:
        self.is_logarithmic = is_logarithmic and min(values) > 0
        self._first, self._last = first, last
        top = max(values)
        if self.is_logarithmic:
            self.low = 10 ** math.floor(math.log10(min(values)))
            self.high = max(10 ** math.ceil(math.log10(top)), self.low * 10)
        else:
            self.low, self.high = 0.0, _round_up(top)

    def place(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        if self.is_logarithmic:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = value / self.high
        return self._first + share * (self._last - self._first)

    def ticks(self) -> list[float]:
        if self.is_logarithmic:
            decades = round(math.log10(self.high / self.low))
            return [self.low * 10**step for step in range(decades + 1)]
        return [self.high * step / 4 for step in range(5)]


def _round(value: float) -> str:
    """A figure that is round already."""
    return number(value) if value >= 1000 else f"{value:g}"


def _round_up(value: float) -> float:
    """To 1, 2, 4 or 8 times a power of ten, so that a quarter of it is a round figure too."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 4, 8, 10) if factor * power >= value)


def _bars(result: Result) -> tuple[list[str], float]:
    key = result.chart.column
    shown = [row for row in result.rows if key in row.cells]
    if not shown:
        return [label("There was no server to measure this on.", 0, _TOP)], 2.0 * _TOP
    aims = _aims(shown, key)
    values = [figure for row in shown for figure in (row.cells[key].low, row.cells[key].high)]
    axis = _Axis(
        [*values, *aims.values()],
        _LABELS,
        WIDTH - _FIGURES,
        is_logarithmic=result.chart.is_logarithmic,
    )
    references = {(row.group, row.against) for row in shown}
    parts: list[str] = []
    y = float(_TOP)
    for group, members in groupby(shown, key=lambda row: row.group):
        if group:
            parts.append(label(group, 0, y + 4, class_="heading"))
            y += _ROW
        for row in members:
            # What others are compared with is grey.
            kind = "bar-1" if (row.group, row.name) in references else "bar-0"
            parts += _bar(row.name, row.cells[key], axis, y, aims.get((row.group, row.name)), kind)
            y += _ROW
    bottom = y - _ROW / 2 + 2
    grid: list[str] = []
    for tick in axis.ticks():
        x = axis.place(tick)
        grid.append(line(x, _TOP - 12, x, bottom, "grid"))
        grid.append(label(_round(tick), x, bottom + 16, anchor="middle", class_="soft"))
    middle = (_LABELS + WIDTH - _FIGURES) / 2
    says = result.chart.axis
    if aims:
        says += " (dashed: the aim)"
    grid.append(label(says, middle, bottom + 36, anchor="middle", class_="soft"))
    return [*grid, *parts], bottom + 46


def _aims(shown: Sequence[Row], key: str) -> dict[tuple[str, str], float]:
    """Where a row's aim lies on the axis of `key`, by the row: an aimed-at ratio is one of what it is compared with."""
    medians = {(row.group, row.name): row.cells[key].median for row in shown}
    anywhere = {row.name: row.cells[key].median for row in shown}
    aims: dict[tuple[str, str], float] = {}
    for row in shown:
        if row.aim is None:
            continue
        if row.aim.column == key:
            aims[row.group, row.name] = row.aim.value
        elif row.aim.column == "ratio" and row.against in anywhere:
            reference = medians.get((row.group, row.against), anywhere[row.against])
            aims[row.group, row.name] = row.aim.value * reference
    return aims


def _bar(
    name: str, spread: Spread, axis: _Axis, y: float, aim: float | None, kind: str
) -> list[str]:
    start, end = axis.place(axis.low), axis.place(spread.median)
    low, high = axis.place(spread.low), axis.place(spread.high)
    # A length says nothing where nothing is at zero.
    mark = (
        [
            line(start, y, end, y, "grid"),
            element("circle", cx=end, cy=y, r=6, class_=kind),
        ]
        if axis.is_logarithmic
        else [
            element(
                "rect", x=start, y=y - 7, width=max(end - start, 1.0), height=14, rx=2, class_=kind
            )
        ]
    )
    parts = [
        label(name, _LABELS - 10, y + 4, anchor="end"),
        *mark,
        line(low, y, high, y, "spread"),
        line(low, y - 4, low, y + 4, "spread"),
        line(high, y - 4, high, y + 4, "spread"),
    ]
    if aim is not None:
        x = axis.place(aim)
        parts.append(line(x, y - 10, x, y + 10, "aim"))
    parts.append(label(number(spread.median), WIDTH, y + 4, anchor="end"))
    return parts


def _lines(result: Result) -> tuple[list[str], float]:
    columns = [column for column in result.columns if column.x is not None]
    parts: list[str] = []
    top = 0.0
    for group, members in groupby(result.rows, key=lambda row: row.group):
        drawn = [row for row in members if any(column.key in row.cells for column in columns)]
        parts += _panel(group, drawn, columns, result, top)
        top += _PLOT_HEIGHT + 70
    return parts, top


def _panel(
    group: str, drawn: Sequence[Row], columns: Sequence[Column], result: Result, top: float
) -> list[str]:
    left, right = float(_LINE_LEFT), float(WIDTH - _LINE_LABELS)
    upper, lower = top + 30, top + 30 + _PLOT_HEIGHT - 40
    xs = [column.x for column in columns if column.x is not None]
    medians = [
        row.cells[column.key].median
        for row in drawn
        for column in columns
        if column.key in row.cells
    ]
    across = _Axis(xs, left, right, is_logarithmic=True)
    up = _Axis(medians, lower, upper, is_logarithmic=True)
    parts = [label(f"{group}: {result.chart.axis}", 0, top + 14, class_="heading")]
    for tick in up.ticks():
        y = up.place(tick)
        parts.append(line(left, y, right, y, "grid"))
        parts.append(label(_round(tick), left - 8, y + 4, anchor="end", class_="soft"))
    for x in xs:
        place = across.place(x)
        parts.append(line(place, upper, place, lower, "grid"))
        parts.append(label(_round(x), place, lower + 18, anchor="middle", class_="soft"))
    parts.append(
        label(result.chart.x_axis, (left + right) / 2, lower + 38, anchor="middle", class_="soft")
    )
    ends: list[tuple[float, str]] = []
    for index, row in enumerate(drawn):
        points = [
            (across.place(column.x), up.place(row.cells[column.key].median))
            for column in columns
            if column.x is not None and column.key in row.cells
        ]
        parts.append(
            element(
                "polyline",
                class_="line",
                points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points),
                style=f"stroke:{COLOURS[index % len(COLOURS)]}",
                stroke_dasharray=DASHES[index % len(DASHES)] or "none",
            )
        )
        ends.append((points[-1][1], row.name))
    return parts + _names_of_lines(ends, right)


def _names_of_lines(ends: Sequence[tuple[float, str]], right: float) -> list[str]:
    """Each line's name where it ends, moved down where two would meet, with a thin line to its own."""
    parts: list[str] = []
    free = -math.inf
    for y, name in sorted(ends):
        place = max(y, free)
        free = place + 17
        parts.append(line(right + 2, y, right + 14, place, "grid"))
        parts.append(label(name, right + 18, place + 4))
    return parts
