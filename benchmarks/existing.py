"""`GET /users/me` of an application that exists, before and after it got the library.

It is what many FastAPI applications look like: synchronous sessions, a JWT of its own, and a dependency that reads the user
through the ORM. Afterwards the same tokens are accepted through `logins`, keys as well. There are three ways to the user: `user` of the
adapter, which reads in the session of the request what decides about it; a dependency that reads the user once more, beside a
`find_owner` with a session of its own; and the snapshot that `find_owner` made.
"""

# No `from __future__ import annotations`: FastAPI reads the annotations of local names.

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

import jwt
from fastapi import Depends, FastAPI, HTTPException
from fastapi.security import OAuth2PasswordBearer
from sqlalchemy import Engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from msk_auth import Authenticator, Login, Owner, Principal, Users
from msk_auth.integrations.fastapi import FastAPIAuth
from msk_auth.stores.sqlalchemy import SQLAlchemyKeyStore

from . import subjects
from .handling import ask_asgi
from .machine import describe
from .result import Aim, Chart, Column, Result, Row, Spread
from .timing import Scale, Work, ratios, take_turns

BEFORE: Final = "before: its own JWT"
SECRET: Final = "a secret of the application, of 32 bytes"
GROUP: Final = "FastAPI"
USER, TWICE, SNAPSHOT = "user", "read twice", "snapshot"
LEASES: Final = (("no lease", None), ("leased", subjects.LONG_LEASE))


class Base(DeclarativeBase):
    """The application's tables."""


