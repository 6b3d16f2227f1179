"""The command as people use it, in this process, and the service as they start it, in one of its own."""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from click.testing import CliRunner, Result
from examples.task_service.tests.faults.clients import Client
from examples.task_service.tests.service_support import ADMIN_PASSWORD

from task_service.cli import main

SERVE = [sys.executable, "-m", "task_service", "serve"]


def token_in(output: str) -> str | None:
    """The secret of the one-time link, if one is printed."""
    found = re.search(r"/set-password#([\w-]{43})", output)
    return found and found[1]


def environment(data: Path, **settings: str) -> dict[str, str]:
    own = {f"TASK_SERVICE_{name}": value for name, value in settings.items()}
    always = {"TASK_SERVICE_DATA_DIR": str(data), "TASK_SERVICE_COMMANDS": "listed"}
    return {**os.environ, **always, **own}


def run(data: Path, *words: str, stdin: str = "", **settings: str) -> Result:
    """A command that comes back, in this process: starting one takes a second."""
    env = {f"TASK_SERVICE_{name}": value for name, value in settings.items()}
    with (
        mock.patch("task_service.cli.configure_logging"),
        mock.patch("task_service.cli.hide_memory"),
        # The handler would stay in this process, whose next tests expect the default.
        mock.patch("task_service.cli.signal.signal"),
    ):
        done = CliRunner().invoke(
            main,
            list(words),
            env={"TASK_SERVICE_DATA_DIR": str(data), **env},
            input=stdin,
            prog_name="task-service",
        )
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert "Traceback" not in done.stderr
    return done


@dataclass
class Serving:
    """A `task-service serve` in a process of its own."""

    process: subprocess.Popen[str]
    output: str
    errors: Path

    @property
    def origin(self) -> str:
        return re.search(r"http://127\.0\.0\.1:\d+", self.output)[0]

    @property
    def token(self) -> str | None:
        return token_in(self.output)

    def request(
        self, method: str, path: str, body: Any = None, credential: str | None = None
    ) -> tuple[int, Any]:
        port = int(self.origin.rpartition(":")[2])
        answer = Client(port, credential).send(method, path, body)
        return answer.status, answer.body if answer.text else None

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(60)


@contextmanager
def systemd(path: Path | str) -> Iterator[Callable[..., list[bytes]]]:
    """The socket that systemd names to a service of Type=notify. Returns what was received since the last call."""
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as received,
        mock.patch.dict(os.environ, NOTIFY_SOCKET=str(path)),
    ):
        received.bind(str(path).replace("@", "\0", 1))

        def notifications(seconds: float = 0.0) -> list[bytes]:
            received.settimeout(seconds)
            with suppress(BlockingIOError, TimeoutError):
                return [received.recv(100), *notifications()]
            return []

        yield notifications


@contextmanager
def serving(data: Path, **settings: str) -> Iterator[Serving]:
    """Starts the service on a free port, and waits until it has greeted and systemd is notified."""
    errors = data.parent / f"stderr-{time.monotonic_ns()}"
    with ExitStack() as stack:
        with systemd(f"@{secrets.token_hex()}") as notifications, errors.open("w") as stderr:
            process = subprocess.Popen(
                SERVE,
                env=environment(data, **({"PORT": "0"} | settings)),
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
            stack.callback(_end, process)
            assert process.stdout is not None
            output = ""
            for line in process.stdout:
                output += line
                if "data is in" in line:
                    break
            assert "data is in" in output, errors.read_text()
            assert notifications(60) == [b"READY=1"]
        yield Serving(process, output, errors)


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def log_in(service: Serving, username: str = "admin", password: str = ADMIN_PASSWORD) -> str:
    body = {"username": username, "password": password}
    status, answered = service.request("POST", "/api/auth/login", body)
    assert status == 200, answered
    return answered["access_token"]
