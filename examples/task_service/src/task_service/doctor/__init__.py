"""What `task-service doctor` looks at: whatever keeps the service from working, each with what to do about it.

It changes nothing: what does not exist yet is made by `serve`.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from limits.aio.storage import MemoryStorage

from msk_auth import MskAuthError, SystemClock
from task_service.accounts.attempts import RedisAttempts
from task_service.handlers import HandlerEnvironment, HandlerRegistry
from task_service.secrets_file import FILE_NAME, load_or_create_secrets
from task_service.server import bind
from task_service.settings import Settings, load_settings

from .database import examine_database
from .finding import Finding


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
    finding, fingerprints = _secrets(settings)
    yield finding
    yield from asyncio.run(_database(settings, fingerprints))
    if settings.redis_url is not None:
        yield asyncio.run(_redis(settings.redis_url))
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


def _secrets(settings: Settings) -> tuple[Finding, Mapping[str, str] | None]:
    file = settings.data_dir / FILE_NAME
    try:
        if not file.exists():
            said = f"{file} does not exist yet; it is made at first start"
            return Finding("secrets", True, said), {}
        secrets = load_or_create_secrets(settings.data_dir, SystemClock().now())
    except MskAuthError as error:
        return Finding("secrets", False, str(error)), None
    except OSError as error:
        return Finding("secrets", False, f"{file}: {error.strerror}"), None
    return Finding("secrets", True, f"{file} is readable by its owner only"), secrets.fingerprints


async def _database(settings: Settings, fingerprints: Mapping[str, str] | None) -> list[Finding]:
    return [finding async for finding in examine_database(settings, fingerprints)]


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
        "does not answer, and the database counts in its place; see that it runs and that"
        " TASK_SERVICE_REDIS_URL is right",
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
        return Finding("port", False, str(error))
    return Finding("port", True, f"{settings.port} on {settings.host} is free")


def _me() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else "its user"
