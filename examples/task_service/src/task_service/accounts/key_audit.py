"""The audit log's entries of keys, which the store's `on_change` writes in the transaction of each change.

The same transaction ends the runs of a leaked key.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from sqlalchemy import and_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from msk_auth import ApiKey, Principal, require_interactive
from msk_auth.errors import InputInvalid, PermissionDenied, StoreUnavailable
from msk_auth.events import KeyEvent, LeakLocation
from task_service.db import schema
from task_service.db.engine import Database
from task_service.tasks.next_run import KEY_LEAKED, REQUESTED_WITH
from task_service.tasks.runs import TASK, cancel_runs, task_ids, visible_tasks

from .audit import Audit
from .changes import Change
from .roles import MANAGE_KEYS, RECENT_LOGIN
from .sessions import require_open
from .users import read_user

MAX_LEAKS: Final = 100
"""The maximum number of recorded places of a leaked key."""

_RECENT: Final = require_interactive(max_age=RECENT_LOGIN)

_ENDING: Final = frozenset({"revoked", "deleted", "expiry_set"})
"""The actions on an own key that a login may still finish when it has just ended."""

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
        """The hook of the key store. It repeats the checks whose result may have changed since the request was authenticated.

        A key is created, replaced or edited only while the principal's login is open. A person changes the key of another
        owner, such as a service account, only with a recent login and as an administrator. A new key can be limited only to
        tasks that its owner sees; its successor has the same limits, even if a task is deleted meanwhile.

        Args:
            connection: The connection, in the transaction of the change.
            event: The change.

        Raises:
            InputInvalid: Field `resources`: an entry is not a task, or a task that the key's owner does not see.
            LoginTooOld: The key is another owner's, and the login of the principal is older than :data:`RECENT_LOGIN`.
            CredentialRefused: The login of the principal has ended since its request was authenticated.
            PermissionDenied: The key is another owner's, and the principal no longer administers keys.
        """
        change = Change(connection, event.principal, event.at, self._audit)
        if event.principal is not None:
            await _confirm(change, event.principal, event)
        if event.location is not None:
            await _leaked(change, event, asdict(event.location) | {"revoked": True})
            return
        if event.action == "created":
            await _check_tasks(connection, event.principal, event.record)
        if event.successor is not None:
            # The entries of the new key begin with the key that it replaces.
            granted = _granted(event.successor)
            await _record(
                change, "key.created", event.successor, predecessor=event.record.id, **granted
            )
        details = await _details(change, event)
        anonymous = event.cause == "possession"
        await _record(change, f"key.{event.action}", event.record, anonymous=anonymous, **details)

    async def on_leak(self, event: KeyEvent, location: LeakLocation) -> None:
        """Record a place without :meth:`on_change`: a report of a revoked key changes no key.

        If the database cannot write the entry, it is logged, like the entry of a refusal.
        """
        place = asdict(location) | {"revoked": False}
        try:
            async with self._db.write() as connection:
                await _leaked(Change(connection, None, event.at, self._audit), event, place)
        except StoreUnavailable:
            details = {"name": event.record.name} | place
            self._audit.leave_out(
                self._audit.entry(
                    "key.leaked", anonymous=True, target=event.record.id, details=details
                )
            )


async def _details(change: Change, event: KeyEvent) -> dict[str, Any]:
    record = event.record
    match event.action:
        case "created":
            return _granted(record)
        case "rotated":
            return {"successor": record.replaced_by}
        case "revoked":
            return {} if event.cause == "owner" else {"cause": event.cause}
        case "expiry_set":
            end = record.expires_at
            return {"expires_at": None if end is None else end.isoformat()}
        case "updated":
            known = await _previous(change, record.id)
            return {"changed": _changed(record, event.fields, known)}
        case "expiring":
            return {"days": record.announced_days}
        case _:
            return {}


async def _leaked(change: Change, event: KeyEvent, place: dict[str, Any]) -> None:
    # A stranger who found the key may have started these runs.
    its_runs = event.record.id == REQUESTED_WITH
    await cancel_runs(change.connection, its_runs, event.at, error=KEY_LEAKED)
    known = select(_AUDIT.details).where(
        _AUDIT.action == "key.leaked", _AUDIT.target == event.record.id
    )
    found = await change.connection.scalars(known.limit(MAX_LEAKS))
    urls = [details.get("url") for details in found]
    # Repeated reports, or a key copied to many places, must not fill the log.
    if len(urls) < MAX_LEAKS and place["url"] not in urls:
        await _record(change, "key.leaked", event.record, anonymous=True, **place)


async def _record(
    change: Change, action: str, key: ApiKey, *, anonymous: bool = False, **details: Any
) -> None:
    if change.by is not None and change.by.owner.id != key.owner_id:
        # The person acted for the owner of the key: the entry names both.
        details["owner_id"] = key.owner_id
    await change.record(action, key.id, anonymous=anonymous, name=key.name, **details)


async def _confirm(change: Change, principal: Principal[Any], event: KeyEvent) -> None:
    is_own = principal.owner.id == event.record.owner_id
    if not is_own:
        _RECENT.check(principal, event.at)
    # Code inside the process may have no login.
    if principal.session_id is not None and (not is_own or event.action not in _ENDING):
        await require_open(change, principal)
    if not is_own:
        actor = await read_user(change.connection, principal.owner.id)
        if MANAGE_KEYS not in actor.permissions:
            raise PermissionDenied([MANAGE_KEYS])


async def _check_tasks(
    connection: AsyncConnection, creator: Principal[Any] | None, record: ApiKey
) -> None:
    """Refuse a key limited to a task that its owner does not see: a typing error would remain unnoticed."""
    if record.resources is None:
        return
    tasks = schema.tasks.c
    # A service account sees its own tasks, not those of the administrator who acts for it.
    visible = and_(tasks.owner_id == record.owner_id, tasks.deleted_at.is_(None))
    if creator is not None and creator.owner.id == record.owner_id:
        visible = visible_tasks(creator)
    found = await connection.scalars(
        select(tasks.id).where(tasks.id.in_(task_ids(record.resources)), visible)
    )
    unknown = sorted(record.resources - {f"{TASK}{each}" for each in found})
    if unknown:
        raise InputInvalid.of(
            "resources",
            f"The key's owner sees no such task: {', '.join(unknown)}. Name tasks by their ids, such as task:tsk_….",
        )


def _granted(record: ApiKey) -> dict[str, Any]:
    """The key's permissions, resources, networks and description."""
    granted = {"scopes": None} | record.details()
    del granted["name"]  # is in every entry
    return granted


async def _previous(change: Change, key_id: str) -> dict[str, Any]:
    """The values before a change, if earlier entries of the key have them."""
    entries = await change.connection.scalars(
        select(_AUDIT.details)
        .where(_AUDIT.target == key_id, _AUDIT.action.in_(("key.created", "key.updated")))
        .order_by(_AUDIT.at, _AUDIT.id)
    )
    known: dict[str, Any] = {}
    for details in entries:
        known |= details
        known |= {name: values["new"] for name, values in details.get("changed", {}).items()}
    return known


def _changed(record: ApiKey, fields: tuple[str, ...], known: dict[str, Any]) -> dict[str, Any]:
    new = record.document()
    return {
        name: {"old": known.get(name) or None, "new": new[name] or None}
        for name in fields
        if (known.get(name) or None) != (new[name] or None)
    }
