"""The audit log: who did what, with which credential, from where. Never a secret (ASVS 5.0, section 16.2.5)."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

from sqlalchemy import Row, delete, insert, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from msk_auth import (
    ApiKey,
    Clock,
    CredentialUsed,
    Event,
    InputInvalid,
    KeyCreated,
    KeyDeleted,
    KeyExpirySet,
    KeyLeaked,
    KeyRevocation,
    KeyRotated,
    Principal,
    Refusal,
    RevocationCause,
    redact,
)
from task_service.db import schema
from task_service.db.engine import Database
from task_service.request_record import request_address

MAX_PAGE: Final = 200
_PURGED_AT_ONCE: Final = 500

MAX_LEAKS: Final = 100
"""How many places of one leaked key are recorded."""

_AUDIT = schema.audit.c
_USERS = schema.users.c
# Eighteen digits fit into the column; more would be a number that no row can have.
_CURSOR: Final = re.compile(r"[1-9][0-9]{0,17}")


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One thing that happened.

    Attributes:
        id: Grows with each entry.
        at: When.
        action: What, such as `key.created`.
        actor_id: The user who did it; None if nobody was authenticated or the service did it by itself.
        actor_name: That user's name now.
        credential_kind: `interactive` or `api_key`; `system` for the service and its command line; `none` when
            nobody was authenticated.
        credential_id: The id of the key or the login session.
        target: The id of what it was done to.
        address: Where the request came from.
        details: What else is worth knowing.
    """

    id: int
    at: datetime
    action: str
    actor_id: str | None
    actor_name: str | None
    credential_kind: str
    credential_id: str | None
    target: str | None
    address: str | None
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """Which entries to list, newest first; None means any.

    Attributes:
        actor_id: Done by this user.
        action: Of this kind; one that ends with a dot means all that begin with it, such as `key.`.
        target: Done to this.
        since: At this moment or later.
        until: Before this moment.
        key_id: Done to this API key, or with it.
        actor_name: Done by whoever has this name now.
    """

    actor_id: str | None = None
    action: str | None = None
    target: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    key_id: str | None = None
    actor_name: str | None = None


@dataclass(frozen=True, slots=True)
class AuditPage:
    """One page of the log; `next_cursor` is None on the last one."""

    items: tuple[AuditEntry, ...]
    next_cursor: str | None


class Audit:
    """Writes and lists entries."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    async def record(
        self,
        action: str,
        *,
        principal: Principal[Any] | None = None,
        anonymous: bool = False,
        target: str | None = None,
        details: Mapping[str, Any] | None = None,
        connection: AsyncConnection | None = None,
    ) -> None:
        """Add an entry, with the address of the request that is being answered.

        Args:
            action: What happened, such as `user.created`.
            principal: Who did it; None means the service itself or its command line.
            anonymous: True if it was somebody who is not authenticated.
            target: The id of what it was done to.
            details: What else is worth knowing; anything that looks like a key or a token is masked.
            connection: The transaction of the change itself, so that both happen or neither; None means one of
                its own.
        """
        values = {
            "at": self._clock.now(),
            "action": action,
            "actor_id": None if principal is None else principal.owner.id,
            "credential_kind": _kind(principal, anonymous),
            "credential_id": None
            if principal is None
            else principal.key_id or principal.session_id,
            "target": target,
            "address": request_address(),
            "details": _redacted(details or {}),
        }
        async with AsyncExitStack() as stack:
            if connection is None:
                connection = await stack.enter_async_context(self._db.write())
            await connection.execute(insert(schema.audit).values(values))

    async def witness(
        self,
        connection: AsyncConnection,
        principal: Principal[Any],
        action: str,
        target: str,
        **details: object,
    ) -> None:
        """Add an entry in the transaction of the change itself; see :class:`task_service.tasks.witness.Witness`."""
        await self.record(
            action, principal=principal, target=target, details=details, connection=connection
        )

    async def purge(self, *, before: datetime) -> int:
        """Delete the entries of before a moment, in small transactions so that nobody waits for long.

        Args:
            before: From when on entries are kept.

        Returns:
            How many were deleted.

        Raises:
            StoreUnavailable: The database does not answer. What was deleted before stays deleted.
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

    async def list(
        self, query: AuditQuery, *, cursor: str | None = None, limit: int = 50
    ) -> AuditPage:
        """A page of entries, newest first.

        Args:
            query: Which ones.
            cursor: The previous page's `next_cursor`.
            limit: How many at most, 1 to 200.

        Raises:
            InputInvalid: The cursor or the limit is not acceptable.
        """
        if not 1 <= limit <= MAX_PAGE:
            raise InputInvalid.of("limit", f"Ask for 1 to {MAX_PAGE} entries.")
        statement = (
            select(schema.audit, _USERS.username)
            .outerjoin(schema.users, _USERS.id == _AUDIT.actor_id)
            .order_by(_AUDIT.id.desc())
            .limit(limit + 1)
        )
        if query.actor_id is not None:
            statement = statement.where(_AUDIT.actor_id == query.actor_id)
        if query.action is not None:
            statement = statement.where(
                _AUDIT.action.startswith(query.action, autoescape=True)
                if query.action.endswith(".")
                else _AUDIT.action == query.action
            )
        if query.target is not None:
            statement = statement.where(_AUDIT.target == query.target)
        if query.key_id is not None:
            statement = statement.where(
                or_(_AUDIT.target == query.key_id, _AUDIT.credential_id == query.key_id)
            )
        if query.actor_name is not None:
            statement = statement.where(_USERS.username == query.actor_name)
        if query.since is not None:
            statement = statement.where(_AUDIT.at >= query.since)
        if query.until is not None:
            statement = statement.where(_AUDIT.at < query.until)
        if cursor is not None:
            if _CURSOR.fullmatch(cursor) is None:
                raise InputInvalid.of(
                    "cursor", "This is not a cursor of this listing. Begin again without one."
                )
            statement = statement.where(_AUDIT.id < int(cursor))
        async with self._db.read() as connection:
            rows = (await connection.execute(statement)).all()
        items = tuple(_entry(row) for row in rows[:limit])
        return AuditPage(items, str(items[-1].id) if len(rows) > limit else None)


