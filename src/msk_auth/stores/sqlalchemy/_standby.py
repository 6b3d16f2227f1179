"""Whether a connection leads to a standby, whose data may be older than a revocation that has returned."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection

_STANDBY: Final = "in_hot_standby"


class StandbyError(ConnectionError):
    """The database at the other end is a standby, which is never read: it may not know of a revocation yet."""

    def __init__(self) -> None:
        super().__init__(
            "The database is a hot standby, which may not have the latest revocations. Connect to the primary: name its"
            " host alone, or add target_session_attrs=read-write (asyncpg: primary) to the URL."
        )


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
        raise StandbyError


def check_primary_of(connection: Connection) -> None:
    """As :func:`check_primary`, and keep the pool from handing out the connection again."""
    try:
        check_primary(connection.connection.driver_connection)
    except StandbyError:
        connection.invalidate()
        raise
