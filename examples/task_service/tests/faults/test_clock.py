"""The time of day moves by an hour, on one machine or on all, forwards and back."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

import pytest
from examples.task_service.tests.faults.clients import Client
from examples.task_service.tests.faults.deployment import (
    Deployment,
    credential,
    log_in,
    new_key,
    new_task,
    set_up,
    start_run,
    wait_for_run,
)
from examples.task_service.tests.faults.nursery import nursery, until
from examples.task_service.tests.faults.shim import Shim
from examples.task_service.tests.service_support import secrets_in
from tests.databases import postgres_database

from task_service.tasks.worker_runs import LEASE

pytestmark = pytest.mark.faults

HOUR = 3600


def test_a_clock_that_is_set_takes_no_run_and_revives_no_key(tmp_path: Path) -> None:
    """Two machines, whose clocks are two hours apart in the end: one goes forward, the other back."""
    ahead, behind = Shim(tmp_path / "ahead"), Shim(tmp_path / "behind")
    for name in ("1", "2"):
        (tmp_path / name).mkdir()
    with (
        postgres_database() as database,
        nursery(tmp_path / "1", **ahead.environment) as one,
        nursery(tmp_path / "2", **behind.environment) as two,
    ):
        url = database.set(drivername="postgresql").render_as_string(hide_password=False)
        here, there = (Deployment(each, tmp_path, database_url=url) for each in (one, two))
        api = here.serve()
        admin = set_up(
            api,
            allowed_commands=["sleep", "echo"],
            run_timeout_seconds=120,
            max_concurrent_runs_per_user=4,
            session_idle_minutes=240,
        )
        far = there.serve()
        here.work()
        there.work()
        program = new_key(admin)
        revoked = new_key(admin)
        made = admin.must("GET", "/api/keys")["items"][0]
        expiring = admin.must(
            "POST", "/api/keys", {"name": "a day", "expires_in_days": 1}, status=201
        )
        # Long enough to be taken over by mistake, one on each machine as likely as not.
        slow = new_task(program, "sleep", str(int(LEASE.total_seconds()) + 5))
        runs = [start_run(program, slow) for _ in range(4)]
        for run_id in runs:
            until(
                lambda run_id=run_id: program.must("GET", f"/api/runs/{run_id}")["started_at"],
                "it runs",
            )
        ahead.order(clock_shift=HOUR)
        behind.order(clock_shift=-HOUR)
        moved_at = time.monotonic()
        admin.must("POST", f"/api/keys/{made['id']}/revoke")
        for port in (api.port, far.port):
            assert Client(port, credential(program)).get("/api/auth/me").status == 200
            assert Client(port, expiring["key"]).get("/api/auth/me").status == 200
            answer = Client(port, credential(revoked)).get("/api/auth/me")
            assert (answer.status, answer.code) == (401, "key_revoked")
            # A process whose clock is before the time of a login refuses it; a new login there works.
            assert log_in(port).get("/api/auth/me").status == 200
            assert Client(port, credential(program)).get("/api/tasks").status == 200
        not_yet = Client(far.port, credential(admin)).get("/api/auth/me")
        assert (not_yet.status, not_yet.code) == (401, "token_invalid")
        assert Client(api.port, credential(admin)).get("/api/auth/me").status == 200
        quick = new_task(program, "echo", "hello")
        assert moment(Client(api.port, credential(program))) > 3000
        assert moment(Client(far.port, credential(program))) < -3000
        for port in (api.port, far.port):
            someone = Client(port, credential(program))
            assert wait_for_run(someone, start_run(someone, quick))["state"] == "succeeded"
        for run_id in runs:
            run = wait_for_run(program, run_id)
            assert (run["state"], run["attempt"]) == ("succeeded", 1), run
        assert time.monotonic() - moved_at > LEASE.total_seconds() / 2
        # And back again, which is a jump of an hour in the other direction for each.
        ahead.order()
        behind.order()
        assert admin.get("/api/auth/me").status == 200
        assert wait_for_run(program, start_run(program, quick))["state"] == "succeeded"
        logs = one.logs() + two.logs()
    assert not secrets_in(logs)
    assert "Traceback" not in logs, logs[logs.index("Traceback") - 500 :][:5000]


def moment(someone: Client) -> float:
    """How many seconds the clock of a process is ahead, by the moment that it gives a new task."""
    task = {"name": "now", "handler": "command", "params": {"argv": ["echo"]}}
    made = someone.must("POST", "/api/tasks", task, status=201)
    return datetime.fromisoformat(made["created_at"]).timestamp() - time.time()
