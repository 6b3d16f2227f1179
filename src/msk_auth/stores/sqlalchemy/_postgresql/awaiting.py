"""Reading on PostgreSQL from event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncEngine

from msk_auth.core.model import ApiKey
from msk_auth.stores.sqlalchemy._rows import NotNow

from .awaiting_wire import AwaitingWire
from .reading import PAUSE_SECONDS, Reading, Statement, as_array, as_parameter
from .wire import ANSWER_SECONDS, Lost

if TYPE_CHECKING:
    from psycopg import AsyncConnection


class AwaitingReader:
    """Finds records on a connection of its own, in a third of the time that a cursor of the driver takes.

    The connection comes from the engine's pool and is taken out of it, so whatever the application does to new
    connections was done to it; there is one for each event loop. It is never in a transaction: each read is one by
    itself and sees what was committed when it began. One question is on its way at a time. Whoever comes while it is
    taken, and whenever anything else is in doubt, is told :class:`NotNow`, and the store reads through SQLAlchemy.

    Args:
        engine: Of PostgreSQL with psycopg.
        table: The table of keys.
    """

    def __init__(self, engine: AsyncEngine, table: Table) -> None:
        self._engine = engine
        self._reading = Reading(table)
        self._wires: dict[asyncio.AbstractEventLoop, AwaitingWire] = {}
        self._opening: set[asyncio.AbstractEventLoop] = set()
        self._closed_until = 0.0
        self._is_closed = False

    async def find(self, key_id: str) -> ApiKey | None:
        """The record with this id, or None if there is none.

        Raises:
            NotNow: It cannot be told this way.
            TimeoutError: The server does not answer.
        """
        records = await self._ask(self._reading.one, as_parameter(key_id))
        return records[0] if records else None

    async def find_many(self, key_ids: Sequence[str]) -> list[ApiKey]:
        """The records with these ids, as far as there are any, in one round trip. Raises as :meth:`find` does."""
        return await self._ask(self._reading.many, as_array(key_ids))

    async def aclose(self) -> None:
        """Close the connection of this loop, and those of loops that have ended. None is opened again."""
        self._is_closed = True
        self._sweep(asyncio.get_running_loop())

    def __del__(self) -> None:
        # A store that nobody closed. Its last reference may have been dropped in any thread.
        for loop, wire in self._wires.items():
            if loop.is_running() and loop is not _running():
                with suppress(RuntimeError):  # it has just been closed
                    loop.call_soon_threadsafe(wire.close)
            else:
                wire.close()

    async def _ask(self, statement: Statement, parameter: bytes) -> list[ApiKey]:
        loop = asyncio.get_running_loop()
        wire = self._wires.get(loop)
        if wire is None or not wire.is_usable:
            wire = await self._open(loop)
        if wire.is_busy:
            raise NotNow
        try:
            return self._reading.records(await wire.ask(statement.name, statement.text, parameter))
        except Lost as lost:
            raise NotNow from lost
        except NotNow:
            self._drop(loop)
            raise

    async def _open(self, loop: asyncio.AbstractEventLoop) -> AwaitingWire:
        if (
            self._is_closed
            or not self._reading.is_understood
            or loop in self._opening
            or loop.time() < self._closed_until
        ):
            raise NotNow
        self._sweep(loop)
        self._opening.add(loop)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._connect(loop)
        finally:
            self._opening.discard(loop)

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> AwaitingWire:
        pooled = await self._engine.raw_connection()
        driver = cast("AsyncConnection[Any]", pooled.driver_connection)
        # From here on it is not the pool's, which makes another one when it needs it.
        pooled.detach()
        try:
            # Whatever prepared the connection may have left a transaction open, with a state of its own.
            await driver.rollback()
            wire = AwaitingWire(driver, loop)
        except BaseException:
            await driver.close()
            raise
        try:
            for statement in self._reading.to_prepare(wire, self._reading.one, self._reading.many):
                answer = await wire.prepare(statement.name, statement.text)
                self._reading.note_prepared(wire, answer)
        except BaseException as error:
            wire.close()
            self._closed_until = loop.time() + PAUSE_SECONDS
            if isinstance(error, Lost):
                raise NotNow from error
            raise
        self._wires[loop] = wire
        return wire

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        for each in list(self._wires):
            if each is loop or each.is_closed():
                self._drop(each)

    def _drop(self, loop: asyncio.AbstractEventLoop) -> None:
        wire = self._wires.pop(loop, None)
        if wire is not None:
            wire.close()


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
