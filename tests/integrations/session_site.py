"""An application in each framework whose users are in a database, and which has one session per request."""

# No `from __future__ import annotations`: FastAPI and Litestar read the annotations of local names.

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Annotated, Any

from sqlalchemy import Engine, event
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.ext.asyncio import create_async_engine as create_async
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from tests.contract.adapter import Reply
from tests.core.support import StubIssuer
from tests.integrations.adapters import send

from msk_auth import (
    AsyncAuthenticator,
    AsyncUsers,
    Authenticator,
    ExternalIdentity,
    Login,
    Owner,
    Principal,
    Users,
    local_principal,
)
from msk_auth.stores.memory import AsyncMemoryKeyStore, MemoryKeyStore
from msk_auth.testing import FrozenClock

TOMORROW = FrozenClock().now() + timedelta(days=1)


class Base(DeclarativeBase):
    pass


class User(Base):
    __tablename__ = "users"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    subject: Mapped[str | None]
    is_active: Mapped[bool] = mapped_column(default=True)


def load_user(session: Session, user_id: str) -> User | None:
    return session.get(User, user_id)


async def load_user_async(session: AsyncSession, user_id: str) -> User | None:
    return await session.get(User, user_id)


def load_external(session: Session, identity: ExternalIdentity) -> User | None:
    return session.query(User).filter_by(subject=identity.subject).one_or_none()


async def load_external_async(session: AsyncSession, identity: ExternalIdentity) -> User | None:
    return await session.run_sync(load_external, identity)


def owner_of(user: User) -> Owner[None]:
    return Owner(user.id, frozenset({"tasks:read"}), None, disabled=not user.is_active)


def find_login(token: str) -> Login | None:
    if not token.startswith("session-of-"):
        return None
    # Without an end no lease would cover it.
    return Login(token.removeprefix("session-of-"), valid_until=TOMORROW)


