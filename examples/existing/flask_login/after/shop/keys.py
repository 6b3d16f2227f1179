from datetime import UTC

from flask import Flask, Request, request
from flask_login import current_user as browser_user

from msk_auth import Authenticator, Login, Owner
from msk_auth.integrations.flask import FlaskAuth
from msk_auth.stores.sqlalchemy import ModelUsers, SQLAlchemyKeyStore, api_key_table

from .extensions import csrf, db
from .models import User

api_keys = api_key_table(db.metadata)


def owner_of(user: User) -> Owner[None]:
    permissions = {"products:read", "products:write", *(["products:write_any"] * user.is_admin)}
    since = user.created_at.replace(tzinfo=UTC)
    return Owner(str(user.id), permissions, None, disabled=not user.is_active, since=since)


def login_of_session(_: Request) -> Login | None:
    return Login(browser_user.get_id()) if browser_user.is_authenticated else None


users = ModelUsers(User, owner_of, db.session.session_factory)
auth = FlaskAuth[None](logins=[login_of_session], own_csrf_protection=True, session=db.session)
current_user = auth.user(users)


def check_csrf() -> None:
    if request.authorization is None or request.authorization.type != "bearer":
        csrf.protect()


def init_app(app: Flask) -> None:
    store = SQLAlchemyKeyStore(lambda: db.engine, api_keys)
    auth.init_app(app, Authenticator(store, find_owner=users), errors="http")
    app.register_blueprint(auth.key_routes(url_prefix="/api/keys"))
    app.config["WTF_CSRF_CHECK_DEFAULT"] = False
    app.before_request(check_csrf)
