"""A shop's stock: people log in to its pages, and a script could count what is there."""

from typing import Any

from flask import Flask

from .api import api
from .auth import auth as logins
from .errors import register_errors
from .extensions import csrf, db, login_manager, migrate
from .main import main
from .models import User


@login_manager.user_loader
def load_user(user_id: str) -> User | None:
    user = db.session.get(User, int(user_id))
    return user if user is not None and user.is_active else None


def create_app(config: dict[str, Any] | None = None) -> Flask:
    app = Flask(__name__)
    app.config.from_object("shop.config.Config")
    app.config.from_mapping(config)
    db.init_app(app)
    migrate.init_app(app, db)
    login_manager.init_app(app)
    csrf.init_app(app)
    app.register_blueprint(logins)
    app.register_blueprint(main)
    app.register_blueprint(api)
    register_errors(app)
    return app
