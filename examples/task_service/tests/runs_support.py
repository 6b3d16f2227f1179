"""What the tests of tasks and runs share: databases, users, a clock that stands, and settings that can be changed."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from examples.task_service.tests import sqlite_connections
from examples.task_service.tests.postgres_pool import PostgresPool
from prometheus_client import CollectorRegistry
from pydantic import ConfigDict, SecretStr
from sqlalchemy import event, insert, update
from sqlalchemy.exc import OperationalError

from msk_auth import Clock, CredentialKind, Owner, Principal, SystemClock
from task_service.accounts.audit import Audit
from task_service.accounts.changes import Accounts
from task_service.accounts.config import ServiceConfig
from task_service.db import schema
from task_service.db.engine import Database
from task_service.db.migrate import migrate
from task_service.handlers import (
    Handler,
    HandlerEnvironment,
    HandlerParams,
    HandlerRegistry,
    HandlerResult,
    RunContext,
)
from task_service.observability import RunMetrics
from task_service.parameter_keys import ParameterKeys
from task_service.tasks.models import LogLine, NewTask, Run, Task
from task_service.tasks.notifications import Notifications
from task_service.tasks.parameters import TaskParameters
from task_service.tasks.run_log import LogReader
from task_service.tasks.runs import Runs
from task_service.tasks.tasks import Tasks
from task_service.tasks.worker_runs import AcquiredRun, WorkerRuns

POSTGRES = os.environ.get(
    "MSK_AUTH_TEST_POSTGRES_URL", "postgresql://postgres@127.0.0.1:5432/postgres"
)
LEASE = timedelta(seconds=15)
USER = frozenset({"tasks:read", "tasks:write", "tasks:run"})


class FakeClock:
    """A clock that stands until it is moved; wall clock and monotonic clock move apart if wanted."""

    def __init__(self) -> None:
        self.wall = datetime(2026, 1, 1, tzinfo=UTC)
        self.seconds = 1000.0

    def now(self) -> datetime:
        return self.wall

    def monotonic(self) -> float:
        return self.seconds

    def advance(self, seconds: float) -> None:
        self.wall += timedelta(seconds=seconds)
        self.seconds += seconds


class Settings(ServiceConfig):
    model_config = ConfigDict(frozen=False)


class Config:
    def __init__(self) -> None:
        self.settings = Settings()
        self.error: Exception | None = None

    async def current(self) -> Settings:
        if self.error is not None:
            raise self.error
        return self.settings


@dataclass(frozen=True)
class User:
    id: str
    username: str


def principal(user_id: str, *more: str, key_id: str | None = None) -> Principal[User]:
    owner = Owner(user_id, USER | set(more), User(user_id, f"name of {user_id}"))
    kind = CredentialKind.INTERACTIVE if key_id is None else CredentialKind.API_KEY
    return Principal(
        owner, kind, owner.permissions, datetime(2026, 1, 1, tzinfo=UTC), key_id=key_id
    )


ANN = principal("usr_ann")
BOB = principal("usr_bob")
ADMIN = principal("usr_admin", "tasks:read_all")


class AnythingParams(HandlerParams):
    do: str = "nothing"
    token: SecretStr | None = None


class Anything(Handler[AnythingParams]):
    """Accepts `do` and does what the test puts into `work`."""

    name = "anything"
    title = "Anything"
    description = "Whatever the test wants."
    Params = AnythingParams

    async def run(self, params: AnythingParams, context: RunContext) -> HandlerResult:
        return await WORK[params.do](context)


WORK: dict[str, Any] = {}
OBSERVER = RunMetrics(CollectorRegistry())
PARAMETER_KEYS = ParameterKeys({"2026-01-01-test": bytes(range(32))}, "2026-01-01-test")


def registry(config: Config) -> HandlerRegistry:
    async def allowed_commands() -> list[str]:
        return (await config.current()).allowed_commands

    environment = HandlerEnvironment(allowed_commands=allowed_commands)
    return HandlerRegistry([*HandlerRegistry.load(environment), Anything(environment)])


def parameters(config: Config) -> TaskParameters:
    return TaskParameters(registry(config), PARAMETER_KEYS)


@dataclass
class World:
    """Tasks and runs on one database, as their owners and workers see them."""

    db: Database
    clock: Any = field(default_factory=FakeClock)
    config: Config = field(default_factory=Config)
    notifications: Notifications = field(default_factory=Notifications)

    def __post_init__(self) -> None:
        accounts = accounts_of(self.db, self.clock)
        self.parameters = parameters(self.config)
        self.tasks = Tasks(accounts, self.parameters)
        self.runs = Runs(accounts, self.config, self.notifications, self.parameters)

    def worker(self, name: str = "w", **options: Any) -> WorkerRuns:
        """What a worker does with runs; `db` gives it a pool of its own."""
        options = {"db": self.db, "lease": LEASE} | options
        return WorkerRuns(
            clock=self.clock,
            config=self.config,
            notifications=self.notifications,
            worker_id=name,
            **options,
        )

    async def new_task(self, who: Principal[User] | None = None, **values: Any) -> Task:
        new = {"name": "Task", "handler": "anything", "params": {"do": "x"}} | values
        return await self.tasks.create(who or ANN, NewTask.model_validate(new))

    async def set(self, run: Run, **values: Any) -> None:
        async with self.db.write() as connection:
            await connection.execute(
                update(schema.runs).where(schema.runs.c.id == run.id).values(**values)
            )


@pytest.fixture(params=["sqlite", "postgresql"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with database(request.param, tmp_path) as db:
        yield World(db)


async def acquire(worker: WorkerRuns) -> AcquiredRun:
    """The one run that a worker acquires."""
    (acquired,) = await worker.acquire(1)
    return acquired


@contextlib.asynccontextmanager
async def opened(kind: str, folder: Path) -> AsyncIterator[Database]:
    """A fresh database of this kind with its tables."""
    async with migrated(kind, folder) as url, contextlib.AsyncExitStack() as stack:
        db = Database.open(url)
        if kind == "sqlite":
            sqlite_connections.follow(db.engine)
            stack.push_async_callback(sqlite_connections.join, folder)
        stack.push_async_callback(db.close)
        yield db


@contextlib.asynccontextmanager
async def database(kind: str, folder: Path) -> AsyncIterator[Database]:
    """As :func:`opened`, with the users above."""
    async with opened(kind, folder) as db:
        await add_user(db, ANN, BOB, ADMIN)
        yield db


async def add_user(db: Database, *principals: Principal[User]) -> None:
    async with db.write() as connection:
        await connection.execute(
            insert(schema.users),
            [
                {
                    "id": each.owner.id,
                    "username": each.owner.id,
                    "roles": [],
                    "created_at": each.authenticated_at,
                }
                for each in principals
            ],
        )


@contextlib.asynccontextmanager
async def fresh_postgres(template: str = "template1") -> AsyncIterator[str]:
    """The URL of a database of its own: an empty one, or a copy of `template`."""
    name = f"task_service_{secrets.token_hex(6)}"
    try:
        admin = await psycopg.AsyncConnection.connect(POSTGRES, autocommit=True, connect_timeout=60)
    except psycopg.OperationalError as error:
        pytest.skip(f"no PostgreSQL: {error}")
    async with admin:
        await admin.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        try:
            yield f"{POSTGRES.rpartition('/')[0]}/{name}"
        finally:
            await admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@contextlib.asynccontextmanager
async def migrated(kind: str, folder: Path) -> AsyncIterator[str]:
    """The URL of a database of this version's schema without data. Migrating is tested elsewhere."""
    if kind == "sqlite":
        (folder / "test.sqlite3").write_bytes(await asyncio.to_thread(_migrated_file))
        yield f"sqlite:///{folder / 'test.sqlite3'}"
    else:
        with contextlib.ExitStack() as borrowed:
            try:
                url = await asyncio.to_thread(borrowed.enter_context, _postgres_pool.borrow())
            except psycopg.OperationalError as error:
                pytest.skip(f"no PostgreSQL: {error}")
            yield url


