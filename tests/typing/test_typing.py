"""The files beside this one, read by mypy and pyright as an application's own code would be."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ADAPTERS = {"fastapi", "flask", "litestar", "starlette"}
MISSING = {f"{name}_app.py" for name in ADAPTERS if find_spec(name) is None}
FILES = sorted(
    path
    for path in HERE.glob("*.py")
    if not path.name.startswith("test_") and path.name not in MISSING
)

# pyright runs on the node of its own wheel, and asks no registry whether it is the newest.
ENVIRONMENT = os.environ | {
    "PYRIGHT_PYTHON_GLOBAL_NODE": "0",
    "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1",
}


def check(*command: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", *command, *map(str, FILES)],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_there_are_files_to_read() -> None:
    assert {f"{name}_app.py" for name in ADAPTERS} - MISSING <= {path.name for path in FILES}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_mypy_agrees() -> None:
    check("mypy", "--strict")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_pyright_agrees() -> None:
    check("pyright", "--warnings")
