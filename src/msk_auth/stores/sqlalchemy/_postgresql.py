"""Reads on PostgreSQL with psycopg: prepared cursors of its own on connections that are held, each with a deadline.

A held connection comes from the engine's pool and is taken out of it, so whatever the application does to new
connections was done to it. It is in autocommit: each read is one by itself, and sees what was committed when it began.
One read at a time is on it. When none becomes free within a tenth of a second, and whenever anything else is in doubt, a
reader raises :class:`~msk_auth.stores.sqlalchemy._rows.FastPathUnavailable`, and the store reads through SQLAlchemy.

A server that is frozen, or behind a network that was cut, keeps its connections and answers nothing. Every cursor of
psycopg waits in the method `wait` of its connection, so that is where the deadline is.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from sqlalchemy import ARRAY, Engine, String, Table, any_, bindparam, literal_column, select
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncEngine

from msk_auth._fork import abandon, after_fork_in_child
from msk_auth.core.model import ApiKey

from ._deadlines import CLOCK, bounded, connect_until, no_answer, within
from ._rows import FastPathUnavailable, first_record, records, select_from_id
from ._standby import check_primary

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection
    from psycopg.abc import PQGen

T = TypeVar("T")

MAX_HELD: Final = 4
"""How many connections a process holds, or an event loop: as many as keep an interpreter busy with what they answer."""

STALL_SECONDS: Final = 0.25
"""After this time without an answer another connection may be opened beside the one that is waited for."""

MAX_STALLED: Final = 16
"""How many connections of one event loop may be waited for at most, stalled ones included."""

PAUSE_SECONDS: Final = 1.0
"""For how long reads go through SQLAlchemy after a connection could not be prepared for reading."""

_MAX_IDLE_SECONDS: Final = 60.0
# After a failover a connection may go on to the old primary. It does not do so for long.
_MAX_AGE_SECONDS: Final = 600.0
# After a cancel request the server stops waiting, for a lock for example.
_CANCEL_SECONDS: Final = 0.5
# A read takes a tenth of a millisecond: waiting until another one has its answer is cheaper than SQLAlchemy's way.
_MAX_WAIT_SECONDS: Final = 0.1
# invalid_sql_statement_name, duplicate_prepared_statement: behind a pooler that hands each transaction to another server.
_NOT_KEPT: Final = frozenset({"26000", "42P05"})
# The bits of psycopg's `Wait` and `Ready`.
_READ: Final = 1
_WRITE: Final = 2


def is_plain_postgresql(engine: Engine) -> bool:
    """True where connections can be held: psycopg, and tables under the names they were made with."""
    return (
        engine.dialect.name == "postgresql"
        and engine.dialect.driver == "psycopg"
        and "schema_translate_map" not in engine.get_execution_options()
    )


class _Reading:
    """The two statements of a table of keys, and whether statements can be prepared here."""

    def __init__(self, table: Table) -> None:
        self.prepares = True
        # In the text: the id stays the only parameter.
        first = select_from_id(table).limit(literal_column("1"))
        key_ids = bindparam("key_ids", type_=ARRAY(String))
        among = select(*table.c).where(table.c.id == any_(key_ids))
        dialect = cast("Any", postgresql.dialect)(paramstyle="format")
        self.one, self.many = (
            str(statement.compile(dialect=dialect)).encode() for statement in (first, among)
        )

    def note_failure(self, error: Exception) -> None:
        """Learn from an error that statements cannot be prepared here."""
        if getattr(error, "sqlstate", None) in _NOT_KEPT:
            self.prepares = False


class _Held:
    """A connection that was taken over from the pool and belongs to one reader.

    Args:
        driver: Outside of a transaction.
        now: By the clock of its reader.
    """

    def __init__(self, driver: AsyncConnection[Any] | Connection[Any], now: float) -> None:
        self.driver = driver
        self._opened = self.used = now
        # psycopg counts its statements from zero on every connection. Behind a pooler that mixes connections another
        # one's statement would answer under the same number; an unknown number is an error.
        cast("Any", driver)._prepared._prepared_idx = secrets.randbits(62)  # noqa: SLF001

    def is_fresh(self, now: float) -> bool:
        """False if it was closed, is old, or was silent for so long that it should not be trusted."""
        return not (
            self.driver.closed
            or now - self.used > _MAX_IDLE_SECONDS
            or now - self._opened > _MAX_AGE_SECONDS
        )

    def close(self) -> None:
        """Close the connection at once. Closing again does nothing."""
        self.driver.pgconn.finish()


class BlockingReader:
    """Finds records for threads.

    Each held connection is with one thread at a time, and there are as many as threads read at the same moment, up to
    :data:`MAX_HELD`.

    Args:
        engine: Of PostgreSQL with psycopg.
        table: The table of keys.
    """

    def __init__(self, engine: Engine, table: Table) -> None:
        self._engine = engine
        self._reading = _Reading(table)
        self._closed_until = 0.0
        self._is_closed = False
        self._begin()
        after_fork_in_child(self._renew)

    def find(self, key_id: str, deadline: float) -> ApiKey | None:
        """The record with this id, or None if there is none.

        Args:
            key_id: Of the key.
            deadline: By `CLOCK`. A `connect_timeout` of the engine's own bounds opening a connection in its place.

        Raises:
            FastPathUnavailable: No connection is free, or fit for reading.
            TimeoutError: The server does not answer.
        """
        return first_record(self.read(self._reading.one, (_checked(key_id),), deadline), key_id)

    def read(self, statement: bytes, parameters: Any, deadline: float) -> Sequence[tuple[Any, ...]]:
        """The rows of a statement. Arguments and errors are those of :meth:`find`.

        Args:
            statement: As psycopg takes it.
            parameters: As psycopg takes them.
            deadline: By `CLOCK`.
        """
        connection = self._take()
        try:
            if connection is None or not connection.is_fresh(CLOCK.monotonic()):
                if connection is not None:
                    connection.close()
                connection = self._open(deadline)
            return connection.read(self._reading, statement, parameters, deadline)
        finally:
            self._give_back(connection)

    def close(self) -> None:
        """Close the connections; one in use as soon as it has its answer. None is opened again."""
        self._is_closed = True
        self._close_idle()

    def __del__(self) -> None:
        for connection in self._take_idle():
            connection.close()

    def _begin(self) -> None:
        self._idle: SimpleQueue[_BlockingConnection] = SimpleQueue()
        self._room = BoundedSemaphore(MAX_HELD)

    def _renew(self) -> None:
        abandon(self._idle)
        self._begin()

    def _take(self) -> _BlockingConnection | None:
        """A connection that no other thread uses, or None: room to open one. Either is to be given back."""
        with suppress(Empty):
            return self._idle.get_nowait()
        if self._room.acquire(blocking=False):
            return None
        try:
            return self._idle.get(timeout=_MAX_WAIT_SECONDS)
        except Empty:
            raise FastPathUnavailable from None

    def _give_back(self, connection: _BlockingConnection | None) -> None:
        if connection is None or connection.driver.closed:
            self._room.release()
        else:
            self._idle.put(connection)
        if self._is_closed:
            self._close_idle()

    def _close_idle(self) -> None:
        for connection in self._take_idle():
            connection.close()
            self._room.release()

    def _take_idle(self) -> Iterator[_BlockingConnection]:
        with suppress(Empty):
            while True:
                yield self._idle.get_nowait()

    def _open(self, deadline: float) -> _BlockingConnection:
        if self._is_closed or CLOCK.monotonic() < self._closed_until:
            raise FastPathUnavailable
        # Not `raw_connection`, whose errors are the driver's: callers expect SQLAlchemy's.
        pooled = connect_until(self._engine, deadline).connection
        driver = cast("Connection[Any]", pooled.driver_connection)
        # From here on it is not the pool's, which makes another one when it needs it.
        pooled.detach()
        try:
            # The code that prepared the connection may have left a transaction open, with a state of its own.
            driver.rollback()
            driver.autocommit = True
            return _BlockingConnection(driver)
        except Exception as error:
            driver.close()
            self._closed_until = CLOCK.monotonic() + PAUSE_SECONDS
            raise FastPathUnavailable from error


class _BlockingConnection(_Held):
    def __init__(self, driver: Connection[Any]) -> None:
        from psycopg import Cursor
        from psycopg.rows import tuple_row

        super().__init__(driver, CLOCK.monotonic())
        self._blocking = driver
        # Not of the connection's own kind, which may be the application's.
        self._cursor = Cursor(driver, row_factory=tuple_row)

    def read(
        self, reading: _Reading, statement: bytes, parameters: Any, deadline: float
    ) -> Sequence[tuple[Any, ...]]:
        """The rows. The connection is closed when it raises."""
        self.used = CLOCK.monotonic()
        try:
            with bounded(self._blocking, deadline):
                self._cursor.execute(statement, parameters, prepare=reading.prepares)
            check_primary(self.driver)
            return self._cursor.fetchall()
        except TimeoutError:
            if _can_cancel():
                with suppress(Exception):  # it is closed in any case
                    self._blocking.cancel_safe(timeout=_CANCEL_SECONDS)
            self.close()
            raise
        except Exception as error:
            self.close()
            reading.note_failure(error)
            raise FastPathUnavailable from error
        except BaseException:
            # An interrupt: an answer is still on its way, and it must not be the next one's.
            self.close()
            raise


class AwaitingReader:
    """Finds records on event loops; each loop has connections of its own.

    As long as the server answers, look-ups that are batched need one connection. While it does not, one more may be
    opened every :data:`STALL_SECONDS`: what is lost on a dead connection delays nothing else.

    Args:
        engine: Of PostgreSQL with psycopg.
        table: The table of keys.
    """

    def __init__(self, engine: AsyncEngine, table: Table) -> None:
        self._engine = engine
        self._reading = _Reading(table)
        self._loops: dict[asyncio.AbstractEventLoop, _LoopConnections] = {}
        self._closed_until = 0.0
        self._is_closed = False
        after_fork_in_child(self._renew)

    async def find(self, key_id: str, deadline: float) -> ApiKey | None:
        """As :meth:`BlockingReader.find`; the deadline is by the loop's clock, and bounds opening a connection too."""
        rows = await self.read(self._reading.one, (_checked(key_id),), deadline)
        return first_record(rows, key_id)

    async def find_many(self, key_ids: Sequence[str], deadline: float) -> list[ApiKey]:
        """The records with these ids, those that there are, in one round trip. Raises as :meth:`find` does."""
        # An array as PostgreSQL writes it. psycopg takes longer to make one than the server to find a key; in quotes, because
        # the word NULL without them is none.
        parameter = '{"' + '","'.join(map(_checked, key_ids)) + '"}'
        rows = await self.read(self._reading.many, (parameter,), deadline)
        return records(rows, len(key_ids))

    async def aclose(self) -> None:
        """Close the connections of this loop, and of loops that have ended. None is opened again."""
        self._is_closed = True
        self._close_ended()
        here = self._loops.pop(asyncio.get_running_loop(), None)
        if here is not None:
            here.close()

    def __del__(self) -> None:
        for here in self._loops.values():
            here.close()

    def _renew(self) -> None:
        abandon(self._loops)
        self._loops = {}

    async def read(
        self, statement: bytes, parameters: Any, deadline: float
    ) -> Sequence[tuple[Any, ...]]:
        """As :meth:`BlockingReader.read`; the deadline is by the loop's clock."""
        loop = asyncio.get_running_loop()
        here = self._loops.get(loop)
        connection = None if here is None else here.take()
        if connection is None:
            if here is None or here.has_room:
                connection = await self._open(loop, deadline)
            else:
                connection = await here.take_next()
        return await connection.read(self._reading, statement, parameters, deadline)

    async def _open(self, loop: asyncio.AbstractEventLoop, deadline: float) -> _AwaitingConnection:
        if self._is_closed or loop.time() < self._closed_until:
            raise FastPathUnavailable
        here = self._loops.get(loop)
        if here is None:
            self._close_ended()
            here = self._loops[loop] = _LoopConnections(loop)
        opening = here.reserve()
        try:
            driver = await within(deadline, self._connect(loop))
            return here.add(driver)
        finally:
            here.free(opening)

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> AsyncConnection[Any]:
        # Not `raw_connection`, as in :meth:`BlockingReader._open`.
        connection = await self._engine.connect()
        pooled = await connection.get_raw_connection()
        driver = cast("AsyncConnection[Any]", pooled.driver_connection)
        # From here on it is not the pool's, which makes another one when it needs it.
        pooled.detach()
        try:
            # The code that prepared the connection may have left a transaction open, with a state of its own.
            await driver.rollback()
            await driver.set_autocommit(True)
        except Exception as error:
            await driver.close()
            self._closed_until = loop.time() + PAUSE_SECONDS
            raise FastPathUnavailable from error
        except BaseException:
            await driver.close()
            raise
        return driver

    def _close_ended(self) -> None:
        for loop in [loop for loop in self._loops if loop.is_closed()]:
            self._loops.pop(loop).close()


