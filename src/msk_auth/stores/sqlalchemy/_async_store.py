"""The asynchronous store: the operations in transactions of an asynchronous engine."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from datetime import date, datetime
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from sqlalchemy import ARRAY, Connection, Select, String, Table, any_, bindparam
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from msk_auth._callables import check_hook
from msk_auth.batching import BatchedReader
from msk_auth.core.activity import ActivityEntry, KeyActivity
from msk_auth.core.events import KeyEvent
from msk_auth.core.fields import KeyUpdate
from msk_auth.core.model import ApiKey, ExpiryQuery, KeyQuery
from msk_auth.core.store import READ_SECONDS, KeyChange, RecordedLease, require_change

from ._awaiting import Turns, call_on_change, run, within
from ._deadlines import in_use
from ._operations import Written
from ._prepared import AsyncPreparedLookUp, AsyncPreparedRead, id_of
from ._rows import FastPathUnavailable
from ._shared import MAX_STALE, REGISTER_SECONDS, WRITE_SECONDS, SharedStore, batches, getter

P = ParamSpec("P")
T = TypeVar("T")


class AsyncSQLAlchemyKeyStore(SharedStore):
    """An :class:`~msk_auth.stores.AsyncKeyStore` in a database.

    It is an :class:`~msk_auth.stores.AsyncBatchStore`, :class:`~msk_auth.stores.AsyncAdminStore`, :class:`~msk_auth.stores.AsyncActivityStore`,
    :class:`~msk_auth.stores.AsyncExpiryStore` and :class:`~msk_auth.stores.AsyncLeaseRegister` as well. The methods that are not described
    here are theirs.

    It reads and writes through the engine's pool; on SQLite it reads keys on a connection of its own. A look-up that is not
    answered within three seconds fails, with every driver, and a write within ten; :func:`prepare_postgresql` has dead
    connections replaced sooner. A connection that reports a standby is not used.

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
        shares_reads: Whether look-ups of keys that arrive together may be one statement, which then runs outside of any
            request. None means: unless the engine's pool has a listener for `checkout`, which may prepare each connection
            for the request that uses it, for the schema of its tenant for example.

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
        shares_reads: bool | None = None,
    ) -> None:
        super().__init__(table)
        check_hook(on_change, self, awaits=True)
        self.on_change: Final = on_change
        self._turns = Turns()
        self._shares_reads = shares_reads
        self._given = engine
        self._get_engine = getter(engine, AsyncEngine)
        if not callable(engine):
            self._bind()

    async def find(self, key_id: str) -> ApiKey | None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        self._bind()
        if self._reader is not None:
            with suppress(FastPathUnavailable):
                return self._reader.find(key_id)
        return await self._read(self._find, key_id)

    async def find_many(self, key_ids: Sequence[str]) -> Sequence[ApiKey]:
        """See :class:`~msk_auth.stores.AsyncBatchStore`."""
        return await self._read(self._find_many, key_ids)

    def may_share_reads(self) -> bool:
        """Whether look-ups of several requests may share one read now: see `shares_reads`."""
        if self._shares_reads is not None:
            return self._shares_reads
        self._bind()
        return not self._derived.pool.dispatch.checkout

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
        """See :class:`~msk_auth.stores.KeyStore`."""
        return await self._read(self._operations.list, query)

    async def list_all(
        self, *, after: tuple[str, datetime, str] | None, limit: int
    ) -> Sequence[ApiKey]:
        """See :class:`~msk_auth.stores.AsyncAdminStore`."""
        return await self._read(self._operations.list_all, after=after, limit=limit)

    async def list_expiring(self, query: ExpiryQuery) -> Sequence[ApiKey]:
        """See :class:`~msk_auth.stores.AsyncExpiryStore`."""
        return await self._read(self._operations.list_expiring, query)

    async def announce_expiry(
        self, key_id: str, *, days: int, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.stores.AsyncExpiryStore`."""
        return await self._change(change, self._operations.announce_expiry, key_id, days=days)

    async def revoke(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        return await self._change(change, self._operations.revoke, key_id, owner_id=owner_id, at=at)

    async def delete(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        return await self._change(change, self._operations.delete, key_id, owner_id=owner_id, at=at)

    async def expire(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.stores.KeyStore`."""
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
        """See :class:`~msk_auth.stores.KeyStore`."""
        return await self._change(
            change, self._operations.update, key_id, owner_id=owner_id, fields=fields
        )

    async def touch(self, last_used: Mapping[str, datetime]) -> None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        for some in batches(last_used):
            await self._write(self._operations.touch, some)

    async def replace_digest(self, key_id: str, *, old: str, new: str) -> None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        await self._write(self._operations.replace_digest, key_id, old=old, new=new)

    async def record_activity(self, entries: Sequence[ActivityEntry]) -> None:
        """See :class:`~msk_auth.stores.ActivityStore`."""
        await self._write(self._operations.record_activity, entries)

    async def activity(self, key_id: str, *, since: date | None) -> KeyActivity:
        """See :class:`~msk_auth.stores.ActivityStore`."""
        return await self._read(self._operations.activity, key_id, since)

    async def delete_activity(self, *, before: date, limit: int) -> int:
        """See :class:`~msk_auth.stores.ActivityStore`."""
        return await self._write(self._operations.delete_activity, before, limit)

    async def recorded_leases(self) -> Collection[RecordedLease]:
        """See :class:`~msk_auth.stores.LeaseRegister`."""
        return await self._read_within(REGISTER_SECONDS, self._operations.recorded_leases)

    async def record_lease(self, lease: RecordedLease) -> None:
        """See :class:`~msk_auth.stores.LeaseRegister`."""
        await self._write_within(REGISTER_SECONDS, self._operations.record_lease, lease)

    async def forget_lease(self, lease: RecordedLease) -> None:
        """See :class:`~msk_auth.stores.LeaseRegister`."""
        await self._write_within(REGISTER_SECONDS, self._operations.forget_lease, lease)

    def prepare(self, statement: Select[Any]) -> AsyncPreparedRead:
        """A statement of your own, read as this store reads keys: compiled once, from the primary, in bounded time.

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
            prepared = get()
            if self._reader is not None:
                with suppress(FastPathUnavailable):
                    parameters = prepared.parameters(values)
                    return prepared.rows(self._reader.read(prepared.text, parameters))
            return await self._read(self._read_statement, prepared, values)

        return read

    def prepare_by_id(self, statement: Select[Any]) -> AsyncPreparedLookUp:
        """A statement of your own of which one row is read by its column `id`, such as the owner of a key.

        It is read as by :meth:`prepare`. On PostgreSQL, look-ups that arrive together share a round trip as those
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
            return await self._read(self._read_statement, among(), {"row_ids": list(some_ids)})

        reader = BatchedReader[Any](find, find_many, self.may_share_reads)

        async def look_up(row_id: str, /) -> Any | None:
            self._bind()
            # What the driver refuses fails alone.
            is_alone = not self._is_postgresql or not row_id.isascii() or "\0" in row_id
            return await (find(row_id) if is_alone else reader.find(row_id))

        return look_up

    async def aclose(self) -> None:
        """Close what the store itself opened, before the engine is disposed of. It still works afterwards.

        A store that is used on several event loops is closed on each of them.
        """
        self._close()

    def _bind(self) -> None:
        engine = self._get_engine()
        if engine.sync_engine is self._engine:
            return
        with self._binding:
            if engine.sync_engine is self._engine:
                return
            self._prepare(engine.sync_engine)
            self._derived_engine = AsyncEngine(self._derived)
            self._engine = engine.sync_engine

    async def _read(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self._read_within(READ_SECONDS, work, *args, **kwargs)

    async def _read_within(
        self,
        seconds: float,
        work: Callable[Concatenate[Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Read with one statement; once more if the pool's connection turns out to be closed."""

        async def read() -> T:
            async with (
                self._turns.take(self._is_one_connection, WRITE_SECONDS),
                self._derived_engine.connect() as connection,
            ):
                return await run(connection, self._read_on, work, *args, **kwargs)

        async def read_again() -> T:
            for _ in range(MAX_STALE):
                try:
                    return await read()
                except Exception as error:
                    if not self._was_stale(error):
                        raise
            return await read()

        return await self._bounded(seconds, read_again, ends_with_caller=False)

    async def _write(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self._write_within(WRITE_SECONDS, work, *args, **kwargs)

    async def _write_within(
        self,
        seconds: float,
        work: Callable[Concatenate[Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        async def write() -> T:
            async with self._transaction() as connection:
                return await run(connection, work, *args, **kwargs)

        return await self._bounded(seconds, write, ends_with_caller=True)

    async def _change(
        self,
        change: KeyChange | None,
        work: Callable[Concatenate[Connection, P], Written],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> ApiKey | None:
        """Write, and call `on_change` in the same transaction."""
        on_change = self.on_change
        if on_change is None:
            return (await self._write(work, *args, **kwargs)).record
        events_of = require_change(change)

        async def write() -> ApiKey | None:
            async with self._transaction() as connection:
                written = await run(connection, work, *args, **kwargs)
                if written.is_changed and written.record is not None:
                    await call_on_change(on_change, connection, events_of(written.record))
                    await run(connection, self._operations.check_written, written)
                return written.record

        return await self._bounded(WRITE_SECONDS, write, ends_with_caller=True)

    async def _bounded(
        self,
        seconds: float,
        work: Callable[[], Coroutine[Any, Any, T]],
        *,
        ends_with_caller: bool,
    ) -> T:
        self._bind()
        if self._is_sqlite:
            # There is no server that could fall silent.
            return await work()
        return await within(seconds, work, ends_with_caller=ends_with_caller)

    @asynccontextmanager
    async def _transaction(self) -> AsyncGenerator[AsyncConnection]:
        async with (
            self._turns.take(self._is_sqlite, WRITE_SECONDS),
            self._derived_engine.connect() as connection,
        ):
            # Until the commit has returned.
            with await run(connection, in_use):
                await run(connection, self._isolate, "READ COMMITTED")
                async with connection.begin():
                    await run(connection, self._begin_write)
                    yield connection
