"""The short way of reading on PostgreSQL: a connection that is held, and a statement that is prepared."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

from sqlalchemy import ARRAY, String, Table, any_, bindparam, select
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncEngine

from msk_auth.core.model import ApiKey

from ._rows import TIMES, read_record
from ._sqlite import NotNow
from ._wire import ANSWER_SECONDS, Lost, Wire

if TYPE_CHECKING:
    from psycopg import AsyncConnection
    from psycopg.pq.abc import PGresult

_TUPLES: Final = 2  # PGRES_TUPLES_OK
_COMMAND: Final = 1  # PGRES_COMMAND_OK
_SQLSTATE: Final = 67  # PG_DIAG_SQLSTATE
# Behind a pooler that hands each transaction to another server: the statement is somewhere else, or there already.
_NOT_KEPT: Final = frozenset({b"26000", b"42P05"})

# How long the long way is taken after a connection could not be had.
_PAUSE_SECONDS: Final = 1.0


class _Statement:
    """A statement under a name that no other one has: a pooler may hand us a server that knows somebody else's."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.name = b"msk_auth_" + hashlib.sha256(text).hexdigest()[:32].encode()


class PostgresReader:
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
        self._wires: dict[asyncio.AbstractEventLoop, Wire] = {}
        self._opening: set[asyncio.AbstractEventLoop] = set()
        self._closed_until = 0.0
        self._is_closed = False
        self._keeps_statements = True
        by_id = table.c.id == bindparam("key_id")
        among = table.c.id == any_(bindparam("key_ids", type_=ARRAY(String)))
        dialect = cast("Any", postgresql.dialect)(paramstyle="numeric_dollar")
        self._one, self._many = (
            _Statement(str(select(*table.c).where(condition).compile(dialect=dialect)).encode())
            for condition in (by_id, among)
        )

    async def find(self, key_id: str) -> ApiKey | None:
        """The record with this id, or None if there is none.

        Raises:
            NotNow: It cannot be told this way.
            TimeoutError: The server does not answer.
        """
        # Anything else cannot be an id of ours, and libpq would end it at a NUL.
        if not (key_id.isascii() and key_id.isalnum()):
            raise NotNow
        answer = await self._ask(self._one, key_id.encode())
        return _record(answer, 0) if answer.ntuples else None

    async def find_many(self, key_ids: Sequence[str]) -> list[ApiKey]:
        """The records with these ids, as far as there are any, in one round trip. Raises as :meth:`find` does."""
        if not all(key_id.isascii() and key_id.isalnum() for key_id in key_ids):
            raise NotNow
        # In quotes, because the word NULL without them is none.
        literal = "{" + ",".join(f'"{key_id}"' for key_id in key_ids) + "}"
        answer = await self._ask(self._many, literal.encode())
        return [_record(answer, row) for row in range(answer.ntuples)]

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

    async def _ask(self, statement: _Statement, parameter: bytes) -> PGresult:
        loop = asyncio.get_running_loop()
        wire = self._wires.get(loop)
        if wire is None or not wire.is_usable:
            wire = await self._open(loop)
        if wire.is_busy:
            raise NotNow
        try:
            answer = await wire.ask(statement.name, statement.text, parameter)
        except Lost as lost:
            raise NotNow from lost
        if answer.status == _TUPLES:
            return answer
        if answer.error_field(_SQLSTATE) in _NOT_KEPT:
            self._keeps_statements = False
        # The long way says what is wrong. What is held may be at fault: it is made anew.
        self._drop(loop)
        raise NotNow

    async def _open(self, loop: asyncio.AbstractEventLoop) -> Wire:
        if self._is_closed or loop in self._opening or loop.time() < self._closed_until:
            raise NotNow
        self._sweep(loop)
        self._opening.add(loop)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._connect(loop)
        finally:
            self._opening.discard(loop)

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> Wire:
        pooled = await self._engine.raw_connection()
        driver = cast("AsyncConnection[object]", pooled.driver_connection)
        # From here on it is not the pool's, which makes another one when it needs it.
        pooled.detach()
        try:
            # Whatever prepared the connection may have left a transaction open, with a state of its own.
            await driver.rollback()
            wire = Wire(driver, loop)
        except BaseException:
            await driver.close()
            raise
        try:
            await self._set_up(wire)
        except BaseException as error:
            wire.close()
            self._closed_until = loop.time() + _PAUSE_SECONDS
            if isinstance(error, Lost):
                raise NotNow from error
            raise
        self._wires[loop] = wire
        return wire

    async def _set_up(self, wire: Wire) -> None:
        if not wire.speaks_utf8:
            self._is_closed = True
            raise NotNow
        if not self._keeps_statements:
            wire.prepares = False
        if not wire.prepares:
            return
        for statement in (self._one, self._many):
            answer = await wire.prepare(statement.name, statement.text)
            if answer.status != _COMMAND:
                if answer.error_field(_SQLSTATE) in _NOT_KEPT:
                    self._keeps_statements = wire.prepares = False
                    return
                raise NotNow

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


def _record(answer: PGresult, row: int) -> ApiKey:
    values: list[Any] = []
    for column in range(answer.nfields):
        value = answer.get_value(row, column)
        values.append(None if value is None else value.decode())
    for column in TIMES:
        if values[column] is not None:
            values[column] = int(values[column])
    return read_record(values)
