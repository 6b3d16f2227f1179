"""What `compose.yaml` starts, as separate processes: the same commands in the same order, with the same settings."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from examples.task_service.tests.faults.clients import Client, NoAnswer
from examples.task_service.tests.faults.deployment import (
    Deployment,
    credential,
    is_serving,
    log_in,
    new_key,
    new_task,
    start_run,
    wait_for_run,
    worker_ids,
)
from examples.task_service.tests.faults.nursery import Nursery, nursery, until
from examples.task_service.tests.service_support import ADMIN_PASSWORD, secrets_in
from tests.databases import postgres_database

pytestmark = [pytest.mark.faults, pytest.mark.timeout(180)]


def run(processes: Nursery, *words: str, stdin: str = "", **settings: str) -> None:
    """A command that comes back."""
    process = processes.start(*words, stdin=stdin, **settings)
    assert process.wait() == 0, process.log()


def test_two_api_processes_and_two_workers_are_one_service(tmp_path: Path) -> None:
    with postgres_database() as database, nursery(tmp_path) as processes:
        url = database.set(drivername="postgresql").render_as_string(hide_password=False)
        origin = "https://tasks.example.org"
        deployment = Deployment(
            processes, tmp_path, database_url=url, base_url=origin, log_format="json"
        )
        run(processes, "migrate", **deployment.settings)
        administer = ("users", "create", "admin", "--role", "admin", "--password-stdin")
        run(processes, *administer, stdin=ADMIN_PASSWORD + "\n", **deployment.settings)
        apis = [deployment.begin_to_serve(), deployment.begin_to_serve()]
        workers = [deployment.work(), deployment.work()]
        for api in apis:
            until(lambda api=api: is_serving(api), "it serves")
            # There is an administrator, so no link for the first one is printed.
            assert "set-password" not in api.process.stdout.read_text()
        one, two = (api.port for api in apis)
        # A change in one process is visible in the other.
        admin = log_in(one)
        program = new_key(Client(two, credential(admin)))
        assert Client(one, credential(program)).get("/api/auth/me").status == 200
        task_id = new_task(program, "echo", "hello")
        for worker in workers:
            until(lambda worker=worker: worker_ids(worker), "the worker works")
        run_ids = [start_run(program, task_id) for _ in range(6)]
        for run_id in run_ids:
            assert wait_for_run(Client(one, credential(admin)), run_id)["state"] == "succeeded"
        log = Client(one, credential(admin)).send(
            "GET", f"/api/runs/{run_ids[0]}/log", headers={"Accept": "text/plain"}
        )
        assert log.text == "hello\n"
        # A key that was revoked at one is refused at the other.
        key_id = program.must("GET", "/api/auth/me")["credential"]["key_id"]
        admin.must("POST", f"/api/keys/{key_id}/revoke")
        refused = Client(two, credential(program)).get("/api/tasks")
        assert (refused.status, refused.code) == (401, "key_revoked")
        # One of each is killed, and the service goes on.
        apis[0].process.kill()
        workers[0].kill()
        with pytest.raises(NoAnswer):
            Client(one).get("/healthz")
        left = Client(two, credential(admin))
        own = new_task(left, "echo", "again")
        assert wait_for_run(left, start_run(left, own))["state"] == "succeeded"
        for process in (apis[1].process, workers[1]):
            process.send(signal.SIGTERM)
            assert process.wait() == 0
        logs = processes.logs()
    assert not secrets_in(logs)
    assert "Traceback" not in logs, logs[logs.index("Traceback") - 500 :][:5000]
