"""Guarantee G8: what was acknowledged survives `kill -9` of the service, at any instant."""

from __future__ import annotations

import itertools
import signal
import sqlite3
import threading
import time
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from examples.task_service.tests.service_support import ADMIN_PASSWORD
from examples.task_service.tests.test_cli import Serving, log_in, serving

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

ROUNDS = 3
# The lease of a run's worker, the poll of the one that takes over, and a busy machine.
TAKE_OVER_SECONDS = 60.0


class Clients:
    """Create keys, revoke them and start runs until the service is gone; remember what it acknowledged."""

    def __init__(self, service: Serving, login: str, task_id: str) -> None:
        self._service = service
        self._login = login
        self._task_id = task_id
        self.keys: dict[str, dict[str, Any]] = {}
        self.revoked: set[str] = set()
        self.unclear: set[str] = set()
        self.runs: list[str] = []

    def _post(self, path: str, body: Any = None) -> Any:
        status, answered = self._service.request("POST", path, body, self._login)
        assert status in {200, 201, 202}, answered
        return answered

    def make_keys(self) -> None:
        for n in itertools.count():
            key = self._post("/api/keys", {"name": f"key {n}"})
            self.keys[key["id"]] = key
            if n % 2:
                self.unclear.add(key["id"])
                self._post(f"/api/keys/{key['id']}/revoke")
                self.unclear.discard(key["id"])
                self.revoked.add(key["id"])

    def start_runs(self) -> None:
        while True:
            self.runs.append(self._post(f"/api/tasks/{self._task_id}/run")["id"])

    def until_it_is_gone(self, kill_after: float) -> None:
        threads = [
            threading.Thread(target=_ignoring_the_end, args=(work,))
            for work in (self.make_keys, self.make_keys, self.start_runs)
        ]
        for thread in threads:
            thread.start()
        time.sleep(kill_after)
        self._service.process.send_signal(signal.SIGKILL)
        self._service.process.wait(60)
        for thread in threads:
            thread.join(60)


def _ignoring_the_end(work: Any) -> None:
    try:
        work()
    except (OSError, HTTPException):
        return  # no process answers any more


def set_up(service: Serving) -> tuple[str, str]:
    """The administrator's login, and a task that takes a moment."""
    if service.token is not None:
        body = {"token": service.token, "password": ADMIN_PASSWORD}
        assert service.request("POST", "/api/auth/set-password", body)[0] == 204
    login = log_in(service)
    config = {"max_keys_per_user": 100_000, "allowed_commands": ["sleep"]}
    assert service.request("PATCH", "/api/admin/config", config, login)[0] == 200
    task = {"name": "a moment", "handler": "command", "params": {"argv": ["sleep", "0.5"]}}
    status, made = service.request("POST", "/api/tasks", task, login)
    assert status == 201
    return login, made["id"]


def check_integrity(data: Path) -> None:
    connection = sqlite3.connect(data / "task-service.sqlite3")
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    finally:
        connection.close()


def test_everything_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    data = tmp_path / "data"
    keys: dict[str, dict[str, Any]] = {}
    revoked: set[str] = set()
    unclear: set[str] = set()
    runs: list[str] = []
    for number in range(ROUNDS):
        with serving(data) as service:
            clients = Clients(service, *set_up(service))
            clients.until_it_is_gone(kill_after=1.5 + 0.37 * number)
        keys |= clients.keys
        revoked |= clients.revoked
        unclear |= clients.unclear
        runs += clients.runs
        check_integrity(data)
    assert len(keys) > 2 * ROUNDS
    assert len(runs) > 2 * ROUNDS
    with serving(data) as service:
        for key_id, key in keys.items():
            status, answered = service.request("GET", "/api/auth/me", credential=key["key"])
            if key_id in revoked:
                assert (status, answered["code"]) == (401, "key_revoked")
            elif key_id not in unclear:
                assert status == 200, answered
        login = log_in(service)
        wait_until_over(service, login, runs)
        service.stop()
    check_integrity(data)


def wait_until_over(service: Serving, login: str, runs: list[str]) -> None:
    """Every run is there; the ones that were interrupted are taken over and come to an end."""
    deadline = time.monotonic() + TAKE_OVER_SECONDS + len(runs)
    attempts = []
    for run_id in runs:
        while True:
            status, run = service.request("GET", f"/api/runs/{run_id}", credential=login)
            assert status == 200, run
            if run["finished_at"] is not None:
                break
            assert time.monotonic() < deadline, run
            time.sleep(0.2)
        assert run["state"] == "succeeded", run
        attempts.append(run["attempt"])
    assert max(attempts) > 1, "no run was interrupted: the test shows nothing"


def test_sigterm_under_load_finishes_what_it_accepted(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data) as service:
        login, _ = set_up(service)
        answers: list[int] = []
        keys: list[str] = []

        def create() -> None:
            while True:
                status, key = service.request("POST", "/api/keys", {"name": "k"}, login)
                answers.append(status)
                keys.append(key["key"])

        threads = [threading.Thread(target=_ignoring_the_end, args=(create,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(1.5)
        assert service.stop() == 0
        for thread in threads:
            thread.join(60)
        assert "Traceback" not in service.errors.read_text()
    assert set(answers) == {201}
    with serving(data) as service:
        for key in keys:
            assert service.request("GET", "/api/auth/me", credential=key)[0] == 200
        service.stop()
    check_integrity(data)
