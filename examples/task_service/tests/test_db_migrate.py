"""Migrations: they make exactly the schema, keep what is there, and run once however many processes start."""

from __future__ import annotations

import asyncio
import importlib
import logging
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from examples.task_service.tests import version_before
from examples.task_service.tests.accounts_support import KINDS, database_url
from examples.task_service.tests.runs_support import fresh_postgres
from sqlalchemy import Connection, func, insert, inspect, select, text
from sqlalchemy.exc import IntegrityError

from msk_auth.errors import ConfigurationError
from task_service.db import migrate as migrate_module
from task_service.db import schema
from task_service.db.engine import Database
from task_service.db.migrate import (
    SchemaState,
    migrate,
    revision_of,
    schema_state,
    waiting_for_finish,
)
from task_service.tasks.next_run import NEXT_RUNS

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture(params=KINDS)
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    async with database_url(request.param, tmp_path) as url:
        yield url


@pytest.fixture
async def db(url: str) -> AsyncIterator[Database]:
    db = Database.open(url)
    yield db
    await db.close()


def _ours(name: str | None, kind: str, _parents: object) -> bool:
    """Without the tables of procrastinate, which bring their own migrations."""
    return kind != "table" or not str(name).startswith("procrastinate_")


def _differences(connection: Connection) -> list[object]:
    context = MigrationContext.configure(
        connection,
        opts={"compare_type": True, "compare_server_default": True, "include_name": _ours},
    )
    return list(compare_metadata(context, schema.metadata))


async def _head(db: Database) -> str | None:
    async with db.read() as connection:
        return await revision_of(connection)


