"""One database of each kind for the whole session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy.engine import URL
from tests.databases import mysql_database, postgres_database


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[URL]:
    with postgres_database() as url:
        yield url


@pytest.fixture(scope="session")
def mysql_url() -> Iterator[URL]:
    with mysql_database() as url:
        yield url
