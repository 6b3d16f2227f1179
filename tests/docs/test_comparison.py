"""The comparison shows what the script found out, about the versions that it installs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from docs.tools import peers

import msk_auth

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
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
    assert ours["microseconds"] * 100 < keyshield["microseconds"]
    assert (keyshield["writes_on_each_request"], ours["writes_on_each_request"]) == (True, False)
    assert (keyshield["routes_open_as_shipped"], ours["routes_open_as_shipped"]) == (True, False)
    assert keyshield["revoked_accepted_from_cache"] is True
    assert keyshield["revoked_active_again"] is True
    assert ours["revoked_accepted_from_cache"] is False


def test_what_the_page_says_of_the_others_is_what_the_script_found() -> None:
    facts = {name: answers["facts"] for name, answers in written().items() if "facts" in answers}
    page = " ".join(PAGE.read_text("utf-8").split())
    keyshield = facts["keyshield"]
    low, high = (round(seconds * 1000) for seconds in keyshield["delay_seconds"])
    assert f"adds a random delay of {low} to {high} ms" in page
    assert f"accepting the key for up to {keyshield['cache_seconds']} seconds" in page
    assert (keyshield["hash"], facts["djangorestframework-api-key"]["hash"]) == (
        "argon2id",
        "sha512",
    )
    assert "keyshield hashes with Argon2id" in page
    assert "moved to SHA-512" in page
    for name, found in facts.items():
        (line,) = re.findall(rf"- \*\*{re.escape(name)}\*\* (.+?)(?= - | ## )", page)
        # The words of the page are looked for by the script.
        assert [each for each in found["has"] if each not in line] == [], name
    assert {name: len(found["has"]) for name, found in facts.items()} == {
        "keyshield": 4,
        "djangorestframework-api-key": 3,
        "flask-jwt-extended": 4,
        "fastapi-users": 4,
    }


def test_a_guide_for_a_move_was_checked_against_the_version_that_is_compared() -> None:
    for name, answers in written().items():
        guide = HOW_TO / f"from-{name.replace('djangorestframework', 'drf')}.md"
        if name != "msk-auth":
            assert f"{answers['version']}." in " ".join(guide.read_text("utf-8").split()), name


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
    assert f"| processor time to verify a key, read from SQLite | {words} |" in peers.table(answers)
    assert " ms, and a delay of 100 to 300 ms |" in peers.table(answers)


def test_the_page_names_the_script_that_made_it() -> None:
    assert "python docs/tools/peers.py" in PAGE.read_text("utf-8")