class _LoopConnections:
    """The connections that one event loop holds."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.idle: list[_AwaitingConnection] = []
        # What is waited for, a read or a connection that is being opened, and since when.
        self.busy: dict[object, float] = {}
        # Reads that found no connection idle and no room for another one.
        self._waiting: dict[asyncio.Future[_AwaitingConnection], None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def take(self) -> _AwaitingConnection | None:
        """A connection that nothing else uses, or None."""
        now = self.loop.time()
        while self.idle:
            connection = self.idle.pop()
            if connection.is_fresh(now):
                self.busy[connection] = now
                return connection
            connection.close()
        return None

    @property
    def has_room(self) -> bool:
        """Whether one more connection may be opened now."""
        now = self.loop.time()
        answering = sum(now - since < STALL_SECONDS for since in self.busy.values())
        return answering < MAX_HELD and len(self.busy) < MAX_STALLED

    async def take_next(self) -> _AwaitingConnection:
        """The next connection that is given back; the first that waits gets it.

        Raises:
            FastPathUnavailable: None was given back in time.
        """
        waiter: asyncio.Future[_AwaitingConnection] = self.loop.create_future()
        self._waiting[waiter] = None
        timer = self.loop.call_later(_MAX_WAIT_SECONDS, _end_wait, waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                # It was given while the caller was cancelled.
                self.give_back(waiter.result())
            raise
        finally:
            timer.cancel()
            self._waiting.pop(waiter, None)

    def reserve(self) -> object:
        """Room for one more connection, to be freed again."""
        opening = object()
        self.busy[opening] = self.loop.time()
        return opening

    def free(self, opening: object) -> None:
        del self.busy[opening]

    def add(self, driver: AsyncConnection[Any]) -> _AwaitingConnection:
        """A new connection, taken."""
        connection = _AwaitingConnection(driver, self)
        self.busy[connection] = self.loop.time()
        return connection

    def give_back(self, connection: _AwaitingConnection) -> None:
        self.busy.pop(connection, None)
        if self._is_closed or len(self.idle) >= MAX_HELD:
            connection.close()
            return
        waiter = next((each for each in self._waiting if not each.done()), None)
        now = self.loop.time()
        if waiter is None:
            self.idle.append(connection)
        elif connection.is_fresh(now):
            self.busy[connection] = now
            waiter.set_result(connection)
        else:
            connection.close()

    def drop(self, connection: _AwaitingConnection) -> None:
        self.busy.pop(connection, None)
        connection.close()

    def leave(self, work: Coroutine[Any, Any, None]) -> None:
        """Let work go on that nothing waits for."""
        task = self.loop.create_task(work, name="msk_auth ends a read")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Close what is idle now, and the rest when it is given back."""
        self._is_closed = True
        while self.idle:
            self.idle.pop().close()
        if self.loop.is_closed():
            for each in list(self.busy):
                if isinstance(each, _AwaitingConnection):
                    each.close()


