import pytest
from conftest import PASSWORD, change_database, log_in
from litestar import Litestar
from litestar.testing import TestClient


def test_wrong_password(client: TestClient[Litestar], name: str) -> None:
    answer = client.post("/login", json={"name": name, "password": "wrong"})
    assert (answer.status_code, answer.json()["detail"]) == (401, "Wrong name or password.")


@pytest.mark.parametrize("header", [{}, {"Cookie": "session=x"}, {"Authorization": "Bearer x.y.z"}])
def test_no_login(client: TestClient[Litestar], header: dict[str, str]) -> None:
    answer = client.get("/pages", headers=header)
    assert (answer.status_code, answer.json()["status_code"]) == (401, 401)


def test_pages(client: TestClient[Litestar], login: dict[str, str]) -> None:
    written = client.post("/pages", headers=login, json={"title": "Emma"})
    assert written.status_code == 201
    assert client.get("/pages", headers=login).json() == ["Emma"]
    removed = client.delete(f"/pages/{written.json()}", headers=login)
    assert removed.status_code == 204
    assert client.get("/pages", headers=login).json() == []


def test_only_editors_remove_the_pages_of_others(
    client: TestClient[Litestar], name: str, login: dict[str, str], other: dict[str, str]
) -> None:
    page = client.post("/pages", headers=other, json={"title": "Emma"}).json()
    assert client.delete(f"/pages/{page}", headers=login).status_code == 404
    change_database(f"UPDATE users SET is_editor = 1 WHERE name = '{name}'")
    assert client.delete(f"/pages/{page}", headers=login).status_code == 204


def test_logout(client: TestClient[Litestar], login: dict[str, str]) -> None:
    assert client.post("/logout", headers=login).status_code == 204
    assert client.get("/pages", headers=login).status_code == 401


def test_new_password(client: TestClient[Litestar], name: str, login: dict[str, str]) -> None:
    change = {"old": PASSWORD, "new": "another password"}
    assert client.put("/password", headers=login, json=change).status_code == 204
    assert client.put("/password", headers=login, json=change).status_code == 401
    log_in(client, name, "another password")


def test_inactive_user(client: TestClient[Litestar], name: str, login: dict[str, str]) -> None:
    change_database(f"UPDATE users SET is_active = 0 WHERE name = '{name}'")
    assert client.get("/pages", headers=login).status_code == 401
