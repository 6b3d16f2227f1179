from dataclasses import dataclass
from typing import Any

from argon2 import PasswordHasher
from argon2.exceptions import VerificationError
from litestar import Request, delete, get, post, put
from litestar.exceptions import NotAuthorizedException, NotFoundException
from litestar.params import FromPath, JSONBody
from sqlalchemy import select

from .auth import CurrentUser
from .db import new_session
from .models import Page, User

hasher = PasswordHasher()


@dataclass
class Credentials:
    name: str
    password: str


@dataclass
class NewPassword:
    old: str
    new: str


@dataclass
class NewPage:
    title: str


def check_password(user: User | None, password: str) -> User:
    try:
        if user is not None and user.is_active and hasher.verify(user.password_hash, password):
            return user
    except VerificationError:
        pass
    raise NotAuthorizedException("Wrong name or password.")


@post("/login", exclude_from_auth=True, status_code=204)
async def log_in(request: Request[Any, Any, Any], data: JSONBody[Credentials]) -> None:
    async with new_session() as db:
        found = await db.scalar(select(User).where(User.name == data.name))
    request.session["user_id"] = check_password(found, data.password).id


@post("/logout", status_code=204)
async def log_out(request: Request[CurrentUser, Any, Any]) -> None:
    request.clear_session()


@put("/password", status_code=204)
async def change_password(
    request: Request[CurrentUser, Any, Any], data: JSONBody[NewPassword]
) -> None:
    async with new_session() as db, db.begin():
        user = check_password(await db.get(User, request.user.id), data.old)
        user.password_hash = hasher.hash(data.new)


@get("/pages")
async def list_pages(request: Request[CurrentUser, Any, Any]) -> list[str]:
    async with new_session() as db:
        return [*await db.scalars(select(Page.title).where(Page.user_id == request.user.id))]


@post("/pages")
async def write_page(request: Request[CurrentUser, Any, Any], data: JSONBody[NewPage]) -> int:
    async with new_session() as db, db.begin():
        page = Page(title=data.title, user_id=request.user.id)
        db.add(page)
    return page.id


@delete("/pages/{page_id:int}")
async def remove_page(request: Request[CurrentUser, Any, Any], page_id: FromPath[int]) -> None:
    async with new_session() as db, db.begin():
        page = await db.get(Page, page_id)
        if page is None or (page.user_id != request.user.id and not request.user.is_editor):
            raise NotFoundException("No such page.")
        await db.delete(page)
