import pytest
from conftest import PASSWORD, update_user
from litestar import Litestar
from litestar.testing import TestClient


def test_log_in(client: TestClient[Litestar], email: str) -> None:
    answer = client.post("/api/login", json={"email": email, "password": PASSWORD})
    header = {"Authorization": answer.headers["Authorization"]}
    client.cookies.clear()
    assert client.get("/api/users/me", headers=header).json()["email"] == email


def test_wrong_password(client: TestClient[Litestar], email: str) -> None:
    answer = client.post("/api/login", json={"email": email, "password": "wrong"})
    message = {"ok": False, "message": "Wrong address or password."}
    assert (answer.status_code, answer.json()) == (401, message)


def test_taken_address(client: TestClient[Litestar], email: str) -> None:
    answer = client.post("/api/register", json={"email": email, "password": PASSWORD})
    assert (answer.status_code, answer.json()["message"]) == (409, "This address is taken.")


@pytest.mark.parametrize("path", ["/api/users/me", "/api/users", "/api/books"])
@pytest.mark.parametrize("header", [{}, {"Authorization": "Bearer x.y.z"}, {"Cookie": "token=x"}])
def test_no_login(client: TestClient[Litestar], path: str, header: dict[str, str]) -> None:
    answer = client.get(path, headers=header)
    assert (answer.status_code, answer.json()["ok"]) == (401, False)


@pytest.mark.parametrize("path", ["/api/users/me", "/api/books"])
def test_inactive_user(
    client: TestClient[Litestar], email: str, login: dict[str, str], path: str
) -> None:
    assert client.get(path, headers=login).status_code == 200
    update_user(email, "is_active = 0")
    answer = client.get(path, headers=login)
    assert (answer.status_code, answer.json()["ok"]) == (401, False)


def test_change_password(client: TestClient[Litestar], login: dict[str, str]) -> None:
    new = {"old": PASSWORD, "new": "staple the battery"}
    path = "/api/users/me/password"
    assert client.put(path, headers=login, json=new).status_code == 204
    answer = client.put(path, headers=login, json=new)
    assert answer.json() == {"ok": False, "message": "Wrong password."}


def test_only_admins_list_users(
    client: TestClient[Litestar], email: str, login: dict[str, str]
) -> None:
    answer = client.get("/api/users", headers=login)
    message = {"ok": False, "message": "For administrators only."}
    assert (answer.status_code, answer.json()) == (403, message)
    update_user(email, "is_admin = 1")
    users = client.get("/api/users", headers=login).json()
    assert email in {user["email"] for user in users}


def test_books(client: TestClient[Litestar], login: dict[str, str]) -> None:
    added = client.post("/api/books", headers=login, json={"title": "Emma"})
    assert (added.status_code, added.json()["title"]) == (201, "Emma")
    assert client.get("/api/books", headers=login).json() == [added.json()]
    path = f"/api/books/{added.json()['id']}"
    assert client.delete(path, headers=login).status_code == 204
    answer = client.delete(path, headers=login)
    assert (answer.status_code, answer.json()["message"]) == (404, "No such book.")


def test_book_without_a_title(client: TestClient[Litestar], login: dict[str, str]) -> None:
    answer = client.post("/api/books", headers=login, json={"title": ""})
    message = {"ok": False, "message": "A book has a title."}
    assert (answer.status_code, answer.json()) == (422, message)


def test_health(client: TestClient[Litestar]) -> None:
    assert client.get("/health").json() == {"ok": True}


def test_openapi(client: TestClient[Litestar]) -> None:
    document = client.get("/schema/openapi.json").json()
    assert document["components"]["securitySchemes"]["BearerToken"]["bearerFormat"] == "JWT"
    assert document["paths"]["/api/users/me"]["get"].get("security") is None
