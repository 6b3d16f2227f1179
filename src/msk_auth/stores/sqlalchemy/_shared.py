"""What both stores prepare in the same way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

from sqlalchemy import (
    ARRAY,
    Connection,
    Engine,
    MetaData,
    Select,
    SingletonThreadPool,
    StaticPool,
    String,
    Table,
    any_,
    bindparam,
    literal_column,
    select,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from msk_auth._fork import abandon, after_fork_in_child
from msk_auth.core.errors import ConfigurationError
from msk_auth.core.model import ApiKey

from ._deadlines import in_use, is_late
from ._durability import commit_durably
from ._operations import KeyOperations
from ._prepared import Statement
from ._rows import first_record, records, select_from_id
from ._schema import api_key_table
from ._sqlite import (
    FORK_GATE,
    SQLiteReader,
    begin_immediate,
    check_file,
    choose_connection_class,
    note_file,
)
from ._standby import check_primary_of

P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E", Engine, AsyncEngine)

WRITE_SECONDS: Final = 10.0
"""How long a write may take: on SQLite waiting for the writers of its own process, else the whole of it."""

REGISTER_SECONDS: Final = 1.0
"""How long a verification may wait for the register of leases; it can do without, and has yet to read the key."""

MAX_STALE: Final = 16
"""How many closed connections of the pool one read may come across: where SQLAlchemy notices, it discards all at once."""

_TOUCHES_AT_ONCE: Final = 500
"""How many keys one transaction touches: no revocation waits long for one of them."""

_DEFAULT_TABLE: Final = api_key_table(MetaData())
"""One for all stores: an engine keeps compiled statements by their table, so those of one store serve the next."""


class SharedStore:
    """What both stores prepare in the same way.

    Reads are single statements outside of a transaction: they see what was committed last, at whatever isolation
    the application works, and take one round trip.

    Writers of SQLite take turns within their process. The database would let only one of them write anyway, and
    makes the others look again after longer and longer pauses, in no order.

    A read that finds its pooled connection closed, by a server that was restarted for example, is made once more.
    """

    def __init__(self, table: Table | None) -> None:
        self._table = _DEFAULT_TABLE if table is None else table
        self._engine: Engine | None = None
        self._binding = threading.Lock()
        after_fork_in_child(self._renew_binding)
        after_fork_in_child(self._leave_the_parents_pool)

    @property
    def _operations(self) -> KeyOperations:
        """What every use of the store begins with, and so the place where a late engine is bound."""
        self._bind()
        return self._bound_operations

    def _bind(self) -> None:
        """Prepare for the engine of the moment, unless that was done.

        One thread prepares, and the others wait: an engine whose events are set up while another thread connects fails
        that thread.
        """
        raise NotImplementedError

    def _renew_binding(self) -> None:
        self._binding = threading.Lock()

    def _prepare(self, engine: Engine) -> None:
        self._bound_operations = KeyOperations(self._table, engine.dialect.name)
        self._is_sqlite = engine.dialect.name == "sqlite"
        # A database in memory is one connection for all: a reader that ends its transaction ends that of a writer too.
        self._is_one_connection = isinstance(engine.pool, StaticPool)
        self._reader = (
            SQLiteReader(self._table) if self._is_sqlite and self._table.schema is None else None
        )
        self._outside_forks = FORK_GATE.inside if self._is_sqlite else nullcontext
        self._is_postgresql = engine.dialect.name == "postgresql"
        first = select_from_id(self._table).limit(literal_column("1"))
        self._first = Statement(first, engine.dialect)
        if self._is_postgresql:
            key_ids = bindparam("key_ids", type_=ARRAY(String))
            among = select(*self._table.c).where(self._table.c.id == any_(key_ids))
            self._among = Statement(among, engine.dialect)
        if self._is_sqlite:
            note_file(engine)
            choose_connection_class(engine)
        self._derived = engine.execution_options()
        # Errors are logged, and the parameters of these statements are digests and names.
        self._derived.hide_parameters = True

    def _leave_the_parents_pool(self) -> None:
        engine = self._engine
        if engine is None:
            return
        # A database in memory is its connection: a child goes on with its copy.
        is_one_connection = isinstance(engine.pool, StaticPool | SingletonThreadPool)
        if is_one_connection and engine.dialect.name == "sqlite":
            return
        # As SQLAlchemy advises for a forked child. What the pool holds is not closed either: it is the parent's.
        abandon(engine.pool)
        engine.dispose(close=False)

    def _isolate(self, connection: Connection, level: str) -> None:
        # On SQLite the driver's mode stays as the application set it: `begin_immediate` copes with all of them.
        if self._is_sqlite:
            return
        # Not by an option of the engine: what ends a checkout while the engine's options are applied, an error or the
        # cancellation of a request, leaves the connection to the garbage collector, and the pool is one connection short.
        try:
            connection.execution_options(isolation_level=level)
        except Exception:
            connection.invalidate()
            raise

    def _read_on(
        self,
        connection: Connection,
        work: Callable[Concatenate[Connection, P], T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        try:
            with in_use(connection):
                self._isolate(connection, "AUTOCOMMIT")
                if self._is_sqlite:
                    check_file(connection)
                answer = work(connection, *args, **kwargs)
                # Afterwards: the reports of the server have arrived with its answer.
                check_primary_of(connection)
                return answer
        finally:
            if is_late():
                # Its socket may be shut down, also behind an answer that came in the end, and SQLAlchemy does not know.
                connection.invalidate()

    def _begin_write(self, connection: Connection) -> None:
        if self._is_sqlite:
            check_file(connection)
            begin_immediate(connection)
        check_primary_of(connection)
        commit_durably(connection)

    def _was_stale(self, error: Exception) -> bool:
        """Whether a pooled connection turned out to be closed, in time for another one. It is not in the pool any more."""
        if is_late():
            return False
        if isinstance(error, DBAPIError):
            return error.connection_invalidated
        # Of `_isolate`, where SQLAlchemy lets the driver's error through.
        dialect = self._derived.dialect
        kinds = getattr(dialect.loaded_dbapi, "Error", ())
        return isinstance(error, kinds) and dialect.is_disconnect(cast("Any", error), None, None)

    def _find(self, connection: Connection, key_id: str) -> ApiKey | None:
        self._locate(connection)
        return first_record(self._first.read(connection, {"key_id": key_id}), key_id)

    def _find_many(self, connection: Connection, key_ids: Sequence[str]) -> Sequence[ApiKey]:
        if not self._is_postgresql:
            return self._operations.find_many(connection, key_ids)
        rows = self._among.read(connection, {"key_ids": list(key_ids)})
        return records(rows, len(key_ids))

    def _statement(self, select: Select[Any]) -> Callable[[], Statement]:
        """The statement for the engine of the moment, compiled when that changes."""
        compiled: tuple[Engine, Statement] | None = None

        def get() -> Statement:
            nonlocal compiled
            self._bind()
            engine = cast("Engine", self._engine)
            if compiled is None or compiled[0] is not engine:
                compiled = (engine, Statement(select, engine.dialect))
            return compiled[1]

        return get

    def _read_statement(
        self, connection: Connection, statement: Statement, values: Mapping[str, Any]
    ) -> list[Any]:
        self._locate(connection)
        return statement.read(connection, values)

    def _locate(self, connection: Connection) -> None:
        if self._reader is not None and not self._reader.is_located:
            self._reader.locate(connection)

    def _close(self) -> None:
        if self._engine is not None and self._reader is not None:
            self._reader.close()


def getter(engine: E | Callable[[], E], kind: type[E]) -> Callable[[], E]:
    """A function that returns the engine of the moment."""
    if callable(engine):
        return lambda: _checked(engine(), kind)
    given = _checked(engine, kind)
    return lambda: given


def _checked(engine: object, kind: type[E]) -> E:
    if isinstance(engine, kind):
        return engine
    raise ConfigurationError(
        f"A store cannot use {type(engine).__qualname__!r} as its engine. AsyncSQLAlchemyKeyStore takes an AsyncEngine of"
        " SQLAlchemy, SQLAlchemyKeyStore an Engine, or a function that returns one."
    )


def batches(last_used: Mapping[str, datetime]) -> Iterator[Sequence[tuple[str, datetime]]]:
    # In one order everywhere: two processes that flush the same keys wait for each other instead of deadlocking.
    ordered = sorted(last_used.items())
    for start in range(0, len(ordered), _TOUCHES_AT_ONCE):
        yield ordered[start : start + _TOUCHES_AT_ONCE]
