"""Tables, and taking turns."""

from __future__ import annotations

import asyncio

import pytest
from benchmarks.result import (
    Aim,
    Column,
    Result,
    Row,
    Spread,
    number,
    table,
)
from benchmarks.timing import Work, ratios, rows, take_turns

BARS = Result(
    name="sorting",
    title="Sorting <quickly>",
    method="Sorted.",
    columns=[Column("time", "Time", "µs"), Column("ratio", "Ratio")],
    rows=[
        Row("Lists", "sorted", {"time": Spread(2.0, 1.5, 2.5)}),
        Row(
            "Lists",
            "reversed & sorted",
            {"time": Spread(3.0, 2.0, 4.0), "ratio": Spread(1.5, 1.2, 1.7)},
            "sorted",
            Aim("ratio", "at most", 1.6),
        ),
        Row("Sets", "none", {"ratio": Spread(9.0, 8.0, 10.0)}, aim=Aim("ratio", "at most", 8.5)),
    ],
    measured={"date": "2026-11-21"},
)


def test_a_spread_is_the_median_between_the_quartiles() -> None:
    assert Spread.of([5.0, 1.0, 3.0, 2.0, 4.0]) == Spread(3.0, 2.0, 4.0)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.04721, "0.0472"),
        (0.5, "0.500"),
        (1.0, "1.00"),
        (58.0, "58.0"),
        (99.97, "100"),
        (123.4, "123"),
        (999.9, "1\N{NARROW NO-BREAK SPACE}000"),
        (1234567.0, "1\N{NARROW NO-BREAK SPACE}230\N{NARROW NO-BREAK SPACE}000"),
        (-98.76, "-98.8"),
        (0.000001234, "0.000001"),
    ],
)
def test_figures_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_a_table_has_spreads_references_and_aims() -> None:
    assert table(BARS).splitlines() == [
        "|  | Time (µs) | Ratio | Compared with | Aim |",
        "| --- | ---: | ---: | --- | --- |",
        "| Lists: sorted | **2.00** (1.50–2.50) | – |  |  |",
        "| Lists: reversed & sorted | **3.00** (2.00–4.00) | **1.50** (1.20–1.70) | sorted | ≤ 1.6, reached |",
        "| Sets: none | – | **9.00** (8.00–10.0) |  | ≤ 8.5, missed |",
    ]


@pytest.mark.parametrize(
    ("kind", "median", "reached"),
    [
        ("at most", 1.0, True),
        ("at most", 1.01, False),
        ("at least", 1.0, True),
        ("at least", 0.99, False),
    ],
)
def test_an_aim_is_reached_or_missed_by_the_median(kind: str, median: float, reached: bool) -> None:
    aim = Aim("ratio", kind, 1.0)  # type: ignore[arg-type]
    assert Row("", "x", {"ratio": Spread(median, 0.0, 9.0)}, aim=aim).is_reached is reached


def test_a_result_comes_back_from_its_file() -> None:
    assert Result.from_json(BARS.to_json()) == BARS


def test_works_take_turns_in_every_round() -> None:
    order: list[str] = []
    works = [
        Work("", "a", lambda: order.append("a")),
        Work("", "b", lambda: order.append("b"), against="a", at_most=2.0),
    ]
    samples = take_turns(works, rounds=3, seconds=1e-9)
    # Four rounds, of which the first is not counted; another one begins each.
    assert "".join(order[-8:]) == "abbaabba"
    assert {name: len(times) for name, times in samples.items()} == {"a": 3, "b": 3}

    first, second = rows(works, {"a": [2.0, 4.0, 8.0], "b": [4.0, 4.0, 4.0]})
    assert first == Row("", "a", {"time": Spread(4.0, 3.0, 6.0)})
    # Round by round, not median over median.
    assert second.cells["ratio"] == Spread(1.0, 0.75, 1.5)
    assert second.aim == Aim("ratio", "at most", 2.0)
    assert ratios([1.0, 9.0], [2.0, 3.0]) == [0.5, 3.0]


def test_asynchronous_works_run_on_the_loop_that_is_given() -> None:
    calls: list[asyncio.AbstractEventLoop] = []

    async def call() -> None:
        calls.append(asyncio.get_running_loop())

    with asyncio.Runner() as runner:
        take_turns([Work("", "a", call, is_async=True)], rounds=1, seconds=1e-9, runner=runner)
        assert set(calls) == {runner.get_loop()}
