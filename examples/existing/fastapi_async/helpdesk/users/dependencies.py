from typing import Annotated

from fastapi import Depends
from fastapi.security import OAuth2PasswordBearer

from helpdesk.database import DB
from helpdesk.exceptions import NotAuthenticated, PermissionDenied
from helpdesk.users import service
from helpdesk.users.models import User
from helpdesk.users.security import decode_access_token

oauth2 = OAuth2PasswordBearer(tokenUrl="/api/v1/login", auto_error=False)


async def current_user(db: DB, token: Annotated[str | None, Depends(oauth2)]) -> User:
    if token is None:
        raise NotAuthenticated
    claims = decode_access_token(token)
    user = await service.get(db, int(claims["sub"]))
    if user is None or not user.is_active:
        raise NotAuthenticated
    return user


CurrentUser = Annotated[User, Depends(current_user)]


async def require_admin(user: CurrentUser) -> None:
    if user.role != "admin":
        raise PermissionDenied
