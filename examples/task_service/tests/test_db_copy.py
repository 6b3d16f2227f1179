"""Moving from one machine to several: everything is copied, and keys, logins and the audit log go on."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from examples.task_service.tests.runs_support import fresh_postgres
from examples.task_service.tests.service_support import (
    ADMIN_PASSWORD,
    expect,
    problem,
    running_service,
)
from sqlalchemy import delete, func, select, text, update

from msk_auth.errors import ConfigurationError
from task_service.cli import main
from task_service.db import copy as copy_module
from task_service.db.copy import TABLES, copy_database
from task_service.db.engine import Database
from task_service.db.migrate import migrate
from task_service.db.schema import audit, runs

pytestmark = pytest.mark.anyio


@pytest.fixture
async def target() -> AsyncIterator[str]:
    async with fresh_postgres() as url:
        yield url


def _source(data: Path) -> str:
    return f"sqlite:///{data / 'task-service.sqlite3'}"


async def _rows(url: str) -> dict[str, list[Any]]:
    db = Database.open(url)
    try:
        async with db.read() as connection:
            return {
                table.name: [
                    tuple(row)
                    for row in await connection.execute(
                        select(table).order_by(*table.primary_key.columns)
                    )
                ]
                for table in TABLES
            }
    finally:
        await db.close()


async def _execute(url: str, statement: Any) -> None:
    db = Database.open(url)
    async with db.write() as connection:
        await connection.execute(statement)
    await db.close()


async def test_a_service_moves_to_postgresql(template: Path, tmp_path: Path, target: str) -> None:
    data = tmp_path / "data"
    async with running_service(template, data) as before:
        ada = await before.log_in("ada", ADMIN_PASSWORD)
        login = ada.token
        key = await ada.new_key(name="CI", scopes=["tasks:read", "tasks:run"])
        revoked = await ada.new_key(name="old")
        expect(await ada.post(f"/api/keys/{revoked['id']}/revoke"), 200)
        program = before.caller(key["key"])
        expect(await ada.patch("/api/admin/config", {"max_keys_per_user": 7}), 200)
        task = await ada.new_task()
        headers = {"Idempotency-Key": "once"}
        run = expect(await program.post(f"/api/tasks/{task['id']}/run", headers=headers), 202)
        over = await program.wait_for_run(run["id"])
        audit = expect(await ada.get("/api/admin/audit"), 200)["items"]

    copied = await copy_database(_source(data), target)

    assert copied["msk_auth_api_keys"] == 2
    assert copied["run_log"] >= 1
    assert await _rows(target) == await _rows(_source(data))
    moved = tmp_path / "moved"
    moved.mkdir()
    shutil.copy(data / "secrets.json", moved)
    async with running_service(moved, tmp_path / "other machine", database_url=target) as after:
        program = after.caller(key["key"])
        me = await program.me()
        assert (me["user"]["username"], me["credential"]["key_id"]) == ("ada", key["id"])
        assert me["permissions"] == ["tasks:read", "tasks:run"]
        assert expect(await program.get(f"/api/runs/{run['id']}"), 200) == over
        again = expect(await program.post(f"/api/tasks/{task['id']}/run", headers=headers), 202)
        assert again["id"] == run["id"]
        log = await program.get(f"/api/runs/{run['id']}/log", headers={"Accept": "text/plain"})
        assert log.text == "hello\n"
        old = await after.caller(revoked["key"]).get("/api/auth/me")
        assert problem(old) == (401, "key_revoked")
        same_login = after.caller(login)
        assert expect(await same_login.get("/api/admin/config"), 200)["max_keys_per_user"] == 7
        entries = expect(await same_login.get("/api/admin/audit?limit=100"), 200)["items"]
        assert entries[-len(audit) :] == audit
        # New entries, keys and runs do not collide with copied ones.
        await same_login.new_key(name="new")
        newest = expect(await same_login.get("/api/admin/audit"), 200)["items"][0]
        assert newest["action"] == "key.created"
        assert int(newest["id"]) > int(audit[0]["id"])
        run = expect(await program.post(f"/api/tasks/{task['id']}/run"), 202)
        assert (await program.wait_for_run(run["id"]))["state"] == "succeeded"


async def test_a_target_with_rows_is_refused_and_not_changed(template: Path, target: str) -> None:
    await copy_database(_source(template), target)
    before = await _rows(target)
    with pytest.raises(ConfigurationError, match="copy to is not empty: audit has rows"):
        await copy_database(_source(template), target)

    assert await _rows(target) == before


async def test_a_copy_that_fails_or_has_another_number_of_rows_leaves_nothing(
    template: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail_at_last(table: Any, *words: Any) -> None:
        if table is TABLES[-1]:
            raise LookupError
        await copy(table, *words)

    async def lose_the_audit(table: Any, reading: Any, writing: Any) -> None:
        await copy(table, reading, writing)
        if table is audit:
            await writing.execute(delete(audit))

    copy = copy_module._copy
    monkeypatch.setattr(copy_module, "_copy", fail_at_last)
    with pytest.raises(LookupError):
        await copy_database(_source(template), target)
    assert not any((await _rows(target)).values())
    monkeypatch.setattr(copy_module, "_copy", lose_the_audit)
    with pytest.raises(ConfigurationError, match="rows, and its copy"):
        await copy_database(_source(template), target)
    assert not any((await _rows(target)).values())


async def test_writers_of_the_source_wait_meanwhile(
    template: Path, tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    shutil.copytree(template, data)
    began, release = asyncio.Event(), asyncio.Event()

    async def wait(*words: Any) -> None:
        began.set()
        await release.wait()
        await copy(*words)

    copy = copy_module._copy
    monkeypatch.setattr(copy_module, "_copy", wait)
    copying = asyncio.create_task(copy_database(_source(data), target))
    await began.wait()
    writing = asyncio.create_task(_execute(_source(data), update(runs).values(rank=1)))
    done, _ = await asyncio.wait({writing}, timeout=0.3)
    assert not done
    release.set()
    await asyncio.gather(copying, writing)


async def test_the_error_names_the_reason_and_no_password(tmp_path: Path, template: Path) -> None:
    empty = f"sqlite:///{tmp_path / 'empty.sqlite3'}"
    missing = f"sqlite:///{tmp_path / 'missing.sqlite3'}"
    link = tmp_path / "link.sqlite3"
    link.symlink_to(template / "task-service.sqlite3")
    db = Database.open(empty)
    await db.close()
    for source, to, message in (
        (missing, empty, "There is no database file"),
        (f"sqlite:///{tmp_path / ('a' * 300)}", empty, "There is no database file"),
        (empty, missing, "does not have this version's schema"),
        (_source(template), _source(template), "are the same database"),
        (_source(template), f"sqlite:///{link}", "are the same database"),
        ("mysql://u:geheim@h/d", empty, "'mysql' is not supported"),
    ):
        with pytest.raises(ConfigurationError, match=message) as caught:
            await copy_database(source, to)
        assert "geheim" not in str(caught.value)
    assert not (tmp_path / "missing.sqlite3").exists() or (
        (tmp_path / "missing.sqlite3").stat().st_mode & 0o077 == 0
    )


async def test_an_empty_database_is_copied_too(tmp_path: Path, target: str) -> None:
    source = f"sqlite:///{tmp_path / 'fresh.sqlite3'}"
    db = Database.open(source)
    await migrate(db)
    await db.close()
    assert set((await copy_database(source, target)).values()) == {0}
    db = Database.open(target)
    async with db.write() as connection:
        assert await connection.scalar(select(func.count()).select_from(runs)) == 0
        await connection.execute(
            text(
                "INSERT INTO audit (at, action, credential_kind, details) VALUES (0, 'x', 'none', '{}')"
            )
        )
        assert await connection.scalar(text("SELECT max(id) FROM audit")) == 1
    await db.close()


def test_the_command_prints_what_was_copied_and_the_next_step(
    template: Path, tmp_path: Path
) -> None:
    to = f"sqlite:///{tmp_path / 'copy.sqlite3'}"
    words = ["copy-data", "--from", _source(template)]
    done = CliRunner().invoke(main, words, env={"TASK_SERVICE_DATABASE_URL": to})
    assert done.exit_code == 0, done.output
    assert "         2  users\n" in done.stdout
    assert "copy secrets.json, with the peppers and token keys" in done.stdout
    again = CliRunner().invoke(main, [*words, "--to", to])
    assert again.exit_code == 1
    assert again.stderr.startswith("Error: The database to copy to is not empty")
