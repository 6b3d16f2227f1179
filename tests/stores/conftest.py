"""One database of each kind for the whole session, and time for it to answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.engine import URL
from tests.databases import mysql_database, postgres_database
from tests.stores.support import sqlite_url

_LIMITS = (
    "batching.READ_SECONDS",
    "batching.STALL_SECONDS",
    "stores.sqlalchemy._shared.SharedStore.read_seconds",
    "stores.sqlalchemy._shared.SharedStore.write_seconds",
    "stores.sqlalchemy._async.store.REGISTER_SECONDS",
    "stores.sqlalchemy._sync.store.REGISTER_SECONDS",
    "stores.sqlalchemy._sqlite._FORK_SECONDS",
    "stores.sqlalchemy._sqlite._PATIENCE_SECONDS",
)


@pytest.fixture(autouse=True)
def _patient_stores() -> Iterator[None]:
    """No test fails because a loaded machine took longer than a store lets its database take. Tests of that set a time."""
    with pytest.MonkeyPatch.context() as patch:
        for limit in _LIMITS:
            patch.setattr(f"msk_auth.{limit}", 60)
        yield


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[URL]:
    with postgres_database() as url:
        yield url


@pytest.fixture(scope="session")
def mariadb_url() -> Iterator[URL]:
    with mysql_database() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> URL:
    """Each database in turn, as the tests before left it."""
    if request.param == "sqlite":
        return sqlite_url(tmp_path)
    url: URL = request.getfixturevalue(f"{request.param}_url")
    return url
