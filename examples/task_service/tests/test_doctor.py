"""The findings of the doctor on databases, clocks, workers and secrets: the cause, and what to do."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory
from examples.task_service.tests.runs_support import POSTGRES, fresh_postgres
from examples.task_service.tests.service_process import run
from sqlalchemy import make_url, text

from msk_auth import SystemClock
from task_service import doctor as doctor_module
from task_service.db import migrate as migrate_module
from task_service.db.engine import Database
from task_service.db.migrate import migrate
from task_service.deployment import agree_on_secrets, forget_secrets
from task_service.secrets_file import load_or_create_secrets

pytestmark = pytest.mark.anyio


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with fresh_postgres() as url:
        yield url


async def examined(data: Path, **settings: str) -> tuple[int, dict[str, str]]:
    """The exit code, and the finding of each subject, prefixed with ok or problem."""
    done = await asyncio.to_thread(run, data, "doctor", PORT="0", **settings)
    assert "geheim" not in done.output
    found = {}
    for line in done.stdout.splitlines():
        subject, _, message = line[8:].strip().partition(": ")
        found[subject] = f"{line[:8].strip()} {message}"
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
    assert found["schema"] == "ok the next start migrates it to this version"
    assert "workers" not in found

    await migrated(url)
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    secrets = load_or_create_secrets(data, SystemClock().now())
    db = Database.open(url)
    await agree_on_secrets(db, secrets.fingerprints, secrets.in_use)
    await db.close()
    await execute(
        url,
        "INSERT INTO procrastinate_workers (last_heartbeat) VALUES (now() + interval '1 hour')",
    )
    code, found = await examined(data, DATABASE_URL=url)
    assert code == 0
    assert found["schema"] == "ok this version's"
    assert found["clock"] == "ok this machine and the database agree on the time"
    assert found["workers"] == "ok 1 alive"
    assert found["shared secrets"] == "ok no other process has other secrets"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"database": "no_such_database"}, 'database "no_such_database" does not exist'),
        ({"username": "no_such_role", "password": "geheim"}, "FATAL: "),
        ({"host": "no-such-host.invalid"}, "no-such-host.invalid"),
        ({"port": 1, "password": "geheim"}, "check that it runs, that this machine can reach it"),
    ],
)
async def test_why_postgresql_does_not_answer(
    tmp_path: Path, changed: dict[str, str], message: str
) -> None:
    wrong = make_url(POSTGRES).set(**changed).render_as_string(hide_password=False)
    code, found = await examined(tmp_path / "data", DATABASE_URL=wrong)
    assert code == 1
    assert found["database"].startswith("problem")
    assert message in found["database"]


async def test_a_schema_of_another_version(tmp_path: Path, url: str) -> None:
    await migrated(url)
    head = ScriptDirectory.from_config(migrate_module._config()).get_current_head()
    await execute(url, "UPDATE alembic_version SET version_num = '9999'")
    code, found = await examined(tmp_path / "data", DATABASE_URL=url)
    assert code == 1
    assert (
        found["schema"]
        == "problem The database has the schema '9999' of a newer version of the service. Install that version, or a later version."
    )

    await execute(url, f"INSERT INTO schema_works_with VALUES ('9999', '{head}')")
    code, found = await examined(tmp_path / "data", DATABASE_URL=url)
    assert code == 0
    assert found["schema"] == "ok made by a newer version, and usable by this version"


async def test_a_migration_that_waits_for_the_last_old_process(tmp_path: Path, url: str) -> None:
    await migrated(url)
    await execute(url, "DELETE FROM queue_migrations WHERE name LIKE '03.04.00_50_post%'")
    code, found = await examined(tmp_path / "data", DATABASE_URL=url)
    assert code == 0
    assert found["schema"].endswith("run: task-service migrate --finish")


async def test_a_database_user_who_may_not_create_tables(tmp_path: Path, url: str) -> None:
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
    assert "user may not create tables" in found["schema"]


async def test_clocks_that_differ(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Behind(SystemClock):
        def now(self):  # type: ignore[no-untyped-def]
            return super().now() - timedelta(hours=1)

    await migrated(url)
    monkeypatch.setattr(doctor_module, "SystemClock", Behind)
    code, found = await examined(tmp_path / "data", DATABASE_URL=url)
    assert code == 1
    assert found["clock"].startswith("problem the database's clock is 3600 seconds ahead of")
    assert found["clock"].endswith("synchronise both with NTP")


async def test_a_standby_is_found(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A primary that claims to be a standby; tests/stores/test_postgres_faults.py has a real one."""
    monkeypatch.setattr(
        doctor_module, "text", lambda sql: text(sql.replace("pg_is_in_recovery()", "true"))
    )
    code, found = await examined(tmp_path / "data", DATABASE_URL=url)
    assert code == 1
    assert "is a hot standby, which may not have the latest revocations" in found["database"]
    assert found["database"].endswith("or add target_session_attrs=read-write")
    assert "clock" not in found


