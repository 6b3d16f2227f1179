from datetime import UTC, datetime
from typing import Annotated

from fastapi import Request
from fastapi.responses import JSONResponse
from sqlalchemy.ext.asyncio import AsyncSession

from helpdesk.database import Base, engine, get_db, new_session
from helpdesk.exceptions import NotAuthenticated, answer, on_app_error
from helpdesk.users import service
from helpdesk.users.dependencies import oauth2
from helpdesk.users.models import User
from helpdesk.users.security import decode_access_token
from msk_auth import AsyncAuthenticator, AsyncUsers, Login, Owner, Principal, Problem
from msk_auth.integrations.fastapi import FastAPIAuth
from msk_auth.stores.sqlalchemy import AsyncSQLAlchemyKeyStore, api_key_table

api_keys = api_key_table(Base.metadata)
PERMISSIONS = frozenset({"tickets:read", "tickets:write"})


async def load_user(db: AsyncSession, user_id: str) -> User | None:
    return await service.get(db, int(user_id))


def owner_of(user: User) -> Owner[None]:
    permissions = PERMISSIONS | {"tickets:close_any"} if user.role == "admin" else PERMISSIONS
    since = user.created_at.replace(tzinfo=UTC)
    return Owner(str(user.id), permissions, None, disabled=not user.is_active, since=since)


def login_of_token(token: str) -> Login | None:
    try:
        claims = decode_access_token(token)
    except NotAuthenticated:
        return None
    return Login(claims["sub"], valid_until=datetime.fromtimestamp(claims["exp"], UTC))


store = AsyncSQLAlchemyKeyStore(engine, api_keys)
users = AsyncUsers(load_user, owner_of, new_session)
authenticator = AsyncAuthenticator(store, find_owner=users, logins=[login_of_token])
auth = FastAPIAuth(authenticator, login_scheme=oauth2, session=get_db)

KeyUser = Annotated[User, auth.user()]
Writer = Annotated[Principal[None], auth.require("tickets:write")]


def on_problem(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Problem)
    if error.status == 401 and not error.code.startswith("key_"):
        return on_app_error(request, NotAuthenticated())
    return answer(error.status, error.code, error.detail, error.response_headers())
