"""The audit log: who did what, with which credential, from where. Never a secret (ASVS 5.0, section 16.2.5)."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pydantic import BaseModel
from sqlalchemy import ColumnElement, Row, delete, insert, select, union

from msk_auth import Clock, Principal
from msk_auth.errors import StoreUnavailable
from task_service.db import schema
from task_service.db.engine import Database
from task_service.db.paging import FIRST_PAGE, Order, Page, PageRequest, Paging
from task_service.observability import redacted
from task_service.request_record import request_address
from task_service.validation import Time

from .names import Username

_log = logging.getLogger(__name__)

TIME: Final = "%Y-%m-%dT%H:%M:%S.%fZ"
"""The form of a time in UTC in texts."""

EXPORT_PAGE: Final = 1000
"""The number of entries that :meth:`Audit.pages` reads at once."""
_PURGED_AT_ONCE: Final = 500

ROUTINE: Final = ("login.succeeded", "run.cancelled", "run.requested", "session.ended")
"""The actions of every day."""

_AUDIT = schema.audit.c
_USERS = schema.users.c
_KEYS = schema.api_keys.c
_OF_KEY: Final = (_AUDIT.target, _AUDIT.credential_id)
# By time, like the indexes: in the order of ids, a filter with an old `until` would read all later entries.
_NEWEST: Final = Order.by_time(_AUDIT.at, _AUDIT.id)


class Actor(BaseModel):
    """The user who acted, with the present name."""

    id: str
    username: str | None


class UsedCredential(BaseModel):
    """The key or login session that was used; `kind` is `system` for the service itself, `none` without a login.

    `name` is the name of a key.
    """

    kind: str
    id: str | None
    name: str | None = None


class AuditEntry(BaseModel):
    """One audited event. `target` is the id of the changed object.

    `actor` is null if the request was not authenticated or the service itself acted.
    """

    id: int
    at: datetime
    action: str
    actor: Actor | None
    credential: UsedCredential
    target: str | None
    address: str | None
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """The entries to list, newest first; None means any.

    Attributes:
        actor_id: The id of the user who acted.
        actor: The present name of the user who acted.
        action: The action; a prefix with a dot at its end, such as `key.`, means all actions with it.
        target: The id of the changed object.
        key: Changes of the API key with this id, or actions with it.
        routine: False leaves out logins and runs.
        since: At this moment or later.
        until: Before this moment.
    """

    actor_id: str | None = None
    actor: Username | None = None
    action: str | None = None
    target: str | None = None
    key: str | None = None
    routine: bool = True
    since: Time | None = None
    until: Time | None = None


class Audit:
    """Writes and lists entries.

    Args:
        db: The database of the entries.
        clock: The clock.
        left_out: Called for each entry that could not be written to the database, and is only in the process's log.
    """

    def __init__(
        self, db: Database, clock: Clock, *, left_out: Callable[[], None] = lambda: None
    ) -> None:
        self._db = db
        self._clock = clock
        self._left_out = left_out

    def entry(
        self,
        action: str,
        *,
        principal: Principal[Any] | None = None,
        anonymous: bool = False,
        target: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The columns of an entry, with the address of the current request.

        Args:
            action: The action, such as `user.created`.
            principal: The principal who acted; None means the service itself or its command line.
            anonymous: True if the request was not authenticated.
            target: The id of the changed object.
            details: Other facts; texts that look like a key or a token are masked.
        """
        kind, actor_id, credential_id = "none" if anonymous else "system", None, None
        if principal is not None:
            kind, actor_id = principal.kind.value, principal.owner.id
            credential_id = principal.key_id or principal.session_id
        return {
            "at": self._clock.now(),
            "action": action,
            "actor_id": actor_id,
            "credential_kind": kind,
            "credential_id": credential_id,
            "target": target,
            "address": request_address(),
            "details": redacted(details or {}),
        }

    async def record_refusal(
        self,
        action: str,
        *,
        principal: Principal[Any] | None = None,
        anonymous: bool = False,
        target: str | None = None,
    ) -> None:
        """Add an entry of a refusal, which changes nothing. Arguments as for :meth:`entry`.

        Raises:
            StoreUnavailable: The entry could not be written to the database, and is logged. The client gets this error
                in place of the refusal.
        """
        values = self.entry(action, principal=principal, anonymous=anonymous, target=target)
        try:
            async with self._db.write() as connection:
                await connection.execute(insert(schema.audit).values(values))
        except StoreUnavailable:
            self.leave_out(values)
            raise

    def leave_out(self, entry: Mapping[str, Any]) -> None:
        """Log and count an entry that could not be written to the database.

        Args:
            entry: From :meth:`entry`, so already without secrets.
        """
        _log.error(
            "an audit entry cannot be written",
            extra={"audit_entry": {**entry, "at": entry["at"].isoformat()}},
        )
        self._left_out()

    async def purge(self, *, before: datetime) -> int:
        """Delete old entries, in small transactions so that writers wait only briefly.

        Args:
            before: The earliest time of kept entries.

        Returns:
            The number of deleted entries.

        Raises:
            StoreUnavailable: The database does not answer. Entries deleted earlier stay deleted.
        """
        old = select(_AUDIT.id).where(_AUDIT.at < before).limit(_PURGED_AT_ONCE)
        deleted = 0
        while True:
            async with self._db.write() as connection:
                ids = (await connection.execute(old)).scalars().all()
                await connection.execute(delete(schema.audit).where(_AUDIT.id.in_(ids)))
            deleted += len(ids)
            if len(ids) < _PURGED_AT_ONCE:
                return deleted

    async def list(self, query: AuditQuery, wanted: PageRequest = FIRST_PAGE) -> Page[AuditEntry]:
        """A page of entries, newest first.

        Args:
            query: The filter.
            wanted: The page, of at most 200 entries.

        Raises:
            InputInvalid: Field `cursor`.
        """
        paging = Paging(_NEWEST, query, wanted)
        statement = (
            select(schema.audit, _USERS.username)
            .outerjoin_from(schema.audit, schema.users, _USERS.id == _AUDIT.actor_id)
            .where(*_conditions(query))
        )
        async with self._db.read() as connection:
            page = await paging.read(connection, statement, _entry)
            used = [each.credential for each in page.items if each.credential.kind == "api_key"]
            named = select(_KEYS.id, _KEYS.name).where(_KEYS.id.in_({each.id for each in used}))
            names = {row.id: row.name for row in await connection.execute(named)} if used else {}
        for each in used:
            each.name = names.get(each.id)
        return page

    async def pages(self, query: AuditQuery) -> AsyncGenerator[Sequence[AuditEntry]]:
        """All entries of a query, newest first. Each page is read on demand.

        Raises:
            StoreUnavailable: The database does not answer.
        """
        cursor: str | None = None
        while True:
            page = await self.list(query, PageRequest(cursor, EXPORT_PAGE))
            yield page.items
            cursor = page.next_cursor
            if cursor is None:
                return


