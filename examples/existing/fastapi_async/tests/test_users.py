from datetime import UTC, datetime, timedelta

import jwt
import pytest
from conftest import PASSWORD
from helpdesk.config import settings
from helpdesk.users.models import User
from httpx2 import AsyncClient
from sqlalchemy.ext.asyncio import AsyncSession

pytestmark = pytest.mark.anyio

NOT_AUTHENTICATED = {"error": {"code": "not_authenticated", "message": "Log in first."}}


async def test_log_in(client: AsyncClient, user: User) -> None:
    form = {"username": user.email, "password": PASSWORD}
    token = (await client.post("login", data=form)).json()["access_token"]
    answer = await client.get("me", headers={"Authorization": f"Bearer {token}"})
    assert answer.json() == {"id": user.id, "email": user.email, "role": "agent"}


async def test_wrong_password(client: AsyncClient, user: User) -> None:
    answer = await client.post("login", data={"username": user.email, "password": "wrong"})
    assert (answer.status_code, answer.json()) == (401, NOT_AUTHENTICATED)


@pytest.mark.parametrize("path", ["me", "users", "tickets"])
async def test_no_login(client: AsyncClient, path: str) -> None:
    answer = await client.get(path)
    assert (answer.status_code, answer.json()) == (401, NOT_AUTHENTICATED)
    assert answer.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize("path", ["me", "tickets"])
@pytest.mark.parametrize(
    "claims",
    [
        {"exp": datetime.now(UTC) - timedelta(minutes=1)},
        {"sub": "nobody"},
        {"sub": "999999"},
        {"type": "password_reset"},
    ],
    ids=["expired", "no id", "deleted", "other type"],
)
async def test_bad_token(
    client: AsyncClient, user: User, path: str, claims: dict[str, object]
) -> None:
    now = datetime.now(UTC)
    good = {"sub": str(user.id), "type": "access", "iat": now, "exp": now + timedelta(minutes=1)}
    token = jwt.encode(good | claims, settings.jwt_secret, "HS256")
    answer = await client.get(path, headers={"Authorization": f"Bearer {token}"})
    assert (answer.status_code, answer.json()) == (401, NOT_AUTHENTICATED)


@pytest.mark.parametrize("path", ["me", "tickets"])
async def test_inactive_user(
    client: AsyncClient, db: AsyncSession, user: User, login: dict[str, str], path: str
) -> None:
    user.is_active = False
    await db.commit()
    assert (await client.get(path, headers=login)).json() == NOT_AUTHENTICATED


async def test_change_password(client: AsyncClient, login: dict[str, str]) -> None:
    new = {"old": PASSWORD, "new": "staple the battery"}
    assert (await client.put("me/password", headers=login, json=new)).status_code == 204
    assert (await client.put("me/password", headers=login, json=new)).status_code == 403


async def test_admins_list_users(client: AsyncClient, admin: User, login: dict[str, str]) -> None:
    users = (await client.get("users", headers=login)).json()
    assert {"id": admin.id, "email": admin.email, "role": "admin"} in users


async def test_agents_do_not_list_users(client: AsyncClient, login: dict[str, str]) -> None:
    answer = await client.get("users", headers=login)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "permission_denied")
