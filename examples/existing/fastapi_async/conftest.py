import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from alembic import command
from alembic.config import Config

folder = tempfile.TemporaryDirectory()
os.environ["HELPDESK_DATABASE_URL"] = f"sqlite+aiosqlite:///{folder.name}/helpdesk.db"
os.environ["HELPDESK_PASSWORD_HASH_ROUNDS"] = "1"

import helpdesk.main  # noqa: E402 - with the settings above
from helpdesk.database import engine, new_session  # noqa: E402
from helpdesk.users.models import User  # noqa: E402
from helpdesk.users.security import create_access_token, hash_password  # noqa: E402
from httpx2 import ASGITransport, AsyncClient  # noqa: E402
from sqlalchemy.ext.asyncio import AsyncSession  # noqa: E402

PASSWORD = "correct horse battery"


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def alembic() -> Config:
    return Config(Path(helpdesk.main.__file__).parents[1] / "alembic.ini")


@pytest.fixture(scope="session", autouse=True)
def database(alembic: Config) -> Iterator[None]:
    command.upgrade(alembic, "head")
    yield
    asyncio.run(engine.dispose())
    folder.cleanup()


@pytest.fixture
async def client() -> AsyncIterator[AsyncClient]:
    transport = ASGITransport(app=helpdesk.main.app)
    async with AsyncClient(transport=transport, base_url="http://test/api/v1/") as client:
        yield client
    await engine.dispose()


@pytest.fixture
async def db() -> AsyncIterator[AsyncSession]:
    async with new_session() as session:
        yield session


@pytest.fixture
async def user(db: AsyncSession) -> User:
    user = User(email=f"{uuid4()}@example.com", password_hash=hash_password(PASSWORD))
    db.add(user)
    await db.commit()
    return user


@pytest.fixture
async def admin(db: AsyncSession, user: User) -> User:
    user.role = "admin"
    await db.commit()
    return user


@pytest.fixture
def login(user: User) -> dict[str, str]:
    return {"Authorization": f"Bearer {create_access_token(user)}"}
