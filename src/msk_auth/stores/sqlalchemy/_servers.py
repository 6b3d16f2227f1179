"""What is particular to a database on a server: it may be silent, a standby, or commit before a change is on its disk.

A use of the database that is late loses its connection. First the server gets a cancel request, so that its process does not go
on waiting, for a lock for example. Then the connection's socket is shut down: the driver's wait ends with an error, and the
pool replaces the connection. This needs a driver whose connections have `fileno()`: psycopg and psycopg2.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import event, text
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from msk_auth.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable


# libpq's. A connection that was lost is noticed, and a new one tried, in less than five seconds together.
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
    """Have every connection that an engine will make notice within seconds that its server does not answer.

    It sets the time to connect (2 seconds for each host), how long the system may wait for an acknowledgement of what was
    sent (`tcp_user_timeout`, 2 seconds), and keepalives. With psycopg a ping of `pool_pre_ping` keeps the deadline of the
    store's operation that it is made for. What the URL or the `connect_args` of the engine set, stays.

    Call it once, before the engine is used.

    Args:
        engine: Of PostgreSQL, with psycopg, psycopg2 or asyncpg.

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
        use = CURRENT.get()
        if use is not None:
            use.check()
        for name, value in defaults.items():
            parameters.setdefault(name, value)

    del _set_defaults  # the event holds it


def _cursors(*, is_async: bool) -> Callable[..., Any]:
    """A class of cursors that show which connection a store waits for, also in a ping, before it has the connection."""
    from psycopg import AsyncCursor, Cursor

    class BoundedCursor(Cursor[Any]):
        def execute(self, *args: Any, **options: Any) -> Any:
            use = CURRENT.get()
            if use is None:
                return super().execute(*args, **options)
            with use.of(self.connection):
                return super().execute(*args, **options)

    class BoundedAsyncCursor(AsyncCursor[Any]):
        async def execute(self, *args: Any, **options: Any) -> Any:
            use = CURRENT.get()
            if use is None:
                return await super().execute(*args, **options)
            with use.of(self.connection):
                return await super().execute(*args, **options)

    return BoundedAsyncCursor if is_async else BoundedCursor


# What is stronger than "on", `remote_apply` for example, stays. "local" and "remote_write" survive a crash of the server.
_COMMIT_DURABLY = text(
    "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
)


