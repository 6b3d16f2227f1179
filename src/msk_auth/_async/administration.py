"""The keys of all owners: for administrators, and their ends for the application's scheduled jobs.

In classes beside the authenticators, so that nothing that a request reaches through an authenticator lists the keys of other
owners, and an application has these operations only if it asks for them.
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

from .authenticator import AsyncAuthenticator

EVERY_KEY: Final = KeyFilter()


class AsyncAdminKeys(Generic[UserT]):
    """Lists and revokes the keys of all owners. It makes no key, extends none, and shows no value.

    Args:
        authenticator: Whose keys.
        permission: What an administrator needs, besides an interactive login.
        max_age: The greatest age of that login; None means any.

    Attributes:
        authenticator: Whose keys.
        policy: What an administrator has to meet.

    Raises:
        ConfigurationError: The permission cannot be one.
    """

    def __init__(
        self,
        authenticator: AsyncAuthenticator[UserT],
        permission: str,
        *,
        max_age: timedelta | None = None,
    ) -> None:
        self._ports = authenticator.ports
        self.authenticator = authenticator
        self.policy: Policy = require_interactive(permission, max_age=max_age)

    async def list_keys(
        self,
        principal: Principal[UserT],
        wanted: KeyFilter = EVERY_KEY,
        *,
        cursor: str | None = None,
        limit: int = 50,
    ) -> KeyPage:
        """A page of the keys that match, by owner, and each owner's newest first.

        A page reads at most 10,000 records. Where few of them match it has fewer items than `limit`, possibly none, and a
        `next_cursor` all the same: go on until that is None.

        Args:
            principal: The administrator.
            wanted: Which keys; by default all that are not deleted.
            cursor: The `next_cursor` of the page before.
            limit: 1 to 200.

        Raises:
            InteractiveRequired, PermissionDenied, LoginTooOld: The principal is no administrator's login.
            InputInvalid: The filter, the cursor or the limit is not acceptable.
            StoreUnavailable: The store did not answer.
        """
        now = self._ports.now()
        self.policy.check(principal, now)
        administration.check_filter(wanted, limit)
        position = None if cursor is None else administration.decode(cursor)
        found: list[ApiKey] = []
        for _ in range(administration.MAX_READS):
            batch = await self._read(wanted, position, now)
            for record in batch:
                position = (record.owner_id, record.created_at, record.id)
                if wanted.matches(record, now):
                    found.append(record)
                    if len(found) == limit:
                        return KeyPage(tuple(found), administration.encode(position))
            if len(batch) < administration.BATCH:
                return KeyPage(tuple(found), None)
        return KeyPage(tuple(found), None if position is None else administration.encode(position))

    async def revoke_key(self, principal: Principal[UserT], key_id: str) -> ApiKey:
        """Revoke a key of any owner, for good. No verification that starts after this returned succeeds.

        Args:
            principal: The administrator.
            key_id: The id of the key.

        Raises:
            InteractiveRequired, PermissionDenied, LoginTooOld: The principal is no administrator's login.
            KeyNotFound: There is no such key, or it is deleted.
            StoreUnavailable: The store did not answer. The key may be revoked; try again.
        """
        (record,) = await self.revoke_keys(principal, [key_id])
        return present(record)

    async def revoke_keys(
        self, principal: Principal[UserT], key_ids: Sequence[str]
    ) -> tuple[ApiKey | None, ...]:
        """Revoke keys of any owners, for good. Safe to repeat; waits for leases once.

        No verification that starts after this returned succeeds.

        Args:
            principal: The administrator.
            key_ids: The ids of the keys, up to 200.

        Returns:
            For each id the revoked record, or None if there is no such key.

        Raises:
            InteractiveRequired, PermissionDenied, LoginTooOld: The principal is no administrator's login.
            InputInvalid: There is no id, or too many.
            StoreUnavailable: The store did not answer. Some keys may be revoked; try again.
        """
        now = self._ports.now()
        self.policy.check(principal, now)
        administration.check_ids(key_ids)
        held: dict[str, ApiKey] = {}
        for key_id in dict.fromkeys(key_ids):
            found = await self._ports.look_ups.find_key(key_id) if is_key_id(key_id) else None
            if found is not None:
                held[key_id] = found
        event = partial(KeyEvent, "revoked", now, principal=principal, cause="administrator")
        changed = await self._ports.revoke_all(
            list(held.values()), now, lambda after: (event(after),)
        )
        for record in changed:
            if record is not None:
                await self._ports.emit(event(record))
        # A deleted one counts as none, as for its owner. It is revoked.
        revoked = dict(zip(held, changed, strict=True))
        return tuple(revoked.get(key_id) for key_id in key_ids)

    async def _read(
        self, wanted: KeyFilter, after: administration.Position | None, now: datetime
    ) -> Sequence[ApiKey]:
        if wanted.owner_id is None:
            return await self._ports.store.list_all(after=after, limit=administration.BATCH)
        since = None if after is None else after[1:]
        query = KeyQuery(
            wanted.owner_id, now, wanted.status, since, administration.BATCH, wanted.label
        )
        return await self._ports.store.list(query)


class AsyncKeyExpiry(Generic[UserT]):
    """Lists the keys of all owners that end soon, and announces the end of each at 30, 7 and 1 days.

    It asks for no principal: it is for programs of the application, such as a scheduled job. Do not call it in a route;
    people list keys through :class:`AsyncAdminKeys`. It starts no thread, no task and no timer.

    Args:
        authenticator: Whose keys.
    """

    def __init__(self, authenticator: AsyncAuthenticator[UserT]) -> None:
        self._ports = authenticator.ports
        self._store = self._ports.store

    async def expiring(
        self, *, before: datetime, cursor: str | None = None, limit: int = administration.BATCH
    ) -> KeyPage:
        """A page of the active keys that end before a moment and are not replaced, the first to end first.

        Args:
            before: The moment, with its offset from UTC.
            cursor: The `next_cursor` of the page before.
            limit: 1 to 500.

        Raises:
            InputInvalid: An argument is not acceptable.
            StoreUnavailable: The store did not answer.
        """
        now = self._ports.now()
        administration.check_expiring(before, limit)
        after = None if cursor is None else PageCursor.decode(cursor)
        found: dict[str, ApiKey] = {}
        # From one stretch to the next, as a key moves that is announced meanwhile: it may be met twice, and is not missed.
        for announced in (None, *reversed(NOTICE_DAYS)):
            query = ExpiryQuery(now, before, announced, after, limit + 1)
            found.update((record.id, record) for record in await self._store.list_expiring(query))
        return administration.page_of_expiring(found.values(), limit)

    async def announce(self) -> int:
        """Send an event `expiring` for each key that ends within 30, 7 or 1 days and was not announced for that yet.

        A key is announced for the least that it has reached; revoked, replaced and expired ones are not, and a key that was
        made to last 30 days is first announced 7 days before its end. Call it regularly, such as every hour, in any number
        of processes: each event is sent once.

        The store's `on_change` gets the event in the transaction that notes it: exactly once. `on_event` gets it after the
        commit: not at all if the process dies between the two.

        Returns:
            How many events it sent.

        Raises:
            StoreUnavailable: The store did not answer, or `on_change` raised. What was sent before stays so; the next call
                sends the rest.
        """
        count = 0
        for days, stretch in administration.stretches(self._ports.now()):
            query = stretch
            while batch := await self._store.list_expiring(query):
                for record in batch:
                    count += await self._announce(record.id, days, query.now)
                query = replace(query, after=administration.position(batch[-1]))
        return count

    async def _announce(self, key_id: str, days: int, now: datetime) -> bool:
        event = partial(KeyEvent, "expiring", now)
        # Of several processes the one whose write changed the key announces it.
        noted = await self._store.announce_expiry(
            key_id, days=days, change=lambda after: (event(after),)
        )
        if noted is not None:
            await self._ports.emit(event(noted))
        return noted is not None
