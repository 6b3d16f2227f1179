"""Checks for `task-service doctor`: the problems that an operator can solve, and their remedies.

The checks change nothing: `serve` makes missing files and tables. Problems that `serve` and `worker` report in one line at
start, such as a port in use, have no check.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import exc, make_url, text

from msk_auth import SystemClock
from msk_auth.errors import ConfigurationError, MskAuthError, StoreUnavailable
from task_service.db.engine import Database
from task_service.db.migrate import SchemaState, schema_state, waiting_for_finish
from task_service.deployment import check_parameter_keys, check_secrets
from task_service.handlers import HandlerEnvironment, HandlerRegistry
from task_service.secrets_file import FILE_NAME, Secrets, load_or_create_secrets
from task_service.settings import Settings, load_settings
from task_service.tasks.parameters import TaskParameters
from task_service.tasks.sealing import any_unsealed, lacking_keys
from task_service.tasks.status import count_live_workers

MAX_SKEW_SECONDS: Final = 5.0
MIN_FREE_BYTES: Final = 1024**3
"""Less free space is a problem. The alert in `deploy/prometheus-alerts.yml` has the same number."""
CONNECTIONS_OF_A_PROCESS: Final = 11
"""The most connections of a process to PostgreSQL: of its pool, the look-ups of keys, and the queue."""

# Without the connections reserved for administrators, and sessions that serve no client.
_CONNECTIONS: Final = text(
    "SELECT current_setting('max_connections')::int AS all, current_setting('max_connections')::int"
    " - current_setting('superuser_reserved_connections')::int - count(*)::int AS free"
    " FROM pg_stat_activity WHERE backend_type = 'client backend'"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        subject: What was checked.
        ok: True if there is no problem.
        message: The state and, for a problem, the remedy.
    """

    subject: str
    ok: bool
    message: str


def examine() -> list[Finding]:
    """Run all checks, the most basic first."""
    try:
        settings = load_settings()
    except MskAuthError as error:
        return [Finding("settings", False, line) for line in str(error).splitlines()]
    return asyncio.run(_collect(settings))


async def _collect(settings: Settings) -> list[Finding]:
    return [finding async for finding in _examine(settings)]


async def _examine(settings: Settings) -> AsyncGenerator[Finding]:
    yield Finding("settings", True, f"the service's address is {settings.base_url}")
    yield await _check("data folder", _data_folder(settings.data_dir))
    yield await _check("disk", _free_space(settings.data_dir))
    yield await _check("secrets", _secrets(settings.data_dir))
    url = make_url(settings.database_url)
    shown = url.render_as_string(hide_password=True)
    if settings.on_sqlite and _is_missing(Path(url.database or "")):
        yield Finding("database", True, f"{shown} does not exist yet; the first start makes it")
        return
    try:
        db = Database.open(settings.database_url)
    except MskAuthError as error:
        yield Finding("database", False, str(error))
        return
    try:
        answered = await _check("database", _answers(db, shown))
        yield answered
        if not answered.ok:
            return
        for subject, check in () if settings.on_sqlite else _OF_A_SERVER:
            yield await _check(subject, check(db, settings))
        schema = await _check("schema", _schema(db, settings))
        yield schema
        if not schema.ok or await schema_state(db) is SchemaState.OLDER:
            return
        yield await _check("secrets of tasks", _secrets_of_tasks(db, settings))
        for subject, check in () if settings.on_sqlite else _OF_PROCESSES:
            yield await _check(subject, check(db, settings))
    finally:
        await db.close()


async def _check(subject: str, check: Awaitable[str]) -> Finding:
    """Await a check, which returns the state, or raises an error with the problem and its remedy."""
    try:
        return Finding(subject, True, await check)
    except MskAuthError as error:
        return Finding(subject, False, str(error))


def _is_missing(path: Path) -> bool:
    """True if the first start makes this file or folder. False if this user cannot look there: the next check reports that."""
    try:
        path.stat()
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    return False


