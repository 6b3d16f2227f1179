"""What `task-service after-restore` does to a database that was restored from a backup, before the service starts on it.

A backup has what was open when it was made: runs that have ended since and would be executed again, and logins, keys and
users that have been refused since. Runs and logins end here. Which keys and users were refused is in an export of the audit
log that was made after the backup.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from sqlalchemy import func, select, update

from msk_auth import KeyStatus
from msk_auth.errors import ConfigurationError

from .accounts.changes import Change
from .accounts.users import SERVICE_ACCOUNT
from .db.schema import audit, runs, sessions
from .errors import ServiceAccountNotFound, UserNotFound
from .ids import is_id
from .services import Services
from .tasks.models import RunState

RESTORED: Final = "The database was restored from a backup."
"""The error of a run that ends because of that."""

_REFUSED_KEY: Final = frozenset({"key.revoked", "key.deleted"})
_DISABLED: Final = frozenset(
    {"user.disabled", "service_account.disabled", "service_account.deleted"}
)
_ENABLED: Final = frozenset({"user.enabled", "service_account.enabled"})
_NOT_REPEATED: Final = frozenset(
    {
        "config.changed",
        "key.expiry_set",
        "key.rotated",
        "key.updated",
        "service_account.created",
        "user.created",
        "user.password_changed",
        "user.password_set",
        "user.roles_changed",
    }
)


class AuditedChange(BaseModel):
    """An entry of an export of the audit log.

    Attributes:
        id: The entry's.
        at: When.
        action: What.
        target: The id of what was changed, if it has one.
        details: More about the change.
    """

    model_config = ConfigDict(strict=True, frozen=True)

    id: int
    at: datetime
    action: str
    target: str | None = None
    details: dict[str, Any]

    @property
    def refuses_key(self) -> bool:
        """Whether a key was revoked or deleted."""
        leaked = self.action == "key.leaked" and self.details.get("revoked")
        return self.action in _REFUSED_KEY or bool(leaked)

    @model_validator(mode="after")
    def _names_the_key(self) -> AuditedChange:
        if self.refuses_key and self.target is None:
            raise ValueError("no key is named")
        return self

    def __str__(self) -> str:
        at = self.at.isoformat().replace("+00:00", "Z")
        return f"{at} {self.action} {self.target or ''}".rstrip()


@dataclass(frozen=True, slots=True)
class AuditedChanges:
    """What an export of the audit log says about who is refused.

    Attributes:
        revoked_keys: The ids of keys that were revoked or deleted.
        disabled_users: The ids of users and service accounts whom the last entry about them disabled, or deleted.
        not_repeated: Changes that are not made again, newest last. The backup may have them: see :func:`list_actions`.
    """

    revoked_keys: frozenset[str]
    disabled_users: frozenset[str]
    not_repeated: tuple[AuditedChange, ...]

    @classmethod
    def read(cls, lines: Iterable[str]) -> AuditedChanges:
        """Read an export in the format `jsonl`.

        Raises:
            ConfigurationError: A line is not an entry of the audit log.
        """
        entries: list[AuditedChange] = []
        for number, line in enumerate(lines, start=1):
            try:
                entries.append(AuditedChange.model_validate_json(line))
            except ValidationError:
                raise ConfigurationError(
                    f"Line {number} is not an entry of the audit log. Export it with format=jsonl."
                ) from None
        # The newest is first in an export.
        entries.sort(key=lambda entry: entry.id)
        disabled = {
            str(entry.target): entry.action in _DISABLED
            for entry in entries
            if entry.action in _DISABLED | _ENABLED
        }
        return cls(
            frozenset(str(entry.target) for entry in entries if entry.refuses_key),
            frozenset(user_id for user_id, is_disabled in disabled.items() if is_disabled),
            tuple(entry for entry in entries if entry.action in _NOT_REPEATED),
        )


@dataclass(frozen=True, slots=True)
class Restoration:
    """How many runs and logins ended, keys were revoked, and users and service accounts disabled."""

    runs: int
    sessions: int
    keys: int
    users: int


async def refuse_what_ended(services: Services, changes: AuditedChanges) -> Restoration:
    """End runs and logins of a restored database, revoke keys and disable users. Doing it twice changes nothing more.

    Args:
        services: On the restored database, which no other process uses.
        changes: Since the backup.

    Raises:
        StoreUnavailable: The database does not answer.
    """
    now = services.clock.now()
    keys = 0
    for key_id in sorted(changes.revoked_keys):
        record = await services.key_store.find(key_id)
        # Made after the backup, so it is unknown now.
        if record is None or record.status(now) is not KeyStatus.ACTIVE:
            continue
        # Without an entry of its own: that of the restoration names the keys.
        await services.key_store.revoke(
            key_id, owner_id=record.owner_id, at=now, change=lambda _: ()
        )
        keys += 1
    users = 0
    for user_id in sorted(changes.disabled_users):
        store = services.service_accounts if is_id(user_id, SERVICE_ACCOUNT) else services.users
        try:
            if not (await store.get(user_id)).disabled:
                await store.change(user_id, disabled=True)
                users += 1
        except (UserNotFound, ServiceAccountNotFound):
            continue
    async with services.db.write() as connection:
        # No worker is left that could answer a request to cancel a running one.
        ended_runs = await connection.execute(
            update(runs)
            .where(runs.c.state.in_((RunState.QUEUED, RunState.RUNNING)))
            .values(
                state=RunState.CANCELLED,
                finished_at=now,
                error=RESTORED,
                claimed_by=None,
                lease_expires_at=None,
            )
        )
        ended_sessions = await connection.execute(
            update(sessions)
            .where(sessions.c.ended_at.is_(None))
            .values(ended_at=now, id_token=None)
        )
        done = Restoration(ended_runs.rowcount, ended_sessions.rowcount, keys, users)
        if done != Restoration(0, 0, 0, 0):
            change = Change(connection, None, now, services.audit)
            await change.record(
                "database.restored",
                None,
                runs=done.runs,
                sessions=done.sessions,
                keys=sorted(changes.revoked_keys),
                users=sorted(changes.disabled_users),
            )
    return done


async def list_actions(services: Services, changes: AuditedChanges) -> list[str]:
    """The changes since the backup that are not made again here, oldest first.

    Args:
        services: On the restored database.
        changes: Since the backup, or also before.

    Raises:
        StoreUnavailable: The database does not answer.
    """
    async with services.db.read() as connection:
        # Entries before the oldest one were purged.
        oldest = await connection.scalar(select(func.min(audit.c.id)))
        found = await connection.execute(
            select(audit.c.id, audit.c.at).where(audit.c.action.in_(_NOT_REPEATED))
        )
        known = {(row.id, row.at) for row in found}
    return [
        str(change)
        for change in changes.not_repeated
        if (change.id, change.at) not in known and change.id >= (oldest or 0)
    ]
