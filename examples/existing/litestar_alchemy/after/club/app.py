from advanced_alchemy.extensions.litestar import SQLAlchemyPlugin
from litestar import Litestar, get
from litestar.exceptions import HTTPException

from .auth import jwt_auth
from .controllers import AccessController, BookController, UserController
from .db import alchemy
from .errors import on_http_exception
from .keys import auth


@get("/health")
async def health() -> dict[str, bool]:
    return {"ok": True}


def create_app() -> Litestar:
    return Litestar(
        [
            health,
            AccessController,
            UserController,
            BookController,
            auth.key_routes(path="/api/keys"),
        ],
        on_app_init=[jwt_auth.on_app_init],
        plugins=[SQLAlchemyPlugin(alchemy), auth],
        exception_handlers={HTTPException: on_http_exception},
    )
