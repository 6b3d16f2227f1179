"""A PostgreSQL of a test's own, which may be stopped, frozen and killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from examples.task_service.tests.faults.nursery import until
from sqlalchemy import make_url
from tests.databases import _answers, _postgres_binaries, _server_user
from tests.ports import free_port


class OwnPostgres:
    """A server on a port of this machine; use :func:`own_postgres`.

    Args:
        binaries: Where PostgreSQL's programs are.
        folder: Where its data and its log go.
        as_user: What `subprocess` needs to start it as another user than root.
        settings: More of its settings.
    """

    def __init__(
        self, binaries: Path, folder: Path, as_user: dict[str, object], settings: dict[str, str]
    ) -> None:
        self.folder = folder
        self.binaries = binaries
        self.as_user = as_user
        self.port = free_port()
        self.url = make_url(f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/postgres")
        more = [word for name in settings for word in ("-c", f"{name}={settings[name]}")]
        self._command = [
            *(str(binaries / "postgres"), "-D", str(folder / "data"), "-k", str(folder)),
            *("-h", "127.0.0.1", "-p", str(self.port), *more),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def service_url(self) -> str:
        return self.url.set(drivername="postgresql").render_as_string(hide_password=False)

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, **self.as_user)
        until(lambda: _answers(self.url), f"PostgreSQL starts, see {self.folder}/log")

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """SIGINT ends the sessions and stops; SIGQUIT is as a crash."""
        assert self._process is not None
        self._process.send_signal(number)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            log = (self.folder / "log").read_text("utf-8", "replace")
            pytest.fail(f"PostgreSQL does not stop:\n{log[-3000:]}")

    def stop_at_once(self) -> None:
        """As a crash of the machine that the disk survives: nothing is written any more."""
        self._send(signal.SIGKILL)
        assert self._process is not None
        self._process.wait(60)
        # Else it takes the file for that of a server that runs.
        (self.folder / "data" / "postmaster.pid").unlink()

    def freeze(self) -> None:
        """Stop every one of its processes where it is: connections stay, and no answer comes."""
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        self._send(signal.SIGCONT)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.thaw()
            self.stop()

    def _send(self, number: signal.Signals) -> None:
        """To every one of its processes: the first of them first, so that none is born meanwhile."""
        assert self._process is not None
        main = self._process.pid
        children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        for pid in (main, *map(int, children)):
            # Some end by themselves: that of a connection that was closed, or those without the first.
            with suppress(ProcessLookupError):
                os.kill(pid, number)


@contextmanager
def own_postgres(**settings: str) -> Iterator[OwnPostgres]:
    """A running PostgreSQL with an empty database; nothing of it is left afterwards."""
    binaries, user = _postgres_binaries(), _server_user()
    if binaries is None or user is None:
        pytest.skip("PostgreSQL's programs are not installed: apt-get install postgresql")
    folder = Path(tempfile.mkdtemp(prefix="task-service-postgres-"))
    os.chown(folder, user.pw_uid, user.pw_gid)
    as_user: dict[str, object] = {"cwd": folder, "start_new_session": True}
    if user.pw_uid != os.geteuid():
        as_user |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    server = OwnPostgres(binaries, folder, as_user, settings)
    try:
        words = ("-U", "postgres", "-A", "trust", "-E", "UTF8", "-N", "-D", str(folder / "data"))
        subprocess.run([binaries / "initdb", *words], check=True, capture_output=True, **as_user)
        server.start()
        yield server
    finally:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)
