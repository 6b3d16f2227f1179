"""Every measurement runs, small, and every row of its result has figures. No time is asserted."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks import __main__ as command
from benchmarks.result import Result, table
from benchmarks.timing import Scale

pytestmark = pytest.mark.faults


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """What a measurement has unfrozen would be looked through in every later collection of garbage."""
    yield
    gc.freeze()


@pytest.mark.parametrize("name", command.NAMES)
def test_a_measurement_gives_rows_with_figures(name: str) -> None:
    result = command.measure(name, Scale(is_quick=True))
    assert result.name == name
    assert result.rows
    names = {row.name for row in result.rows}
    for row in result.rows:
        assert row.cells
        assert row.against == "" or row.against in names
        assert all(
            math.isfinite(each.median) and each.low <= each.median <= each.high
            for each in row.cells.values()
        )
    assert result.measured["command"] == f"python -m benchmarks {name} --quick"
    # It comes back from its file as it was written.
    assert Result.from_json(result.to_json()) == result


def test_the_command_prints_a_table_and_writes_the_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["verification", "--quick", "--write", "--to", str(tmp_path)]) == 0
    result = Result.from_json((tmp_path / "verification.json").read_text("utf-8"))
    assert table(result) in capsys.readouterr().out
