"""A rolling upgrade: an older release writes, while processes of this one start at once and bring the schema forward.

Migrations run once, whichever process starts first; what the older release writes meanwhile is neither refused nor lost, and is
this release's work afterwards.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic.script import ScriptDirectory
from examples.task_service.tests import version_before
from examples.task_service.tests.faults import old_release
from examples.task_service.tests.faults.clients import Client
from examples.task_service.tests.faults.deployment import (
    Deployment,
    is_serving,
    new_task,
    start_run,
    wait_for_run,
)
from examples.task_service.tests.faults.nursery import ROOT, Nursery, Process, nursery, until
from examples.task_service.tests.faults.old_release import OWNER, TASK
from examples.task_service.tests.service_support import secrets_in
from sqlalchemy import Engine, NullPool, create_engine, text
from tests.databases import postgres_database

from msk_auth import KeyFormat, KeyHasher
from task_service.db import migrate as migrate_module
from task_service.db.migrate_postgresql import LOCK_SECONDS
from task_service.secrets_file import load_or_create_secrets
from task_service.settings import Settings

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

# A migration delays no other process for longer than its own wait for a table, and what this machine adds to that.
BOUND = LOCK_SECONDS + 1.5

# Longer than that, so that a migration that just waited for it would delay every process too long.
LONG_SECONDS = BOUND + 1.0

# On a slow disk: where two writers hold their locks for 0.6 seconds each time, the migration gives up for 90 seconds.
START_SECONDS = 400

YESTERDAY = old_release.microseconds() - 86_400_000_000
WAITING = f"run_{'a' * 16}"

# In the words of the schema before this one: an administrator, a task, what commands may be run, and more runs than fit on a page.
SETTLED = (
    (
        "INSERT INTO users (id, username, roles, password_hash, created_at)"
        f" VALUES ('{OWNER}', 'ann', '[\"admin\"]', 'of no password', :at)"
    ),
    (
        "INSERT INTO tasks (id, owner_id, name, handler, params, created_at, updated_at)"
        f" VALUES ('{TASK}', '{OWNER}', 'old', 'command', '{{}}', :at, :at)"
    ),
    (
        "INSERT INTO settings (name, value, updated_at) VALUES"
        " ('allowed_commands', '[\"true\"]', :at), ('max_concurrent_runs_per_user', '50', :at)"
    ),
    (
        "INSERT INTO runs (id, task_id, owner_id, state, requested_by, handler, params, timeout_seconds,"
        " created_at, finished_at) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n"
        f" WHERE i < 20000) SELECT 'run_9' || i, '{TASK}', '{OWNER}', 'succeeded', '{{}}', 'command',"
        " '{}', 60, :at, :at FROM n"
    ),
)
A_KEY = (
    "INSERT INTO msk_auth_api_keys (id, name, owner_id, digest, created_at)"
    f" VALUES (:id, 'old', '{OWNER}', :d, :at)"
)


@dataclass
class OldDeployment:
    """A database as an older release left it, and a key that it made."""

    engine: Engine
    key: str


@contextmanager
def old_deployment(url: str, folder: Path) -> Iterator[OldDeployment]:
    """A database of the version before with a user, a key, a task, runs and settings in it."""
    settings = Settings(data_dir=folder / "data")
    settings.create_data_dir()
    hasher = KeyHasher(load_or_create_secrets(settings.data_dir, datetime.now(UTC)).peppers)
    key = KeyFormat().generate()
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        version_before.create_schema(connection)
        for statement in SETTLED:
            connection.execute(text(statement), {"at": YESTERDAY})
        connection.execute(
            text(A_KEY), {"at": YESTERDAY, "id": key.id, "d": hasher.digest(key.reveal())}
        )
    yield OldDeployment(engine, key.reveal())
    engine.dispose()


@contextmanager
def old_writers(url: str, folder: Path) -> Iterator[list[Path]]:
    """Two processes of the older release at work; the files where they print what they have done."""
    outputs = [folder / f"old-{name}.stdout" for name in "ab"]
    processes: list[subprocess.Popen[bytes]] = []
    for name, output in zip("ab", outputs, strict=True):
        words = [sys.executable, "-m", old_release.__name__, url, name]
        with output.open("wb") as stdout:
            processes.append(subprocess.Popen(words, cwd=ROOT, stdout=stdout))
    try:
        # A signal before its first line would end it at once.
        until(lambda: all(output.stat().st_size for output in outputs), "both work")
        yield outputs
    finally:
        for process in processes:
            process.terminate()
        statuses = [process.wait(60) for process in processes]
    assert statuses == [0, 0]


def written(outputs: list[Path]) -> list[dict[str, Any]]:
    """What the older release prints; its last line may still be on its way."""
    lines = [line for output in outputs for line in output.read_text().splitlines(keepends=True)]
    return [json.loads(line) for line in lines if line.endswith("\n")]


def write_for_long(url: str, processes: list[Process]) -> None:
    """A transaction that began before the upgrade, and ends long after it was in the way of a table that refers to users."""
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE users SET last_login_at = last_login_at")
        connection.execute("SELECT count(*) FROM runs")
        until(
            lambda: any("the migration will be retried" in each.log() for each in processes),
            "it waits",
        )
        time.sleep(LONG_SECONDS)


def check_migrated_once(processes: list[Process], engine: Engine) -> None:
    # What comes after this one waits until the older release has stopped.
    head = migrate_module._usable(ScriptDirectory.from_config(migrate_module._config()))[
        -1
    ].revision
    counts = [
        each.log().count(f"from the schema {version_before.REVISION} to {head}")
        for each in processes
    ]
    assert sorted(counts) == [0] * (len(processes) - 1) + [1], counts
    with engine.connect() as connection:
        found = connection.execute(text("SELECT version_num FROM alembic_version")).all()
    assert [row.version_num for row in found] == [head]


def check_logs(processes: Nursery) -> None:
    logs = processes.logs()
    assert not secrets_in(logs)
    assert "Traceback" not in logs, logs[logs.index("Traceback") - 500 :][:5000]


def test_an_older_release_writes_while_new_processes_migrate(tmp_path: Path) -> None:
    with (
        postgres_database() as database,
        nursery(tmp_path) as processes,
        old_deployment(database.render_as_string(hide_password=False), tmp_path) as old,
    ):
        url = database.set(drivername="postgresql").render_as_string(hide_password=False)
        deployment = Deployment(processes, tmp_path, database_url=url)
        started: list[Process] = []
        with old_writers(url, tmp_path) as outputs, ThreadPoolExecutor(1) as pool:
            until(lambda: len(written(outputs)) > 6, "the older release writes")
            # A busy machine delays them without a migration as well.
            alone = max(each["seconds"] for each in written(outputs))
            writing = pool.submit(write_for_long, url, started)
            until(lambda: long_transactions(old.engine), "a long transaction is under way")
            apis = [deployment.begin_to_serve() for _ in range(2)]
            workers = [deployment.work() for _ in range(2)]
            started += [api.process for api in apis] + workers
            until(lambda: all(is_serving(api) for api in apis), "both serve", START_SECONDS)
            until(lambda: all("executing runs as" in each.log() for each in workers), "both work")
            writing.result()
            # And beside the new schema.
            there = len(written(outputs))
            until(lambda: len(written(outputs)) > there + 6, "the older release writes")
        check_migrated_once(started, old.engine)
        assert any("waiting for another process" in each.log() for each in started), (
            "they all came by alone"
        )
        done = written(outputs)
        assert [each["error"] for each in done if "error" in each] == []
        slowest = max(each["seconds"] for each in done)
        assert slowest < BOUND + alone, (
            f"a statement of the older release waited for {slowest:.1f} s"
        )
        program = Client(apis[1].port, old.key)
        assert program.get("/api/auth/me").status == 200
        runs = [each["run"] for each in done if "run" in each]
        check_is_there(old.engine, done, runs)
        for run_id in runs:
            run = wait_for_run(program, run_id)
            assert (run["state"], run["attempt"]) == ("succeeded", 1), run
        # What is new works at once, on the same data.
        fresh = start_run(program, new_task(program, "true"))
        assert wait_for_run(program, fresh)["state"] == "succeeded"
        check_logs(processes)


def long_transactions(engine: Engine) -> bool:
    with engine.connect() as connection:
        return bool(
            connection.scalar(
                text(
                    "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'"
                    " AND query LIKE 'SELECT count%' AND datname = current_database()"
                )
            )
        )


def check_is_there(engine: Engine, done: list[dict[str, Any]], runs: list[str]) -> None:
    """Everything that the older release was acknowledged."""
    with engine.connect() as connection:
        stored = connection.scalars(
            text("SELECT id FROM runs WHERE created_at > :at"), {"at": YESTERDAY}
        )
        assert set(runs) <= set(stored)
        entries = connection.scalars(
            text("SELECT target FROM audit WHERE action = 'run.requested'")
        )
        assert {each["target"] for each in done} <= set(entries)
        keys = connection.scalar(text("SELECT count(*) FROM msk_auth_api_keys WHERE digest = 'x'"))
        assert keys is not None
        assert keys >= len(done)


def test_two_processes_that_start_at_once_on_an_old_sqlite_file_migrate_it_once(
    tmp_path: Path,
) -> None:
    path = tmp_path / "data" / "task-service.sqlite3"
    path.parent.mkdir(mode=0o700)
    with (
        nursery(tmp_path) as processes,
        old_deployment(f"sqlite:///{path}", tmp_path) as old,
    ):
        deployment = Deployment(processes, tmp_path)
        with old.engine.begin() as connection:
            # Waiting since before the upgrade.
            connection.exec_driver_sql(
                old_release.RUN.replace("%s", "?"),
                (
                    WAITING,
                    TASK,
                    OWNER,
                    old_release.REQUESTED_BY,
                    old_release.PARAMS,
                    YESTERDAY,
                ),
            )
        apis = [deployment.begin_to_serve() for _ in range(2)]
        until(lambda: all(is_serving(api) for api in apis), "both serve")
        check_migrated_once([api.process for api in apis], old.engine)
        program = Client(apis[0].port, old.key)
        assert program.get("/api/auth/me").status == 200
        assert wait_for_run(program, WAITING)["state"] == "succeeded"
        check_logs(processes)
