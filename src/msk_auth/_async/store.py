"""The protocol of a store of API keys, and of what it may add. `core.store` has the promises that it keeps."""

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

    A store may also have `async def find_many(key_ids: Sequence[str]) -> Sequence[ApiKey]`: the records with these ids that
    exist, in any order, as :meth:`find` reads them. Look-ups that arrive together then share one round trip. Each id comes at
    most once, up to `msk_auth.batching.MAX_BATCH` of them; the read begins after the call.
    """

    async def find(self, key_id: str) -> ApiKey | None:
        """The record with this id, deleted ones included, from the authoritative copy; None if there is none."""
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
            record: Its id must be new.
            max_active: How many active keys the owner may have afterwards; None means any number.
            now: The moment at which "active" is judged.
            change: Makes the events for `on_change`, from the record as the write leaves it. The store calls it, and
                `on_change` for each of its events in order, before the commit, if the write has changed something.
                A write that changes nothing calls neither.

        Raises:
            KeyLimitReached: The owner would have more; nothing was written.
            Exception: What `on_change` raised; nothing was written.
        """
        ...

    async def list(self, query: KeyQuery) -> Sequence[ApiKey]:
        """At most `query.limit` records, ordered by `(created_at, id)`, newest first, beginning after `query.after`."""
        ...

    async def revoke(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """Set `revoked_at` to `at` unless it is set already, which is then no change.

        Args:
            key_id: Of the key.
            owner_id: Of its owner.
            at: The moment of revocation.
            change: As for :meth:`insert`.

        Returns:
            The record as it is now, or None if the owner has no such key (a deleted one counts as
            none).
        """
        ...

    async def delete(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """Revoke as by :meth:`revoke`, and set `deleted_at`. Arguments and result are as there."""
        ...

    async def expire(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """Set `expires_at` to `at` unless it is earlier, which is then no change.

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
            ends_at: When the predecessor stops working.
            max_active: As for :meth:`insert`, a predecessor that lives on counted in.
            now: The moment at which "active" is judged.
            change: As for :meth:`insert`, from the predecessor as the rotation leaves it.

        Returns:
            The predecessor as it is now, or None if the owner has no such key.

        Raises:
            KeyNotActive: The predecessor is revoked, expired or already rotated; nothing was
                written.
            KeyLimitReached: The owner would have more; nothing was written.
        """
        ...

    async def update(
        self, key_id: str, *, owner_id: str, fields: KeyUpdate, change: KeyChange | None = None
    ) -> ApiKey | None:
        """Set these fields of a key of any state, and no other column.

        If all of them have these values already, it is no change. Arguments and result are as for :meth:`revoke`.

        Args:
            key_id: Of the key.
            owner_id: Of its owner.
            fields: The new values, at least one.
            change: As for :meth:`insert`.
        """
        ...

    async def touch(self, last_used: Mapping[str, datetime]) -> None:
        """Move `last_used_at` of these keys forward, never back, and change no other column. Unknown ids are skipped."""
        ...

    async def replace_digest(self, key_id: str, *, old: str, new: str) -> None:
        """Change the digest from `old` to `new`; do nothing if it is not `old` any more."""
        ...

    async def list_all(
        self, *, after: tuple[str, datetime, str] | None, limit: int
    ) -> Sequence[ApiKey]:
        """The keys of all owners that are not deleted, ordered by `(owner_id, created_at, id)`, the greatest first.

        Owners and ids are compared by their code points. The time must not grow with the number of keys.

        Args:
            after: Where the previous page ended: `(owner_id, created_at, id)` of its last record, which need not be there
                any more. None means from the start.
            limit: How many at most.
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
        """Set `announced_days`, unless it is that or less already, or the key is revoked or replaced: that is no change.

        Args:
            key_id: Of the key.
            days: The new value.
            change: As for :meth:`insert`.

        Returns:
            The record if this call changed it, else None: of several calls at once, only one announces the key.
        """
        ...

    async def recorded_leases(self) -> Collection[RecordedLease]:
        """All entries of the register of leases, in any order, from the authoritative copy."""
        ...

    async def record_lease(self, lease: RecordedLease) -> None:
        """Add an entry for a duration and a holder, or replace the mark of the existing one."""
        ...

    async def forget_lease(self, lease: RecordedLease) -> None:
        """Remove an entry if its mark is still this one; do nothing otherwise."""
        ...
