"""The blocking store: the operations in transactions of a blocking engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import date, datetime
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine, Select, Table

from msk_auth._callables import check_hook
from msk_auth.core.activity import ActivityEntry, KeyActivity
from msk_auth.core.events import KeyEvent
from msk_auth.core.fields import KeyUpdate
from msk_auth.core.model import ApiKey, ExpiryQuery, KeyQuery
from msk_auth.core.store import READ_SECONDS, KeyChange, RecordedLease, require_change

from ._blocking import Turns, call_on_change, run, within
from ._deadlines import in_use
from ._operations import Written
from ._prepared import PreparedRead
from ._rows import FastPathUnavailable
from ._shared import MAX_STALE, REGISTER_SECONDS, WRITE_SECONDS, SharedStore, batches, getter

P = ParamSpec("P")
T = TypeVar("T")


class SQLAlchemyKeyStore(SharedStore):
    """A :class:`~msk_auth.stores.KeyStore` in a database; safe to use from several threads.

    It is an :class:`~msk_auth.stores.AdminStore`, :class:`~msk_auth.stores.ActivityStore`, :class:`~msk_auth.stores.ExpiryStore` and
    :class:`~msk_auth.stores.LeaseRegister` as well. The methods that are not described here are theirs.

    It reads and writes through the engine's pool; on SQLite it reads keys on a connection of its own. With psycopg and psycopg2
    a read that the server does not answer within three seconds fails, and a write within ten. Opening a connection, waiting
    for the pool, and other drivers have settings of the engine for it: see :func:`prepare_postgresql` and "Keep keys in a
    database". A connection that reports a standby is not used.

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
        self._turns = Turns()
        self._given = engine
        self._get_engine = getter(engine, Engine)
        if not callable(engine):
            self._bind()

    def find(self, key_id: str) -> ApiKey | None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        self._bind()
        if self._reader is not None:
            with suppress(FastPathUnavailable):
                return self._reader.find(key_id)
        return self._read(self._find, key_id)

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
            sqlalchemy.exc.IntegrityError: There is a key with this id.
        """
        self._change(change, self._operations.insert, record, max_active=max_active, now=now)

    def list(self, query: KeyQuery) -> Sequence[ApiKey]:
        """See :class:`~msk_auth.stores.KeyStore`."""
        return self._read(self._operations.list, query)

    def list_all(self, *, after: tuple[str, datetime, str] | None, limit: int) -> Sequence[ApiKey]:
        """See :class:`~msk_auth.stores.AdminStore`."""
        return self._read(self._operations.list_all, after=after, limit=limit)

    def list_expiring(self, query: ExpiryQuery) -> Sequence[ApiKey]:
        """See :class:`~msk_auth.stores.ExpiryStore`."""
        return self._read(self._operations.list_expiring, query)

    def announce_expiry(
        self, key_id: str, *, days: int, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.stores.ExpiryStore`."""
        return self._change(change, self._operations.announce_expiry, key_id, days=days)

    def revoke(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        return self._change(change, self._operations.revoke, key_id, owner_id=owner_id, at=at)

    def delete(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        return self._change(change, self._operations.delete, key_id, owner_id=owner_id, at=at)

    def expire(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.stores.KeyStore`."""
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
        """See :class:`~msk_auth.stores.KeyStore`.

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
        """See :class:`~msk_auth.stores.KeyStore`."""
        return self._change(
            change, self._operations.update, key_id, owner_id=owner_id, fields=fields
        )

    def touch(self, last_used: Mapping[str, datetime]) -> None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        for some in batches(last_used):
            self._write(self._operations.touch, some)

    def replace_digest(self, key_id: str, *, old: str, new: str) -> None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        self._write(self._operations.replace_digest, key_id, old=old, new=new)

    def record_activity(self, entries: Sequence[ActivityEntry]) -> None:
        """See :class:`~msk_auth.stores.ActivityStore`."""
        self._write(self._operations.record_activity, entries)

    def activity(self, key_id: str, *, since: date | None) -> KeyActivity:
        """See :class:`~msk_auth.stores.ActivityStore`."""
        return self._read(self._operations.activity, key_id, since)

    def delete_activity(self, *, before: date, limit: int) -> int:
        """See :class:`~msk_auth.stores.ActivityStore`."""
        return self._write(self._operations.delete_activity, before, limit)

    def recorded_leases(self) -> Collection[RecordedLease]:
        """See :class:`~msk_auth.stores.LeaseRegister`."""
        return self._read_within(REGISTER_SECONDS, self._operations.recorded_leases)

    def record_lease(self, lease: RecordedLease) -> None:
        """See :class:`~msk_auth.stores.LeaseRegister`."""
        self._write_within(REGISTER_SECONDS, self._operations.record_lease, lease)

    def forget_lease(self, lease: RecordedLease) -> None:
        """See :class:`~msk_auth.stores.LeaseRegister`."""
        self._write_within(REGISTER_SECONDS, self._operations.forget_lease, lease)

    def prepare(self, statement: Select[Any]) -> PreparedRead:
        """A statement of your own, read as this store reads keys: compiled once, from the primary, in bounded time.

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
            prepared = get()
            if self._reader is not None:
                with suppress(FastPathUnavailable):
                    parameters = prepared.parameters(values)
                    return prepared.rows(self._reader.read(prepared.text, parameters))
            return self._read(self._read_statement, prepared, values)

        return read

    def close(self) -> None:
        """Close what the store itself opened, before the engine is disposed of. It still works afterwards."""
        self._close()

    def _bind(self) -> None:
        engine = self._get_engine()
        if engine is self._engine:
            return
        with self._binding:
            if engine is self._engine:
                return
            self._prepare(engine)
            self._derived_engine = self._derived
            self._engine = engine

    def _read(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return self._read_within(READ_SECONDS, work, *args, **kwargs)

    def _read_within(
        self,
        seconds: float,
        work: Callable[Concatenate[Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Read with one statement; once more if the pool's connection turns out to be closed."""

        def read() -> T:
            with (
                self._turns.take(self._is_one_connection, WRITE_SECONDS),
                self._outside_forks(),
                self._derived_engine.connect() as connection,
            ):
                return run(connection, self._read_on, work, *args, **kwargs)

        def read_again() -> T:
            for _ in range(MAX_STALE):
                try:
                    return read()
                except Exception as error:
                    if not self._was_stale(error):
                        raise
            return read()

        return self._bounded(seconds, read_again, ends_with_caller=False)

    def _write(
        self, work: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return self._write_within(WRITE_SECONDS, work, *args, **kwargs)

    def _write_within(
        self,
        seconds: float,
        work: Callable[Concatenate[Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        def write() -> T:
            with self._transaction() as connection:
                return run(connection, work, *args, **kwargs)

        return self._bounded(seconds, write, ends_with_caller=True)

    def _change(
        self,
        change: KeyChange | None,
        work: Callable[Concatenate[Connection, P], Written],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> ApiKey | None:
        """Write, and call `on_change` in the same transaction."""
        on_change = self.on_change
        if on_change is None:
            return (self._write(work, *args, **kwargs)).record
        events_of = require_change(change)

        def write() -> ApiKey | None:
            with self._transaction() as connection:
                written = run(connection, work, *args, **kwargs)
                if written.is_changed and written.record is not None:
                    call_on_change(on_change, connection, events_of(written.record))
                    run(connection, self._operations.check_written, written)
                return written.record

        return self._bounded(WRITE_SECONDS, write, ends_with_caller=True)

    def _bounded(
        self,
        seconds: float,
        work: Callable[[], T],
        *,
        ends_with_caller: bool,
    ) -> T:
        self._bind()
        if self._is_sqlite:
            # There is no server that could fall silent.
            return work()
        return within(seconds, work, ends_with_caller=ends_with_caller)

    @contextmanager
    def _transaction(self) -> Generator[Connection]:
        with (  # noqa: SIM117 - as in the asynchronous store
            self._turns.take(self._is_sqlite, WRITE_SECONDS),
            self._outside_forks(),
            self._derived_engine.connect() as connection,
        ):
            # Until the commit has returned.
            with run(connection, in_use):
                run(connection, self._isolate, "READ COMMITTED")
                with connection.begin():
                    run(connection, self._begin_write)
                    yield connection
