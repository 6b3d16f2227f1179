"""A signal to stop that comes while the service starts."""

from __future__ import annotations

import signal
import sqlite3
import time
from contextlib import closing
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


def test_a_second_signal_ends_a_start_that_waits_for_the_database(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    with (
        closing(sqlite3.connect(data / "task-service.sqlite3", isolation_level=None)) as other,
        nursery(tmp_path) as processes,
    ):
        other.execute("PRAGMA journal_mode=WAL")
        other.execute("BEGIN IMMEDIATE")
        process = processes.start("serve", data_dir=str(data), port="0")
        until((data / "secrets.json").exists, "the service opens its data")
        time.sleep(0.5)
        process.send(signal.SIGTERM)
        time.sleep(0.2)
        assert not process.has_ended()
        process.send(signal.SIGTERM)
        assert process.wait(2) == 0, process.log()
