"""The files beside this one are read by mypy and pyright in `make check`, as an application's own code would be.

That takes a type checker, and no test: here is only whether they are read.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ADAPTERS = {"fastapi", "flask", "litestar", "mcp", "starlette"}


def test_every_adapter_has_a_file() -> None:
    assert {f"{name}_app.py" for name in ADAPTERS} <= {path.name for path in HERE.glob("*.py")}


@pytest.mark.parametrize(("checker", "files"), [("mypy", "files"), ("pyright", "include")])
def test_type_checkers_read_them_strictly(checker: str, files: str) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"][checker]
    assert HERE.relative_to(ROOT).as_posix() in settings[files]
    assert settings.get("strict") is True or settings.get("typeCheckingMode") == "strict"