def commit_durably(connection: Connection) -> None:
    """Have the current transaction on the disk when its commit returns, even under `synchronous_commit = off`.

    The stores do it in each transaction that writes. Call it at the start of a transaction of your own that ends
    access: one that disables a user, ends a session or changes a password. On other databases than PostgreSQL it does
    nothing: their durability is a setting of the server, or of the connection (:func:`prepare_sqlite`). With an
    asynchronous connection: `await connection.run_sync(commit_durably)`.

    Args:
        connection: In a transaction.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(_COMMIT_DURABLY)


_STANDBY: Final = "in_hot_standby"

# MariaDB and MySQL have no sure sign of a replica. It is run read-only, and a server that is cannot be revoked on.
_READ_ONLY: Final = text("SELECT CONCAT_WS(',', @@global.read_only, @@global.innodb_read_only)")
_WRITABLE: Final = frozenset({"0", "OFF"})


class StandbyError(ConnectionError):
    """The database at the other end is a standby, which is never read: it may not know of a revocation yet."""


def check_primary(driver: Any) -> None:
    """Refuse a connection of PostgreSQL whose server has reported that it is a standby.

    PostgreSQL 14 and later report it on connecting and when it changes, so this needs no round trip. An older server,
    and a driver that does not keep what it reports, are not noticed.

    Args:
        driver: A connection of psycopg, psycopg2 or asyncpg.

    Raises:
        StandbyError: It leads to a standby.
    """
    if hasattr(driver, "info"):
        status = driver.info.parameter_status(_STANDBY)
    elif hasattr(driver, "get_settings"):
        status = getattr(driver.get_settings(), _STANDBY, None)
    else:
        return
    if status == "on":
        raise StandbyError(
            "The database is a hot standby, which may not have the latest revocations. Connect to the primary: name its"
            " host alone, or add target_session_attrs=read-write (asyncpg: primary) to the URL."
        )


def check_primary_of(connection: Connection) -> None:
    """Refuse a connection that leads to a standby, and keep the pool from handing it out again.

    PostgreSQL is asked nothing: see :func:`check_primary`. MariaDB and MySQL are asked whether they are read-only.

    Raises:
        StandbyError: It leads to a standby.
    """
    try:
        match connection.dialect.name:
            case "postgresql":
                check_primary(connection.connection.driver_connection)
            case "mysql" | "mariadb":
                _check_writable(connection)
            case _:
                pass
    except StandbyError:
        connection.invalidate()
        raise


def _check_writable(connection: Connection) -> None:
    if not _WRITABLE.issuperset(str(connection.scalar(_READ_ONLY)).split(",")):
        raise StandbyError(
            "The database is read-only, as a replica is, which may not have the latest revocations. Connect to the"
            " primary, or set read_only and innodb_read_only to OFF if it is one."
        )


CANCEL_SECONDS: Final = 0.25
"""How long a cancel request may take, and what it cancels afterwards."""


class Use:
    """One use of the database, from checking a connection out of the pool until it is back.

    Attributes:
        driver: The driver's connection that is in use; None before there is one, and once it is back in the pool.
        is_late: Whether its deadline has passed.
    """

    def __init__(self) -> None:
        self.driver: Any = None
        self.is_late = False
        # A connection that is back in the pool must not be shut down.
        self._lock = threading.Lock()

    def check(self) -> None:
        """Raise `TimeoutError` if it is late: it begins nothing more."""
        if self.is_late:
            raise no_answer()

    @contextmanager
    def of(self, driver: Any) -> Generator[None]:
        """The connection is in use for the length of a block."""
        before, self.driver = self.driver, driver
        try:
            yield
        finally:
            with self._lock:
                self.driver = before

    def shut_down(self) -> bool:
        """Shut the socket of the connection down, if one is in use; returns whether there is one."""
        with self._lock:
            fileno = getattr(self.driver, "fileno", None)
            if fileno is None:
                return False
            # A connection that is closed has none any more.
            with suppress(Exception), socket.socket(fileno=os.dup(fileno())) as end:
                end.shutdown(socket.SHUT_RDWR)
            return True


CURRENT: Final[ContextVar[Use | None]] = ContextVar("msk_auth_use", default=None)
"""The use that the running code is part of."""


@contextmanager
def in_use(connection: Connection) -> Generator[None]:
    """Make a connection that of the current use for the length of a block, if there is a use.

    psycopg prepares nothing meanwhile. It numbers prepared statements on every connection alike, and behind a pooler that
    mixes connections another one's statement would answer.
    """
    driver: Any = connection.connection.driver_connection
    use, threshold = CURRENT.get(), getattr(driver, "prepare_threshold", None)
    if use is None:
        yield
        return
    with use.of(driver):
        if threshold is None:
            yield
            return
        driver.prepare_threshold = None
        try:
            yield
        finally:
            driver.prepare_threshold = threshold


def is_late() -> bool:
    """Whether the deadline of the current use has passed."""
    use = CURRENT.get()
    return use is not None and use.is_late


def no_answer() -> TimeoutError:
    return TimeoutError("the database did not answer in time")


def no_turn() -> TimeoutError:
    return TimeoutError("the database is still busy with earlier writes")


def can_cancel(driver: Any) -> bool:
    """Whether a query of this connection can be cancelled on the server in bounded time (psycopg with libpq 17)."""
    if not hasattr(driver, "cancel_safe"):
        return False
    import psycopg

    has_cancel_safe = getattr(getattr(psycopg, "capabilities", None), "has_cancel_safe", None)
    return has_cancel_safe is not None and has_cancel_safe()
