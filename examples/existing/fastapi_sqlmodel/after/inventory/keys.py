from datetime import UTC
from typing import Annotated

import jwt
from sqlmodel import Session, SQLModel

from msk_auth import Authenticator, Login, Owner, Principal
from msk_auth.integrations.fastapi import FastAPIAuth
from msk_auth.stores.sqlalchemy import ModelUsers, SQLAlchemyKeyStore, api_key_table

from .db import engine
from .deps import get_session, oauth2
from .models import User
from .settings import settings

PERMISSIONS = frozenset({"items:read", "items:write"})


def owner_of(user: User) -> Owner[None]:
    permissions = PERMISSIONS | {"items:delete_any"} if user.is_superuser else PERMISSIONS
    since = user.created_at.replace(tzinfo=UTC)
    return Owner(str(user.id), permissions, None, disabled=not user.is_active, since=since)


def login_of_token(token: str) -> Login | None:
    try:
        return Login.from_claims(jwt.decode(token, settings.secret_key, ["HS256"]))
    except jwt.InvalidTokenError:
        return None


store = SQLAlchemyKeyStore(engine, api_key_table(SQLModel.metadata))
users = ModelUsers(User, owner_of, lambda: Session(engine))
authenticator = Authenticator(store, find_owner=users, logins=[login_of_token])
auth = FastAPIAuth(authenticator, login_scheme=oauth2, session=get_session)

Reader = Annotated[User, auth.user("items:read")]
Writer = Annotated[User, auth.user("items:write")]
CurrentPrincipal = Annotated[Principal[None], auth.principal]
