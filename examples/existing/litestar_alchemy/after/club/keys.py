from msk_auth import AsyncAuthenticator, Owner
from msk_auth.integrations.litestar import JWTLogin, LitestarAuth
from msk_auth.stores.sqlalchemy import AsyncModelUsers, AsyncSQLAlchemyKeyStore, api_key_table

from .auth import jwt_auth
from .db import alchemy
from .models import User

api_keys = api_key_table(User.metadata)
PERMISSIONS = frozenset({"books:read", "books:write"})


def owner_of(user: User) -> Owner[None]:
    inactive = not user.is_active
    return Owner(str(user.id), PERMISSIONS, None, disabled=inactive, since=user.created_at)


login = JWTLogin(jwt_auth)
store = AsyncSQLAlchemyKeyStore(alchemy.get_engine, api_keys)
users = AsyncModelUsers(User, owner_of, alchemy.get_session)
auth = LitestarAuth(
    AsyncAuthenticator(store, find_owner=users, logins=[login]),
    logins=[login],
    own_auth=jwt_auth,
    own_csrf_protection=True,
    errors="http",
    session=lambda connection: alchemy.provide_session(connection.app.state, connection.scope),
    paths={"/health": None},
)
