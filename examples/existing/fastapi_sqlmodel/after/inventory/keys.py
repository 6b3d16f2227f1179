from datetime import UTC, datetime
from typing import Annotated
from uuid import UUID

import jwt
from sqlmodel import Session, SQLModel

from msk_auth import Authenticator, Login, Owner, Principal
from msk_auth.integrations.fastapi import FastAPIAuth
from msk_auth.stores.sqlalchemy import SQLAlchemyKeyStore, api_key_table

from .db import engine
from .deps import SessionDep, oauth2
from .models import User
from .settings import settings

api_keys = api_key_table(SQLModel.metadata)
PERMISSIONS = frozenset({"items:read", "items:write"})


def find_owner(user_id: str) -> Owner[UUID] | None:
    with Session(engine) as session:
        user = session.get(User, UUID(user_id))
    if user is None:
        return None
    permissions = PERMISSIONS | {"items:delete_any"} if user.is_superuser else PERMISSIONS
    since = user.created_at.replace(tzinfo=UTC)
    return Owner(user_id, permissions, user.id, disabled=not user.is_active, since=since)


def login_of_token(token: str) -> Login | None:
    try:
        claims = jwt.decode(token, settings.secret_key, ["HS256"])
        return Login(
            str(UUID(claims["sub"])), valid_until=datetime.fromtimestamp(claims["exp"], UTC)
        )
    except (jwt.InvalidTokenError, KeyError, ValueError):
        return None


store = SQLAlchemyKeyStore(engine, api_keys)
auth = FastAPIAuth(
    Authenticator(store, find_owner=find_owner, logins=[login_of_token]), login_scheme=oauth2
)


def load_user(session: SessionDep, owner_id: Annotated[str, auth.owner_id]) -> User | None:
    return session.get(User, UUID(owner_id))


KeyUser = Annotated[User, auth.user(load_user)]
Writer = Annotated[Principal[UUID], auth.require("items:write")]
