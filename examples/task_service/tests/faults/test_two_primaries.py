"""A former primary that comes back beside the one that was promoted."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import make_url
from tests.databases import postgres_database
from tests.own_postgres import OwnPostgres, own_postgres

from msk_auth.errors import ConfigurationError
from task_service.cli import main
from task_service.db.engine import Database
from task_service.db.migrate import migrate

pytestmark = pytest.mark.faults


def start(url: str) -> None:
    async def migrating() -> None:
        db = Database.open(url)
        try:
            await migrate(db)
        finally:
            await db.close()

    asyncio.run(migrating())


def test_two_writable_servers_are_refused(tmp_path: Path) -> None:
    with own_postgres() as one:
        one.stop()
        folder = Path(tempfile.mkdtemp(prefix="task-service-postgres-"))
        # Owners and modes too, since PostgreSQL checks them.
        subprocess.run(["cp", "-a", f"{one.folder}/.", str(folder)], check=True)
        other = OwnPostgres(one.binaries, folder, {**one.as_user, "cwd": folder}, {})
        one.start()
        url = (
            f"postgresql://postgres@/postgres?host=127.0.0.1:{one.port}&host=127.0.0.1:{other.port}"
        )
        url += "&target_session_attrs=read-write"
        # A standby that is down is no reason to refuse.
        start(url)
        other.start()
        try:
            with pytest.raises(ConfigurationError, match="are both writable"):
                start(url)
            environment = {
                "TASK_SERVICE_DATABASE_URL": url,
                "TASK_SERVICE_DATA_DIR": str(tmp_path / "data"),
            }
            done = CliRunner().invoke(main, ["doctor"], env=environment)
            assert done.exit_code == 1
            assert f"primary: 127.0.0.1:{one.port} and 127.0.0.1:{other.port} are" in done.output
        finally:
            other.close()
            shutil.rmtree(folder)


def test_one_server_with_two_names_is_one() -> None:
    with postgres_database() as url:
        named = make_url(url).set(drivername="postgresql", host="127.0.0.1,localhost")
        start(named.render_as_string(hide_password=False))
