"""Connections to SQLite that leave nothing behind for the test after.

aiosqlite has a thread for each connection. One that was given up in the middle of a statement answers an event loop that is
closed by then, and pytest reports the exception in whatever test runs at that moment.
"""

from __future__ import annotations

import asyncio
import weakref
from pathlib import Path
from typing import Any

import aiosqlite
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

# Each connection's file. A thread that has to stop keeps its own until it has stopped.
_OPENED: weakref.WeakKeyDictionary[aiosqlite.Connection, str] = weakref.WeakKeyDictionary()


def follow(engine: AsyncEngine) -> None:
    """Remember the connections of this engine for :func:`join`, and let none of them wait for the disk."""
    event.listen(engine.sync_engine, "connect", _do_not_wait_for_the_disk)
    event.listen(engine.sync_engine, "do_connect", _open_or_close)


async def join(folder: Path) -> None:
    """Wait until no thread of a connection to a file in this folder has an answer for the loop. The engine is disposed of."""
    for connection, file in list(_OPENED.items()):
        # Another service of the same test may still be using its own.
        if Path(file).parent == folder:
            if connection._running:
                # It was in use when the pool was closed. The garbage collector would warn of it in some other test.
                connection.stop()
            # Not for ever, but longer than a busy machine takes: what is left behind fails a later test.
            await asyncio.to_thread(connection._thread.join, 60)


def _open_or_close(_dialect: object, _record: object, _arguments: object, options: Any) -> None:
    options["async_creator_fn"] = _open


async def _open(*arguments: Any, **options: Any) -> aiosqlite.Connection:
    """Open a connection. If the caller is cancelled meanwhile, close it: aiosqlite leaves that to the garbage collector.

    Python 3.13 and later warn of that, in the middle of some other test.
    """
    connection = aiosqlite.connect(*arguments, **options)
    connection._thread.daemon = True
    _OPENED[connection] = arguments[0]

    async def open_it() -> aiosqlite.Connection:
        return await connection

    opening = asyncio.create_task(open_it())
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        await (await opening).close()
        raise


def _do_not_wait_for_the_disk(connection: Any, _: object) -> None:
    connection.run_async(lambda driver: driver.executescript("PRAGMA synchronous = OFF"))
