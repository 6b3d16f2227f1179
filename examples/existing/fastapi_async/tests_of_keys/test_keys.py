import helpdesk.main
import pytest
from alembic import command
from alembic.config import Config
from helpdesk.tickets.models import Ticket
from helpdesk.users.models import User
from httpx2 import AsyncClient
from sqlalchemy.ext.asyncio import AsyncSession

from msk_auth.testing import audit_routes

pytestmark = pytest.mark.anyio


async def key_of(client: AsyncClient, login: dict[str, str], scopes: list[str]) -> dict[str, str]:
    answer = await client.post("keys", headers=login, json={"name": "a script", "scopes": scopes})
    assert answer.status_code == 201
    return {"Authorization": f"Bearer {answer.json()['key']}"}


async def test_a_key_reaches_the_tickets_and_no_more(
    client: AsyncClient, admin: User, login: dict[str, str]
) -> None:
    key = await key_of(client, login, ["tickets:read"])
    assert (await client.get("tickets", headers=key)).json() == []
    refused = await client.post("tickets", headers=key, json={"title": "No ink"})
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "permission_denied"
    # The application's own dependency knows no keys.
    for path in ("me", "users"):
        answer = await client.get(path, headers=key)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "not_authenticated")


async def test_an_admins_key_closes_tickets_of_others_only_with_that_scope(
    client: AsyncClient, db: AsyncSession, user: User, login: dict[str, str]
) -> None:
    other = User(email="bob@example.com", password_hash="-")
    db.add(other)
    user.role = "admin"
    await db.flush()
    ticket = Ticket(title="No ink", user_id=other.id)
    db.add(ticket)
    await db.commit()
    path = f"tickets/{ticket.id}/close"
    narrow = await key_of(client, login, ["tickets:write"])
    assert (await client.post(path, headers=narrow)).status_code == 404
    wide = await key_of(client, login, ["tickets:write", "tickets:close_any"])
    assert (await client.post(path, headers=wide)).status_code == 200


async def test_a_revoked_key_is_refused_at_once(client: AsyncClient, login: dict[str, str]) -> None:
    key = await key_of(client, login, ["tickets:read"])
    (listed,) = (await client.get("keys", headers=login)).json()["items"]
    assert (await client.post(f"keys/{listed['id']}/revoke", headers=login)).is_success
    answer = await client.get("tickets", headers=key)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "key_revoked")


async def test_a_key_of_an_inactive_user_is_refused(
    client: AsyncClient, db: AsyncSession, user: User, login: dict[str, str]
) -> None:
    key = await key_of(client, login, ["tickets:read"])
    user.is_active = False
    await db.commit()
    answer = await client.get("tickets", headers=key)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "not_authenticated")


def test_every_other_route_is_known() -> None:
    pages = ["/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc", "/healthz"]
    audit_routes(
        helpdesk.main.app,
        public=[*pages, "/api/v1/login"],
        own_guard=["/api/v1/me", "/api/v1/me/password", "/api/v1/users"],
    )


def test_the_migrations_are_complete(alembic: Config) -> None:
    command.check(alembic)
