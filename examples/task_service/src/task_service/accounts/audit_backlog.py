"""Entries of the audit log that the database could not take at that moment.

What belongs to a change shares its transaction and needs none of this. A refusal changes nothing that could be undone:
its entry is logged in full at once, so that it outlives this process, kept here, and written as soon as the database
answers. How many are kept is bounded; the others are in the log alone, and counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Final

from sqlalchemy import insert

from msk_auth.errors import StoreUnavailable
from task_service import background
from task_service.db import schema
from task_service.db.engine import Database

_log = logging.getLogger(__name__)

MAX_WAITING: Final = 1000
"""How many entries one process keeps; each takes less than 1 KiB."""

_PAUSE_SECONDS: Final = 2.0


class AuditBacklog:
    """Keeps entries until they can be written. As an asynchronous context manager it writes them while it is open.

    Args:
        db: Where they belong.
        left_out: Called for each entry that stays in the process's log alone.
    """

    def __init__(self, db: Database, *, left_out: Callable[[], None] = lambda: None) -> None:
        self._db = db
        self._left_out = left_out
        self._waiting: deque[Mapping[str, Any]] = deque()
        self._arrived = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def keep(self, entry: Mapping[str, Any]) -> None:
        """Log an entry, and write it later. Never waits.

        Args:
            entry: The columns of its row, already without secrets.
        """
        shown = {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in entry.items()
        }
        _log.error("an audit entry cannot be written now", extra={"audit_entry": shown})
        if len(self._waiting) >= MAX_WAITING:
            self._left_out()
            return
        self._waiting.append(entry)
        self._arrived.set()

    async def write(self) -> None:
        """Write what waits, oldest first.

        Raises:
            StoreUnavailable: The database does not answer; everything goes on waiting. If only the answer to the commit
                was lost, the entries are written once more: better twice than not at all.
        """
        if not self._waiting:
            return
        batch = list(self._waiting)
        async with self._db.write() as connection:
            await connection.execute(insert(schema.audit), batch)
        # What arrived meanwhile stands behind them.
        for _ in batch:
            self._waiting.popleft()
        _log.info("wrote %d audit entries that had to wait", len(batch))

    async def __aenter__(self) -> AuditBacklog:
        self._writer = background.begin(self._write_for_ever(), name="audit backlog")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._writer is not None:
            await background.end(self._writer)
            self._writer = None
        try:
            await self.write()
        except StoreUnavailable:
            # Each of them was logged when it arrived.
            _log.error("%d audit entries are in this log alone", len(self._waiting))

    async def _write_for_ever(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                await asyncio.sleep(_PAUSE_SECONDS)
                with suppress(StoreUnavailable):
                    await self.write()
