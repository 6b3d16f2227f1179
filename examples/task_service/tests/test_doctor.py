"""What the doctor says of databases, clocks, workers, secrets and Redis: the cause, and what to do."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from unittest import mock

import pytest
from alembic.script import ScriptDirectory
from click.testing import CliRunner
from examples.task_service.tests.runs_support import POSTGRES, fresh_postgres
from sqlalchemy import make_url, text
from sqlalchemy.exc import OperationalError

from msk_auth import StoreUnavailable, SystemClock
from task_service.cli import main
from task_service.db import migrate as migrate_module
from task_service.db.engine import Database
from task_service.db.migrate import migrate
from task_service.doctor import database as database_module
from task_service.forwarders import Forwarders
from task_service.secrets_file import load_or_create_secrets
from task_service.shared_secrets import agree_on_secrets, forget_secrets

pytestmark = pytest.mark.anyio


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with fresh_postgres() as url:
        yield url


async def examined(data: Path, **settings: str) -> tuple[int, dict[str, str]]:
    """The exit code, and from each subject what was said of it, beginning with ok or problem."""
    env = {f"TASK_SERVICE_{name}": value for name, value in settings.items()}
    env = {"TASK_SERVICE_DATA_DIR": str(data), "TASK_SERVICE_PORT": "0", **env}
    with mock.patch("task_service.cli.configure_logging"):
        done = await asyncio.to_thread(CliRunner().invoke, main, ["doctor"], env=env)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert "geheim" not in done.output
    found = {}
    for line in done.stdout.splitlines():
        subject, _, said = line[8:].strip().partition(": ")
        found[subject] = f"{line[:8].strip()} {said}"
    return done.exit_code, found


async def execute(url: str, *statements: str) -> None:
    db = Database.open(url)
    async with db.write() as connection:
        for statement in statements:
            await connection.execute(text(statement))
    await db.close()


async def migrated(url: str) -> None:
    db = Database.open(url)
    await migrate(db)
    await db.close()


async def test_a_healthy_deployment(tmp_path: Path, url: str) -> None:
    code, found = await examined(tmp_path / "data", DATABASE_URL=url)
    assert code == 0
    assert found["database"].startswith("ok")
    assert "its schema is brought to this version at start" in found["database"]
    assert "workers" not in found

    await migrated(url)
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    secrets = load_or_create_secrets(data, SystemClock().now())
    db = Database.open(url)
    await agree_on_secrets(db, secrets.fingerprints)
    await db.close()
    await execute(url, "INSERT INTO procrastinate_workers DEFAULT VALUES")
    code, found = await examined(data, DATABASE_URL=url)
    assert code == 0
    assert found["database"].endswith("answers and has this version's schema")
    assert found["clock"] == "ok this machine and the database agree on the time"
    assert found["workers"] == "ok 1 alive"
    assert found["durability"].startswith("ok")
    assert found["shared secrets"] == "ok these secrets are those of the other processes"


async def test_a_proxy_that_is_not_trusted(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    db = Database.open(f"sqlite:///{data / 'task-service.sqlite3'}")
    await migrate(db)
    forwarders = Forwarders(db, SystemClock())
    code, found = await examined(data)
    assert (code, found["proxies"]) == (
        0,
        "ok no request was forwarded by a proxy that is not trusted",
    )
    # Any client on the Internet can send the header.
    forwarders.notice(ip_address("8.8.8.8"))
    await forwarders._write()
    code, found = await examined(data)
    assert code == 0
    assert found["proxies"].startswith("ok requests with X-Forwarded-For come from 8.8.8.8")

    forwarders.notice(ip_address("10.0.0.7"))
    await forwarders._write()
    code, found = await examined(data, TRUSTED_PROXIES="192.0.2.0/24")
    assert code == 1
    assert "50 wrong passwords keep them all out" in found["proxies"]
    remedy = found["proxies"].rpartition("TASK_SERVICE_TRUSTED_PROXIES=")[2]
    assert remedy == "192.0.2.0/24,10.0.0.7"
    code, found = await examined(data, TRUSTED_PROXIES=f"{remedy},8.8.8.8")
    assert (code, found["proxies"][:2]) == (0, "ok")
    await db.close()


async def test_an_index_that_could_not_be_built_is_told(tmp_path: Path, url: str) -> None:
    await migrated(url)
    await execute(url, "DROP INDEX ix_runs_state_owner_id_rank_created_at_id")
    code, found = await examined(tmp_path / "data", DATABASE_URL=url)
    assert code == 1
    assert found["database"].startswith("problem")
    assert (
        "the index ix_runs_state_owner_id_rank_created_at_id could not be built"
        in found["database"]
    )
    assert found["database"].endswith("run: task-service migrate")

    await migrated(url)
    _, found = await examined(tmp_path / "data", DATABASE_URL=url)
    assert found["database"].endswith("answers and has this version's schema")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"database": "no_such_database"}, "does not exist on that server; run: createdb no_such"),
        ({"username": "no_such_role", "password": "geheim"}, "refuses this user or password"),
        ({"host": "no-such-host.invalid"}, "is on a host that is not known: no-such-host.invalid"),
    ],
)
async def test_why_postgresql_does_not_answer(
    tmp_path: Path, changed: dict[str, str], said: str
) -> None:
    wrong = make_url(POSTGRES).set(**changed).render_as_string(hide_password=False)
    code, found = await examined(tmp_path / "data", DATABASE_URL=wrong)
    assert code == 1
    assert found["database"].startswith("problem")
    assert said in found["database"]


async def test_nobody_answers_at_the_port(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        wrong = f"postgresql://u:geheim@127.0.0.1:{port}/d"
        code, found = await examined(tmp_path / "data", DATABASE_URL=wrong)
    assert code == 1
    assert "see that it runs, that this machine reaches it" in found["database"]


async def test_a_schema_of_another_version_or_application(tmp_path: Path, url: str) -> None:
    await migrated(url)
    head = ScriptDirectory.from_config(migrate_module._config()).get_current_head()
    await execute(url, "UPDATE alembic_version SET version_num = '9999'")
    code, found = await examined(tmp_path / "data", DATABASE_URL=url)
    assert code == 1
    assert "the schema '9999' of a newer version; install that version" in found["database"]

    await execute(url, f"INSERT INTO schema_works_with VALUES ('9999', '{head}')")
    code, found = await examined(tmp_path / "data", DATABASE_URL=url)
    assert code == 0
    assert "a newer version made its schema, and this one goes on with it" in found["database"]

    await execute(url, "DROP TABLE alembic_version")
    code, found = await examined(tmp_path / "data", DATABASE_URL=url)
    assert code == 1
    assert "holds tables that the service did not make" in found["database"]


async def test_a_migration_that_waits_for_the_last_old_process(tmp_path: Path, url: str) -> None:
    await migrated(url)
    await execute(url, "DELETE FROM queue_migrations WHERE name LIKE '03.04.00_50_post%'")
    code, found = await examined(tmp_path / "data", DATABASE_URL=url)
    assert code == 0
    assert found["database"].endswith("run: task-service migrate --finish")


async def test_a_user_who_may_not_make_tables(tmp_path: Path, url: str) -> None:
    await execute(
        url,
        "DROP ROLE IF EXISTS task_service_reader",
        "CREATE ROLE task_service_reader LOGIN",
        "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
    )
    reader = make_url(url).set(username="task_service_reader").render_as_string()
    try:
        code, found = await examined(tmp_path / "data", DATABASE_URL=reader)
    finally:
        await execute(url, "DROP ROLE task_service_reader")
    assert code == 1
    assert "its user may not make tables" in found["database"]


async def test_clocks_that_differ(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Behind(SystemClock):
        def now(self):  # type: ignore[no-untyped-def]
            return super().now() - timedelta(hours=1)

    await migrated(url)
    monkeypatch.setattr(database_module, "SystemClock", Behind)
    code, found = await examined(tmp_path / "data", DATABASE_URL=url)
    assert code == 1
    assert found["clock"].startswith("problem the database's clock is 3600 seconds ahead of")
    assert found["clock"].endswith("let both be set by NTP")


async def test_a_standby_is_found(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a primary that says it were one; tests/stores/test_postgres_faults.py has a real one."""
    monkeypatch.setattr(
        database_module, "text", lambda sql: text(sql.replace("pg_is_in_recovery()", "true"))
    )
    code, found = await examined(tmp_path / "data", DATABASE_URL=url)
    assert code == 1
    assert "leads to a hot standby, which is never read" in found["database"]
    assert found["database"].endswith("or add target_session_attrs=read-write")
    assert "clock" not in found