async def _data_folder(folder: Path) -> str:
    if _is_missing(folder):
        return f"{folder} does not exist yet; the first start makes it"
    # In this order: the folder may be out of this user's reach.
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK) or not folder.is_dir():  # noqa: ASYNC240 - the doctor serves no requests
        raise ConfigurationError(
            f"{folder} is not a folder that this user may write to; give it to the user of the service,"
            " or set TASK_SERVICE_DATA_DIR to another one"
        )
    if folder.stat().st_mode & (stat.S_IWOTH | stat.S_IWGRP):  # noqa: ASYNC240
        raise ConfigurationError(f"other users can write to {folder}; run: chmod 700 {folder}")
    return str(folder)


def free_space(folder: Path) -> tuple[str, bool]:
    """The free space for a folder in words, and whether it is scarce."""
    # The folder, or its nearest parent that exists and is in this user's reach.
    existing = next(each for each in (folder, *folder.parents) if os.access(each, os.F_OK))
    free = shutil.disk_usage(existing).free
    return f"{free / 1024**3:.1f} GiB are free for {folder}", free < MIN_FREE_BYTES


async def _free_space(folder: Path) -> str:
    state, is_scarce = free_space(folder)
    if is_scarce:
        raise ConfigurationError(
            f"only {state}; make room, and do not restart processes that serve: they continue to read, and write again when"
            " there is space"
        )
    return state


def _secrets_in(folder: Path) -> Secrets | None:
    """The secrets of the data folder; None if the first start has not made them yet."""
    if _is_missing(folder / FILE_NAME):
        return None
    return load_or_create_secrets(folder, SystemClock().now())


async def _secrets(folder: Path) -> str:
    file = folder / FILE_NAME
    if _secrets_in(folder) is None:
        return f"{file} does not exist yet; the first start makes it"
    return f"only its owner can read {file}"


async def _answers(db: Database, shown: str) -> str:
    try:
        async with db.read() as connection:
            is_server = connection.dialect.name == "postgresql"
            statement = "SELECT pg_is_in_recovery()" if is_server else "PRAGMA schema_version"
            found = await connection.scalar(text(statement))
    except StoreUnavailable as error:
        raise ConfigurationError(
            f"{shown} does not answer ({reported(error)}); check that it runs, that this machine can reach it and that"
            " TASK_SERVICE_DATABASE_URL is correct"
        ) from error
    if is_server and found:
        raise ConfigurationError(
            f"{shown} is a hot standby, which may not have the latest revocations, so the service does not read it; in"
            " TASK_SERVICE_DATABASE_URL name only the primary's host, or add target_session_attrs=read-write"
        )
    return f"{shown} answers"


def reported(error: StoreUnavailable) -> str:
    """The driver's report, in one line. It has names of users, hosts and files, and no password."""
    cause = error.__cause__ or error
    original = cause.orig if isinstance(cause, exc.DBAPIError) else cause
    return str(original).partition("\n")[0] or type(original).__name__


async def _primary(db: Database, _: Settings) -> str:
    # Imported here, because the driver needs 10 MB of memory, and a service on SQLite does not use it.
    from task_service.db.servers import refuse_two_primaries

    await refuse_two_primaries(db)
    return "one server is writable"


async def _pooling(db: Database, _: Settings) -> str:
    from task_service.db.servers import refuse_shared_sessions

    await refuse_shared_sessions(db)
    return "each connection has its own session"


async def _durability(db: Database, _: Settings) -> str:
    if await _scalar(db, "SHOW fsync") == "off":
        raise ConfigurationError(
            "fsync is off, so a crash of the server's machine can destroy the whole database;"
            " to turn it on, run: ALTER SYSTEM SET fsync = on; SELECT pg_reload_conf()"
        )
    return "commits are durable"


async def _connections(db: Database, _: Settings) -> str:
    async with db.read() as connection:
        row = (await connection.execute(_CONNECTIONS)).one()
    if row.free >= CONNECTIONS_OF_A_PROCESS:
        return f"{row.free} of PostgreSQL's {row.all} are free"
    return (
        f"only {row.free} of PostgreSQL's {row.all} are free, and each process takes up to"
        f" {CONNECTIONS_OF_A_PROCESS}; before you start another process, raise max_connections"
    )


