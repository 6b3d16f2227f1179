import pytest
from helpdesk.users.models import User
from httpx2 import AsyncClient

pytestmark = pytest.mark.anyio


async def test_open_and_close(client: AsyncClient, login: dict[str, str]) -> None:
    created = await client.post("tickets", headers=login, json={"title": "No ink"})
    assert (created.status_code, created.json()["is_open"]) == (201, True)
    path = f"tickets/{created.json()['id']}/close"
    closed = await client.post(path, headers=login)
    assert closed.json() == created.json() | {"is_open": False}
    assert (await client.get("tickets", headers=login)).json() == [closed.json()]


async def test_unknown_ticket(client: AsyncClient, user: User, login: dict[str, str]) -> None:
    answer = await client.post("tickets/999999/close", headers=login)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


async def test_invalid_ticket(client: AsyncClient, login: dict[str, str]) -> None:
    answer = await client.post("tickets", headers=login, json={"title": ""})
    assert answer.status_code == 422
    assert answer.json()["error"]["message"].startswith("body.title: ")


async def test_unknown_path(client: AsyncClient) -> None:
    answer = await client.get("nothing")
    assert answer.json() == {"error": {"code": "http_error", "message": "Not Found"}}
