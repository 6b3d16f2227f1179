"""The store: each of its methods is an operation in a read or a write of the database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress  # async only
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeVar

from sqlalchemy import Table, and_, bindparam, func, or_
from sqlalchemy.sql import ColumnElement, Select

from msk_auth.batching import BatchedReader  # async only
from msk_auth.core.events import KeyEvent
from msk_auth.core.fields import KeyUpdate
from msk_auth.core.model import ApiKey, ExpiryQuery, KeyQuery
from msk_auth.core.store import (
    KeyChange,
    RecordedLease,
    WrongRecord,  # async only
    require_change,
)
from msk_auth.stores.sqlalchemy._operations import Written
from msk_auth.stores.sqlalchemy._shared import (
    REGISTER_SECONDS,
    SharedStore,
    Work,
    batches,
    getter,
)
from msk_auth.stores.sqlalchemy._table import (
    first_record,
    id_of,
    read_record,
    to_columns,
    to_microseconds,
)

from .running import (
    AsyncConnection,
    AsyncEngine,
    Turns,
    Uses,
    call_on_change,
    outside_forks,
)

T = TypeVar("T")


class AsyncSQLAlchemyKeyStore(SharedStore):
    """Keeps keys in a database, awaited on an event loop.

    :class:`~msk_auth.stores.AsyncKeyStore` describes most of the methods.

    The store reads and writes through the engine's pool; on SQLite it reads keys on a separate connection. A look-up without an
    answer fails after three seconds, and a write after ten: with an asynchronous engine always, with a blocking engine if
    the driver is psycopg or psycopg2. :func:`prepare_postgresql` replaces dead connections sooner, and "Keep keys in a
    database" has the settings of other drivers. A connection to a standby is not used.

    Args:
        engine: An engine for SQLite, PostgreSQL, MariaDB or MySQL, or a function that returns it, if the store is made before
            the engine. The function is called with each use of the store and must not make a new engine each time. If it
            returns another engine than before, the store uses that engine. The application must dispose of the engine.
        table: The table from :func:`api_key_table`; None means a table with the default name, as made by
            `msk_auth.stores.sqlalchemy.migrations`.
        on_change: Called in the transaction of each write that changes a key, with the connection and the event, before
            the commit. Its writes and the key commit together or not at all; its exceptions roll both back. It must
            neither end the transaction nor use the store, and be quick: other writers wait for it.
        shares_reads: True if concurrent look-ups of keys may be one statement, which then runs outside of any
            request. None means: unless the engine's pool has a listener for `checkout`, which may prepare each connection
            for the request that uses it, for the schema of its tenant for example.

    Raises:
        ConfigurationError: The engine has the wrong type, the database is not supported, or the table was made differently.
            With a function as `engine` the first use of the store raises this.
    """

    def __init__(
        self,
        engine: AsyncEngine | Callable[[], AsyncEngine],
        table: Table | None = None,
        *,
        on_change: Callable[[AsyncConnection, KeyEvent], Awaitable[None]] | None = None,
        shares_reads: bool | None = None,  # async only
    ) -> None:
        self.on_change: Final = on_change
        self._uses = Uses()
        self._shares_reads = shares_reads  # async only
        super().__init__(getter(engine, AsyncEngine), table, Turns().take, outside_forks)
        if not callable(engine):
            self._bind()

    async def find(self, key_id: str) -> ApiKey | None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        self._bind()
        reader = self._reader
        rows = None if reader is None else reader.find(key_id)
        if rows is not None:
            return first_record(rows, key_id)
        return await self._read(lambda on: self._operations.find(on, key_id))

    async def find_many(self, key_ids: Sequence[str]) -> Sequence[ApiKey]:  # async only
        """See :class:`~msk_auth.stores.AsyncKeyStore`."""
        return await self._read(lambda on: self._operations.find_many(on, key_ids))

    def may_share_reads(self) -> bool:  # async only
        """True if look-ups of several requests may share a read now: see `shares_reads`."""
        if self._shares_reads is not None:
            return self._shares_reads
        return not self._bind().pool.dispatch.checkout

    async def insert(
        self,
        record: ApiKey,
        *,
        max_active: int | None,
        now: datetime,
        change: KeyChange | None = None,
    ) -> None:
        """See :class:`~msk_auth.stores.KeyStore`.

        Raises:
            KeyLimitReached: The owner would have more active keys than allowed.
            sqlalchemy.exc.IntegrityError: A key with this id exists.
        """
        await self._change(
            change,
            lambda on: self._operations.insert(on, record, max_active=max_active, now=now),
        )

    async def list(self, query: KeyQuery) -> Sequence[ApiKey]:
        """See :class:`~msk_auth.stores.KeyStore`."""
        return await self._list(self._operations.page(query))

    async def list_all(
        self, *, after: tuple[str, datetime, str] | None, limit: int
    ) -> Sequence[ApiKey]:
        """See :class:`~msk_auth.stores.KeyStore`."""
        return await self._list(self._operations.page_of_all(after, limit))

    async def list_expiring(self, query: ExpiryQuery) -> Sequence[ApiKey]:
        """See :class:`~msk_auth.stores.KeyStore`."""
        return await self._list(self._operations.page_of_expiring(query))

    async def announce_expiry(
        self, key_id: str, *, days: int, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        keys = self._table.c
        due = and_(
            keys.id == key_id,
            keys.revoked_at.is_(None),
            keys.replaced_by.is_(None),
            or_(keys.announced_days.is_(None), keys.announced_days > days),
        )
        return await self._set(change, key_id, due, {"announced_days": days})

    async def revoke(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        own, values = self._operations.is_own(key_id, owner_id), {"revoked_at": to_microseconds(at)}
        return await self._set(change, key_id, own, values, self._table.c.revoked_at.is_(None))

    async def delete(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        own, moment = self._operations.is_own(key_id, owner_id), to_microseconds(at)
        revoked_at = func.coalesce(self._table.c.revoked_at, moment)
        values = {"revoked_at": revoked_at, "deleted_at": moment}
        return await self._set(change, key_id, own, values)

    async def expire(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        own, moment = self._operations.is_own(key_id, owner_id), to_microseconds(at)
        expires_at = self._table.c.expires_at
        is_later = or_(expires_at.is_(None), expires_at > moment)
        return await self._set(change, key_id, own, {"expires_at": moment}, is_later)

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
        """See :class:`~msk_auth.stores.KeyStore`.

        Raises:
            KeyNotActive: The predecessor is revoked, expired or already rotated.
            KeyLimitReached: The owner would have more active keys than allowed.
            sqlalchemy.exc.IntegrityError: A key with the successor's id exists.
        """
        return await self._change(
            change,
            lambda on: self._operations.rotate(
                on, key_id, successor=successor, ends_at=ends_at, max_active=max_active, now=now
            ),
        )

    async def update(
        self, key_id: str, *, owner_id: str, fields: KeyUpdate, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        own, values = self._operations.is_own(key_id, owner_id), to_columns(fields)
        return await self._set(change, key_id, own, values, self._operations.differ(values))

    async def touch(self, last_used: Mapping[str, datetime]) -> None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        for some in batches(last_used):
            await self._write(partial(self._operations.touch, last_used=some))

    async def replace_digest(self, key_id: str, *, old: str, new: str) -> None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        keys = self._table.c
        where = and_(keys.id == key_id, keys.digest == old)
        await self._write(lambda on: self._operations.set_where(on, where, {"digest": new}))

    async def recorded_leases(self) -> Collection[RecordedLease]:
        """See :class:`~msk_auth.stores.KeyStore`."""
        return await self._read(self._operations.recorded_leases, REGISTER_SECONDS)

    async def record_lease(self, lease: RecordedLease) -> None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        await self._write(lambda on: self._operations.record_lease(on, lease), REGISTER_SECONDS)

    async def forget_lease(self, lease: RecordedLease) -> None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        await self._write(lambda on: self._operations.forget_lease(on, lease), REGISTER_SECONDS)

    def prepare(self, statement: Select[Any]) -> Callable[..., Awaitable[Sequence[Any]]]:
        """Prepare your own statement, to be read like keys: from the primary, in bounded time, without SQLAlchemy on SQLite.

        For reads with each request, such as the owner of a key or a login session::

            find_user = store.prepare(select(users).where(users.c.id == bindparam("user_id")))


            async def find_owner(owner_id: str) -> Owner[User] | None:
                rows = await find_user(user_id=owner_id)
                return Owner(rows[0].id, rows[0].permissions, to_user(rows[0])) if rows else None

        Each call sees the last commit, outside of your transactions, and fails after three seconds.

        Args:
            statement: Selects few rows by an index; on SQLite with aiosqlite it runs on the event loop. Use `bindparam("…")`
                for values that change. Entities are returned as their columns.

        Returns:
            A function that takes the parameters and returns the rows as named tuples.
        """

        async def read(**values: Any) -> Sequence[Any]:
            self._bind()
            reader = self._reader
            rows = None if reader is None else reader.read(statement, values)
            if rows is not None:
                return rows
            return await self._read(lambda on: on.execute(statement, values).all())

        return read

    def prepare_by_id(  # async only
        self, statement: Select[Any]
    ) -> Callable[[str], Awaitable[Any | None]]:
        """Prepare your own statement for reading one row by its column `id`, such as the owner of a key.

        The statement is read like that of :meth:`prepare`. On PostgreSQL, concurrent look-ups share a round trip like those
        of keys, and each sees every commit from before it began::

            find_user = store.prepare_by_id(select(users))


            async def find_owner(owner_id: str) -> Owner[User] | None:
                row = await find_user(owner_id)
                return None if row is None else Owner(row.id, row.permissions, to_user(row))

        Look-ups of the same id may return the same row object: do not change its values.

        Args:
            statement: Selects a unique text column `id`, and has no parameters.

        Returns:
            An async function that takes an id, and returns the row as a named tuple or None.

        Raises:
            ConfigurationError: The statement has no such column.
        """
        column = id_of(statement)
        read_one = self.prepare(statement.where(column == bindparam("row_id")))
        read_many = self.prepare(statement.where(column.in_(bindparam("row_ids", expanding=True))))

        async def find(row_id: str) -> Any | None:
            return next(iter(await read_one(row_id=row_id)), None)

        async def find_many(row_ids: Sequence[str]) -> Sequence[Any]:
            return await read_many(row_ids=row_ids)

        reader = BatchedReader[Any](find, find_many, self.may_share_reads)

        async def look_up(row_id: str, /) -> Any | None:
            self._bind()
            # An id that the driver refuses must fail alone.
            is_alone = self._reader is not None or not row_id.isascii() or "\0" in row_id
            if not is_alone:
                # So must an id by which the column's collation finds the row of another id.
                with suppress(WrongRecord):
                    return await reader.find(row_id)
            return await find(row_id)

        return look_up

    async def aclose(self) -> None:
        """Close the store's own connections, before you dispose of the engine. The store still works afterwards.

        Close a store on each event loop that uses it.
        """
        await self._uses.end()  # async only
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    async def _read(self, work: Work[T], seconds: float | None = None) -> T:
        return await self._uses.within(
            self._bounded(seconds or self.read_seconds), partial(self._read_now, work)
        )

    async def _write(self, work: Work[T], seconds: float | None = None) -> T:
        return await self._uses.within(
            self._bounded(seconds or self.write_seconds), partial(self._write_now, work)
        )

    async def _list(self, page: Select[Any]) -> Sequence[ApiKey]:
        return await self._read(lambda on: [read_record(row) for row in on.execute(page).all()])

    async def _set(
        self,
        change: KeyChange | None,
        key_id: str,
        of: ColumnElement[bool],
        values: Mapping[str, Any],
        *where: ColumnElement[bool],
    ) -> ApiKey | None:
        """See `KeyOperations.set_columns`."""
        return await self._change(
            change, lambda on: self._operations.set_columns(on, key_id, of, values, *where)
        )

    async def _change(self, change: KeyChange | None, work: Work[Written]) -> ApiKey | None:
        """Write, and call `on_change` in the same transaction."""
        on_change = self.on_change
        if on_change is None:
            return (await self._write(work)).record
        events_of = require_change(change)

        def change_and_announce(connection: Any) -> Written:
            written = work(connection)
            if written.is_changed and written.record is not None:
                call_on_change(on_change, connection, events_of(written.record))
                self._operations.check_written(connection, written)
            return written

        return (await self._write(change_and_announce)).record