class Site:
    """The application, and what it has done in its database.

    Its routes: `/me` gives the name of the user, and whether the user belongs to the session of the request. `/principal` has a
    guard alone. `/again` verifies again after the user was disabled elsewhere. `/keys` are the key routes.

    Args:
        adapter: The framework.
        engine: The database, disposed of by :meth:`close`.
        lease: The authenticator's.
        awaits: Whether the application is asynchronous.

    Attributes:
        app: The application.
        auth: Its adapter.
        queries: Each query for users.
        sessions: The sessions of requests, in the order in which they were opened.
        entered: Called when one was opened.
        get_session: FastAPI's dependency with the session of a request.
    """

    def __init__(
        self, adapter: str, engine: Engine, lease: timedelta | None = None, *, awaits: bool
    ) -> None:
        self.engine = engine
        # By the real one a request that is slow for once is granted no lease.
        self.clock = FrozenClock()
        self.queries: list[str] = []
        self.sessions: list[Any] = []
        self.entered: Callable[[], None] = lambda: None
        event.listen(engine, "before_cursor_execute", self._note)
        Base.metadata.create_all(engine)
        self.write(lambda session: session.add(User(id="ada", name="Ada", subject="00u1")))
        self.write(lambda session: session.add(User(id="bob", name="Bob")))
        self.queries.clear()
        self.async_engine: AsyncEngine | None = None
        if awaits:
            self.async_engine = create_async(engine.url.set(drivername="sqlite+aiosqlite"))
            event.listen(self.async_engine.sync_engine, "before_cursor_execute", self._note)
        self.given = self._authenticator(lease)
        self.auth: Any = None
        self.app: Any = None
        self.get_session: Any = None
        MAKE[adapter](self)

    def _note(self, _c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "FROM users" in statement:
            self.queries.append(statement)

    def _authenticator(self, lease: timedelta | None) -> Any:
        make: Any = Authenticator
        users: Any = Users
        store: Any = MemoryKeyStore
        sessions: Any = sessionmaker(self.engine)
        loaders: Any = load_user, load_external
        if self.async_engine is not None:
            make, users, store = AsyncAuthenticator, AsyncUsers, AsyncMemoryKeyStore
            sessions = async_sessionmaker(self.async_engine)
            loaders = load_user_async, load_external_async
        by_id, by_identity = (users(load, owner_of, sessions) for load in loaders)
        return make(
            store(),
            find_owner=by_id,
            find_external_owner=by_identity,
            issuers=[StubIssuer()],
            logins=[find_login],
            lease=lease,
            clock=self.clock,
        )

    def open(self) -> Any:
        """A session of a request, which the application closes."""
        session = (
            Session(self.engine) if self.async_engine is None else AsyncSession(self.async_engine)
        )
        self.sessions.append(session)
        self.entered()
        return session

    async def close_session(self, session: Any) -> None:
        """The end of a request."""
        if isinstance(session, AsyncSession):
            await session.close()
        elif session is not None:
            session.close()

    def disable(self, user_id: str) -> None:
        self.write(lambda session: setattr(session.get(User, user_id), "is_active", False))

    def write(self, change: Callable[[Session], object]) -> None:
        """A change that is committed elsewhere."""
        with Session(self.engine) as session, session.begin():
            change(session)

    async def key(self, owner_id: str) -> str:
        with Session(self.engine) as session:
            owner = owner_of(session.get_one(User, owner_id))
        principal = local_principal(owner, at=self.clock.now(), interactive=True)
        created = self.given.create_key(principal, name="a script")
        key: str = (created if self.async_engine is None else await created).value.reveal()
        self.queries.clear()
        return key

    async def credential(self, kind: str, owner_id: str) -> str:
        return await self.key(owner_id) if kind == "key" else f"session-of-{owner_id}"

    async def await_lease_expiry(self) -> None:
        if self.async_engine is None:
            self.given.await_lease_expiry()
        else:
            await self.given.await_lease_expiry()

    async def get(self, path: str, credential: str) -> Reply:
        header = (b"authorization", f"Bearer {credential}".encode())
        return await send(self.app, "GET", path.encode(), [header])

    async def close(self) -> None:
        if self.async_engine is not None:
            await self.async_engine.dispose()
        self.engine.dispose()


def _profile(user: User, session: Any) -> dict[str, Any]:
    return {"name": user.name, "attached": user in session}


def _make_fastapi(site: Site) -> None:
    from fastapi import Depends, FastAPI, Request

    from msk_auth.integrations.fastapi import FastAPIAuth

    def get_session() -> Iterator[Session]:
        with site.open() as session:
            yield session

    async def get_session_async() -> AsyncIterator[AsyncSession]:
        async with site.open() as session:
            yield session

    site.get_session = get_session if site.async_engine is None else get_session_async
    auth: Any = FastAPIAuth(site.given, session=site.get_session)
    app = auth.install(FastAPI())
    SessionDep = Annotated[Any, Depends(site.get_session)]  # noqa: N806 - it is a type

    @app.get("/me", dependencies=[auth.require("tasks:read")])
    def me(session: SessionDep, user: Annotated[User, auth.user("tasks:read")]) -> dict[str, Any]:
        return _profile(user, session)

    @app.get("/principal")
    def principal(principal: Annotated[Principal[None], auth.principal]) -> dict[str, Any]:
        return {"id": principal.owner.id, "user": principal.user}

    @app.get("/again")
    async def again(request: Request, user: Annotated[User, auth.user()]) -> None:
        site.disable(user.id)
        await auth.verify_again(request)

    app.include_router(auth.key_routes(prefix="/keys"))
    site.auth, site.app = auth, app


def _make_starlette(site: Site) -> None:
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    from msk_auth.integrations.starlette import StarletteAuth

    def session_of(request: Any) -> Any:
        if "session" not in request.scope["state"]:
            request.state.session = site.open()
        return request.state.session

    class Sessions:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await self.app(scope, receive, send)
            await site.close_session(scope["state"].get("session"))

    auth: Any = StarletteAuth(site.given, session=session_of)
    current_user = auth.user(site.given.users)

    @auth.require("tasks:read")
    async def me(request: Request) -> Response:
        return JSONResponse(_profile(await current_user(request), session_of(request)))

    @auth.require("tasks:read")
    def me_blocking(request: Request) -> Response:
        return JSONResponse(_profile(current_user(request), session_of(request)))

    @auth.require()
    async def principal(request: Request) -> Response:
        principal = auth.principal(request)
        return JSONResponse({"id": principal.owner.id, "user": principal.user})

    @auth.require()
    async def again(request: Request) -> Response:
        site.disable(auth.principal(request).owner.id)
        await auth.verify_again(request)
        return JSONResponse({})

    routes = [
        Route("/me", me_blocking if site.async_engine is None else me),
        Route("/principal", principal),
        Route("/again", again),
        *auth.key_routes(prefix="/keys"),
    ]
    site.auth = auth
    site.app = auth.install(Starlette(routes=routes, middleware=[Middleware(Sessions)]))


def _make_litestar(site: Site) -> None:
    from litestar import Litestar, Request, get
    from litestar.di import Provide
    from tests.integrations.litestar_di import NamedDependency

    from msk_auth.integrations.litestar import LitestarAuth

    def session_of(connection: Any) -> Any:
        # One for each scope, as advanced-alchemy has it.
        state = connection.scope["state"]
        if "session" not in state:
            state["session"] = site.open()
        return state["session"]

    async def close_session(message: Any, scope: Any) -> None:
        if message["type"] == "http.response.start":
            await site.close_session(scope["state"].get("session"))

    def provide_session(request: Request[Any, Any, Any]) -> Any:
        return session_of(request)

    auth: Any = LitestarAuth(site.given, session=session_of)

    @get("/me", guards=[auth.require("tasks:read")])
    async def me(db_session: NamedDependency[Any], user: NamedDependency[User]) -> dict[str, Any]:
        return _profile(user, db_session)

    def is_known(connection: Any, _handler: Any) -> None:
        # A guard of the application, as it was before.
        assert connection.user in session_of(connection)

    @get("/own", guards=[auth.require(), is_known])
    async def own(request: Request[User, Any, Any], db_session: NamedDependency[Any]) -> Any:
        return _profile(request.user, db_session)

    @get("/principal", guards=[auth.require()])
    async def principal(principal: NamedDependency[Principal[None]]) -> dict[str, Any]:
        return {"id": principal.owner.id, "user": principal.user}

    @get("/again", guards=[auth.require()])
    async def again(request: Request[Any, Any, Any], user: NamedDependency[User]) -> None:
        site.disable(user.id)
        await auth.verify_again(request)

    site.auth = auth
    site.app = Litestar(
        [me, own, principal, again, auth.key_routes(path="/keys")],
        plugins=[auth],
        dependencies={
            "db_session": Provide(provide_session, sync_to_thread=False),
            "user": auth.user(),
        },
        before_send=[close_session],
        logging_config=None,
    )


def _make_flask(site: Site) -> None:
    from flask import Flask, g
    from tests.integrations.flask_app import WsgiBridge

    from msk_auth.integrations.flask import FlaskAuth

    def session_of() -> Any:
        if "session" not in g:
            g.session = site.open()
        return g.session

    app = Flask(__name__)
    auth: Any = FlaskAuth(site.given, app, session=session_of)
    current_user = auth.user(site.given.users)
    app.teardown_appcontext(lambda _: g.session.close() if "session" in g else None)

    @app.get("/me")
    @auth.require("tasks:read")
    def me() -> dict[str, Any]:
        return _profile(current_user(), session_of())

    @app.get("/principal")
    @auth.require()
    def principal() -> dict[str, Any]:
        principal = auth.current_principal
        return {"id": principal.owner.id, "user": principal.user}

    @app.get("/again")
    @auth.require()
    def again() -> dict[str, Any]:
        site.disable(current_user().id)
        auth.verify_again()
        return {}

    app.register_blueprint(auth.key_routes(url_prefix="/keys"))
    site.auth, site.app = auth, WsgiBridge(app)


MAKE: dict[str, Callable[[Any], None]] = {
    "fastapi": _make_fastapi,
    "starlette": _make_starlette,
    "litestar": _make_litestar,
    "flask": _make_flask,
}
