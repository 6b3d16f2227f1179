"""The command, as a deployer uses it: what it prints, how it ends, and that it never shows a traceback."""

from __future__ import annotations

import json
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest
from click.testing import Result
from examples.task_service.tests.service_process import (
    Serving,
    environment,
    log_in,
    run,
    serving,
    systemd,
    token_in,
)
from examples.task_service.tests.service_support import ADMIN_PASSWORD, secrets_in
from prometheus_client import CollectorRegistry
from tests.databases import postgres_database

from msk_auth.errors import ConfigurationError
from task_service.observability import serve_worker_metrics
from task_service.server import Server
from task_service.worker import Worker

pytestmark = pytest.mark.slow


def create_administrator(data: Path, name: str) -> Result:
    words = ("users", "create", name, "--role", "admin", "--password-stdin")
    return run(data, *words, stdin=f"{ADMIN_PASSWORD}\n")


def greeting(data: Path, **settings: str) -> str:
    """What `task-service serve` prints once it serves; in this process, and without its server."""

    with (
        mock.patch.object(Server, "serve"),
        mock.patch("task_service.cli.keep_what_exists") as kept,
    ):
        done = run(data, "serve", PORT="0", **settings)
    assert (done.exit_code, done.stderr) == (0, "")
    kept.assert_called_once_with()
    return done.stdout


def test_the_first_minute_ends_with_something_that_worked(tmp_path: Path) -> None:
    """From the printed link to a run that an API key started; then a second start, with the log as JSON."""
    data = tmp_path / "data"
    with serving(data) as service:
        assert service.request("GET", "/readyz")[0] == 200
        assert str(data) in service.output
        body = {"token": service.token, "password": ADMIN_PASSWORD}
        assert service.request("POST", "/api/auth/set-password", body) == (204, None)
        login = log_in(service)
        status, key = service.request("POST", "/api/keys", {"name": "CI"}, login)
        assert status == 201
        _, tasks = service.request("GET", "/api/tasks", credential=key["key"])
        (task,) = tasks["items"]
        assert task["name"] == "Say hello"
        status, begun = service.request("POST", f"/api/tasks/{task['id']}/run", None, key["key"])
        assert status == 202
        deadline = time.monotonic() + 60
        while begun["finished_at"] is None and time.monotonic() < deadline:
            time.sleep(0.1)
            _, begun = service.request("GET", f"/api/runs/{begun['id']}", credential=key["key"])
        assert begun["state"] == "succeeded"
        assert service.stop() == 0
        log = service.errors.read_text()
        assert "answered" in log
        assert not secrets_in(log)
        assert service.token not in log
    modes = {file.name: file.stat().st_mode & 0o777 for file in data.iterdir()}
    assert modes == dict.fromkeys(("secrets.json", "task-service.sqlite3"), 0o600)
    assert data.stat().st_mode & 0o777 == 0o700
    with serving(data, LOG_FORMAT="json") as service:
        assert service.token is None
        assert f"{service.origin}/login" in service.output
        service.request("GET", "/api/tasks", credential="msk_wrong")
        # Beside a running service nothing is wrong, and commands take effect.
        assert run(data, "doctor", PORT=service.origin.rpartition(":")[2]).exit_code == 0
        _disable_beside(data, service)
        assert service.stop(signal.SIGINT) == 0
        lines = [json.loads(line) for line in service.errors.read_text().splitlines()]
    line, *_ = [line for line in lines if line.get("status") == 401]
    assert (line["method"], line["route"], line["level"]) == ("GET", "/api/tasks", "info")
    assert line["request_id"].startswith("req_")


def _disable_beside(data: Path, service: Serving) -> None:
    """Another process disables a service account and an administrator, but not the last one."""
    login = log_in(service)
    path = "/api/admin/service-accounts"
    made = service.request("POST", path, {"name": "bot"}, credential=login)[1]
    assert run(data, "users", "disable", "Bot").stdout == "bot is disabled.\n"
    shown = service.request("GET", f"{path}/{made['id']}", credential=login)[1]
    assert shown["disabled"] is True
    assert run(data, "users", "disable", "Admin").exit_code == 1
    create_administrator(data, "bea")
    assert run(data, "users", "disable", "Admin").exit_code == 0
    assert service.request("GET", "/api/tasks", credential=login)[1]["code"] == "token_revoked"


