"""The diff that adds the library to an application that exists, from the two trees in `examples/existing`."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Final

EXAMPLES: Final = Path(__file__).parents[2] / "examples" / "existing"


def names() -> list[str]:
    """The applications, by the names of their folders."""
    return sorted(path.parent.name for path in EXAMPLES.glob("*/before"))


def diffs(name: str) -> dict[str, list[str]]:
    """From the path of each Python file that changes to the lines of its diff. Generated migrations are left out."""
    before, after = EXAMPLES / name / "before", EXAMPLES / name / "after"
    paths = sorted(
        path.relative_to(after).as_posix()
        for path in after.rglob("*.py")
        if "versions" not in path.parts
    )
    found = {path: _diff(before / path, after / path, path) for path in paths}
    return {path: lines for path, lines in found.items() if lines}


def added(name: str) -> int:
    """How many lines of the application are new or changed; blank ones do not count."""
    lines = [line for diff in diffs(name).values() for line in diff[2:]]
    return sum(1 for line in lines if line.startswith("+") and line[1:].strip())


def render(name: str) -> str:
    """The diff of each file, new files first, and how many lines there are."""
    # `sorted` keeps the order of the paths among equals.
    ordered = sorted(diffs(name).values(), key=lambda lines: lines[0] != "--- /dev/null")
    shown = "\n\n".join("```diff\n" + "\n".join(lines) + "\n```" for lines in ordered)
    return f"{added(name)} lines of the application are new or changed.\n\n{shown}"


def _diff(old: Path, new: Path, path: str) -> list[str]:
    old_lines = old.read_text("utf-8").splitlines() if old.exists() else []
    new_lines = new.read_text("utf-8").splitlines()
    old_name = f"a/{path}" if old.exists() else "/dev/null"
    return list(difflib.unified_diff(old_lines, new_lines, old_name, f"b/{path}", n=2, lineterm=""))
