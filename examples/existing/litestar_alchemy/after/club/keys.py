from typing import Any

from litestar import Request, Response
from litestar.connection import ASGIConnection
from litestar.exceptions import NotAuthorizedException
from litestar.security.jwt import Token

from msk_auth import AsyncAuthenticator, Login, Owner, Problem, own_guard
from msk_auth.integrations.litestar import LitestarAuth
from msk_auth.stores.sqlalchemy import AsyncModelUsers, AsyncSQLAlchemyKeyStore, api_key_table

from .auth import jwt_auth
from .db import alchemy
from .errors import answer
from .models import User

api_keys = api_key_table(User.metadata)
PERMISSIONS = frozenset({"books:read", "books:write"})


def owner_of(user: User) -> Owner[None]:
    inactive = not user.is_active
    return Owner(str(user.id), PERMISSIONS, None, disabled=inactive, since=user.created_at)


def login_of_token(encoded: str) -> Login | None:
    try:
        token = Token.decode(encoded, jwt_auth.token_secret, jwt_auth.algorithm)
    except NotAuthorizedException:
        return None
    return Login(token.sub, authenticated_at=token.iat, valid_until=token.exp)


def login_of_cookie(connection: ASGIConnection[Any, Any, Any, Any]) -> Login | None:
    return login_of_token(connection.cookies.get(jwt_auth.key, "").removeprefix("Bearer "))


store = AsyncSQLAlchemyKeyStore(alchemy.get_engine, api_keys)
users = AsyncModelUsers(User, owner_of, alchemy.get_session)
auth = LitestarAuth(
    AsyncAuthenticator(store, find_owner=users, logins=[login_of_token]),
    logins=[login_of_cookie],
    session=lambda connection: alchemy.provide_session(connection.app.state, connection.scope),
    exclude_opt_key=jwt_auth.exclude_opt_key,
    paths={"/api/users/*": own_guard, "/health": None},
    login_scheme=jwt_auth.openapi_security_scheme_name,
)


def on_problem(_: Request[Any, Any, Any], error: Problem) -> Response[Any]:
    return answer(error.status, error.detail, error.response_headers())