def test_a_link_is_printed_at_each_start_until_there_is_a_password(tmp_path: Path) -> None:
    """That each of them is good until one is used is in test_accounts_first_administrator.py."""
    data = tmp_path / "data"
    first, second = (token_in(greeting(data)) for _ in range(2))
    assert first is not None
    assert second is not None
    assert first != second
    create_administrator(data, "ada")
    assert "/set-password" not in greeting(data)


def test_serving_other_machines_without_tls_prints_a_warning_about_browsers(
    tmp_path: Path,
) -> None:
    assert "only over https" in greeting(tmp_path / "data", BASE_URL="http://tasks.example")
    output = greeting(tmp_path / "data", BASE_URL="https://tasks.example")
    assert "only over https" not in output
    assert "https://tasks.example/set-password#" in output


def test_a_used_port_is_one_line_of_output_and_systemd_is_not_notified(tmp_path: Path) -> None:
    with (
        systemd(tmp_path / "notify") as notifications,
        socket.create_server(("127.0.0.1", 0)) as taken,
    ):
        port = str(taken.getsockname()[1])
        done = run(tmp_path / "data", "serve", PORT=port)
        assert notifications() == []
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(
        f"Error: Cannot listen on port {port} of 127.0.0.1: Address already in use"
    )
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("settings", "output"),
    [
        ({"PORT": "eighty"}, "TASK_SERVICE_PORT"),
        ({"PORTT": "8000"}, "TASK_SERVICE_PORTT: unknown setting"),
        (
            {"DATABASE_URL": "postgresql://postgres@127.0.0.1:1/none"},
            "cannot answer: connection failed",
        ),
        ({"DATA_DIR": "/proc/nowhere"}, "cannot be created"),
    ],
)
@pytest.mark.parametrize("command", ["serve", "migrate"])
def test_an_invalid_setting_has_no_traceback(
    tmp_path: Path, settings: dict[str, str], output: str, command: str
) -> None:
    done = run(tmp_path / "data", command, **({"PORT": "0"} | settings))
    assert done.exit_code == 1
    assert output in done.stderr


@pytest.mark.parametrize("abstract", [True, False])
def test_systemd_is_notified_when_a_worker_executes_runs(tmp_path: Path, abstract: bool) -> None:
    path = f"@{secrets.token_hex()}" if abstract else tmp_path / "notify"
    with (
        postgres_database() as database,
        systemd(path) as notifications,
        mock.patch.object(Worker, "execute_runs"),
    ):
        url = database.set(drivername="postgresql").render_as_string(hide_password=False)
        done = run(tmp_path / "data", "worker", DATABASE_URL=url)
        assert (done.exit_code, notifications()) == (0, [b"READY=1"])


def test_users_are_created_with_a_link_or_a_password(tmp_path: Path) -> None:
    data = tmp_path / "data"
    invited = run(data, "users", "create", "eva", "--role", "user")
    assert invited.exit_code == 0
    assert re.search(r"http://127\.0\.0\.1:8000/set-password#[\w-]{43}", invited.stdout)
    done = create_administrator(data, "ada")
    assert done.exit_code == 0
    assert not secrets_in(done.stdout + done.stderr)


@pytest.mark.parametrize(
    ("words", "stdin", "code", "output"),
    [
        (["users", "create", "e v a", "--role", "user"], "", 1, "username"),
        (["users", "create", "eva", "--role", "root"], "", 2, "--role"),
        (["users", "create", "eva"], "", 2, "--role"),
        (
            ["users", "create", "eva", "--role", "user", "--password-stdin"],
            "short\n",
            1,
            "password",
        ),
        (["users", "disable", "nobody"], "", 1, "no user named 'nobody'"),
        (["nonsense"], "", 2, "nonsense"),
        (["worker"], "", 2, "task-service serve"),
        (["worker", "--concurrency", "0"], "", 2, "--concurrency"),
    ],
)
def test_wrong_usage_is_explained(
    tmp_path: Path, words: list[str], stdin: str, code: int, output: str
) -> None:
    done = run(tmp_path / "data", *words, stdin=stdin)
    assert (done.exit_code, done.stdout) == (code, "")
    assert output in done.stderr


