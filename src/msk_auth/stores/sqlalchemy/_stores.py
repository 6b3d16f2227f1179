"""The two stores: the operations in transactions of a blocking and of an asynchronous engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from datetime import date, datetime
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast
from weakref import WeakKeyDictionary

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
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from msk_auth._callables import check_hook
from msk_auth._fork import abandon, after_fork_in_child
from msk_auth.batching import BatchedReader
from msk_auth.core.activity import ActivityEntry, KeyActivity
from msk_auth.core.errors import ConfigurationError
from msk_auth.core.events import KeyEvent
from msk_auth.core.fields import KeyUpdate
from msk_auth.core.model import ApiKey, ExpiryQuery, KeyQuery
from msk_auth.core.store import (
    READ_SECONDS,
    KeyChange,
    RecordedLease,
    call_on_change,
    require_change,
)

from ._deadlines import CLOCK, bound_checkouts, bounded, connect_until, within
from ._durability import commit_durably
from ._operations import KeyOperations, Written
from ._postgresql import AwaitingReader, BlockingReader, is_plain_postgresql
from ._prepared import AsyncPreparedLookUp, AsyncPreparedRead, PreparedRead, Statement, id_of
from ._rows import FastPathUnavailable
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

_WRITE_SECONDS: Final = 10.0
"""How long a write may take: on SQLite waiting for the writers of its own process, else the whole of it."""

_REGISTER_SECONDS: Final = 1.0
"""How long a verification may wait for the register of leases; it can do without, and has yet to read the key."""

_MAX_STALE: Final = 16
"""How many closed connections of the pool one read may come across: where SQLAlchemy notices, it discards all at once."""

_TOUCHES_AT_ONCE: Final = 500
"""How many keys one transaction touches: no revocation waits long for one of them."""

_DEFAULT_TABLE: Final = api_key_table(MetaData())
"""One for all stores: an engine keeps compiled statements by their table, so those of one store serve the next."""


class _Shared:
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
        self._is_psycopg = (engine.dialect.name, engine.dialect.driver) == ("postgresql", "psycopg")
        self._is_plain_postgresql = is_plain_postgresql(engine) and not self._is_one_connection
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
        self._isolate(connection, "AUTOCOMMIT")
        if self._is_sqlite:
            check_file(connection)
        answer = work(connection, *args, **kwargs)
        # Afterwards, when whatever the server had to report has arrived.
        check_primary_of(connection)
        return answer

    def _write_on(
        self,
        connection: Connection,
        work: Callable[Concatenate[Connection, P], T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        if self._is_sqlite:
            check_file(connection)
            begin_immediate(connection)
        check_primary_of(connection)
        commit_durably(connection)
        return work(connection, *args, **kwargs)

    def _was_stale(self, error: Exception) -> bool:
        """Whether a pooled connection turned out to be closed. It is not in the pool any more."""
        if isinstance(error, DBAPIError):
            return error.connection_invalidated
        # Of `_isolate`, where SQLAlchemy lets the driver's error through.
        dialect = self._derived.dialect
        kinds = getattr(dialect.loaded_dbapi, "Error", ())
        return isinstance(error, kinds) and dialect.is_disconnect(cast("Any", error), None, None)

    def _find(self, connection: Connection, key_id: str) -> ApiKey | None:
        self._locate(connection)
        return self._operations.find(connection, key_id)

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


class SQLAlchemyKeyStore(_Shared):
    """A :class:`~msk_auth.KeyStore` in a database; safe to use from several threads.

    It is an :class:`~msk_auth.AdminStore`, :class:`~msk_auth.ActivityStore`, :class:`~msk_auth.ExpiryStore` and
    :class:`~msk_auth.LeaseRegister` as well. The methods that are not described here are theirs.

    On PostgreSQL with psycopg it holds connections of the pool for reading, as many as threads read at the same moment and
    four at most in each process: allow for that many more than the pool has. A read that the server does not answer within
    three seconds fails. Waiting for the pool, and other drivers, have settings of the engine for it: see "Keep keys in a
    database". A connection that reports a standby is not used. Behind a pooler that keeps no prepared statements set
    psycopg's `prepare_threshold` to None, as for psycopg itself.

    Args:
        engine: Of SQLite, PostgreSQL, MariaDB or MySQL, or a function that returns it, if the store is made before the
            engine. The function is called with each use of the store and must not make a new engine each time. When it
            returns another engine than before, the store goes on with that one. An engine stays the application's to
            dispose of.
        table: Made by :func:`api_key_table`; None means a table of the default name, as made by
            `msk_auth.stores.sqlalchemy.migrations`.
        on_change: Called in the transaction of each write that changes a key, with its connection and the event, before
            the commit. What it writes there commits with the key, or neither does; what it raises rolls both back. It must
            neither end the transaction nor use the store, and be quick: other writers wait for it.

    Raises:
        ConfigurationError: The engine is of the wrong kind, the database is not supported, or the table was made otherwise.
            With a function as `engine` the first use of the store raises it.
    """

    def __init__(
        self,
        engine: Engine | Callable[[], Engine],
        table: Table | None = None,
        *,
        on_change: Callable[[Connection, KeyEvent], None] | None = None,
    ) -> None:
        super().__init__(table)
        check_hook(on_change, self, awaits=False)
        self.on_change: Final = on_change
        self._turn = threading.Lock()
        after_fork_in_child(self._renew)
        self._postgres: BlockingReader | None = None
        self._given = engine
        self._get_engine = _getter(engine, Engine)
        if not callable(engine):
            self._bind()

    def find(self, key_id: str) -> ApiKey | None:
        """See :class:`~msk_auth.KeyStore`."""
        deadline = CLOCK.monotonic() + READ_SECONDS
        self._bind()
        try:
            if self._reader is not None:
                return self._reader.find(key_id)
            if self._postgres is not None:
                return self._postgres.find(key_id, deadline)
        except FastPathUnavailable:
            pass
        return self._read_until(deadline, self._find, key_id)

    def insert(
        self,
        record: ApiKey,
        *,
        max_active: int | None,
        now: datetime,
        change: KeyChange | None = None,
    ) -> None:
        """See :class:`~msk_auth.KeyStore`.

        Raises:
            KeyLimitReached: The owner would have more active keys than allowed.
            sqlalchemy.exc.IntegrityError: There is a key with this id.
        """
        self._change(change, self._operations.insert, record, max_active=max_active, now=now)

    def list(self, query: KeyQuery) -> Sequence[ApiKey]:
        """See :class:`~msk_auth.KeyStore`."""
        return self._read(self._operations.list, query)

    def list_all(self, *, after: tuple[str, datetime, str] | None, limit: int) -> Sequence[ApiKey]:
        """See :class:`~msk_auth.AdminStore`."""
        return self._read(self._operations.list_all, after=after, limit=limit)

    def list_expiring(self, query: ExpiryQuery) -> Sequence[ApiKey]:
        """See :class:`~msk_auth.ExpiryStore`."""
        return self._read(self._operations.list_expiring, query)

    def announce_expiry(
        self, key_id: str, *, days: int, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.ExpiryStore`."""
        return self._change(change, self._operations.announce_expiry, key_id, days=days)

    def revoke(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.KeyStore`."""
        return self._change(change, self._operations.revoke, key_id, owner_id=owner_id, at=at)

    def delete(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.KeyStore`."""
        return self._change(change, self._operations.delete, key_id, owner_id=owner_id, at=at)

    def expire(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.KeyStore`."""
        return self._change(change, self._operations.expire, key_id, owner_id=owner_id, at=at)

    def rotate(
        self,
        key_id: str,
        *,
        successor: ApiKey,
        ends_at: datetime,
        max_active: int | None,
        now: datetime,
        change: KeyChange | None = None,
    ) -> ApiKey | None:
        """See :class:`~msk_auth.KeyStore`.

        Raises:
            KeyNotActive: The predecessor is revoked, expired or already rotated.
            KeyLimitReached: The owner would have more active keys than allowed.
            sqlalchemy.exc.IntegrityError: There is a key with the successor's id.
        """
        return self._change(
            change,
            self._operations.rotate,
            key_id,
            successor=successor,
            ends_at=ends_at,
            max_active=max_active,
            now=now,
        )

    def update(
        self, key_id: str, *, owner_id: str, fields: KeyUpdate, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.KeyStore`."""
        return self._change(
            change, self._operations.update, key_id, owner_id=owner_id, fields=fields
        )

    def touch(self, last_used: Mapping[str, datetime]) -> None:
        """See :class:`~msk_auth.KeyStore`."""
        for some in _batches(last_used):
            self._write(self._operations.touch, some)

    def replace_digest(self, key_id: str, *, old: str, new: str) -> None:
        """See :class:`~msk_auth.KeyStore`."""
        self._write(self._operations.replace_digest, key_id, old=old, new=new)

    def record_activity(self, entries: Sequence[ActivityEntry]) -> None:
        """See :class:`~msk_auth.ActivityStore`."""
        self._write(self._operations.record_activity, entries)

    def activity(self, key_id: str, *, since: date | None) -> KeyActivity:
        """See :class:`~msk_auth.ActivityStore`."""
        return self._read(self._operations.activity, key_id, since)

    def delete_activity(self, *, before: date, limit: int) -> int:
        """See :class:`~msk_auth.ActivityStore`."""
        return self._write(self._operations.delete_activity, before, limit)

    def recorded_leases(self) -> Collection[RecordedLease]:
        """See :class:`~msk_auth.LeaseRegister`."""
        deadline = CLOCK.monotonic() + _REGISTER_SECONDS
        return self._read_until(deadline, self._operations.recorded_leases)

    def record_lease(self, lease: RecordedLease) -> None:
        """See :class:`~msk_auth.LeaseRegister`."""
        self._write_within(_REGISTER_SECONDS, self._operations.record_lease, lease)

    def forget_lease(self, lease: RecordedLease) -> None:
        """See :class:`~msk_auth.LeaseRegister`."""
        self._write_within(_REGISTER_SECONDS, self._operations.forget_lease, lease)

    def prepare(self, statement: Select[Any]) -> PreparedRead:
        """A statement of your own, read as this store reads keys: prepared, on a held connection of the primary, in bounded time.

        For what is read with each request, such as the owner of a key or a login session::

            find_user = store.prepare(select(users).where(users.c.id == bindparam("user_id")))


            def find_owner(owner_id: str) -> Owner[User] | None:
                for row in find_user(user_id=owner_id):
                    return Owner(row.id, row.permissions, to_user(row))
                return None

        Each call sees what was committed last. It is no part of a transaction of yours, and fails after three seconds. Where a
        key is read through SQLAlchemy, so is the statement.

        Args:
            statement: Selects few rows by an index; on SQLite with aiosqlite it runs on the event loop. Values that change
                are `bindparam("…")`. Entities come as their columns.

        Returns:
            A function that takes the parameters and returns the rows as named tuples.

        Raises:
            ConfigurationError: A parameter of the statement is a list (`in_`). With a function as `engine` the first call
                raises it.
        """
        get = self._statement(statement)
        if not callable(self._given):
            get()

        def read(**values: Any) -> Sequence[Any]:
            deadline = CLOCK.monotonic() + READ_SECONDS
            prepared = get()
            try:
                if self._reader is not None:
                    parameters = prepared.parameters(values)
                    return prepared.rows(self._reader.read(prepared.text, parameters))
                if self._postgres is not None:
                    parameters = prepared.parameters(values)
                    rows = self._postgres.read(prepared.encoded, parameters, deadline)
                    return prepared.rows(rows)
            except FastPathUnavailable:
                pass
            return self._read_until(deadline, self._read_statement, prepared, values)

        return read

    def close(self) -> None:
        """Close what the store itself opened, before the engine is disposed of. It still works afterwards."""
        self._close()
        if self._postgres is not None:
            self._postgres.close()

    def _bind(self) -> None:
        engine = self._get_engine()
        if engine is self._engine:
            return
        with self._binding:
            if engine is self._engine:
                return
            self._prepare(engine)
            if self._is_psycopg:
                bound_checkouts(engine)
            self._postgres = (
                BlockingReader(engine, self._table) if self._is_plain_postgresql else None
            )
            self._engine = engine

    def _renew(self) -> None:
        self._turn = threading.Lock()

    def _read(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return self._read_until(CLOCK.monotonic() + READ_SECONDS, work, *args, **kwargs)

    def _read_until(
        self,
        deadline: float,
        work: Callable[Concatenate[Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        for _ in range(_MAX_STALE):
            try:
                return self._read_once(deadline, work, *args, **kwargs)
            except Exception as error:
                if not self._was_stale(error):
                    raise
        return self._read_once(deadline, work, *args, **kwargs)

    def _read_once(
        self,
        deadline: float,
        work: Callable[Concatenate[Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        with (
            self._turns(self._is_one_connection),
            self._outside_forks(),
            connect_until(self._derived, deadline) as connection,
            self._bounded(connection, deadline),
        ):
            return self._read_on(connection, work, *args, **kwargs)

    def _write(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return self._write_within(_WRITE_SECONDS, work, *args, **kwargs)

    def _write_within(
        self,
        seconds: float,
        work: Callable[Concatenate[Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        deadline = CLOCK.monotonic() + seconds
        with (
            self._turns(self._is_sqlite),
            self._outside_forks(),
            connect_until(self._derived, deadline) as connection,
            self._bounded(connection, deadline),
        ):
            self._isolate(connection, "READ COMMITTED")
            # Closing the connection rolls back what was not committed, unless the server fell silent.
            transaction = connection.begin()
            answer = self._write_on(connection, work, *args, **kwargs)
            transaction.commit()
            return answer

    def _change(
        self,
        change: KeyChange | None,
        work: Callable[Concatenate[Connection, P], Written],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> ApiKey | None:
        on_change = self.on_change
        if on_change is None:
            return self._write(work, *args, **kwargs).record
        events_of = require_change(change)

        def work_and_hook(connection: Connection) -> ApiKey | None:
            written = work(connection, *args, **kwargs)
            if written.is_changed and written.record is not None:
                call_on_change(on_change, connection, events_of(written.record))
                self._operations.check_written(connection, written)
            return written.record

        return self._write(work_and_hook)

    @contextmanager
    def _bounded(self, connection: Connection, deadline: float) -> Generator[None]:
        """Bound what can be: what psycopg waits for on an open connection."""
        if not self._is_psycopg:
            yield
            return
        driver: Any = connection.connection.driver_connection
        try:
            with bounded(driver, deadline):
                yield
        except TimeoutError:
            connection.invalidate()
            raise

    @contextmanager
    def _turns(self, are_taken: bool) -> Generator[None]:
        if not are_taken:
            yield
            return
        if not self._turn.acquire(timeout=_WRITE_SECONDS):
            raise TimeoutError("the database is still busy with earlier writes")
        try:
            yield
        finally:
            self._turn.release()


class AsyncSQLAlchemyKeyStore(_Shared):
    """An :class:`~msk_auth.AsyncKeyStore` in a database.

    It is an :class:`~msk_auth.AsyncBatchStore`, :class:`~msk_auth.AsyncAdminStore`, :class:`~msk_auth.AsyncActivityStore`,
    :class:`~msk_auth.AsyncExpiryStore` and :class:`~msk_auth.AsyncLeaseRegister` as well. The methods that are not described
    here are theirs.

    On PostgreSQL with psycopg it holds up to four connections of the pool for reading, on each event loop that it is
    used on; it opens more than look-ups need at the same moment only while the server does not answer, up to sixteen. A
    look-up that the server does not answer within three seconds fails, with every driver. A connection that reports a
    standby is not used.
    Behind a pooler that keeps no prepared statements set psycopg's `prepare_threshold` to None, as for psycopg itself.

    Args:
        engine: Of SQLite (aiosqlite), PostgreSQL (psycopg or asyncpg), MariaDB or MySQL (aiomysql or asyncmy), or a
            function that returns it, if the store is made before the engine. The function is called with each use of the
            store and must not make a new engine each time. When it returns another engine than before, the store goes on
            with that one. An engine stays the application's to dispose of.
        table: Made by :func:`api_key_table`; None means a table of the default name, as made by
            `msk_auth.stores.sqlalchemy.migrations`.
        on_change: Awaited in the transaction of each write that changes a key, with its connection and the event, before
            the commit. What it writes there commits with the key, or neither does; what it raises rolls both back. It must
            neither end the transaction nor use the store, and be quick: other writers wait for it.

    Raises:
        ConfigurationError: The engine is of the wrong kind, the database is not supported, or the table was made otherwise.
            With a function as `engine` the first use of the store raises it.
    """

    def __init__(
        self,
        engine: AsyncEngine | Callable[[], AsyncEngine],
        table: Table | None = None,
        *,
        on_change: Callable[[AsyncConnection, KeyEvent], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(table)
        check_hook(on_change, self, awaits=True)
        self.on_change: Final = on_change
        # A lock belongs to one event loop; on SQLite the database itself keeps those of several loops apart.
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )
        self._postgres: AwaitingReader | None = None
        self._given = engine
        self._get_engine = _getter(engine, AsyncEngine)
        if not callable(engine):
            self._bind()

    async def find(self, key_id: str) -> ApiKey | None:
        """See :class:`~msk_auth.KeyStore`."""
        self._bind()
        if self._reader is not None:
            with suppress(FastPathUnavailable):
                return self._reader.find(key_id)
        deadline = asyncio.get_running_loop().time() + READ_SECONDS
        if self._postgres is not None:
            with suppress(FastPathUnavailable):
                return await self._postgres.find(key_id, deadline)
        return await self._read_until(deadline, self._find, key_id)

    async def find_many(self, key_ids: Sequence[str]) -> Sequence[ApiKey]:
        """See :class:`~msk_auth.AsyncBatchStore`."""
        self._bind()
        deadline = asyncio.get_running_loop().time() + READ_SECONDS
        if self._postgres is not None:
            with suppress(FastPathUnavailable):
                return await self._postgres.find_many(key_ids, deadline)
        return await self._read_until(deadline, self._operations.find_many, key_ids)

    async def insert(
        self,
        record: ApiKey,
        *,
        max_active: int | None,
        now: datetime,
        change: KeyChange | None = None,
    ) -> None:
        """See :meth:`SQLAlchemyKeyStore.insert`."""
        await self._change(change, self._operations.insert, record, max_active=max_active, now=now)

    async def list(self, query: KeyQuery) -> Sequence[ApiKey]:
        """See :class:`~msk_auth.KeyStore`."""
        return await self._read(self._operations.list, query)

    async def list_all(
        self, *, after: tuple[str, datetime, str] | None, limit: int
    ) -> Sequence[ApiKey]:
        """See :class:`~msk_auth.AsyncAdminStore`."""
        return await self._read(self._operations.list_all, after=after, limit=limit)

    async def list_expiring(self, query: ExpiryQuery) -> Sequence[ApiKey]:
        """See :class:`~msk_auth.AsyncExpiryStore`."""
        return await self._read(self._operations.list_expiring, query)

    async def announce_expiry(
        self, key_id: str, *, days: int, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.AsyncExpiryStore`."""
        return await self._change(change, self._operations.announce_expiry, key_id, days=days)

    async def revoke(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.KeyStore`."""
        return await self._change(change, self._operations.revoke, key_id, owner_id=owner_id, at=at)

    async def delete(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.KeyStore`."""
        return await self._change(change, self._operations.delete, key_id, owner_id=owner_id, at=at)

    async def expire(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.KeyStore`."""
        return await self._change(change, self._operations.expire, key_id, owner_id=owner_id, at=at)

    async def rotate(
        self,
        key_id: str,
        *,
        successor: ApiKey,
        ends_at: datetime,
        max_active: int | None,
        now: datetime,
        change: KeyChange | None = None,
    ) -> ApiKey | None:
        """See :meth:`SQLAlchemyKeyStore.rotate`."""
        return await self._change(
            change,
            self._operations.rotate,
            key_id,
            successor=successor,
            ends_at=ends_at,
            max_active=max_active,
            now=now,
        )

    async def update(
        self, key_id: str, *, owner_id: str, fields: KeyUpdate, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.KeyStore`."""
        return await self._change(
            change, self._operations.update, key_id, owner_id=owner_id, fields=fields
        )

    async def touch(self, last_used: Mapping[str, datetime]) -> None:
        """See :class:`~msk_auth.KeyStore`."""
        for some in _batches(last_used):
            await self._write(self._operations.touch, some)

    async def replace_digest(self, key_id: str, *, old: str, new: str) -> None:
        """See :class:`~msk_auth.KeyStore`."""
        await self._write(self._operations.replace_digest, key_id, old=old, new=new)

    async def record_activity(self, entries: Sequence[ActivityEntry]) -> None:
        """See :class:`~msk_auth.ActivityStore`."""
        await self._write(self._operations.record_activity, entries)

    async def activity(self, key_id: str, *, since: date | None) -> KeyActivity:
        """See :class:`~msk_auth.ActivityStore`."""
        return await self._read(self._operations.activity, key_id, since)

    async def delete_activity(self, *, before: date, limit: int) -> int:
        """See :class:`~msk_auth.ActivityStore`."""
        return await self._write(self._operations.delete_activity, before, limit)

    async def recorded_leases(self) -> Collection[RecordedLease]:
        """See :class:`~msk_auth.LeaseRegister`."""
        deadline = asyncio.get_running_loop().time() + _REGISTER_SECONDS
        return await self._read_until(deadline, self._operations.recorded_leases)

    async def record_lease(self, lease: RecordedLease) -> None:
        """See :class:`~msk_auth.LeaseRegister`."""
        await self._write_within(_REGISTER_SECONDS, self._operations.record_lease, lease)

    async def forget_lease(self, lease: RecordedLease) -> None:
        """See :class:`~msk_auth.LeaseRegister`."""
        await self._write_within(_REGISTER_SECONDS, self._operations.forget_lease, lease)

    def prepare(self, statement: Select[Any]) -> AsyncPreparedRead:
        """A statement of your own, read as this store reads keys: prepared, on a held connection of the primary, in bounded time.

        For what is read with each request, such as the owner of a key or a login session::

            find_user = store.prepare(select(users).where(users.c.id == bindparam("user_id")))


            async def find_owner(owner_id: str) -> Owner[User] | None:
                for row in await find_user(user_id=owner_id):
                    return Owner(row.id, row.permissions, to_user(row))
                return None

        Each call sees what was committed last. It is no part of a transaction of yours, and fails after three seconds. Where a
        key is read through SQLAlchemy, so is the statement.

        Args:
            statement: Selects few rows by an index; on SQLite with aiosqlite it runs on the event loop. Values that change
                are `bindparam("…")`. Entities come as their columns.

        Returns:
            An async function that takes the parameters and returns the rows as named tuples.

        Raises:
            ConfigurationError: A parameter of the statement is a list (`in_`). With a function as `engine` the first call
                raises it.
        """
        get = self._statement(statement)
        if not callable(self._given):
            get()

        async def read(**values: Any) -> Sequence[Any]:
            return await self._read_prepared(get(), values)

        return read

    def prepare_by_id(self, statement: Select[Any]) -> AsyncPreparedLookUp:
        """A statement of your own of which one row is read by its column `id`, such as the owner of a key.

        It is read as by :meth:`prepare`. On PostgreSQL with psycopg, look-ups that arrive together share a round trip as those
        of keys do, and each sees all that was committed before it began::

            find_user = store.prepare_by_id(select(users))


            async def find_owner(owner_id: str) -> Owner[User] | None:
                row = await find_user(owner_id)
                return None if row is None else Owner(row.id, row.permissions, to_user(row))

        Look-ups of one id may return the same row: do not change what is in it.

        Args:
            statement: Selects a column `id` of text, which is unique, and has no parameters.

        Returns:
            An async function that takes an id, and returns the row as a named tuple or None.

        Raises:
            ConfigurationError: There is no such column.
        """
        column = id_of(statement)
        find_one = self.prepare(statement.where(column == bindparam("row_id")))
        row_ids = bindparam("row_ids", type_=ARRAY(String))
        # Compiled with the first use, since only PostgreSQL knows it.
        among = self._statement(statement.where(column == any_(row_ids)))

        async def find(row_id: str) -> Any | None:
            return next(iter(await find_one(row_id=row_id)), None)

        async def find_many(some_ids: Sequence[str]) -> Sequence[Any]:
            return await self._read_prepared(among(), {"row_ids": list(some_ids)})

        reader = BatchedReader[Any](find, find_many)

        async def look_up(row_id: str, /) -> Any | None:
            self._bind()
            # What the driver refuses fails alone.
            is_alone = self._postgres is None or not row_id.isascii() or "\0" in row_id
            return await (find(row_id) if is_alone else reader.find(row_id))

        return look_up

    async def aclose(self) -> None:
        """Close what the store itself opened, before the engine is disposed of. It still works afterwards.

        A store that is used on several event loops is closed on each of them.
        """
        self._close()
        if self._postgres is not None:
            await self._postgres.aclose()

    def _bind(self) -> None:
        engine = self._get_engine()
        if engine.sync_engine is self._engine:
            return
        with self._binding:
            if engine.sync_engine is self._engine:
                return
            self._prepare(engine.sync_engine)
            self._awaiting_engine = AsyncEngine(self._derived)
            self._postgres = (
                AwaitingReader(engine, self._table) if self._is_plain_postgresql else None
            )
            self._engine = engine.sync_engine

    async def _read_prepared(self, prepared: Statement, values: Mapping[str, Any]) -> Sequence[Any]:
        deadline = asyncio.get_running_loop().time() + READ_SECONDS
        with suppress(FastPathUnavailable):
            if self._reader is not None:
                parameters = prepared.parameters(values)
                return prepared.rows(self._reader.read(prepared.text, parameters))
            if self._postgres is not None:
                parameters = prepared.parameters(values)
                rows = await self._postgres.read(prepared.encoded, parameters, deadline)
                return prepared.rows(rows)
        return await self._read_until(deadline, self._read_statement, prepared, values)

    async def _read(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        deadline = asyncio.get_running_loop().time() + READ_SECONDS
        return await self._read_until(deadline, work, *args, **kwargs)

    async def _read_until(
        self,
        deadline: float,
        work: Callable[Concatenate[Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        if self._is_sqlite:
            # There is no server that could fall silent.
            return await self._read_once(work, *args, **kwargs)
        return await within(deadline, self._read_again(work, *args, **kwargs))

    async def _read_again(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        for _ in range(_MAX_STALE):
            try:
                return await self._read_once(work, *args, **kwargs)
            except Exception as error:
                if not self._was_stale(error):
                    raise
        return await self._read_once(work, *args, **kwargs)

    async def _read_once(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        async with (
            self._turns(self._is_one_connection),
            self._awaiting_engine.connect() as connection,
        ):
            return await connection.run_sync(self._read_on, work, *args, **kwargs)

    async def _write(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self._write_within(_WRITE_SECONDS, work, *args, **kwargs)

    async def _write_within(
        self,
        seconds: float,
        work: Callable[Concatenate[Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        return await self._bounded(seconds, self._write_once(work, *args, **kwargs))

    async def _write_once(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        async with self._transaction() as connection:
            return await connection.run_sync(self._write_on, work, *args, **kwargs)

    @asynccontextmanager
    async def _transaction(self) -> AsyncGenerator[AsyncConnection]:
        async with (
            self._turns(self._is_sqlite),
            self._awaiting_engine.connect() as connection,
        ):
            await connection.run_sync(self._isolate, "READ COMMITTED")
            async with connection.begin():
                yield connection

    async def _change(
        self,
        change: KeyChange | None,
        work: Callable[Concatenate[Connection, P], Written],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> ApiKey | None:
        on_change = self.on_change
        if on_change is None:
            return (await self._write(work, *args, **kwargs)).record
        events_of = require_change(change)

        async def work_and_hook() -> ApiKey | None:
            async with self._transaction() as connection:
                written = await connection.run_sync(self._write_on, work, *args, **kwargs)
                if written.is_changed and written.record is not None:
                    for event in events_of(written.record):
                        await on_change(connection, event)
                    await connection.run_sync(self._operations.check_written, written)
                return written.record

        return await self._bounded(_WRITE_SECONDS, work_and_hook())

    async def _bounded(self, seconds: float, write: Coroutine[Any, Any, T]) -> T:
        if self._is_sqlite:
            # There is no server that could fall silent.
            return await write
        return await within(asyncio.get_running_loop().time() + seconds, write)

    @asynccontextmanager
    async def _turns(self, are_taken: bool) -> AsyncGenerator[None]:
        if not are_taken:
            yield
            return
        turn = self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with asyncio.timeout(_WRITE_SECONDS):
            await turn.acquire()
        try:
            yield
        finally:
            turn.release()


def _getter(engine: E | Callable[[], E], kind: type[E]) -> Callable[[], E]:
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


def _batches(last_used: Mapping[str, datetime]) -> Iterator[Sequence[tuple[str, datetime]]]:
    # In one order everywhere: two processes that flush the same keys wait for each other instead of deadlocking.
    ordered = sorted(last_used.items())
    for start in range(0, len(ordered), _TOUCHES_AT_ONCE):
        yield ordered[start : start + _TOUCHES_AT_ONCE]
