"""FastAPI with the session of a request: the look-up that decides about a request also loads the application's user."""

# No `from __future__ import annotations`: FastAPI reads the annotations of local names.

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import anyio
import pytest
from fastapi import Depends, FastAPI, Request
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.ext.asyncio import create_async_engine as create_async
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from tests.integrations.adapters import send

from msk_auth import (
    AsyncAuthenticator,
    AsyncUsers,
    Authenticator,
    ConfigurationError,
    Login,
    Owner,
    Principal,
    SystemClock,
    Users,
    local_principal,
)
from msk_auth.integrations.fastapi import FastAPIAuth
from msk_auth.stores.memory import AsyncMemoryKeyStore, MemoryKeyStore
from msk_auth.testing.adapter import Reply

pytestmark = pytest.mark.anyio

LEASE = timedelta(seconds=5)
TOMORROW = SystemClock().now() + timedelta(days=1)


class Base(DeclarativeBase):
    pass


class User(Base):
    __tablename__ = "users"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    is_active: Mapped[bool] = mapped_column(default=True)


def load_user(session: Session, user_id: str) -> User | None:
    return session.get(User, user_id)


async def load_user_async(session: AsyncSession, user_id: str) -> User | None:
    return await session.get(User, user_id)


def owner_of(user: User) -> Owner[None]:
    return Owner(user.id, frozenset({"tasks:read"}), None, disabled=not user.is_active)


def find_login(token: str) -> Login | None:
    if not token.startswith("session-of-"):
        return None
    # Without an end no lease would cover it.
    return Login(token.removeprefix("session-of-"), valid_until=TOMORROW)


