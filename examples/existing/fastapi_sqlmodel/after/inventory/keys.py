from datetime import UTC, datetime
from typing import Annotated
from uuid import UUID

import jwt
from sqlmodel import Session, SQLModel

from msk_auth import Authenticator, Login, Owner, Principal, Users
from msk_auth.integrations.fastapi import FastAPIAuth
from msk_auth.stores.sqlalchemy import SQLAlchemyKeyStore, api_key_table

from .db import engine
from .deps import get_session, oauth2
from .models import User
from .settings import settings

api_keys = api_key_table(SQLModel.metadata)
PERMISSIONS = frozenset({"items:read", "items:write"})


def load_user(session: Session, user_id: str) -> User | None:
    return session.get(User, UUID(user_id))


def owner_of(user: User) -> Owner[None]:
    permissions = PERMISSIONS | {"items:delete_any"} if user.is_superuser else PERMISSIONS
    since = user.created_at.replace(tzinfo=UTC)
    return Owner(str(user.id), permissions, None, disabled=not user.is_active, since=since)


def login_of_token(token: str) -> Login | None:
    try:
        claims = jwt.decode(token, settings.secret_key, ["HS256"])
        return Login(
            str(UUID(claims["sub"])), valid_until=datetime.fromtimestamp(claims["exp"], UTC)
        )
    except (jwt.InvalidTokenError, KeyError, ValueError):
        return None


store = SQLAlchemyKeyStore(engine, api_keys)
users = Users(load_user, owner_of, lambda: Session(engine))
authenticator = Authenticator(store, find_owner=users, logins=[login_of_token])
auth = FastAPIAuth(authenticator, login_scheme=oauth2, session=get_session)

KeyUser = Annotated[User, auth.user()]
Writer = Annotated[Principal[None], auth.require("items:write")]
