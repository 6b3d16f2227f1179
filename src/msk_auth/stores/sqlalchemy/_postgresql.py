"""Connections to PostgreSQL that notice in seconds that their server or the network is silent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Engine, event
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