class User(Base):
    """The application's user."""

    __tablename__ = "users"

    id: Mapped[str] = mapped_column(primary_key=True)
    email: Mapped[str]
    is_active: Mapped[bool] = mapped_column(default=True)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What `find_owner` keeps of a user: a lease shares it between requests."""

    id: str
    email: str


def read_token(token: str) -> dict[str, Any] | None:
    """The claims of a token of the application."""
    try:
        claims: dict[str, Any] = jwt.decode(token, SECRET, algorithms=["HS256"])
    except jwt.InvalidTokenError:
        return None
    return claims


def find_login(token: str) -> Login | None:
    """What the application gives to `logins`."""
    claims = read_token(token)
    if claims is None:
        return None
    return Login(claims["sub"], valid_until=datetime.fromtimestamp(claims["exp"], UTC))


def load_user(session: Session, user_id: str) -> User | None:
    """What the application gives to `Users`."""
    return session.get(User, user_id)


def owner_of(user: User) -> Owner[None]:
    """What decides about a user."""
    return Owner(user.id, frozenset({"tasks:read"}), None, disabled=not user.is_active)


def application(
    engine: Engine, authenticator: Authenticator[Any] | None = None, way: str = ""
) -> FastAPI:
    """The application, before it got an authenticator or afterwards, with one of the ways to the user."""
    app = FastAPI(openapi_url=None)
    oauth2 = OAuth2PasswordBearer(tokenUrl="login")

    def get_session() -> Iterator[Session]:
        with Session(engine) as session:
            yield session

    in_session = Annotated[Session, Depends(get_session)]

    def load(session: Session, user_id: str) -> User:
        user = load_user(session, user_id)
        if user is None or not user.is_active:
            raise HTTPException(401)
        return user

    def current_before(session: in_session, token: Annotated[str, Depends(oauth2)]) -> User:
        claims = read_token(token)
        if claims is None:
            raise HTTPException(401)
        return load(session, claims["sub"])

    current: Any = current_before
    if authenticator is not None:
        auth = FastAPIAuth(authenticator, session=get_session if way == USER else None)
        auth.install(app)

        def current_twice(
            session: in_session, principal: Annotated[Principal[Any], auth.principal]
        ) -> User:
            return load(session, principal.owner.id)

        def from_snapshot(principal: Annotated[Principal[Any], auth.principal]) -> Any:
            return principal.user

        current = from_snapshot if way == SNAPSHOT else current_twice
        if way == USER:
            current = auth.user().dependency

    @app.get("/")
    def me(user: Annotated[Any, Depends(current)]) -> dict[str, str]:
        return {"id": user.id, "email": user.email}

    return app


def authenticators(engine: Engine, stack: ExitStack) -> dict[tuple[str, str], Authenticator[Any]]:
    """Those of each way, without a lease and with one."""

    def find_owner(user_id: str) -> Owner[Snapshot] | None:
        with Session(engine) as session:
            user = load_user(session, user_id)
            return None if user is None else _owner(user)

    store = SQLAlchemyKeyStore(engine)
    stack.callback(store.close)
    finds: dict[str, Any] = {
        USER: Users(load_user, owner_of, sessionmaker(engine)),
        TWICE: find_owner,
        SNAPSHOT: find_owner,
    }
    return {
        (way, name): Authenticator(
            store, find_owner=find, logins=[find_login], hasher=subjects.hasher(), lease=lease
        )
        for way, find in finds.items()
        for name, lease in LEASES
    }


def works(engine: Engine, given: dict[tuple[str, str], Authenticator[Any]]) -> Iterator[Work]:
    """The application before, and with each of the authenticators."""
    token = jwt.encode({"sub": "ada", "exp": datetime.now(UTC) + timedelta(days=1)}, SECRET)
    key = next(iter(given.values())).create_key(subjects.interactive(), name="benchmark")
    before = ask_asgi(application(engine), token, 200)
    yield Work(GROUP, BEFORE, before, is_async=True)
    for (way, lease), authenticator in given.items():
        app = application(engine, authenticator, way)
        for kind, credential in (("its own JWT", token), ("a key", key.value.reveal())):
            call = ask_asgi(app, credential, 200)
            yield Work(GROUP, f"{kind}, {lease}, {way}", call, BEFORE, is_async=True)


def run(scale: Scale) -> Result:
    """Measure it."""
    measured = describe("fastapi", "sqlalchemy", "pyjwt")
    with ExitStack() as stack:
        engine = stack.enter_context(subjects.engine_of(stack.enter_context(subjects.sqlite_url())))
        Base.metadata.create_all(engine)
        with Session(engine) as session:
            session.add(User(id="ada", email="ada@example.com"))
            session.commit()
        runner = stack.enter_context(asyncio.Runner())
        ways = list(works(engine, authenticators(engine, stack)))
        samples = take_turns(
            ways,
            rounds=scale.pick(1, 30),
            seconds=scale.pick(1, 500) / 10_000,
            clock=time.process_time,  # most of it is done in other threads
            runner=runner,
        )
    return Result(
        name="existing",
        title="An application that exists",
        method="Processor time of one request to `GET /users/me`, in process: a synchronous session, a user read through the ORM from"
        " SQLite. Before, a dependency of the application's own verifies its JWT; afterwards the library does, with `logins`,"
        " and the user comes from `user` of the adapter, from a dependency that reads it once more, or from the snapshot that `find_owner` made. The ratio says how many requests are answered for each one before.",
        columns=[Column("time", "Time", "µs"), Column("ratio", "Requests, ratio")],
        rows=[_row(way, samples) for way in ways],
        chart=Chart("bars", "processor time of one request, µs", "time"),
        measured=measured,
    )


def _owner(user: User) -> Owner[Snapshot]:
    return Owner(user.id, frozenset({"tasks:read"}), Snapshot(user.id, user.email))


def _row(way: Work, samples: dict[str, list[float]]) -> Row:
    times = samples[way.name]
    cells = {"time": Spread.of(times)}
    aim = None
    if way.against:
        cells["ratio"] = Spread.of(ratios(samples[way.against], times))
    if way.against and TWICE not in way.name:
        aim = Aim("ratio", "at least", 1.0 if "no lease" in way.name else 1.5)
    return Row(way.group, way.name, cells, way.against, aim)
