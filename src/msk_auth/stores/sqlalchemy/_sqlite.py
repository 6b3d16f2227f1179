"""SQLite: the setup of connections, the beginning of writes, forks, and fast reads without SQLAlchemy."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final, NamedTuple, cast
from urllib.parse import quote
from weakref import WeakSet

from sqlalchemy import Table, event
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Connection, Dialect, Engine
from sqlalchemy.engine.url import make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import StaticPool
from sqlalchemy.sql import Select

from msk_auth._fork import abandon, after_fork_in_child
from msk_auth.clock import SystemClock

from ._table import select_from_id

_PATIENCE_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.005

_CLOCK: Final = SystemClock()

# The busy timeout comes first: changing the journal mode may have to wait. With WAL, readers and a writer do not wait for each
# other. A commit is on the disk when it returns; in WAL mode NORMAL would lose the last commits in a power failure.
_PRAGMAS: Final = (
    f"PRAGMA busy_timeout = {_PATIENCE_SECONDS * 1000:.0f}",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
)


_FORK_SECONDS: Final = 3.0
"""How long a fork may wait: less than SQLite's wait for a lock, so that no write fails because of a fork."""


class _ForkGate:
    """Delays a fork until no other thread is inside SQLite.

    A child has a copy of the mutexes of SQLite's library, and of its table of locked files. A lock that another thread
    held during the fork stays locked in the child for good: its reads would hang, and its writes
    find the database locked. So the forking thread waits, and holds `lock` until it has forked.

    A fork waits for :data:`_FORK_SECONDS` at most, and not for its own thread.

    Attributes:
        lock: Held for one short read, which then needs no :meth:`inside`. A thread may acquire it again, since a signal
            handler may fork.
    """

    def __init__(self) -> None:
        self._renew()
        if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
            os.register_at_fork(
                before=self._close, after_in_parent=self._open, after_in_child=self._renew
            )

    def _renew(self) -> None:
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        # By the identity of the thread.
        self._inside: Counter[int] = Counter()
        self._forking = 0

    @contextmanager
    def inside(self) -> Generator[None]:
        """A block during which no other thread forks."""
        thread = threading.get_ident()
        # In a child that this thread forks meanwhile, both attributes are new objects.
        changed, inside = self._changed, self._inside
        with changed:
            changed.wait_for(lambda: self._forking == 0 or thread in inside)
            inside[thread] += 1
        try:
            yield
        finally:
            with changed:
                inside[thread] -= 1
                if inside[thread] == 0:
                    del inside[thread]
                changed.notify_all()

    def _close(self) -> None:
        self.lock.acquire()
        self._forking += 1
        thread = {threading.get_ident()}
        self._changed.wait_for(lambda: self._inside.keys() <= thread, _FORK_SECONDS)

    def _open(self) -> None:
        self._changed.notify_all()
        self._forking -= 1
        self.lock.release()


FORK_GATE: Final = _ForkGate()
"""One for the process, like SQLite's mutexes. Only the store's calls pass it."""


def prepare_sqlite(engine: Engine | AsyncEngine) -> None:
    """Set up new connections of an engine for a server: WAL, durable commits, a busy timeout, foreign keys.

    Call this once, before the engine is used. Without it the stores are correct, only slower.

    Args:
        engine: An engine for an SQLite database in a file.
    """
    event.listen(_sync(engine), "connect", _set_up)
    listen_to_connections(_sync(engine))


_outside_forks: Final = FORK_GATE.inside()
"""Decorates a method during which no other thread forks."""


class _Cursor(sqlite3.Cursor):
    execute = _outside_forks(sqlite3.Cursor.execute)
    executemany = _outside_forks(sqlite3.Cursor.executemany)
    executescript = _outside_forks(sqlite3.Cursor.executescript)
    fetchone = _outside_forks(sqlite3.Cursor.fetchone)
    fetchmany = _outside_forks(sqlite3.Cursor.fetchmany)
    fetchall = _outside_forks(sqlite3.Cursor.fetchall)
    close = _outside_forks(sqlite3.Cursor.close)