class AuditEvents:
    """The hook of the library's authenticator (`on_event`): keeps what happens to keys, and passes the rest on.

    Args:
        audit: Where changes of keys are recorded.
        seen: Told that a login session was used: `(session_id, at)`. Must be quick.
        refused: Told the code of each refused credential. Must be quick.
    """

    def __init__(
        self,
        audit: Audit,
        *,
        seen: Callable[[str, datetime], None],
        refused: Callable[[str], None],
    ) -> None:
        self._audit = audit
        self._seen = seen
        self._refused = refused

    def __call__(self, event: Event) -> Awaitable[None] | None:
        """What to await, if anything: credentials are used far too often to write each time."""
        match event:
            case CredentialUsed(at=at, principal=principal):
                if principal.session_id is not None:
                    self._seen(principal.session_id, at)
                return None
            case Refusal(code=code):
                self._refused(code)
                return None
            case KeyCreated(principal=principal, record=record):
                return self._record("key.created", principal, record, scopes=_scopes(record))
            case KeyRotated(principal=principal, record=record, successor=successor):
                return self._record_rotation(principal, record, successor)
            case KeyRevocation(at=at, principal=principal, record=record, cause=cause):
                if record.revoked_at != at:
                    # Revoking again is no error and changes nothing, so there is nothing to record.
                    return None
                why = {} if cause is RevocationCause.OWNER else {"cause": cause.value}
                return self._record("key.revoked", principal, record, **why)
            case KeyLeaked():
                return self._record_leak(event)
            case KeyExpirySet(principal=principal, record=record):
                expires_at = None if record.expires_at is None else record.expires_at.isoformat()
                return self._record("key.expiry_set", principal, record, expires_at=expires_at)
            case KeyDeleted(principal=principal, record=record):
                return self._record("key.deleted", principal, record)

    async def _record_rotation(
        self, principal: Principal[Any], record: ApiKey, successor: ApiKey
    ) -> None:
        # The trail of the new key begins with where it comes from.
        await self._record(
            "key.created",
            principal,
            successor,
            scopes=_scopes(successor),
            predecessor=record.id,
        )
        await self._record("key.rotated", principal, record, successor=successor.id)

    async def _record_leak(self, event: KeyLeaked) -> None:
        record, sighting = event.record, event.sighting
        known = await self._audit.list(
            AuditQuery(action="key.leaked", target=record.id), limit=MAX_LEAKS
        )
        # A report that is sent again, or a key that is copied all over the place, must not fill the log.
        if len(known.items) == MAX_LEAKS or sighting.url in {
            entry.details.get("url") for entry in known.items
        }:
            return
        await self._record(
            "key.leaked",
            None,
            record,
            reporter=sighting.reporter,
            source=sighting.source,
            url=sighting.url,
            revoked=record.revoked_at == event.at,
        )

    def _record(
        self, action: str, principal: Principal[Any] | None, record: ApiKey, **details: object
    ) -> Awaitable[None]:
        return self._audit.record(
            action,
            principal=principal,
            anonymous=principal is None,
            target=record.id,
            details={"name": record.name, **details},
        )


def _scopes(record: ApiKey) -> list[str] | None:
    return None if record.scopes is None else sorted(record.scopes)


def _kind(principal: Principal[Any] | None, anonymous: bool) -> str:
    if principal is not None:
        return principal.kind.value
    return "none" if anonymous else "system"


def _redacted(value: Any) -> Any:
    """People paste keys where names belong; the log keeps a mask of them."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        members = cast("Mapping[str, Any]", value)
        return {name: _redacted(member) for name, member in members.items()}
    if isinstance(value, list | tuple):
        return [_redacted(member) for member in cast("Sequence[Any]", value)]
    return value


def _entry(row: Row[Any]) -> AuditEntry:
    return AuditEntry(
        id=row.id,
        at=row.at,
        action=row.action,
        actor_id=row.actor_id,
        actor_name=row.username,
        credential_kind=row.credential_kind,
        credential_id=row.credential_id,
        target=row.target,
        address=row.address,
        details=row.details,
    )
