"""`Users`: the application's users as a `find_owner`, in the session of a request or in a new one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from tests.cases import refused_with

from msk_auth import (
    AsyncAuthenticator,
    AsyncUsers,
    Authenticator,
    Login,
    Owner,
    Users,
    local_principal,
)
from msk_auth.errors import StoreUnavailable
from msk_auth.stores.memory import AsyncMemoryKeyStore, MemoryKeyStore
from msk_auth.users import RequestSession

pytestmark = pytest.mark.anyio


class User:
    def __init__(self, user_id: str) -> None:
        self.id = user_id
        self.disabled = False


class Session:
    """A session of users that notes what is asked of it."""

    def __init__(self, rows: dict[str, User]) -> None:
        self.rows = rows
        self.loaded: list[str] = []
        self.closed = False

    def load(self, user_id: str) -> User | None:
        assert not self.closed
        self.loaded.append(user_id)
        return self.rows.get(user_id)


class Database:
    def __init__(self) -> None:
        self.rows = {"ada": User("ada")}
        self.sessions: list[Session] = []

    @contextmanager
    def new_session(self) -> Iterator[Session]:
        session = Session(self.rows)
        self.sessions.append(session)
        yield session
        session.closed = True

    @asynccontextmanager
    async def new_async_session(self) -> AsyncIterator[Session]:
        with self.new_session() as session:
            yield session


def load_user(session: Session, user_id: str) -> User | None:
    return session.load(user_id)


async def load_user_async(session: Session, user_id: str) -> User | None:
    return session.load(user_id)


def owner_of(user: User) -> Owner[None]:
    return Owner(user.id, frozenset({"tasks:read"}), None, disabled=user.disabled)


def session_in(rows: dict[str, User]) -> RequestSession:
    session = Session(rows)
    return RequestSession(lambda: session)


def find_login(token: str) -> Login:
    return Login(token)


class Subject:
    """An authenticator of either kind, called in the same way."""

    def __init__(self, *, awaits: bool) -> None:
        self.database = Database()
        self.users: Any
        self.authenticator: Any
        if awaits:
            self.users = AsyncUsers(load_user_async, owner_of, self.database.new_async_session)
            self.authenticator = AsyncAuthenticator(
                AsyncMemoryKeyStore(), find_owner=self.users, logins=[find_login]
            )
        else:
            self.users = Users(load_user, owner_of, self.database.new_session)
            self.authenticator = Authenticator(
                MemoryKeyStore(), find_owner=self.users, logins=[find_login]
            )

    async def call(self, result: Any) -> Any:
        return await result if hasattr(result, "__await__") else result

    async def authenticate(self, credential: str, request: RequestSession | None = None) -> Any:
        more = () if request is None else (None, request)
        return await self.call(self.authenticator.authenticate([f"Bearer {credential}"], *more))

    async def key(self) -> str:
        principal = local_principal(
            owner_of(self.database.rows["ada"]),
            at=self.authenticator.clock.now(),
            interactive=True,
        )
        created = await self.call(self.authenticator.create_key(principal, name="a script"))
        key: str = created.value.reveal()
        return key


@pytest.fixture(params=[False, True], ids=["blocking", "awaiting"])
def subject(request: pytest.FixtureRequest) -> Subject:
    return Subject(awaits=request.param)


async def test_an_authenticator_has_the_users_that_find_its_owners(subject: Subject) -> None:
    assert subject.authenticator.users is subject.users
    other = Authenticator(MemoryKeyStore(), find_owner=lambda _: None)
    assert other.users is None


async def test_without_a_request_a_new_session_is_opened_and_closed(subject: Subject) -> None:
    for n in range(1, 3):
        principal = await subject.authenticate("ada")
        assert (principal.owner.id, principal.user) == ("ada", None)
        assert [session.loaded for session in subject.database.sessions] == [["ada"]] * n
        assert all(session.closed for session in subject.database.sessions)


@pytest.mark.parametrize("kind", ["key", "login"])
async def test_with_a_request_the_user_is_read_in_its_session(subject: Subject, kind: str) -> None:
    credential = "ada" if kind == "login" else await subject.key()
    session = Session(subject.database.rows)
    request = RequestSession(lambda: session)
    principal = await subject.authenticate(credential, request)
    assert principal.user is None
    assert request.users == {"ada": session.rows["ada"]}
    assert session.loaded == ["ada"]
    assert not session.closed
    assert subject.database.sessions == []


async def test_a_request_keeps_its_session_to_itself(subject: Subject) -> None:
    one, other = (session_in({"ada": User("ada")}) for _ in range(2))
    await subject.authenticate("ada", one)
    await subject.authenticate("ada", other)
    assert one.users["ada"] is not other.users["ada"]
    await subject.authenticate("ada")
    assert [session.loaded for session in subject.database.sessions] == [["ada"]]


@pytest.mark.parametrize("in_request", [True, False], ids=["in a request", "without"])
async def test_whoever_is_gone_or_disabled_is_refused(
    subject: Subject, *, in_request: bool
) -> None:
    key = await subject.key()
    request = session_in(subject.database.rows) if in_request else None
    subject.database.rows["ada"].disabled = True
    with refused_with("owner_disabled"):
        await subject.authenticate(key, request)
    del subject.database.rows["ada"]
    with refused_with("owner_disabled"):
        await subject.authenticate(key, request)
    with refused_with("token_revoked"):
        await subject.authenticate("ada", request)


async def test_a_user_with_another_id_is_refused(subject: Subject) -> None:
    subject.database.rows["eve"] = subject.database.rows["ada"]
    with pytest.raises(StoreUnavailable):
        await subject.authenticate("eve", session_in(subject.database.rows))
