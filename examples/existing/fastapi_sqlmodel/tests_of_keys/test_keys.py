from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import inventory.main
import jwt
import pytest
from alembic import command
from alembic.config import Config
from fastapi.testclient import TestClient
from inventory.deps import get_session
from inventory.models import Item, User
from inventory.settings import settings
from sqlmodel import Session, SQLModel, create_engine


def key_of(client: TestClient, login: dict[str, str], scopes: list[str]) -> dict[str, str]:
    answer = client.post("/keys", headers=login, json={"name": "a script", "scopes": scopes})
    assert answer.status_code == 201
    return {"Authorization": f"Bearer {answer.json()['key']}"}


def test_a_key_reaches_the_items_and_no_more(
    client: TestClient, superuser: User, login: dict[str, str]
) -> None:
    key = key_of(client, login, ["items:read"])
    assert client.get("/items", headers=key).json() == []
    refused = client.post("/items", headers=key, json={"title": "A kettle"})
    assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")
    # The application's own dependency knows no keys.
    for path in ("/users/me", "/users"):
        answer = client.get(path, headers=key)
        assert answer.json() == {"detail": "Could not validate credentials"}


def test_a_superusers_key_deletes_items_of_others_only_with_that_scope(
    client: TestClient, session: Session, superuser: User, login: dict[str, str]
) -> None:
    other = User(email=f"{uuid4()}@example.com", hashed_password=superuser.hashed_password)
    session.add(other)
    session.commit()
    item = Item(title="A kettle", owner_id=other.id)
    session.add(item)
    session.commit()
    path = f"/items/{item.id}"
    narrow = key_of(client, login, ["items:read", "items:write"])
    assert client.delete(path, headers=narrow).status_code == 404
    wide = key_of(client, login, ["items:read", "items:write", "items:delete_any"])
    assert client.delete(path, headers=wide).status_code == 204


def test_a_revoked_key_is_refused_at_once(client: TestClient, login: dict[str, str]) -> None:
    key = key_of(client, login, ["items:read"])
    (listed,) = client.get("/keys", headers=login).json()["items"]
    assert client.post(f"/keys/{listed['id']}/revoke", headers=login).is_success
    assert client.get("/items", headers=key).json()["code"] == "key_revoked"


@pytest.mark.parametrize("subject", ["ada@example.com", str(uuid4())])
def test_a_token_of_another_purpose_is_refused(client: TestClient, subject: str) -> None:
    claims = {"sub": subject, "exp": datetime.now(UTC) + timedelta(minutes=1)}
    token = jwt.encode(claims, settings.secret_key, "HS256")
    answer = client.get("/items", headers={"Authorization": f"Bearer {token}"})
    assert (answer.status_code, answer.json()["code"]) == (401, "token_revoked")


def test_a_session_of_a_test_reaches_keys_and_logins(
    client: TestClient, user: User, login: dict[str, str], tmp_path: Path
) -> None:
    key = key_of(client, login, ["items:read"])
    other = create_engine(f"sqlite:///{tmp_path / 'tests.db'}")
    SQLModel.metadata.create_all(other)

    def session_of_test() -> Iterator[Session]:
        with Session(other) as session:
            yield session

    inventory.main.app.dependency_overrides[get_session] = session_of_test
    try:
        for credential in (key, login):
            assert client.get("/items", headers=credential).status_code == 401
        with Session(other) as session:
            session.add(User(**user.model_dump()))
            session.commit()
        for credential in (key, login):
            assert client.get("/items", headers=credential).json() == []
    finally:
        inventory.main.app.dependency_overrides.clear()
        other.dispose()


def test_the_migrations_are_complete() -> None:
    command.check(Config(Path(inventory.main.__file__).parents[1] / "alembic.ini"))
