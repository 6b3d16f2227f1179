"""The keys of all owners, for administrators.

Beside the authenticators, so that an application has these operations only if it asks for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any, Final, Generic

from msk_auth.core import administration
from msk_auth.core.activity import KeyActivity
from msk_auth.core.errors import ConfigurationError, KeyNotFound
from msk_auth.core.model import ApiKey, KeyFilter, KeyPage, Principal, UserT
from msk_auth.core.policy import Policy, require_interactive
from msk_auth.core.store import offered

from .authenticator import AsyncAuthenticator
from .lifecycle import check_kind

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
        ConfigurationError: The store cannot list the keys of all owners (see :class:`~msk_auth.AsyncAdminStore`), the
            permission cannot be one, or this is no `AsyncAuthenticator`.
    """

    def __init__(
        self,
        authenticator: AsyncAuthenticator[UserT],
        permission: str,
        *,
        max_age: timedelta | None = None,
    ) -> None:
        parts: Any = authenticator
        check_kind("AsyncAdminKeys", authenticator)
        _check_store(parts._ports.store)  # noqa: SLF001
        self._parts = parts
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
        now = self.authenticator.clock.now()
        flow = administration.list_keys(
            self.policy, principal, wanted, cursor=cursor, limit=limit, now=now
        )
        page: KeyPage = await self._parts._ports.run(flow)  # noqa: SLF001
        return page

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
        self._parts._activity_log()  # noqa: SLF001
        now = self.authenticator.clock.now()
        flow = administration.key_activity(self.policy, principal, key_id, since, now)
        activity: KeyActivity = await self._parts._ports.run(flow)  # noqa: SLF001
        return activity

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
        return _only(await self.revoke_keys(principal, [key_id]))

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
        now = self.authenticator.clock.now()
        flow = administration.revoke_keys(self.policy, principal, key_ids, now)
        revoked: tuple[ApiKey | None, ...] = await self._parts._end(flow)  # noqa: SLF001
        return revoked


def _check_store(store: Any) -> None:
    if offered(store, "list_all") is None:
        raise ConfigurationError(
            f"{type(store).__name__} cannot list the keys of all owners. Add list_all to it, as in AdminStore, and run"
            " StoreContract."
        )


def _only(revoked: tuple[ApiKey | None, ...]) -> ApiKey:
    (record,) = revoked
    if record is None:
        raise KeyNotFound
    return record
