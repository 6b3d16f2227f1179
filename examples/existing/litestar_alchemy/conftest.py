import asyncio
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

folder = tempfile.TemporaryDirectory()
database_path = Path(folder.name, "club.db")
os.environ["CLUB_DATABASE_URL"] = f"sqlite+aiosqlite:///{database_path}"
os.environ["CLUB_HASH_MEMORY"] = "32"

from advanced_alchemy.extensions.litestar import AlembicCommands  # noqa: E402
from club.app import create_app  # noqa: E402 - with the settings above
from club.db import alchemy  # noqa: E402
from litestar import Litestar  # noqa: E402
from litestar.testing import TestClient  # noqa: E402

PASSWORD = "correct horse battery"


@pytest.fixture(scope="session", autouse=True)
def database() -> Iterator[AlembicCommands]:
    commands = AlembicCommands(alchemy)
    commands.upgrade()
    yield commands
    asyncio.run(alchemy.get_engine().dispose())
    folder.cleanup()


@pytest.fixture(scope="session")
def client(database: AlembicCommands) -> Iterator[TestClient[Litestar]]:
    with TestClient(create_app()) as client:
        yield client


@pytest.fixture
def email(client: TestClient[Litestar]) -> str:
    email = f"{uuid4()}@example.com"
    data = {"email": email, "password": PASSWORD}
    assert client.post("/api/register", json=data).status_code == 201
    return email


@pytest.fixture
def login(client: TestClient[Litestar], email: str) -> dict[str, str]:
    answer = client.post("/api/login", json={"email": email, "password": PASSWORD})
    cookie = answer.cookies["token"]
    client.cookies.clear()
    return {"Cookie": f"token={cookie}"}


def update_user(email: str, change: str) -> None:
    with sqlite3.connect(database_path) as connection:
        connection.execute(f"UPDATE users SET {change} WHERE email = ?", [email])
    connection.close()
