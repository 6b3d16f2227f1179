"""Database servers: they may be silent, a standby, or commit before a change is on the disk.

A late use of the database loses its connection. First the server gets a cancel request, so that its process stops
waiting, for a lock for example. Then the connection's socket is shut down: the driver's wait ends with an error, and the
pool replaces the connection. This needs a driver whose connections have `fileno()`: psycopg and psycopg2.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from typing import Any, Final

from sqlalchemy import event, text
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from msk_auth.core.errors import ConfigurationError

# Settings of libpq. Noticing a lost connection and trying a new one takes less than five seconds together.
_LIBPQ: Final[dict[str, Any]] = {
    "connect_timeout": 2,
    "tcp_user_timeout": 2000,
    "keepalives_idle": 5,
    "keepalives_interval": 1,
    "keepalives_count": 2,
}
_ASYNCPG: Final[dict[str, Any]] = {"timeout": 2}
_SETTINGS: Final = {"psycopg": _LIBPQ, "psycopg2": _LIBPQ, "asyncpg": _ASYNCPG}


def prepare_postgresql(engine: Engine | AsyncEngine) -> None:
    """Let new connections of an engine notice within seconds that their server does not answer.

    Sets the time to connect (2 seconds for each host), the time for an acknowledgement of sent data
    (`tcp_user_timeout`, 2 seconds), and keepalives. With psycopg a ping of `pool_pre_ping` keeps the deadline of the
    store's operation. Values in the URL or the `connect_args` of the engine stay.

    Call this once, before the engine is used.

    Args:
        engine: An engine for PostgreSQL, with psycopg, psycopg2 or asyncpg.

    Raises:
        ConfigurationError: The engine is of another database or driver.
    """
    sync = engine.sync_engine if isinstance(engine, AsyncEngine) else engine
    settings = _SETTINGS.get(sync.driver) if sync.dialect.name == "postgresql" else None
    if settings is None:
        raise ConfigurationError(
            f"prepare_postgresql does not know the driver {sync.driver!r} of {sync.dialect.name}. It is for PostgreSQL with"
            " psycopg, psycopg2 or asyncpg."
        )
    defaults = dict(settings)
    if sync.driver == "psycopg":
        defaults["cursor_factory"] = _cursors(is_async=sync.dialect.is_async)

    @event.listens_for(sync, "do_connect")
    def _set_defaults(
        _dialect: object, _record: object, _args: object, parameters: dict[str, Any]
    ) -> None:
        if is_late():
            raise no_answer()
        for name, value in defaults.items():
            parameters.setdefault(name, value)

    del _set_defaults  # the event references it


def _cursors(*, is_async: bool) -> Callable[..., Any]:
    """A class of cursors that register a store's connection, even in a ping, before the store has the connection."""
    from psycopg import AsyncCursor, Cursor

    class BoundedCursor(Cursor[Any]):
        def execute(self, *args: Any, **options: Any) -> Any:
            with _registered(self.connection):
                return super().execute(*args, **options)

    class BoundedAsyncCursor(AsyncCursor[Any]):
        async def execute(self, *args: Any, **options: Any) -> Any:
            with _registered(self.connection):
                return await super().execute(*args, **options)

    return BoundedAsyncCursor if is_async else BoundedCursor


# Stronger values than "on", such as `remote_apply`, stay. "local" and "remote_write" survive a crash of the server.
_COMMIT_DURABLY = text(
    "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
)


