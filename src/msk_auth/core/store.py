"""The protocols of a store of API keys, blocking and asynchronous, with one meaning.

A store has to keep promises that no caller can check:

- **Revoking is monotonic.** Once `revoked_at` is set no method clears or moves it, and no method
  writes whole records back: every change is an update of the columns it is about.
- **A change that was acknowledged survives** the death of the process, and every `find` that starts
  after the change returned sees it, in any process.
- **The limit of active keys is exact** under any number of parallel inserts and rotations.

A store that cannot answer raises in bounded time, :data:`READ_SECONDS` for a look-up. The authenticator turns any error
into :class:`~msk_auth.StoreUnavailable`. `msk_auth.testing.StoreContract` tests all of this.

A store may take a hook of the application, `on_change(connection, event)`, and call it inside the transaction of each
write that changes a key: what the hook writes there commits with the change, or neither does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date, datetime, timedelta
from inspect import isawaitable, iscoroutine
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from .activity import ActivityEntry, KeyActivity
from .errors import ConfigurationError
from .events import KeyEvent
from .fields import KeyUpdate
from .model import ApiKey, ExpiryQuery, KeyQuery

READ_SECONDS: Final = 3.0
"""How long a look-up may take, including the wait for a connection, so that the client gets a 503 within five seconds.

Under a lease two more seconds may pass before the look-up: one to wait for another request with the same credential, and
one to record the lease.
"""

ACTIVITY_BATCH: Final = 500
"""How many entries of activity are written at once: no revocation waits long for one of them."""


def offered(store: object, name: str) -> Any:
    """An optional method of a store; None if the store lacks it or sets it to None.

    This reads the attribute and does not inspect the class, so that it also finds the methods behind a proxy (metrics,
    tracing) that forwards with `__getattr__`.
    """
    method = getattr(store, name, None)
    return method if callable(method) else None


KeyChange: TypeAlias = Callable[[ApiKey], Sequence[KeyEvent]]
"""What a write means: takes the record as the write leaves it, and makes the events for the store's `on_change`."""


def require_change(change: KeyChange | None) -> KeyChange:
    """What a store with an `on_change` calls first in each write: the change, which must be given.

    Raises:
        ConfigurationError: It is not; the write would be missing from the application's audit log.
    """
    if change is None:
        raise ConfigurationError(
            "This store has an on_change hook, and a write came without its event. Pass change=…,"
            " a function that takes the record and returns the events."
        )
    return change


C = TypeVar("C")


def call_on_change(
    on_change: Callable[[C, KeyEvent], object], connection: C, events: Sequence[KeyEvent]
) -> None:
    """Call the hook of a blocking store for each event, in order.

    Raises:
        ConfigurationError: The hook is async, and nothing would await it.
        Exception: Whatever the hook raised.
    """
    for event in events:
        answer = on_change(connection, event)
        if isawaitable(answer):
            if iscoroutine(answer):
                answer.close()
            raise ConfigurationError(
                "on_change is async, and this store blocks: pass a plain function, or use the async store."
            )


