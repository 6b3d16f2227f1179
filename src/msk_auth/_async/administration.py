"""The keys of all owners: for administrators, and their expiry for the application's scheduled jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final, Generic

from msk_auth.core import administration
from msk_auth.core.events import KeyEvent
from msk_auth.core.key_management import is_key_id, present
from msk_auth.core.model import ApiKey, KeyFilter, KeyPage, KeyQuery, Principal, UserT
from msk_auth.core.policy import Policy

from .ports import AsyncPorts

EVERY_KEY: Final = KeyFilter()


class AsyncAdminKeys(Generic[UserT]):
    """Lists and revokes the keys of all owners. Cannot create or extend keys, or show their values.

    Made by :meth:`AsyncAuthenticator.admin_keys`.

    Attributes:
        policy: The policy for administrators.
    """

    def __init__(self, ports: AsyncPorts[UserT], policy: Policy) -> None:
        self._ports = ports
        self.policy = policy

    async def list_keys(
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
            InteractiveRequired, PermissionDenied, LoginTooOld: The principal is not an administrator's login.
            KeyNotFound: The key does not exist, or is deleted.
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
        # A deleted key is revoked already, and counts as unknown, as for its owner.
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


async def announce_expiry(ports: AsyncPorts[Any]) -> int:
    """See :meth:`AsyncAuthenticator.announce_expiry`."""
    now, count = ports.now(), 0
    event = partial(KeyEvent, "expiring", now)
    for days, stretch in administration.stretches(now):
        query = stretch
        while batch := await ports.store.list_expiring(query):
            for record in batch:
                # Of several processes, only the one whose write changed the key announces it.
                noted = await ports.store.announce_expiry(
                    record.id, days=days, change=lambda after: (event(after),)
                )
                if noted is not None:
                    await ports.emit(event(noted))
                    count += 1
            query = replace(query, after=administration.position(batch[-1]))
    return count