async def test_a_server_that_commits_asynchronously_is_found(tmp_path: Path, url: str) -> None:
    name = make_url(url).database
    await execute(url, f"ALTER DATABASE {name} SET synchronous_commit = off")
    code, found = await examined(tmp_path / "data", DATABASE_URL=url)
    assert code == 0
    assert found["durability"].startswith("ok synchronous_commit is off; what the service commits")
    assert found["durability"].endswith(f"run: ALTER DATABASE {name} SET synchronous_commit = on")
    db = Database.open(url)
    async with db.write() as connection:
        assert await connection.scalar(text("SHOW synchronous_commit")) == "on"
    await db.close()
    # What is stronger stays.
    await execute(url, f"ALTER DATABASE {name} SET synchronous_commit = remote_apply")
    db = Database.open(url)
    async with db.write() as connection:
        assert await connection.scalar(text("SHOW synchronous_commit")) == "remote_apply"
    await db.close()


async def test_nobody_executes_runs(tmp_path: Path, url: str) -> None:
    await migrated(url)
    code, found = await examined(tmp_path / "data", DATABASE_URL=url)
    assert code == 0
    assert found["workers"] == "ok none is alive; task-service serve executes runs itself"
    code, found = await examined(tmp_path / "data", DATABASE_URL=url, EXECUTE_RUNS="never")
    assert code == 1
    assert found["workers"].endswith("start: task-service worker")


