"""What a wheel must carry besides code: types, templates, static files and migrations."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.faults
@pytest.mark.parametrize(
    ("project", "package"), [(".", "msk_auth"), ("examples/task_service", "task_service")]
)
def test_a_wheel_carries_every_file_of_its_package(
    project: str, package: str, tmp_path: Path
) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path)]
    subprocess.run([*build, str(ROOT / project)], check=True, capture_output=True)

    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith(f"{package}/")}

    source = ROOT / project / "src"
    assert packed == {
        path.relative_to(source).as_posix()
        for path in (source / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert f"{package}/py.typed" in packed
