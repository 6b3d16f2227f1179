"""Migrations: they make exactly the schema, keep what is there, and run once however many processes start."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from examples.task_service.tests.accounts_support import KINDS, START, database_url
from sqlalchemy import Connection, func, insert, inspect, select, text

from msk_auth import ConfigurationError
from task_service.db import migrate as migrate_module
from task_service.db import schema
from task_service.db.engine import Database
from task_service.db.migrate import is_migrated, migrate

pytestmark = pytest.mark.anyio


@pytest.fixture(params=KINDS)
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    async with database_url(request.param, tmp_path) as url:
        yield url


@pytest.fixture
async def db(url: str) -> AsyncIterator[Database]:
    db = Database.open(url)
    yield db
    await db.close()


def _differences(connection: Connection) -> list[object]:
    context = MigrationContext.configure(
        connection, opts={"compare_type": True, "compare_server_default": True}
    )
    return list(compare_metadata(context, schema.metadata))


async def test_the_migrations_make_the_schema(db: Database) -> None:
    assert not await is_migrated(db)
    await migrate(db)

    assert await is_migrated(db)
    async with db.read() as connection:
        assert await connection.run_sync(_differences) == []


async def test_migrating_again_keeps_what_is_there(db: Database) -> None:
    await migrate(db)
    async with db.write() as connection:
        await connection.execute(
            insert(schema.users).values(id="usr_1", username="ann", roles=[], created_at=START)
        )
    await migrate(db)

    async with db.read() as connection:
        assert await connection.scalar(select(schema.users.c.username)) == "ann"


async def test_a_later_migration_keeps_what_is_there(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next version's migration, as somebody will write it."""
    await migrate(db)
    async with db.write() as connection:
        await connection.execute(
            insert(schema.users).values(id="usr_1", username="ann", roles=[], created_at=START)
        )
    module = tmp_path / "next" / "migrate.py"
    shutil.copytree(
        Path(migrate_module.__file__).with_name("migrations"), module.with_name("migrations")
    )
    (module.with_name("migrations") / "versions" / "0002_colour.py").write_text(
        "import sqlalchemy as sa\n"
        "from alembic import op\n"
        "revision, down_revision = '0002', '0001'\n"
        "def upgrade():\n"
        "    op.add_column('users', sa.Column('colour', sa.String(8), server_default='grey'))\n"
    )
    monkeypatch.setattr(migrate_module, "__file__", str(module))
    assert not await is_migrated(db)
    await migrate(db)

    assert await is_migrated(db)
    async with db.read() as connection:
        row = (await connection.execute(text("SELECT username, colour FROM users"))).one()
    assert tuple(row) == ("ann", "grey")


async def test_a_migration_that_fails_leaves_what_was_there(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await migrate(db)
    module = tmp_path / "next" / "migrate.py"
    shutil.copytree(
        Path(migrate_module.__file__).with_name("migrations"), module.with_name("migrations")
    )
    (module.with_name("migrations") / "versions" / "0002_broken.py").write_text(
        "from alembic import op\n"
        "revision, down_revision = '0002', '0001'\n"
        "def upgrade():\n"
        "    op.drop_table('audit')\n"
        "    raise LookupError('half way')\n"
    )
    with monkeypatch.context() as patch:
        patch.setattr(migrate_module, "__file__", str(module))
        with pytest.raises(LookupError, match="half way"):
            await migrate(db)

    assert await is_migrated(db)
    async with db.read() as connection:
        assert await connection.run_sync(_differences) == []


async def test_several_processes_that_start_together_migrate_once(url: str) -> None:
    code = (
        "import asyncio, sys\n"
        "from task_service.db.engine import Database\n"
        "from task_service.db.migrate import migrate\n"
        "async def main():\n"
        "    db = Database.open(sys.argv[1])\n"
        "    await migrate(db)\n"
        "    await db.close()\n"
        "asyncio.run(main())\n"
    )
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, url, stderr=subprocess.PIPE
        )
        for _ in range(3)
    ]
    errors = [(await process.communicate())[1] for process in processes]

    assert [process.returncode for process in processes] == [0, 0, 0], errors
    db = Database.open(url)
    async with db.read() as connection:
        assert await connection.run_sync(_differences) == []
        assert await connection.scalar(text("SELECT count(*) FROM alembic_version")) == 1
    await db.close()


async def test_the_schema_of_a_newer_version_is_refused_and_left_alone(db: Database) -> None:
    await migrate(db)
    async with db.write() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(ConfigurationError, match="'9999' of a newer version"):
        await migrate(db)

    assert not await is_migrated(db)


async def test_the_tables_of_another_application_are_refused_and_left_alone(db: Database) -> None:
    async with db.write() as connection:
        await connection.execute(text("CREATE TABLE users (name TEXT)"))
    with pytest.raises(ConfigurationError, match="did not make: users"):
        await migrate(db)

    async with db.read() as connection:
        names = await connection.run_sync(lambda sync: inspect(sync).get_table_names())
        assert await connection.scalar(select(func.count()).select_from(text("users"))) == 0
    assert names == ["users"]
