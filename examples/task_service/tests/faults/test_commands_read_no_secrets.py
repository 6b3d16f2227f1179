"""What a task's command gets at, in a real deployment: nothing of the service's own, although both are one user."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
from examples.task_service.tests.service_support import ADMIN_PASSWORD
from examples.task_service.tests.test_cli import Serving, log_in, serving

from task_service.handlers.sandbox import landlock_version

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]

PASSWORD_OF_REDIS = "a-password-in-the-environment"


def printed_by(service: Serving, login: str, *argv: str) -> str:
    """All that a task prints with this command."""
    body = {"name": "curious", "handler": "command", "params": {"argv": argv}}
    status, task = service.request("POST", "/api/tasks", body, login)
    assert status == 201, task
    _, run = service.request("POST", f"/api/tasks/{task['id']}/run", None, login)
    path, deadline = f"/api/runs/{run['id']}", time.monotonic() + 40
    while run["finished_at"] is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
        _, run = service.request("GET", path, credential=login)
    headers = {"Authorization": f"Bearer {login}", "Accept": "text/plain"}
    request = urllib.request.Request(f"{service.origin}{path}/log", headers=headers)
    with urllib.request.urlopen(request, timeout=20) as response:
        return str(response.read().decode())


def test_a_task_reads_neither_the_secrets_file_nor_an_environment(tmp_path: Path) -> None:
    if landlock_version() == 0:
        pytest.skip("needs a Linux kernel with Landlock")
    data = tmp_path / "data"
    # Nothing answers there, and the database counts in its place.
    redis = f"redis://:{PASSWORD_OF_REDIS}@127.0.0.1:1/0"
    with serving(data, REDIS_URL=redis) as service:
        body = {"token": service.token, "password": ADMIN_PASSWORD}
        assert service.request("POST", "/api/auth/set-password", body)[0] == 204
        login = log_in(service)
        allowed = {"allowed_commands": ["cat", "sh"]}
        assert service.request("PATCH", "/api/admin/config", allowed, login)[0] == 200
        secrets = json.loads((data / "secrets.json").read_text())
        hidden = [PASSWORD_OF_REDIS, secrets["token_keys"][0]["key"]]
        hidden += secrets["peppers"]["values"].values()

        attacks = {
            "file": ["cat", str(data / "secrets.json"), str(data / "task-service.sqlite3")],
            "worker": ["cat", f"/proc/{service.process.pid}/environ"],
            "parent": ["sh", "-c", "cat /proc/$PPID/environ; cat /proc/$PPID/../*/environ"],
            "all": ["sh", "-c", "cat /proc/*/environ /proc/*/task/*/environ"],
            "memory": ["cat", f"/proc/{service.process.pid}/maps"],
        }
        for name, argv in attacks.items():
            printed = printed_by(service, login, *argv)
            assert not [secret for secret in hidden if secret in printed], name
            assert "denied" in printed, (name, printed)

        # Another process of the same user, without root's privileges, and without a sandbox.
        environment = f"/proc/{service.process.pid}/environ"
        if os.geteuid() == 0:
            setpriv = shutil.which("setpriv")
            assert setpriv is not None
            without = [setpriv, "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
        else:
            without = []
        done = subprocess.run(
            [*without, "cat", environment], check=False, capture_output=True, text=True
        )
        assert (done.stdout, done.returncode) == ("", 1)
        assert service.stop() == 0
