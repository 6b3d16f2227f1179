"""The keys of all owners, for administrators.

Beside the authenticators, so that an application has these operations only if it asks for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from functools import partial
from typing import Any, Final, Generic, cast

from msk_auth.authenticator.base import not_counted
from msk_auth.core import administration
from msk_auth.core.activity import KeyActivity
from msk_auth.core.errors import ConfigurationError
from msk_auth.core.events import KeyRevocation, RevocationCause
from msk_auth.core.key_management import is_key_id, present
from msk_auth.core.model import ApiKey, KeyFilter, KeyPage, KeyQuery, Principal, UserT
from msk_auth.core.policy import Policy, require_interactive
from msk_auth.core.store import offered

from .authenticator import AsyncAuthenticator
from .lifecycle import check_kind
from .ports import AsyncPorts
from .store import AsyncActivityStore, AsyncAdminStore

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
        ConfigurationError: The store cannot list the keys of all owners (see :class:`~msk_auth.stores.AsyncAdminStore`), the
            permission cannot be one, or this is no `AsyncAuthenticator`.
    """

    def __init__(
        self,
        authenticator: AsyncAuthenticator[UserT],
        permission: str,
        *,
        max_age: timedelta | None = None,
    ) -> None:
        check_kind("AsyncAdminKeys", authenticator)
        parts: Any = authenticator
        _check_store(parts._store)  # noqa: SLF001 - these are its operations, in a class of their own
        self._ports: AsyncPorts[UserT] = parts._ports  # noqa: SLF001
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

    async def key_activity(
        self, principal: Principal[UserT], key_id: str, *, since: date | None = None
    ) -> KeyActivity:
        """What a key of any owner did, as :meth:`Authenticator.key_activity` returns it.

        Args:
            principal: The administrator.
            key_id: The id of the key, which may be deleted.
            since: The first day to read, in UTC; None means all that is kept.

        Raises:
            ConfigurationError: The authenticator has no `activity`.
            InteractiveRequired, PermissionDenied, LoginTooOld: The principal is no administrator's login.
            KeyNotFound: There is no such key.
            StoreUnavailable: The store did not answer.
        """
        if self.authenticator.activity is None:
            raise not_counted()
        self.policy.check(principal, self._ports.now())
        found = await self._ports.look_ups.find_key(key_id) if is_key_id(key_id) else None
        record = present(found)
        # Of a deleted key too: its activity is kept as long as that of others.
        return await cast("AsyncActivityStore", self._ports.store).activity(record.id, since=since)

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
        event = partial(KeyRevocation, now, principal, cause=RevocationCause.ADMINISTRATOR)
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
            store = cast("AsyncAdminStore", self._ports.store)
            return await store.list_all(after=after, limit=administration.BATCH)
        since = None if after is None else after[1:]
        query = KeyQuery(
            wanted.owner_id, now, wanted.status, since, administration.BATCH, wanted.label
        )
        return await self._ports.store.list(query)


def _check_store(store: Any) -> None:
    if offered(store, "list_all") is None:
        raise ConfigurationError(
            f"{type(store).__name__} cannot list the keys of all owners. Add list_all to it, as in AdminStore, and run"
            " StoreContract."
        )
