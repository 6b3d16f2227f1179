"""A flame graph of one request, from the collapsed stacks of a sampling profiler.

The stacks come from py-spy, which is no dependency of this project, while a server answers the same request again and again:

    py-spy record --gil --format raw --rate 400 --duration 12 --pid PID --output stacks.txt
    python -m benchmarks.flame stacks.txt --name me --title "Who am I" --microseconds 300 > me.svg

With `--gil` a sample is a thread that executes Python just then. Functions of this project are drawn one by one; those of
other packages that call each other, as one bar with the package's name.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

from .svg import WIDTH, document, element, label

OWN = ("msk_auth", "task_service")

# Where the answering of a request begins, and where a statement of SQLite does that runs in another thread.
_ROOTS = {"RequestResponseCycle.run_asgi": "uvicorn", "_connection_worker_thread": "aiosqlite"}
_REST = "event loop, parsing of requests"
_KINDS = {
    "msk_auth": ("a", "the library"),
    "task_service": ("c", "the service"),
    "sqlalchemy": ("b", "database"),
    "aiosqlite": ("b", "database"),
    "psycopg": ("b", "database"),
}
_OTHER = ("soft", "frameworks, standard library")
_ROW = 18
_TOP = 30
_CHARACTER = 6.6
_LEAST = 2.0


@dataclass
class Frame:
    """A bar, with those that it called.

    Attributes:
        name: What is written on it.
        package: Of the function.
        samples: In how many it was on the stack.
    """

    name: str
    package: str
    samples: int = 0
    callees: dict[str, Frame] = field(default_factory=dict[str, "Frame"])


def read_stacks(lines: Iterable[str]) -> Iterator[tuple[list[str], int]]:
    """Each stack from its outermost function, `name (file:line)`, and how often it was seen."""
    for line in lines:
        stack, _, count = line.rpartition(" ")
        yield stack.split(";"), int(count)


def fold(stacks: Iterable[tuple[Sequence[str], int]]) -> Frame:
    """All stacks as one tree."""
    root = Frame("all", "")
    for stack, count in stacks:
        frame = root
        frame.samples += count
        for name, package in _bars(stack):
            frame = frame.callees.setdefault(name, Frame(name, package))
            frame.samples += count
    return root


def draw(root: Frame, *, name: str, title: str, microseconds: int) -> str:
    """The tree as SVG: what calls stands above what it calls, and a bar is as wide as its share of the samples.

    Args:
        root: From :func:`fold`.
        name: Of the file, for the ids in it.
        title: Of the picture.
        microseconds: The processor time of one request, which is written above.
    """
    parts: list[str] = []
    deepest = _add(parts, root, 0.0, 0, root.samples)
    shares = _shares(root)
    spent = ", ".join(f"{kind} {share:.0%}" for kind, share in shares.items())
    keys = [label(f"{microseconds:,} µs", WIDTH, 15, anchor="end", class_="heading")]
    x = 0.0
    for colour, kind in dict.fromkeys((*_KINDS.values(), _OTHER)):
        keys.append(_box(x, 4, 12, 12, colour))
        text = f"{kind}, {shares.get(kind, 0.0):.0%}"
        keys.append(label(text, x + 17, 15))
        x += 36 + len(text) * _CHARACTER
    description = (
        f"{microseconds:,} µs of processor time. Within the functions of each kind: {spent}."
    )
    height = _TOP + (deepest + 1) * _ROW
    return document(name, title, description, [*keys, *parts], height)


def _bars(stack: Sequence[str]) -> Iterator[tuple[str, str]]:
    names = [each.partition(" (")[0] for each in stack]
    begin = next((place for place, name in enumerate(names) if name in _ROOTS), None)
    if begin is None:
        yield _REST, "asyncio"
        return
    before = ""
    for name, each in zip(names[begin:], stack[begin:], strict=True):
        package = _package(each)
        if package in OWN:
            yield name.rpartition("<locals>.")[2], package
        elif package != before:
            yield package, package
        before = package


def _package(frame: str) -> str:
    file = frame.partition(" (")[2].rpartition(":")[0]
    return file.partition("/")[0].removesuffix(".py") or "Python"


def _shares(root: Frame) -> dict[str, float]:
    found: dict[str, float] = {}

    def visit(frame: Frame) -> None:
        own = frame.samples - sum(each.samples for each in frame.callees.values())
        kind = _KINDS.get(frame.package, _OTHER)[1]
        found[kind] = found.get(kind, 0.0) + own / root.samples
        for each in frame.callees.values():
            visit(each)

    for each in root.callees.values():
        visit(each)
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _add(parts: list[str], frame: Frame, x: float, row: int, total: int) -> int:
    """Draw what a frame called; the number of the lowest row."""
    lowest = row
    for each in sorted(frame.callees.values(), key=lambda one: -one.samples):
        width = each.samples / total * WIDTH
        if width < _LEAST:
            continue
        y = _TOP + row * _ROW
        colour = _KINDS.get(each.package, _OTHER)[0]
        hint = element("title", escape(f"{each.name}: {each.samples / total:.1%}"))
        parts.append(_box(x, y, width - 0.5, _ROW - 1, colour, hint))
        room = int((width - 6) / _CHARACTER)
        if room >= 4:
            text = each.name if len(each.name) <= room else each.name[: room - 1] + "…"
            parts.append(label(text, round(x + 3, 1), y + 13))
        lowest = max(lowest, row, _add(parts, each, x, row + 1, total))
        x += width
    return lowest


def _box(x: float, y: float, width: float, height: float, colour: str, content: str = "") -> str:
    # Pale, so that text is readable on it in light and in dark.
    return element(
        "rect",
        content,
        x=round(x, 1),
        y=y,
        width=round(width, 1),
        height=height,
        fill=f"var(--{colour})",
        fill_opacity=0.3,
    )


def main(arguments: list[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flame")
    parser.add_argument("stacks", type=Path, help="what the profiler has written")
    parser.add_argument("--name", required=True, help="of the picture's file")
    parser.add_argument("--title", required=True, help="of the picture")
    parser.add_argument(
        "--microseconds", type=int, required=True, help="processor time of one request"
    )
    options = parser.parse_args(arguments)
    with options.stacks.open(encoding="utf-8") as lines:
        root = fold(read_stacks(lines))
    picture = draw(root, name=options.name, title=options.title, microseconds=options.microseconds)
    sys.stdout.write(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