class Site:
    """An application with users in a database, and what it has done there.

    Attributes:
        app: The application.
        auth: Its adapter.
        queries: Each query for users.
        sessions: The sessions of requests, in the order in which they were opened.
    """

    def __init__(self, engine: Engine, lease: timedelta | None, *, awaits: bool) -> None:
        self.engine = engine
        self.queries: list[str] = []
        self.sessions: list[Any] = []
        self.entered: Callable[[], None] = lambda: None
        event.listen(engine, "before_cursor_execute", self._note)
        Base.metadata.create_all(engine)
        self.write(lambda session: session.add(User(id="ada", name="Ada")))
        self.write(lambda session: session.add(User(id="bob", name="Bob")))
        self.queries.clear()
        self.async_engine: AsyncEngine | None = None
        self.auth: FastAPIAuth[None]
        self.get_session: Callable[..., Any]
        if awaits:
            self._make_async(lease)
        else:
            self._make_blocking(lease)
        self.app = self.auth.install(FastAPI())
        self._add_routes()

    def _note(self, _c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "FROM users" in statement:
            self.queries.append(statement)

    def _make_blocking(self, lease: timedelta | None) -> None:
        def get_session() -> Iterator[Session]:
            with Session(self.engine) as session:
                self.sessions.append(session)
                self.entered()
                yield session

        self.get_session = get_session
        users = Users(load_user, owner_of, sessionmaker(self.engine))
        self.blocking = Authenticator(
            MemoryKeyStore(), find_owner=users, logins=[find_login], lease=lease
        )
        self.auth = FastAPIAuth(self.blocking, session=get_session)

    def _make_async(self, lease: timedelta | None) -> None:
        self.async_engine = create_async(self.engine.url.set(drivername="sqlite+aiosqlite"))
        event.listen(self.async_engine.sync_engine, "before_cursor_execute", self._note)
        make = async_sessionmaker(self.async_engine)

        async def get_session() -> AsyncIterator[AsyncSession]:
            async with make() as session:
                self.sessions.append(session)
                yield session

        self.get_session = get_session
        users = AsyncUsers(load_user_async, owner_of, make)
        authenticator = AsyncAuthenticator(
            AsyncMemoryKeyStore(), find_owner=users, logins=[find_login], lease=lease
        )
        self.auth = FastAPIAuth(authenticator, session=get_session)

    def _add_routes(self) -> None:
        CurrentUser = Annotated[User, self.auth.user()]  # noqa: N806 - it is a type
        SessionDep = Annotated[Any, Depends(self.get_session)]  # noqa: N806 - it is a type
        auth = self.auth

        @self.app.get("/me", dependencies=[auth.require("tasks:read")])
        def me(session: SessionDep, user: CurrentUser) -> dict[str, Any]:
            return {"name": user.name, "attached": user in session}

        @self.app.get("/principal")
        def principal(principal: Annotated[Principal[None], auth.principal]) -> dict[str, Any]:
            return {"id": principal.owner.id, "user": principal.user}

        @self.app.get("/again")
        async def again(request: Request, user: CurrentUser) -> dict[str, Any]:
            # The owner is disabled while the request goes on.
            self.write(lambda session: setattr(session.get(User, user.id), "is_active", False))
            await auth.verify_again(request)
            return {}

        self.app.include_router(auth.key_routes(prefix="/keys"))

    def write(self, change: Callable[[Session], object]) -> None:
        """A change that is committed elsewhere."""
        with Session(self.engine) as session, session.begin():
            change(session)

    async def key(self, owner_id: str) -> str:
        with Session(self.engine) as session:
            owner = owner_of(session.get_one(User, owner_id))
        now = self.auth.authenticator.clock.now()
        created = await self.auth.authenticator.create_key(
            local_principal(owner, at=now, interactive=True), name="a script"
        )
        self.queries.clear()
        return created.value.reveal()

    async def credential(self, kind: str, owner_id: str) -> str:
        return await self.key(owner_id) if kind == "key" else f"session-of-{owner_id}"

    async def get(self, path: str, credential: str) -> Reply:
        header = (b"authorization", f"Bearer {credential}".encode())
        return await send(self.app, "GET", path.encode(), [header])

    async def close(self) -> None:
        if self.async_engine is not None:
            await self.async_engine.dispose()
        self.engine.dispose()


@pytest.fixture
def make_site(tmp_path: Path) -> Callable[..., Site]:
    def make(lease: timedelta | None = None, *, awaits: bool = False) -> Site:
        return Site(create_engine(f"sqlite:///{tmp_path / 'app.db'}"), lease, awaits=awaits)

    return make


@pytest.fixture(params=[False, True], ids=["blocking", "awaiting"])
async def site(
    request: pytest.FixtureRequest, make_site: Callable[..., Site]
) -> AsyncIterator[Site]:
    site = make_site(awaits=request.param)
    yield site
    await site.close()


@pytest.fixture(params=[False, True], ids=["blocking", "awaiting"])
async def leased(
    request: pytest.FixtureRequest, make_site: Callable[..., Site]
) -> AsyncIterator[Site]:
    site = make_site(LEASE, awaits=request.param)
    yield site
    await site.close()


@pytest.mark.parametrize("kind", ["key", "login"])
async def test_one_query_per_request(site: Site, kind: str) -> None:
    credential = await site.credential(kind, "ada")
    for n in range(1, 4):
        reply = await site.get("/me", credential)
        assert reply.json == {"name": "Ada", "attached": True}
        assert len(site.queries) == n
        assert len(site.sessions) == n


@pytest.mark.parametrize("kind", ["key", "login"])
async def test_one_query_per_request_under_a_lease(leased: Site, kind: str) -> None:
    credential = await leased.credential(kind, "ada")
    # The verification that the lease shares is read in a session of its own, once.
    assert (await leased.get("/me", credential)).json == {"name": "Ada", "attached": True}
    leased.queries.clear()
    for n in range(1, 4):
        reply = await leased.get("/me", credential)
        assert reply.json == {"name": "Ada", "attached": True}
        assert len(leased.queries) == n


async def test_a_guard_alone_makes_one_query(site: Site) -> None:
    credential = await site.key("ada")
    assert (await site.get("/principal", credential)).json == {"id": "ada", "user": None}
    assert len(site.queries) == 1


@pytest.mark.parametrize("kind", ["key", "login"])
async def test_a_disabled_or_deleted_user_is_refused_at_once(site: Site, kind: str) -> None:
    credential = await site.credential(kind, "ada")
    code = "owner_disabled" if kind == "key" else "token_revoked"
    assert (await site.get("/me", credential)).status == 200
    site.write(lambda session: setattr(session.get(User, "ada"), "is_active", False))
    reply = await site.get("/me", credential)
    assert (reply.status, reply.json["code"]) == (401, code)
    site.write(lambda session: setattr(session.get(User, "ada"), "is_active", True))
    assert (await site.get("/me", credential)).status == 200
    site.write(lambda session: session.delete(session.get(User, "ada")))
    reply = await site.get("/me", credential)
    assert (reply.status, reply.json["code"]) == (401, code)


@pytest.mark.parametrize("kind", ["key", "login"])
@pytest.mark.parametrize("awaits", [False, True], ids=["blocking", "awaiting"])
async def test_a_disabled_user_is_refused_once_the_leases_have_ended(
    make_site: Callable[..., Site], kind: str, *, awaits: bool
) -> None:
    site = make_site(timedelta(milliseconds=50), awaits=awaits)
    credential = await site.credential(kind, "ada")
    assert (await site.get("/me", credential)).status == 200
    site.write(lambda session: setattr(session.get(User, "ada"), "is_active", False))
    await site.auth.authenticator.await_lease_expiry()
    assert (await site.get("/me", credential)).status == 401
    await site.close()


async def test_a_lease_does_not_share_what_a_session_has_read_before(leased: Site) -> None:
    # Another dependency of the application has read the user before the guard, and the user is disabled in between.
    credential = await leased.key("ada")
    get_session = leased.get_session

    async def used_before() -> AsyncIterator[Any]:
        if leased.async_engine is None:
            with Session(leased.engine, expire_on_commit=False) as session:
                session.held = session.get(User, "ada")  # type: ignore[attr-defined]
                disable()
                yield session
        else:
            async with AsyncSession(leased.async_engine) as async_session:
                async_session.info["held"] = await async_session.get(User, "ada")
                await async_session.commit()
                disable()
                yield async_session

    def disable() -> None:
        leased.write(lambda session: setattr(session.get(User, "ada"), "is_active", False))

    leased.app.dependency_overrides[get_session] = used_before
    assert (await leased.get("/me", credential)).status == 401


async def test_what_is_verified_again_is_read_anew(site: Site) -> None:
    reply = await site.get("/again", await site.key("ada"))
    assert (reply.status, reply.json["code"]) == (401, "owner_disabled")


async def test_dependency_overrides_reach_the_user_and_the_guard(
    site: Site, tmp_path: Path
) -> None:
    # The application's tests have a database of their own, which is the only one with this user.
    other = create_engine(f"sqlite:///{tmp_path / 'tests.db'}")
    Base.metadata.create_all(other)
    with Session(other) as session, session.begin():
        session.add(User(id="eve", name="Eve of the tests"))
    other_async = create_async(other.url.set(drivername="sqlite+aiosqlite"))

    def session_of_test() -> Iterator[Session]:
        with Session(other) as session:
            yield session

    async def async_session_of_test() -> AsyncIterator[AsyncSession]:
        async with AsyncSession(other_async) as session:
            yield session

    blocks = site.async_engine is None
    replaced = session_of_test if blocks else async_session_of_test
    assert (await site.get("/me", "session-of-eve")).status == 401
    site.queries.clear()
    site.app.dependency_overrides[site.get_session] = replaced
    reply = await site.get("/me", "session-of-eve")
    assert reply.json == {"name": "Eve of the tests", "attached": True}
    assert (await site.get("/me", "session-of-ada")).status == 401
    assert site.queries == []
    await other_async.dispose()
    other.dispose()


async def test_a_replaced_principal_loads_its_own_user(site: Site) -> None:
    bob = local_principal(
        Owner("bob", frozenset({"tasks:read"}), None), at=site.auth.authenticator.clock.now()
    )
    for guard in (site.auth.principal, site.auth.require("tasks:read")):
        assert guard.dependency is not None
        site.app.dependency_overrides[guard.dependency] = lambda: bob
    assert (await site.get("/me", "nothing")).json == {"name": "Bob", "attached": True}


@pytest.mark.parametrize("lease", [None, LEASE], ids=["no lease", "leased"])
async def test_concurrent_requests_never_share_a_session(
    make_site: Callable[..., Site], lease: timedelta | None
) -> None:
    site = make_site(lease)
    credential = await site.key("ada")
    seen: list[tuple[int, int]] = []
    # Both requests have their sessions before either of them is verified.
    both = threading.Barrier(2, timeout=30)
    site.entered = lambda: both.wait() and None

    @site.app.get("/concurrent")
    def concurrent(
        session: Annotated[Any, Depends(site.get_session)],
        user: Annotated[User, site.auth.user()],
    ) -> None:
        assert user in session
        both.wait()
        seen.append((id(session), id(user)))
        both.wait()

    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(site.get, "/concurrent", credential)
    assert len(seen) == 2
    assert len({session for session, _ in seen}) == 2
    assert len({user for _, user in seen}) == 2
    await site.close()


async def test_key_routes_hold_no_session(site: Site) -> None:
    reply = await site.get("/keys", "session-of-ada")
    assert (reply.status, reply.json["items"]) == (200, [])
    assert site.sessions == []


async def test_a_client_chooses_no_session(site: Site) -> None:
    """What FastAPI does not know as a dependency it takes from the query."""
    app, auth = FastAPI(), FastAPIAuth(site.auth.authenticator)

    @app.get("/principal")
    def principal(principal: Annotated[Principal[None], auth.principal]) -> str:
        return principal.owner.id

    app.include_router(auth.key_routes(prefix="/keys"))
    auth.install(app)
    header = (b"authorization", b"Bearer session-of-ada")
    for each, path in ((app, "/principal"), (app, "/keys"), (site.app, "/keys")):
        reply = await send(each, "GET", f"{path}?session=mine".encode(), [header])
        assert reply.status == 200
        document = await send(each, "GET", b"/openapi.json")
        operation = document.json["paths"][path]["get"]
        assert "session" not in {one["name"] for one in operation.get("parameters", [])}


async def test_the_document_names_the_permissions(site: Site) -> None:
    reply = await send(site.app, "GET", b"/openapi.json")
    operation = reply.json["paths"]["/me"]["get"]
    assert {"Login", "ApiKey"} == {name for each in operation["security"] for name in each}
    assert "parameters" not in operation


async def test_an_adapter_that_gets_its_authenticator_later(make_site: Callable[..., Site]) -> None:
    site = make_site()
    auth: FastAPIAuth[None] = FastAPIAuth(session=site.get_session)
    app = FastAPI()

    @app.get("/me")
    def me(user: Annotated[User, auth.user()]) -> str:
        return user.name

    auth.install(app, site.blocking)
    header = (b"authorization", b"Bearer session-of-ada")
    reply = await send(app, "GET", b"/me", [header])
    assert (reply.status, reply.json) == (200, "Ada")
    assert len(site.queries) == 1
    await site.close()


class TestSetUpsThatCannotWork:
    def test_a_user_without_a_session(self) -> None:
        auth = FastAPIAuth(Authenticator(MemoryKeyStore(), find_owner=lambda _: None))
        with pytest.raises(ConfigurationError, match="session=get_session"):
            auth.user()

    def test_a_user_without_users(self) -> None:
        authenticator: Authenticator[None] = Authenticator(
            MemoryKeyStore(), find_owner=lambda _: None
        )
        auth = FastAPIAuth(authenticator, session=lambda: None)
        with pytest.raises(ConfigurationError, match="find_owner=Users"):
            auth.user()

    def test_a_session_that_is_no_function(self) -> None:
        given: Any
        for given in (Depends(lambda: None), "get_session"):
            with pytest.raises(ConfigurationError, match="without Depends"):
                FastAPIAuth(session=given)