def test_the_doctor_finds_nothing_before_the_first_start_and_after(tmp_path: Path) -> None:
    data = tmp_path / "data"
    before = run(data, "doctor", PORT="0")
    assert before.exit_code == 0
    assert not data.exists()
    assert run(data, "migrate").exit_code == 0
    after = run(data, "doctor", PORT="0")
    assert (after.exit_code, after.stderr) == (0, "")
    assert {line.split()[0] for line in after.stdout.splitlines()} == {"ok"}
    assert "schema: this version's" in after.stdout


def test_the_doctor_prints_problems_and_what_to_do(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert run(data, "migrate").exit_code == 0
    (data / "secrets.json").chmod(0o644)
    data.chmod(0o777)
    (data / "task-service.sqlite3").write_bytes(b"this is no database" * 100)
    done = run(data, "doctor", PORT="0")
    assert done.exit_code == 1
    problems = [line for line in done.stdout.splitlines() if line.startswith("problem")]
    assert [line.split(":")[0].split(None, 1)[1] for line in problems] == [
        "data folder",
        "secrets",
        "database",
    ]
    assert "chmod 700" in problems[0]
    assert "chmod 600" in problems[1]
    assert "file is not a database" in problems[2]


def test_a_command_names_why_the_database_cannot_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "task-service.sqlite3").write_bytes(b"this is no database" * 100)
    done = run(data, "migrate")
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1] == (
        "Error: The database cannot answer: file is not a database. Run: task-service doctor"
    )
    # SQLite may call a full disk an I/O error.
    monkeypatch.setattr("task_service.doctor.MIN_FREE_BYTES", 2**62)
    error = run(data, "migrate").stderr.splitlines()[-1]
    assert error.startswith("Error: The database cannot answer: file is not a database. Only ")
    assert error.endswith(f" GiB are free for {data}. Run: task-service doctor")


def test_a_copy_that_fails_is_one_line_without_valid_settings(tmp_path: Path) -> None:
    source = tmp_path / "source.sqlite3"
    source.write_bytes(b"this is no database" * 100)
    words = ["--from", f"sqlite:///{source}", "--to", f"sqlite:///{tmp_path / 'copy.sqlite3'}"]
    done = run(tmp_path / "data", "copy-data", *words, PORT="eighty")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == (
        "Error: The database cannot answer: file is not a database. Run: task-service doctor\n"
    )


def test_the_doctor_names_every_setting_that_is_wrong(tmp_path: Path) -> None:
    done = run(tmp_path / "data", "doctor", PORT="eighty", WORKERS="none")
    assert done.exit_code == 1
    assert [line.split()[:3] for line in done.stdout.splitlines()] == [
        ["problem", "settings:", "TASK_SERVICE_PORT:"],
        ["problem", "settings:", "TASK_SERVICE_WORKERS:"],
    ]


def test_the_doctor_distinguishes_a_file_from_a_folder(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    done = run(tmp_path / "data", "doctor", PORT="0")
    assert done.exit_code == 1
    assert (
        f"problem  data folder: {tmp_path / 'data'} is not a folder that this user" in done.stdout
    )


STUBBORN = """
import asyncio
from unittest import mock
from task_service import cli
from task_service.worker import Worker

async def never() -> None:
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            print("cancelled", flush=True)

async def leave_a_task(*_: object) -> None:
    global task
    task = asyncio.create_task(never(), name="a queue")
    await asyncio.sleep(0)

with mock.patch.object(Worker, "execute_runs", leave_a_task), mock.patch.object(cli, "_END_SECONDS", 0.5):
    cli.main(["worker"])
"""


def test_what_does_not_end_keeps_no_worker_from_ending(tmp_path: Path) -> None:
    with postgres_database() as database:
        url = database.set(drivername="postgresql").render_as_string(hide_password=False)
        done = subprocess.run(
            [sys.executable, "-c", STUBBORN],
            env=environment(tmp_path, DATABASE_URL=url),
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stdout) == (0, "cancelled\n"), done.stderr
    assert "ending the process, because tasks do not end: a queue" in done.stderr


def test_migrating_again_changes_nothing_and_its_options_are_accepted(tmp_path: Path) -> None:
    for words in ([], [], ["--finish"], ["--new-secrets"], ["--new-deployment"]):
        done = run(tmp_path / "data", "migrate", *words)
        assert (done.exit_code, done.stdout) == (0, "The database has this version's schema.\n")


def test_a_worker_whose_metrics_have_no_port_says_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match="TASK_SERVICE_WORKER_METRICS_PORT"):
            serve_worker_metrics(CollectorRegistry(), "127.0.0.1", port)
