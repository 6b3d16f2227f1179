from conftest import change_database
from litestar import Litestar
from litestar.testing import TestClient

from msk_auth.testing import list_routes


def key_of(
    client: TestClient[Litestar], login: dict[str, str], scopes: list[str]
) -> dict[str, str]:
    new = {"name": "a script", "scopes": scopes}
    answer = client.post("/keys", headers=login, json=new)
    assert answer.status_code == 201
    return {"Authorization": f"Bearer {answer.json()['key']}"}


def test_a_key_reaches_the_pages_and_no_more(
    client: TestClient[Litestar], login: dict[str, str]
) -> None:
    key = key_of(client, login, ["pages:read"])
    client.post("/pages", headers=login, json={"title": "Emma"})
    client.cookies.clear()
    assert client.get("/pages", headers=key).json() == ["Emma"]
    # The cookie of that answer: Litestar opens an empty session for every request.
    assert client.cookies["session"]
    assert client.get("/pages").status_code == 401
    client.cookies.clear()
    refused = client.post("/pages", headers=key, json={"title": "Persuasion"})
    assert (refused.status_code, refused.json()["status_code"]) == (403, 403)
    # Litestar's own middleware knows no keys.
    assert client.put("/password", headers=key, json={"old": "", "new": ""}).status_code == 401
    assert client.post("/keys", headers=key, json={"name": "another"}).status_code == 403


def test_an_editor_s_key_needs_the_permission_to_remove_any_page(
    client: TestClient[Litestar], name: str, login: dict[str, str], other: dict[str, str]
) -> None:
    change_database(f"UPDATE users SET is_editor = 1 WHERE name = '{name}'")
    page = client.post("/pages", headers=other, json={"title": "Emma"}).json()
    few = key_of(client, login, ["pages:write"])
    assert client.delete(f"/pages/{page}", headers=few).status_code == 404
    more = key_of(client, login, ["pages:write", "pages:remove_any"])
    assert client.delete(f"/pages/{page}", headers=more).status_code == 204


def test_a_revoked_key_is_refused_at_once(
    client: TestClient[Litestar], login: dict[str, str]
) -> None:
    key = key_of(client, login, ["pages:read"])
    assert client.get("/pages", headers=key).status_code == 200
    (listed,) = client.get("/keys", headers=login).json()["items"]
    assert client.post(f"/keys/{listed['id']}/revoke", headers=login).status_code == 200
    answer = client.get("/pages", headers=key)
    assert (answer.status_code, "revoked" in answer.json()["detail"]) == (401, True)


def test_a_session_that_ended_makes_no_key(
    client: TestClient[Litestar], login: dict[str, str]
) -> None:
    assert client.post("/logout", headers=login).status_code == 204
    assert client.post("/keys", headers=login, json={"name": "late"}).status_code == 401


def test_a_key_of_an_inactive_user_is_refused(
    client: TestClient[Litestar], name: str, login: dict[str, str]
) -> None:
    key = key_of(client, login, ["pages:read"])
    change_database(f"UPDATE users SET is_active = 0 WHERE name = '{name}'")
    assert client.get("/pages", headers=key).status_code == 401


def test_every_other_route_is_known(client: TestClient[Litestar]) -> None:
    report = list_routes(client.app)
    paths = {
        access: {route.path for route in report.routes if route.access == access}
        for access in ("public", "the application's own guard")
    }
    assert paths["public"] == {"/login"}
    assert {"/logout", "/password"} <= paths["the application's own guard"]
    assert not report.undeclared
