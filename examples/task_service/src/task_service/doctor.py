"""What `task-service doctor` looks at: whatever keeps the service from starting, each with what to do about it.

It changes nothing: what does not exist yet is made by `serve`.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import make_url

from msk_auth import MskAuthError, SystemClock

from .db.engine import Database
from .db.migrate import is_migrated
from .handlers import HandlerEnvironment, HandlerRegistry
from .secrets_file import FILE_NAME, load_or_create_secrets
from .server import bind
from .settings import Settings, load_settings


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found in one place.

    Attributes:
        subject: Where it was looked.
        ok: Whether the service can start with it.
        said: What it is like and, if it is not right, what to do.
    """

    subject: str
    ok: bool
    said: str


def examine() -> Iterator[Finding]:
    """Look everywhere, the most basic first."""
    try:
        settings = load_settings()
    except MskAuthError as error:
        for line in str(error).splitlines():
            yield Finding("settings", False, line)
        return
    yield Finding("settings", True, f"people reach the service at {settings.base_url}")
    yield _data_folder(settings.data_dir)
    yield _secrets(settings)
    yield _database(settings)
    yield _handlers(settings)
    yield _port(settings)


def _data_folder(folder: Path) -> Finding:
    subject = "data folder"
    if not folder.exists():
        return Finding(subject, True, f"{folder} does not exist yet; it is made at first start")
    if not folder.is_dir():
        return Finding(subject, False, f"{folder} is no folder; set TASK_SERVICE_DATA_DIR to one")
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return Finding(
            subject, False, f"{folder} cannot be written to; run: chown {_me()} {folder}"
        )
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & stat.S_IWOTH or mode & stat.S_IWGRP:
        return Finding(
            subject,
            False,
            f"others may write to {folder} (mode {mode:04o}); run: chmod 700 {folder}",
        )
    return Finding(subject, True, str(folder))


def _secrets(settings: Settings) -> Finding:
    file = settings.data_dir / FILE_NAME
    try:
        if not file.exists():
            return Finding("secrets", True, f"{file} does not exist yet; it is made at first start")
        load_or_create_secrets(settings.data_dir, SystemClock().now())
    except MskAuthError as error:
        return Finding("secrets", False, str(error))
    except OSError as error:
        return Finding("secrets", False, f"{file}: {error.strerror}")
    return Finding("secrets", True, f"{file} is readable by its owner only")


def _database(settings: Settings) -> Finding:
    url = make_url(settings.database_url)
    shown = url.render_as_string(hide_password=True)
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").exists():
        return Finding("database", True, f"{shown} does not exist yet; it is made at first start")
    try:
        migrated = asyncio.run(_is_migrated(settings.database_url))
    except MskAuthError as error:
        return Finding(
            "database",
            False,
            f"{shown} does not answer ({error}); see that it runs and that"
            " TASK_SERVICE_DATABASE_URL is right",
        )
    if not migrated:
        return Finding(
            "database", True, f"{shown} answers; its schema is brought to this version at start"
        )
    return Finding("database", True, f"{shown} answers and has this version's schema")


async def _is_migrated(url: str) -> bool:
    db = Database.open(url)
    try:
        return await is_migrated(db)
    finally:
        await db.close()


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
        return Finding("port", False, str(error))
    return Finding("port", True, f"{settings.port} on {settings.host} is free")


def _me() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else "its user"
