from flask import Flask
from flask.testing import FlaskClient
from shop.extensions import db
from shop.models import Product, User


def add_product(app: Flask, user_id: int) -> int:
    with app.app_context():
        product = Product(name="Kettle", user_id=user_id)
        db.session.add(product)
        db.session.commit()
        return product.id


def test_list_and_update(
    app: Flask, client: FlaskClient, user: User, login: dict[str, str]
) -> None:
    product_id = add_product(app, user.id)
    updated = client.patch(f"/api/products/{product_id}", headers=login, json={"in_stock": 3})
    assert updated.json == {"id": product_id, "name": "Kettle", "in_stock": 3}
    assert client.get("/api/products").json == [updated.json]


def test_no_login(client: FlaskClient) -> None:
    answer = client.get("/api/products")
    assert answer.status_code == 401
    assert answer.json is not None
    assert answer.json["error"] == "Unauthorized"


def test_inactive_user(app: Flask, client: FlaskClient, user: User, login: dict[str, str]) -> None:
    with app.app_context():
        db.session.get_one(User, user.id).is_active = False
        db.session.commit()
    assert client.get("/api/products").status_code == 401


def test_request_of_another_site(
    app: Flask, client: FlaskClient, user: User, login: dict[str, str]
) -> None:
    product_id = add_product(app, user.id)
    answer = client.patch(f"/api/products/{product_id}", json={"in_stock": 3})
    assert (answer.status_code, answer.json) == (400, {"error": "Bad Request"})


def test_product_of_another_user(
    app: Flask, client: FlaskClient, user: User, login: dict[str, str]
) -> None:
    with app.app_context():
        other = User(name=f"not {user.name}", password_hash="")
        db.session.add(other)
        db.session.commit()
        product_id = add_product(app, other.id)
    answer = client.patch(f"/api/products/{product_id}", headers=login, json={"in_stock": 3})
    assert (answer.status_code, answer.json) == (404, {"error": "Not Found"})
