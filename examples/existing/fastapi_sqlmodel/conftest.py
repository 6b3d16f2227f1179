import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from alembic import command
from alembic.config import Config
from argon2 import PasswordHasher, profiles
from fastapi.testclient import TestClient

folder = tempfile.TemporaryDirectory()
os.environ["INVENTORY_DATABASE_URL"] = f"sqlite:///{folder.name}/inventory.db"

import inventory.main  # noqa: E402 - with the settings above
from inventory.db import engine  # noqa: E402
from inventory.models import User  # noqa: E402
from inventory.security import create_access_token  # noqa: E402
from sqlmodel import Session  # noqa: E402

PASSWORD = "correct horse battery"


@pytest.fixture(scope="session", autouse=True)
def database() -> Iterator[None]:
    command.upgrade(Config(Path(inventory.main.__file__).parents[1] / "alembic.ini"), "head")
    yield
    engine.dispose()
    folder.cleanup()


@pytest.fixture(scope="session")
def password_hash() -> str:
    return PasswordHasher.from_parameters(profiles.CHEAPEST).hash(PASSWORD)


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(inventory.main.app) as client:
        yield client


@pytest.fixture
def session() -> Iterator[Session]:
    with Session(engine, expire_on_commit=False) as session:
        yield session


@pytest.fixture
def user(session: Session, password_hash: str) -> User:
    user = User(email=f"{uuid4()}@example.com", hashed_password=password_hash)
    session.add(user)
    session.commit()
    return user


@pytest.fixture
def superuser(session: Session, user: User) -> User:
    user.is_superuser = True
    session.commit()
    return user


@pytest.fixture
def login(user: User) -> dict[str, str]:
    return {"Authorization": f"Bearer {create_access_token(user)}"}
