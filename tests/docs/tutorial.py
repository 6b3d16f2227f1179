"""Reads a tutorial as a reader does: its files, its commands, and the output that it shows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TAB = re.compile(r'=== "(.+)"')
_FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Stands for anything. Outside of quotes it is a value, and as a member it stands for further members.
_ANY = "…"


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        language: The word after the fence.
        title: The file that it is, if it is one.
        text: What is in it.
        shown: The block that stands right behind it and shows what it prints.
    """

    language: str
    title: str | None
    text: str
    shown: Block | None = None


def blocks(page: Path, tab: str | None = None) -> list[Block]:
    """The blocks of a page, each command with the output that is shown below it.

    Args:
        page: The page.
        tab: The one tab that the reader has open. Without it, the blocks of all tabs.
    """
    text = "".join(_open(page.read_text("utf-8"), tab))
    matches = list(_FENCE.finditer(text))
    found: list[Block] = []
    for match in reversed(matches):
        block = Block(match[1], match[2], match[3])
        behind = matches[matches.index(match) + 1 :][:1]
        if (
            block.language == "bash"
            and behind
            and behind[0][1] in {"json", "text"}
            and not text[match.end() : behind[0].start()].strip()
        ):
            block = Block(block.language, None, block.text, Block(behind[0][1], None, behind[0][3]))
        found.append(block)
    return found[::-1]


def _open(text: str, tab: str | None) -> Iterator[str]:
    """The lines that are seen, those of tabs without their indent."""
    opened: str | None = None
    for line in text.splitlines(keepends=True):
        title = _TAB.match(line)
        if title is not None:
            opened = title[1]
        elif opened is None or not (line.startswith("    ") or line.isspace()):
            opened = None
            yield line
        elif tab in {None, opened}:
            yield line.removeprefix("    ")


def files(page: Path, tab: str) -> Iterator[tuple[str, str]]:
    """The files that the reader makes, with their content."""
    return ((block.title, block.text) for block in blocks(page, tab) if block.title is not None)


def matches(shown: Block, printed: str) -> bool:
    """True if what was printed is what the page shows, with anything in place of an ellipsis."""
    if shown.language != "json":
        return re.fullmatch(_pattern(shown.text.strip()), printed.strip()) is not None
    # An ellipsis that is a whole value needs quotes to be JSON.
    expected = json.loads(re.sub(rf"(?<=: ){_ANY}(?=[,\n}}])", f'"{_ANY}"', shown.text))
    return _agree(expected, json.loads(printed))


def _agree(expected: Any, actual: Any) -> bool:
    match expected:
        case dict():
            return (
                isinstance(actual, dict)
                and (
                    expected.keys() - {_ANY} < actual.keys()
                    if _ANY in expected
                    else expected.keys() == actual.keys()
                )
                and all(_agree(expected[name], actual[name]) for name in expected if name != _ANY)
            )
        case list():
            return (
                isinstance(actual, list)
                and len(expected) == len(actual)
                and all(map(_agree, expected, actual))
            )
        case "…":
            return True
        case str():
            return isinstance(actual, str) and re.fullmatch(_pattern(expected), actual) is not None
        case _:
            return expected == actual and type(expected) is type(actual)


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, text.split(_ANY))), re.DOTALL)
