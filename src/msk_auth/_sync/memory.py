# Generated from src/msk_auth/_async/memory.py by tools/generate_sync.py: change that, and run this.
"""Keys in the memory of one process: for tests, experiments, and as a model of a store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from msk_auth._fork import after_fork_in_child
from msk_auth.core.errors import KeyLimitReached, KeyNotActive
from msk_auth.core.events import KeyEvent
from msk_auth.core.fields import KeyUpdate
from msk_auth.core.model import ApiKey, ExpiryQuery, KeyQuery, KeyStatus, is_same_id, revoked
from msk_auth.core.store import KeyChange, RecordedLease, require_change

from . import primitives


class MemoryKeyStore:
    """An :class:`~msk_auth.stores.KeyStore` in a dictionary; thread-safe.

    Args:
        on_change: Called inside each write that changes a key, with None in place of a connection, and the event.
            An exception undoes the write. The hook must not use the store, which waits for it.
    """

    def __init__(self, *, on_change: Callable[[None, KeyEvent], None] | None = None) -> None:
        self.on_change: Final = on_change
        self._records: dict[str, ApiKey] = {}
        self._leases: dict[tuple[timedelta, str], RecordedLease] = {}
        self._renew()
        after_fork_in_child(self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        # A separate lock: a hook that waits must not keep verifications from the register.
        self._lease_lock = threading.Lock()

    def find(self, key_id: str) -> ApiKey | None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        return self._records.get(key_id)

    def insert(
        self,
        record: ApiKey,
        *,
        max_active: int | None,
        now: datetime,
        change: KeyChange | None = None,
    ) -> None:
        """See :class:`~msk_auth.stores.KeyStore`.

        Raises:
            KeyLimitReached: The owner would have more active keys than allowed.
            ValueError: A key with this id exists.
        """
        self._write(lambda: self._within_limit([record], max_active, now), change)

    def list(self, query: KeyQuery) -> Sequence[ApiKey]:
        """See :class:`~msk_auth.stores.KeyStore`."""
        found = [record for record in self._snapshot() if _is_listed(record, query)]
        return sorted(found, key=_position, reverse=True)[: query.limit]

    def list_all(self, *, after: tuple[str, datetime, str] | None, limit: int) -> Sequence[ApiKey]:
        """See :class:`~msk_auth.stores.KeyStore`."""
        found = [
            record
            for record in self._snapshot()
            if record.deleted_at is None and (after is None or _position_of_all(record) < after)
        ]
        return sorted(found, key=_position_of_all, reverse=True)[:limit]

    def list_expiring(self, query: ExpiryQuery) -> Sequence[ApiKey]:
        """See :class:`~msk_auth.stores.KeyStore`."""
        found = [
            (record.expires_at, record.id, record)
            for record in self._snapshot()
            if record.expires_at is not None
            and query.now < record.expires_at < query.before
            and record.revoked_at is None
            and record.replaced_by is None
            and record.announced_days == query.announced_days
            and (query.after is None or (record.expires_at, record.id) > query.after)
        ]
        return [record for _, _, record in sorted(found)[: query.limit]]

    def announce_expiry(
        self, key_id: str, *, days: int, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.stores.KeyStore`."""

        def announced() -> Sequence[ApiKey]:
            before = self._records.get(key_id)
            if before is None or before.revoked_at is not None or before.replaced_by is not None:
                return []
            if before.announced_days is not None and before.announced_days <= days:
                return []
            return [replace(before, announced_days=days)]

        return self._write(announced, change)

    def revoke(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        return self._replace(key_id, owner_id, lambda record: revoked(record, at=at), change)

    def delete(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.stores.KeyStore`."""

        def deleted(record: ApiKey) -> ApiKey:
            return replace(revoked(record, at=at), deleted_at=at)

        return self._replace(key_id, owner_id, deleted, change)

    def expire(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        return self._replace(key_id, owner_id, lambda record: _expiring(record, at), change)

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
        """See :class:`~msk_auth.stores.KeyStore`.

        Raises:
            KeyNotActive: The predecessor is revoked, expired or already rotated.
            KeyLimitReached: The owner would have more active keys than allowed.
            ValueError: A key with the successor's id exists.
        """

        def rotated() -> Sequence[ApiKey]:
            record = self._find_own(key_id, successor.owner_id)
            if record is None:
                return []
            if record.status(now) is not KeyStatus.ACTIVE or record.replaced_by is not None:
                raise KeyNotActive
            ended = revoked(record, at=now) if ends_at <= now else _expiring(record, ends_at)
            predecessor = replace(ended, replaced_by=successor.id)
            return self._within_limit([predecessor, successor], max_active, now)

        return self._write(rotated, change)

    def update(
        self, key_id: str, *, owner_id: str, fields: KeyUpdate, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        return self._replace(key_id, owner_id, lambda record: replace(record, **fields), change)

    def touch(self, last_used: Mapping[str, datetime]) -> None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        with primitives.holding(self._lock):
            for key_id, at in last_used.items():
                record = self._records.get(key_id)
                if record is not None and (record.last_used_at is None or record.last_used_at < at):
                    self._records[key_id] = replace(record, last_used_at=at)

    def replace_digest(self, key_id: str, *, old: str, new: str) -> None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        with primitives.holding(self._lock):
            record = self._records.get(key_id)
            if record is not None and record.digest == old:
                self._records[key_id] = replace(record, digest=new)

    def recorded_leases(self) -> Collection[RecordedLease]:
        """See :class:`~msk_auth.stores.KeyStore`."""
        with self._lease_lock:
            return tuple(self._leases.values())

    def record_lease(self, lease: RecordedLease) -> None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        with self._lease_lock:
            self._leases[lease.duration, lease.holder] = lease

    def forget_lease(self, lease: RecordedLease) -> None:
        """See :class:`~msk_auth.stores.KeyStore`."""
        with self._lease_lock:
            if self._leases.get((lease.duration, lease.holder)) == lease:
                del self._leases[lease.duration, lease.holder]

    def _replace(
        self,
        key_id: str,
        owner_id: str,
        changed: Callable[[ApiKey], ApiKey],
        change: KeyChange | None,
    ) -> ApiKey | None:
        def replaced() -> Sequence[ApiKey]:
            record = self._find_own(key_id, owner_id)
            return [] if record is None else [changed(record)]

        return self._write(replaced, change)

    def _write(
        self, work: Callable[[], Sequence[ApiKey]], change: KeyChange | None
    ) -> ApiKey | None:
        """Store the records that `work` returns, unless the hook raises, and return the first, which the change is about."""
        if self.on_change is not None:
            require_change(change)
        with primitives.holding(self._lock):
            written = work()
            changes = {each.id: each for each in written if each != self._records.get(each.id)}
            if self.on_change is not None and change is not None and changes:
                primitives.call_on_change(self.on_change, change(written[0]))
            self._records.update(changes)
        return written[0] if written else None

    def _snapshot(self) -> Collection[ApiKey]:
        # Threads that write meanwhile do not disturb a copy, which is made in one step.
        return self._records.copy().values()

    def _find_own(self, key_id: str, owner_id: str) -> ApiKey | None:
        record = self._records.get(key_id)
        if record is None or record.deleted_at is not None:
            return None
        return record if is_same_id(record.owner_id, owner_id) else None

    def _within_limit(
        self, written: Sequence[ApiKey], max_active: int | None, now: datetime
    ) -> Sequence[ApiKey]:
        """These records, of which the last is new, if its owner may then have so many active keys."""
        added = written[-1]
        if added.id in self._records:
            raise ValueError("a key with this id already exists")
        if max_active is not None:
            after = self._records | {each.id: each for each in written}
            active = sum(
                is_same_id(each.owner_id, added.owner_id) and each.status(now) is KeyStatus.ACTIVE
                for each in after.values()
            )
            if active > max_active:
                raise KeyLimitReached(max_active)
        return written


def _position_of_all(record: ApiKey) -> tuple[str, datetime, str]:
    return record.owner_id, record.created_at, record.id


def _position(record: ApiKey) -> tuple[datetime, str]:
    return record.created_at, record.id


def _is_listed(record: ApiKey, query: KeyQuery) -> bool:
    return (
        is_same_id(record.owner_id, query.owner_id)
        and record.deleted_at is None
        and (query.status is None or record.status(query.now) is query.status)
        and (query.after is None or _position(record) < query.after)
        and (query.label is None or query.label in record.labels)
    )


def _expiring(record: ApiKey, at: datetime) -> ApiKey:
    if record.expires_at is not None and record.expires_at <= at:
        return record
    return replace(record, expires_at=at)
