"""The layers of the library, from the import contract, and a table with the rule of each folder from its docstring."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]

_CONTRACT: Final = "Dependencies point inwards"
_RULE: Final = re.compile(r"One rule: (.+?[.:])(?:\s|$)", re.DOTALL)


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
        for layer in reversed(of_this_project())
        for module in layer
    ]
    return "\n".join(["| module | rule |", "|---|---|", *rows])


def of_this_project() -> list[list[str]]:
    """The layers of the library, as :func:`layers`."""
    return layers((ROOT / "pyproject.toml").read_text("utf-8"))
