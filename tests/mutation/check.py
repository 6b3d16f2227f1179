"""Change the code in small ways and see whether the tests notice: `make mutants`, or `make mutants ARGS="core.policy"`.

Each module is mutated by mutmut in a folder of its own below `.mutants`, and each of its mutants meets only the tests
that are named for the module in `modules.toml`: what no test near the code notices is worth knowing of, and the whole
suite for each of some thousand mutants would take days. The check fails if a mutant survives that `survivors.toml` does not
explain, or if one that it has was killed or is gone; for a whole area, such as `leases`, or all of them, also if fewer than
95 % of the mutants are killed.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
WORK = ROOT / ".mutants"
PACKAGE = ROOT / "src" / "msk_auth"
AREAS = (
    "core/**/*.py",
    "tokens/claims.py",
    "tokens/issuers.py",
    "tokens/profile.py",
    "tokens/providers.py",
    "leases.py",
    "_async/leases.py",
    # The generated half, which most of the tests drive without an event loop, is the same code.
    "_sync/administration.py",
    "_sync/authenticator.py",
    "_sync/verification.py",
    "batching.py",
)
LEAST = 0.95
KILLED = frozenset({"killed", "timeout", "segfault"})

# Words for people may change without a test that fails, so lines with a phrase in quotes are left as they are.
PHRASE = r"""(^|[\s(=,f])["'][A-Za-z{][^"]*[\w}] [\w{][^" ]* [^"]*["']"""

CONFIG = """
[tool.mutmut]
source_paths = ["src"]
only_mutate = {source}
also_copy = ["conftest.py"]
do_not_mutate_patterns = {phrase}
pytest_add_cli_args = {options}
pytest_add_cli_args_test_selection = {tests}
"""


class Mutant(NamedTuple):
    """What was changed, so that neither a line's number nor that of the mutant matters.

    Attributes:
        function: The function's name with its class, such as `KeyFormat.parse`.
        was: The lines that are gone, without indentation.
        becomes: The lines that replace them.
    """

    function: str
    was: str
    becomes: str


class Outcome(NamedTuple):
    """What became of the mutants of one module."""

    killed: int
    survivors: Counter[Mutant]

    @property
    def total(self) -> int:
        return self.killed + self.survivors.total()


def modules() -> list[str]:
    """The modules that are mutated, such as `core.policy`."""
    paths = {path for area in AREAS for path in PACKAGE.glob(area) if _has_functions(path)}
    return sorted(".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in paths)


def _has_functions(path: Path) -> bool:
    """Whether there is something to change: a protocol's methods have no body."""
    functions = [
        node
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return any(ast.unparse(each.body[-1]) != "..." for each in functions)


def tests_of(module: str) -> dict[str, list[str]]:
    """What `modules.toml` has for a module: its tests, and those among them that cannot run here."""
    every: dict[str, dict[str, list[str]]] = tomllib.loads(_read("modules.toml"))
    return every[module]


def listed_survivors() -> dict[str, Counter[Mutant]]:
    """The survivors of each module that `survivors.toml` explains one by one."""
    every: dict[str, list[dict[str, Any]]] = tomllib.loads(_read("survivors.toml"))
    every.pop("anywhere")
    return {
        module: Counter(
            {
                Mutant(each["function"], each["was"], each["becomes"]): each.get("times", 1)
                for each in listed
            }
        )
        for module, listed in every.items()
    }


def is_same_anywhere(mutant: Mutant) -> bool:
    """Whether all that a mutant changes is what `survivors.toml` has under `anywhere`."""
    rules: list[dict[str, str]] = tomllib.loads(_read("survivors.toml"))["anywhere"]
    return any(
        re.sub(rule["without"], "", mutant.was) == re.sub(rule["without"], "", mutant.becomes)
        for rule in rules
    )


def _read(name: str) -> str:
    return Path(__file__).with_name(name).read_text("utf-8")


def function_of(name: str) -> str:
    """The function that a mutant's name stands for: `core.keys.xǁKeyFormatǁparse__mutmut_4` is `KeyFormat.parse`."""
    mangled = name.rpartition(".")[2].rpartition("__mutmut_")[0]
    return mangled.removeprefix("xǁ").replace("ǁ", ".") if "ǁ" in mangled else mangled[2:]


def mutant_of(name: str, diff: str) -> Mutant:
    """What `mutmut show` prints about a mutant."""
    lines = [line for line in diff.splitlines() if not line.startswith(("---", "+++", "#"))]

    def those(sign: str) -> str:
        return " ".join(line[1:].strip() for line in lines if line.startswith(sign))

    return Mutant(function_of(name), those("-"), those("+"))


def problems(outcome: Outcome, listed: Counter[Mutant]) -> list[str]:
    """What is wrong with a module's outcome; empty if nothing is."""
    found = [
        f"survived, and is not listed: {_line(each)}"
        for each in outcome.survivors - listed
        if not is_same_anywhere(each)
    ]
    found += [f"listed, but did not survive: {_line(each)}" for each in listed - outcome.survivors]
    return found


def are_enough(outcomes: Iterable[Outcome]) -> bool:
    """Whether the share that was killed is large enough."""
    every = list(outcomes)
    return sum(each.killed for each in every) >= LEAST * sum(each.total for each in every)


def are_whole_areas(chosen: Iterable[str]) -> bool:
    """Whether the share says something about what was chosen: one module may be full of equivalents."""
    return not any("." in each for each in chosen)


def _line(mutant: Mutant) -> str:
    return f"{mutant.function}\n      - {mutant.was}\n      + {mutant.becomes}"


def mutate(module: str) -> Outcome:
    """Make the mutants of a module, run its tests against each, and return what became of them."""
    folder = WORK / module
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "conftest.py", folder)
    tests = tests_of(module)
    without = [f"--deselect={each}" for each in tests.get("without", [])]
    # A list of texts is the same in JSON and in TOML.
    config = CONFIG.format(
        source=json.dumps([f"src/msk_auth/{module.replace('.', '/')}.py"]),
        phrase=json.dumps([PHRASE]),
        options=json.dumps(["-p", "no:cacheprovider", "--hypothesis-profile=mutants", *without]),
        tests=json.dumps(tests["tests"]),
    )
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    (folder / "pyproject.toml").write_text(project + config, "utf-8")

    with (folder / "log.txt").open("wb") as log:
        ran = _mutmut(folder, "run", stdout=log, stderr=subprocess.STDOUT)
    if ran.returncode != 0:
        sys.exit(f"{module}: mutmut failed. Read {folder / 'log.txt'}.")
    results = _mutmut(folder, "results", "--all", "true", stdout=subprocess.PIPE).stdout.decode()
    killed, survivors = 0, Counter[Mutant]()
    for line in results.splitlines():
        name, _, status = line.strip().rpartition(": ")
        if status in KILLED:
            killed += 1
        else:
            diff = _mutmut(folder, "show", name, stdout=subprocess.PIPE).stdout.decode()
            survivors[mutant_of(name, diff)] += 1
    return Outcome(killed, survivors)


def _mutmut(folder: Path, *words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    command = [Path(sys.executable).with_name("mutmut"), *words]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=folder, env=environment, check=False, **options)


def main(chosen: Sequence[str]) -> int:
    every = modules()
    named = sorted(tomllib.loads(_read("modules.toml")))
    if named != every:
        print(f"modules.toml does not name the modules that are mutated: {set(named) ^ set(every)}")
        return 2
    wanted = [each for each in every if not chosen or each.startswith(tuple(chosen))]
    if not wanted:
        print(f"There is no module {' or '.join(chosen)}. Choose among: {', '.join(every)}.")
        return 2
    listed = listed_survivors()
    outcomes: dict[str, Outcome] = {}
    failed = False
    for module in wanted:
        began = time.monotonic()
        outcome = outcomes[module] = mutate(module)
        print(f"{module:24} {_figures([outcome])} {time.monotonic() - began:6.0f} s", flush=True)
        for problem in problems(outcome, listed.get(module, Counter())):
            failed = True
            print(f"    {problem}", flush=True)
    print(f"{'in all':24} {_figures(outcomes.values())}")
    if are_whole_areas(chosen) and not are_enough(outcomes.values()):
        failed = True
        print(f"less than {LEAST:.0%} of the mutants were killed")
    return 1 if failed else 0


def _figures(outcomes: Iterable[Outcome]) -> str:
    killed, total = 0, 0
    for outcome in outcomes:
        killed, total = killed + outcome.killed, total + outcome.total
    share = killed / total if total else 1.0
    return f"{total:5} mutants {killed:5} killed {total - killed:4} survived {share:7.1%}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