@functools.cache
def _migrated_file() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "template.sqlite3"
        _migrate(f"sqlite:///{path}")
        return path.read_bytes()


def _migrate(url: str) -> None:
    async def migrate_and_close() -> None:
        db = Database.open(url)
        await migrate(db)
        await db.close()

    asyncio.run(migrate_and_close())


_postgres_pool = PostgresPool(POSTGRES, _migrate)


async def read_log(db: Database, run_id: str, after_seq: int = 0) -> Sequence[LogLine]:
    """A run's log, at most 500 lines of it."""
    return await LogReader(db, Notifications(), SystemClock()).read(run_id, after_seq)


async def to_be_stopped(worker: WorkerRuns) -> set[str]:
    """The ids of the running runs whose cancellation was requested, as this worker reads them."""
    return {each.run_id for each in await worker.observed_leases() if each.cancel_requested}


def accounts_of(db: Database, clock: Clock) -> Accounts:
    """What tasks and runs are changed through."""
    return Accounts(db, clock, Audit(db, clock))


@contextlib.contextmanager
def observed(db: Database, observe: Callable[[str, Any], None]) -> Iterator[None]:
    """Each statement of the block is observed, with its parameters, before it is executed."""

    def before_cursor_execute(*args: Any) -> None:
        observe(args[2], args[3])

    event.listen(db.engine.sync_engine, "before_cursor_execute", before_cursor_execute)
    try:
        yield
    finally:
        event.remove(db.engine.sync_engine, "before_cursor_execute", before_cursor_execute)


@contextlib.contextmanager
def failing(db: Database, containing: str = "") -> Iterator[list[str]]:
    """Each statement of the block, or each that contains this text, fails as if the database were gone; those that were refused."""
    refused: list[str] = []

    def refuse(statement: str, _parameters: object) -> None:
        if containing in statement:
            refused.append(statement)
            raise OperationalError("statement", {}, Exception("gone"))

    with observed(db, refuse):
        yield refused


async def plans_of(db: Database, work: Awaitable[object], containing: str = "") -> list[str]:
    """How the database executes the statements of this work, a line for each step."""
    statements: list[tuple[str, Any]] = []
    with observed(db, lambda *statement: statements.append(statement)):
        await work
    plans: list[str] = []
    explain = "EXPLAIN QUERY PLAN" if db.engine.dialect.name == "sqlite" else "EXPLAIN"
    async with db.read() as connection:
        for statement, parameters in statements:
            if containing in statement:
                found = await connection.exec_driver_sql(f"{explain} {statement}", parameters)
                plans += [str(row[-1]) for row in found]
    return plans
