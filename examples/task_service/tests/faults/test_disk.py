"""SQLite on a disk that is full, or that cannot write: 503 for what changes something, and nothing is lost (G5, G8)."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from examples.task_service.tests.faults.clients import Client, check_is_outage
from examples.task_service.tests.faults.deployment import (
    Deployment,
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

pytestmark = pytest.mark.faults

SMALL_DISK = 'mount -t tmpfs -o size=12m,mode=700 tmpfs "$0" && exec "$@"'


def check_integrity(database: Path) -> None:
    connection = sqlite3.connect(database)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    finally:
        connection.close()


def check_writing_and_reading(admin: Client, program: Client, task_id: str) -> list[int]:
    """What is not done is 503 and has left nothing; reading goes on. The statuses of the writes."""
    writes = [
        (program, "PATCH", f"/api/tasks/{task_id}", {"name": "another"}),
        (program, "POST", f"/api/tasks/{task_id}/run", None),
        (admin, "POST", "/api/keys", {"name": "k"}),
        (admin, "PATCH", "/api/admin/config", {"run_retention_days": 7}),
    ]
    with ThreadPoolExecutor(len(writes)) as pool:
        answers = list(pool.map(lambda each: each[0].send(*each[1:]), writes))
    for answer in answers:
        if answer.status >= 300:
            check_is_outage(answer)
    for read in ("/api/auth/me", "/api/tasks", f"/api/tasks/{task_id}", "/readyz"):
        assert program.get(read).status == 200
    name = "another" if answers[0].status == 200 else "a task"
    assert program.must("GET", f"/api/tasks/{task_id}")["name"] == name
    return [answer.status for answer in answers]


def test_fsync_that_fails_acknowledges_nothing(tmp_path: Path) -> None:
    shim = Shim(tmp_path / "shim")
    with nursery(tmp_path, **shim.environment) as processes:
        deployment = Deployment(processes, tmp_path)
        api = deployment.serve()
        admin = set_up(api)
        program = new_key(admin)
        task_id = new_task(program, "echo", "hello")
        assert wait_for_run(program, start_run(program, task_id))["state"] == "succeeded"
        shim.order(fsync_fails=True)
        assert check_writing_and_reading(admin, program, task_id) == [503] * 4
        shim.order()
        made = [new_key(admin) for _ in range(3)]
        run_id = start_run(program, task_id)
        assert wait_for_run(program, run_id)["state"] == "succeeded"
        # What failed is not half there, and what was acknowledged afterwards is wholly.
        api.process.kill()
        check_integrity(tmp_path / "data" / "task-service.sqlite3")
        again = deployment.serve(api.port)
        assert {someone.get("/api/auth/me").status for someone in (*made, program)} == {200}
        assert program.must("GET", f"/api/runs/{run_id}")["state"] == "succeeded"
        assert again.process.terminate() == 0
        logs = processes.logs()
    assert not secrets_in(logs)
    assert "Traceback" not in logs, logs[logs.index("Traceback") - 500 :][:5000]


def test_a_full_disk_refuses_writes_and_recovers(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    unshare = ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else [])]
    if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no file system of its own can be mounted here")
    inside = [*unshare, "sh", "-c", SMALL_DISK, str(data)]
    with nursery(tmp_path, inside=inside) as processes:
        deployment = Deployment(processes, tmp_path)
        api = deployment.serve()
        disk = Path(f"{processes.root}{data}")
        admin = set_up(api)
        program = new_key(admin)
        task_id = new_task(program, "echo", "hello")
        run_id = start_run(program, task_id)
        assert wait_for_run(program, run_id)["state"] == "succeeded"
        fill(disk / "something else")
        # What room is left is used up before long, and the only answers are 201 and 503.
        kept: list[str] = []
        until(lambda: no_room_is_left(admin, kept), "the disk is full")
        assert kept
        assert 503 in check_writing_and_reading(admin, program, task_id)
        for key in kept[:: max(1, len(kept) // 20)]:
            assert Client(api.port, key).get("/api/auth/me").status == 200
        (disk / "something else").unlink()
        later = until(
            lambda: admin.send("POST", "/api/keys", {"name": "later"}).status == 201, "it has room"
        )
        assert later
        assert wait_for_run(program, start_run(program, task_id))["state"] == "succeeded"
        # The same after a kill in the middle of it.
        fill(disk / "something else")
        until(lambda: no_room_is_left(admin, kept), "the disk is full again")
        api.process.kill()
        (disk / "something else").unlink()
        again = deployment.serve(api.port)
        for key in kept[:: max(1, len(kept) // 20)]:
            assert Client(api.port, key).get("/api/auth/me").status == 200
        assert log_in(api.port).get("/api/keys").status == 200
        assert program.must("GET", f"/api/runs/{run_id}")["state"] == "succeeded"
        assert again.process.terminate() == 0
        check_integrity(disk / "task-service.sqlite3")
        logs = processes.logs()
    assert not secrets_in(logs)
    assert "Traceback" not in logs, logs[logs.index("Traceback") - 500 :][:5000]


def fill(file: Path) -> None:
    """Leave room for a few writes."""
    with file.open("wb", buffering=0) as filler:
        with suppress(OSError):
            while True:
                filler.write(bytes(65536))
        filler.truncate(filler.tell() - 200_000)


def no_room_is_left(admin: Client, kept: list[str]) -> bool:
    answer = admin.post("/api/keys", {"name": "k" * 100})
    if answer.status == 201:
        kept.append(answer.body["key"])
        return False
    check_is_outage(answer)
    return True
