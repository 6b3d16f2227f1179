"""Keys in the memory of one process: for tests, experiments, and as the model of what a store does.

Everything is gone when the process ends, and no other process sees any of it.
"""

from __future__ import annotations

import threading
from collections import ChainMap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from msk_auth._fork import after_fork_in_child
from msk_auth.core.errors import KeyLimitReached, KeyNotActive
from msk_auth.core.model import ApiKey, KeyQuery, KeyStatus, revoked
from msk_auth.core.store import RecordedLease

__all__ = ["AsyncMemoryKeyStore", "MemoryKeyStore"]


class MemoryKeyStore:
    """A :class:`~msk_auth.KeyStore` in a dictionary; safe to use from several threads."""

    def __init__(self) -> None:
        self._records: dict[str, ApiKey] = {}
        self._leases: dict[tuple[timedelta, str], RecordedLease] = {}
        self._renew()
        after_fork_in_child(self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def find(self, key_id: str) -> ApiKey | None:
        """See :class:`~msk_auth.KeyStore`."""
        return self._records.get(key_id)

    def insert(self, record: ApiKey, *, max_active: int | None, now: datetime) -> None:
        """See :class:`~msk_auth.KeyStore`.

        Raises:
            KeyLimitReached: The owner would have more active keys than allowed.
            ValueError: There is a key with this id.
        """
        with self._lock:
            self._add(record, max_active=max_active, now=now)

    def list(self, query: KeyQuery) -> Sequence[ApiKey]:
        """See :class:`~msk_auth.KeyStore`."""
        with self._lock:
            found = [record for record in self._records.values() if _is_listed(record, query)]
        return sorted(found, key=_position, reverse=True)[: query.limit]

    def revoke(self, key_id: str, *, owner_id: str, at: datetime) -> ApiKey | None:
        """See :class:`~msk_auth.KeyStore`."""
        return self._update(key_id, owner_id, lambda record: revoked(record, at=at))

    def delete(self, key_id: str, *, owner_id: str, at: datetime) -> ApiKey | None:
        """See :class:`~msk_auth.KeyStore`."""
        return self._update(
            key_id, owner_id, lambda record: replace(revoked(record, at=at), deleted_at=at)
        )

    def expire(self, key_id: str, *, owner_id: str, at: datetime) -> ApiKey | None:
        """See :class:`~msk_auth.KeyStore`."""
        return self._update(key_id, owner_id, lambda record: _expiring(record, at))

    def rotate(
        self,
        key_id: str,
        *,
        successor: ApiKey,
        ends_at: datetime,
        max_active: int | None,
        now: datetime,
    ) -> ApiKey | None:
        """See :class:`~msk_auth.KeyStore`.

        Raises:
            KeyNotActive: The predecessor is revoked, expired or already rotated.
            KeyLimitReached: The owner would have more active keys than allowed.
            ValueError: There is a key with the successor's id.
        """
        with self._lock:
            record = self._find_own(key_id, successor.owner_id)
            if record is None:
                return None
            if record.status(now) is not KeyStatus.ACTIVE or record.replaced_by is not None:
                raise KeyNotActive
            ended = revoked(record, at=now) if ends_at <= now else _expiring(record, ends_at)
            predecessor = replace(ended, replaced_by=successor.id)
            self._add(successor, max_active=max_active, now=now, predecessor=predecessor)
            return predecessor

    def touch(self, last_used: Mapping[str, datetime]) -> None:
        """See :class:`~msk_auth.KeyStore`."""
        with self._lock:
            for key_id, at in last_used.items():
                record = self._records.get(key_id)
                if record is not None and (record.last_used_at is None or record.last_used_at < at):
                    self._records[key_id] = replace(record, last_used_at=at)

    def replace_digest(self, key_id: str, *, old: str, new: str) -> None:
        """See :class:`~msk_auth.KeyStore`."""
        with self._lock:
            record = self._records.get(key_id)
            if record is not None and record.digest == old:
                self._records[key_id] = replace(record, digest=new)

    def recorded_leases(self) -> Collection[RecordedLease]:
        """See :class:`~msk_auth.LeaseRegister`."""
        with self._lock:
            return tuple(self._leases.values())

    def record_lease(self, lease: RecordedLease) -> None:
        """See :class:`~msk_auth.LeaseRegister`."""
        with self._lock:
            self._leases[lease.duration, lease.holder] = lease

    def forget_lease(self, lease: RecordedLease) -> None:
        """See :class:`~msk_auth.LeaseRegister`."""
        with self._lock:
            if self._leases.get((lease.duration, lease.holder)) == lease:
                del self._leases[lease.duration, lease.holder]

    def _find_own(self, key_id: str, owner_id: str) -> ApiKey | None:
        record = self._records.get(key_id)
        if record is None or record.owner_id != owner_id or record.deleted_at is not None:
            return None
        return record

    def _update(
        self, key_id: str, owner_id: str, change: Callable[[ApiKey], ApiKey]
    ) -> ApiKey | None:
        with self._lock:
            record = self._find_own(key_id, owner_id)
            if record is not None:
                self._records[key_id] = record = change(record)
            return record

    def _add(
        self,
        record: ApiKey,
        *,
        max_active: int | None,
        now: datetime,
        predecessor: ApiKey | None = None,
    ) -> None:
        """Both records or neither: what must not be is found out before anything is kept."""
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
        self._records.update(changes)


class AsyncMemoryKeyStore:
    """:class:`MemoryKeyStore` as an :class:`~msk_auth.AsyncKeyStore`."""

    def __init__(self) -> None:
        self._store = MemoryKeyStore()

    async def find(self, key_id: str) -> ApiKey | None:
        """See :class:`~msk_auth.KeyStore`."""
        return self._store.find(key_id)

    async def insert(self, record: ApiKey, *, max_active: int | None, now: datetime) -> None:
        """See :meth:`MemoryKeyStore.insert`."""
        self._store.insert(record, max_active=max_active, now=now)

    async def list(self, query: KeyQuery) -> Sequence[ApiKey]:
        """See :class:`~msk_auth.KeyStore`."""
        return self._store.list(query)

    async def revoke(self, key_id: str, *, owner_id: str, at: datetime) -> ApiKey | None:
        """See :class:`~msk_auth.KeyStore`."""
        return self._store.revoke(key_id, owner_id=owner_id, at=at)

    async def delete(self, key_id: str, *, owner_id: str, at: datetime) -> ApiKey | None:
        """See :class:`~msk_auth.KeyStore`."""
        return self._store.delete(key_id, owner_id=owner_id, at=at)

    async def expire(self, key_id: str, *, owner_id: str, at: datetime) -> ApiKey | None:
        """See :class:`~msk_auth.KeyStore`."""
        return self._store.expire(key_id, owner_id=owner_id, at=at)

    async def rotate(
        self,
        key_id: str,
        *,
        successor: ApiKey,
        ends_at: datetime,
        max_active: int | None,
        now: datetime,
    ) -> ApiKey | None:
        """See :meth:`MemoryKeyStore.rotate`."""
        return self._store.rotate(
            key_id, successor=successor, ends_at=ends_at, max_active=max_active, now=now
        )

    async def touch(self, last_used: Mapping[str, datetime]) -> None:
        """See :class:`~msk_auth.KeyStore`."""
        self._store.touch(last_used)

    async def replace_digest(self, key_id: str, *, old: str, new: str) -> None:
        """See :class:`~msk_auth.KeyStore`."""
        self._store.replace_digest(key_id, old=old, new=new)

    async def recorded_leases(self) -> Collection[RecordedLease]:
        """See :class:`~msk_auth.LeaseRegister`."""
        return self._store.recorded_leases()

    async def record_lease(self, lease: RecordedLease) -> None:
        """See :class:`~msk_auth.LeaseRegister`."""
        self._store.record_lease(lease)

    async def forget_lease(self, lease: RecordedLease) -> None:
        """See :class:`~msk_auth.LeaseRegister`."""
        self._store.forget_lease(lease)


def _position(record: ApiKey) -> tuple[datetime, str]:
    return record.created_at, record.id


def _is_listed(record: ApiKey, query: KeyQuery) -> bool:
    return (
        record.owner_id == query.owner_id
        and record.deleted_at is None
        and (query.status is None or record.status(query.now) is query.status)
        and (query.after is None or _position(record) < query.after)
    )


def _expiring(record: ApiKey, at: datetime) -> ApiKey:
    if record.expires_at is not None and record.expires_at <= at:
        return record
    return replace(record, expires_at=at)
