from datetime import UTC, datetime, timedelta
from uuid import uuid4

import jwt
import pytest
from conftest import PASSWORD
from fastapi.testclient import TestClient
from inventory.models import User
from inventory.settings import settings
from sqlmodel import Session


def test_log_in(client: TestClient, user: User) -> None:
    form = {"username": user.email, "password": PASSWORD}
    answer = client.post("/login/access-token", data=form)
    assert answer.json()["token_type"] == "bearer"
    login = {"Authorization": f"Bearer {answer.json()['access_token']}"}
    assert client.get("/users/me", headers=login).json() == {
        "id": str(user.id),
        "email": user.email,
        "is_active": True,
        "is_superuser": False,
    }


def test_wrong_password(client: TestClient, user: User) -> None:
    form = {"username": user.email, "password": "wrong"}
    answer = client.post("/login/access-token", data=form)
    assert (answer.status_code, answer.json()) == (400, {"detail": "Incorrect email or password"})


def test_no_login(client: TestClient) -> None:
    answer = client.get("/users/me")
    assert (answer.status_code, answer.json()) == (401, {"detail": "Not authenticated"})


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": datetime.now(UTC) - timedelta(minutes=1)},
        {"sub": "nobody"},
        {"sub": None},
    ],
)
def test_bad_token(client: TestClient, user: User, claims: dict[str, object]) -> None:
    payload = {"sub": str(user.id), "exp": datetime.now(UTC) + timedelta(minutes=1), **claims}
    token = jwt.encode(payload, settings.secret_key, "HS256")
    answer = client.get("/users/me", headers={"Authorization": f"Bearer {token}"})
    assert (answer.status_code, answer.json()) == (
        403,
        {"detail": "Could not validate credentials"},
    )


def test_token_of_a_deleted_user(client: TestClient) -> None:
    payload = {"sub": str(uuid4()), "exp": datetime.now(UTC) + timedelta(minutes=1)}
    token = jwt.encode(payload, settings.secret_key, "HS256")
    answer = client.get("/users/me", headers={"Authorization": f"Bearer {token}"})
    assert (answer.status_code, answer.json()) == (404, {"detail": "User not found"})


def test_inactive_user(
    client: TestClient, session: Session, user: User, login: dict[str, str]
) -> None:
    user.is_active = False
    session.commit()
    answer = client.get("/users/me", headers=login)
    assert (answer.status_code, answer.json()) == (400, {"detail": "Inactive user"})


def test_change_password(client: TestClient, user: User, login: dict[str, str]) -> None:
    new = {"current_password": PASSWORD, "new_password": "staple the correct battery"}
    assert client.patch("/users/me/password", headers=login, json=new).status_code == 204
    answer = client.patch("/users/me/password", headers=login, json=new)
    assert (answer.status_code, answer.json()) == (400, {"detail": "Incorrect password"})


def test_items(client: TestClient, login: dict[str, str]) -> None:
    item = client.post("/items", headers=login, json={"title": "A kettle"}).json()
    assert item["title"] == "A kettle"
    assert client.get("/items", headers=login).json() == [item]
    assert client.delete(f"/items/{item['id']}", headers=login).status_code == 204
    assert client.get("/items", headers=login).json() == []


def test_invalid_item(client: TestClient, login: dict[str, str]) -> None:
    answer = client.post("/items", headers=login, json={"title": ""})
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body", "title"]


def test_only_superusers_list_users(client: TestClient, login: dict[str, str]) -> None:
    answer = client.get("/users", headers=login)
    assert (answer.status_code, answer.json()) == (
        403,
        {"detail": "The user doesn't have enough privileges"},
    )


def test_superusers_list_users(client: TestClient, superuser: User, login: dict[str, str]) -> None:
    answer = client.get("/users", headers=login)
    assert str(superuser.id) in {user["id"] for user in answer.json()}


def test_health(client: TestClient) -> None:
    assert client.get("/health").json() == {"ok": True}


def test_openapi(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    assert document["components"]["securitySchemes"]["OAuth2PasswordBearer"]["type"] == "oauth2"
    assert document["paths"]["/users/me"]["get"]["security"] == [{"OAuth2PasswordBearer": []}]
