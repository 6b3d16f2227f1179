from dataclasses import dataclass
from typing import Any

from litestar.connection import ASGIConnection
from litestar.middleware.session.server_side import (
    ServerSideSessionBackend,
    ServerSideSessionConfig,
)
from litestar.security.session_auth import SessionAuth

from .db import new_session
from .models import User


@dataclass(frozen=True)
class CurrentUser:
    id: int
    name: str
    is_editor: bool


async def find_user(
    session: dict[str, Any], _: ASGIConnection[Any, Any, Any, Any]
) -> CurrentUser | None:
    async with new_session() as db:
        user = await db.get(User, session["user_id"])
    if user is None or not user.is_active:
        return None
    return CurrentUser(user.id, user.name, user.is_editor)


session_auth = SessionAuth[CurrentUser, ServerSideSessionBackend](
    retrieve_user_handler=find_user,
    session_backend_config=ServerSideSessionConfig(),
    exclude=["^/schema"],
)
