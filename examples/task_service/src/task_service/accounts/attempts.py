"""Storages for the counts of attempts, shared by all processes of a deployment.

The service's database counts, or Redis if it is configured (`TASK_SERVICE_REDIS_URL`). While Redis does not answer, the
database counts instead: a login needs the database anyway, so every guess is counted somewhere, and an outage of Redis
locks no user out (fail securely: ASVS 5.0, section 16.5). An attacker who can interrupt Redis gets one window in each of
the two storages, which is twice the guesses at most.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from importlib.util import find_spec
from typing import Any, Final, TypeVar, cast

from limits.aio.storage import RedisStorage, Storage
from limits.errors import ConfigurationError as LimitsConfigurationError
from limits.errors import StorageError
from sqlalchemy import and_, case, delete, or_, select, text
from sqlalchemy.dialects import postgresql, sqlite

from msk_auth import Clock
from msk_auth.errors import ConfigurationError, StoreUnavailable
from task_service.db.engine import Database
from task_service.db.schema import login_attempts

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

_REDIS_SECONDS: Final = 1.0
_BREAK_SECONDS: Final = 5.0
_KEYS: Final = login_attempts.c


class DatabaseAttempts(Storage):
    """Counts in the service's database, each count in one statement.

    Args:
        db: The database.
        clock: Decides when a window is over. A window that ends later than it can is over too: a clock was set back.

    Every method raises StoreUnavailable when the database does not answer.
    """

    STORAGE_SCHEME = None

    def __init__(self, db: Database, clock: Clock) -> None:
        super().__init__()
        self._db = db
        self._clock = clock

    @property
    def base_exceptions(self) -> type[Exception]:
        """What the methods raise."""
        return StoreUnavailable

    async def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """Add to a count, in a new window if the old one is over; never below zero.

        Args:
            key: Which count.
            expiry: How many seconds a new window lasts.
            amount: How much to add.

        Returns:
            The count.
        """
        now = self._clock.now()
        ends = now + timedelta(seconds=expiry)
        insert = (sqlite if self._db.engine.dialect.name == "sqlite" else postgresql).insert
        over = or_(_KEYS.expires_at <= now, _KEYS.expires_at > ends)
        first = max(amount, 0)
        start = insert(login_attempts).values(key=key, attempts=first, expires_at=ends)
        counted = case(
            (over, first),
            (_KEYS.attempts + amount < 0, 0),
            else_=_KEYS.attempts + amount,
        )
        statement = start.on_conflict_do_update(
            index_elements=[_KEYS.key],
            set_={
                "attempts": counted,
                "expires_at": case((over, start.excluded.expires_at), else_=_KEYS.expires_at),
            },
        ).returning(_KEYS.attempts)
        async with self._db.write() as connection:
            return int((await connection.execute(statement)).scalar_one())

    async def get(self, key: str) -> int:
        """The count; 0 once its window is over."""
        async with self._db.read() as connection:
            found = await connection.scalar(
                select(_KEYS.attempts).where(
                    and_(_KEYS.key == key, _KEYS.expires_at > self._clock.now())
                )
            )
        return found or 0

    async def get_expiry(self, key: str) -> float:
        """When the window is over, in seconds since the Unix epoch; now if there is none."""
        async with self._db.read() as connection:
            ends = await connection.scalar(select(_KEYS.expires_at).where(_KEYS.key == key))
        return (self._clock.now() if ends is None else ends).timestamp()

    async def check(self) -> bool:
        """True if the database answers."""
        try:
            async with self._db.read() as connection:
                await connection.execute(text("SELECT 1"))
        except StoreUnavailable:
            return False
        return True

    async def reset(self) -> int | None:
        """Delete every count."""
        async with self._db.write() as connection:
            return (await connection.execute(delete(login_attempts))).rowcount

    async def clear(self, key: str) -> None:
        """Delete a count."""
        async with self._db.write() as connection:
            await connection.execute(delete(login_attempts).where(_KEYS.key == key))

    async def purge(self) -> None:
        """Delete the windows that are over."""
        async with self._db.write() as connection:
            await connection.execute(
                delete(login_attempts).where(_KEYS.expires_at <= self._clock.now())
            )


class RedisAttempts(Storage):
    """Counts in Redis, and in another storage while Redis does not answer.

    Args:
        url: `redis://…` or `rediss://…`.
        clock: Its monotonic side measures how long Redis is not used after a failure.
        fallback: The storage that counts meanwhile.

    Raises:
        ConfigurationError: The client is not installed, or the URL is invalid.
    """

    STORAGE_SCHEME = None

    def __init__(self, url: str, clock: Clock, fallback: Storage) -> None:
        super().__init__()
        self._clock = clock
        self._fallback = fallback
        self._broken_until = clock.monotonic()
        if find_spec("redis") is None:
            raise ConfigurationError(
                "TASK_SERVICE_REDIS_URL needs the Redis client. Install task-service[redis]."
            )
        try:
            self._redis = RedisStorage(
                f"async+{url}",
                wrap_exceptions=True,
                implementation="redispy",
                key_prefix="task-service",
                socket_timeout=_REDIS_SECONDS,
                socket_connect_timeout=_REDIS_SECONDS,
            )
        except (ValueError, LimitsConfigurationError):
            # Without the cause: it may quote the URL, and that holds a password.
            raise ConfigurationError(
                "TASK_SERVICE_REDIS_URL is not a valid URL. Write redis://:password@host:port/0."
            ) from None

    @property
    def base_exceptions(self) -> type[Exception]:
        """What the methods raise."""
        return StoreUnavailable

    async def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """Add to a count."""
        return await self._redis_or_fallback(lambda storage: storage.incr(key, expiry, amount))

    async def get(self, key: str) -> int:
        """The count."""
        return await self._redis_or_fallback(lambda storage: storage.get(key))

    async def get_expiry(self, key: str) -> float:
        """When the window is over, in seconds since the Unix epoch."""
        return await self._redis_or_fallback(lambda storage: storage.get_expiry(key))

    async def check(self) -> bool:
        """True if Redis answers."""
        try:
            return await self._redis.check()
        except StorageError:
            return False

    async def reset(self) -> int | None:
        """Delete every count, in both storages."""
        await self._fallback.reset()
        return await self._redis_or_fallback(lambda storage: storage.reset())

    async def clear(self, key: str) -> None:
        """Delete a count, in both storages."""
        await self._fallback.clear(key)
        await self._redis_or_fallback(lambda storage: storage.clear(key))

    async def close(self) -> None:
        """Close the connections to Redis."""
        bridge = cast("Any", self._redis.bridge)
        await bridge.get_connection().aclose()

    async def _redis_or_fallback(self, call: Callable[[Storage], Awaitable[_T]]) -> _T:
        if self._clock.monotonic() >= self._broken_until:
            try:
                return await call(self._redis)
            except StorageError as error:
                self._broken_until = self._clock.monotonic() + _BREAK_SECONDS
                _log.warning(
                    "Redis did not answer (%s); the database counts attempts",
                    type(error.storage_error).__name__,
                )
        return await call(self._fallback)
