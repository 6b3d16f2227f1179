"""What a worker executes that is cut off or frozen ends before another worker takes it over."""

from __future__ import annotations

import signal
import stat
import time
from pathlib import Path

import pytest
from examples.task_service.tests.faults.clients import Client
from examples.task_service.tests.faults.deployment import (
    Deployment,
    new_task,
    set_up,
    start_run,
    wait_for_run,
    worker_ids,
)
from examples.task_service.tests.faults.nursery import nursery, until
from examples.task_service.tests.faults.proxy import wire
from examples.task_service.tests.service_support import secrets_in
from sqlalchemy import URL, create_engine, text
from tests.databases import postgres_database

from task_service.tasks.worker_runs import LEASE

pytestmark = pytest.mark.faults

# It writes down each tenth of a second in which it is at work, and who it is. A part of it has left its process group,
# its session and its parent.
SCRIPT = """#!/bin/sh
[ "$1" ] || (setsid "$0" $$ > /dev/null 2>&1 &)
n=0
while [ $n -lt {tenths} ]; do
    n=$((n + 1))
    echo "${{1:-$$}} $(date +%s.%N)" >> {ledger}
    sleep 0.1
done
"""


@pytest.mark.parametrize("fault", ["cut off", "frozen"])
def test_a_worker_without_a_database_stops_before_another_one_begins(
    tmp_path: Path, fault: str
) -> None:
    ledger, script = tmp_path / "at-work", tmp_path / "work"
    # A command cannot make files in a folder above the data folder.
    ledger.touch()
    # Longer than the lease, or there would be nothing to take over.
    tenths = int((LEASE.total_seconds() + 8) * 10)
    script.write_text(SCRIPT.format(ledger=ledger, tenths=tenths))
    script.chmod(stat.S_IRWXU)
    with (
        postgres_database() as database,
        nursery(tmp_path) as processes,
        wire(database.port or 5432) as cable,
    ):
        url = database.set(drivername="postgresql")
        near = url.render_as_string(hide_password=False)
        through_wire = url.set(port=cable.port).render_as_string(hide_password=False)
        deployment = Deployment(processes, tmp_path, database_url=near)
        api = deployment.serve()
        admin = set_up(api, allowed_commands=[str(script)], run_timeout_seconds=120)
        task_id = new_task(admin, str(script), timeout_seconds=120)
        far = deployment.work(database_url=through_wire)
        (far_id,) = until(lambda: worker_ids(far), "the far worker works")
        run_id = start_run_on(far_id, admin, task_id, database)
        # What others that were faster have begun is over, and is not what this is about.
        ledger.write_text("")
        until(lambda: ledger.stat().st_size, "it is at work")
        deployment.work()
        began_at = time.time()
        if fault == "frozen":
            far.send(signal.SIGSTOP)
        else:
            cable.cut()
        run = wait_for_run(admin, run_id)
        assert run["state"] == "succeeded", run
        assert run["attempt"] == 2
        if fault == "frozen":
            far.send(signal.SIGCONT)
        else:
            cable.mend()
        until(lambda: f"stopped the run {run_id}" in far.log(), "it logs that it stopped")
        assert far.terminate() == 0
        logs = processes.logs()
    at_work: dict[str, list[float]] = {}
    for line in ledger.read_text().splitlines():
        program, at = line.split()
        at_work.setdefault(program, []).append(float(at))
    first, second = at_work.values()
    # It stopped by itself, before the lease that others saw was over. Between the two none was at work.
    assert max(first) - began_at < LEASE.total_seconds()
    assert min(second) > max(first)
    assert len(second) >= tenths
    assert not secrets_in(logs)
    assert "Traceback" not in logs, logs[logs.index("Traceback") - 500 :][:5000]


def start_run_on(worker_id: str, someone: Client, task_id: str, database: URL) -> str:
    """A run that this worker executes; what others were faster to take is cancelled."""
    engine = create_engine(database)
    query = text("SELECT claimed_by FROM runs WHERE id = :id")

    def claimed_by(run_id: str) -> str | None:
        with engine.connect() as connection:
            return connection.execute(query, {"id": run_id}).scalar_one()

    try:
        while True:
            run_id = start_run(someone, task_id)
            if until(lambda run_id=run_id: claimed_by(run_id), "it is taken") == worker_id:
                return run_id
            someone.must("POST", f"/api/runs/{run_id}/cancel")
            wait_for_run(someone, run_id)
    finally:
        engine.dispose()
