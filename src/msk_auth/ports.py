"""What the flows reach through each of the two authenticators: store, look-ups, leases."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Final, Generic

from ._outages import log_failure
from .clock import Clock
from .core.digest import KeyHasher
from .core.model import ApiKey, KeyLimits, Owner, Session, UserT
from .core.store import (
    AsyncBatchStore,
    AsyncKeyStore,
    AsyncLeaseRegister,
    KeyStore,
    LeaseRegister,
)
from .lease import LeaseCache, seconds_to_wait

# How many Argon2id verifications of imported keys run at once: each takes a core and 19 MiB.
_SLOW_AT_ONCE: Final = 2


class SyncPorts(Generic[UserT]):
    """What the flows reach through `Authenticator`.

    Attributes:
        keys_at_once: How many keys :meth:`find_keys` may be asked for.
    """

    keys_at_once: Final = 1

    def __init__(
        self,
        store: KeyStore,
        *,
        find_owner: Callable[[str], Owner[UserT] | None],
        find_session: Callable[[str], Session | None] | None,
        key_limits: KeyLimits | Callable[[], KeyLimits],
        hasher: KeyHasher,
        cache: LeaseCache[UserT] | None,
        clock: Clock,
    ) -> None:
        self.store = store
        self.leases: LeaseRegister | None = store if isinstance(store, LeaseRegister) else None
        self._find_owner = find_owner
        self._find_session = find_session
        self._key_limits = key_limits
        self._hasher = hasher
        self._cache = cache
        self._clock = clock

    def find_key(self, key_id: str) -> ApiKey | None:
        return self.store.find(key_id)

    def find_keys(self, key_ids: Sequence[str]) -> Sequence[ApiKey | None]:
        return [self.store.find(key_id) for key_id in key_ids]

    def find_owner(self, owner_id: str) -> Owner[UserT] | None:
        return self._find_owner(owner_id)

    def find_session(self, session_id: str) -> Session | None:
        return None if self._find_session is None else self._find_session(session_id)

    def key_limits(self) -> KeyLimits:
        return self._key_limits if isinstance(self._key_limits, KeyLimits) else self._key_limits()

    def verify_slowly(self, key: str, encoded: str) -> bool:
        return self._hasher.verify(key, encoded)

    def wait_out_leases(self) -> None:
        if self._cache is not None:
            self._cache.clear()
        self._clock.sleep(seconds_to_wait(self._longest_lease()))

    def _longest_lease(self) -> timedelta | None:
        if self.leases is None:
            return timedelta(0)
        try:
            return self.leases.longest_lease()
        except Exception as error:  # noqa: BLE001 - the change is committed; not knowing means waiting longer
            what = "the longest lease is not known; waiting for the allowed maximum"
            log_failure(logging.WARNING, what, error)
            return None


class AsyncPorts(Generic[UserT]):
    """What the flows reach through `AsyncAuthenticator`.

    Attributes:
        keys_at_once: How many keys :meth:`find_keys` may be asked for.
    """

    def __init__(
        self,
        store: AsyncKeyStore,
        *,
        find_owner: Callable[[str], Awaitable[Owner[UserT] | None]],
        find_session: Callable[[str], Awaitable[Session | None]] | None,
        key_limits: KeyLimits | Callable[[], Awaitable[KeyLimits]],
        hasher: KeyHasher,
        cache: LeaseCache[UserT] | None,
        clock: Clock,
    ) -> None:
        self.store = store
        self.leases: AsyncLeaseRegister | None = (
            store if isinstance(store, AsyncLeaseRegister) else None
        )
        # Not before there is use for it: `asyncio` takes as long to load as the rest of the library.
        import asyncio

        from .batching import MAX_BATCH, BatchedReader

        self._find_many = store.find_many if isinstance(store, AsyncBatchStore) else None
        self._reader = (
            None if self._find_many is None else BatchedReader(store.find, self._find_many)
        )
        self.keys_at_once: int = 1 if self._find_many is None else MAX_BATCH
        self._find_owner = find_owner
        self._find_session = find_session
        self._key_limits = key_limits
        self._hasher = hasher
        self._cache = cache
        self._clock = clock
        self._slow = asyncio.Semaphore(_SLOW_AT_ONCE)

    def find_key(self, key_id: str) -> Awaitable[ApiKey | None]:
        return self.store.find(key_id) if self._reader is None else self._reader.find(key_id)

    async def find_keys(self, key_ids: Sequence[str]) -> Sequence[ApiKey | None]:
        if self._find_many is None:
            return [await self.store.find(key_id) for key_id in key_ids]
        return await self._find_many(key_ids)

    async def find_owner(self, owner_id: str) -> Owner[UserT] | None:
        return await self._find_owner(owner_id)

    async def find_session(self, session_id: str) -> Session | None:
        return None if self._find_session is None else await self._find_session(session_id)

    async def key_limits(self) -> KeyLimits:
        return (
            self._key_limits
            if isinstance(self._key_limits, KeyLimits)
            else await self._key_limits()
        )

    async def verify_slowly(self, key: str, encoded: str) -> bool:
        import asyncio

        async with self._slow:
            return await asyncio.to_thread(self._hasher.verify, key, encoded)

    async def wait_out_leases(self) -> None:
        if self._cache is not None:
            self._cache.clear()
        await self._clock.async_sleep(seconds_to_wait(await self._longest_lease()))

    async def _longest_lease(self) -> timedelta | None:
        if self.leases is None:
            return timedelta(0)
        try:
            return await self.leases.longest_lease()
        except Exception as error:  # noqa: BLE001 - the change is committed; not knowing means waiting longer
            what = "the longest lease is not known; waiting for the allowed maximum"
            log_failure(logging.WARNING, what, error)
            return None
