"""What is particular to a database on a server: it may be silent, a standby, or commit before a change is on its disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import event, text
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from msk_auth.core.errors import ConfigurationError

from ._deadlines import CURRENT

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
