# Generated from src/msk_auth/stores/sqlalchemy/_async/store.py by tools/generate_sync.py: change that, and run this.
"""The store: each of its methods is an operation in a read or a write of the database."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeVar

from sqlalchemy import Table, and_, func, or_
from sqlalchemy.sql import ColumnElement, Select

from msk_auth.core.events import KeyEvent
from msk_auth.core.fields import KeyUpdate
from msk_auth.core.model import ApiKey, ExpiryQuery, KeyQuery
from msk_auth.core.store import (
    KeyChange,
    RecordedLease,
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
    read_record,
    to_columns,
    to_microseconds,
)

from .running import (
    Connection,
    Engine,
    Turns,
    Uses,
    call_on_change,
    outside_forks,
)

T = TypeVar("T")


class SQLAlchemyKeyStore(SharedStore):
    """Keeps keys in a database, called from any thread.

    :class:`~msk_auth.stores.KeyStore` describes most of the methods.

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

    Raises:
        ConfigurationError: The engine has the wrong type, the database is not supported, or the table was made differently.
            With a function as `engine` the first use of the store raises this.
    """

    def __init__(
        self,
        engine: Engine | Callable[[], Engine],
        table: Table | None = None,
        *,
        on_change: Callable[[Connection, KeyEvent], None] | None = None,
    ) -> None:
        self.on_change: Final = on_change
        self._uses = Uses()
        super().__init__(getter(engine, Engine), table, Turns().take, outside_forks)
        if not callable(engine):
            self._bind()

    def find(self, key_id: str) -> ApiKey | None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        self._bind()
        reader = self._reader
        rows = None if reader is None else reader.find(key_id)
        if rows is not None:
            return first_record(rows, key_id)
        return self._read(lambda on: self._operations.find(on, key_id))

    def insert(
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
        self._change(
            change,
            lambda on: self._operations.insert(on, record, max_active=max_active, now=now),
        )

    def list(self, query: KeyQuery) -> Sequence[ApiKey]:
        """See :class:`~msk_auth.stores.KeyStore`."""
        return self._list(self._operations.page(query))

    def list_all(self, *, after: tuple[str, datetime, str] | None, limit: int) -> Sequence[ApiKey]:
        """See :class:`~msk_auth.stores.KeyStore`."""
        return self._list(self._operations.page_of_all(after, limit))

    def list_expiring(self, query: ExpiryQuery) -> Sequence[ApiKey]:
        """See :class:`~msk_auth.stores.KeyStore`."""
        return self._list(self._operations.page_of_expiring(query))

    def announce_expiry(
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
        return self._set(change, key_id, due, {"announced_days": days})

    def revoke(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        own, values = self._operations.is_own(key_id, owner_id), {"revoked_at": to_microseconds(at)}
        return self._set(change, key_id, own, values, self._table.c.revoked_at.is_(None))

    def delete(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        own, moment = self._operations.is_own(key_id, owner_id), to_microseconds(at)
        revoked_at = func.coalesce(self._table.c.revoked_at, moment)
        values = {"revoked_at": revoked_at, "deleted_at": moment}
        return self._set(change, key_id, own, values)

    def expire(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        own, moment = self._operations.is_own(key_id, owner_id), to_microseconds(at)
        expires_at = self._table.c.expires_at
        is_later = or_(expires_at.is_(None), expires_at > moment)
        return self._set(change, key_id, own, {"expires_at": moment}, is_later)

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
        """See :class:`~msk_auth.stores.KeyStore`.

        Raises:
            KeyNotActive: The predecessor is revoked, expired or already rotated.
            KeyLimitReached: The owner would have more active keys than allowed.
            sqlalchemy.exc.IntegrityError: A key with the successor's id exists.
        """
        return self._change(
            change,
            lambda on: self._operations.rotate(
                on, key_id, successor=successor, ends_at=ends_at, max_active=max_active, now=now
            ),
        )

    def update(
        self, key_id: str, *, owner_id: str, fields: KeyUpdate, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        own, values = self._operations.is_own(key_id, owner_id), to_columns(fields)
        return self._set(change, key_id, own, values, self._operations.differ(values))

    def touch(self, last_used: Mapping[str, datetime]) -> None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        for some in batches(last_used):
            self._write(partial(self._operations.touch, last_used=some))

    def replace_digest(self, key_id: str, *, old: str, new: str) -> None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        keys = self._table.c
        where = and_(keys.id == key_id, keys.digest == old)
        self._write(lambda on: self._operations.set_where(on, where, {"digest": new}))

    def recorded_leases(self) -> Collection[RecordedLease]:
        """See :class:`~msk_auth.stores.KeyStore`."""
        return self._read(self._operations.recorded_leases, REGISTER_SECONDS)

    def record_lease(self, lease: RecordedLease) -> None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        self._write(lambda on: self._operations.record_lease(on, lease), REGISTER_SECONDS)

    def forget_lease(self, lease: RecordedLease) -> None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        self._write(lambda on: self._operations.forget_lease(on, lease), REGISTER_SECONDS)

    def prepare(self, statement: Select[Any]) -> Callable[..., Sequence[Any]]:
        """Prepare your own statement, to be read like keys: from the primary, in bounded time, without SQLAlchemy on SQLite.

        For reads with each request, such as the owner of a key or a login session::

            find_user = store.prepare(select(users).where(users.c.id == bindparam("user_id")))


            def find_owner(owner_id: str) -> Owner[User] | None:
                rows = find_user(user_id=owner_id)
                return Owner(rows[0].id, rows[0].permissions, to_user(rows[0])) if rows else None

        Each call sees the last commit, outside of your transactions, and fails after three seconds.

        Args:
            statement: Selects few rows by an index; on SQLite with aiosqlite it runs on the event loop. Use `bindparam("…")`
                for values that change. Entities are returned as their columns.

        Returns:
            A function that takes the parameters and returns the rows as named tuples.
        """

        def read(**values: Any) -> Sequence[Any]:
            self._bind()
            reader = self._reader
            rows = None if reader is None else reader.read(statement, values)
            if rows is not None:
                return rows
            return self._read(lambda on: on.execute(statement, values).all())

        return read

    def close(self) -> None:
        """Close the store's own connections, before you dispose of the engine. The store still works afterwards."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _read(self, work: Work[T], seconds: float | None = None) -> T:
        return self._uses.within(
            self._bounded(seconds or self.read_seconds), partial(self._read_now, work)
        )

    def _write(self, work: Work[T], seconds: float | None = None) -> T:
        return self._uses.within(
            self._bounded(seconds or self.write_seconds), partial(self._write_now, work)
        )

    def _list(self, page: Select[Any]) -> Sequence[ApiKey]:
        return self._read(lambda on: [read_record(row) for row in on.execute(page).all()])

    def _set(
        self,
        change: KeyChange | None,
        key_id: str,
        of: ColumnElement[bool],
        values: Mapping[str, Any],
        *where: ColumnElement[bool],
    ) -> ApiKey | None:
        """See `KeyOperations.set_columns`."""
        return self._change(
            change, lambda on: self._operations.set_columns(on, key_id, of, values, *where)
        )

    def _change(self, change: KeyChange | None, work: Work[Written]) -> ApiKey | None:
        """Write, and call `on_change` in the same transaction."""
        on_change = self.on_change
        if on_change is None:
            return (self._write(work)).record
        events_of = require_change(change)

        def change_and_announce(connection: Any) -> Written:
            written = work(connection)
            if written.is_changed and written.record is not None:
                call_on_change(on_change, connection, events_of(written.record))
                self._operations.check_written(connection, written)
            return written

        return (self._write(change_and_announce)).record
