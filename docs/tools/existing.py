"""The applications in `examples/existing`, each with the patch that adds the library to it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

EXAMPLES: Final = Path(__file__).parents[2] / "examples" / "existing"
# What the type checkers read; git ignores it.
ADOPTED: Final = EXAMPLES / "adopted"


def names() -> list[str]:
    """The applications, by the names of their folders."""
    return sorted(path.parent.name for path in EXAMPLES.glob("*/adopt.patch"))


def copy(name: str, folder: Path) -> None:
    """Copy an application as it is in the repository to a new folder."""
    shutil.copytree(EXAMPLES / name, folder, ignore=shutil.ignore_patterns("__pycache__", "*.db"))


def adopt(folder: Path) -> None:
    """Apply the patch of an application to a copy of it."""
    subprocess.run(["git", "apply", "adopt.patch"], cwd=folder, check=True)  # noqa: S607


def added(name: str) -> int:
    """How many lines of the application are new or changed; blank ones do not count."""
    return len(re.findall(r"^\+(?!\+\+ )[ \t]*\S", _patch(name), re.MULTILINE))


def render(name: str) -> str:
    """The patch, and how many lines it has."""
    return (
        f"{added(name)} lines of the application are new or changed.\n\n```diff\n{_patch(name)}```"
    )


def _patch(name: str) -> str:
    return (EXAMPLES / name / "adopt.patch").read_text("utf-8")


if __name__ == "__main__":
    shutil.rmtree(ADOPTED, ignore_errors=True)
    for each in names():
        copy(each, ADOPTED / each)
        adopt(ADOPTED / each)
