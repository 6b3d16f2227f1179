"""The database and what is in it: whether it answers, its schema, its clock, its secrets, and who works on it."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, exc, make_url, text

from msk_auth import MskAuthError, StoreUnavailable, SystemClock
from task_service.db.engine import Database
from task_service.db.migrate import (
    SchemaState,
    revision_of,
    schema_state,
    waiting_for_finish,
    waiting_for_start,
)
from task_service.forwarders import untrusted_forwarders
from task_service.settings import Settings
from task_service.shared_secrets import secrets_fit

from .finding import Finding

MAX_SKEW_SECONDS: Final = 5.0

_SUBJECT: Final = "database"


async def examine_database(
    settings: Settings, fingerprints: Mapping[str, str] | None
) -> AsyncGenerator[Finding]:
    """Look at the database. Changes nothing.

    Args:
        settings: Where it is.
        fingerprints: Of this process's secrets; empty if there is no file, None if it cannot be read.
    """
    url = make_url(settings.database_url)
    shown = url.render_as_string(hide_password=True)
    if settings.on_sqlite:
        file = Path(url.database or "")
        if (refusal := _file_refusal(file)) is not None:
            yield Finding(_SUBJECT, False, refusal)
            return
        if not file.exists():  # noqa: ASYNC240 - nobody else waits for the doctor
            said = f"{shown} does not exist yet; it is made at first start"
            yield Finding(_SUBJECT, True, said)
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
            yield await _durability(db, url)
        state = await schema_state(db)
        yield await _schema(db, shown, state)
        if state in {SchemaState.MISSING, SchemaState.FOREIGN, SchemaState.NEWER}:
            return
        if not settings.on_sqlite:
            yield await _clock(db)
        if state is SchemaState.OLDER:
            return
        if fingerprints is not None and not settings.on_sqlite:
            yield await _secrets(db, settings, fingerprints)
        if not settings.on_sqlite:
            yield await _workers(db, settings)
        yield await _proxies(db, settings)
    except StoreUnavailable as error:
        yield Finding(_SUBJECT, False, f"{shown} {_why_not(error, url)}")
    finally:
        await db.close()


def _file_refusal(file: Path) -> str | None:
    if not file.parent.is_dir():
        if file.exists() or file.parent.exists():
            return f"{file.parent} is no folder; set TASK_SERVICE_DATABASE_URL to a file in one"
        return None
    if file.is_dir():
        return f"{file} is a folder; set TASK_SERVICE_DATABASE_URL to a file"
    if file.exists() and not os.access(file, os.R_OK | os.W_OK):
        return f"{file} cannot be written to by this user; run: chown {_me()} {file}"
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
                    f"{shown} answers, but its user may not make tables; as its administrator run:"
                    " GRANT CREATE ON SCHEMA public TO that user",
                )
            said = f"{shown} answers; its schema is brought to this version at start"
            return Finding(_SUBJECT, True, said)
        case SchemaState.NEWER_COMPATIBLE:
            return Finding(
                _SUBJECT,
                True,
                f"{shown} answers; a newer version made its schema, and this one goes on with it",
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
                f"{shown} holds tables that the service did not make; give it a database of its own",
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
        f"{shown} leads to a hot standby, which is never read: it may not know of a revocation yet; in"
        " TASK_SERVICE_DATABASE_URL name the primary's host alone, or add target_session_attrs=read-write",
    )


async def _durability(db: Database, url: URL) -> Finding:
    async with db.read() as connection:
        # Of the server, the database and the role; the service's own connections have changed it for themselves.
        default = await connection.scalar(
            text("SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'")
        )
    if default == "off":
        return Finding(
            "durability",
            True,
            "synchronous_commit is off; what the service commits is on the disk all the same, and other"
            " programs lose their last transactions in a crash; to have it on for all, run:"
            f" ALTER DATABASE {url.database} SET synchronous_commit = on",
        )
    return Finding("durability", True, f"a commit is on the disk (synchronous_commit = {default})")


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
            " this machine's; let both be set by NTP",
        )
    return Finding("clock", True, "this machine and the database agree on the time")


async def _secrets(db: Database, settings: Settings, fingerprints: Mapping[str, str]) -> Finding:
    if await secrets_fit(db, fingerprints):
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
            "none is alive, and with TASK_SERVICE_EXECUTE_RUNS=never nobody else executes runs;"
            " start: task-service worker",
        )
    return Finding("workers", True, "none is alive; task-service serve executes runs itself")


async def _proxies(db: Database, settings: Settings) -> Finding:
    trusted = settings.trusted_proxies
    addresses = await untrusted_forwarders(db, trusted, SystemClock().now())
    private = [str(address) for address in addresses if not address.is_global]
    if private:
        names = ",".join([*map(str, trusted), *private])
        return Finding(
            "proxies",
            False,
            f"requests with X-Forwarded-For come from {private[0]}, which is no trusted proxy, so all its clients"
            f" count as one address and 50 wrong passwords keep them all out; if it is your proxy, set"
            f" TASK_SERVICE_TRUSTED_PROXIES={names}",
        )
    if addresses:
        return Finding(
            "proxies",
            True,
            f"requests with X-Forwarded-For come from {addresses[0]}, which is no trusted proxy; any client can send"
            " that header, but if it is your proxy, add it to TASK_SERVICE_TRUSTED_PROXIES",
        )
    return Finding("proxies", True, "no request was forwarded by a proxy that is not trusted")


def _why_not(error: StoreUnavailable, url: URL) -> str:
    """What is wrong with a database that does not answer, without quoting what may hold a secret."""
    cause: BaseException | None = error.__cause__
    original: Any = cause.orig if isinstance(cause, exc.DBAPIError) else cause
    told = str(original).lower()
    if url.get_backend_name() == "sqlite":
        if "not a database" in told or "malformed" in told:
            return (
                "is no SQLite database, or is damaged; restore it from a backup,"
                " or set TASK_SERVICE_DATABASE_URL to another file"
            )
        if "locked" in told:
            return "is locked by another program; stop that"
        if "readonly" in told or "unable to open" in told:
            return "cannot be opened for writing; see who owns the file and its folder"
        return "does not answer; see that its disk is well and not full"
    match getattr(original, "sqlstate", None):
        case "28P01" | "28000":
            return "refuses this user or password; see TASK_SERVICE_DATABASE_URL and pg_hba.conf"
        case "3D000":
            return f"does not exist on that server; run: createdb {url.database}"
        case "53300":
            return "has no connection left; raise its max_connections or start fewer processes"
        case "57P03":
            return "is starting or stopping; try again"
        case _:
            if "does not exist" in told and "database" in told:
                return f"does not exist on that server; run: createdb {url.database}"
            if "password" in told or "authentication" in told or "role" in told:
                return (
                    "refuses this user or password; see TASK_SERVICE_DATABASE_URL and pg_hba.conf"
                )
            if "resolve" in told or "translate host" in told or "name or service" in told:
                return f"is on a host that is not known: {url.host}"
            return (
                "does not answer; see that it runs, that this machine reaches it and that"
                " TASK_SERVICE_DATABASE_URL is right"
            )


def _me() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else "its user"
