"""A PostgreSQL of a test's own, which may be stopped, frozen and killed."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from sqlalchemy import create_engine, exc
from sqlalchemy.engine import URL
from sqlalchemy.engine.url import make_url
from tests.ports import free_port

# SQLAlchemy 1.4 knows only the older driver.
POSTGRES_DRIVER = f"postgresql+{'psycopg' if find_spec('psycopg') else 'psycopg2'}"


class OwnPostgres:
    """A server on a port of this machine; use :func:`own_postgres`.

    Args:
        binaries: Where PostgreSQL's programs are.
        folder: Where its data and its log go.
        as_user: What `subprocess` needs to start it as another user than root.
        settings: More of its settings.
        namespace: The network namespace whose addresses it has. This machine reaches it by a socket in its folder.
    """

    def __init__(
        self,
        binaries: Path,
        folder: Path,
        as_user: dict[str, object],
        settings: dict[str, str],
        namespace: str | None = None,
    ) -> None:
        self.folder = folder
        self.binaries = binaries
        self.as_user = as_user
        self.port = free_port()
        self.url = make_url(f"{POSTGRES_DRIVER}://postgres@127.0.0.1:{self.port}/postgres")
        more = [word for name in settings for word in ("-c", f"{name}={settings[name]}")]
        self._command = [
            *(str(binaries / "postgres"), "-D", str(folder / "data"), "-k", str(folder)),
            *("-h", "127.0.0.1" if namespace is None else "*", "-p", str(self.port), *more),
        ]
        self._starts_as = as_user
        if namespace is not None:
            query = {"host": str(folder), "port": str(self.port)}
            self.url = self.url.set(host=None, port=None, query=query)
            # Root enters the namespace, and becomes the user there.
            users = [f"--reuid={as_user['user']}", f"--regid={as_user['group']}", "--clear-groups"]
            within = ["ip", "netns", "exec", namespace, "setpriv", *users]
            self._command = [*within, *self._command]
            self._starts_as = {"cwd": folder, "start_new_session": True}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def service_url(self) -> str:
        return self.url.set(drivername="postgresql").render_as_string(hide_password=False)

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, **self._starts_as
            )
        for _ in range(600):
            if accepts(self.url):
                return
            time.sleep(0.1)
        pytest.fail((self.folder / "log").read_text("utf-8", "replace"))

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
def own_postgres(namespace: str | None = None, **settings: str) -> Iterator[OwnPostgres]:
    """A running PostgreSQL with an empty database; nothing of it is left afterwards."""
    binaries, user = postgres_binaries(), server_user()
    if binaries is None or user is None:
        pytest.skip("PostgreSQL's programs are not installed: apt-get install postgresql")
    folder = Path(tempfile.mkdtemp(prefix="msk-auth-postgres-"))
    os.chown(folder, user.pw_uid, user.pw_gid)
    as_user: dict[str, object] = {"cwd": folder, "start_new_session": True}
    if user.pw_uid != os.geteuid():
        as_user |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    server = OwnPostgres(binaries, folder, as_user, settings, namespace)
    try:
        words = ("-U", "postgres", "-A", "trust", "-E", "UTF8", "-N", "-D", str(folder / "data"))
        subprocess.run([binaries / "initdb", *words], check=True, capture_output=True, **as_user)
        if namespace is not None:
            with (folder / "data" / "pg_hba.conf").open("a") as access:
                access.write("host all all 198.18.0.0/15 trust\n")
        server.start()
        yield server
    finally:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)


def run(server: URL, statement: str) -> None:
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql(statement)
    finally:
        engine.dispose()


def accepts(server: URL) -> bool:
    try:
        run(server, "SELECT 1")
    except (OSError, exc.DBAPIError):
        return False
    return True


def postgres_binaries() -> Path | None:
    found = shutil.which("initdb")
    if found is not None:
        # Beside a link to it the other programs may not be.
        return Path(found).resolve().parent
    installed = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    return max((path.parent for path in installed), default=None)


def server_user() -> pwd.struct_passwd | None:
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid())
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return None