class _Connection(sqlite3.Connection):
    """A connection that ends its statements when it is closed, and lets no other thread fork during a call.

    A cancelled request ends between the steps of a statement, and SQLAlchemy closes its connection. Python leaves the
    statement to the garbage collector, and SQLite keeps the connection and its locks until then: the next write would
    wait for the garbage collector.

    An asynchronous driver calls SQLite in its own thread, which ends each call independently of the event loop. It cannot
    end a transaction while the event loop's thread forks, so a fork waits only for calls.
    """

    @_outside_forks
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._cursors: WeakSet[sqlite3.Cursor] = WeakSet()

    commit = _outside_forks(sqlite3.Connection.commit)
    rollback = _outside_forks(sqlite3.Connection.rollback)

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        cursor = super().cursor(*args or (_Cursor,), **kwargs)
        self._cursors.add(cursor)
        return cursor

    @_outside_forks
    def close(self) -> None:
        # The driver may close a connection twice, and closed cursors would refuse.
        cursors = list(self._cursors)
        self._cursors.clear()
        for cursor in cursors:
            cursor.close()
        super().close()


def listen_to_connections(engine: Engine) -> None:
    """Let each new connection of an engine record its file, for :func:`check_file`, and aiosqlite use :class:`_Connection`.

    An engine with `async_creator` keeps the application's connections. SQLAlchemy ignores a listener that it already has.
    """
    event.listen(engine, "connect", _note_file)
    if engine.driver == "aiosqlite":
        event.listen(engine, "do_connect", _choose_class)


def _choose_class(
    _dialect: object, _record: object, _args: object, options: dict[str, Any]
) -> None:
    options.setdefault("factory", _Connection)


def _set_up(connection: Any, _record: object) -> None:
    """Execute the pragmas, and retry while the database is busy.

    SQLite waits for a lock, but refuses at once if two connections that change the journal mode would
    wait for each other, such as in processes that start together on a new file.
    """
    deadline = _CLOCK.monotonic() + _PATIENCE_SECONDS
    with closing(connection.cursor()) as cursor:
        while True:
            try:
                for pragma in _PRAGMAS:
                    cursor.execute(pragma)
            except sqlite3.OperationalError as error:
                # The extended code has more in its upper bits; the driver's own errors have no code.
                is_busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
                if not is_busy or _CLOCK.monotonic() >= deadline:
                    raise
            else:
                return
            _CLOCK.sleep(_PAUSE_SECONDS)


def begin_immediate(connection: Connection) -> None:
    """Begin a transaction that may write, unless the application's engine has already begun one.

    The engine's transaction may be deferred. It becomes a writer with the first statement of the
    operation, which is a write (rule 3 of `_operations`).
    """
    driver: Any = connection.connection.driver_connection
    if not driver.in_transaction:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


class ReplacedFileError(OSError):
    """The database file was replaced under an open connection, which would read and write the old file."""


def _note_file(connection: Any, record: Any) -> None:
    with closing(connection.cursor()) as cursor:
        cursor.execute("PRAGMA database_list")
        # The main database comes first. In memory, or temporary, it has no path.
        (_, _, path), *_ = cursor.fetchall()
    record.info[_OPENED] = path, _identity(path)


def check_file(connection: Connection) -> str:
    """Refuse a connection whose file was replaced, and renew the pool.

    Returns:
        The path of the file; an empty text for a database in memory, or a temporary database.

    Raises:
        ReplacedFileError: The file was replaced. Writes through the connection would be lost.
    """
    if _OPENED not in connection.info:
        # The connection was opened before the store was made.
        _note_file(connection.connection, connection)
    path, file = connection.info[_OPENED]
    # The engine handles a missing file.
    if _identity(path) not in {file, None}:
        connection.invalidate()
        connection.engine.dispose()
        raise ReplacedFileError(
            f"The database file {path!r} was replaced while a connection had it open, for example by restoring a backup."
            " The pool was renewed: try again."
        )
    return str(path)


_OPENED: Final = "msk_auth_opened"


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - half the time of pathlib's
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


BELIEF_SECONDS: Final = 0.001
"""How long a check of the file's identity is valid.

A check for each read would cost a busy process a tenth of a verification. An operator cannot restore a backup, open it and
durably revoke a key in it within this time.
"""


class _Opened(NamedTuple):
    """A connection of the reader, by the driver and for statements of SQLAlchemy, and the file that it has open."""

    driver: sqlite3.Connection
    statements: Connection
    file: tuple[int, int] | None


