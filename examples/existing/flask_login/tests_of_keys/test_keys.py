from collections.abc import Callable

import flask_migrate
import pytest
from conftest import MIGRATIONS
from flask import Flask
from flask.testing import FlaskClient
from shop.extensions import db
from shop.models import Product, User

from msk_auth.testing import audit_routes


@pytest.fixture
def make_key(client: FlaskClient, login: dict[str, str]) -> Callable[..., dict[str, str]]:
    def make(*scopes: str) -> dict[str, str]:
        new = {"name": "a script", "scopes": scopes}
        answer = client.post("/api/keys", headers=login, json=new)
        assert answer.json is not None
        return {"Authorization": f"Bearer {answer.json['key']}"}

    return make


@pytest.fixture
def script(app: Flask) -> FlaskClient:
    """A client without the cookies of the browser."""
    return app.test_client()


def test_a_key_updates_a_product(
    app: Flask, script: FlaskClient, user: User, make_key: Callable[..., dict[str, str]]
) -> None:
    with app.app_context():
        product = Product(name="Kettle", user_id=user.id)
        db.session.add(product)
        db.session.commit()
        path = f"/api/products/{product.id}"
    new = {"in_stock": 3}
    assert script.patch(path, headers=make_key("products:write"), json=new).status_code == 200
    refused = script.patch(path, headers=make_key("products:read"), json=new)
    assert (refused.status_code, refused.json) == (403, {"error": "Forbidden"})
    assert 'scope="products:write"' in refused.headers["WWW-Authenticate"]


def test_an_administrators_key_updates_products_of_others_only_with_that_scope(
    app: Flask, script: FlaskClient, user: User, make_key: Callable[..., dict[str, str]]
) -> None:
    with app.app_context():
        other = User(name="bob", password_hash="-")
        db.session.add(other)
        db.session.get_one(User, user.id).is_admin = True
        db.session.flush()
        product = Product(name="Kettle", user_id=other.id)
        db.session.add(product)
        db.session.commit()
        path = f"/api/products/{product.id}"
    new = {"in_stock": 3}
    assert script.patch(path, headers=make_key("products:write"), json=new).status_code == 404
    wide = make_key("products:write", "products:write_any")
    assert script.patch(path, headers=wide, json=new).status_code == 200


def test_a_key_reaches_no_page(
    script: FlaskClient, make_key: Callable[..., dict[str, str]]
) -> None:
    key = make_key()
    for path in ("/", "/users"):
        assert script.get(path, headers=key).location == "/login"


def test_a_page_of_another_site_makes_no_key(client: FlaskClient, login: dict[str, str]) -> None:
    answer = client.post("/api/keys", json={"name": "a script"})
    assert (answer.status_code, answer.json) == (400, {"error": "Bad Request"})


def test_a_password_that_the_browser_keeps_is_no_bearer(
    client: FlaskClient, login: dict[str, str]
) -> None:
    answer = client.post("/products", data={"name": "Kettle"}, auth=("staging", "password"))
    assert (answer.status_code, answer.mimetype) == (400, "text/html")


def test_a_revoked_key_is_refused_at_once(
    client: FlaskClient,
    script: FlaskClient,
    login: dict[str, str],
    make_key: Callable[..., dict[str, str]],
) -> None:
    key = make_key("products:read")
    assert script.get("/api/products", headers=key).json == []
    listed = client.get("/api/keys").json
    assert listed is not None
    path = f"/api/keys/{listed['items'][0]['id']}/revoke"
    assert client.post(path, headers=login).status_code == 200
    refused = script.get("/api/products", headers=key)
    assert (refused.status_code, refused.json) == (401, {"error": "Unauthorized"})
    assert 'error="invalid_token"' in refused.headers["WWW-Authenticate"]


def test_every_other_route_is_known(app: Flask) -> None:
    audit_routes(
        app,
        public=["/login", "/static/<path:filename>"],
        own_guard=["/", "/logout", "/password", "/products", "/users"],
    )


def test_the_migrations_are_complete(app: Flask) -> None:
    with app.app_context():
        flask_migrate.check(MIGRATIONS)