def commit_durably(connection: Connection) -> None:
    """Let the current transaction be on the disk when its commit returns, even under `synchronous_commit = off`.

    The stores do this in each transaction that writes. Call this at the start of your own transactions that end
    access: that disable a user, end a session or change a password. On databases other than PostgreSQL it does
    nothing: their durability is a setting of the server, or of the connection (:func:`prepare_sqlite`). With an
    asynchronous connection: `await connection.run_sync(commit_durably)`.

    Args:
        connection: A connection in a transaction.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(_COMMIT_DURABLY)


_STANDBY: Final = "in_hot_standby"

# MariaDB and MySQL have no sure sign of a replica. But replicas are read-only, and a read-only server cannot revoke keys.
_READ_ONLY: Final = text("SELECT CONCAT_WS(',', @@global.read_only, @@global.innodb_read_only)")
_WRITABLE: Final = frozenset({"0", "OFF"})


class StandbyError(ConnectionError):
    """The database is a standby, which is never read: it may lack a revocation."""


def check_primary(driver: Any) -> None:
    """Refuse a PostgreSQL connection whose server has reported itself as a standby.

    PostgreSQL 14 and later report this on connecting and when it changes, so no round trip is needed. With an older server,
    or a driver that does not keep the report, a standby is not noticed.

    Args:
        driver: A connection of psycopg, psycopg2 or asyncpg.

    Raises:
        StandbyError: The server is a standby.
    """
    if hasattr(driver, "info"):
        status = driver.info.parameter_status(_STANDBY)
    elif hasattr(driver, "get_settings"):
        status = getattr(driver.get_settings(), _STANDBY, None)
    else:
        return
    if status == "on":
        raise StandbyError(
            "The database is a hot standby, which may lack the latest revocations. Connect to the primary: name only its"
            " host, or add target_session_attrs=read-write (asyncpg: primary) to the URL."
        )


def check_primary_of(connection: Connection) -> None:
    """Refuse a connection to a standby, and remove it from the pool.

    PostgreSQL needs no query: see :func:`check_primary`. MariaDB and MySQL are asked whether they are read-only.

    Raises:
        StandbyError: The server is a standby.
    """
    try:
        if connection.dialect.name == "postgresql":
            check_primary(connection.connection.driver_connection)
        elif connection.dialect.name in {"mysql", "mariadb"}:
            _check_writable(connection)
    except StandbyError:
        connection.invalidate()
        raise


def _check_writable(connection: Connection) -> None:
    if not _WRITABLE.issuperset(str(connection.scalar(_READ_ONLY)).split(",")):
        raise StandbyError(
            "The database is read-only, like a replica, which may lack the latest revocations. Connect to the"
            " primary, or set read_only and innodb_read_only to OFF if this is the primary."
        )


CANCEL_SECONDS: Final = 0.25
"""The time limit of a cancel request, and then of the cancelled statement."""


class Use:
    """A use of the database, from checking a connection out of the pool to checking it in.

    Attributes:
        driver: The driver's connection in use; None before checking out and after checking in.
        is_late: True if its deadline has passed.
    """

    def __init__(self) -> None:
        self.driver: Any = None
        self.is_late = False
        # A connection in the pool must not be shut down.
        self._lock = threading.Lock()

    @contextmanager
    def of(self, driver: Any) -> Generator[None]:
        """Register the connection during a block."""
        before, self.driver = self.driver, driver
        try:
            yield
        finally:
            with self._lock:
                self.driver = before

    def shut_down(self) -> bool:
        """Shut the socket of the connection down, if one is in use; returns True in that case."""
        with self._lock:
            fileno = getattr(self.driver, "fileno", None)
            if fileno is None:
                return False
            # A closed connection has no socket.
            with suppress(Exception), socket.socket(fileno=os.dup(fileno())) as end:
                end.shutdown(socket.SHUT_RDWR)
            return True


CURRENT: Final[ContextVar[Use | None]] = ContextVar("msk_auth_use", default=None)
"""The use of the running code."""


def _registered(driver: Any) -> AbstractContextManager[None]:
    """Register a connection with the current use during a block, if there is a use."""
    use = CURRENT.get()
    return nullcontext() if use is None else use.of(driver)


@contextmanager
def in_use(connection: Connection) -> Generator[None]:
    """Register a connection with the current use during a block, and do not return it to the pool if the use is late.

    psycopg prepares no statements meanwhile. It numbers prepared statements alike on every connection, and behind a pooler that
    mixes connections another connection's statement would answer.
    """
    driver: Any = connection.connection.driver_connection
    threshold = getattr(driver, "prepare_threshold", None)
    if threshold is not None:
        driver.prepare_threshold = None
    try:
        with _registered(driver):
            yield
    finally:
        if threshold is not None:
            driver.prepare_threshold = threshold
        if is_late():
            # The socket may be shut down, even after a late answer, and SQLAlchemy does not know.
            connection.invalidate()


def is_late() -> bool:
    """True if the deadline of the current use has passed."""
    use = CURRENT.get()
    return use is not None and use.is_late


def no_answer() -> TimeoutError:
    return TimeoutError("the database did not answer in time")


def no_turn() -> TimeoutError:
    return TimeoutError("the database is still busy with earlier writes")


def can_cancel(driver: Any) -> bool:
    """True if a query of this connection can be cancelled on the server in bounded time (psycopg with libpq 17)."""
    if not hasattr(driver, "cancel_safe"):
        return False
    from psycopg import capabilities

    return capabilities.has_cancel_safe()
