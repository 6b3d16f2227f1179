"""What the tests of accounts share: migrated databases, and all services of accounts on one of them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from argon2.profiles import CHEAPEST
from examples.task_service.tests.runs_support import fresh_postgres, opened
from sqlalchemy import select

from msk_auth import CredentialKind, Principal, SigningKey, TokenProfile
from msk_auth.testing import FrozenClock
from task_service.accounts.audit import Audit
from task_service.accounts.changes import Accounts, Change
from task_service.accounts.config import MAX_SESSION_LIFETIME, ConfigStore
from task_service.accounts.invitations import Invitations
from task_service.accounts.login import Login
from task_service.accounts.login_methods import LoginMethods
from task_service.accounts.passwords import Passwords
from task_service.accounts.sessions import Sessions
from task_service.accounts.throttle import Attempts, LoginThrottle
from task_service.accounts.users import User, Users
from task_service.db import schema
from task_service.db.engine import Database
from task_service.request_record import RequestRecord, current_request
from task_service.services import Services

PASSWORD = "nine violet submarines"
OTHER_PASSWORD = "seven teal locomotives"
START = datetime(2026, 1, 1, tzinfo=UTC)

KINDS = ["sqlite", "postgresql"]
PASSWORDS = LoginMethods()


@contextlib.asynccontextmanager
async def database_url(kind: str, folder: Path) -> AsyncIterator[str]:
    """Where an empty database of this kind is."""
    if kind == "postgresql":
        async with fresh_postgres() as url:
            yield url
    else:
        yield f"sqlite:///{folder / 'test.sqlite3'}"


class CountingPasswords(Passwords):
    """Counts the hashes that are computed, so that equal work is asserted without a stopwatch."""

    def __init__(self) -> None:
        super().__init__(CHEAPEST)
        self.hashed = 0
        self.verified = 0

    async def hash(self, password: str) -> str:
        self.hashed += 1
        return await super().hash(password)

    async def verify(self, password: str, encoded: str | None) -> bool:
        self.verified += 1
        return await super().verify(password, encoded)


@dataclass
class World:
    """One deployment."""

    db: Database
    clock: FrozenClock
    audit: Audit
    accounts: Accounts
    passwords: CountingPasswords
    users: Users
    invitations: Invitations
    sessions: Sessions
    config: ConfigStore
    login: Login
    throttle: LoginThrottle
    tokens: TokenProfile
    lease_waits: list[None]

    async def user(self, name: str = "ann", *roles: str, password: str | None = PASSWORD) -> User:
        """A new user."""
        return await self.users.create(name, roles or ["user"], password=password)

    async def logged_in(self, user: User, password: str = PASSWORD) -> Principal[User]:
        """The user, in a session of their own."""
        begun = await self.login.log_in(user.username, password)
        return principal(user, session_id=begun.session_id)

    async def actions(self) -> list[str]:
        """What the audit log holds, oldest first."""
        return [row["action"] for row in await self.rows("audit", order_by="id")]

    async def rows(self, table: str, order_by: str | None = None) -> list[Mapping[str, Any]]:
        """All rows of a table."""
        found = schema.metadata.tables[table]
        statement = select(found)
        if order_by is not None:
            statement = statement.order_by(found.c[order_by])
        async with self.db.read() as connection:
            return list((await connection.execute(statement)).mappings())


@contextlib.asynccontextmanager
async def world(kind: str, folder: Path, methods: LoginMethods = PASSWORDS) -> AsyncIterator[World]:
    """All services of accounts on a fresh, migrated database."""
    async with opened(kind, folder) as db:
        with contextlib.closing(CountingPasswords()) as passwords:
            yield compose(db, passwords, methods)


def compose(db: Database, passwords: CountingPasswords, methods: LoginMethods = PASSWORDS) -> World:
    """The services of one process on a database."""
    clock = FrozenClock(START)
    lease_waits: list[None] = []

    async def await_lease_expiry() -> None:
        lease_waits.append(None)

    tokens = TokenProfile(
        issuer="https://tasks.test",
        audience="https://tasks.test",
        keys=[SigningKey.generate("k1", "HS256")],
        max_lifetime=MAX_SESSION_LIFETIME,
    )
    audit = Audit(db, clock)
    accounts = Accounts(db, clock, audit, await_lease_expiry)
    users = Users(accounts, passwords=passwords, methods=methods)
    invitations = Invitations(
        accounts=accounts, users=users, passwords=passwords, base_url="https://tasks.test"
    )
    sessions = Sessions(accounts, tokens=tokens, methods=methods)
    config = ConfigStore(accounts)
    throttle = LoginThrottle(Attempts(db, clock), key=b"k" * 32)
    login = Login(
        accounts=accounts,
        users=users,
        sessions=sessions,
        passwords=passwords,
        config=config,
        throttle=throttle,
    )
    return World(
        db=db,
        clock=clock,
        audit=audit,
        accounts=accounts,
        passwords=passwords,
        users=users,
        invitations=invitations,
        sessions=sessions,
        config=config,
        login=login,
        throttle=throttle,
        tokens=tokens,
        lease_waits=lease_waits,
    )


async def record(
    it: World | Services,
    action: str,
    target: str | None = None,
    *,
    by: Principal[Any] | None = None,
    anonymous: bool = False,
    **details: Any,
) -> None:
    """Add an entry to the audit log."""
    async with it.db.write() as connection:
        change = Change(connection, by, it.clock.now(), it.audit)
        await change.record(action, target, anonymous=anonymous, **details)


@contextlib.contextmanager
def client(address: str | None, user_agent: str | None = None) -> Iterator[None]:
    """The client of the request that is being answered."""
    token = current_request.set(RequestRecord("req_1", address, user_agent))
    try:
        yield
    finally:
        current_request.reset(token)


def principal(user: User, *, session_id: str | None = None) -> Principal[User]:
    """A user with a login, whether such a session is open or not."""
    owner = user.to_owner()
    return Principal(
        owner, CredentialKind.INTERACTIVE, owner.permissions, START, session_id=session_id
    )
