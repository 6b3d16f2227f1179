"""Tables, charts, taking turns, and reading what the load generator prints."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from benchmarks import load
from benchmarks.chart import draw
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

SVG = "{http://www.w3.org/2000/svg}"
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


def test_a_file_that_is_no_result_is_refused() -> None:
    with pytest.raises((KeyError, TypeError)):
        Result.from_json('{"name": "x"}')


@pytest.mark.parametrize("result", [BARS, LINES], ids=lambda result: result.name)
def test_a_chart_is_well_formed_and_has_a_description(result: Result) -> None:
    root = ElementTree.fromstring(draw(result))
    assert root.tag == f"{SVG}svg"
    assert root.get("role") == "img"
    title, description = root.findall(f"{SVG}title") + root.findall(f"{SVG}desc")
    assert root.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
    assert title.text == result.title
    assert description.text is not None
    texts = {text.text for text in root.iter(f"{SVG}text")}
    drawn = [row for row in result.rows if row.cells.keys() & {"time", "10"}]
    for row in drawn:
        assert row.name in texts
        assert f"{row.group}, {row.name}: " in description.text


def test_a_bar_chart_draws_bars_by_length_and_the_aim_as_a_ratio_of_its_reference() -> None:
    root = ElementTree.fromstring(draw(BARS))
    first, second = root.iter(f"{SVG}rect")
    assert float(second.get("width", "")) / float(first.get("width", "")) == pytest.approx(1.5)
    # What others are compared with looks different.
    assert (first.get("class"), second.get("class")) == ("bar-1", "bar-0")
    [aim] = [each for each in root.iter(f"{SVG}line") if each.get("class") == "aim"]
    start, end = float(second.get("x", "")), float(second.get("width", ""))
    # 1.6 times the 2 µs of the reference, on the scale on which 3 µs are the second bar.
    assert float(aim.get("x1", "")) == pytest.approx(start + end * 3.2 / 3, abs=0.1)


def test_dots_are_drawn_on_a_logarithmic_axis() -> None:
    chart = Chart("bars", "time, µs", "time", is_logarithmic=True)
    root = ElementTree.fromstring(draw(replace(BARS, chart=chart)))
    assert list(root.iter(f"{SVG}rect")) == []
    first, second = (float(dot.get("cx", "")) for dot in root.iter(f"{SVG}circle"))
    left = min(float(each.get("x1", "")) for each in root.iter(f"{SVG}line"))
    # From 1 on: the places are those of the logarithms.
    assert (second - left) / (first - left) == pytest.approx(math.log(3) / math.log(2), abs=0.01)


def test_a_chart_can_be_read_by_light_and_by_dark() -> None:
    svg = draw(BARS)
    assert "prefers-color-scheme:dark" in svg
    assert "[data-md-color-scheme=slate] svg.benchmark" in svg
    # Its rules reach nothing else of a page that it is put into.
    style = svg.partition("<style>")[2].partition("</style>")[0].replace("@media", "")
    for rule in style.replace("(prefers-color-scheme:dark)", "").split("}"):
        selector = rule.partition("{")[0].strip()
        assert selector == "" or "svg.benchmark" in selector


def test_a_line_chart_has_a_panel_for_each_group_and_names_that_do_not_meet() -> None:
    root = ElementTree.fromstring(draw(LINES))
    assert len(list(root.iter(f"{SVG}polyline"))) == 3
    places = [
        float(text.get("y", ""))
        for text in root.iter(f"{SVG}text")
        if text.text in {"read", "write"}
    ]
    gaps = [abs(one - other) for one in places for other in places if one != other]
    assert min(gaps) >= 13


def test_the_chart_of_a_result_without_rows_is_labelled_as_empty() -> None:
    root = ElementTree.fromstring(draw(replace(BARS, rows=[])))
    assert [text.text for text in root.iter(f"{SVG}text")] == [
        "There was no server to measure this on."
    ]


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


def test_what_wrk_never_prints_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="unable to connect"):
        load.read_wrk("unable to connect to 127.0.0.1:1 Connection refused")
