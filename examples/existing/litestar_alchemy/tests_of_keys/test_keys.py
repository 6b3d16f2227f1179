from advanced_alchemy.extensions.litestar import AlembicCommands
from conftest import update_user
from litestar import Litestar
from litestar.testing import TestClient

from msk_auth.testing import list_routes


def key_of(
    client: TestClient[Litestar], login: dict[str, str], scopes: list[str]
) -> dict[str, str]:
    new = {"name": "a script", "scopes": scopes}
    answer = client.post("/api/keys", headers=login, json=new)
    assert answer.status_code == 201
    return {"Authorization": f"Bearer {answer.json()['key']}"}


def test_a_key_reaches_the_books_and_no_more(
    client: TestClient[Litestar], email: str, login: dict[str, str]
) -> None:
    update_user(email, "is_admin = 1")
    key = key_of(client, login, ["books:read"])
    assert client.get("/api/books", headers=key).json() == []
    refused = client.post("/api/books", headers=key, json={"title": "Emma"})
    assert (refused.status_code, refused.json()["ok"]) == (403, False)
    # Litestar's own middleware knows no keys.
    for path in ("/api/users/me", "/api/users"):
        assert client.get(path, headers=key).status_code == 401


def test_a_token_in_the_header_is_a_login_too(
    client: TestClient[Litestar], login: dict[str, str]
) -> None:
    bearer = login["Cookie"].partition("=")[2]
    answer = client.get("/api/books", headers={"Authorization": f"Bearer {bearer}"})
    assert answer.json() == []


def test_a_revoked_key_is_refused_at_once(
    client: TestClient[Litestar], login: dict[str, str]
) -> None:
    key = key_of(client, login, ["books:read", "books:write"])
    added = client.post("/api/books", headers=key, json={"title": "Emma"})
    assert client.get("/api/books", headers=login).json() == [added.json()]
    (listed,) = client.get("/api/keys", headers=login).json()["items"]
    assert client.post(f"/api/keys/{listed['id']}/revoke", headers=login).is_success
    answer = client.get("/api/books", headers=key)
    assert (answer.status_code, answer.json()["ok"]) == (401, False)
    assert "revoked" in answer.json()["message"]


def test_a_key_of_an_inactive_user_is_refused(
    client: TestClient[Litestar], email: str, login: dict[str, str]
) -> None:
    key = key_of(client, login, ["books:read"])
    update_user(email, "is_active = 0")
    assert client.get("/api/books", headers=key).status_code == 401


def test_every_other_route_is_known(client: TestClient[Litestar]) -> None:
    report = list_routes(client.app)
    paths = {route.path for route in report.routes if route.access == "public"}
    assert paths == {"/api/login", "/api/logout", "/api/register", "/health"}
    own = {route.path for route in report.routes if route.access == "the application's own guard"}
    assert {path for path in own if not path.startswith("/schema")} == {
        "/api/users",
        "/api/users/me",
        "/api/users/me/password",
    }
    assert not report.undeclared


def test_the_migrations_are_complete(database: AlembicCommands) -> None:
    database.check()
