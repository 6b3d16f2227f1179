from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.security import OAuth2PasswordRequestForm

from helpdesk.database import DB
from helpdesk.exceptions import NotAuthenticated, PermissionDenied
from helpdesk.users import service
from helpdesk.users.dependencies import CurrentUser, require_admin
from helpdesk.users.models import User
from helpdesk.users.schemas import NewPassword, Token, UserOut
from helpdesk.users.security import create_access_token, verify_password

router = APIRouter(tags=["users"])


@router.post("/login")
async def log_in(db: DB, form: Annotated[OAuth2PasswordRequestForm, Depends()]) -> Token:
    user = await service.authenticate(db, form.username, form.password)
    if user is None:
        raise NotAuthenticated
    return Token(access_token=create_access_token(user))


@router.get("/me", response_model=UserOut)
async def me(user: CurrentUser) -> User:
    return user


@router.put("/me/password", status_code=204)
async def change_password(db: DB, user: CurrentUser, passwords: NewPassword) -> None:
    if not verify_password(passwords.old, user.password_hash):
        raise PermissionDenied
    await service.set_password(db, user, passwords.new)


@router.get("/users", response_model=list[UserOut], dependencies=[Depends(require_admin)])
async def list_users(db: DB) -> Sequence[User]:
    return await service.get_all(db)
