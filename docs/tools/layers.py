"""The layers of the library: a picture and a table, made from the import contract and the folders' docstrings."""

from __future__ import annotations

import ast
import re
import tomllib
from html import escape
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
MARKER: Final = "<!-- drawn: layers -->"

_CONTRACT: Final = "Dependencies point inwards"
_RULE: Final = re.compile(r"One rule: (.+?[.:])(?:\s|$)", re.DOTALL)
# Narrow enough that a phone shows it at its own size.
_WIDTH: Final = 360
_BOX: Final = 34
_GAP: Final = 10


def layers(pyproject: str) -> list[list[str]]:
    """The layers of the import contract, the outermost first: the modules of each, which do not import each other.

    Args:
        pyproject: The text of `pyproject.toml`.
    """
    contracts: list[dict[str, Any]] = tomllib.loads(pyproject)["tool"]["importlinter"]["contracts"]
    (contract,) = (each for each in contracts if each["name"] == _CONTRACT)
    return [re.findall(r"\w+", layer) for layer in contract["layers"]]


def rule(module: str) -> str:
    """The one rule of a folder, or the first sentence of a module."""
    path = ROOT / "src" / "msk_auth" / module
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
    match = _RULE.search(text)
    found = match[1] if match else text.partition("\n\n")[0]
    sentence = " ".join(found.split()).rstrip(".:") + "."
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", sentence[0].upper() + sentence[1:])


def render() -> str:
    """A table of all modules, the innermost first, each with its rule."""
    rows = [
        f"| `{module}` | {rule(module)} |"
        for layer in reversed(_of_this_project())
        for module in layer
    ]
    return "\n".join(["| module | rule |", "|---|---|", *rows])


def draw(rows: list[list[str]]) -> str:
    """The picture: one row for each layer, the outermost on top."""
    height = len(rows) * (_BOX + _GAP) + 30
    described = "; ".join(", ".join(row) for row in rows)
    svg = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img"'
            ' aria-labelledby="layers-title layers-desc" style="max-width:30rem">'
        ),
        '<title id="layers-title">The layers of msk_auth</title>',
        f'<desc id="layers-desc">From the outermost to the innermost: {escape(described)}.</desc>',
        (
            '<defs><marker id="layers-head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8"'
            ' markerHeight="8" orient="auto"><path class="head" d="M0 0 L8 4 L0 8 z"/></marker></defs>'
        ),
        (
            f'<path class="line" d="M14 8 L14 {height - 26}" stroke-width="1.4"'
            ' marker-end="url(#layers-head)"/>'
        ),
    ]
    left = 30
    for number, row in enumerate(rows):
        top = number * (_BOX + _GAP) + 4
        width = (_WIDTH - left - 4 - _GAP * (len(row) - 1)) / len(row)
        for place, module in enumerate(row):
            x = left + place * (width + _GAP)
            kind = "core" if module == "core" else "box"
            svg += [
                f'<rect class="{kind}" x="{x:g}" y="{top}" width="{width:g}" height="{_BOX}" rx="5"/>',
                (
                    f'<text x="{x + width / 2:g}" y="{top + 22}" font-size="13"'
                    f' text-anchor="middle">{escape(module)}</text>'
                ),
            ]
    svg += [
        f'<text class="muted" x="4" y="{height - 6}" font-size="12">imports point downwards only</text>',
        "</svg>",
    ]
    return '<figure class="diagram">\n' + "\n".join(svg) + "\n</figure>"


def inline(markdown: str) -> str:
    """The page with the picture in place of its marker."""
    if MARKER not in markdown:
        return markdown
    return markdown.replace(MARKER, draw(_of_this_project()))


def _of_this_project() -> list[list[str]]:
    return layers((ROOT / "pyproject.toml").read_text("utf-8"))