class SQLiteReader:
    """Reads on a separate connection, in the calling thread: in microseconds, where an asynchronous driver takes 300.

    The calling thread may be the event loop's: passing the work to a thread and back takes longer than the work. The reader
    never waits: the busy timeout is 0, and in any doubt it returns None and the store reads through SQLAlchemy.

    Each read sees the last commit, because it is its own transaction. The reader is not
    used for databases in memory, which belong to one connection. A file that was replaced by a restored backup
    is noticed within :data:`BELIEF_SECONDS` and opened again. A forked child opens its own connection.

    Args:
        table: The table of keys.
        dialect: The engine's dialect, for the types of the application's statements.
    """

    def __init__(self, table: Table, dialect: Dialect) -> None:
        # One connection for all threads, under the lock of the gate, which is held for microseconds: a connection for each
        # thread would outlive the thread.
        self._opened: _Opened | None = None
        self._believed_until = 0.0
        self._path = ""
        self._dialect = dialect
        # SQLAlchemy would add two parameters for the limit.
        qmark = sqlite.dialect(paramstyle="qmark")
        self._sql = f"{select_from_id(table).compile(dialect=qmark)} LIMIT 1"
        after_fork_in_child(self._renew)

    def locate(self, path: str) -> None:
        """Use the file that the engine has opened: its URL may name another. Without a path SQLAlchemy must read."""
        self._path = path

    def find(self, key_id: str) -> Sequence[Any] | None:
        """The rows of :func:`select_from_id` for this id, up to one; None if the store must read through SQLAlchemy."""
        # With the bare driver, which takes a third of the time. To the end of the result: an unfinished statement
        # keeps its transaction open.
        return self._read(lambda opened: opened.driver.execute(self._sql, (key_id,)).fetchall())

    def read(self, statement: Select[Any], values: Mapping[str, Any]) -> Sequence[Any] | None:
        """The rows of a statement that selects few rows by an index; None as for :meth:`find`."""
        return self._read(lambda opened: opened.statements.execute(statement, values).all())

    def close(self) -> None:
        """Close the connection."""
        with FORK_GATE.lock:
            self._drop()

    # The default argument still exists at the interpreter's end, when this module's names are gone.
    def __del__(self, gate: _ForkGate = FORK_GATE) -> None:
        with gate.lock:
            self._drop()

    def _read(self, work: Callable[[_Opened], Sequence[Any]]) -> Sequence[Any] | None:
        path = self._path
        if not path:
            return None
        with FORK_GATE.lock:
            try:
                return work(self._current(path))
            except (sqlite3.Error, SQLAlchemyError, OSError):
                self._drop()
                return None

    def _current(self, path: str) -> _Opened:
        now = _CLOCK.monotonic()
        opened = self._opened
        if opened is None or now >= self._believed_until:
            file = _identity(path)
            if opened is None or file != opened.file:
                self._drop()
                opened = self._opened = _open(path, self._dialect, file)
            # From before the look.
            self._believed_until = now + BELIEF_SECONDS
        return opened

    def _drop(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.statements.close()
            opened.driver.close()

    def _renew(self) -> None:
        """Open a new connection in a forked child: an SQLite connection works only in the process that opened it.

        Closing it here could end the parent's locks ("How To Corrupt An SQLite Database File", section 2.6).
        """
        abandon(self._opened)
        self._opened = None


def _open(path: str, dialect: Dialect, file: tuple[int, int] | None) -> _Opened:
    driver = sqlite3.connect(
        # Only existing files. Writable, so that the last connection to close can remove the WAL.
        f"file:{quote(path)}?mode=rw",
        uri=True,
        timeout=0,
        isolation_level=None,
        check_same_thread=False,
    )
    driver.execute("PRAGMA query_only = ON")
    # Without the dialect: the pool of an asynchronous one warns if the store is collected without being closed.
    pool = StaticPool(cast("Any", lambda: driver), reset_on_return=None)
    return _Opened(driver, Engine(pool, dialect, make_url("sqlite://")).connect(), file)


def _sync(engine: Engine | AsyncEngine) -> Engine:
    return engine.sync_engine if isinstance(engine, AsyncEngine) else engine
