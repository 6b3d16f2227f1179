"""Whether a connection leads to a standby or replica, whose data may be older than a revocation that has returned."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection, text

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
