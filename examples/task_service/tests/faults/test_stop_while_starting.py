"""A signal to stop that comes while the service starts."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from examples.task_service.tests.faults.nursery import nursery, until

pytestmark = pytest.mark.faults

STARTS = 24


def test_a_signal_at_any_moment_of_the_start_ends_the_service(tmp_path: Path) -> None:
    with nursery(tmp_path) as processes:
        for number in range(STARTS):
            data = tmp_path / f"data-{number}"
            process = processes.start("serve", data_dir=str(data), port="0")
            until(data.exists, "the service begins to open its data")
            # From the first file to the first request.
            time.sleep(number * 0.01)
            process.send(signal.SIGINT if number % 2 else signal.SIGTERM)
            assert process.wait(15) == 0, process.log()
            assert "Traceback" not in process.log(), process.log()
