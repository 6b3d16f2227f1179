"""`kill -9` of the one process on SQLite at random instants, with a ledger kept outside (G8)."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from examples.task_service.tests.faults.deployment import Deployment, credential, new_key, set_up
from examples.task_service.tests.faults.kills import (
    MANY,
    SEED,
    check_executions,
    check_output,
    kill_and_start_again,
    make_command,
)
from examples.task_service.tests.faults.ledger import Ledger
from examples.task_service.tests.faults.nursery import nursery, until

from task_service.tasks.worker_runs import LEASE

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(1200)]

SQLITE_KILLS = 60


def test_the_killed_process_on_sqlite_loses_nothing(tmp_path: Path, record_property: Any) -> None:
    script, lines = make_command(tmp_path)
    with nursery(tmp_path) as processes:
        deployment = Deployment(processes, tmp_path)
        first = deployment.serve()
        admin = set_up(first, allowed_commands=[str(script)], **MANY)
        ledger = Ledger(
            [first.port], credential(admin), credential(new_key(admin)), str(script), seed=SEED
        )
        ledger.begin()
        until(lambda: len(ledger.runs) > 10, "there is work")
        first.process.kill()
        last, killed = kill_and_start_again(
            SQLITE_KILLS - 1,
            SEED,
            lambda: deployment.begin_to_serve(first.port).process,
            ready="data is in",
        )
        ledger.end()
        over = ledger.wait_for_runs(2 * LEASE.total_seconds() + 60)
        ledger.check_keys_and_tasks()
        interrupted = check_executions(ledger, over, lines)
        assert last.terminate() == 0
        logs = processes.logs()
        summary = (
            f"{len(killed) + 1} kills; {len(ledger.keys)} keys, {len(ledger.revoked)} revoked,"
            f" {len(over)} runs, {interrupted} of them interrupted"
        )
        record_property("kills", summary)
        print(summary)
        assert len(killed) + 1 == SQLITE_KILLS
        assert interrupted, "no run was interrupted: the test shows nothing"
        assert ledger.revoked, summary
    connection = sqlite3.connect(tmp_path / "data" / "task-service.sqlite3")
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    finally:
        connection.close()
    check_output(logs)
