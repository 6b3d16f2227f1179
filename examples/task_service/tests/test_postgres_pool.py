"""What one test leaves in a database on PostgreSQL, the next one does not find."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psycopg
import pytest
from examples.task_service.tests.runs_support import migrated

pytestmark = pytest.mark.anyio

WRITE_JOB = "INSERT INTO procrastinate_jobs (queue_name, task_name) VALUES ('q', 't')"
WRITE_USER = "INSERT INTO users (id, username, roles, created_at) VALUES ('u', 'ann', '[]', 0)"
HIGHEST_JOB = "SELECT max(id) FROM procrastinate_jobs"


async def used(folder: Path, *statements: str) -> str:
    """The URL of the database that was borrowed for these statements."""
    async with migrated("postgresql", folder) as url:
        with psycopg.connect(url) as connection:
            for statement in statements:
                connection.execute(statement)
        return url


async def first_job(folder: Path) -> tuple[str, object]:
    """The URL of an empty database, and the id of the first job in it."""
    async with migrated("postgresql", folder) as url:
        with psycopg.connect(url) as connection:
            counts = [
                connection.execute(f"SELECT count(*) FROM {name}").fetchone()
                for name in ("users", "procrastinate_jobs", "procrastinate_events")
            ]
            assert counts == [(0,)] * 3
            connection.execute(WRITE_JOB)
            return url, connection.execute(HIGHEST_JOB).fetchone()


async def test_the_same_database_is_lent_empty_and_counts_from_one(tmp_path: Path) -> None:
    before = await used(tmp_path, WRITE_USER, WRITE_JOB)
    assert await first_job(tmp_path) == (before, (1,))


async def test_a_connection_that_was_left_open_is_ended(tmp_path: Path) -> None:
    async with migrated("postgresql", tmp_path) as before:
        left = psycopg.connect(before)
        left.execute("LOCK TABLE users")
    with contextlib.closing(left), pytest.raises(psycopg.OperationalError):
        left.execute(WRITE_USER)
    assert (await first_job(tmp_path))[0] == before


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE users ADD COLUMN colour TEXT",
        "DROP TABLE idempotency",
        "CREATE TABLE things (n int)",
        "UPDATE alembic_version SET version_num = '9999'",
    ],
)
async def test_a_database_that_was_changed_is_not_lent_again(tmp_path: Path, change: str) -> None:
    changed = await used(tmp_path, change)
    assert (await first_job(tmp_path))[0] != changed


async def test_neither_is_one_whose_borrower_failed(tmp_path: Path) -> None:
    with pytest.raises(LookupError):
        async with migrated("postgresql", tmp_path) as failed:
            raise LookupError
    assert (await first_job(tmp_path))[0] != failed
