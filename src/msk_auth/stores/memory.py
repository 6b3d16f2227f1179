"""Keys in the memory of one process: for tests, experiments, and as the model of what a store does.

Everything is gone when the process ends, and no other process sees any of it.
"""

from __future__ import annotations

import threading
from collections import ChainMap
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import date, datetime, timedelta
from functools import partial
from typing import Final, TypeAlias

from msk_auth._callables import check_hook
from msk_auth._fork import after_fork_in_child
from msk_auth.core.activity import ActivityEntry, DailyRequests, KeyActivity, LastRequest
from msk_auth.core.errors import KeyLimitReached, KeyNotActive
from msk_auth.core.events import KeyEvent
from msk_auth.core.fields import KeyUpdate
from msk_auth.core.model import ApiKey, ExpiryQuery, KeyQuery, KeyStatus, revoked
from msk_auth.core.store import (
    KeyChange,
    RecordedLease,
    call_on_change,
    require_change,
)

__all__ = ["AsyncMemoryKeyStore", "MemoryKeyStore"]

_Planned: TypeAlias = tuple[ApiKey | None, Mapping[str, ApiKey]]
"""What a write will answer, and the records that it will store; nothing is stored yet."""

_PAUSE_SECONDS: Final = 0.001


class _Records:
    """The records and what can be done with them; the stores below take care that they do one thing at a time."""

    def __init__(self) -> None:
        self._records: dict[str, ApiKey] = {}
        self._leases: dict[tuple[timedelta, str], RecordedLease] = {}
        self._days: dict[str, dict[date, DailyRequests]] = {}
        self._last_requests: dict[str, LastRequest] = {}
        self._renew()
        after_fork_in_child(self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        # Of its own: a hook that waits must not keep verifications from the register.
        self._lease_lock = threading.Lock()

    def _find(self, key_id: str) -> ApiKey | None:
        return self._records.get(key_id)

    def _list(self, query: KeyQuery) -> Sequence[ApiKey]:
        found = [record for record in self._records.values() if _is_listed(record, query)]
        return sorted(found, key=_position, reverse=True)[: query.limit]

    def _list_all(self, after: tuple[str, datetime, str] | None, limit: int) -> Sequence[ApiKey]:
        found = [
            record
            for record in self._records.values()
            if record.deleted_at is None and (after is None or _position_of_all(record) < after)
        ]
        return sorted(found, key=_position_of_all, reverse=True)[:limit]

    def _list_expiring(self, query: ExpiryQuery) -> Sequence[ApiKey]:
        found = [
            (record.expires_at, record.id, record)
            for record in self._records.values()
            if record.expires_at is not None
            and query.now < record.expires_at < query.before
            and record.revoked_at is None
            and record.replaced_by is None
            and record.announced_days == query.announced_days
            and (query.after is None or (record.expires_at, record.id) > query.after)
        ]
        return [record for _, _, record in sorted(found)[: query.limit]]

    def _insert(self, record: ApiKey, *, max_active: int | None, now: datetime) -> _Planned:
        return record, self._added(record, max_active=max_active, now=now)

    def _revoke(self, key_id: str, *, owner_id: str, at: datetime) -> _Planned:
        return self._updated(key_id, owner_id, lambda record: revoked(record, at=at))

    def _delete(self, key_id: str, *, owner_id: str, at: datetime) -> _Planned:
        return self._updated(
            key_id, owner_id, lambda record: replace(revoked(record, at=at), deleted_at=at)
        )

    def _expire(self, key_id: str, *, owner_id: str, at: datetime) -> _Planned:
        return self._updated(key_id, owner_id, lambda record: _expiring(record, at))

    def _rotate(
        self,
        key_id: str,
        *,
        successor: ApiKey,
        ends_at: datetime,
        max_active: int | None,
        now: datetime,
    ) -> _Planned:
        record = self._find_own(key_id, successor.owner_id)
        if record is None:
            return None, {}
        if record.status(now) is not KeyStatus.ACTIVE or record.replaced_by is not None:
            raise KeyNotActive
        ended = revoked(record, at=now) if ends_at <= now else _expiring(record, ends_at)
        predecessor = replace(ended, replaced_by=successor.id)
        return predecessor, self._added(
            successor, max_active=max_active, now=now, predecessor=predecessor
        )

    def _update(self, key_id: str, *, owner_id: str, fields: KeyUpdate) -> _Planned:
        def updated(record: ApiKey) -> ApiKey:
            after = replace(record, **fields)
            return record if after == record else after

        return self._updated(key_id, owner_id, updated)

    def _announce_expiry(self, key_id: str, *, days: int) -> _Planned:
        before = self._records.get(key_id)
        if before is None or before.revoked_at is not None or before.replaced_by is not None:
            return None, {}
        if before.announced_days is not None and before.announced_days <= days:
            return None, {}
        after = replace(before, announced_days=days)
        return after, {key_id: after}

    def _touch(self, last_used: Mapping[str, datetime]) -> None:
        for key_id, at in last_used.items():
            record = self._records.get(key_id)
            if record is not None and (record.last_used_at is None or record.last_used_at < at):
                self._records[key_id] = replace(record, last_used_at=at)

    def _replace_digest(self, key_id: str, *, old: str, new: str) -> None:
        record = self._records.get(key_id)
        if record is not None and record.digest == old:
            self._records[key_id] = replace(record, digest=new)

    def _record_activity(self, entries: Sequence[ActivityEntry]) -> None:
        for entry in entries:
            days = self._days.setdefault(entry.key_id, {})
            day, accepted, refused = days.get(entry.day, DailyRequests(entry.day, 0, 0))
            days[day] = DailyRequests(day, accepted + entry.accepted, refused + entry.refused)
            last = self._last_requests.get(entry.key_id)
            if last is None or last.at <= entry.last.at:
                self._last_requests[entry.key_id] = entry.last

    def _activity(self, key_id: str, since: date | None) -> KeyActivity:
        days = sorted(self._days.get(key_id, {}).values())
        recent = tuple(each for each in days if since is None or each.day >= since)
        return KeyActivity(recent, self._last_requests.get(key_id))

    def _delete_activity(self, before: date, limit: int) -> int:
        old_days = [(days, day) for days in self._days.values() for day in days if day < before][
            :limit
        ]
        old_requests = [
            key_id for key_id, last in self._last_requests.items() if last.at.date() < before
        ][:limit]
        for days, day in old_days:
            del days[day]
        for key_id in old_requests:
            del self._last_requests[key_id]
        return len(old_days) + len(old_requests)

    def _recorded_leases(self) -> Collection[RecordedLease]:
        with self._lease_lock:
            return tuple(self._leases.values())

    def _record_lease(self, lease: RecordedLease) -> None:
        with self._lease_lock:
            self._leases[lease.duration, lease.holder] = lease

    def _forget_lease(self, lease: RecordedLease) -> None:
        with self._lease_lock:
            if self._leases.get((lease.duration, lease.holder)) == lease:
                del self._leases[lease.duration, lease.holder]

    def _find_own(self, key_id: str, owner_id: str) -> ApiKey | None:
        record = self._records.get(key_id)
        if record is None or record.owner_id != owner_id or record.deleted_at is not None:
            return None
        return record

    def _updated(self, key_id: str, owner_id: str, update: Callable[[ApiKey], ApiKey]) -> _Planned:
        before = self._find_own(key_id, owner_id)
        if before is None:
            return None, {}
        after = update(before)
        return after, {} if after is before else {key_id: after}

    def _added(
        self,
        record: ApiKey,
        *,
        max_active: int | None,
        now: datetime,
        predecessor: ApiKey | None = None,
    ) -> Mapping[str, ApiKey]:
        if record.id in self._records:
            raise ValueError("there is a key with this id already")
        changes = {record.id: record}
        if predecessor is not None:
            changes[predecessor.id] = predecessor
        if max_active is not None:
            active = sum(
                other.owner_id == record.owner_id and other.status(now) is KeyStatus.ACTIVE
                for other in ChainMap(changes, self._records).values()
            )
            if active > max_active:
                raise KeyLimitReached(max_active)
        return changes


class MemoryKeyStore(_Records):
    """A :class:`~msk_auth.KeyStore` in a dictionary; safe to use from several threads.

    It is an :class:`~msk_auth.AdminStore`, :class:`~msk_auth.ActivityStore`, :class:`~msk_auth.ExpiryStore` and
    :class:`~msk_auth.LeaseRegister` as well. Its methods are theirs.

    Args:
        on_change: Called inside each write that changes a key, with None, since there is no connection, and the event.
            What it raises undoes the write. It must not use the store, which waits for it.
    """

    def __init__(self, *, on_change: Callable[[None, KeyEvent], None] | None = None) -> None:
        super().__init__()
        check_hook(on_change, self, awaits=False)
        self.on_change: Final = on_change

    def find(self, key_id: str) -> ApiKey | None:
        """See :class:`~msk_auth.KeyStore`."""
        return self._find(key_id)

    def insert(
        self,
        record: ApiKey,
        *,
        max_active: int | None,
        now: datetime,
        change: KeyChange | None = None,
    ) -> None:
        """See :class:`~msk_auth.KeyStore`.

        Raises:
            KeyLimitReached: The owner would have more active keys than allowed.
            ValueError: There is a key with this id.
        """
        self._write(partial(self._insert, record, max_active=max_active, now=now), change)

    def list(self, query: KeyQuery) -> Sequence[ApiKey]:
        """See :class:`~msk_auth.KeyStore`."""
        with self._lock:
            return self._list(query)

    def list_all(self, *, after: tuple[str, datetime, str] | None, limit: int) -> Sequence[ApiKey]:
        """See :class:`~msk_auth.AdminStore`."""
        with self._lock:
            return self._list_all(after, limit)

    def list_expiring(self, query: ExpiryQuery) -> Sequence[ApiKey]:
        """See :class:`~msk_auth.ExpiryStore`."""
        with self._lock:
            return self._list_expiring(query)

    def announce_expiry(
        self, key_id: str, *, days: int, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.ExpiryStore`."""
        return self._write(partial(self._announce_expiry, key_id, days=days), change)

    def revoke(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.KeyStore`."""
        return self._write(partial(self._revoke, key_id, owner_id=owner_id, at=at), change)

    def delete(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.KeyStore`."""
        return self._write(partial(self._delete, key_id, owner_id=owner_id, at=at), change)

    def expire(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.KeyStore`."""
        return self._write(partial(self._expire, key_id, owner_id=owner_id, at=at), change)

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
        """See :class:`~msk_auth.KeyStore`.

        Raises:
            KeyNotActive: The predecessor is revoked, expired or already rotated.
            KeyLimitReached: The owner would have more active keys than allowed.
            ValueError: There is a key with the successor's id.
        """
        rotation = partial(
            self._rotate,
            key_id,
            successor=successor,
            ends_at=ends_at,
            max_active=max_active,
            now=now,
        )
        return self._write(rotation, change)

    def update(
        self, key_id: str, *, owner_id: str, fields: KeyUpdate, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.KeyStore`."""
        return self._write(partial(self._update, key_id, owner_id=owner_id, fields=fields), change)

    def touch(self, last_used: Mapping[str, datetime]) -> None:
        """See :class:`~msk_auth.KeyStore`."""
        with self._lock:
            self._touch(last_used)

    def replace_digest(self, key_id: str, *, old: str, new: str) -> None:
        """See :class:`~msk_auth.KeyStore`."""
        with self._lock:
            self._replace_digest(key_id, old=old, new=new)

    def record_activity(self, entries: Sequence[ActivityEntry]) -> None:
        """See :class:`~msk_auth.ActivityStore`."""
        with self._lock:
            self._record_activity(entries)

    def activity(self, key_id: str, *, since: date | None) -> KeyActivity:
        """See :class:`~msk_auth.ActivityStore`."""
        with self._lock:
            return self._activity(key_id, since)

    def delete_activity(self, *, before: date, limit: int) -> int:
        """See :class:`~msk_auth.ActivityStore`."""
        with self._lock:
            return self._delete_activity(before, limit)

    def recorded_leases(self) -> Collection[RecordedLease]:
        """See :class:`~msk_auth.LeaseRegister`."""
        return self._recorded_leases()

    def record_lease(self, lease: RecordedLease) -> None:
        """See :class:`~msk_auth.LeaseRegister`."""
        self._record_lease(lease)

    def forget_lease(self, lease: RecordedLease) -> None:
        """See :class:`~msk_auth.LeaseRegister`."""
        self._forget_lease(lease)

    def _write(self, plan: Callable[[], _Planned], change: KeyChange | None) -> ApiKey | None:
        if self.on_change is not None:
            require_change(change)
        with self._lock:
            record, changes = plan()
            if self.on_change is not None:
                call_on_change(self.on_change, None, _events(record, changes, change))
            self._records.update(changes)
            return record


class AsyncMemoryKeyStore(_Records):
    """An :class:`~msk_auth.AsyncKeyStore` in a dictionary.

    It is an :class:`~msk_auth.AsyncAdminStore`, :class:`~msk_auth.AsyncActivityStore`, :class:`~msk_auth.AsyncExpiryStore` and
    :class:`~msk_auth.AsyncLeaseRegister` as well. Its methods are theirs.

    Args:
        on_change: Awaited inside each write that changes a key, with None, since there is no connection, and the event.
            What it raises undoes the write. It must not use the store, which waits for it.
    """

    def __init__(
        self, *, on_change: Callable[[None, KeyEvent], Awaitable[None]] | None = None
    ) -> None:
        super().__init__()
        check_hook(on_change, self, awaits=True)
        self.on_change: Final = on_change

    async def find(self, key_id: str) -> ApiKey | None:
        """See :class:`~msk_auth.KeyStore`."""
        return self._find(key_id)

    async def insert(
        self,
        record: ApiKey,
        *,
        max_active: int | None,
        now: datetime,
        change: KeyChange | None = None,
    ) -> None:
        """See :meth:`MemoryKeyStore.insert`."""
        await self._write(partial(self._insert, record, max_active=max_active, now=now), change)

    async def list(self, query: KeyQuery) -> Sequence[ApiKey]:
        """See :class:`~msk_auth.KeyStore`."""
        async with self._turn():
            return self._list(query)

    async def list_all(
        self, *, after: tuple[str, datetime, str] | None, limit: int
    ) -> Sequence[ApiKey]:
        """See :class:`~msk_auth.AsyncAdminStore`."""
        async with self._turn():
            return self._list_all(after, limit)

    async def list_expiring(self, query: ExpiryQuery) -> Sequence[ApiKey]:
        """See :class:`~msk_auth.AsyncExpiryStore`."""
        async with self._turn():
            return self._list_expiring(query)

    async def announce_expiry(
        self, key_id: str, *, days: int, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.AsyncExpiryStore`."""
        return await self._write(partial(self._announce_expiry, key_id, days=days), change)

    async def revoke(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.KeyStore`."""
        return await self._write(partial(self._revoke, key_id, owner_id=owner_id, at=at), change)

    async def delete(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.KeyStore`."""
        return await self._write(partial(self._delete, key_id, owner_id=owner_id, at=at), change)

    async def expire(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.KeyStore`."""
        return await self._write(partial(self._expire, key_id, owner_id=owner_id, at=at), change)

    async def rotate(
        self,
        key_id: str,
        *,
        successor: ApiKey,
        ends_at: datetime,
        max_active: int | None,
        now: datetime,
        change: KeyChange | None = None,
    ) -> ApiKey | None:
        """See :meth:`MemoryKeyStore.rotate`."""
        rotation = partial(
            self._rotate,
            key_id,
            successor=successor,
            ends_at=ends_at,
            max_active=max_active,
            now=now,
        )
        return await self._write(rotation, change)

    async def update(
        self, key_id: str, *, owner_id: str, fields: KeyUpdate, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.KeyStore`."""
        updating = partial(self._update, key_id, owner_id=owner_id, fields=fields)
        return await self._write(updating, change)

    async def touch(self, last_used: Mapping[str, datetime]) -> None:
        """See :class:`~msk_auth.KeyStore`."""
        async with self._turn():
            self._touch(last_used)

    async def replace_digest(self, key_id: str, *, old: str, new: str) -> None:
        """See :class:`~msk_auth.KeyStore`."""
        async with self._turn():
            self._replace_digest(key_id, old=old, new=new)

    async def record_activity(self, entries: Sequence[ActivityEntry]) -> None:
        """See :class:`~msk_auth.ActivityStore`."""
        async with self._turn():
            self._record_activity(entries)

    async def activity(self, key_id: str, *, since: date | None) -> KeyActivity:
        """See :class:`~msk_auth.ActivityStore`."""
        async with self._turn():
            return self._activity(key_id, since)

    async def delete_activity(self, *, before: date, limit: int) -> int:
        """See :class:`~msk_auth.ActivityStore`."""
        async with self._turn():
            return self._delete_activity(before, limit)

    async def recorded_leases(self) -> Collection[RecordedLease]:
        """See :class:`~msk_auth.LeaseRegister`."""
        return self._recorded_leases()

    async def record_lease(self, lease: RecordedLease) -> None:
        """See :class:`~msk_auth.LeaseRegister`."""
        self._record_lease(lease)

    async def forget_lease(self, lease: RecordedLease) -> None:
        """See :class:`~msk_auth.LeaseRegister`."""
        self._forget_lease(lease)

    async def _write(self, plan: Callable[[], _Planned], change: KeyChange | None) -> ApiKey | None:
        if self.on_change is not None:
            require_change(change)
        async with self._turn():
            record, changes = plan()
            if self.on_change is not None:
                for event in _events(record, changes, change):
                    await self.on_change(None, event)
            self._records.update(changes)
            return record

    @asynccontextmanager
    async def _turn(self) -> AsyncGenerator[None]:
        # A lock of asyncio would belong to one event loop, and the store serves several. Only a hook that waits keeps it
        # for longer than a few microseconds.
        lock = self._lock
        while not lock.acquire(blocking=False):
            await _pause()
        try:
            yield
        finally:
            lock.release()


async def _pause() -> None:
    import asyncio  # which a blocking application has no use for

    await asyncio.sleep(_PAUSE_SECONDS)


def _events(
    record: ApiKey | None, changes: Mapping[str, ApiKey], change: KeyChange | None
) -> Sequence[KeyEvent]:
    return () if record is None or change is None or not changes else change(record)


def _position_of_all(record: ApiKey) -> tuple[str, datetime, str]:
    return record.owner_id, record.created_at, record.id


def _position(record: ApiKey) -> tuple[datetime, str]:
    return record.created_at, record.id


def _is_listed(record: ApiKey, query: KeyQuery) -> bool:
    return (
        record.owner_id == query.owner_id
        and record.deleted_at is None
        and (query.status is None or record.status(query.now) is query.status)
        and (query.after is None or _position(record) < query.after)
        and (query.label is None or query.label in record.labels)
    )


def _expiring(record: ApiKey, at: datetime) -> ApiKey:
    if record.expires_at is not None and record.expires_at <= at:
        return record
    return replace(record, expires_at=at)
