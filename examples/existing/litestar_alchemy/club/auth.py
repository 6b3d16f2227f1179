from typing import Any
from uuid import UUID

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.exceptions import PermissionDeniedException
from litestar.handlers import BaseRouteHandler
from litestar.security.jwt import JWTCookieAuth, Token

from .db import alchemy
from .models import User
from .settings import SECRET


async def find_user(token: Token, connection: ASGIConnection[Any, Any, Any, Any]) -> User | None:
    session = alchemy.provide_session(connection.app.state, connection.scope)
    user = await session.get(User, UUID(token.sub))
    return user if user is not None and user.is_active else None


jwt_auth = JWTCookieAuth[User, Token](
    retrieve_user_handler=find_user,
    token_secret=SECRET,
    exclude=["^/schema", "^/health"],
)


async def provide_current_user(request: Request[User, Token, Any]) -> User:
    return request.user


def requires_admin(connection: ASGIConnection[Any, User, Token, Any], _: BaseRouteHandler) -> None:
    if not connection.user.is_admin:
        raise PermissionDeniedException("For administrators only.")
