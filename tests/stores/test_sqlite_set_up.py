"""How connections of SQLite are set up: processes that open a file together, and connections closed within a statement."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from msk_auth.stores.sqlalchemy import AsyncSQLAlchemyKeyStore, _sqlite, prepare_sqlite


def connect(error: Exception, times: int, tries: list[str]) -> None:
    """Open a connection that refuses so many times to change the journal mode."""

    class Cursor(sqlite3.Cursor):
        def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
            if "journal_mode" in sql:
                tries.append(sql)
                if len(tries) <= times:
                    raise error
            return super().execute(sql, parameters)

    class Connection(sqlite3.Connection):
        def cursor(self, factory: Any = Cursor) -> Any:
            return super().cursor(factory)

    engine = create_engine("sqlite://", connect_args={"factory": Connection})
    prepare_sqlite(engine)
    try:
        engine.connect().close()
    finally:
        engine.dispose()


def refusal(code: int | None) -> sqlite3.OperationalError:
    error: Any = sqlite3.OperationalError("database is locked")
    if code is not None:
        error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize("code", [sqlite3.SQLITE_BUSY, sqlite3.SQLITE_BUSY_RECOVERY])
def test_a_busy_database_is_retried(code: int) -> None:
    tries: list[str] = []
    connect(refusal(code), 3, tries)
    assert len(tries) == 4


@pytest.mark.parametrize("code", [sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL, None])
def test_any_other_error_is_raised_at_once(code: int | None) -> None:
    tries: list[str] = []
    with pytest.raises(OperationalError):
        connect(refusal(code), 1, tries)
    assert len(tries) == 1


def test_retries_of_a_busy_database_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sqlite, "_PATIENCE_SECONDS", 0.02)
    tries: list[str] = []
    with pytest.raises(OperationalError, match="locked"):
        connect(refusal(sqlite3.SQLITE_BUSY), 1_000_000, tries)
    assert 1 < len(tries) < 10


@pytest.mark.anyio
@pytest.mark.parametrize("set_up", [prepare_sqlite, AsyncSQLAlchemyKeyStore])
async def test_a_connection_that_is_closed_within_a_statement_keeps_no_lock(
    set_up: Callable[[AsyncEngine], object], tmp_path: Path
) -> None:
    """As a cancelled request leaves it: the cursor is there until garbage is collected."""
    path = tmp_path / "some.sqlite3"
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    set_up(engine)
    async with engine.connect() as connection:
        driver: Any = (await connection.get_raw_connection()).driver_connection
        await driver.execute("CREATE TABLE something (a)")
        await driver.execute("INSERT INTO something VALUES (1), (2)")
        await driver.commit()
        cursor = await driver.cursor()
        await cursor.execute("UPDATE something SET a = 3 RETURNING a")
        await connection.invalidate()

    with closing(sqlite3.connect(path, timeout=0)) as another:
        another.execute("INSERT INTO something VALUES (4)")
        assert another.execute("SELECT a FROM something").fetchall() == [(1,), (2,), (4,)]
    del cursor
    await engine.dispose()


@pytest.mark.anyio
async def test_an_applications_own_class_of_connections_is_kept(tmp_path: Path) -> None:
    class Own(sqlite3.Connection):
        pass

    path = tmp_path / "some.sqlite3"
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}", connect_args={"factory": Own})
    prepare_sqlite(engine)
    async with engine.connect() as connection:
        driver: Any = (await connection.get_raw_connection()).driver_connection
        assert type(driver._conn) is Own
    await engine.dispose()


def test_processes_can_open_a_new_file_at_the_same_moment(tmp_path: Path) -> None:
    """Without retries one of them fails in every seventh round."""
    for number in range(40):
        path = tmp_path / f"{number}.sqlite3"
        with sqlite3.connect(path) as made:
            made.execute("CREATE TABLE something (a)")
        made.close()
        together, found = threading.Barrier(4), list[object]()

        def open_it(path: Path, together: threading.Barrier, found: list[object]) -> None:
            engine = create_engine(f"sqlite:///{path}")
            prepare_sqlite(engine)
            together.wait()
            try:
                with engine.connect() as connection:
                    found.append(connection.exec_driver_sql("PRAGMA journal_mode").scalar())
            except Exception as error:  # noqa: BLE001 - reported below
                found.append(error)
            engine.dispose()

        threads = [threading.Thread(target=open_it, args=(path, together, found)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == ["wal"] * 4
