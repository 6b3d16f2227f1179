"""What judges the mutants (`make mutants`), and that its lists fit the code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from tests.mutation.check import (
    PACKAGE,
    PHRASE,
    ROOT,
    Mutant,
    Outcome,
    are_enough,
    are_whole_areas,
    function_of,
    is_same_anywhere,
    modules,
    mutant_of,
    problems,
)

HERE = Path(__file__).parent
SURVIVORS = tomllib.loads((HERE / "survivors.toml").read_text("utf-8"))
ANYWHERE = SURVIVORS.pop("anywhere")
TESTS = tomllib.loads((HERE / "modules.toml").read_text("utf-8"))

LISTED = Mutant("f", "a < b", "a <= b")
OTHER = Mutant("f", "a < b", "a > b")


def functions(module: str) -> dict[str, str]:
    """The text of each function of a module, with one space for each white space."""
    text = (PACKAGE / f"{module.replace('.', '/')}.py").read_text("utf-8")
    found: dict[str, str] = {}
    for node in ast.parse(text).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for each in inside:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                source = ast.get_source_segment(text, each) or ""
                found[prefix + each.name] = " ".join(source.split())
    return found


def test_each_module_has_its_tests() -> None:
    assert sorted(TESTS) == modules()
    for selected in TESTS.values():
        named = [each.split("::")[0] for tests in selected.values() for each in tests]
        assert [each for each in named if not (ROOT / each).is_file()] == []


COLLECT_TWICE = """
import sys, pytest

class Names:
    def pytest_collection_modifyitems(self, items):
        self.found = [each.nodeid for each in items]

twice = Names(), Names()
for names in twice:
    pytest.main([*sys.argv[1:], "--collect-only", "-qqq", "-p", "no:cacheprovider"], plugins=[names])
first, second = (names.found for names in twice)
assert first
print("different:", sorted({*second} - {*first}))
"""


def test_each_test_keeps_its_name() -> None:
    """mutmut collects tests, and finds them by name in the same process: one that it does not find kills every mutant.

    What an `ids` function returns, pytest escapes once more each time: it must not have a backslash.
    """
    every = {each for tests in TESTS.values() for each in tests["tests"]}
    command = [sys.executable, "-c", COLLECT_TWICE, *sorted(every)]
    collected = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    assert collected.stdout.endswith("different: []\n"), collected.stdout


def test_each_accepted_survivor_is_of_the_code_as_it_is_and_has_a_reason() -> None:
    assert set(SURVIVORS) <= set(modules())
    for module, listed in SURVIVORS.items():
        code = functions(module)
        for each in listed:
            assert " ".join(each["was"].split()) in code[each["function"]], each
            assert each["was"] != each["becomes"]
            assert len(each["reason"].split()) > 3, each
        keys = [(each["function"], each["was"], each["becomes"]) for each in listed]
        assert len(set(keys)) == len(keys), module


@pytest.mark.parametrize(
    ("killed", "survivors", "listed", "found"),
    [
        (19, [LISTED], [LISTED], []),
        (19, [LISTED], [], ["survived, and is not listed"]),
        (20, [], [LISTED], ["listed, but did not survive"]),
        (19, [OTHER], [LISTED], ["survived, and is not listed", "listed, but did not survive"]),
        (38, [LISTED, LISTED], [LISTED], ["survived, and is not listed"]),
        (38, [LISTED, LISTED], [LISTED, LISTED], []),
        (0, [], [], []),
    ],
)
def test_a_module_is_judged_by_each_survivor(
    killed: int, survivors: list[Mutant], listed: list[Mutant], found: list[str]
) -> None:
    outcome = Outcome(killed, Counter(survivors))
    assert outcome.total == killed + len(survivors)
    assert [each.partition(":")[0] for each in problems(outcome, Counter(listed))] == found


def test_the_share_counts_over_all_modules() -> None:
    small, large = Outcome(1, Counter([LISTED])), Outcome(18, Counter())
    assert not are_enough([small])
    assert are_enough([small, large])
    assert not are_enough([small, Outcome(17, Counter())])
    assert are_enough([])


@pytest.mark.parametrize(
    ("chosen", "share_counts"),
    [([], True), (["core"], True), (["core.cursor"], False), (["leases", "core.cursor"], False)],
)
def test_the_share_of_a_single_module_does_not_count(chosen: list[str], share_counts: bool) -> None:
    assert are_whole_areas(chosen) is share_counts


def test_a_mutant_is_known_by_its_function_and_its_change() -> None:
    name = "msk_auth.core.cursor.xǁPageCursorǁdecode__mutmut_4"
    diff = (
        f"# {name}: survived\n--- a/cursor.py\n+++ a/cursor.py\n@@ -1,3 +1,3 @@\n"
        " def decode():\n-        f(\n-            1)\n+        f(2)\n     return\n"
    )
    assert mutant_of(name, diff) == Mutant("PageCursor.decode", "f( 1)", "f(2)")
    assert function_of("msk_auth.core.keys.x_parse__mutmut_12") == "parse"
    assert function_of("msk_auth.core.keys.x__parse__mutmut_12") == "_parse"


@pytest.mark.parametrize(
    ("was", "becomes", "same"),
    [
        ('x = cast("A", y)', "x = cast(None, y)", True),
        ('x = cast("A", y)', 'x = cast("XXAXX", y)', True),
        ('x = cast("A", y)', 'x = cast("A", None)', False),
        ('x = cast("A", y)', "x = None", False),
        ('y.decode("ascii")', 'y.decode("ASCII")', True),
        ('y.decode("ascii")', 'y.decode("XXasciiXX")', False),
        ('y.decode("ascii")', "y.decode(None)", False),
    ],
)
def test_what_may_change_anywhere_is_all_that_changed(was: str, becomes: str, same: bool) -> None:
    assert all(rule["reason"] for rule in ANYWHERE)
    assert is_same_anywhere(Mutant("f", was, becomes)) is same


@pytest.mark.parametrize(
    ("line", "is_left"),
    [
        ('            "This is not a cursor. Begin again without one."', True),
        ('            f"{name} is one text and has to be a set."', True),
        ('raise ValueError(f"The key {kid!r} is not there.")', True),
        ('value.strip(" \\t")', False),
        ('if "a" in one and "b" in other or "c" in third:', False),
        ('sent = "WWW-Authenticate", "Bearer"', False),
    ],
)
def test_only_phrases_are_left_as_they_are(line: str, is_left: bool) -> None:
    assert (re.search(PHRASE, line) is not None) is is_left
