from conftest import PASSWORD
from flask import Flask
from flask.testing import FlaskClient
from shop.extensions import db
from shop.models import User


def test_log_in_and_out(client: FlaskClient, user: User, login: dict[str, str]) -> None:
    assert f"Logged in as {user.name}" in client.get("/").text
    assert client.post("/logout", headers=login).location == "/login"
    assert client.get("/").location == "/login"


def test_wrong_password(client: FlaskClient, user: User, csrf: dict[str, str]) -> None:
    form = {"name": user.name, "password": "wrong"}
    assert "Wrong name or password." in client.post("/login", data=form, headers=csrf).text


def test_no_login(client: FlaskClient) -> None:
    answer = client.get("/users")
    assert (answer.status_code, answer.location) == (302, "/login")


def test_form_of_another_site(client: FlaskClient, login: dict[str, str]) -> None:
    answer = client.post("/products", data={"name": "Kettle"})
    assert answer.status_code == 400
    assert "<p>The CSRF token is missing.</p>" in answer.text


def test_add_a_product(client: FlaskClient, login: dict[str, str]) -> None:
    form = {"name": "Kettle"}
    page = client.post("/products", data=form, headers=login, follow_redirects=True)
    assert "<li>Kettle: 0</li>" in page.text


def test_change_password(
    app: Flask, client: FlaskClient, user: User, login: dict[str, str]
) -> None:
    form = {"old": PASSWORD, "new": "staple the battery"}
    assert client.post("/password", data=form, headers=login).location == "/"
    with app.app_context():
        assert db.session.get_one(User, user.id).check_password("staple the battery")


def test_only_admins_list_users(
    app: Flask, client: FlaskClient, user: User, login: dict[str, str]
) -> None:
    answer = client.get("/users")
    assert (answer.status_code, answer.mimetype) == (403, "text/html")
    assert "<h1>Forbidden</h1>" in answer.text
    with app.app_context():
        db.session.get_one(User, user.id).is_admin = True
        db.session.commit()
    assert f"<li>{user.name}</li>" in client.get("/users").text


def test_unknown_page(client: FlaskClient) -> None:
    answer = client.get("/nothing")
    assert (answer.status_code, answer.mimetype) == (404, "text/html")
    assert "<h1>Not Found</h1>" in answer.text
