"""No change of a key without its entry in the audit log: both are in one transaction, so both happen or neither.

The library tells of a change after it was committed, which is a moment too late: a database that fails just then would
leave a key that nobody can account for. So the entry is added here while the transaction of the change commits. Looking
keys up goes the library's own way and costs nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection, event, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from msk_auth import (
    ApiKey,
    AsyncAuthenticator,
    CreatedKey,
    KeyChange,
    KeyMalformed,
    LeakedKey,
    LeakLocation,
    Lifetime,
    Principal,
    RevocationCause,
)
from msk_auth.stores.sqlalchemy import AsyncSQLAlchemyKeyStore, read_record
from task_service.db import schema

from .audit import Audit
from .sessions import check_open
from .users import User

MAX_LEAKS: Final = 100
"""How many places of one leaked key are recorded."""

_KEYS = schema.api_keys.c
_AUDIT = schema.audit.c

_WriteDown = Callable[[Connection], None]


@dataclass(frozen=True, slots=True, repr=False)
class _Act:
    """Who changes keys, and why."""

    principal: Principal[Any] | None = None
    by_possession: bool = False
    sightings: Callable[[ApiKey], Sequence[LeakLocation]] | None = None


# Both follow a request into the transactions that it begins, and no other task sees them.
_acting: ContextVar[_Act | None] = ContextVar("acting", default=None)
_unwritten: ContextVar[_WriteDown | None] = ContextVar("unwritten", default=None)


class WitnessedKeyStore(AsyncSQLAlchemyKeyStore):
    """The library's store; each change adds its entry to the audit log, or does not happen.

    A key is made only while the login that asks for it is open, by the same transaction.

    Args:
        engine: Of the database that holds keys and audit log.
        audit: Says what an entry looks like.
    """

    def __init__(self, engine: AsyncEngine, audit: Audit) -> None:
        # An engine of its own on the same pool, so that no other transaction is listened to.
        own = engine.execution_options()
        event.listen(own.sync_engine, "commit", _write_down)
        super().__init__(own, schema.api_keys)
        self._audit = audit

    async def insert(
        self,
        record: ApiKey,
        *,
        max_active: int | None,
        now: datetime,
        change: KeyChange | None = None,
    ) -> None:
        """See :class:`~msk_auth.KeyStore`."""
        with _writing(lambda connection: self._created(connection, record)):
            await super().insert(record, max_active=max_active, now=now, change=change)

    async def revoke(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.KeyStore`."""
        with _writing(lambda connection: self._revoked(connection, key_id, owner_id, at)):
            return await super().revoke(key_id, owner_id=owner_id, at=at, change=change)

    async def delete(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.KeyStore`."""
        with _writing(lambda connection: self._deleted(connection, key_id, owner_id, at)):
            return await super().delete(key_id, owner_id=owner_id, at=at, change=change)

    async def expire(
        self, key_id: str, *, owner_id: str, at: datetime, change: KeyChange | None = None
    ) -> ApiKey | None:
        """See :class:`~msk_auth.KeyStore`."""
        with _writing(lambda connection: self._expiry_set(connection, key_id, owner_id)):
            return await super().expire(key_id, owner_id=owner_id, at=at, change=change)

    async def rotate(
        self,
        key_id: str,
        *,
        successor: ApiKey,
        ends_at: datetime,
        max_active: int | None,
        now: datetime,
        change: KeyChange | None = None,
    ) -> ApiKey | None:
        """See :class:`~msk_auth.KeyStore`."""
        with _writing(lambda connection: self._rotated(connection, key_id, successor)):
            return await super().rotate(
                key_id,
                successor=successor,
                ends_at=ends_at,
                max_active=max_active,
                now=now,
                change=change,
            )

    def _created(self, connection: Connection, record: ApiKey, **more: object) -> None:
        act = _acting.get()
        # Code inside the process may make keys for a user without a login.
        if act is not None and act.principal is not None and act.principal.session_id is not None:
            check_open(connection, act.principal, record.created_at)
        scopes = None if record.scopes is None else sorted(record.scopes)
        self._add(connection, "key.created", record, scopes=scopes, **more)

    def _rotated(self, connection: Connection, key_id: str, successor: ApiKey) -> None:
        record = _record(connection, key_id, successor.owner_id)
        if record is None or record.replaced_by != successor.id:
            return
        # The trail of the new key begins with where it comes from.
        self._created(connection, successor, predecessor=key_id)
        self._add(connection, "key.rotated", record, successor=successor.id)

    def _revoked(self, connection: Connection, key_id: str, owner_id: str, at: datetime) -> None:
        record = _record(connection, key_id, owner_id)
        if record is None:
            return
        act = _acting.get()
        # Revoking again is no error and changes nothing, so there is nothing to record.
        revoked = record.revoked_at == at
        if act is not None and act.sightings is not None:
            self._leaked(connection, record, act.sightings(record), revoked=revoked)
        elif revoked:
            by_possession = act is not None and act.by_possession
            why = {"cause": RevocationCause.POSSESSION.value} if by_possession else {}
            self._add(connection, "key.revoked", record, **why)

    def _leaked(
        self,
        connection: Connection,
        record: ApiKey,
        sightings: Iterable[LeakLocation],
        *,
        revoked: bool,
    ) -> None:
        known = select(_AUDIT.details).where(
            _AUDIT.action == "key.leaked", _AUDIT.target == record.id
        )
        urls = [details.get("url") for details in connection.scalars(known.limit(MAX_LEAKS))]
        for sighting in sightings:
            # A report that is sent again, or a key that is copied all over the place, must not fill the log.
            if len(urls) == MAX_LEAKS or sighting.url in urls:
                continue
            urls.append(sighting.url)
            self._add(
                connection,
                "key.leaked",
                record,
                reporter=sighting.reporter,
                source=sighting.source,
                url=sighting.url,
                revoked=revoked,
            )

    def _deleted(self, connection: Connection, key_id: str, owner_id: str, at: datetime) -> None:
        record = _record(connection, key_id, owner_id)
        if record is not None and record.deleted_at == at:
            self._add(connection, "key.deleted", record)

    def _expiry_set(self, connection: Connection, key_id: str, owner_id: str) -> None:
        record = _record(connection, key_id, owner_id)
        if record is not None and record.deleted_at is None:
            expires_at = None if record.expires_at is None else record.expires_at.isoformat()
            self._add(connection, "key.expiry_set", record, expires_at=expires_at)

    def _add(
        self, connection: Connection, action: str, key: ApiKey | ApiKey, **details: object
    ) -> None:
        act = _acting.get()
        principal = None if act is None else act.principal
        entry = self._audit.entry(
            action,
            principal=principal,
            # Whoever shows a key without a login is nobody that is known.
            anonymous=act is not None and principal is None,
            target=key.id,
            details={"name": key.name, **details},
        )
        connection.execute(insert(schema.audit).values(entry))


class WitnessedAuthenticator(AsyncAuthenticator[User]):
    """The library's authenticator; the store underneath knows who changes a key, and why. Arguments as there."""

    async def create_key(
        self,
        principal: Principal[User],
        *,
        name: str,
        scopes: Iterable[str] | None = None,
        lifetime: Lifetime = "default",
    ) -> CreatedKey:
        """See :class:`~msk_auth.AsyncAuthenticator`."""
        with _by(_Act(principal)):
            return await super().create_key(principal, name=name, scopes=scopes, lifetime=lifetime)

    async def rotate_key(
        self, principal: Principal[User], key_id: str, *, overlap: timedelta = timedelta(0)
    ) -> CreatedKey:
        """See :class:`~msk_auth.AsyncAuthenticator`."""
        with _by(_Act(principal)):
            return await super().rotate_key(principal, key_id, overlap=overlap)

    async def revoke_key(self, principal: Principal[User], key_id: str) -> ApiKey:
        """See :class:`~msk_auth.AsyncAuthenticator`."""
        with _by(_Act(principal)):
            return await super().revoke_key(principal, key_id)

    async def delete_key(self, principal: Principal[User], key_id: str) -> None:
        """See :class:`~msk_auth.AsyncAuthenticator`."""
        with _by(_Act(principal)):
            await super().delete_key(principal, key_id)

    async def expire_key(self, principal: Principal[User], key_id: str, *, at: datetime) -> ApiKey:
        """See :class:`~msk_auth.AsyncAuthenticator`."""
        with _by(_Act(principal)):
            return await super().expire_key(principal, key_id, at=at)

    async def revoke_presented_key(self, key: str) -> ApiKey | None:
        """See :class:`~msk_auth.AsyncAuthenticator`."""
        with _by(_Act(by_possession=True)):
            return await super().revoke_presented_key(key)

    async def revoke_leaked(self, leaked: Sequence[LeakedKey]) -> tuple[ApiKey | None, ...]:
        """See :class:`~msk_auth.AsyncAuthenticator`."""

        def sightings(record: ApiKey) -> Sequence[LeakLocation]:
            # Not by the id alone: somebody may have published the id with a secret of their own making.
            return [found.sighting for found in leaked if self._is_key_of(found.key, record)]

        with _by(_Act(sightings=sightings)):
            return await super().revoke_leaked(leaked)

    def _is_key_of(self, key: str, record: ApiKey) -> bool:
        try:
            presented = self.rules.key_format.parse(key)
        except KeyMalformed:
            return False
        return presented.id == record.id and self.rules.hasher.verify(key, record.digest)


def _write_down(connection: Connection) -> None:
    """What SQLAlchemy calls before each commit of the store's engine; what it raises undoes the change."""
    write_down = _unwritten.get()
    if write_down is not None:
        write_down(connection)


def _record(connection: Connection, key_id: str, owner_id: str) -> ApiKey | None:
    """The key as the transaction leaves it."""
    own = select(schema.api_keys).where(_KEYS.id == key_id, _KEYS.owner_id == owner_id)
    row = connection.execute(own).one_or_none()
    return None if row is None else read_record(row)


@contextmanager
def _writing(write_down: _WriteDown) -> Generator[None]:
    token = _unwritten.set(write_down)
    try:
        yield
    finally:
        _unwritten.reset(token)


@contextmanager
def _by(act: _Act) -> Generator[None]:
    token = _acting.set(act)
    try:
        yield
    finally:
        _acting.reset(token)
