# Generated from src/msk_auth/_async/administration.py by tools/generate_sync.py: change that, and run this.
"""The keys of all owners: for administrators, and their expiry for the application's scheduled jobs.

These classes are separate from the authenticators, so that no method of an authenticator lists the keys of other
owners, and an application has these operations only if it creates the classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final, Generic

from msk_auth.core import administration
from msk_auth.core.events import KeyEvent
from msk_auth.core.key_management import NOTICE_DAYS, PageCursor, is_key_id, present
from msk_auth.core.model import ApiKey, ExpiryQuery, KeyFilter, KeyPage, KeyQuery, Principal, UserT
from msk_auth.core.policy import Policy, require_interactive

from .authenticator import Authenticator

EVERY_KEY: Final = KeyFilter()


class AdminKeys(Generic[UserT]):
    """Lists and revokes the keys of all owners. Cannot create or extend keys, or show their values.

    Args:
        authenticator: The authenticator of these keys.
        permission: The permission of administrators, who also need an interactive login.
        max_age: The greatest age of that login; None means any.

    Attributes:
        authenticator: The authenticator of these keys.
        policy: The policy for administrators.

    Raises:
        ConfigurationError: The permission is malformed.
    """

    def __init__(
        self,
        authenticator: Authenticator[UserT],
        permission: str,
        *,
        max_age: timedelta | None = None,
    ) -> None:
        self._ports = authenticator.ports
        self.authenticator = authenticator
        self.policy: Policy = require_interactive(permission, max_age=max_age)

    def list_keys(
        self,
        principal: Principal[UserT],
        wanted: KeyFilter = EVERY_KEY,
        *,
        cursor: str | None = None,
        limit: int = 50,
    ) -> KeyPage:
        """A page of the matching keys, sorted by owner, each owner's newest key first.

        A page reads at most 10,000 records. If few of them match, it has fewer items than `limit`, even none, and still a
        `next_cursor`: continue until this is None.

        Args:
            principal: The administrator.
            wanted: The filter; by default all keys that are not deleted.
            cursor: The `next_cursor` of the previous page.
            limit: 1 to 200.

        Raises:
            InteractiveRequired, PermissionDenied, LoginTooOld: The principal is not an administrator's login.
            InputInvalid: The filter, the cursor or the limit is invalid.
            StoreUnavailable: The store did not answer.
        """
        now = self._ports.now()
        self.policy.check(principal, now)
        administration.check_filter(wanted, limit)
        position = None if cursor is None else administration.decode(cursor)
        found: list[ApiKey] = []
        for _ in range(administration.MAX_READS):
            batch = self._read(wanted, position, now)
            for record in batch:
                position = (record.owner_id, record.created_at, record.id)
                if wanted.matches(record, now):
                    found.append(record)
                    if len(found) == limit:
                        return KeyPage(tuple(found), administration.encode(position))
            if len(batch) < administration.BATCH:
                return KeyPage(tuple(found), None)
        return KeyPage(tuple(found), None if position is None else administration.encode(position))

    def revoke_key(self, principal: Principal[UserT], key_id: str) -> ApiKey:
        """Revoke a key of any owner, for good. No verification that starts after this returned succeeds.

        Args:
            principal: The administrator.
            key_id: The id of the key.

        Raises:
            InteractiveRequired, PermissionDenied, LoginTooOld: The principal is not an administrator's login.
            KeyNotFound: The key does not exist, or is deleted.
            StoreUnavailable: The store did not answer. The key may be revoked; try again.
        """
        (record,) = self.revoke_keys(principal, [key_id])
        return present(record)

    def revoke_keys(
        self, principal: Principal[UserT], key_ids: Sequence[str]
    ) -> tuple[ApiKey | None, ...]:
        """Revoke keys of any owners, for good. Safe to repeat; waits for leases once.

        No verification that starts after this returned succeeds.

        Args:
            principal: The administrator.
            key_ids: The ids of the keys, up to 200.

        Returns:
            For each id the revoked record, or None if no key has it.

        Raises:
            InteractiveRequired, PermissionDenied, LoginTooOld: The principal is not an administrator's login.
            InputInvalid: There is no id, or there are too many.
            StoreUnavailable: The store did not answer. Some keys may be revoked; try again.
        """
        now = self._ports.now()
        self.policy.check(principal, now)
        administration.check_ids(key_ids)
        held: dict[str, ApiKey] = {}
        for key_id in dict.fromkeys(key_ids):
            found = self._ports.look_ups.find_key(key_id) if is_key_id(key_id) else None
            if found is not None:
                held[key_id] = found
        event = partial(KeyEvent, "revoked", now, principal=principal, cause="administrator")
        changed = self._ports.revoke_all(list(held.values()), now, lambda after: (event(after),))
        for record in changed:
            if record is not None:
                self._ports.emit(event(record))
        # A deleted key is revoked already, and counts as unknown, as for its owner.
        revoked = dict(zip(held, changed, strict=True))
        return tuple(revoked.get(key_id) for key_id in key_ids)

    def _read(
        self, wanted: KeyFilter, after: administration.Position | None, now: datetime
    ) -> Sequence[ApiKey]:
        if wanted.owner_id is None:
            return self._ports.store.list_all(after=after, limit=administration.BATCH)
        since = None if after is None else after[1:]
        query = KeyQuery(
            wanted.owner_id, now, wanted.status, since, administration.BATCH, wanted.label
        )
        return self._ports.store.list(query)


class KeyExpiry(Generic[UserT]):
    """Lists the keys of all owners that expire soon, and announces their end at 30, 7 and 1 days.

    Its methods take no principal: they are for programs of the application, such as a scheduled job. Do not call them in a
    route; people list keys through :class:`AdminKeys`. The class starts no thread, no task and no timer.

    Args:
        authenticator: The authenticator of these keys.
    """

    def __init__(self, authenticator: Authenticator[UserT]) -> None:
        self._ports = authenticator.ports
        self._store = self._ports.store

    def expiring(
        self, *, before: datetime, cursor: str | None = None, limit: int = administration.BATCH
    ) -> KeyPage:
        """A page of active, unreplaced keys that end before a given time, sorted by expiry.

        Args:
            before: The time, with its offset from UTC.
            cursor: The `next_cursor` of the previous page.
            limit: 1 to 500.

        Raises:
            InputInvalid: An argument is invalid.
            StoreUnavailable: The store did not answer.
        """
        now = self._ports.now()
        administration.check_expiring(before, limit)
        after = None if cursor is None else PageCursor.decode(cursor)
        found: dict[str, ApiKey] = {}
        # In the order in which announced keys move between stretches: a key may be met twice, but is not missed.
        for announced in (None, *reversed(NOTICE_DAYS)):
            query = ExpiryQuery(now, before, announced, after, limit + 1)
            found.update((record.id, record) for record in self._store.list_expiring(query))
        return administration.page_of_expiring(found.values(), limit)

    def announce(self) -> int:
        """Send an event `expiring` for each key that ends within 30, 7 or 1 days, once for each of these.

        A key is announced for the least of these that it has reached. Revoked, replaced and expired keys are not announced,
        and a key with a lifetime of 30 days is first announced 7 days before its end. Call this regularly, such as every hour,
        in any number of processes: each event is sent once.

        The store's `on_change` gets the event in the transaction that records it: exactly once. `on_event` gets it after the
        commit: not at all if the process dies between the two.

        Returns:
            The number of events sent.

        Raises:
            StoreUnavailable: The store did not answer, or `on_change` raised. Events that were sent stay recorded; the next
                call sends the rest.
        """
        count = 0
        for days, stretch in administration.stretches(self._ports.now()):
            query = stretch
            while batch := self._store.list_expiring(query):
                for record in batch:
                    count += self._announce(record.id, days, query.now)
                query = replace(query, after=administration.position(batch[-1]))
        return count

    def _announce(self, key_id: str, days: int, now: datetime) -> bool:
        event = partial(KeyEvent, "expiring", now)
        # Of several processes, only the one whose write changed the key announces it.
        noted = self._store.announce_expiry(key_id, days=days, change=lambda after: (event(after),))
        if noted is not None:
            self._ports.emit(event(noted))
        return noted is not None
