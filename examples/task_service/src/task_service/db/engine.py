"""Opens, reads and writes the database, and converts its failures.

SQLite serves one machine, PostgreSQL several; the statements are the same. This module guarantees:

- **Writers take turns.** SQLite allows one write transaction at a time, and a transaction that begins by reading may fail when
  it writes later. So a write transaction takes the lock immediately (`BEGIN IMMEDIATE`), and the tasks of this process queue
  fairly for the lock instead of polling.
- **Acknowledged writes are not lost.** SQLite runs in WAL mode with `synchronous=FULL`, and the service turns off
  PostgreSQL's asynchronous commit for itself: a commit is on the disk when it returns.
- **Every access has a time limit.** With an unreachable, full, locked or frozen database it raises `StoreUnavailable`
  (503) within seconds.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, cast

from sqlalchemy import URL, Connection, Select, Table, event, exc, make_url
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import AdaptedConnection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool
from sqlalchemy.sql.dml import ReturningUpdate

from msk_auth.errors import ConfigurationError, StoreUnavailable
from msk_auth.stores.sqlalchemy import (
    AsyncSQLAlchemyKeyStore,
    prepare_sqlite,
)

from .schema import api_keys

if TYPE_CHECKING:
    from psycopg import AsyncConnection as AsyncPsycopg

_log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_BLOCK_SECONDS: Final = 8.0
# The longest wait for a connection of the pool, for a new connection, and for SQLite's lock.
_WAIT_SECONDS: Final = 5

_POOL: Final = {"pool_size": 5, "max_overflow": 5, "pool_timeout": _WAIT_SECONDS}

_REFUSALS: Final = (
    exc.IntegrityError,
    exc.ProgrammingError,
    exc.DataError,
    exc.NotSupportedError,
)

_WRITES: Final = "task_service_writes"

# A checkpointed WAL is truncated to this size.
_WAL_BYTES: Final = 16_777_216

# Set even if it is on now: a reload of the server's configuration changes settings that a connection has not set. A stronger
# setting than "on", such as remote_apply, stays.
_COMMIT_DURABLY: Final = (
    "SELECT set_config('synchronous_commit', coalesce(nullif(setting, 'off'), 'on'), false)"
    " FROM current_setting('synchronous_commit') AS setting"
)

POSTGRES_CONNECT: Final[dict[str, Any]] = {
    # Shown in pg_stat_activity; `application_name` in the URL takes precedence.
    "fallback_application_name": "task-service",
    "connect_timeout": _WAIT_SECONDS,
    # Detects a machine that vanished in seconds, not hours.
    "keepalives_idle": 30,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}


class Database:
    """The service's database. Open it with :meth:`open`, inside the event loop that uses it.

    Args:
        engine: An engine of SQLite (aiosqlite) or PostgreSQL (psycopg).
        block_seconds: The longest time from the request for a connection to the end of a `read()` or `write()` block.

    Attributes:
        engine: The engine, for the store of API keys.
    """

    def __init__(self, engine: AsyncEngine, *, block_seconds: float) -> None:
        self.engine = engine
        self._block_seconds = block_seconds
        self._is_sqlite = engine.dialect.name == "sqlite"
        # asyncio.Lock is fair: it wakes its waiters in order.
        self._turn: AbstractAsyncContextManager[None] = (
            asyncio.Lock() if self._is_sqlite else nullcontext()
        )
        self._writer = engine.execution_options(**{_WRITES: True})
        self._store: AsyncSQLAlchemyKeyStore | None = None

    @classmethod
    def open(cls, url: str | URL, *, seconds: float | None = None) -> Database:
        """A database that connects on first use. A missing SQLite file is created, readable only by its owner.

        Args:
            url: `sqlite:////absolute/path` or `postgresql://user:password@host/name`.
            seconds: The longest time of a `read()` or `write()` block; a few seconds by default.

        Raises:
            ConfigurationError: The URL is malformed or names another database, or the folder of the SQLite
                file does not exist.
        """
        parsed = parse_url(url)
        if parsed.get_backend_name() == "sqlite":
            engine = _sqlite_engine(parsed, _WAIT_SECONDS if seconds is None else seconds)
        else:
            engine = _postgres_engine(parsed)
        return cls(engine, block_seconds=_BLOCK_SECONDS if seconds is None else seconds)

    @asynccontextmanager
    async def read(self) -> AsyncGenerator[AsyncConnection]:
        """A connection for reading. Each statement sees the newest committed state.

        Raises:
            StoreUnavailable: The database cannot answer, or not in time.
        """
        async with self._bounded(), self.engine.connect() as connection:
            if not self._is_sqlite:
                # Reads and single statements need no transaction, which would cost two round trips. Not an option of the
                # engine, which is applied during the checkout: SQLAlchemy leaves a connection to the garbage collector when
                # its checkout is cancelled at that moment.
                await connection.execution_options(isolation_level="AUTOCOMMIT")
            yield connection

    @asynccontextmanager
    async def write(self) -> AsyncGenerator[AsyncConnection]:
        """A connection in a write transaction: committed at the end of the block, rolled back if it raises.

        Raises:
            StoreUnavailable: The database cannot answer, or not in time. A begun commit may have succeeded.
        """
        async with self._bounded(), self._turn, self._writer.begin() as connection:
            yield connection

    async def execute(
        self, statement: ReturningUpdate[*tuple[Any, ...]], values: Mapping[str, Any] | None = None
    ) -> Sequence[Any]:
        """Write with one statement in its own transaction: two round trips fewer than :meth:`write`.

        Args:
            statement: The statement.
            values: The values of its `bindparam("…")`.

        Returns:
            The rows that the statement returns.

        Raises:
            StoreUnavailable: As for :meth:`write`.
        """
        async with self._bounded(), self._turn, self.read() as connection:
            rows: Sequence[Any] = (await connection.execute(statement, values)).all()
            return rows

    def insert(self, table: Table) -> Any:
        """An INSERT that takes `on_conflict_…`, for which SQLAlchemy has a class for each database."""
        return (sqlite if self._is_sqlite else postgresql).insert(table)

    def read_through(self, store: AsyncSQLAlchemyKeyStore) -> None:
        """Read prepared statements like this store reads keys. Call this before the first statement is prepared."""
        self._store = store

    def prepare(
        self, statement: Select[*tuple[Any, ...]]
    ) -> Callable[..., Awaitable[Sequence[Any]]]:
        """Prepare a frequent statement, and return a function that takes its parameters and returns the rows.

        The function takes a fifth of the time of :meth:`read`. It raises StoreUnavailable if the database cannot answer, or
        not in time.

        Args:
            statement: Selects few rows by an index: SQLite reads them on the event loop. Values that change are
                `bindparam("…")`.
        """
        return _translating_outages(self._reader().prepare(statement))

    def prepare_by_id(
        self, statement: Select[*tuple[Any, ...]]
    ) -> Callable[[str], Awaitable[Any | None]]:
        """Like :meth:`prepare`, for one row by its column `id`; on PostgreSQL concurrent look-ups share a round trip.

        Args:
            statement: Selects a column `id`, and has no parameters.
        """
        return _translating_outages(self._reader().prepare_by_id(statement))

    def _reader(self) -> AsyncSQLAlchemyKeyStore:
        if self._store is None:
            self._store = AsyncSQLAlchemyKeyStore(self.engine, api_keys, shares_reads=True)
        return self._store

    def with_timeout(self, seconds: float) -> Database:
        """A second `Database` for the same data, with its own connections and this timeout. Close it as well."""
        return Database.open(self.engine.url, seconds=seconds)

    def connections_in_use(self) -> int:
        """The number of used connections of the pool."""
        return cast("QueuePool", self.engine.pool).checkedout()

    async def close(self) -> None:
        """Close all connections, including those of the store for prepared statements."""
        if self._store is not None:
            await self._store.aclose()
        await self.engine.dispose()

    @asynccontextmanager
    async def _bounded(self) -> AsyncGenerator[None]:
        limit = asyncio.timeout(self._block_seconds)
        try:
            async with limit:
                yield
        except Exception as error:
            if limit.expired() or is_outage(error):
                raise _unavailable(error) from error
            raise


async def lock_table(connection: AsyncConnection, table: Table) -> None:
    """Let no other transaction change `table` until this transaction ends, for checks of several rows.

    On SQLite there is always only one write transaction.
    """
    if connection.dialect.name == "postgresql":
        await connection.exec_driver_sql(f'LOCK TABLE "{table.name}" IN SHARE ROW EXCLUSIVE MODE')


def is_outage(error: Exception) -> bool:
    """True if the database failed; False if it refused a statement or its values (a constraint, a syntax error)."""
    if isinstance(error, _REFUSALS):
        return error.connection_invalidated
    return isinstance(error, exc.DBAPIError | exc.TimeoutError)


def _translating_outages(read: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """The function of a prepared statement, which raises StoreUnavailable when the database cannot answer."""

    async def translating(*args: P.args, **values: P.kwargs) -> T:
        try:
            return await read(*args, **values)
        except Exception as error:
            if isinstance(error, OSError) or is_outage(error):
                raise _unavailable(error) from error
            raise

    return translating


def _unavailable(error: Exception) -> StoreUnavailable:
    # The message has the statement, but not its parameters (hide_parameters), which may be digests and names.
    _log.error("the database cannot answer: %s: %s", type(error).__name__, error)
    return StoreUnavailable()


def parse_url(url: str | URL) -> URL:
    """The URL with the driver that the service uses.

    Raises:
        ConfigurationError: As for :meth:`Database.open`; the message never quotes the URL.
    """
    try:
        parsed = make_url(url)
    except (exc.ArgumentError, ValueError):
        # Without the cause, which quotes the URL with its password.
        raise ConfigurationError(
            "The database URL is malformed. Write sqlite:////absolute/path or postgresql://user:password@host/name."
        ) from None
    match parsed.get_backend_name():
        case "sqlite":
            # SQLAlchemy gives each in-memory database to one connection; the service needs several.
            if not parsed.database or parsed.database == ":memory:" or parsed.query:
                raise ConfigurationError(
                    "The SQLite URL does not name a file, or has options. Write sqlite:////absolute/path."
                )
            return parsed.set(drivername="sqlite+aiosqlite")
        case "postgresql" | "postgres":
            return parsed.set(drivername="postgresql+psycopg")
        case other:
            raise ConfigurationError(
                f"The database {other!r} is not supported. Write sqlite:////absolute/path or"
                " postgresql://user:password@host/name."
            )


def _postgres_engine(url: URL) -> AsyncEngine:
    # Imported here, because the driver needs 10 MB of memory, and a service on SQLite does not use it.
    from .postgresql import ImpatientConnection, is_stale

    engine = create_async_engine(
        url,
        hide_parameters=True,
        connect_args={**POSTGRES_CONNECT, "async_creator_fn": ImpatientConnection.connect},
        **_POOL,
    )

    @event.listens_for(engine.sync_engine, "connect")
    def _configure(connection: Any, _record: object) -> None:
        cursor = connection.cursor()
        cursor.execute(_COMMIT_DURABLY)
        cursor.close()
        connection.commit()

    @event.listens_for(engine.sync_engine, "checkout")
    def _refuse_stale(_connection: object, record: ConnectionPoolEntry, _fairy: object) -> None:
        if is_stale(cast("AsyncPsycopg[Any]", record.driver_connection)):
            # The pool then takes another connection, so that a restart of the server fails no request.
            raise exc.DisconnectionError

    return engine


def _sqlite_engine(url: URL, lock_seconds: float) -> AsyncEngine:
    path = Path(url.database or "")
    try:
        # SQLite would create a file that all users can read. WAL and SHM inherit its mode.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise ConfigurationError(
            f"Cannot open the database file {path}: {error.strerror}. Check the folder and its permissions."
        ) from error
    engine = create_async_engine(
        url,
        hide_parameters=True,
        # The driver would begin its transactions late and DEFERRED; `_begin` begins them instead.
        connect_args={"isolation_level": None},
        **_POOL,
    )

    # WAL, durable, with foreign keys. The settings below are the service's own.
    prepare_sqlite(engine)

    @event.listens_for(engine.sync_engine, "connect")
    def _configure(connection: AdaptedConnection, _record: object) -> None:
        # Only one call in the driver's thread, for both.
        script = f"""
            PRAGMA busy_timeout = {lock_seconds * 1000:.0f};
            PRAGMA journal_size_limit = {_WAL_BYTES};
        """
        connection.run_async(lambda driver: driver.executescript(script))

    @event.listens_for(engine.sync_engine, "begin")
    def _begin(connection: Connection) -> None:
        if connection.get_execution_options().get(_WRITES):
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine
