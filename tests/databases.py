"""Databases of their own for the tests: made on a real server, and dropped afterwards.

A URL comes from the environment (`MSK_AUTH_TEST_POSTGRES_URL`, `MSK_AUTH_TEST_MYSQL_URL`; its user must be allowed
to create databases), else from a server on this machine's standard port, else, for PostgreSQL, from one that is
started from installed binaries in a temporary folder. Without any of them the test is visibly skipped.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from sqlalchemy import create_engine, exc
from sqlalchemy.engine import URL
from sqlalchemy.engine.url import make_url
from tests.ports import free_port

# SQLAlchemy 1.4 knows only the older driver.
POSTGRES_DRIVER = f"postgresql+{'psycopg' if find_spec('psycopg') else 'psycopg2'}"
POSTGRES = f"{POSTGRES_DRIVER}://postgres@127.0.0.1:5432/postgres"
MYSQL = "mariadb+pymysql://root@127.0.0.1:3306/"


@contextmanager
def postgres_database() -> Iterator[URL]:
    """A new database on PostgreSQL, as a URL for psycopg, blocking and asynchronous."""
    given = os.environ.get("MSK_AUTH_TEST_POSTGRES_URL")
    server = make_url(given or POSTGRES).set(drivername=POSTGRES_DRIVER)
    if given is not None or _answers(server):
        with _database(server) as url:
            yield url
    else:
        with _temporary_postgres() as started, _database(started) as url:
            yield url


@contextmanager
def pgbouncer(url: URL, pool_mode: str) -> Iterator[URL]:
    """A PgBouncer in front of a database on PostgreSQL, as a URL for psycopg.

    It listens on a socket in a folder of its own, so it needs no port.

    Args:
        url: From :func:`postgres_database`.
        pool_mode: `session` or `transaction`.
    """
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    user = _server_user()
    if program is None or user is None:
        pytest.skip("no PgBouncer: apt-get install pgbouncer")
    folder = Path(tempfile.mkdtemp(prefix="msk-auth-pgbouncer-"))
    try:
        target = {"host": url.host, "port": url.port, "dbname": url.database, "user": url.username}
        target |= {} if url.password is None else {"password": url.password}
        settings = {
            "listen_port": 6432,
            "unix_socket_dir": folder,
            "auth_type": "any",
            "pool_mode": pool_mode,
            "default_pool_size": 3,
            "logfile": folder / "log",
        }
        lines = [
            "[databases]",
            f"{url.database} = "
            + " ".join(f"{name}={value}" for name, value in target.items() if value),
            "[pgbouncer]",
            *(f"{name} = {value}" for name, value in settings.items()),
        ]
        file = folder / "pgbouncer.ini"
        file.write_text("\n".join(lines) + "\n")
        for path in (folder, file):
            os.chown(path, user.pw_uid, user.pw_gid)
        as_other = user.pw_uid != os.geteuid()
        pooler = subprocess.Popen(
            [program, "-q", file],
            cwd=folder,
            start_new_session=True,
            user=user.pw_uid if as_other else None,
            group=user.pw_gid if as_other else None,
        )
        try:
            query = {"host": str(folder), "port": "6432"}
            through = url.set(host=None, port=None, password=None, query=query)
            for _ in range(1200):
                if pooler.poll() is not None:
                    break
                if (folder / ".s.PGSQL.6432").exists() and _accepts(through):
                    break
                time.sleep(0.05)
            else:
                pytest.fail((folder / "log").read_text("utf-8", "replace"))
            assert pooler.poll() is None, (folder / "log").read_text("utf-8", "replace")
            yield through
        finally:
            # "Fast" in every version: close all connections and end.
            pooler.terminate()
            pooler.wait(60)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def mysql_database() -> Iterator[URL]:
    """A new database on MariaDB or MySQL, as a URL for PyMySQL; set `drivername` for another driver."""
    given = os.environ.get("MSK_AUTH_TEST_MYSQL_URL")
    server = make_url(given or MYSQL).set(drivername="mariadb+pymysql")
    if given is None and not _answers(server):
        pytest.skip("no MariaDB: start one on port 3306 or set MSK_AUTH_TEST_MYSQL_URL")
    with _database(server) as url:
        yield url


@contextmanager
def _database(server: URL) -> Iterator[URL]:
    name = f"msk_auth_test_{secrets.token_hex(6)}"
    _run(server, f"CREATE DATABASE {name}")
    if server.get_backend_name() == "postgresql":
        # A database that is dropped at the end need not survive a crash. A test of that asks for it.
        _run(server, f"ALTER DATABASE {name} SET synchronous_commit = off")
    try:
        yield server.set(database=name)
    finally:
        # A test that failed may have left a connection behind; PostgreSQL would not drop the database under it.
        force = " WITH (FORCE)" if server.get_backend_name() == "postgresql" else ""
        _run(server, f"DROP DATABASE {name}{force}")


def _run(server: URL, statement: str) -> None:
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql(statement)
    finally:
        engine.dispose()


def _answers(server: URL) -> bool:
    try:
        with socket.create_connection((server.host, server.port), timeout=60):
            pass
    except OSError:
        return False
    return _accepts(server)


def _accepts(server: URL) -> bool:
    try:
        _run(server, "SELECT 1")
    except (OSError, exc.DBAPIError):
        return False
    return True


@contextmanager
def _temporary_postgres() -> Iterator[URL]:
    binaries = _postgres_binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL: start one on port 5432 or set MSK_AUTH_TEST_POSTGRES_URL")
    user = _server_user()
    if user is None:
        pytest.skip("PostgreSQL does not run as root, and there is no user `postgres` or `nobody`")
    folder = Path(tempfile.mkdtemp(prefix="msk-auth-postgres-"))
    os.chown(folder, user.pw_uid, user.pw_gid)
    # Its own process group, so that a Ctrl-C meant for the tests does not end it before they have.
    as_user = {"user": user.pw_uid, "group": user.pw_gid, "cwd": folder, "start_new_session": True}
    if user.pw_uid == os.geteuid():
        as_user = {"cwd": folder, "start_new_session": True}
    port = free_port()
    try:
        data = folder / "data"
        initdb = [
            binaries / "initdb",
            "-D",
            data,
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "-N",
        ]
        subprocess.run(initdb, check=True, capture_output=True, **as_user)
        command = [
            binaries / "postgres",
            "-D",
            data,
            "-h",
            "127.0.0.1",
            "-p",
            str(port),
            "-k",
            folder,
        ]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log, **as_user)
        try:
            url = make_url(POSTGRES).set(port=port)
            for _ in range(600):
                if _answers(url):
                    break
                time.sleep(0.1)
            else:
                pytest.fail((folder / "log").read_text("utf-8", "replace"))
            yield url
        finally:
            # "Fast": end the sessions, write everything, stop.
            server.send_signal(signal.SIGINT)
            server.wait(60)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _postgres_binaries() -> Path | None:
    found = shutil.which("initdb")
    if found is not None:
        # Beside a link to it the other programs may not be.
        return Path(found).resolve().parent
    installed = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    return max((path.parent for path in installed), default=None)


def _server_user() -> pwd.struct_passwd | None:
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid())
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return None
