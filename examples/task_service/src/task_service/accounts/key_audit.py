"""The audit log's entries of keys: each is written by the store's `on_change`, in the transaction of its change.

The same transaction ends the runs of a key that was found in public.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from msk_auth import ApiKey, Principal, require_interactive
from msk_auth.errors import PermissionDenied, StoreUnavailable
from msk_auth.events import (
    KeyCreated,
    KeyDeleted,
    KeyEvent,
    KeyExpiring,
    KeyExpirySet,
    KeyLeaked,
    KeyRevocation,
    KeyRotated,
    KeyUpdated,
    RevocationCause,
)
from task_service.db import schema
from task_service.db.engine import Database
from task_service.tasks.run_keys import KEY_LEAKED, of_key
from task_service.tasks.runs import cancel_runs

from .audit import Audit
from .roles import MANAGE_KEYS, RECENT_LOGIN
from .sessions import require_open
from .users import read_user

MAX_LEAKS: Final = 100
"""How many places of one leaked key are recorded."""

_RECENT: Final = require_interactive(max_age=RECENT_LOGIN)

_AUDIT = schema.audit.c


class KeyAudit:
    """Writes the entries of keys.

    Args:
        db: The database of the keys and of the audit log.
        audit: The audit log.
    """

    def __init__(self, db: Database, audit: Audit) -> None:
        self._db = db
        self._audit = audit

    async def on_change(self, connection: AsyncConnection, event: KeyEvent) -> None:
        """The hook of the key store. It checks again what may have ended since the request was authenticated.

        A key is created, replaced or edited only while the login that does it is open. A person changes the key of another
        owner, such as a service account, only with a recent login and while an administrator.

        Args:
            connection: In the transaction of the change.
            event: The change.

        Raises:
            LoginTooOld: The key is another owner's, and the login of the principal is older than :data:`RECENT_LOGIN`.
            TokenRevoked: The login of the principal has ended since its request was authenticated.
            PermissionDenied: The key is another owner's, and the principal administers keys no more.
        """
        principal = None if isinstance(event, KeyLeaked | KeyExpiring) else event.principal
        if principal is not None:
            await _confirm(connection, principal, event)
        match event:
            case KeyCreated(principal=principal, record=record):
                await self._created(connection, event, principal, record)
            case KeyRotated(principal=principal, record=record, successor=successor):
                # The entries of the new key begin with the key that it replaces.
                await self._created(connection, event, principal, successor, predecessor=record.id)
                await self._record(
                    connection, "key.rotated", record, principal, successor=successor.id
                )
            case KeyRevocation(principal=principal, record=record, cause=cause):
                details = {} if cause is RevocationCause.OWNER else {"cause": cause.value}
                anonymous = cause is RevocationCause.POSSESSION
                await self._record(
                    connection, "key.revoked", record, principal, anonymous=anonymous, **details
                )
            case KeyDeleted(principal=principal, record=record):
                await self._record(connection, "key.deleted", record, principal)
            case KeyExpirySet(principal=principal, record=record):
                end = None if record.expires_at is None else record.expires_at.isoformat()
                await self._record(connection, "key.expiry_set", record, principal, expires_at=end)
            case KeyUpdated(principal=principal, record=record, fields=fields):
                await self._record(
                    connection, "key.updated", record, principal, **_edited(record, fields)
                )
            case KeyExpiring(record=record, days=days):
                await self._record(connection, "key.expiring", record, None, days=days)
            case KeyLeaked():
                await self._leaked(connection, event, revoked=True)

    async def on_leak(self, event: KeyLeaked) -> None:
        """Record a place that :meth:`on_change` has not: a report of a revoked key changes no key.

        If the database does not take the entry, it is logged, kept and written later, as that of a refusal.
        """
        try:
            async with self._db.write() as connection:
                await self._leaked(connection, event, revoked=False)
        except StoreUnavailable:
            details = {"name": event.record.name, **_place(event, revoked=False)}
            self._audit.backlog.keep(
                self._audit.entry(
                    "key.leaked", anonymous=True, target=event.record.id, details=details
                )
            )

    async def _created(
        self,
        connection: AsyncConnection,
        event: KeyCreated | KeyRotated,
        principal: Principal[Any],
        record: ApiKey,
        **details: Any,
    ) -> None:
        scopes = None if record.scopes is None else sorted(record.scopes)
        if record.networks is not None:
            details["networks"] = sorted(record.networks)
        await self._record(connection, "key.created", record, principal, scopes=scopes, **details)

    async def _leaked(
        self, connection: AsyncConnection, event: KeyLeaked, *, revoked: bool
    ) -> None:
        # A stranger who found the key may have started them.
        its_runs = of_key(event.record.owner_id, event.record.id)
        await cancel_runs(connection, its_runs, event.at, error=KEY_LEAKED)
        known = select(_AUDIT.details).where(
            _AUDIT.action == "key.leaked", _AUDIT.target == event.record.id
        )
        urls = [details.get("url") for details in await connection.scalars(known.limit(MAX_LEAKS))]
        # Neither a repeated report nor a key that is copied to many places fills the log.
        if len(urls) < MAX_LEAKS and event.location.url not in urls:
            place = _place(event, revoked=revoked)
            await self._record(
                connection, "key.leaked", event.record, None, anonymous=True, **place
            )

    async def _record(
        self,
        connection: AsyncConnection,
        action: str,
        key: ApiKey,
        principal: Principal[Any] | None,
        *,
        anonymous: bool = False,
        **details: Any,
    ) -> None:
        if principal is not None and principal.owner.id != key.owner_id:
            # The person acted for the owner of the key: the entry names both.
            details["owner_id"] = key.owner_id
        await self._audit.record(
            action,
            principal=principal,
            anonymous=anonymous,
            target=key.id,
            details={"name": key.name, **details},
            connection=connection,
        )


async def _confirm(connection: AsyncConnection, principal: Principal[Any], event: KeyEvent) -> None:
    is_own = principal.owner.id == event.record.owner_id
    if not is_own:
        _RECENT.check(principal, event.at)
    # An own key may be ended by a login that has just ended. Code inside the process may have no login.
    if principal.session_id is not None and (
        not is_own or isinstance(event, KeyCreated | KeyRotated | KeyUpdated)
    ):
        await require_open(connection, principal, event.at)
    if (
        not is_own
        and MANAGE_KEYS not in (await read_user(connection, principal.owner.id)).permissions
    ):
        raise PermissionDenied([MANAGE_KEYS])


def _edited(record: ApiKey, fields: tuple[str, ...]) -> dict[str, Any]:
    """The new values. The name is in every entry."""
    values = {
        "description": record.description,
        "labels": sorted(record.labels),
        "networks": None if record.networks is None else sorted(record.networks),
    }
    return {name: value for name, value in values.items() if name in fields}


def _place(event: KeyLeaked, *, revoked: bool) -> dict[str, Any]:
    place = event.location
    return {
        "reporter": place.reporter,
        "source": place.source,
        "url": place.url,
        "revoked": revoked,
    }
