"""The shared part of both stores, with a blocking connection: in a thread, or in a greenlet of an event loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from typing import Any, Final, TypeAlias, TypeVar, cast

from sqlalchemy import MetaData, Table
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from msk_auth._fork import abandon, after_fork_in_child
from msk_auth.core.errors import ConfigurationError
from msk_auth.core.store import READ_SECONDS

from ._operations import KeyOperations
from ._servers import check_primary_of, commit_durably, in_use, is_late
from ._sqlite import (
    SQLiteReader,
    begin_immediate,
    check_file,
    listen_to_connections,
)
from ._table import api_key_table

T = TypeVar("T")
E = TypeVar("E", Engine, AsyncEngine)

Work: TypeAlias = Callable[[Connection], T]
"""Work with a connection."""

REGISTER_SECONDS: Final = 1.0
"""How long a verification may wait for the register of leases, which is optional, before it reads the key."""

MAX_STALE: Final = 16
"""The maximum number of closed pooled connections in one read: if SQLAlchemy notices one, it discards all."""

_TOUCHES_AT_ONCE: Final = 500
"""The number of keys that a transaction touches: no revocation waits long for one of them."""

_DEFAULT_TABLE: Final = api_key_table(MetaData())
"""Shared by all stores: an engine caches compiled statements by table, so the statements of one store serve the next."""


class SharedStore:
    """The common base of both stores.

    Reads are single statements outside of a transaction: they see the last commit, at any isolation level of
    the application, and take one round trip.

    Writers of SQLite take turns within their process. The database would let only one of them write anyway, and
    lets the others retry after longer and longer pauses, in no order.

    A read that finds its pooled connection closed, by a restarted server for example, is retried once.

    Args:
        get_engine: Returns the current engine.
        table: The table of keys; None means the table with the default name.
        take_turn: Waits for the turn of a writer, at most so many seconds, and keeps it during a block.
        outside_forks: A block during which no other thread forks, on SQLite.

    Attributes:
        read_seconds: The time limit of a read.
        write_seconds: The time limit of a write: on SQLite of waiting for other writers of the process, otherwise of the whole
            write.
    """

    read_seconds: float = READ_SECONDS
    write_seconds: float = 10.0

    def __init__(
        self,
        get_engine: Callable[[], Engine],
        table: Table | None,
        take_turn: Callable[[float], AbstractContextManager[None]],
        outside_forks: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._get_engine = get_engine
        self._table = _DEFAULT_TABLE if table is None else table
        self._take_turn = take_turn
        self._outside_forks = outside_forks
        self._engine: Engine | None = None
        self._reader: SQLiteReader | None = None
        self._binding = threading.Lock()
        after_fork_in_child(self._renew)

    @property
    def _operations(self) -> KeyOperations:
        self._bind()
        return self._bound_operations

    def _bind(self) -> Engine:
        """Prepare for the current engine, once.

        One thread prepares, and the others wait: setting up an engine's events while another thread connects would fail
        that thread.
        """
        engine = self._get_engine()
        if engine is not self._engine:
            with self._binding:
                if engine is not self._engine:
                    self._prepare(engine)
        return engine

    def _prepare(self, engine: Engine) -> None:
        self._bound_operations = KeyOperations(self._table, engine.dialect.name)
        self._is_sqlite = engine.dialect.name == "sqlite"
        # A database in memory is one shared connection: a reader that ends its transaction ends a writer's too.
        self._is_one_connection = isinstance(engine.pool, StaticPool)
        self._reader = None
        if self._is_sqlite:
            listen_to_connections(engine)
            if self._table.schema is None:
                self._reader = SQLiteReader(self._table, engine.dialect)
        self._derived = engine.execution_options()
        # Errors are logged, and the parameters of these statements are digests and names.
        self._derived.hide_parameters = True
        self._engine = engine

    def _renew(self) -> None:
        self._binding = threading.Lock()
        engine = self._engine
        # A database in memory is its connection: a child continues with its copy.
        in_memory = (StaticPool, SingletonThreadPool)
        if engine is None or (self._is_sqlite and isinstance(engine.pool, in_memory)):
            return
        # As SQLAlchemy advises for a forked child. The pool's connections stay open: they are the parent's.
        abandon(engine.pool)
        engine.dispose(close=False)

    def _bounded(self, seconds: float) -> float | None:
        """The time limit of a use of the database; on SQLite no server can fall silent."""
        self._bind()
        return None if self._is_sqlite else seconds

    def _read_now(self, work: Work[T]) -> T:
        """Read with one statement; retry once if the pool's connection turns out to be closed."""
        for _ in range(MAX_STALE):
            try:
                return self._read_once(work)
            except Exception as error:
                if not self._was_stale(error):
                    raise
        return self._read_once(work)

    def _read_once(self, work: Work[T]) -> T:
        with self._connect("AUTOCOMMIT", takes_turn=self._is_one_connection) as connection:
            answer = work(connection)
            # Afterwards: the server's reports have arrived with its answer.
            check_primary_of(connection)
            return answer

    def _write_now(self, work: Work[T]) -> T:
        with (
            self._connect("READ COMMITTED", takes_turn=self._is_sqlite) as connection,
            connection.begin(),
        ):
            if self._is_sqlite:
                begin_immediate(connection)
            check_primary_of(connection)
            commit_durably(connection)
            return work(connection)

    @contextmanager
    def _connect(self, isolation: str, *, takes_turn: bool) -> Generator[Connection]:
        with (
            self._take_turn(self.write_seconds) if takes_turn else nullcontext(),
            self._outside_forks() if self._is_sqlite else nullcontext(),
            self._derived.connect() as connection,
            in_use(connection),
        ):
            if self._is_sqlite:
                path, reader = check_file(connection), self._reader
                if reader is not None:
                    reader.locate(path)
                # The driver's mode stays as the application set it: `begin_immediate` copes with all of them.
                yield connection
            else:
                yield _isolated(connection, isolation)

    def _was_stale(self, error: Exception) -> bool:
        """True if a pooled connection turned out to be closed, in time for another. It has left the pool."""
        if is_late():
            return False
        if isinstance(error, DBAPIError):
            return error.connection_invalidated
        # From `_isolated`, where SQLAlchemy does not wrap the driver's error.
        return isinstance(error, cast("Any", self._derived.dialect.dbapi).Error)


