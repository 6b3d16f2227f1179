"""Processes that open a SQLite file together: none of them fails because it is locked while they change its journal mode."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from msk_auth.stores.sqlalchemy import _sqlite, prepare_sqlite


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


class Refusing:
    """A connection that refuses a pragma so many times, and counts."""

    def __init__(self, error: Exception, times: int) -> None:
        self._error = error
        self._times = times
        self.tries = 0

    def executescript(self, _pragmas: str) -> None:
        self.tries += 1
        if self.tries <= self._times:
            raise self._error


def refusal(code: int | None) -> sqlite3.OperationalError:
    error: Any = sqlite3.OperationalError("database is locked")
    if code is not None:
        error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize("code", [sqlite3.SQLITE_BUSY, sqlite3.SQLITE_BUSY_RECOVERY])
def test_a_busy_database_is_retried(code: int) -> None:
    connection = Refusing(refusal(code), 3)
    _sqlite._retry_while_busy(connection, "PRAGMA journal_mode = WAL")
    assert connection.tries == 4


@pytest.mark.parametrize("code", [sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL, None])
def test_any_other_error_is_raised_at_once(code: int | None) -> None:
    connection = Refusing(refusal(code), 1)
    with pytest.raises(sqlite3.OperationalError):
        _sqlite._retry_while_busy(connection, "PRAGMA journal_mode = WAL")
    assert connection.tries == 1


def test_retries_of_a_busy_database_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sqlite, "_PATIENCE_SECONDS", 0.02)
    connection = Refusing(refusal(sqlite3.SQLITE_BUSY), 1_000_000)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        _sqlite._retry_while_busy(connection, "PRAGMA journal_mode = WAL")
    assert 1 < connection.tries < 10
