"""What one process did, all others see; and what it acknowledged, survives it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import URL, text
from tests.stores.support import engine_on, sqlite_url

from msk_auth.stores.sqlalchemy import SQLAlchemyKeyStore
from msk_auth.testing._store_contract import NOW, add, count_active

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> URL:
    if request.param == "sqlite":
        return sqlite_url(tmp_path)
    url: URL = request.getfixturevalue(
        "postgres_url" if request.param == "postgres" else "mysql_url"
    )
    return url


@contextmanager
def worker(what: str, url: URL, *rest: str) -> Iterator[subprocess.Popen[str]]:
    """A process that waits for a line before it begins."""
    command = [sys.executable, "-W", "error::ResourceWarning", "-m", "tests.stores.workers"]
    process = subprocess.Popen(
        [*command, what, url.render_as_string(hide_password=False), *rest],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def begin(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.mark.slow
def test_the_limit_is_exact_across_processes(url: URL) -> None:
    with (
        engine_on(url) as engine,
        worker("insert", url, "a", "25") as first,
        worker("insert", url, "b", "25") as second,
    ):
        processes = [first, second]
        assert [read(process) for process in processes] == ["ready"] * 2
        for process in processes:
            begin(process)
        taken = [int(read(process)) for process in processes]
        assert [process.wait(60) for process in processes] == [0, 0]
        assert sum(taken) == 25
        store = SQLAlchemyKeyStore(engine)
        assert count_active(store) == 25
        store.close()


@pytest.mark.slow
def test_a_revocation_is_seen_by_every_process_once_it_returned(url: URL) -> None:
    with engine_on(url) as engine, worker("revoke", url, "k") as other:
        store = SQLAlchemyKeyStore(engine)
        add(store, "k")
        assert read(other) == "ready"
        before = store.find("k")
        assert before is not None
        assert before.revoked_at is None
        begin(other)
        assert other.wait(60) == 0
        after = store.find("k")
        assert after is not None
        assert after.revoked_at == NOW
        store.close()


@pytest.mark.faults
@pytest.mark.parametrize("acknowledged", [1, 7, 40])
def test_what_was_acknowledged_survives_a_kill(url: URL, acknowledged: int) -> None:
    if url.get_backend_name() == "mariadb":
        url = url.set(drivername="mariadb+aiomysql")
    sync_url = url.set(drivername=url.drivername.replace("aiomysql", "pymysql"))
    with engine_on(sync_url) as engine:
        with worker("insert_for_ever", url) as process:
            lines = [read(process) for _ in range(acknowledged)]
            process.kill()
            assert process.stdout is not None
            # What it printed before the signal arrived.
            lines += process.stdout.read().split("\n")[:-1]
        store = SQLAlchemyKeyStore(engine)
        for line in lines:
            what, key_id = line.split()
            record = store.find(key_id)
            assert record is not None, line
            assert what == "inserted" or record.revoked_at == NOW
        if engine.dialect.name == "sqlite":
            with engine.connect() as connection:
                assert connection.scalar(text("PRAGMA integrity_check")) == "ok"
        add(store, "afterwards")
        store.close()