async def test_secrets_of_another_deployment(tmp_path: Path, url: str) -> None:
    await migrated(url)
    db = Database.open(url)
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    await agree_on_secrets(db, {"theirs": "0" * 64})
    code, found = await examined(data, DATABASE_URL=url)
    assert code == 1
    assert "are missing, and there are some with which" in found["shared secrets"]

    ours = load_or_create_secrets(data, SystemClock().now()).fingerprints
    # The same peppers are not enough: a login of one process has to be good in the other.
    await forget_secrets(db)
    await agree_on_secrets(
        db, {name: "0" * 64 if name.startswith("token:") else each for name, each in ours.items()}
    )
    await db.close()
    code, found = await examined(data, DATABASE_URL=url)
    assert code == 1
    assert found["shared secrets"].startswith("problem the secrets in")
    assert found["shared secrets"].endswith("copy secrets.json from a machine that serves it")


async def test_redis_that_answers_and_redis_that_does_not(tmp_path: Path) -> None:
    server = os.environ.get("MSK_AUTH_TEST_REDIS_URL", "redis://127.0.0.1:6379/0")
    with socket.socket() as probe:
        parsed = make_url(server)
        if probe.connect_ex((parsed.host or "127.0.0.1", parsed.port or 6379)) != 0:
            pytest.skip("no Redis: start one on port 6379 or set MSK_AUTH_TEST_REDIS_URL")
    code, found = await examined(tmp_path / "data", REDIS_URL=server)
    assert (code, found["redis"]) == (0, "ok answers, and counts attempts to log in")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        wrong = f"redis://:geheim@127.0.0.1:{unused.getsockname()[1]}/0"
        code, found = await examined(tmp_path / "data", REDIS_URL=wrong)
    assert code == 1
    assert found["redis"].startswith("problem does not answer, and the database counts in its")


async def test_files_that_are_no_place_for_a_database(tmp_path: Path) -> None:
    (tmp_path / "folder.sqlite3").mkdir()
    (tmp_path / "file").write_text("a file")
    for path, said in (
        (tmp_path / "folder.sqlite3", "is a folder; set TASK_SERVICE_DATABASE_URL to a file"),
        (tmp_path / "file" / "db.sqlite3", "is no folder; set TASK_SERVICE_DATABASE_URL"),
    ):
        code, found = await examined(tmp_path / "data", DATABASE_URL=f"sqlite:///{path}")
        assert code == 1
        assert said in found["database"]


async def test_a_url_that_is_none(tmp_path: Path) -> None:
    code, found = await examined(tmp_path / "data", DATABASE_URL="postgres//geheim", REDIS_URL="x")
    assert code == 1
    assert found["settings"].startswith("problem TASK_SERVICE_REDIS_URL: write redis://")


class Told(Exception):
    """What a driver says, with PostgreSQL's code if it has one."""

    def __init__(self, words: str, sqlstate: str | None = None) -> None:
        super().__init__(words)
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("url", "told", "said"),
    [
        ("sqlite:////x", Told("file is not a database"), "is no SQLite database, or is damaged"),
        ("sqlite:////x", Told("database disk image is malformed"), "restore it from a backup"),
        ("sqlite:////x", Told("database is locked"), "is locked by another program"),
        ("sqlite:////x", Told("attempt to write a readonly database"), "cannot be opened for"),
        ("sqlite:////x", Told("unable to open database file"), "cannot be opened for writing"),
        ("sqlite:////x", Told("disk I/O error"), "see that its disk is well and not full"),
        ("postgresql://h/d", Told("no", "28P01"), "refuses this user or password"),
        ("postgresql://h/d", Told("no", "3D000"), "run: createdb d"),
        ("postgresql://h/d", Told("no", "53300"), "raise its max_connections"),
        ("postgresql://h/d", Told("no", "57P03"), "is starting or stopping"),
        ("postgresql://h/d", Told('database "d" does not exist'), "run: createdb d"),
        ("postgresql://h/d", Told("password authentication failed"), "refuses this user"),
        ("postgresql://h/d", Told("failed to resolve host 'h'"), "on a host that is not known: h"),
        ("postgresql://h/d", Told("connection refused"), "see that it runs, that this machine"),
    ],
)
def test_every_cause_has_its_remedy(url: str, told: Told, said: str) -> None:
    error = StoreUnavailable()
    error.__cause__ = OperationalError("a statement", {}, told)
    assert said in database_module._why_not(error, make_url(url))
    error.__cause__ = told
    assert said in database_module._why_not(error, make_url(url))


async def test_a_file_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "theirs.sqlite3"
    file.write_bytes(b"")
    access = os.access
    monkeypatch.setattr(
        database_module.os, "access", lambda path, mode: path != file and access(path, mode)
    )
    code, found = await examined(tmp_path / "data", DATABASE_URL=f"sqlite:///{file}")
    assert code == 1
    assert f"run: chown {os.getuid()} {file}" in found["database"]
