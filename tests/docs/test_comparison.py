"""The comparison shows what the script found out, about the versions that it installs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from docs.tools import peers

import msk_auth

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "comparison.md"


def written() -> peers.Answers:
    answers: peers.Answers = json.loads(peers.RESULT.read_text("utf-8"))["answers"]
    return answers


def test_every_package_answered_every_question() -> None:
    for name, answers in written().items():
        assert peers.QUESTIONS.keys() <= answers.keys(), name


def test_the_answers_are_about_the_versions_that_are_installed() -> None:
    pinned = dict(
        re.fullmatch(r"([a-z-]+)(?:\[[a-z0-9,]+\])?==([\d.]+)", package).groups()  # type: ignore[union-attr]
        for package in peers.PACKAGES
    )
    assert {name: answers["version"] for name, answers in written().items()} == {
        "msk-auth": msk_auth.__version__,
        **pinned,
    }


def test_the_statements_of_the_page_match_its_rows() -> None:
    answers = written()
    ours, keyshield = answers["msk-auth"], answers["keyshield"]
    assert ours["microseconds"] * 100 < keyshield["microseconds_without_delay"]
    assert keyshield["microseconds"] - keyshield["microseconds_without_delay"] > 50_000
    assert (keyshield["writes_on_each_request"], ours["writes_on_each_request"]) == (True, False)
    assert (keyshield["routes_open_as_shipped"], ours["routes_open_as_shipped"]) == (True, False)
    assert keyshield["revoked_accepted_from_cache"] is True
    assert keyshield["revoked_active_again"] is True
    assert ours["revoked_accepted_from_cache"] is False


def test_the_table_has_a_row_for_each_question_and_a_column_for_each_package() -> None:
    rows = peers.render().partition("\n\n")[0].splitlines()
    assert len(rows) == 2 + len(peers.QUESTIONS)
    assert {row.count("|") for row in rows} == {2 + len(written())}
    assert re.search(r"Asked on \d{4}-\d{2}-\d{2}\.$", peers.render())


@pytest.mark.parametrize(
    ("microseconds", "words"), [(61.6, "62 µs"), (9_999, "9999 µs"), (84_400, "84 ms")]
)
def test_times_are_shown_in_a_fitting_unit(microseconds: float, words: str) -> None:
    answers = {name: dict(each) for name, each in written().items()}
    answers["msk-auth"]["microseconds"] = microseconds
    assert f"| time to verify a key, read from SQLite | {words} |" in peers.table(answers)


def test_the_page_names_the_script_that_made_it() -> None:
    assert "python docs/tools/peers.py" in PAGE.read_text("utf-8")
