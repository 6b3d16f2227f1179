import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import flask_migrate
import pytest
import shop
from flask import Flask
from flask.testing import FlaskClient
from shop.extensions import db
from shop.models import User

PASSWORD = "correct horse battery"
MIGRATIONS = str(Path(shop.__file__).parents[1] / "migrations")


@pytest.fixture(scope="session")
def app() -> Iterator[Flask]:
    with tempfile.TemporaryDirectory() as folder:
        config = {
            "SQLALCHEMY_DATABASE_URI": f"sqlite:///{Path(folder, 'shop.db')}",
            "PASSWORD_HASH_METHOD": "pbkdf2:sha256:1",
        }
        app = shop.create_app(config)
        with app.app_context():
            flask_migrate.upgrade(MIGRATIONS)
        yield app
        with app.app_context():
            db.engine.dispose()


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    return app.test_client()


@pytest.fixture
def user(app: Flask) -> User:
    with app.app_context():
        user = User(name=str(uuid4()))
        user.set_password(PASSWORD)
        db.session.add(user)
        db.session.commit()
        db.session.refresh(user)
    return user


@pytest.fixture
def csrf(client: FlaskClient) -> dict[str, str]:
    page = client.get("/login").text
    token = page.partition('name="csrf_token" value="')[2].partition('"')[0]
    return {"X-CSRFToken": token}


@pytest.fixture
def login(client: FlaskClient, user: User, csrf: dict[str, str]) -> dict[str, str]:
    """What a page of the shop sends with its requests."""
    form = {"name": user.name, "password": PASSWORD}
    assert client.post("/login", data=form, headers=csrf).location == "/"
    return csrf