async def _schema(db: Database, settings: Settings) -> str:
    match await schema_state(db):
        case SchemaState.CURRENT:
            if await waiting_for_finish(db):
                return (
                    "this version's; once no older process runs, run: task-service migrate --finish"
                )
            return "this version's"
        case SchemaState.NEWER:
            return "made by a newer version, and usable by this version"
        case SchemaState.OLDER:
            may_create = "SELECT has_schema_privilege(current_schema(), 'CREATE')"
            if not settings.on_sqlite and not await _scalar(db, may_create):
                raise ConfigurationError(
                    "the database's user may not create tables; as the database's administrator run:"
                    " GRANT CREATE ON SCHEMA public TO that user"
                )
            return "the next start migrates it to this version"


async def _secrets_of_tasks(db: Database, settings: Settings) -> str:
    async def no_commands() -> tuple[str, ...]:
        return ()

    secrets = _secrets_in(settings.data_dir)
    if secrets is None:
        return f"without {FILE_NAME} they cannot be read here"
    registry = HandlerRegistry.load(HandlerEnvironment(no_commands))
    parameters = TaskParameters(registry, secrets.parameter_keys)
    if lacking := await lacking_keys(db, parameters):
        raise ConfigurationError(
            f"{FILE_NAME} lacks {', '.join(sorted(lacking))}, with which some are sealed: their runs fail. Restore the pepper,"
            " or have these secrets entered again"
        )
    if await any_unsealed(db, parameters):
        return (
            "some are in plain text, or sealed with an earlier pepper; after the last older process has stopped, run:"
            " task-service migrate --finish"
        )
    return "are sealed with the current pepper"


async def _clock(db: Database, _: Settings) -> str:
    clock = SystemClock()
    async with db.read() as connection:
        await connection.execute(text("SELECT 1"))
        before = clock.now()
        theirs = await connection.scalar(text("SELECT clock_timestamp()"))
        after = clock.now()
    skew = (theirs - (before + (after - before) / 2)).total_seconds()
    if abs(skew) > MAX_SKEW_SECONDS:
        raise ConfigurationError(
            f"the database's clock is {abs(skew):.0f} seconds {'ahead of' if skew > 0 else 'behind'}"
            " this machine's; synchronise both with NTP"
        )
    return "this machine and the database agree on the time"


async def _shared_secrets(db: Database, settings: Settings) -> str:
    secrets = _secrets_in(settings.data_dir)
    await check_secrets(db, {} if secrets is None else secrets.fingerprints)
    return "no other process has other secrets"


async def _parameter_keys(db: Database, settings: Settings) -> str:
    return await check_parameter_keys(db, settings.parameter_keys)


async def _workers(db: Database, settings: Settings) -> str:
    if count := await count_live_workers(db):
        return f"{count} alive"
    if settings.leaves_runs:
        raise ConfigurationError(
            "no worker is alive, and with TASK_SERVICE_EXECUTE_RUNS=never no other process executes runs;"
            " run: task-service worker"
        )
    return "no worker is alive; task-service serve executes runs itself"


async def _scalar(db: Database, statement: str) -> Any:
    async with db.read() as connection:
        return await connection.scalar(text(statement))


_DatabaseCheck = Callable[[Database, Settings], Awaitable[str]]

_OF_A_SERVER: Final[tuple[tuple[str, _DatabaseCheck], ...]] = (
    ("primary", _primary),
    ("pooling", _pooling),
    ("durability", _durability),
    ("connections", _connections),
)
_OF_PROCESSES: Final[tuple[tuple[str, _DatabaseCheck], ...]] = (
    ("clock", _clock),
    ("shared secrets", _shared_secrets),
    ("parameter keys", _parameter_keys),
    ("workers", _workers),
)
