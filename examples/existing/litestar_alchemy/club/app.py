from advanced_alchemy.extensions.litestar import SQLAlchemyPlugin
from litestar import Litestar, get
from litestar.exceptions import HTTPException

from .auth import jwt_auth
from .controllers import AccessController, BookController, UserController
from .db import alchemy
from .errors import on_http_exception


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
        ],
        on_app_init=[jwt_auth.on_app_init],
        plugins=[SQLAlchemyPlugin(alchemy)],
        exception_handlers={HTTPException: on_http_exception},
    )
