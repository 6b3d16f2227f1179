# Generated from src/msk_auth/_async/expiry.py by tools/generate_sync.py: change that, and run this.
"""The end of keys, for the application's scheduled jobs.

In classes of their own, so that nothing that a request reaches through an authenticator lists the keys of other owners.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any, Generic, cast

from msk_auth.core import expiry
from msk_auth.core.cursor import PageCursor
from msk_auth.core.errors import ConfigurationError
from msk_auth.core.events import KeyExpiring
from msk_auth.core.model import ApiKey, ExpiryQuery, KeyPage, UserT
from msk_auth.core.store import offered

from .authenticator import Authenticator
from .lifecycle import check_kind
from .ports import Ports
from .store import ExpiryStore


class KeyExpiry(Generic[UserT]):
    """Lists the keys of all owners that end soon, and announces the end of each at 30, 7 and 1 days.

    It asks for no principal: it is for programs of the application, such as a scheduled job. Do not call it in a route;
    people list keys through :class:`AdminKeys`. It starts no thread, no task and no timer.

    Args:
        authenticator: Whose keys.

    Raises:
        ConfigurationError: The store cannot list keys by their end (see :class:`~msk_auth.stores.ExpiryStore`), or this is no
            `Authenticator`.
    """

    def __init__(self, authenticator: Authenticator[UserT]) -> None:
        check_kind("KeyExpiry", authenticator)
        parts: Any = authenticator
        _check_store(parts._store)  # noqa: SLF001 - these are its operations, in a class of their own
        self._ports: Ports[UserT] = parts._ports  # noqa: SLF001
        self._store = cast("ExpiryStore", self._ports.store)

    def expiring(
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
        now = self._ports.now()
        expiry.check_query(before, limit)
        after = None if cursor is None else PageCursor.decode(cursor)
        found: dict[str, ApiKey] = {}
        # From one stretch to the next, as a key moves that is announced meanwhile: it may be met twice, and is not missed.
        for announced in (None, *reversed(expiry.NOTICE_DAYS)):
            query = ExpiryQuery(now, before, announced, after, limit + 1)
            found.update((record.id, record) for record in self._store.list_expiring(query))
        return expiry.page_of(found.values(), limit)

    def announce(self) -> int:
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
        count = 0
        for days, stretch in expiry.stretches(self._ports.now()):
            query = stretch
            while batch := self._store.list_expiring(query):
                for record in batch:
                    count += self._announce(record.id, days, query.now)
                query = replace(query, after=expiry.position(batch[-1]))
        return count

    def _announce(self, key_id: str, days: int, now: datetime) -> bool:
        def event(record: ApiKey) -> KeyExpiring:
            return KeyExpiring(now, record, days)

        # Of several processes the one whose write changed the key announces it.
        noted = self._store.announce_expiry(key_id, days=days, change=lambda after: (event(after),))
        if noted is not None:
            self._ports.emit(event(noted))
        return noted is not None


def _check_store(store: Any) -> None:
    if offered(store, "list_expiring") is None or offered(store, "announce_expiry") is None:
        raise ConfigurationError(
            f"{type(store).__name__} cannot list keys by their end. Add list_expiring and announce_expiry to it, as in"
            " ExpiryStore, keep announced_days of ApiKey, and run StoreContract."
        )
