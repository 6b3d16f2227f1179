"""Checks for `task-service doctor`: each problem that keeps the service from working, and what to do about it.

It changes nothing: `serve` makes what does not exist yet.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final

from limits.aio.storage import MemoryStorage
from sqlalchemy import URL, exc, make_url, text

from msk_auth import SystemClock
from msk_auth.errors import MskAuthError, StoreUnavailable
from msk_auth.stores.sqlalchemy import AsyncSQLAlchemyKeyStore
from task_service.accounts.attempts import RedisAttempts
from task_service.db.engine import STORE_FAILURES, Database, raise_if_outage
from task_service.db.migrate import (
    SchemaState,
    revision_of,
    schema_state,
    waiting_for_finish,
    waiting_for_start,
)
from task_service.db.pooling import REMEDY, shares_sessions
from task_service.db.schema import api_keys
from task_service.deployment import secrets_match
from task_service.handlers import HandlerEnvironment, HandlerRegistry
from task_service.ids import is_id
from task_service.secrets_file import FILE_NAME, load_or_create_secrets
from task_service.server import bind
from task_service.settings import Settings, load_settings
from task_service.trusted_proxies import untrusted_proxies

MAX_SKEW_SECONDS: Final = 5.0
CONNECTIONS_OF_A_PROCESS: Final = 11
"""How many connections to PostgreSQL a process takes at most: those of its pool, of the look-ups of keys, and of the queue."""

_ANSWER_SECONDS: Final = 2.0

_SUBJECT: Final = "database"
_MILLISECOND: Final = timedelta(milliseconds=1)

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


def examine() -> Iterator[Finding]:
    """Run all checks, the most basic first."""
    try:
        settings = load_settings()
    except MskAuthError as error:
        for line in str(error).splitlines():
            yield Finding("settings", False, line)
        return
    yield Finding("settings", True, f"the service's address is {settings.base_url}")
    yield _data_folder(settings.data_dir)
    finding, fingerprints = _secrets(settings)
    yield finding
    yield from asyncio.run(_collect_database(settings, fingerprints))
    if settings.redis_url is not None:
        yield asyncio.run(_redis(settings.redis_url))
    yield _handlers(settings)
    yield _port(settings)


def _data_folder(folder: Path) -> Finding:
    subject = "data folder"
    if not folder.exists():
        return Finding(subject, True, f"{folder} does not exist yet; it is made at first start")
    if not folder.is_dir():
        return Finding(
            subject, False, f"{folder} is not a folder; set TASK_SERVICE_DATA_DIR to one"
        )
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return Finding(subject, False, f"{folder} is not writable; run: chown {_me()} {folder}")
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & stat.S_IWOTH or mode & stat.S_IWGRP:
        return Finding(
            subject,
            False,
            f"other users can write to {folder} (mode {mode:04o}); run: chmod 700 {folder}",
        )
    return Finding(subject, True, str(folder))


def _secrets(settings: Settings) -> tuple[Finding, Mapping[str, str] | None]:
    file = settings.data_dir / FILE_NAME
    try:
        if not file.exists():
            message = f"{file} does not exist yet; it is made at first start"
            return Finding("secrets", True, message), {}
        secrets = load_or_create_secrets(settings.data_dir, SystemClock().now())
    except MskAuthError as error:
        return Finding("secrets", False, str(error)), None
    except OSError as error:
        return Finding("secrets", False, f"{file}: {error.strerror}"), None
    return Finding("secrets", True, f"{file} is readable by its owner only"), secrets.fingerprints


async def _collect_database(
    settings: Settings, fingerprints: Mapping[str, str] | None
) -> list[Finding]:
    return [finding async for finding in _examine_database(settings, fingerprints)]


async def _redis(url: str) -> Finding:
    clock = SystemClock()
    try:
        storage = RedisAttempts(url, clock, MemoryStorage())
    except MskAuthError as error:
        return Finding("redis", False, str(error))
    try:
        if await storage.check():
            return Finding("redis", True, "answers, and counts attempts to log in")
    finally:
        await storage.close()
    return Finding(
        "redis",
        False,
        "does not answer, so the database counts; check that it runs and that"
        " TASK_SERVICE_REDIS_URL is correct",
    )


def _handlers(settings: Settings) -> Finding:
    async def nothing_allowed() -> tuple[str, ...]:
        return ()

    try:
        registry = HandlerRegistry.load(
            HandlerEnvironment(nothing_allowed, settings.http_allowed_networks)
        )
    except MskAuthError as error:
        return Finding("handlers", False, f"{error} Repair or uninstall its distribution.")
    return Finding("handlers", True, ", ".join(handler.name for handler in registry))


def _port(settings: Settings) -> Finding:
    try:
        bind(settings.host, settings.port).close()
    except MskAuthError as error:
        if _is_running(settings):
            message = f"a running task service answers on port {settings.port} of {settings.host}"
            return Finding("port", True, message)
        return Finding("port", False, str(error))
    return Finding("port", True, f"{settings.port} on {settings.host} is free")


def _is_running(settings: Settings) -> bool:
    """Whether the program on the port is a task service, by the health check and the id that it gives each request."""
    # The system takes an unspecified address for this machine.
    connection = HTTPConnection(settings.host, settings.port, timeout=_ANSWER_SECONDS)
    try:
        connection.request("GET", "/healthz")
        response = connection.getresponse()
        request_id = response.headers.get("x-request-id", "")
        return response.status == HTTPStatus.OK and is_id(request_id, "req")
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


async def _examine_database(
    settings: Settings, fingerprints: Mapping[str, str] | None
) -> AsyncGenerator[Finding]:
    """Check the database, without changing it.

    Args:
        settings: Its address.
        fingerprints: Those of this process's secrets; empty if there is no file, None if it is invalid.
    """
    url = make_url(settings.database_url)
    shown = url.render_as_string(hide_password=True)
    if settings.on_sqlite:
        file = Path(url.database or "")
        if (refusal := _file_refusal(file)) is not None:
            yield Finding(_SUBJECT, False, refusal)
            return
        if not file.exists():  # noqa: ASYNC240 - the doctor serves no requests
            message = f"{shown} does not exist yet; it is made at first start"
            yield Finding(_SUBJECT, True, message)
            return
    try:
        db = Database.open(settings.database_url)
    except MskAuthError as error:
        yield Finding(_SUBJECT, False, str(error))
        return
    try:
        if not settings.on_sqlite:
            if (standby := await _standby(db, shown)) is not None:
                yield standby
                return
            if await shares_sessions(db):
                yield Finding("pooling", False, REMEDY)
                return
            yield Finding("pooling", True, "each connection has a session of its own")
            yield await _durability(db, url)
            yield await _connections(db)
        state = await schema_state(db)
        yield await _schema(db, shown, state)
        if state in {SchemaState.MISSING, SchemaState.FOREIGN, SchemaState.NEWER}:
            return
        if not settings.on_sqlite:
            yield await _clock(db)
        if state is SchemaState.OLDER:
            return
        if fingerprints is not None and not settings.on_sqlite:
            yield await _shared_secrets(db, settings, fingerprints)
        if not settings.on_sqlite:
            yield await _workers(db, settings)
        yield await _leases(db, settings)
        yield await _proxies(db, settings)
    except StoreUnavailable as error:
        yield Finding(_SUBJECT, False, f"{shown} {_explain_outage(error, url)}")
    finally:
        await db.close()


def _file_refusal(file: Path) -> str | None:
    if not file.parent.is_dir():
        if file.exists() or file.parent.exists():
            return f"{file.parent} is not a folder; set TASK_SERVICE_DATABASE_URL to a file in one"
        return None
    if file.is_dir():
        return f"{file} is a folder; set TASK_SERVICE_DATABASE_URL to a file"
    if file.exists() and not os.access(file, os.R_OK | os.W_OK):
        return f"{file} is not writable by this user; run: chown {_me()} {file}"
    return None


async def _schema(db: Database, shown: str, state: SchemaState) -> Finding:
    match state:
        case SchemaState.CURRENT:
            if slow := await waiting_for_start(db):
                return Finding(
                    _SUBJECT,
                    False,
                    f"{shown} answers, but the index {', '.join(slow)} could not be built beside long"
                    " transactions, so runs are found slowly; run: task-service migrate",
                )
            if await waiting_for_finish(db):
                return Finding(
                    _SUBJECT,
                    True,
                    f"{shown} answers and has this version's schema; once no older process runs,"
                    " run: task-service migrate --finish",
                )
            return Finding(_SUBJECT, True, f"{shown} answers and has this version's schema")
        case SchemaState.MISSING | SchemaState.OLDER:
            if not await _may_create(db):
                return Finding(
                    _SUBJECT,
                    False,
                    f"{shown} answers, but its user may not create tables; as its administrator run:"
                    " GRANT CREATE ON SCHEMA public TO that user",
                )
            message = f"{shown} answers; its schema is brought to this version at start"
            return Finding(_SUBJECT, True, message)
        case SchemaState.NEWER_COMPATIBLE:
            return Finding(
                _SUBJECT,
                True,
                f"{shown} answers; a newer version made its schema, which this version can use",
            )
        case SchemaState.NEWER:
            async with db.read() as connection:
                revision = await revision_of(connection)
            return Finding(
                _SUBJECT,
                False,
                f"{shown} has the schema {revision!r} of a newer version; install that version",
            )
        case SchemaState.FOREIGN:
            return Finding(
                _SUBJECT,
                False,
                f"{shown} has tables of another application; give the service its own database",
            )


async def _may_create(db: Database) -> bool:
    if db.engine.dialect.name == "sqlite":
        return True
    async with db.read() as connection:
        return bool(
            await connection.scalar(text("SELECT has_schema_privilege(current_schema(), 'CREATE')"))
        )


async def _standby(db: Database, shown: str) -> Finding | None:
    async with db.read() as connection:
        is_standby = await connection.scalar(text("SELECT pg_is_in_recovery()"))
    if not is_standby:
        return None
    return Finding(
        _SUBJECT,
        False,
        f"{shown} is a hot standby, which may not have a revocation yet and is never read; in"
        " TASK_SERVICE_DATABASE_URL name the primary's host only, or add target_session_attrs=read-write",
    )


async def _durability(db: Database, url: URL) -> Finding:
    async with db.read() as connection:
        # The default of server, database and role; the service's own connections override it.
        default = await connection.scalar(
            text("SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'")
        )
        fsync = await connection.scalar(text("SHOW fsync"))
    if fsync == "off":
        return Finding(
            "durability",
            False,
            "fsync is off, so a crash of the server's machine can destroy the whole database;"
            " to turn it on, run: ALTER SYSTEM SET fsync = on; SELECT pg_reload_conf()",
        )
    if default == "off":
        return Finding(
            "durability",
            True,
            "synchronous_commit is off; the service's own commits are still durable, but other"
            " programs lose their last transactions in a crash; to turn it on for all, run:"
            f" ALTER DATABASE {url.database} SET synchronous_commit = on",
        )
    return Finding("durability", True, f"commits are durable (synchronous_commit = {default})")


async def _connections(db: Database) -> Finding:
    async with db.read() as connection:
        row = (await connection.execute(_CONNECTIONS)).one()
    if row.free < CONNECTIONS_OF_A_PROCESS:
        return Finding(
            "connections",
            True,
            f"only {row.free} of PostgreSQL's {row.all} are free, and each process takes up to"
            f" {CONNECTIONS_OF_A_PROCESS}; before you start another one, raise max_connections",
        )
    return Finding("connections", True, f"{row.free} of PostgreSQL's {row.all} are free")


async def _clock(db: Database) -> Finding:
    clock = SystemClock()
    async with db.read() as connection:
        await connection.execute(text("SELECT 1"))
        before = clock.now()
        theirs = await connection.scalar(text("SELECT clock_timestamp()"))
        after = clock.now()
    skew = (theirs - (before + (after - before) / 2)).total_seconds()
    if abs(skew) > MAX_SKEW_SECONDS:
        return Finding(
            "clock",
            False,
            f"the database's clock is {abs(skew):.0f} seconds {'ahead of' if skew > 0 else 'behind'}"
            " this machine's; synchronise both with NTP",
        )
    return Finding("clock", True, "this machine and the database agree on the time")


async def _shared_secrets(
    db: Database, settings: Settings, fingerprints: Mapping[str, str]
) -> Finding:
    if await secrets_match(db, fingerprints):
        return Finding("shared secrets", True, "these secrets are those of the other processes")
    wrong = "are not those" if fingerprints else "are missing, and there are some"
    return Finding(
        "shared secrets",
        False,
        f"the secrets in {settings.data_dir} {wrong} with which this database's keys and logins were made;"
        " copy secrets.json from a machine that serves it",
    )


async def _workers(db: Database, settings: Settings) -> Finding:
    from task_service.tasks.queue import count_live_workers

    count = await count_live_workers(db)
    if count:
        return Finding("workers", True, f"{count} alive")
    if settings.execute_runs == "never":
        return Finding(
            "workers",
            False,
            "none is alive, and with TASK_SERVICE_EXECUTE_RUNS=never no process executes runs;"
            " run: task-service worker",
        )
    return Finding("workers", True, "none is alive; task-service serve executes runs itself")


async def _leases(db: Database, settings: Settings) -> Finding:
    subject = "leases"
    store = AsyncSQLAlchemyKeyStore(db.engine, api_keys)
    try:
        recorded = await store.recorded_leases()
    except STORE_FAILURES as error:
        raise_if_outage(error)
        raise
    finally:
        await store.aclose()
    lengths = sorted({lease.duration // _MILLISECOND for lease in recorded})
    if not lengths:
        return Finding(subject, True, "no process reuses what it has read of a key")
    listed = ", ".join(map(str, lengths))
    if lengths == [settings.lease_ms]:
        return Finding(subject, True, f"as long as TASK_SERVICE_LEASE_MS={listed} says")
    return Finding(
        subject,
        True,
        f"processes have recorded leases of {listed} ms, but TASK_SERVICE_LEASE_MS is {settings.lease_ms}; every"
        f" revocation takes {lengths[-1]} ms at least. Give all machines the same setting and restart the processes;"
        " one that has ended counts for about a minute",
    )


async def _proxies(db: Database, settings: Settings) -> Finding:
    trusted = settings.trusted_proxies
    addresses = await untrusted_proxies(db, trusted, SystemClock().now())
    private = [str(address) for address in addresses if not address.is_global]
    if private:
        names = ",".join([*map(str, trusted), *private])
        return Finding(
            "proxies",
            False,
            f"X-Forwarded-For from {private[0]} is ignored, because it is not a trusted proxy, so all its clients"
            f" count as one address and 50 wrong passwords lock all of them out; if it is your proxy, set"
            f" TASK_SERVICE_TRUSTED_PROXIES={names}",
        )
    if addresses:
        return Finding(
            "proxies",
            True,
            f"X-Forwarded-For from {addresses[0]} is ignored, because it is not a trusted proxy; any client can send"
            " that header, but if it is your proxy, add it to TASK_SERVICE_TRUSTED_PROXIES",
        )
    return Finding("proxies", True, "no untrusted proxy has forwarded requests")


def _explain_outage(error: StoreUnavailable, url: URL) -> str:
    """Why a database does not answer and what to do, without quoting text that may hold a secret."""
    cause: BaseException | None = error.__cause__
    original: Any = cause.orig if isinstance(cause, exc.DBAPIError) else cause
    message = str(original).lower()
    if url.get_backend_name() == "sqlite":
        if "not a database" in message or "malformed" in message:
            return (
                "is not an SQLite database, or is damaged; restore it from a backup,"
                " or set TASK_SERVICE_DATABASE_URL to another file"
            )
        if "locked" in message:
            return "is locked by another program; stop that program"
        if "readonly" in message or "unable to open" in message:
            return "cannot be opened for writing; check who owns the file and its folder"
        return "does not answer; check that its disk is neither damaged nor full"
    match getattr(original, "sqlstate", None):
        case "28P01" | "28000":
            return "refuses this user or password; check TASK_SERVICE_DATABASE_URL and pg_hba.conf"
        case "3D000":
            return f"does not exist on that server; run: createdb {url.database}"
        case "53300":
            return "has no connection left; raise its max_connections or start fewer processes"
        case "57P03":
            return "is starting or stopping; try again"
        case _:
            if "does not exist" in message and "database" in message:
                return f"does not exist on that server; run: createdb {url.database}"
            if "password" in message or "authentication" in message or "role" in message:
                return (
                    "refuses this user or password; check TASK_SERVICE_DATABASE_URL and pg_hba.conf"
                )
            if "resolve" in message or "translate host" in message or "name or service" in message:
                return f"is on an unknown host, {url.host}; check TASK_SERVICE_DATABASE_URL"
            return (
                "does not answer; check that it runs, that this machine reaches it and that"
                " TASK_SERVICE_DATABASE_URL is correct"
            )


def _me() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else "its user"
