from typing import Any
from uuid import UUID

from advanced_alchemy.extensions.litestar.providers import create_service_dependencies
from litestar import Controller, Response, delete, get, post, put
from litestar.di import NamedDependency, Provide
from litestar.params import FromPath, JSONBody

from .auth import jwt_auth, provide_current_user, requires_admin
from .errors import Refused
from .models import Book, User
from .schemas import BookIn, BookOut, Credentials, NewPassword, UserOut
from .services import BookService, UserService, hasher, verify


class AccessController(Controller):
    path = "/api"
    dependencies = create_service_dependencies(UserService, "users")
    opt = {"exclude_from_auth": True}

    @post("/register")
    async def register(
        self, users: NamedDependency[UserService], data: JSONBody[Credentials]
    ) -> UserOut:
        user = await users.register(data.email, data.password)
        return UserOut(user.id, user.email)

    @post("/login")
    async def log_in(
        self, users: NamedDependency[UserService], data: JSONBody[Credentials]
    ) -> Response[Any]:
        user = await users.authenticate(data.email, data.password)
        return jwt_auth.login(str(user.id))

    @post("/logout")
    async def log_out(self) -> Response[None]:
        response = Response(None, status_code=204)
        response.delete_cookie(jwt_auth.key)
        return response


class UserController(Controller):
    path = "/api/users"
    dependencies = create_service_dependencies(UserService, "users") | {
        "current_user": Provide(provide_current_user)
    }

    @get("/me")
    async def me(self, current_user: NamedDependency[User]) -> UserOut:
        return UserOut(current_user.id, current_user.email)

    @put("/me/password", status_code=204)
    async def change_password(
        self, current_user: NamedDependency[User], data: JSONBody[NewPassword]
    ) -> None:
        if not verify(current_user, data.old):
            raise Refused("Wrong password.")
        current_user.hashed_password = hasher.hash(data.new)

    @get("/", guards=[requires_admin])
    async def list_users(self, users: NamedDependency[UserService]) -> list[UserOut]:
        return [UserOut(user.id, user.email) for user in await users.get_many()]


class BookController(Controller):
    path = "/api/books"
    dependencies = create_service_dependencies(BookService, "books") | {
        "current_user": Provide(provide_current_user)
    }

    @get("/")
    async def list_books(
        self, books: NamedDependency[BookService], current_user: NamedDependency[User]
    ) -> list[BookOut]:
        found = await books.get_many(user_id=current_user.id)
        return [BookOut(book.id, book.title) for book in found]

    @post("/")
    async def add_book(
        self,
        books: NamedDependency[BookService],
        current_user: NamedDependency[User],
        data: JSONBody[BookIn],
    ) -> BookOut:
        if not data.title:
            raise Refused("A book has a title.", status_code=422)
        book = await books.create(Book(title=data.title, user_id=current_user.id))
        return BookOut(book.id, book.title)

    @delete("/{book_id:uuid}")
    async def remove_book(
        self,
        books: NamedDependency[BookService],
        current_user: NamedDependency[User],
        book_id: FromPath[UUID],
    ) -> None:
        book = await books.get_one_or_none(id=book_id, user_id=current_user.id)
        if book is None:
            raise Refused("No such book.", status_code=404)
        await books.delete(book_id)
