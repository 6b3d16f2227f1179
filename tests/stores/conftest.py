"""One database of each kind for the whole session."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest
from sqlalchemy import URL
from tests.databases import mysql_database, postgres_database

from msk_auth.stores.sqlalchemy import _stores


@pytest.fixture(scope="session", autouse=True)
def _patient_reads() -> Iterator[None]:
    """No test fails because a loaded machine read slowly. Tests of the deadline set one."""
    with mock.patch.object(_stores, "READ_SECONDS", 60.0):
        yield


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[URL]:
    with postgres_database() as url:
        yield url


@pytest.fixture(scope="session")
def mysql_url() -> Iterator[URL]:
    with mysql_database() as url:
        yield url
