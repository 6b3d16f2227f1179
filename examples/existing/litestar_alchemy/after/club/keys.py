from typing import Any
from uuid import UUID

from litestar import Request, Response
from litestar.connection import ASGIConnection
from litestar.di import NamedDependency
from litestar.exceptions import NotAuthorizedException
from litestar.security.jwt import Token
from sqlalchemy.ext.asyncio import AsyncSession

from msk_auth import AsyncAuthenticator, Login, Owner, Principal, Problem, own_guard
from msk_auth.integrations.litestar import LitestarAuth
from msk_auth.stores.sqlalchemy import AsyncSQLAlchemyKeyStore, api_key_table

from .auth import jwt_auth
from .db import alchemy
from .errors import answer
from .models import User

api_keys = api_key_table(User.metadata)
PERMISSIONS = frozenset({"books:read", "books:write"})


async def find_owner(user_id: str) -> Owner[None] | None:
    async with alchemy.get_session() as session:
        user = await session.get(User, UUID(user_id))
    if user is None:
        return None
    return Owner(user_id, PERMISSIONS, None, disabled=not user.is_active, since=user.created_at)


def login_of_token(encoded: str) -> Login | None:
    try:
        token = Token.decode(encoded, jwt_auth.token_secret, jwt_auth.algorithm)
    except NotAuthorizedException:
        return None
    return Login(token.sub, authenticated_at=token.iat, valid_until=token.exp)


def login_of_cookie(connection: ASGIConnection[Any, Any, Any, Any]) -> Login | None:
    return login_of_token(connection.cookies.get(jwt_auth.key, "").removeprefix("Bearer "))


store = AsyncSQLAlchemyKeyStore(alchemy.get_engine, api_keys)
auth = LitestarAuth(
    AsyncAuthenticator(store, find_owner=find_owner, logins=[login_of_token]),
    logins=[login_of_cookie],
    exclude_opt_key=jwt_auth.exclude_opt_key,
    paths={"/api/users/*": own_guard, "/health": None},
    login_scheme=jwt_auth.openapi_security_scheme_name,
)


async def load_user(
    principal: NamedDependency[Principal[None]], db_session: NamedDependency[AsyncSession]
) -> User | None:
    return await db_session.get(User, UUID(principal.owner.id))


def on_problem(_: Request[Any, Any, Any], error: Problem) -> Response[Any]:
    return answer(error.status, error.detail, error.response_headers())
