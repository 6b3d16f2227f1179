"""Real processes of the task service, cheap enough to kill by the hundred."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[4]


@dataclass
class Process:
    """A `task-service` command that was forked."""

    nursery: Nursery
    pid: int
    pidfd: int
    stdout: Path
    stderr: Path
    status: int | None = None

    def send(self, number: signal.Signals) -> None:
        if self.status is None:
            signal.pidfd_send_signal(self.pidfd, number)

    def wait(self, seconds: float = 90) -> int:
        """The exit status; -9 after a SIGKILL."""
        if self.status is None:
            poll = select.poll()
            poll.register(self.pidfd, select.POLLIN)
            assert poll.poll(seconds * 1000), f"process {self.pid} does not end: {self.log()}"
            self.status = self.nursery.reap(self.pid)
            os.close(self.pidfd)
        return self.status

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL

    def terminate(self) -> int:
        self.send(signal.SIGTERM)
        return self.wait()

    def log(self) -> str:
        return self.stderr.read_text("utf-8", "replace")

    def output(self) -> str:
        """Both streams."""
        return self.stdout.read_text("utf-8", "replace") + self.log()

    def has_ended(self) -> bool:
        if self.status is not None:
            return True
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(0))


class Nursery:
    """Starts processes, and ends those that are left; use :func:`nursery`."""

    def __init__(
        self, folder: Path, environment: Mapping[str, str], inside: Sequence[str] = ()
    ) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._count = 0
        self._children: list[Process] = []
        self._process = subprocess.Popen(
            [*inside, sys.executable, "-m", "examples.task_service.tests.faults.nursery_process"],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(
        self, *words: str, stdin: str = "", kept_port: int | None = None, **settings: str
    ) -> Process:
        """Fork `task-service`.

        Args:
            words: Its command and options.
            stdin: What it reads.
            kept_port: Where it listens, on a socket that outlives it and is passed to it as systemd does.
            settings: `data_dir` is TASK_SERVICE_DATA_DIR, and so on.
        """
        with self._lock:
            self._count += 1
            name = f"{self._count:03}-{words[0]}"
        stdout, stderr = self._folder / f"{name}.stdout", self._folder / f"{name}.stderr"
        given = self._folder / f"{name}.stdin"
        given.write_text(stdin)
        stdout.touch()
        stderr.touch()
        answer = self._ask(
            {
                "words": words,
                "stdin": str(given),
                "kept_port": kept_port,
                "environment": {f"TASK_SERVICE_{key.upper()}": settings[key] for key in settings},
                "stdout": str(stdout),
                "stderr": str(stderr),
            }
        )
        # It stays a zombie until it is reaped, so its number still means it.
        child = Process(self, answer["pid"], os.pidfd_open(answer["pid"]), stdout, stderr)
        with self._lock:
            self._children.append(child)
        return child

    @property
    def root(self) -> Path:
        """The file system as its processes see it."""
        return Path(f"/proc/{self._process.pid}/root")

    def reap(self, pid: int) -> int:
        return int(self._ask({"reap": pid})["status"])

    def logs(self) -> str:
        """All that its processes have written, standard output without the one-time links."""
        return "".join(child.log() for child in self._children)

    def print_logs(self, last: int = 4000) -> None:
        """What each process wrote last, in characters."""
        for child in self._children:
            print(f"--- {child.stderr.name}, status {child.status}\n{child.log()[-last:]}")

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        for child in self._children:
            if child.status is None:
                child.send(signal.SIGCONT)
                child.send(signal.SIGKILL)
                child.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(120)
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def nursery(folder: Path, *, inside: Sequence[str] = (), **environment: str) -> Iterator[Nursery]:
    """A nursery whose processes write into this folder; none of them is left afterwards.

    Args:
        folder: For their output.
        inside: A command that executes what is appended to it, such as `unshare --mount`.
        environment: More variables for all of them.
    """
    it = Nursery(folder, environment, inside)
    try:
        yield it
    except BaseException:
        # pytest shows it beside the failure.
        it.print_logs()
        raise
    finally:
        it.close()


def until(happened: Callable[[], Any], what: str, seconds: float = 120) -> Any:
    """What `happened` gives, as soon as it is something."""
    deadline = time.monotonic() + seconds
    while not (result := happened()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds} seconds"
        time.sleep(0.02)
    return result