class KeyStore(Protocol):
    """A store for :class:`~msk_auth.Authenticator`, called from any thread.

    The methods that change a key take `change`. A store without an `on_change` ignores it.
    """

    def find(self, key_id: str) -> ApiKey | None:
        """The record with this id, deleted ones included, from the authoritative copy; None if there is none."""
        ...

    def insert(
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

    def list(self, query: KeyQuery) -> Sequence[ApiKey]:
        """At most `query.limit` records, ordered by `(created_at, id)`, newest first, beginning after `query.after`."""
        ...

    def revoke(
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

    def delete(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """Revoke as by :meth:`revoke`, and set `deleted_at`. Arguments and result are as there."""
        ...

    def expire(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """Set `expires_at` to `at` unless it is earlier, which is then no change.

        Arguments and result are as for :meth:`revoke`.
        """
        ...

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

    def update(
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

    def touch(self, last_used: Mapping[str, datetime]) -> None:
        """Move `last_used_at` of these keys forward, never back, and change no other column. Unknown ids are skipped."""
        ...

    def replace_digest(self, key_id: str, *, old: str, new: str) -> None:
        """Change the digest from `old` to `new`; do nothing if it is not `old` any more."""
        ...


class AdminStore(Protocol):
    """What a store adds so that administrators may list the keys of all owners (:class:`~msk_auth.AdminKeys`).

    A store without it works, and cannot be used with `AdminKeys`.
    """

    def list_all(self, *, after: tuple[str, datetime, str] | None, limit: int) -> Sequence[ApiKey]:
        """The keys of all owners that are not deleted, ordered by `(owner_id, created_at, id)`, the greatest first.

        Owners and ids are compared by their code points. The time must not grow with the number of keys.

        Args:
            after: Where the previous page ended: `(owner_id, created_at, id)` of its last record, which need not be there
                any more. None means from the start.
            limit: How many at most.
        """
        ...


class AsyncAdminStore(Protocol):
    """What a store adds so that administrators may list the keys of all owners (:class:`~msk_auth.AsyncAdminKeys`).

    A store without it works, and cannot be used with `AsyncAdminKeys`.
    """

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


class ActivityStore(Protocol):
    """What a store adds so that it is counted what keys do (`activity=` of :class:`~msk_auth.Authenticator`).

    A store without it works, and cannot be used with `activity`.
    """

    def record_activity(self, entries: Sequence[ActivityEntry]) -> None:
        """Add the counts of entries to those that are there, all of them or, if it raises, none.

        Several processes add at the same time, and no count is lost. The last request of a key is replaced by one that is not
        earlier. No other part of a key changes.

        Args:
            entries: At least one, each key and day at most once; up to :data:`ACTIVITY_BATCH`.
        """
        ...

    def activity(self, key_id: str, *, since: date | None) -> KeyActivity:
        """What a key did; nothing for an unknown id.

        Args:
            key_id: The key.
            since: The first day to read; None means all days. The last request is read whenever it was.
        """
        ...

    def delete_activity(self, *, before: date, limit: int) -> int:
        """Delete days before this one, and last requests before it began.

        Args:
            before: The first day that stays.
            limit: How many days of keys to delete at most, and how many last requests. The time must not grow with the number
                of those that stay.

        Returns:
            How many were deleted; zero if there is nothing left to delete.
        """
        ...


class AsyncActivityStore(Protocol):
    """What a store adds so that it is counted what keys do (`activity=` of :class:`~msk_auth.AsyncAuthenticator`).

    A store without it works, and cannot be used with `activity`.
    """

    async def record_activity(self, entries: Sequence[ActivityEntry]) -> None:
        """Add the counts of entries to those that are there, all of them or, if it raises, none.

        Several processes add at the same time, and no count is lost. The last request of a key is replaced by one that is not
        earlier. No other part of a key changes.

        Args:
            entries: At least one, each key and day at most once; up to :data:`ACTIVITY_BATCH`.
        """
        ...

    async def activity(self, key_id: str, *, since: date | None) -> KeyActivity:
        """What a key did; nothing for an unknown id.

        Args:
            key_id: The key.
            since: The first day to read; None means all days. The last request is read whenever it was.
        """
        ...

    async def delete_activity(self, *, before: date, limit: int) -> int:
        """Delete days before this one, and last requests before it began.

        Args:
            before: The first day that stays.
            limit: How many days of keys to delete at most, and how many last requests. The time must not grow with the number
                of those that stay.

        Returns:
            How many were deleted; zero if there is nothing left to delete.
        """
        ...


class ExpiryStore(Protocol):
    """What a store adds so that the end of keys can be announced (:class:`~msk_auth.KeyExpiry`).

    A store without it works, and cannot be used with `KeyExpiry`.
    """

    def list_expiring(self, query: ExpiryQuery) -> Sequence[ApiKey]:
        """At most `query.limit` records, ordered by `(expires_at, id)`, beginning after `query.after`.

        The time must not grow with the number of keys.
        """
        ...

    def announce_expiry(
        self, key_id: str, *, days: int, change: KeyChange | None = None
    ) -> ApiKey | None:
        """Set `announced_days`, unless it is that or less already, or the key is revoked or replaced: that is no change.

        Args:
            key_id: Of the key.
            days: The new value.
            change: As for :meth:`KeyStore.insert`.

        Returns:
            The record if this call changed it, else None: of several calls at once, only one announces the key.
        """
        ...


class AsyncExpiryStore(Protocol):
    """What a store adds so that the end of keys can be announced (:class:`~msk_auth.AsyncKeyExpiry`).

    A store without it works, and cannot be used with `AsyncKeyExpiry`.
    """

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
            change: As for :meth:`KeyStore.insert`.

        Returns:
            The record if this call changed it, else None: of several calls at once, only one announces the key.
        """
        ...


class RecordedLease(NamedTuple):
    """What the register holds of one process that uses leases.

    Attributes:
        duration: How long its leases are, in whole microseconds.
        holder: The process, by a random name of at most 32 letters and digits. No two use the same.
        mark: A number that the process changes regularly. If it stays the same, the process has ended.
    """

    duration: timedelta
    holder: str
    mark: int


class LeaseRegister(Protocol):
    """What a store adds so that processes may use leases (`msk_auth.leases.cache`).

    A store without it works, and cannot be used with a lease.
    """

    def recorded_leases(self) -> Collection[RecordedLease]:
        """All entries of the register, in any order, from the authoritative copy."""
        ...

    def record_lease(self, lease: RecordedLease) -> None:
        """Add an entry for a duration and a holder, or replace the mark of the existing one."""
        ...

    def forget_lease(self, lease: RecordedLease) -> None:
        """Remove an entry if its mark is still this one; do nothing otherwise."""
        ...


class AsyncLeaseRegister(Protocol):
    """What an asynchronous store adds so that processes may use leases (`msk_auth.leases.cache`).

    A store without it works, and cannot be used with a lease.
    """

    async def recorded_leases(self) -> Collection[RecordedLease]:
        """All entries of the register, in any order, from the authoritative copy."""
        ...

    async def record_lease(self, lease: RecordedLease) -> None:
        """Add an entry for a duration and a holder, or replace the mark of the existing one."""
        ...

    async def forget_lease(self, lease: RecordedLease) -> None:
        """Remove an entry if its mark is still this one; do nothing otherwise."""
        ...


class AsyncBatchStore(Protocol):
    """What a store adds so that look-ups that arrive together share one round trip (`msk_auth.batching`).

    A store without it works; each look-up is then a :meth:`AsyncKeyStore.find` of its own.
    """

    async def find_many(self, key_ids: Sequence[str]) -> Sequence[ApiKey]:
        """The records with these ids that exist, as :meth:`AsyncKeyStore.find` reads them, in any order.

        The read begins after the call: the result contains nothing that was read before.

        Args:
            key_ids: Each at most once; up to `msk_auth.batching.MAX_BATCH` of them.
        """
        ...


class AsyncKeyStore(Protocol):
    """A store for :class:`~msk_auth.AsyncAuthenticator`, awaited on an event loop.

    The methods that change a key take `change`. A store without an `on_change` ignores it.
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
