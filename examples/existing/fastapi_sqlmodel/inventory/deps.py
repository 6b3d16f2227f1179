from collections.abc import Iterator
from typing import Annotated
from uuid import UUID

import jwt
from fastapi import Depends, HTTPException
from fastapi.security import OAuth2PasswordBearer
from sqlmodel import Session

from .db import engine
from .models import User
from .settings import settings

oauth2 = OAuth2PasswordBearer(tokenUrl="/login/access-token")


def get_session() -> Iterator[Session]:
    with Session(engine) as session:
        yield session


SessionDep = Annotated[Session, Depends(get_session)]


def get_current_user(session: SessionDep, token: Annotated[str, Depends(oauth2)]) -> User:
    try:
        payload = jwt.decode(token, settings.secret_key, ["HS256"])
        user_id = UUID(payload["sub"])
    except (jwt.InvalidTokenError, KeyError, ValueError):
        raise HTTPException(403, "Could not validate credentials") from None
    user = session.get(User, user_id)
    if user is None:
        raise HTTPException(404, "User not found")
    if not user.is_active:
        raise HTTPException(400, "Inactive user")
    return user


CurrentUser = Annotated[User, Depends(get_current_user)]


def get_superuser(user: CurrentUser) -> User:
    if not user.is_superuser:
        raise HTTPException(403, "The user doesn't have enough privileges")
    return user


Superuser = Annotated[User, Depends(get_superuser)]