async def test_an_empty_database_gets_the_schema(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    assert await schema_state(db) is not SchemaState.CURRENT
    with caplog.at_level(logging.INFO):
        await migrate(db)
    assert f"created the schema {await _head(db)} in the empty database" in caplog.messages

    assert await schema_state(db) is SchemaState.CURRENT
    async with db.read() as connection:
        assert await connection.run_sync(_differences) == []
    assert await waiting_for_finish(db) == []


async def test_a_failed_migration_changes_nothing(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await migrate(db)
    module = tmp_path / "next" / "migrate.py"
    shutil.copytree(
        Path(migrate_module.__file__).with_name("migrations"), module.with_name("migrations")
    )
    (module.with_name("migrations") / "versions" / "next_broken.py").write_text(
        "from alembic import op\n"
        f"revision, down_revision, works_with = 'next', {await _head(db)!r}, ()\n"
        "def upgrade():\n"
        "    op.drop_table('audit')\n"
        "    raise LookupError('half way')\n"
    )
    with monkeypatch.context() as patch:
        patch.setattr(migrate_module, "__file__", str(module))
        with pytest.raises(LookupError, match="half way"):
            await migrate(db, finish=True)

    assert await schema_state(db) is SchemaState.CURRENT
    async with db.read() as connection:
        assert await connection.run_sync(_differences) == []


async def test_several_processes_that_start_together_migrate_once(url: str) -> None:
    # Forks of a process that has loaded what they import, which takes longer than to migrate.
    code = (
        "import asyncio, os, sys\n"
        "from task_service.db.engine import Database\n"
        "from task_service.db.migrate import migrate\n"
        "async def main():\n"
        "    db = Database.open(sys.argv[1])\n"
        "    await migrate(db)\n"
        "    await db.close()\n"
        "children = []\n"
        "for _ in range(3):\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        asyncio.run(main())\n"
        "        os._exit(0)\n"
        "    children.append(child)\n"
        "print([os.waitpid(child, 0)[1] for child in children])\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, url), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    printed, errors = await process.communicate()

    assert printed == b"[0, 0, 0]\n", errors
    db = Database.open(url)
    async with db.read() as connection:
        assert await connection.run_sync(_differences) == []
        assert await connection.scalar(text("SELECT count(*) FROM alembic_version")) == 1
    await db.close()


async def test_the_schema_of_another_version_or_application_is_refused_and_not_changed(
    db: Database,
) -> None:
    await migrate(db)
    for revision, message in (
        ("9999", "'9999' of a newer version"),
        ("theirs", "'theirs' of a newer version"),
        # From before the first migration.
        ("0018", "Start the previous version with it first"),
    ):
        async with db.write() as connection:
            await connection.execute(text(f"UPDATE alembic_version SET version_num = '{revision}'"))
        with pytest.raises(ConfigurationError, match=message):
            await migrate(db)
        assert await _head(db) == revision


async def test_a_newer_schema_recorded_as_compatible_works_with_this_version(db: Database) -> None:
    """A process of this version that is started anew in the middle of a rolling upgrade."""
    await migrate(db)
    head = await _head(db)
    async with db.write() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        await connection.execute(
            insert(schema.schema_works_with).values(revision="9999", code=head)
        )
    await migrate(db)

    assert await schema_state(db) is SchemaState.NEWER
    assert await _head(db) == "9999"
    # The record is of one schema, not of the next.
    async with db.write() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9998'"))
    with pytest.raises(ConfigurationError, match="'9998' of a newer version"):
        await migrate(db)


async def test_old_processes_work_with_the_new_schema_and_their_data_stays(db: Database) -> None:
    """From the version before to this one, with statements as that version writes them, until they have stopped."""
    run = (
        "INSERT INTO runs (id, task_id, owner_id, state, requested_by, handler, params,"
        " timeout_seconds, created_at) VALUES ('{}', 'tsk_1', 'usr_1', 'queued', '{{}}', 'command',"
        " '{{}}', 60, 0)"
    )
    wait = (
        "INSERT INTO waiting_owners (owner_id, lane, turn) VALUES ('usr_1', 1, {0})"
        " ON CONFLICT (owner_id) DO UPDATE SET turn = {0}"
    )
    async with db.write() as connection:
        await connection.run_sync(version_before.create_schema)
        for statement in (
            "INSERT INTO users (id, username, roles, created_at) VALUES ('usr_1', 'ann', '[]', 0)",
            (
                "INSERT INTO tasks (id, owner_id, name, handler, params, created_at, updated_at)"
                " VALUES ('tsk_1', 'usr_1', 'a task', 'command', '{}', 0, 0)"
            ),
            run.format("run_before"),
            wait.format(1),
        ):
            await connection.exec_driver_sql(statement)
    assert await schema_state(db) is SchemaState.OLDER
    waiting = await migrate(db)
    assert waiting == await waiting_for_finish(db) != []
    assert await schema_state(db) is SchemaState.CURRENT
    async with db.write() as connection:
        following = await connection.execute(NEXT_RUNS, {"room": 1, "limit": 1, "now": 0})
        assert [row.id for row in following] == ["run_before"], "a run that was queued waits on"
        await connection.exec_driver_sql(run.format("run_after"))
        await connection.exec_driver_sql(wait.format(2))
        works = await connection.scalars(
            select(schema.schema_works_with.c.code).where(
                schema.schema_works_with.c.revision == await _head(db)
            )
        )
        assert version_before.REVISION in works.all()
    assert await migrate(db, finish=True) == []
    assert await migrate(db) == []
    async with db.read() as connection:
        assert await connection.run_sync(_differences) == []
        found = await connection.scalars(select(schema.runs.c.id).order_by(schema.runs.c.id))
        assert found.all() == ["run_after", "run_before"]


async def test_a_service_account_cannot_log_in_through_an_older_process(db: Database) -> None:
    """One that does not know what a service account is."""
    await migrate(db)
    user = (
        "INSERT INTO users (id, username, roles, password_hash, created_at, service_account)"
        " VALUES ('usr_1', 'ann', '[]', 'a hash', 0, true)"
    )
    with pytest.raises(IntegrityError):
        async with db.write() as connection:
            await connection.exec_driver_sql(user)


async def test_the_queues_own_migrations_are_applied(
    url: str, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    if url.startswith("sqlite"):
        await migrate(db)
        async with db.read() as connection:
            assert (await connection.execute(select(schema.queue_migrations))).all() == []
        return
    migrate_postgresql = importlib.import_module("task_service.db.migrate_postgresql")
    assert await migrate(db) == []
    newer = {
        **migrate_postgresql._queue_scripts(),
        "99.00.00_01_pre_colour": "ALTER TABLE procrastinate_jobs ADD COLUMN colour text;"
        "COMMENT ON COLUMN procrastinate_jobs.colour IS '100%';",
        "99.00.00_50_post_colour": "ALTER TABLE procrastinate_jobs ADD COLUMN taste text",
    }
    monkeypatch.setattr(migrate_postgresql, "_queue_scripts", lambda: newer)
    columns = text(
        "SELECT array_agg(column_name::text) FROM information_schema.columns"
        " WHERE table_name = 'procrastinate_jobs' AND column_name IN ('colour', 'taste')"
    )
    assert await migrate(db) == ["99.00.00_50_post_colour"]
    async with db.read() as connection:
        assert await connection.scalar(columns) == ["colour"]
    assert await waiting_for_finish(db) == ["99.00.00_50_post_colour"]
    assert await migrate(db, finish=True) == []
    async with db.read() as connection:
        assert sorted(await connection.scalar(columns)) == ["colour", "taste"]
    assert await waiting_for_finish(db) == []


async def test_the_queue_of_another_application_is_refused() -> None:
    async with fresh_postgres() as url:
        await _refuse_a_queue(Database.open(url))


async def _refuse_a_queue(db: Database) -> None:
    async with db.write() as connection:
        await connection.execute(text("CREATE TABLE procrastinate_jobs (id int)"))
    with pytest.raises(ConfigurationError, match=r"a queue .* that the service did not create"):
        await migrate(db)

    assert await schema_state(db) is SchemaState.OLDER
    await db.close()


async def test_the_tables_of_another_application_are_refused_and_not_changed(db: Database) -> None:
    async with db.write() as connection:
        await connection.execute(text("CREATE TABLE users (name TEXT)"))
    with pytest.raises(ConfigurationError, match="did not create: users"):
        await migrate(db)

    async with db.read() as connection:
        names = await connection.run_sync(lambda sync: inspect(sync).get_table_names())
        assert await connection.scalar(select(func.count()).select_from(text("users"))) == 0
    assert names == ["users"]
