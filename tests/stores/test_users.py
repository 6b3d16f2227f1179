"""`ModelUsers`: the application's users by their primary key, as a `find_owner`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from inspect import isawaitable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import LargeBinary, create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker
from sqlalchemy.types import TypeDecorator
from tests.cases import case

from msk_auth import AsyncAuthenticator, Authenticator, Login, Owner
from msk_auth.errors import ConfigurationError, CredentialRefused
from msk_auth.stores.memory import AsyncMemoryKeyStore, MemoryKeyStore
from msk_auth.stores.sqlalchemy import AsyncModelUsers, ModelUsers

pytestmark = pytest.mark.anyio

ID = "0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0"


class Base(DeclarativeBase):
    pass


class Numbered(Base):
    __tablename__ = "numbered"
    id: Mapped[int] = mapped_column("number", primary_key=True)


class Member(Base):
    __tablename__ = "members"
    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str] = mapped_column("address")


class Named(Base):
    __tablename__ = "named"
    id: Mapped[str] = mapped_column(primary_key=True)


class Unique(Base):
    __tablename__ = "unique_ids"
    id: Mapped[UUID] = mapped_column(primary_key=True)


class Paired(Base):
    __tablename__ = "paired"
    tenant: Mapped[int] = mapped_column(primary_key=True)
    id: Mapped[int] = mapped_column(primary_key=True)


class Binary(Base):
    __tablename__ = "of_bytes"
    id: Mapped[bytes] = mapped_column(LargeBinary(16), primary_key=True)


class Own(TypeDecorator[str]):
    """It does not say which type it has in Python."""

    impl = LargeBinary
    cache_ok = True


class Untyped(Base):
    __tablename__ = "untyped"
    id: Mapped[str] = mapped_column(Own, primary_key=True)


def owner_of(user: Any) -> Owner[None]:
    return Owner(str(user.id), frozenset(), None)


def find_login(token: str) -> Login:
    return Login(token)


class Finder:
    """`ModelUsers` of either kind, called in the same way."""

    def __init__(self, folder: Path, *, awaits: bool) -> None:
        self.engine = create_engine(f"sqlite:///{folder / 'app.db'}")
        url = self.engine.url.set(drivername="sqlite+aiosqlite")
        self.async_engine = create_async_engine(url) if awaits else None
        Base.metadata.create_all(self.engine)
        with sessionmaker(self.engine).begin() as session:
            session.add_all([Numbered(id=7), Named(id="ada"), Unique(id=UUID(ID))])
            emails = ["ann@example.org", "both@example.org", "both@example.org", "bob"]
            session.add_all(Member(email=email) for email in emails)

    def users(self, model: type[Any]) -> Any:
        if self.async_engine is None:
            return ModelUsers(model, owner_of, sessionmaker(self.engine))
        return AsyncModelUsers(model, owner_of, async_sessionmaker(self.async_engine))

    async def find(self, model: type[Any], user_id: str) -> str | None:
        owner = await result(self.users(model)(user_id))
        return None if owner is None else owner.id

    async def authenticate(self, users: Any, token: str, login: Any = find_login) -> str:
        if self.async_engine is None:
            auth: Any = Authenticator(MemoryKeyStore(), find_owner=users, logins=[login])
        else:
            auth = AsyncAuthenticator(AsyncMemoryKeyStore(), find_owner=users, logins=[login])
        principal = await result(auth.authenticate([f"Bearer {token}"]))
        owner_id: str = principal.owner.id
        return owner_id


async def result(answer: Any) -> Any:
    return await answer if isawaitable(answer) else answer


@pytest.fixture(params=[False, True], ids=["blocking", "awaiting"])
async def finder(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Finder]:
    finder = Finder(tmp_path, awaits=request.param)
    yield finder
    finder.engine.dispose()
    if finder.async_engine is not None:
        await finder.async_engine.dispose()


@pytest.mark.parametrize(
    ("model", "user_id"), [(Numbered, "7"), (Named, "ada"), (Unique, ID)], ids=str
)
async def test_the_id_is_the_text_of_the_key(
    finder: Finder, model: type[Any], user_id: str
) -> None:
    assert await finder.find(model, user_id) == user_id
    assert await finder.authenticate(finder.users(model), user_id) == user_id


async def test_another_text_is_nobodys(finder: Finder) -> None:
    for model, user_id in (
        (Numbered, "8"),
        (Numbered, "ada@example.com"),
        (Numbered, ""),
        # `int` reads all of these as 7.
        (Numbered, " 7"),
        (Numbered, "+7"),
        (Numbered, "07"),
        (Numbered, "٧"),
        (Named, "eve"),
        (Unique, "ada@example.com"),
        (Unique, f"{{{ID}}}"),
    ):
        with case(model, user_id):
            assert await finder.find(model, user_id) is None


async def test_a_number_that_no_column_holds_is_nobodys(finder: Finder) -> None:
    with pytest.raises(CredentialRefused) as refused:
        await finder.authenticate(finder.users(Numbered), str(2**63))
    assert refused.value.code == "token_revoked"


@pytest.mark.parametrize("user_id", [ID.replace("-", ""), ID.upper()])
async def test_a_uuid_is_read_in_any_spelling(finder: Finder, user_id: str) -> None:
    assert await finder.find(Unique, user_id) == ID


@pytest.mark.parametrize("kind", [ModelUsers, AsyncModelUsers])
@pytest.mark.parametrize("model", [Paired, Binary, Untyped, Base, str, "Numbered", None], ids=repr)
def test_a_class_without_such_a_key_is_refused(kind: Any, model: Any) -> None:
    general = "AsyncUsers" if kind is AsyncModelUsers else "Users"
    with pytest.raises(ConfigurationError, match=rf"Write {general}\(load_user, owner_of"):
        kind(model, owner_of, sessionmaker())


async def find_login_later(token: str) -> Login | None:
    return None if token == "none" else Login(token, session_id="first")


def find_login_now(token: str) -> Login | None:
    return None if token == "none" else Login(token, session_id="first")


class TestLoginsByAnotherName:
    @pytest.mark.parametrize(
        ("name", "owner_id"),
        [
            ("ann@example.org", "1"),
            ("bob@example.org", None),
            ("1", None),
            # Which of the two is meant is not known.
            ("both@example.org", None),
            ("none", None),
        ],
    )
    async def test_a_login_gets_the_id_of_the_user(
        self, finder: Finder, name: str, owner_id: str | None
    ) -> None:
        logins: list[Any] = [find_login_now]
        if finder.async_engine is not None:
            logins.append(find_login_later)
        for login in logins:
            found = await result(finder.users(Member).logins_by("email", login)(name))
            assert found == (None if owner_id is None else Login(owner_id, session_id="first"))

    async def test_an_authenticator_takes_it(self, finder: Finder) -> None:
        users = finder.users(Member)
        assert await finder.authenticate(users, "bob", users.logins_by("email", find_login)) == "4"

    @pytest.mark.parametrize("kind", [ModelUsers, AsyncModelUsers])
    def test_what_cannot_work_is_refused(self, kind: Any) -> None:
        users = kind(Member, owner_of, sessionmaker())
        with pytest.raises(ConfigurationError, match="no column 'address'"):
            users.logins_by("address", find_login)
