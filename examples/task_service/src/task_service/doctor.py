"""Checks for `task-service doctor`: each problem that an operator can mend, and what to do about it.

It changes nothing: `serve` makes what does not exist yet. What `serve` and `worker` refuse to start with in one line, such as a
port that is taken, has no check of its own.
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
from task_service.db.pooling import refuse_shared_sessions
from task_service.deployment import check_parameter_keys, check_secrets
from task_service.handlers import HandlerEnvironment, HandlerRegistry
from task_service.secrets_file import FILE_NAME, load_or_create_secrets
from task_service.settings import Settings, load_settings
from task_service.tasks.parameters import TaskParameters
from task_service.tasks.sealing import any_unsealed, lacking_keys
from task_service.tasks.status import count_live_workers

MAX_SKEW_SECONDS: Final = 5.0
MIN_FREE_BYTES: Final = 1024**3
"""Less free space than that is a problem: the alert of `deploy/prometheus-alerts.yml` has the same number."""
CONNECTIONS_OF_A_PROCESS: Final = 11
"""How many connections to PostgreSQL a process takes at most: those of its pool, of the look-ups of keys, and of the queue."""

# Some are reserved for administrators. Sessions that serve no client do not count.
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
        ok: Whether the service can work with it.
        message: The state and, if there is a problem, what to do.
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
    address = f"the service's address is {settings.base_url}"
    found = [
        Finding("settings", True, address),
        await _check("data folder", _data_folder(settings.data_dir)),
        await _check("disk", _free_space(settings.data_dir)),
        await _check("secrets", _secrets(settings.data_dir)),
    ]
    return found + [finding async for finding in _examine_database(settings)]


async def _check(subject: str, check: Awaitable[str]) -> Finding:
    """Await a check, which returns the state, or raises what is wrong and what to do."""
    try:
        return Finding(subject, True, await check)
    except MskAuthError as error:
        return Finding(subject, False, str(error))


async def _data_folder(folder: Path) -> str:
    if not folder.exists():  # noqa: ASYNC240 - the doctor serves no requests
        return f"{folder} does not exist yet; it is made at first start"
    status = folder.stat()  # noqa: ASYNC240
    if not stat.S_ISDIR(status.st_mode) or not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigurationError(
            f"{folder} is not a folder that this user may write to; give it to the user of the service,"
            " or set TASK_SERVICE_DATA_DIR to another one"
        )
    if status.st_mode & (stat.S_IWOTH | stat.S_IWGRP):
        raise ConfigurationError(f"other users can write to {folder}; run: chmod 700 {folder}")
    return str(folder)


def scarce_space(folder: Path) -> str | None:
    """How much space is free for a folder, if that is little."""
    free, state = _space(folder)
    return state if free < MIN_FREE_BYTES else None


def _space(folder: Path) -> tuple[int, str]:
    # The folder that exists, or will hold the one that does not yet.
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    free = shutil.disk_usage(existing).free
    return free, f"{free / 1024**3:.1f} GiB are free for {folder}"


async def _free_space(folder: Path) -> str:
    if scarce := scarce_space(folder):
        raise ConfigurationError(
            f"only {scarce}; make room, and do not restart processes that serve: they go on reading, and write again as soon"
            " as there is space"
        )
    return _space(folder)[1]


async def _secrets(folder: Path) -> str:
    file = folder / FILE_NAME
    if not file.exists():
        return f"{file} does not exist yet; it is made at first start"
    load_or_create_secrets(folder, SystemClock().now())
    return f"{file} is readable by its owner only"


async def _examine_database(settings: Settings) -> AsyncGenerator[Finding]:
    url = make_url(settings.database_url)
    shown = url.render_as_string(hide_password=True)
    if settings.on_sqlite and not Path(url.database or "").exists():  # noqa: ASYNC240
        message = f"{shown} does not exist yet; it is made at first start"
        yield Finding("database", True, message)
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


async def _answers(db: Database, shown: str) -> str:
    try:
        async with db.read() as connection:
            is_server = connection.dialect.name == "postgresql"
            statement = "SELECT pg_is_in_recovery()" if is_server else "PRAGMA schema_version"
            found = await connection.scalar(text(statement))
    except StoreUnavailable as error:
        raise ConfigurationError(
            f"{shown} does not answer ({reported(error)}); check that it runs, that this machine reaches it and that"
            " TASK_SERVICE_DATABASE_URL is correct"
        ) from error
    if is_server and found:
        raise ConfigurationError(
            f"{shown} is a hot standby, which may not have a revocation yet and is never read; in"
            " TASK_SERVICE_DATABASE_URL name the primary's host only, or add target_session_attrs=read-write"
        )
    return f"{shown} answers"


def reported(error: StoreUnavailable) -> str:
    """What the driver reports, in one line. It names users, hosts and files, and no password."""
    cause = error.__cause__ or error
    original = cause.orig if isinstance(cause, exc.DBAPIError) else cause
    return str(original).partition("\n")[0] or type(original).__name__


async def _pooling(db: Database, _: Settings) -> str:
    await refuse_shared_sessions(db)
    return "each connection has a session of its own"


async def _primary(db: Database, _: Settings) -> str:
    # Imported here, because the driver takes 10 MB that a service on SQLite does not need.
    from task_service.db.primaries import refuse_two_primaries

    await refuse_two_primaries(db)
    return "one server is writable"


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
        f" {CONNECTIONS_OF_A_PROCESS}; before you start another one, raise max_connections"
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
            return "a newer version made it, and this version can use it"
        case SchemaState.OLDER:
            may_create = "SELECT has_schema_privilege(current_schema(), 'CREATE')"
            if not settings.on_sqlite and not await _scalar(db, may_create):
                raise ConfigurationError(
                    "the database's user may not create tables; as its administrator run:"
                    " GRANT CREATE ON SCHEMA public TO that user"
                )
            return "is brought to this version at start"


async def _secrets_of_tasks(db: Database, settings: Settings) -> str:
    async def no_commands() -> tuple[str, ...]:
        return ()

    if not (settings.data_dir / FILE_NAME).exists():
        return f"without {FILE_NAME} none of them can be read here"
    keys = load_or_create_secrets(settings.data_dir, SystemClock().now()).parameter_keys
    registry = HandlerRegistry.load(HandlerEnvironment(no_commands))
    parameters = TaskParameters(registry, keys)
    if lacking := await lacking_keys(db, parameters):
        raise ConfigurationError(
            f"{FILE_NAME} lacks {', '.join(sorted(lacking))}, with which some are sealed: their runs fail. Put the pepper back,"
            " or have these secrets entered again"
        )
    if await any_unsealed(db, parameters):
        return (
            "some are in plain text, or sealed with an earlier pepper; once no older process runs, run:"
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
    if not (settings.data_dir / FILE_NAME).exists():
        await check_secrets(db, {})
        return "no other process has stored any"
    secrets = load_or_create_secrets(settings.data_dir, SystemClock().now())
    await check_secrets(db, secrets.fingerprints)
    return "these secrets are those of the other processes"


async def _parameter_keys(db: Database, settings: Settings) -> str:
    return await check_parameter_keys(db, settings.parameter_keys)


async def _workers(db: Database, settings: Settings) -> str:
    if count := await count_live_workers(db):
        return f"{count} alive"
    if settings.leaves_runs:
        raise ConfigurationError(
            "none is alive, and with TASK_SERVICE_EXECUTE_RUNS=never no process executes runs;"
            " run: task-service worker"
        )
    return "none is alive; task-service serve executes runs itself"


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
