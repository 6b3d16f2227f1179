"""Prepared statements of the service: their rows, and an outage that stays an outage."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import bindparam, literal, select
from sqlalchemy.exc import OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from msk_auth.errors import StoreUnavailable
from task_service.db import schema
from task_service.db.engine import Database

pytestmark = pytest.mark.anyio

ECHO = select(bindparam("word", type_=schema.users.c.id.type).label("word"), literal(1).label("n"))


class Broken:
    """Stands for a store whose reads fail."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def prepare(self, _statement: object) -> Any:
        async def read(**_values: Any) -> list[Any]:
            raise self._error

        return read

    async def aclose(self) -> None:
        """Has nothing to close."""


async def test_a_statement_returns_its_rows(tmp_path: Path) -> None:
    db = Database.open(f"sqlite:///{tmp_path}/data.db")
    read = db.prepare(ECHO)
    for _ in range(2):
        assert [tuple(row) for row in await read(word="a")] == [("a", 1)]
    await db.close()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TimeoutError(), StoreUnavailable),
        (OSError("the file was replaced"), StoreUnavailable),
        (PoolTimeout(), StoreUnavailable),
        (OperationalError("SELECT", {}, Exception()), StoreUnavailable),
        (ProgrammingError("SELECT", {}, Exception()), ProgrammingError),
    ],
)
async def test_an_outage_is_told_from_a_mistake(
    tmp_path: Path, error: Exception, expected: type[Exception]
) -> None:
    db = Database.open(f"sqlite:///{tmp_path}/data.db")
    db.read_through(cast("Any", Broken(error)))
    with pytest.raises(expected):
        await db.prepare(ECHO)(word="a")
    await db.close()
