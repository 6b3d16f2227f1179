"""What a store is, in the fewest words: a list of records, looked through from end to end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from msk_auth import ApiKey
from msk_auth.errors import KeyLimitReached, KeyNotActive
from msk_auth.stores import ExpiryQuery, KeyQuery, RecordedLease


class Model:
    def __init__(self) -> None:
        self.records: list[ApiKey] = []
        self.leases: set[RecordedLease] = set()

    def find(self, key_id: str) -> ApiKey | None:
        return next((record for record in self.records if record.id == key_id), None)

    def insert(self, record: ApiKey, *, max_active: int | None, now: datetime) -> None:
        after = [*self.records, record]
        active = [r for r in after if r.owner_id == record.owner_id and is_active(r, now)]
        if max_active is not None and len(active) > max_active:
            raise KeyLimitReached(max_active)
        self.records = after

    def list(self, query: KeyQuery) -> Sequence[ApiKey]:
        own = [r for r in self.records if r.owner_id == query.owner_id and not r.deleted_at]
        if query.status is not None:
            own = [r for r in own if r.status(query.now) is query.status]
        if query.label is not None:
            own = [r for r in own if query.label in r.labels]
        own.sort(key=lambda r: (r.created_at, r.id), reverse=True)
        if query.after is not None:
            own = [r for r in own if (r.created_at, r.id) < query.after]
        return own[: query.limit]

    def revoke(self, key_id: str, *, owner_id: str, at: datetime) -> ApiKey | None:
        own = self._own(key_id, owner_id)
        return own and self._put(replace(own, revoked_at=own.revoked_at or at))

    def delete(self, key_id: str, *, owner_id: str, at: datetime) -> ApiKey | None:
        own = self._own(key_id, owner_id)
        return own and self._put(replace(own, revoked_at=own.revoked_at or at, deleted_at=at))

    def expire(self, key_id: str, *, owner_id: str, at: datetime) -> ApiKey | None:
        own = self._own(key_id, owner_id)
        return own and self._put(replace(own, expires_at=min(own.expires_at or at, at)))

    def rotate(
        self,
        key_id: str,
        *,
        successor: ApiKey,
        ends_at: datetime,
        max_active: int | None,
        now: datetime,
    ) -> ApiKey | None:
        own = self._own(key_id, successor.owner_id)
        if own is None:
            return None
        if not is_active(own, now) or own.replaced_by is not None:
            raise KeyNotActive
        before = self.records
        ended = replace(own, replaced_by=successor.id)
        if ends_at <= now:
            ended = replace(ended, revoked_at=now)
        else:
            ended = replace(ended, expires_at=min(own.expires_at or ends_at, ends_at))
        self._put(ended)
        try:
            self.insert(successor, max_active=max_active, now=now)
        except KeyLimitReached:
            self.records = before
            raise
        return ended

    def update(self, key_id: str, *, owner_id: str, fields: Mapping[str, Any]) -> ApiKey | None:
        own = self._own(key_id, owner_id)
        return own and self._put(replace(own, **fields))

    def list_expiring(self, query: ExpiryQuery) -> Sequence[ApiKey]:
        found = [
            (r.expires_at, r.id)
            for r in self.records
            if r.expires_at is not None
            and query.now < r.expires_at < query.before
            and (r.revoked_at, r.replaced_by) == (None, None)
            and r.announced_days == query.announced_days
        ]
        later = sorted(place for place in found if query.after is None or place > query.after)
        return [r for _, key_id in later[: query.limit] if (r := self.find(key_id))]

    def announce_expiry(self, key_id: str, *, days: int) -> ApiKey | None:
        record = self.find(key_id)
        if record is None or record.revoked_at or record.replaced_by:
            return None
        return (
            self._put(replace(record, announced_days=days))
            if days < (record.announced_days or 99)
            else None
        )

    def touch(self, last_used: Mapping[str, datetime]) -> None:
        for key_id, at in last_used.items():
            record = self.find(key_id)
            if record is not None:
                self._put(replace(record, last_used_at=max(record.last_used_at or at, at)))

    def replace_digest(self, key_id: str, *, old: str, new: str) -> None:
        record = self.find(key_id)
        if record is not None and record.digest == old:
            self._put(replace(record, digest=new))

    def record_lease(self, lease: RecordedLease) -> None:
        same = lease[:2]
        self.leases = {other for other in self.leases if other[:2] != same} | {lease}

    def forget_lease(self, lease: RecordedLease) -> None:
        self.leases -= {lease}

    def _own(self, key_id: str, owner_id: str) -> ApiKey | None:
        found = self.find(key_id)
        return found if found and found.owner_id == owner_id and not found.deleted_at else None

    def _put(self, changed: ApiKey) -> ApiKey:
        self.records = [changed if r.id == changed.id else r for r in self.records]
        return changed


def is_active(record: ApiKey, now: datetime) -> bool:
    return record.revoked_at is None and (record.expires_at is None or now < record.expires_at)
