import os
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from argon2 import PasswordHasher, profiles

folder = tempfile.TemporaryDirectory()
database_path = Path(folder.name, "wiki.db")
os.environ["WIKI_DATABASE_URL"] = f"sqlite+aiosqlite:///{database_path}"

from litestar import Litestar  # noqa: E402
from litestar.testing import TestClient  # noqa: E402
from wiki.app import create_app  # noqa: E402 - with the settings above

PASSWORD = "correct horse battery"
PASSWORD_HASH = PasswordHasher.from_parameters(profiles.CHEAPEST).hash(PASSWORD)


@pytest.fixture(scope="session")
def client() -> Iterator[TestClient[Litestar]]:
    with TestClient(create_app()) as client:
        yield client
    folder.cleanup()


@pytest.fixture
def name(client: TestClient[Litestar]) -> str:
    return new_user()


@pytest.fixture
def login(client: TestClient[Litestar], name: str) -> dict[str, str]:
    return log_in(client, name)


@pytest.fixture
def other(client: TestClient[Litestar]) -> dict[str, str]:
    """The login of another user."""
    return log_in(client, new_user())


def new_user() -> str:
    name = str(uuid4())
    change_database(
        "INSERT INTO users (name, password_hash, is_active, is_editor, created_at)"
        f" VALUES ('{name}', '{PASSWORD_HASH}', 1, 0, '2026-01-01 00:00:00.000000')"
    )
    return name


def log_in(client: TestClient[Litestar], name: str, password: str = PASSWORD) -> dict[str, str]:
    answer = client.post("/login", json={"name": name, "password": password})
    assert answer.status_code == 204
    cookie = answer.cookies["session"]
    client.cookies.clear()
    return {"Cookie": f"session={cookie}"}


def change_database(statement: str) -> None:
    with sqlite3.connect(database_path) as connection:
        connection.execute(statement)
    connection.close()
