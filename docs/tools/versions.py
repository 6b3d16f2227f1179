"""*Added* and *Changed in version*: what docstrings say, what the reference shows, and what a release does with it.

A public name that is newer than the first release has a line of its own in its docstring, `Added in version next.`; one that
does something else than before has `Changed in version next: what it does now.` At a release
`python docs/tools/versions.py 1.2.3` puts the number in place of "next", and notes which names there are.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import griffe

ROOT: Final = Path(__file__).parents[2]
RELEASED: Final = ROOT / "docs" / "assets" / "released.json"
"""The public names of the newest release. The file is written by the first one."""

_MARK: Final = re.compile(
    r"^( *)(Added|Changed|Deprecated) in version (next|\d+\.\d+\.\d+)(\.$|: \S)", re.MULTILINE
)
_NAME: Final = re.compile(r"^::: (\S+)$", re.MULTILINE)
_VERSION: Final = re.compile(r"^## \[(\d+\.\d+\.\d+)\]", re.MULTILINE)
_UNRELEASED: Final = re.compile(r"^## \[Unreleased\]\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def names() -> list[str]:
    """The public names: those that the reference documents."""
    pages = (ROOT / "docs" / "reference" / "api").glob("*.md")
    return sorted(name for page in pages for name in _NAME.findall(page.read_text("utf-8")))


def docstrings() -> dict[str, str]:
    """From each public name to its docstring; a constant has one as well."""
    package = griffe.load("msk_auth", search_paths=[ROOT / "src"])
    found: dict[str, str] = {}
    for name in names():
        item: Any = package[name.removeprefix("msk_auth.")]
        public: griffe.Object = item.final_target if item.is_alias else item
        found[name] = "" if public.docstring is None else public.docstring.value
    return found


def shown(text: str) -> str:
    """A docstring with its marks as the reference shows them."""

    def emphasised(match: re.Match[str]) -> str:
        version = "the next version" if match[3] == "next" else f"version {match[3]}"
        return f"{match[1]}**{match[2]} in {version}**{match[4]}"

    return _MARK.sub(emphasised, text)


def problems(
    texts: Mapping[str, str], changelog: str, released: Collection[str] | None
) -> list[str]:
    """What is wrong with the marks, one line each.

    Args:
        texts: From each public name to its docstring.
        changelog: The text of `CHANGELOG.md`.
        released: The names of the newest release; None if there is none.
    """
    versions = {*_VERSION.findall(changelog)}
    unreleased = _UNRELEASED.search(changelog)
    if unreleased is not None and unreleased[1].strip():
        versions.add("next")
    found: list[str] = []
    for name, text in texts.items():
        marks = [(kind, version) for _, kind, version, _ in _MARK.findall(text)]
        if released is None:
            found += [f"{name}: nothing is released, so nothing is new" for _ in marks]
            continue
        if name not in released and "Added" not in {kind for kind, _ in marks}:
            found.append(f"{name}: say 'Added in version next.'")
        found += [
            f"{name}: no version {each} is in CHANGELOG.md"
            for _, each in marks
            if each not in versions
        ]
    return found


def newest() -> list[str] | None:
    """The public names of the newest release; None before the first one."""
    written: list[str] | None = (
        json.loads(RELEASED.read_text("utf-8")) if RELEASED.exists() else None
    )
    return written


def numbered(source: str, version: str) -> str:
    """A source file with a number in place of "next"."""
    return _MARK.sub(
        lambda match: match[0].replace("in version next", f"in version {version}", 1), source
    )


def main() -> None:
    """Put the number of a release into the docstrings, and note its names."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("version", help="such as 1.2.3")
    version: str = parser.parse_args().version
    for path in (ROOT / "src").rglob("*.py"):
        source = path.read_text("utf-8")
        if (written := numbered(source, version)) != source:
            path.write_text(written, "utf-8")
    RELEASED.write_text(json.dumps(names(), indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
