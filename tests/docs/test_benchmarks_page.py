"""The page of figures: made of the result files, and of nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks.__main__ import ASSETS
from benchmarks.chart import draw
from benchmarks.result import Result
from docs.tools import benchmarks_page, hooks

NAMES = benchmarks_page.names()
FLAME_GRAPHS = ("me-before", "me-today")
PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "performance.md"


@pytest.mark.parametrize("name", NAMES)
def test_every_measurement_is_shown_with_chart_table_date_machine_and_command(name: str) -> None:
    shown = benchmarks_page.render(name)
    result = Result.from_json((ASSETS / f"{name}.json").read_text("utf-8"))
    assert f"![{result.title}](../assets/benchmarks/{name}.svg)" in shown
    assert all(f"{row.name} |" in shown for row in result.rows)
    for fact in ("date", "machine", "python", "command"):
        assert result.measured[fact] in shown
    assert "--quick" not in result.measured["command"]


@pytest.mark.parametrize("name", NAMES)
def test_a_chart_is_that_of_its_result(name: str) -> None:
    result = Result.from_json((ASSETS / f"{name}.json").read_text("utf-8"))
    assert (ASSETS / f"{name}.svg").read_text("utf-8") == draw(result)


@pytest.mark.parametrize("name", NAMES)
def test_a_chart_has_room_for_its_names(name: str) -> None:
    # A character is about 6.65 units wide, and left of the bars there are 250.
    result = Result.from_json((ASSETS / f"{name}.json").read_text("utf-8"))
    drawn = [row.name for row in result.rows if result.chart.column in row.cells]
    assert [each for each in drawn if len(each) > 37 and result.chart.kind == "bars"] == []


def test_the_page_has_no_figure_of_its_own() -> None:
    text = PAGE.read_text("utf-8")
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    prose = re.sub(r"`[^`]*`|<!--.*?-->|\{ #.*?\}|\]\(.*?\)", "", prose)
    # 401 is no figure but a status.
    assert set(re.findall(r"\d+(?:\.\d+)?", prose)) <= {"401"}


def test_every_aim_is_listed_with_what_was_found() -> None:
    aims = [row for result in benchmarks_page.results() for row in result.rows if row.aim]
    lines = benchmarks_page.render_aims().splitlines()[2:]
    assert len(lines) == len(aims) > 20
    assert all(
        re.search(
            r"\| [-\d. \N{NARROW NO-BREAK SPACE}]+.*\| [≤≥] [\d.]+, (reached|missed) \|$", line
        )
        for line in lines
    )


def test_the_links_of_the_aims_lead_to_sections_of_the_page() -> None:
    text = PAGE.read_text("utf-8")
    links = set(re.findall(r"\(#([a-z]+)\)", benchmarks_page.render_aims()))
    assert links <= set(re.findall(r"\{ #([a-z]+) \}", text))
    assert links


def test_the_charts_are_drawn_into_the_page_with_ids_of_their_own() -> None:
    drawn = benchmarks_page.inline(hooks.fill_in(PAGE.read_text("utf-8")), PAGE.parent)
    assert "assets/benchmarks" not in drawn
    figures = re.findall(
        r"<figure class=\"diagram\" tabindex=\"0\">\n(.*?)\n</figure>", drawn, re.DOTALL
    )
    charts = len(NAMES) + len(FLAME_GRAPHS)
    assert len(figures) == charts
    ids: list[str] = []
    for figure in figures:
        assert "\n\n" not in figure
        ids += [
            each.get("id", "") for each in ElementTree.fromstring(figure).iter() if each.get("id")
        ]
    assert len(ids) == len(set(ids)) == 2 * charts


@pytest.mark.parametrize("name", FLAME_GRAPHS)
def test_a_flame_graph_says_in_words_what_a_request_costs_and_where(name: str) -> None:
    svg = ElementTree.fromstring((ASSETS / f"{name}.svg").read_text("utf-8"))
    description = svg.findtext("{http://www.w3.org/2000/svg}desc", "")
    assert re.match(r"[\d,]+ µs of processor time\. Within the functions", description)
    shares = [int(share) for share in re.findall(r"(\d+)%", description)]
    assert sum(shares) == pytest.approx(100, abs=len(shares))


def test_a_chart_that_is_missing_stops_the_build(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        benchmarks_page.inline("![x](../assets/benchmarks/never-measured.svg)", tmp_path)