def _isolated(connection: Connection, level: str) -> Connection:
    # Not by an option of the engine: if an error or a cancellation ends a checkout while the engine's options are applied,
    # the connection is left to the garbage collector, and the pool has one connection less.
    try:
        return connection.execution_options(isolation_level=level)
    except Exception:
        connection.invalidate()
        raise


def getter(engine: E | Callable[[], E], kind: type[E]) -> Callable[[], Engine]:
    """A function that returns the current engine; for an asynchronous engine its blocking engine."""
    if callable(engine):
        return lambda: _checked(engine(), kind)
    given = _checked(engine, kind)
    return lambda: given


def _checked(engine: object, kind: type[Engine] | type[AsyncEngine]) -> Engine:
    if isinstance(engine, kind):
        return engine.sync_engine if isinstance(engine, AsyncEngine) else engine
    raise ConfigurationError(
        f"A store cannot use {type(engine).__qualname__!r} as its engine. AsyncSQLAlchemyKeyStore takes an AsyncEngine of"
        " SQLAlchemy, SQLAlchemyKeyStore an Engine, or a function that returns one."
    )


def batches(last_used: Mapping[str, datetime]) -> Iterator[Sequence[tuple[str, datetime]]]:
    # In the same order everywhere: two processes that flush the same keys wait for each other instead of deadlocking.
    ordered = sorted(last_used.items())
    for start in range(0, len(ordered), _TOUCHES_AT_ONCE):
        yield ordered[start : start + _TOUCHES_AT_ONCE]