def _conditions(query: AuditQuery) -> Iterator[ColumnElement[bool]]:
    if query.actor_id is not None:
        yield _AUDIT.actor_id == query.actor_id
    if query.actor is not None:
        named = select(_USERS.id).where(_USERS.username == query.actor)
        yield _AUDIT.actor_id == named.scalar_subquery()
    if query.action is not None and query.action.endswith("."):
        yield _AUDIT.action.startswith(query.action, autoescape=True)
    elif query.action is not None:
        yield _AUDIT.action == query.action
    if query.target is not None:
        yield _AUDIT.target == query.target
    if query.key is not None:
        # Not with OR, for which SQLite would read the whole log.
        of_key = (select(_AUDIT.id).where(each == query.key) for each in _OF_KEY)
        yield _AUDIT.id.in_(union(*of_key))
    if not query.routine:
        yield _AUDIT.action.not_in(ROUTINE)
    if query.since is not None:
        yield _AUDIT.at >= query.since
    if query.until is not None:
        yield _AUDIT.at < query.until


def _entry(row: Row[Any]) -> AuditEntry:
    return AuditEntry(
        id=row.id,
        at=row.at,
        action=row.action,
        actor=None if row.actor_id is None else Actor(id=row.actor_id, username=row.username),
        credential=UsedCredential(kind=row.credential_kind, id=row.credential_id),
        target=row.target,
        address=row.address,
        details=row.details,
    )
