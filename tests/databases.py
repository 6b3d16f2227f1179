"""Databases of their own for the tests: made on a real server, and dropped afterwards.

A URL comes from the environment (`MSK_AUTH_TEST_POSTGRES_URL`, `MSK_AUTH_TEST_MYSQL_URL`; its user must be allowed
to create databases), else from a server on this machine's standard port, else, for PostgreSQL, from one that is
started from installed binaries in a temporary folder. Without any of them the test is visibly skipped.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy.engine import URL
from sqlalchemy.engine.url import make_url
from tests.own_postgres import POSTGRES_DRIVER, accepts, own_postgres, run, server_user

POSTGRES = f"{POSTGRES_DRIVER}://postgres@127.0.0.1:5432/postgres"
MYSQL = "mariadb+pymysql://root@127.0.0.1:3306/"


@contextmanager
def postgres_database() -> Iterator[URL]:
    """A new database on PostgreSQL, as a URL for psycopg, blocking and asynchronous."""
    given = os.environ.get("MSK_AUTH_TEST_POSTGRES_URL")
    server = make_url(given or POSTGRES).set(drivername=POSTGRES_DRIVER)
    if given is not None or accepts(server):
        with _database(server) as url:
            yield url
    else:
        with own_postgres() as started, _database(started.url) as url:
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
    user = server_user()
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
                if (folder / ".s.PGSQL.6432").exists() and accepts(through):
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
    if given is None and not accepts(server):
        pytest.skip("no MariaDB: start one on port 3306 or set MSK_AUTH_TEST_MYSQL_URL")
    with _database(server) as url:
        yield url


@contextmanager
def _database(server: URL) -> Iterator[URL]:
    name = f"msk_auth_test_{secrets.token_hex(6)}"
    run(server, f"CREATE DATABASE {name}")
    if server.get_backend_name() == "postgresql":
        # A database that is dropped at the end need not survive a crash. A test of that asks for it.
        run(server, f"ALTER DATABASE {name} SET synchronous_commit = off")
    try:
        yield server.set(database=name)
    finally:
        # A test that failed may have left a connection behind; PostgreSQL would not drop the database under it.
        force = " WITH (FORCE)" if server.get_backend_name() == "postgresql" else ""
        run(server, f"DROP DATABASE {name}{force}")
