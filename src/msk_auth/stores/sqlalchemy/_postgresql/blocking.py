"""Reading on PostgreSQL from threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Any, Final, cast

from sqlalchemy import Engine, Table

from msk_auth.clock import SystemClock
from msk_auth.core.model import ApiKey
from msk_auth.stores.sqlalchemy._rows import NotNow

from .blocking_wire import BlockingWire
from .reading import PAUSE_SECONDS, Reading, Statement, as_parameter
from .wire import Lost

if TYPE_CHECKING:
    from psycopg import Connection

MAX_HELD: Final = 4
"""How many connections one process holds at most: as many as keep its interpreter busy with what they answer."""

_CLOCK: Final = SystemClock()

# A read takes a tenth of a millisecond: waiting until others have theirs is cheaper than the long way.
_MAX_WAIT_SECONDS: Final = 0.1


class BlockingReader:
    """Finds records on connections of its own, in a fifth of the time that the way through SQLAlchemy takes.

    The connections come from the engine's pool and are taken out of it, so whatever the application does to new
    connections was done to them. They are never in a transaction: each read is one by itself and sees what was
    committed when it began. Each is with one thread at a time, and there are as many as threads read at the same
    moment, up to :data:`MAX_HELD`. Whoever waits too long for one, and whenever anything else is in doubt, is told
    :class:`NotNow`, and the store reads through SQLAlchemy.

    Args:
        engine: Of PostgreSQL with psycopg.
        table: The table of keys.
    """

    def __init__(self, engine: Engine, table: Table) -> None:
        self._engine = engine
        self._reading = Reading(table)
        self._held = _Held()
        self._closed_until = 0.0
        self._is_closed = False

    def find(self, key_id: str) -> ApiKey | None:
        """The record with this id, or None if there is none.

        Raises:
            NotNow: It cannot be told this way.
            TimeoutError: The server does not answer.
        """
        records = self._ask(self._reading.one, as_parameter(key_id))
        return records[0] if records else None

    def close(self) -> None:
        """Close the connections; one that is in use right now as soon as it has its answer. None is opened again."""
        self._is_closed = True
        self._held.close_idle()

    def _ask(self, statement: Statement, parameter: bytes) -> list[ApiKey]:
        held = self._held
        if held.process != os.getpid():
            # After a fork. The parent's stay as they are, and so do its locks, which nobody here would release.
            held = self._held = _Held()
        wire = held.take()
        try:
            if wire is None or not wire.is_usable:
                if wire is not None:
                    wire.close()
                wire = self._open()
            try:
                answer = wire.ask(statement.name, statement.text, parameter)
            except Lost as lost:
                raise NotNow from lost
            try:
                return self._reading.records(answer)
            except NotNow:
                wire.close()
                raise
        finally:
            held.give_back(wire)
            if self._is_closed:
                held.close_idle()

    def _open(self) -> BlockingWire:
        if (
            self._is_closed
            or not self._reading.is_understood
            or _CLOCK.monotonic() < self._closed_until
        ):
            raise NotNow
        pooled = self._engine.raw_connection()
        driver = cast("Connection[Any]", pooled.driver_connection)
        # From here on it is not the pool's, which makes another one when it needs it.
        pooled.detach()
        try:
            # Whatever prepared the connection may have left a transaction open, with a state of its own.
            driver.rollback()
            wire = BlockingWire(driver)
        except BaseException:
            driver.close()
            raise
        try:
            for statement in self._reading.to_prepare(wire, self._reading.one):
                answer = wire.prepare(statement.name, statement.text)
                self._reading.note_prepared(wire, answer)
        except BaseException as error:
            wire.close()
            self._closed_until = _CLOCK.monotonic() + PAUSE_SECONDS
            if isinstance(error, Lost):
                raise NotNow from error
            raise
        return wire


class _Held:
    """The connections that one process holds, and who may take one."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._idle: SimpleQueue[BlockingWire] = SimpleQueue()
        self._room = BoundedSemaphore(MAX_HELD)

    def take(self) -> BlockingWire | None:
        """A connection that nobody uses, or None: room to open one. Either is to be given back.

        Raises:
            NotNow: All are in use.
        """
        try:
            return self._idle.get_nowait()
        except Empty:
            pass
        if self._room.acquire(blocking=False):
            return None
        try:
            return self._idle.get(timeout=_MAX_WAIT_SECONDS)
        except Empty:
            raise NotNow from None

    def give_back(self, wire: BlockingWire | None) -> None:
        """Let the next one have what :meth:`take` gave: the connection, or the room if it is closed."""
        if wire is None or wire.is_closed:
            self._room.release()
        else:
            self._idle.put(wire)

    def close_idle(self) -> None:
        """Close what nobody uses."""
        for wire in self._take_idle():
            wire.close()
            self._room.release()

    def __del__(self) -> None:
        # Of a store that nobody closed, or of the process that this one was forked from: no lock is taken.
        for wire in self._take_idle():
            wire.close()

    def _take_idle(self) -> Iterator[BlockingWire]:
        while True:
            try:
                yield self._idle.get_nowait()
            except Empty:
                return