async def test_commits_are_durable_whatever_the_server_has_set(url: str) -> None:
    name = make_url(url).database
    await execute(url, f"ALTER DATABASE {name} SET synchronous_commit = off")
    db = Database.open(url)
    async with db.write() as connection:
        assert await connection.scalar(text("SHOW synchronous_commit")) == "on"
    await db.close()
    # A connection keeps what is on, also when the server's configuration is reloaded.
    await execute(url, f"ALTER DATABASE {name} SET synchronous_commit = on")
    db = Database.open(url)
    async with db.write() as connection:
        setting = text("SELECT setting, source FROM pg_settings WHERE name = 'synchronous_commit'")
        assert tuple((await connection.execute(setting)).one()) == ("on", "session")
    await db.close()
    # What is stronger stays.
    await execute(url, f"ALTER DATABASE {name} SET synchronous_commit = remote_apply")
    db = Database.open(url)
    async with db.write() as connection:
        assert await connection.scalar(text("SHOW synchronous_commit")) == "remote_apply"
    await db.close()


async def test_a_server_that_does_not_write_to_the_disk_is_found(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        doctor_module, "text", lambda sql: text(sql.replace("SHOW fsync", "SELECT 'off'"))
    )
    code, found = await examined(tmp_path / "data", DATABASE_URL=url)
    assert code == 1
    assert found["durability"].startswith(
        "problem fsync is off, so a crash of the server's machine"
    )
    assert found["durability"].endswith("ALTER SYSTEM SET fsync = on; SELECT pg_reload_conf()")


async def test_connections_that_are_nearly_used_up(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, found = await examined(tmp_path / "data", DATABASE_URL=url)
    assert code == 0
    assert re.fullmatch(r"ok (only )?\d+ of PostgreSQL's \d+ are free.*", found["connections"])
    # More than any server has.
    monkeypatch.setattr(doctor_module, "CONNECTIONS_OF_A_PROCESS", 10**6)
    code, found = await examined(tmp_path / "data", DATABASE_URL=url)
    assert code == 0
    assert found["connections"].startswith("ok only ")
    assert found["connections"].endswith("before you start another process, raise max_connections")


async def test_no_process_executes_runs(tmp_path: Path, url: str) -> None:
    await migrated(url)
    code, found = await examined(tmp_path / "data", DATABASE_URL=url)
    assert code == 0
    assert found["workers"] == "ok no worker is alive; task-service serve executes runs itself"
    code, found = await examined(tmp_path / "data", DATABASE_URL=url, EXECUTE_RUNS="never")
    assert code == 1
    assert found["workers"].endswith("run: task-service worker")


async def test_secrets_of_another_deployment(tmp_path: Path, url: str) -> None:
    await migrated(url)
    db = Database.open(url)
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    await agree_on_secrets(db, {"theirs": "0" * 64}, frozenset())
    code, found = await examined(data, DATABASE_URL=url)
    assert code == 1
    assert "are missing, or differ from those" in found["shared secrets"]

    ours = load_or_create_secrets(data, SystemClock().now()).fingerprints
    # The same peppers are not enough: a login of one process has to be good in the other.
    await forget_secrets(db)
    await agree_on_secrets(
        db,
        {name: "0" * 64 if name.startswith("token:") else each for name, each in ours.items()},
        frozenset(),
    )
    code, found = await examined(data, DATABASE_URL=url)
    assert code == 1
    assert "Copy secrets.json from a machine that serves it." in found["shared secrets"]

    await forget_secrets(db)
    await agree_on_secrets(db, ours | {"newer": "0" * 64}, frozenset({"newer"}))
    await db.close()
    code, found = await examined(data, DATABASE_URL=url)
    assert code == 1
    assert "lacks newer, which other processes use" in found["shared secrets"]


async def test_a_disk_that_is_nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    code, found = await examined(data)
    assert code == 0
    assert re.fullmatch(rf"ok \d+\.\d GiB are free for {data}", found["disk"])
    monkeypatch.setattr(doctor_module, "MIN_FREE_BYTES", 2**62)
    code, found = await examined(data)
    assert code == 1
    assert "do not restart processes that serve" in found["disk"]


@pytest.mark.parametrize("of", ["a" * 300, "file/data", "link/data"])
async def test_a_data_folder_out_of_reach(tmp_path: Path, of: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("link")
    code, found = await examined(tmp_path / of)
    assert code == 1
    assert found["data folder"].startswith("problem")
    assert found["data folder"].endswith("or set TASK_SERVICE_DATA_DIR to another one")
    assert found["disk"].startswith("ok")
    assert found["secrets"].startswith("problem The secrets in ")
    assert found["database"].startswith("problem Cannot open the database file ")
