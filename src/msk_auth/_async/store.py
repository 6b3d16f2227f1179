"""The protocol of a store of API keys, with its optional methods. `core.store` has the promises of a store."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from msk_auth.core.fields import KeyUpdate
from msk_auth.core.model import ApiKey, ExpiryQuery, KeyQuery
from msk_auth.core.store import KeyChange, RecordedLease


class AsyncKeyStore(Protocol):
    """A store for :class:`~msk_auth.AsyncAuthenticator`, awaited on an event loop.

    The methods that change a key take `change`. A store without an `on_change` ignores it.

    A store may also have `async def find_many(key_ids: Sequence[str]) -> Sequence[ApiKey]`: the existing records with these
    ids, in any order, as from :meth:`find`. Concurrent look-ups then share a round trip. The ids are unique, up to
    `msk_auth.batching.MAX_BATCH` of them; the read must begin after the call.
    """

    async def find(self, key_id: str) -> ApiKey | None:
        """The record with this id, even if deleted, from the primary copy; None if it does not exist."""
        ...

    async def insert(
        self,
        record: ApiKey,
        *,
        max_active: int | None,
        now: datetime,
        change: KeyChange | None = None,
    ) -> None:
        """Add a record.

        Args:
            record: The record, with a new id.
            max_active: The number of active keys that the owner may have afterwards; None means any number.
            now: The time at which "active" is computed.
            change: Makes the events for `on_change`, from the record after the write. If the write has changed something, the
                store calls `change`, and then `on_change` for each of the events in order, before the commit.

        Raises:
            KeyLimitReached: The owner would have more active keys; nothing was written.
            Exception: The exception of `on_change`; nothing was written.
        """
        ...

    async def list(self, query: KeyQuery) -> Sequence[ApiKey]:
        """At most `query.limit` records, ordered by `(created_at, id)`, newest first, beginning after `query.after`."""
        ...

    async def revoke(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """Set `revoked_at` to `at`, unless it is already set: then nothing changes.

        Args:
            key_id: The id of the key.
            owner_id: The id of its owner.
            at: The time of the revocation.
            change: As for :meth:`insert`.

        Returns:
            The record after the write, or None if the owner has no such key, or the key is deleted.
        """
        ...

    async def delete(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """Revoke the key and set `deleted_at`. Arguments and result are as for :meth:`revoke`."""
        ...

    async def expire(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """Set `expires_at` to `at`, unless it is earlier: then nothing changes.

        Arguments and result are as for :meth:`revoke`.
        """
        ...

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
        """Insert `successor` and retire its predecessor, together or not at all.

        The predecessor gets `replaced_by`, and either `revoked_at = now` (if `ends_at <= now`) or
        an `expires_at` of `ends_at` at the latest.

        Args:
            key_id: The predecessor; its owner is `successor.owner_id`.
            successor: The new record.
            ends_at: The time when the predecessor stops working.
            max_active: As for :meth:`insert`, including a predecessor that is still active.
            now: The time at which "active" is computed.
            change: As for :meth:`insert`, from the predecessor after the rotation.

        Returns:
            The predecessor after the write, or None if the owner has no such key.

        Raises:
            KeyNotActive: The predecessor is revoked, expired or already rotated; nothing was
                written.
            KeyLimitReached: The owner would have more active keys; nothing was written.
        """
        ...

    async def update(
        self, key_id: str, *, owner_id: str, fields: KeyUpdate, change: KeyChange | None = None
    ) -> ApiKey | None:
        """Set these fields of a key in any state, and no other column.

        If all of them already have these values, nothing changes. Arguments and result are as for :meth:`revoke`.

        Args:
            key_id: The id of the key.
            owner_id: The id of its owner.
            fields: The new values, at least one.
            change: As for :meth:`insert`.
        """
        ...

    async def touch(self, last_used: Mapping[str, datetime]) -> None:
        """Move `last_used_at` of these keys forward, never back, and change no other column. Unknown ids are skipped."""
        ...

    async def replace_digest(self, key_id: str, *, old: str, new: str) -> None:
        """Change the digest from `old` to `new`; do nothing if it is no longer `old`."""
        ...

    async def list_all(
        self, *, after: tuple[str, datetime, str] | None, limit: int
    ) -> Sequence[ApiKey]:
        """The keys of all owners that are not deleted, ordered by `(owner_id, created_at, id)`, the greatest first.

        Owners and ids are compared by code points. The time must not grow with the number of keys.

        Args:
            after: The end of the previous page: `(owner_id, created_at, id)` of its last record, which may have been deleted.
                None means from the start.
            limit: The maximum number of records.
        """
        ...

    async def list_expiring(self, query: ExpiryQuery) -> Sequence[ApiKey]:
        """At most `query.limit` records, ordered by `(expires_at, id)`, beginning after `query.after`.

        The time must not grow with the number of keys.
        """
        ...

    async def announce_expiry(
        self, key_id: str, *, days: int, change: KeyChange | None = None
    ) -> ApiKey | None:
        """Set `announced_days`, unless it is already equal or less, or the key is revoked or replaced: then nothing changes.

        Args:
            key_id: The id of the key.
            days: The new value.
            change: As for :meth:`insert`.

        Returns:
            The record if this call changed it, otherwise None: of several concurrent calls, only one announces the key.
        """
        ...

    async def recorded_leases(self) -> Collection[RecordedLease]:
        """All entries of the register of leases, in any order, from the primary copy."""
        ...

    async def record_lease(self, lease: RecordedLease) -> None:
        """Add an entry for a duration and a holder, or replace the mark of the existing one."""
        ...

    async def forget_lease(self, lease: RecordedLease) -> None:
        """Remove an entry if its mark is still this one; do nothing otherwise."""
        ...