class _AwaitingConnection(_Held):
    def __init__(self, driver: AsyncConnection[Any], here: _LoopConnections) -> None:
        from psycopg import AsyncCursor
        from psycopg.rows import tuple_row

        super().__init__(driver, here.loop.time())
        self._awaited = driver
        self._here = here
        self._socket = driver.pgconn.socket
        self._deadline = 0.0
        self._unfinished: PQGen[Any] | None = None
        # All operations of psycopg wait in this method, which is public and made to be overridden. Its own one asks the
        # server to cancel when it is cancelled itself, and waits for up to ten seconds for that.
        vars(driver)["wait"] = self._wait
        # Not of the connection's own kind, which may be the application's.
        self._cursor = AsyncCursor(driver, row_factory=tuple_row)

    async def read(
        self, reading: _Reading, statement: bytes, parameters: Any, deadline: float
    ) -> Sequence[tuple[Any, ...]]:
        """The rows. Gives the connection back."""
        self.used = self._here.loop.time()
        self._deadline = deadline
        try:
            await self._cursor.execute(statement, parameters, prepare=reading.prepares)
            check_primary(self.driver)
            rows = await self._cursor.fetchall()
        except TimeoutError:
            self._here.leave(self._give_up())
            raise
        except Exception as error:
            self._here.drop(self)
            reading.note_failure(error)
            raise FastPathUnavailable from error
        except BaseException:
            # Cancelled. Its answer is still on its way, and must not be the next one's.
            self._here.leave(self._finish())
            raise
        self._here.give_back(self)
        return rows

    async def _finish(self) -> None:
        """Take the answer that the look-up does not wait for any more."""
        try:
            await self._wait(cast("PQGen[None]", self._unfinished))
        except Exception:  # noqa: BLE001 - nothing waits for it
            await self._give_up()
        else:
            self._here.give_back(self)

    async def _give_up(self) -> None:
        try:
            if _can_cancel():
                async with asyncio.timeout(_CANCEL_SECONDS):
                    await self._awaited.cancel_safe(timeout=_CANCEL_SECONDS)
        except Exception:  # noqa: BLE001, S110 - it is closed in any case
            pass
        finally:
            self._here.drop(self)

    async def _wait(self, generator: PQGen[T], *_args: object, **_options: object) -> T:
        self._unfinished = generator
        try:
            wanted = next(generator)
            while True:
                wanted = generator.send(cast("Any", await self._ready(wanted)))
        except StopIteration as end:
            result: T = end.value
            return result

    async def _ready(self, wanted: int) -> int:
        loop = self._here.loop
        waiter: asyncio.Future[int] = loop.create_future()
        timer = loop.call_at(self._deadline, _fail, waiter)
        # Removed again before the socket may be closed, whose number another connection would get.
        if wanted & _READ:
            loop.add_reader(self._socket, _wake, waiter, _READ)
        if wanted & _WRITE:
            loop.add_writer(self._socket, _wake, waiter, _WRITE)
        try:
            return await waiter
        finally:
            timer.cancel()
            if wanted & _READ:
                loop.remove_reader(self._socket)
            if wanted & _WRITE:
                loop.remove_writer(self._socket)


def _wake(waiter: asyncio.Future[int], ready: int) -> None:
    if not waiter.done():
        waiter.set_result(ready)


def _end_wait(waiter: asyncio.Future[_AwaitingConnection]) -> None:
    if not waiter.done():
        waiter.set_exception(FastPathUnavailable())


def _fail(waiter: asyncio.Future[int]) -> None:
    if not waiter.done():
        waiter.set_exception(no_answer())


def _can_cancel() -> bool:
    """Whether a query can be cancelled on the server in bounded time (libpq 17)."""
    import psycopg

    has_cancel_safe = getattr(getattr(psycopg, "capabilities", None), "has_cancel_safe", None)
    return has_cancel_safe is not None and has_cancel_safe()


def _checked(key_id: str) -> str:
    """An id that can be one of ours.

    Raises:
        FastPathUnavailable: It is none, and the driver would refuse a NUL or half a surrogate.
    """
    if not (key_id.isascii() and key_id.isalnum()):
        raise FastPathUnavailable
    return key_id
