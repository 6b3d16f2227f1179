"""The end of keys, for the application's scheduled jobs.

In classes of their own, so that nothing that a request reaches through an authenticator lists the keys of other owners.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic

from msk_auth.core import expiry
from msk_auth.core.errors import ConfigurationError
from msk_auth.core.model import KeyPage, UserT
from msk_auth.core.store import offered

from .authenticator import AsyncAuthenticator
from .lifecycle import check_kind


class AsyncKeyExpiry(Generic[UserT]):
    """Lists the keys of all owners that end soon, and announces the end of each at 30, 7 and 1 days.

    It asks for no principal: it is for programs of the application, such as a scheduled job. Do not call it in a route;
    people list keys through :class:`AsyncAdminKeys`. It starts no thread, no task and no timer.

    Args:
        authenticator: Whose keys.

    Raises:
        ConfigurationError: The store cannot list keys by their end (see :class:`~msk_auth.AsyncExpiryStore`), or this is no
            `AsyncAuthenticator`.
    """

    def __init__(self, authenticator: AsyncAuthenticator[UserT]) -> None:
        parts: Any = authenticator
        check_kind("AsyncKeyExpiry", authenticator)
        _check_store(parts._ports.store)  # noqa: SLF001
        self._parts = parts

    async def expiring(
        self, *, before: datetime, cursor: str | None = None, limit: int = expiry.BATCH
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
        now = self._parts.clock.now()
        flow = expiry.list_expiring(before=before, cursor=cursor, limit=limit, now=now)
        page: KeyPage = await self._parts._ports.run(flow)  # noqa: SLF001
        return page

    async def announce(self) -> int:
        """Send a :class:`KeyExpiring` for each key that ends within 30, 7 or 1 days and was not announced for that yet.

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
        flow = expiry.announce(self._parts._emit, self._parts.clock.now())  # noqa: SLF001
        count: int = await self._parts._ports.run(flow)  # noqa: SLF001
        return count


def _check_store(store: Any) -> None:
    if offered(store, "list_expiring") is None or offered(store, "announce_expiry") is None:
        raise ConfigurationError(
            f"{type(store).__name__} cannot list keys by their end. Add list_expiring and announce_expiry to it, as in"
            " ExpiryStore, keep announced_days of ApiKey, and run StoreContract."
        )
