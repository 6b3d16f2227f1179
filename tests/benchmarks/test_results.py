"""Tables, charts, taking turns, and reading what the load generator prints."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from benchmarks import load
from benchmarks.result import (
    Aim,
    Chart,
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
    chart=Chart("bars", "time, µs", "time"),
    measured={"date": "2026-11-21"},
)
LINES = Result(
    name="lengths",
    title="By length",
    method="Longer and longer.",
    columns=[Column("10", "10", "µs", x=10), Column("100", "100", "µs", x=100)],
    rows=[
        Row("Lists", "read", {"10": Spread(1, 1, 1), "100": Spread(10, 9, 11)}),
        Row("Lists", "write", {"10": Spread(2, 2, 2), "100": Spread(10, 9, 11)}),
        Row("Sets", "read", {"10": Spread(5, 5, 5), "100": Spread(6, 6, 6)}),
    ],
    chart=Chart("lines", "time, µs", x_axis="entries"),
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


def test_counts_are_whole() -> None:
    counts = [Column("time", "Entries", is_count=True), Column("ratio", "Ratio")]
    assert table(
        replace(BARS, columns=counts, rows=[Row("", "x", {"time": Spread(1500, 1500, 1500)})])
    ) == (
        "|  | Entries | Ratio |\n| --- | ---: | ---: |\n| x | 1\N{NARROW NO-BREAK SPACE}500 | – |"
    )


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


@pytest.mark.parametrize("result", [BARS, LINES], ids=lambda result: result.name)
def test_a_result_comes_back_from_its_file(result: Result) -> None:
    assert Result.from_json(result.to_json()) == result


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


PRINTED = """Running 1s test @ http://127.0.0.1:8000/
  1 threads and 16 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.53ms  300.00us   9.00ms   90.00%
    Req/Sec    10.50k   500.00     11.00k    70.00%
  Latency Distribution
     50%  980.00us
     75%    1.60ms
     90%    1.80ms
     99%    1.02s
  11550 requests in 1.10s, 1.80MB read
{refused}Requests/sec:  10500.12
Transfer/sec:      1.64MB
"""


def test_what_wrk_prints_is_read() -> None:
    accepted = load.read_wrk(PRINTED.format(refused=""))
    assert accepted == load.Load(10500.12, 0.98, 1020.0, 0, 11550)
    refused = load.read_wrk(PRINTED.format(refused="  Non-2xx or 3xx responses: 11550\n"))
    assert refused.refused == refused.total == 11550
